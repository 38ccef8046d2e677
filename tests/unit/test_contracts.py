"""The import contracts: kept by the real tree, and broken by every planted violation."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")

VALUE_MODULES = {
    "__future__", "abc", "bisect", "collections", "copy", "dataclasses", "decimal", "enum", "fractions", "functools", "hashlib",
    "heapq", "itertools", "json", "math", "operator", "re", "statistics", "string", "textwrap", "types", "typing",
}  # fmt: skip
"""What deciding code may import of the standard library: modules that only compute values."""

PLANTED = {
    "controller-layers": ("autotuner/core/planted.py", "import autotuner.search"),
    "worker-layers": ("workers/autotuner_worker/engines/planted.py", "import autotuner_worker.workloads"),
    "pure": ("autotuner/core/planted_clock.py", "import time"),
    "controller-without-worker": ("autotuner/daemon/planted.py", "import autotuner_worker.ports"),
    "worker-sees-kernel-only": ("workers/autotuner_worker/agent/planted.py", "import autotuner.settings"),
    "worker-without-engine": ("workers/autotuner_worker/probes/planted.py", "import torch"),
    "in-engine-alone": ("workers/autotuner_worker/in_engine/planted.py", "import autotuner.core"),
    "in-engine-unseen": ("workers/autotuner_worker/engines/planted_too.py", "import autotuner_worker.in_engine"),
    "light-cli": ("autotuner/cli/planted.py", "def late() -> None:\n    import optuna"),
}
"""One violation of each contract: contract id → file and what is written into it."""


def contracts() -> dict[str, str]:
    """Return the contracts: id → name."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        settings = tomllib.load(file)
    return {contract["id"]: contract["name"] for contract in settings["tool"]["importlinter"]["contracts"]}


def lint(root: Path) -> tuple[int, dict[str, bool]]:
    """Run import-linter on the tree in *root*; return its exit code and for each contract's id whether it was kept."""
    # Without the measuring of coverage: what runs here is not the source, and half of it a spoilt copy.
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("COVERAGE")}
    environ = {**inherited, "PYTHONPATH": f"{root}{os.pathsep}{root / 'workers'}", "COLUMNS": "400"}
    result = subprocess.run(
        [LINT_IMPORTS, "--no-cache"], cwd=root, env=environ, capture_output=True, text=True, check=False, timeout=60
    )
    output = re.sub(r"\s+", " ", re.sub(r"\x1b\[[0-9;]*m", "", result.stdout))
    kept = {}
    for identity, name in contracts().items():
        verdict = re.search(re.escape(name) + r" (KEPT|BROKEN)", output)
        assert verdict is not None, f"no verdict on {identity}:\n{result.stdout}\n{result.stderr}"
        kept[identity] = verdict[1] == "KEPT"
    return result.returncode, kept


@pytest.fixture
def copied_tree(tmp_path: Path) -> Path:
    """Return a copy of the source that a test may spoil."""
    generated = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "autotuner", tmp_path / "autotuner", ignore=generated)
    shutil.copytree(ROOT / "workers", tmp_path / "workers", ignore=generated)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_real_tree_keeps_every_contract() -> None:
    code, kept = lint(ROOT)
    assert [identity for identity, held in kept.items() if not held] == []
    assert code == 0


def test_every_contract_is_broken_by_its_planted_violation(copied_tree: Path) -> None:
    for file, text in PLANTED.values():
        (copied_tree / file).write_text(text + "\n")
    code, kept = lint(copied_tree)
    assert code == 1
    assert [identity for identity, held in kept.items() if held] == []
    assert set(PLANTED) == set(kept), "each contract has its planted violation"


def test_a_new_package_must_be_placed_in_a_layer(copied_tree: Path) -> None:
    for folder in ("autotuner/newcomer", "workers/autotuner_worker/newcomer"):
        (copied_tree / folder).mkdir()
        (copied_tree / folder / "__init__.py").write_text("")
    code, kept = lint(copied_tree)
    assert code == 1
    assert [identity for identity, held in kept.items() if not held] == ["controller-layers", "worker-layers"]


def pure_files() -> list[Path]:
    """Return the files of the code that decides."""
    runner = ROOT / "workers" / "autotuner_worker" / "runner"
    runners = sorted(runner.rglob("*.py")) if runner.is_dir() else [runner.with_suffix(".py")]
    return [ROOT / "autotuner" / "errors.py", *sorted((ROOT / "autotuner" / "core").rglob("*.py")), *runners]


@pytest.mark.parametrize("path", pure_files(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_decides_imports_value_modules_only(path: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            imported.add(node.module.partition(".")[0])
    assert imported - VALUE_MODULES - {"autotuner", "autotuner_worker"} == set()


def test_the_command_line_starts_without_heavy_libraries() -> None:
    heavy = ["optuna", "pandas", "plotly", "scipy", "sqlalchemy", "torch", "vllm"]
    program = f"import sys, autotuner.cli.main; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"
