"""Waiting for the death of processes that are not our children, and starting the badly behaved ones."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from autotuner_worker.process import BoundedLog, ManagedProcess, spawn

HERE = Path(__file__).parent
DEADLINE = 20.0
"""Far more than anything here takes; reached only when a test fails."""


class Deaths:
    """Handles on live processes, opened before they are to die."""

    def __init__(self, pids: Iterable[int]) -> None:
        """Fail when one of *pids* is dead already."""
        self._handles = {os.pidfd_open(pid): pid for pid in pids}

    def wait(self) -> None:
        """Block until all are dead; fail with the list of the living after the deadline."""
        poll = select.poll()
        for handle in self._handles:
            poll.register(handle, select.POLLIN)
        deadline = time.monotonic() + DEADLINE
        while self._handles:
            ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
            assert ready, f"still alive: {sorted(self._handles.values())}"
            for handle, _event in ready:
                poll.unregister(handle)
                os.close(handle)
                del self._handles[handle]

    async def wait_async(self) -> None:
        """As ``wait``, with the event loop running."""
        await asyncio.get_running_loop().run_in_executor(None, self.wait)


def alive(pid: int) -> bool:
    """Return whether *pid* runs (a zombie does not)."""
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
    return False


class Launched:
    """A managed child and what it said."""

    def __init__(self, process: ManagedProcess, log: BoundedLog, record: Path) -> None:
        self.process, self.log, self.record = process, log, record
        self.said: list[str] = []
        self.ready: asyncio.Future[dict[str, int]] = asyncio.get_running_loop().create_future()

    def listen(self, line: str) -> None:
        """Collect a line; the one with the pids resolves ``ready``."""
        self.said.append(line)
        if line.startswith("ready "):
            self.ready.set_result(json.loads(line.removeprefix("ready ")))


async def launch(directory: Path, mode: str, *arguments: str, linger: float = 10.0) -> Launched:
    """Start the badly behaved child under a guardian."""
    log = BoundedLog(directory / "logs" / "engine.log")
    record = directory / "records" / "launch.json"
    held: list[str] = []
    argv = [sys.executable, str(HERE / "process_child.py"), mode, *arguments]
    process = await spawn(argv, dict(os.environ), directory, log, record, lines=held.append, linger=linger)
    launched = Launched(process, log, record)
    process.lines = launched.listen
    for line in held:
        launched.listen(line)
    return launched


@contextlib.contextmanager
def worker(directory: Path, mode: str) -> Iterator[dict[str, int]]:
    """Run a worker process that has started its child; yields name → pid, ``worker`` and ``guardian`` among them."""
    argv: Sequence[str] = [sys.executable, "-m", "tests.integration.process_worker", str(directory), mode]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=HERE.parent.parent) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
