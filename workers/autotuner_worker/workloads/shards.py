"""The generator processes of one load: start, messages, end.

They are children in sessions of their own, so that an interrupt of the terminal reaches the parent alone, and each
ends when its standard input closes, so that none outlives a parent that is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from autotuner.core.trial import OutcomeClass
from autotuner_worker.ports import EngineFault, SegmentFault
from autotuner_worker.workloads.job import Job

__all__ = ["Shards"]

_END_TIMEOUT = 5.0
_LARGEST_LINE = 1 << 20


class Shards:
    """All generator processes of one load, as an asynchronous context: none is left when it ends."""

    def __init__(self, jobs: Sequence[Job], folder: Path) -> None:
        """Take one job per process, and a folder for what the processes print on their standard error."""
        self._jobs, self._folder = jobs, folder
        self._processes: list[asyncio.subprocess.Process] = []
        self._readers: list[asyncio.Task[None]] = []
        self._queue: asyncio.Queue[tuple[int, dict[str, Any]]] = asyncio.Queue()
        self._done: dict[int, dict[str, Any]] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    async def __aenter__(self) -> Self:
        try:
            for number, job in enumerate(self._jobs):
                with self._log(number).open("wb") as log:
                    process = await asyncio.create_subprocess_exec(
                        sys.executable,
                        "-m",
                        "autotuner_worker.workloads.client",
                        stdin=asyncio.subprocess.PIPE,
                        stdout=asyncio.subprocess.PIPE,
                        stderr=log,
                        limit=_LARGEST_LINE,
                        start_new_session=True,
                    )
                self._processes.append(process)
                self._write(process, job.to_json())
                self._readers.append(asyncio.create_task(self._read(number, process)))
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_END_TIMEOUT):
                    for process in self._processes:
                        await process.wait()
        await self._end()

    async def _end(self) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()
        for process in self._processes:
            await process.wait()
            if process.stdin is not None:
                process.stdin.close()
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)

    @property
    def unfinished(self) -> bool:
        """Whether a process has not delivered its records."""
        return len(self._done) < len(self._jobs)

    @property
    def summaries(self) -> list[dict[str, Any]]:
        """What the finished processes said at the end."""
        return list(self._done.values())

    def send(self, command: Mapping[str, Any]) -> None:
        """Send *command* to every process that has not finished."""
        for number, process in enumerate(self._processes):
            if number not in self._done:
                self._write(process, command)

    async def prepared(self, timeout: float) -> None:
        """Wait until every process is ready to begin; raise ``SegmentFault`` after *timeout* seconds."""
        for _ in self._jobs:
            await self.next_message(timeout)

    async def next_message(self, timeout: float) -> tuple[int, dict[str, Any]]:
        """Return the next message and its shard; raise ``SegmentFault`` for a dead or silent process."""
        try:
            async with asyncio.timeout(timeout):
                number, message = await self._queue.get()
        except TimeoutError:
            raise SegmentFault(self._fault(f"no word from the load generator for {timeout:g} s")) from None
        if message["op"] == "exit":
            lines = self._log(number).read_text(encoding="utf-8", errors="replace").strip().splitlines()
            code = message["code"]
            raise SegmentFault(self._fault(f"a load generator process ended with exit code {code}", *lines[-5:]))
        if message["op"] == "done":
            self._done[number] = message
        return number, message

    @staticmethod
    def _fault(message: str, *evidence: str) -> EngineFault:
        return EngineFault(outcome=OutcomeClass.INFRASTRUCTURE, message=message, evidence=evidence)

    def _log(self, number: int) -> Path:
        return self._folder / f"{number}.log"

    @staticmethod
    def _write(process: asyncio.subprocess.Process, value: Mapping[str, Any]) -> None:
        if process.stdin is not None and not process.stdin.is_closing():
            process.stdin.write(json.dumps(value).encode() + b"\n")

    async def _read(self, number: int, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        finished = False
        while line := await process.stdout.readline():
            message = json.loads(line)
            finished = message["op"] == "done"
            self._queue.put_nowait((number, message))
        code = await process.wait()
        if not finished:
            self._queue.put_nowait((number, {"op": "exit", "code": code}))
