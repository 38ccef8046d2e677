"""The whole load generator with its processes, against a scripted server in this process."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from autotuner.core.budget import LatencyMetric, Limit
from autotuner.core.study import MeasurePlan
from autotuner.core.trial import OutcomeClass
from autotuner.core.workload import Arrival, LengthKind, Lengths, LoadMode, PromptFormat, TraceSource, Workload
from autotuner.errors import InputError
from autotuner.observe.evaluate import evaluate, throughput
from autotuner.observe.records import Records
from autotuner_worker.ports import Segment, SegmentFault
from autotuner_worker.workloads.generator import HttpLoadGenerator, expected_chunk_rate
from autotuner_worker.workloads.job import Job
from autotuner_worker.workloads.selfcheck import Thresholds
from tests.fakes.completion_server import CompletionServer, running

pytestmark = pytest.mark.process

PLAN = MeasurePlan(
    warmup_min=0.1,
    warmup_max=0.4,
    window=0.1,
    tolerance=0.5,
    duration=0.4,
    min_requests=5,
    duration_max=2.0,
    stall_timeout=0.5,
)
LENIENT = Thresholds(late_floor=5.0, late_share=50.0, stall=30.0, cpu_share=2.0)
"""For machines that are busy with something else."""
SHORT = Workload(concurrency=2, input_tokens=Lengths(mean=6), output_tokens=Lengths(mean=4))


def segment(server: CompletionServer, path: Path, workload: Workload = SHORT, **more: Any) -> Segment:
    """Return a short segment."""
    return Segment(
        **{
            "base_url": server.base_url,
            "model_name": "model",
            "workload": workload,
            "measure": PLAN,
            "limits": (Limit(metric=LatencyMetric.E2E, percentile=99.0, seconds=60.0),),
            "seed": 11,
            "vocabulary": 500,
            "records_path": path / "raw" / "segment.npz",
            **more,
        }
    )


def ignore(phase: str, detail: str, rate: float) -> None:
    """Take progress and do nothing."""


async def test_a_segment_is_measured_and_its_records_say_the_same(tmp_path: Path) -> None:
    """Two processes, one measurement; nothing but the records is left."""
    seen: list[str] = []
    async with running() as server:
        asked = segment(server, tmp_path)
        measured = await HttpLoadGenerator(2, LENIENT).run(asked, lambda phase, detail, rate: seen.append(phase))
    assert measured.requests == measured.ok == measured.good
    assert measured.requests >= 5
    assert throughput(measured) > 0.0
    assert measured.check.processes == 2
    assert 0.0 < measured.warmup_end < measured.end_time
    assert set(seen) == {"warming", "measuring"}
    records = Records.read(asked.records_path)
    assert evaluate(records, limits=asked.limits, name=measured.records) == measured
    assert [item.name for item in asked.records_path.parent.iterdir()] == ["segment.npz"]


async def test_an_exact_number_without_warm_up(tmp_path: Path) -> None:
    """All tokens from the first send to the last end."""
    async with running() as server:
        measured = await HttpLoadGenerator(1, LENIENT).run_exact(segment(server, tmp_path), ignore, 12)
        assert len(server.bodies) == 12
    assert (measured.requests, measured.total_tokens, measured.warmup_tokens, measured.warmup_end) == (
        12,
        48.0,
        0.0,
        0.0,
    )


async def fault_of(
    path: Path, generator: HttpLoadGenerator, server: CompletionServer, **more: Any
) -> tuple[OutcomeClass, str]:
    """Return the class and the message of the fault."""
    with pytest.raises(SegmentFault) as caught:
        await generator.run(segment(server, path, **more), ignore)
    return caught.value.fault.outcome, caught.value.fault.message + " ".join(caught.value.fault.evidence)


async def test_an_untrusted_segment_is_void_and_never_a_measurement(tmp_path: Path) -> None:
    """The records are kept for a look."""
    strict = Thresholds(stall=0.0, late_floor=5.0, late_share=50.0)
    async with running() as server:
        outcome, message = await fault_of(tmp_path, HttpLoadGenerator(1, strict), server)
    assert outcome is OutcomeClass.VOID
    assert "stood still" in message
    assert Records.read(tmp_path / "raw" / "segment.npz").meta.check.void_reasons


@pytest.mark.parametrize(
    ("behaviour", "outcome"),
    [
        (CompletionServer.garbage, OutcomeClass.GARBAGE),
        (CompletionServer.empty, OutcomeClass.GARBAGE),
        (CompletionServer.refuse, OutcomeClass.GARBAGE),
        (CompletionServer.disconnect, OutcomeClass.CRASHED),
        (CompletionServer.stall, OutcomeClass.HUNG),
    ],
)
async def test_what_the_engine_does_is_classified(tmp_path: Path, behaviour: Any, outcome: OutcomeClass) -> None:
    """Each within a few seconds."""
    async with running(CompletionServer.normal, behaviour) as server:
        found, message = await fault_of(tmp_path, HttpLoadGenerator(1, LENIENT), server)
    assert (found, bool(message)) == (outcome, True)


async def test_a_server_that_is_gone(tmp_path: Path) -> None:
    """Connections are refused."""
    async with running() as server:
        pass
    found, _ = await fault_of(tmp_path, HttpLoadGenerator(1, LENIENT), server)
    assert found is OutcomeClass.CRASHED


async def test_text_prompts_are_made_by_the_server(tmp_path: Path) -> None:
    """Once, before the load."""
    async with running() as server:
        asked = segment(server, tmp_path, Workload(prompt_format=PromptFormat.TEXT, output_tokens=Lengths(mean=2)))
        measured = await HttpLoadGenerator(1, LENIENT).run_exact(asked, ignore, 3)
        assert all(isinstance(body["prompt"], str) for body in server.bodies)
        assert len({body["prompt"] for body in server.bodies}) == 3
    assert measured.ok == 3


async def test_a_trace_is_clamped_to_what_the_server_can_hold(tmp_path: Path) -> None:
    """Which is noted."""
    trace = tmp_path / "trace.jsonl"
    trace.write_text(
        '{"timestamp": 0, "input_length": 900, "output_length": 6}\n{"timestamp": 20, "input_length": 9, "output_length": 2}\n'
    )
    lengths = Lengths(kind=LengthKind.TRACE)
    workload = Workload(
        mode=LoadMode.OPEN,
        arrival=Arrival.TRACE,
        trace=TraceSource(path=str(trace)),
        input_tokens=lengths,
        output_tokens=lengths,
    )
    async with running() as server:
        asked = segment(server, tmp_path, workload)
        measured = await HttpLoadGenerator(1, LENIENT).run_exact(asked, ignore, 2)
        assert [len(body["prompt"]) for body in server.bodies] == [server.context - 6, 9]
    assert measured.ok == 2
    assert "1 of 2" in Records.read(asked.records_path).meta.notes[0]


async def test_an_unreadable_trace_is_told_before_anything_starts(tmp_path: Path) -> None:
    """As an error of the input."""
    lengths = Lengths(kind=LengthKind.TRACE)
    workload = Workload(input_tokens=lengths, trace=TraceSource(path=str(tmp_path / "none")))
    async with running() as server:
        with pytest.raises(InputError):
            await HttpLoadGenerator(1).run(segment(server, tmp_path, workload), ignore)
        assert server.bodies == []


def children() -> set[int]:
    """Return this process's living children."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


async def test_cancelling_leaves_no_process(tmp_path: Path) -> None:
    """Nor a file."""
    before = children()
    async with running(CompletionServer.stall) as server:
        task = asyncio.create_task(HttpLoadGenerator(2, LENIENT).run(segment(server, tmp_path), ignore))
        await server.stalled.wait()
        assert len(children() - before) == 2
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert children() == before
    assert list((tmp_path / "raw").iterdir()) == []


async def test_a_process_ends_when_its_parent_is_gone(tmp_path: Path) -> None:
    """Its standard input closes, whatever it is doing."""
    async with running(CompletionServer.stall) as server:
        job = Job(base_url=server.base_url, model_name="m", workload=SHORT, seed=1, vocabulary=500)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "autotuner_worker.workloads.client",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(job.to_json()).encode() + b"\n")
        await process.stdout.readline()
        process.stdin.write(b'{"op": "start", "at": 0}\n')
        await server.stalled.wait()
        process.stdin.close()
        assert await process.wait() == 0


async def test_a_broken_process_is_the_host_s_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what it printed."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    async with running() as server:
        found, message = await fault_of(tmp_path, HttpLoadGenerator(1), server)
    assert found is OutcomeClass.INFRASTRUCTURE
    assert "exit code 1" in message


def test_as_many_processes_as_the_load_needs(tmp_path: Path) -> None:
    """At most half the cores, at most one per client."""
    half = max(1, (os.cpu_count() or 1) // 2)
    base = segment(CompletionServer(), tmp_path)
    fast = Workload(mode=LoadMode.OPEN, rate=1000.0, concurrency=0, output_tokens=Lengths(mean=100.0))
    rapid = segment(CompletionServer(), tmp_path, fast)
    assert expected_chunk_rate(rapid) == 100_000.0
    assert HttpLoadGenerator()._processes(base) == 1
    assert HttpLoadGenerator()._processes(rapid) == min(7, half)
    assert HttpLoadGenerator(5)._processes(base) == 2
