"""The load generator's parent side: starts the generator processes, conducts the load, judges and evaluates it.

One segment is one continuous load without a gap: a warm-up until throughput is steady, then the measured part, then
the load goes on until the last request that was sent in the measured part has ended, so that all of them met the same
load; what is still in flight then is cut off.  Nothing is told about the engine when the generator could not keep its
own schedule: such a segment is a VOID fault, never a measurement.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from autotuner.core.trial import Measurement
from autotuner.core.workload import LengthKind, LoadMode
from autotuner.observe.evaluate import evaluate
from autotuner.observe.records import Records, SegmentMeta, merge
from autotuner_worker.ports import ProgressSink, Segment, SegmentFault
from autotuner_worker.workloads.client import needed_trace
from autotuner_worker.workloads.job import Job
from autotuner_worker.workloads.selfcheck import Thresholds, check_load, live_fault, measured_fault, void_fault
from autotuner_worker.workloads.server_facts import learn_server
from autotuner_worker.workloads.shards import Shards
from autotuner_worker.workloads.timeline import Timeline, end_of_part, end_of_warmup

__all__ = ["HttpLoadGenerator", "expected_chunk_rate"]

CHUNKS_PER_PROCESS = 15_000.0
"""Content chunks per second that one process takes in with room to spare."""

_PREPARE_TIMEOUT = 120.0
_SILENCE = 30.0
_START_DELAY = 0.05


def expected_chunk_rate(segment: Segment) -> float:
    """Return a cautious guess of the chunks per second of a segment's load."""
    workload = segment.workload
    if workload.mode is LoadMode.OPEN:
        mean = workload.output_tokens.mean if workload.output_tokens.kind is not LengthKind.TRACE else 512.0
        return workload.rate * mean
    return workload.concurrency * 100.0


class HttpLoadGenerator:
    """Offers load over HTTP from processes of its own; implements ``LoadGenerator``."""

    def __init__(self, processes: int | None = None, thresholds: Thresholds | None = None) -> None:
        """Use exactly *processes*, or as many as the load is expected to need."""
        self._forced = processes
        self._least = 1
        self._thresholds = thresholds or Thresholds()

    async def run(self, segment: Segment, progress: ProgressSink) -> Measurement:
        """Run one segment; raise ``SegmentFault`` when nothing valid was measured, ``InputError`` for a bad trace."""
        return await self._measure(segment, progress, None)

    async def run_exact(self, segment: Segment, progress: ProgressSink, requests: int) -> Measurement:
        """Send exactly the first *requests* of the schedule, without warm-up; all of them are measured.

        Throughput is then all tokens divided by the time from the first send to the last end.
        """
        return await self._measure(segment, progress, requests)

    def _processes(self, segment: Segment) -> int:
        wanted = self._forced or max(self._least, round(expected_chunk_rate(segment) / CHUNKS_PER_PROCESS))
        if self._forced is None:
            wanted = min(wanted, max(1, (os.cpu_count() or 1) // 2))
        bound = segment.workload.concurrency
        return max(1, min(wanted, bound) if bound > 0 else wanted)

    async def _measure(self, segment: Segment, progress: ProgressSink, exact: int | None) -> Measurement:
        needed_trace(segment.workload)  # An unreadable trace is told before anything is started.
        facts = await learn_server(segment)
        segment.records_path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=segment.records_path.parent, prefix=".load-") as folder:
            count = self._processes(segment)
            jobs = [
                Job(
                    base_url=segment.base_url,
                    model_name=segment.model_name,
                    workload=segment.workload,
                    seed=segment.seed,
                    salt=segment.salt,
                    vocabulary=segment.vocabulary,
                    shard=shard,
                    shards=count,
                    exact=exact,
                    context=facts.context,
                    pool_text=facts.pool_text,
                    pool_tokens=facts.pool_tokens,
                    records_path=str(Path(folder, f"{shard}.npz")),
                    report_every=min(0.2, segment.measure.window),
                )
                for shard in range(count)
            ]
            async with Shards(jobs, Path(folder)) as shards:
                conductor = _Conductor(segment, shards, progress, self._thresholds, exact is not None)
                await conductor.conduct()
            return self._judge(segment, conductor, [Records.read(Path(job.records_path)) for job in jobs])

    def _judge(self, segment: Segment, conductor: _Conductor, parts: list[Records]) -> Measurement:
        records, messages = conductor.assemble(parts)
        check = check_load(
            records,
            closed=segment.workload.mode is LoadMode.CLOSED,
            cpu_share=conductor.cpu_share,
            stall=conductor.stall,
            processes=len(parts),
            thresholds=self._thresholds,
        )
        if conductor.suspended > 0.1:
            reason = f"the host was suspended for {conductor.suspended:.1f} s"
            check = replace(check, void_reasons=(*check.void_reasons, reason))
        if check.cpu_share > self._thresholds.cpu_share:
            self._least = len(parts) + 1
        records = replace(records, meta=replace(records.meta, check=check))
        records.write(segment.records_path)
        measurement = evaluate(records, limits=segment.limits, name=segment.records_path.name)
        if check.void_reasons:
            raise SegmentFault(void_fault(check))
        fault = measured_fault(measurement, records, messages)
        if fault is not None:
            raise SegmentFault(fault)
        return measurement


class _Conductor:
    """Leads one load from the start to the last answer."""

    def __init__(
        self, segment: Segment, shards: Shards, progress: ProgressSink, thresholds: Thresholds, exact: bool
    ) -> None:
        self._segment, self._shards, self._progress = segment, shards, progress
        self._thresholds, self._exact = thresholds, exact
        self._timeline = Timeline(0.0, 0)
        self._warmup_end: float | None = None
        self._end: float | None = None
        self._steady = False
        self._suspension = _suspended_clock()
        self.cpu_share = self.stall = self.suspended = 0.0

    async def conduct(self) -> None:
        """Run the load; raise ``SegmentFault`` when it cannot be completed."""
        await self._shards.prepared(_PREPARE_TIMEOUT)
        start = time.monotonic() + _START_DELAY
        self._timeline = Timeline(start, len(self._shards))
        self._shards.send({"op": "start", "at": start})
        if self._exact:
            self._warmup_end = start
        drained = 0
        while self._shards.unfinished:
            shard, message = await self._shards.next_message(_SILENCE)
            if message["op"] == "report":
                self._timeline.add(shard, message)
                self._step()
            elif message["op"] == "drained":
                drained += 1
                if drained == len(self._shards):
                    self._shards.send({"op": "stop"})
        begin = start if self._warmup_end is None else self._warmup_end
        end = self._timeline.known if self._end is None else self._end
        self.cpu_share = self._timeline.cpu_share(begin, end)
        self.stall = self._timeline.longest_stall(begin)
        self.suspended = _suspended_clock() - self._suspension

    def _step(self) -> None:
        plan = self._segment.measure
        fault = live_fault(self._timeline, time.monotonic(), plan.stall_timeout, self._thresholds)
        if fault is not None:
            raise SegmentFault(fault)
        if not self._exact:
            if self._warmup_end is None:
                ended = end_of_warmup(self._timeline, plan)
                if ended is not None:
                    self._warmup_end, self._steady = ended
            elif self._end is None:
                self._end = end_of_part(self._timeline, plan, self._warmup_end)
                if self._end is not None:
                    self._shards.send({"op": "finish", "end": self._end})
        self._show()

    def _show(self) -> None:
        timeline = self._timeline
        ok_chunks = timeline.total("ok_chunks")
        per_chunk = timeline.total("ok_tokens") / ok_chunks if ok_chunks else 1.0
        phase = "warming" if self._warmup_end is None else "measuring"
        detail = f"{timeline.total('ended'):.0f} answers, {timeline.total('running'):.0f} in flight"
        failed = timeline.total("failed")
        self._progress(
            phase,
            f"{detail}, {failed:.0f} failed" if failed else detail,
            timeline.rate(self._segment.measure.window) * per_chunk,
        )

    def assemble(self, parts: list[Records]) -> tuple[Records, Counter[str]]:
        """Return all rows with the segment's bounds relative to its first send, and why requests failed."""
        messages: Counter[str] = Counter()
        clamped = 0
        for summary in self._shards.summaries:
            messages.update(summary["messages"])
            clamped += summary["clamped"]
        rows = sum(len(part) for part in parts)
        notes = [f"{count}x {text}" for text, count in messages.most_common(20)]
        if clamped:
            notes.append(f"{clamped} of {rows} requests of the trace were clamped to the model's context")
        origin = min((float(part.sent.min()) for part in parts if len(part)), default=self._timeline.start)
        records = merge(parts, SegmentMeta(window=self._segment.measure.window, notes=tuple(notes)))
        if self._exact:
            warmup_end, end = 0.0, float(records.ended.max()) if len(records) else 0.0
        else:
            assert self._warmup_end is not None and self._end is not None
            warmup_end, end = self._warmup_end - origin, self._end - origin
        # The zero of the file's times on the host's monotonic clock, to compare with other records of that host.
        labels = {"monotonic_origin": repr(origin)}
        meta = replace(records.meta, warmup_end=warmup_end, end_time=end, steady=self._steady, labels=labels)
        return replace(records, meta=meta), messages


def _suspended_clock() -> float:
    """Return a number that grows by the time that the host sleeps."""
    boot: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    return 0.0 if boot is None else time.clock_gettime(boot) - time.monotonic()
