"""One generator process: sends its shard of the schedule and records what comes back.

``python -m autotuner_worker.workloads.client`` reads one JSON object per line from its standard input and writes one per
line to its standard output::

    in   job …        what to do; answered by ``ready`` when everything is prepared
    in   start  at    begin at this time of the monotonic clock (shared by all processes of a host)
    out  report …     a few times per second: cumulative counts, CPU time, event-loop stalls
    in   finish end   the measured part ended at this time; answered by ``drained`` when all requests sent by then ended
    in   stop         cut off the rest and write the records; answered by ``done``

When the standard input closes, the process ends at once: nothing outlives its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from autotuner.core.workload import Arrival, LengthKind, LoadMode, Workload
from autotuner.observe.records import Records, Status
from autotuner_worker.workloads.http1 import Call, Endpoint, Pool, Tally
from autotuner_worker.workloads.job import Job
from autotuner_worker.workloads.prompts import BodyMaker, TextPool
from autotuner_worker.workloads.rows import RowBuffer, judge
from autotuner_worker.workloads.schedule import Planned, Schedule
from autotuner_worker.workloads.traces import TraceRow, read_trace

__all__ = ["LoadClient", "main", "needed_trace"]

_BEAT = 0.05
_LOCK_CURRENT = 1
_PRIORITY = -10
_BACKOFF, _LONGEST_BACKOFF = 0.05, 1.0

_COUNTS = ("sent", "ended", "ok", "garbage", "refused", "failed", "failing", "ok_tokens", "ok_chunks")

Emit = Callable[[dict[str, Any]], None]


def needed_trace(workload: Workload) -> tuple[TraceRow, ...]:
    """Return the rows of the workload's trace, or none when nothing depends on it. Raise ``InputError``."""
    kinds = (workload.input_tokens.kind, workload.output_tokens.kind)
    timed = workload.mode is LoadMode.OPEN and workload.arrival is Arrival.TRACE
    if workload.trace is None or not (timed or LengthKind.TRACE in kinds):
        return ()
    return read_trace(workload.trace)


class LoadClient:
    """The load of one shard on the running event loop."""

    def __init__(self, job: Job, emit: Emit, trace: tuple[TraceRow, ...] = ()) -> None:
        workload = job.workload
        self._job, self._emit = job, emit
        self._schedule = Schedule(workload, job.seed, trace, job.context)
        pool = TextPool(job.pool_text, job.pool_tokens) if job.pool_text else None
        self._bodies = BodyMaker(workload, job.model_name, job.prompt_seed, job.vocabulary, pool)
        self._tally = Tally()
        self._pool = Pool(Endpoint.parse(job.base_url), self._tally)
        self._rows = RowBuffer()
        self._indices = self._own_indices()
        self._stopped = asyncio.Event()
        self._running: dict[int, float] = {}
        self._waiting_since = 0.0
        self._finish_at: float | None = None
        self._drained = False
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._failing_since = 0.0
        self._message = ""
        self._longest_stall = 0.0
        self._schedule.request(job.shard)  # Draws the first block ahead of time.

    def _own_indices(self) -> Iterator[int]:
        index = self._job.shard
        while self._job.exact is None or index < self._job.exact:
            yield index
            index += self._job.shards

    def _next(self) -> Planned | None:
        index = next(self._indices, None)
        return None if index is None else self._schedule.request(index)

    async def run(self, start: float) -> None:
        """Offer load from *start* (monotonic) until :meth:`stop`, or until the exact number of requests has ended."""
        beat = asyncio.create_task(self._beat())
        load = asyncio.create_task(self._closed(start) if self._is_closed else self._open(start))
        stop = asyncio.create_task(self._stopped.wait())
        try:
            await asyncio.wait([load, stop], return_when=asyncio.FIRST_COMPLETED)
            if load.done():
                load.result()
        finally:
            for task in (load, stop, beat):
                task.cancel()
            await asyncio.gather(load, stop, beat, return_exceptions=True)
            self._pool.close()
        self._report()

    @property
    def _is_closed(self) -> bool:
        return self._job.workload.mode is LoadMode.CLOSED

    def finish(self, end: float) -> None:
        """Note that requests sent up to *end* are the last to wait for; ``drained`` is told when they have ended."""
        self._finish_at = end
        self._check_drained()

    def stop(self) -> None:
        """End the load; requests that have not ended are cut off."""
        self._stopped.set()

    @property
    def records(self) -> Records:
        """What was recorded so far, on the monotonic clock."""
        return self._rows.records()

    @property
    def summary(self) -> dict[str, Any]:
        """What belongs to the shard as a whole."""
        return {"clamped": self._rows.clamped, "messages": dict(self._rows.messages.most_common(10))}

    async def _closed(self, start: float) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._job.clients):
                group.create_task(self._one_client(start))

    async def _one_client(self, start: float) -> None:
        failures = 0
        planned = self._next()
        body = b"" if planned is None else self._bodies.body(planned)
        free = start
        await asyncio.sleep(max(0.0, start - time.monotonic()))
        while planned is not None:
            task = asyncio.ensure_future(self._request(planned, body, free, free))
            await asyncio.sleep(0)  # The request goes out first, then the next one is prepared while it is answered.
            try:
                upcoming = self._next()
                body = b"" if upcoming is None else self._bodies.body(upcoming)
                well = await task
            finally:
                task.cancel()
            free = time.monotonic()
            planned = upcoming
            failures = 0 if well else failures + 1
            if failures:
                # Without a pause, a dead server would be asked thousands of times per second.
                await asyncio.sleep(min(_LONGEST_BACKOFF, _BACKOFF * 2 ** min(failures, 8)))
                free = time.monotonic()

    async def _open(self, start: float) -> None:
        bound = asyncio.Semaphore(self._job.clients) if self._job.workload.concurrency > 0 else None
        async with asyncio.TaskGroup() as group:
            for index in self._indices:
                planned = self._schedule.request(index)
                body = self._bodies.body(planned)
                due = start + planned.offset
                wait = due - time.monotonic()
                if wait > 0.0:
                    await asyncio.sleep(wait)
                ready = due
                if bound is not None:
                    held = bound.locked()
                    await bound.acquire()
                    ready = time.monotonic() if held else due
                group.create_task(self._bounded(planned, body, due, ready, bound))

    async def _bounded(
        self, planned: Planned, body: bytes, due: float, ready: float, bound: asyncio.Semaphore | None
    ) -> None:
        try:
            await self._request(planned, body, due, ready)
        finally:
            if bound is not None:
                bound.release()

    async def _request(self, planned: Planned, body: bytes, scheduled: float, ready: float) -> bool:
        """Send one request, wait for its end and record it; return whether it went well."""
        call = Call()
        name = f"load-{self._job.prompt_seed & 0xFFFFFFFF:x}-{planned.index}"

        def on_sent() -> None:
            if not self._running:
                self._waiting_since = call.sent
            self._running[planned.index] = call.sent
            self._counts["sent"] += 1

        try:
            await self._pool.post(call, body, name, self._job.workload.request_timeout, on_sent)
        except asyncio.CancelledError:
            if call.sent:
                self._rows.add(planned, call, scheduled, ready, Status.CUT)
            raise
        status, message = judge(call, planned, self._job.workload.ignore_eos)
        self._rows.add(planned, call, scheduled, ready, status, message)
        self._message = message or self._message
        self._count(call, status)
        del self._running[planned.index]
        self._check_drained()
        return status is Status.OK

    def _count(self, call: Call, status: Status) -> None:
        counts = self._counts
        counts["ended"] += 1
        if status is Status.OK:
            counts["ok"] += 1
            counts["ok_tokens"] += call.answer.completion_tokens
            counts["ok_chunks"] += len(call.answer.offsets)
        counts["garbage"] += status in (Status.GARBAGE, Status.EMPTY)
        counts["refused"] += status is Status.ERROR and 400 <= call.http_status < 500
        counts["failed"] += status is Status.ERROR
        if status is Status.ERROR:
            self._failing_since = self._failing_since if counts["failing"] else call.ended
            counts["failing"] += 1
        else:
            counts["failing"] = 0

    def _check_drained(self) -> None:
        end = self._finish_at
        if end is not None and not self._drained and not any(sent <= end for sent in self._running.values()):
            self._drained = True
            self._emit({"op": "drained"})

    async def _beat(self) -> None:
        previous = reported = time.monotonic()
        while True:
            await asyncio.sleep(_BEAT)
            now = time.monotonic()
            self._longest_stall = max(self._longest_stall, now - previous)
            previous = now
            if now - reported >= self._job.report_every:
                reported = now
                self._report()

    def _report(self) -> None:
        waiting = max(self._waiting_since, self._tally.last_chunk) if self._running else 0.0
        self._emit(
            {
                "op": "report",
                "at": time.monotonic(),
                "cpu": time.process_time(),
                "stall": self._longest_stall,
                "chunks": self._tally.chunks,
                "running": len(self._running),
                "waiting_since": waiting,
                "failing_since": self._failing_since if self._counts["failing"] else 0.0,
                "message": self._message,
                **self._counts,
            }
        )
        self._longest_stall = 0.0


def _write_line(value: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=64 * 1024 * 1024)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    line = await reader.readline()
    if not line:
        return
    job = Job.from_json(json.loads(line))
    client = LoadClient(job, _write_line, needed_trace(job.workload))
    gc.collect()
    gc.freeze()
    _write_line({"op": "ready"})
    running: asyncio.Task[None] | None = None
    commands = asyncio.create_task(reader.readline())
    while True:
        waited: set[asyncio.Future[Any]] = {commands} if running is None else {commands, running}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if running is not None and running.done():
            break
        line = commands.result()
        if not line:
            if running is not None:
                running.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await running
            return
        command = json.loads(line)
        match command["op"]:
            case "start":
                running = asyncio.create_task(client.run(command["at"]))
            case "finish":
                client.finish(command["end"])
            case "stop":
                client.stop()
            case _:
                raise ValueError(f"unknown command {command!r}")
        commands = asyncio.create_task(reader.readline())
    commands.cancel()
    running.result()
    client.records.write(Path(job.records_path))
    _write_line({"op": "done", **client.summary})


def _stay_in_memory() -> None:
    """Keep what is loaded in memory, where it is allowed: to read code from the disk again stalls a load for long."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mlockall(_LOCK_CURRENT)


def main() -> None:
    """Serve one job."""
    # Where it is allowed: on a host whose cores the engine fills, the clock of the load must not wait its turn.
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
    _stay_in_memory()
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        asyncio.run(_serve())


if __name__ == "__main__":
    main()
