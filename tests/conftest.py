"""What every test has: the real engine's place, and proof that no process is left behind."""

from __future__ import annotations

import os
import select
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
MARK = "AUTOTUNER_TEST_RUN"
"""Environment variable that every process started by this test run inherits."""
GRACE_SECONDS = 5.0
"""How long a process that is about to end may still be seen at the end of the run."""


@pytest.fixture(scope="session")
def engine_command() -> list[str]:
    """Return the command that starts real vLLM, ``[…/vllm, serve]``; fail where there is none."""
    program = Path(os.environ.get("AUTOTUNER_TEST_ENGINE") or ROOT / ".venv-engine" / "bin" / "vllm")
    if not os.access(program, os.X_OK):
        pytest.fail(
            f"no vLLM at {program}: run 'make setup', set AUTOTUNER_TEST_ENGINE, or deselect with -m 'not real'"
        )
    return [str(program), "serve"]


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    """Return the folder of the small model; fail where there is none."""
    folder = Path(os.environ.get("AUTOTUNER_TEST_MODEL") or ROOT / ".cache" / "models" / "tiny-llama")
    if not (folder / "config.json").is_file():
        pytest.fail(f"no model in {folder}: run 'make setup', set AUTOTUNER_TEST_MODEL, or deselect with -m 'not real'")
    return folder


@pytest.fixture(scope="session", autouse=True)
def nothing_left_running() -> Iterator[None]:
    """Fail the run when a process that it started outlives it, also one that nobody is the parent of any more."""
    mark = f"{MARK}={uuid.uuid4().hex}"
    os.environ[MARK] = mark.partition("=")[2]
    yield
    del os.environ[MARK]
    left = [pid for pid in _started(mark.encode()) if not _ends_soon(pid)]
    if left:
        pytest.fail("processes left running:\n" + "\n".join(f"  {pid}: {_command(pid)}" for pid in left))


def _started(mark: bytes) -> list[int]:
    """Return the live processes that inherited *mark* or have this process as parent."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            state, parent = (entry / "stat").read_bytes().rpartition(b")")[2].split()[:2]
            inherited = mark in (entry / "environ").read_bytes().split(b"\0")
        except OSError:  # it ended, or belongs to somebody else
            continue
        if state not in {b"Z", b"X"} and (inherited or int(parent) == os.getpid()):
            found.append(int(entry.name))
    return found


def _ends_soon(pid: int) -> bool:
    """Wait a little for *pid* to end; return whether it did."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], GRACE_SECONDS)[0])
    finally:
        os.close(handle)


def _command(pid: int) -> str:
    """Return the command line of *pid*, shortened."""
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
    except OSError:
        return "(ended)"
