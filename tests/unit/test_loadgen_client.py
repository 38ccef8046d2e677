"""One shard of the load, in this process, against a scripted server."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
import pytest

from autotuner.core.workload import Arrival, Lengths, LoadMode, Workload
from autotuner.observe.records import Records, Status
from autotuner_worker.workloads.client import LoadClient
from autotuner_worker.workloads.job import Job
from tests.fakes.completion_server import Behaviour, CompletionServer, running

CLOSED = Workload(concurrency=2, input_tokens=Lengths(mean=6), output_tokens=Lengths(mean=4))
OPEN = Workload(
    mode=LoadMode.OPEN,
    rate=200.0,
    arrival=Arrival.CONSTANT,
    concurrency=0,
    input_tokens=Lengths(mean=6),
    output_tokens=Lengths(mean=4),
)


class Load:
    """A client with the messages that it emitted."""

    def __init__(self, server: CompletionServer, workload: Workload, exact: int | None = None, **more: Any) -> None:
        self.messages: list[dict[str, Any]] = []
        self.drained = asyncio.Event()
        job = Job(
            base_url=server.base_url, model_name="model", workload=workload, seed=1, vocabulary=500, exact=exact, **more
        )
        self.client = LoadClient(job, self.emit)

    def emit(self, message: dict[str, Any]) -> None:
        """Keep a message."""
        self.messages.append(message)
        if message["op"] == "drained":
            self.drained.set()

    async def run(self) -> Records:
        """Run to the end."""
        await self.client.run(time.monotonic())
        return self.client.records


@pytest.mark.parametrize("workload", [CLOSED, OPEN])
async def test_an_exact_number_of_requests(workload: Workload) -> None:
    """All of them, each with its own length; the last report knows them all."""
    async with running() as server:
        load = Load(server, workload, exact=7)
        records = await load.run()
    assert sorted(records.index) == list(range(7))
    assert (records.status == Status.OK).all()
    assert (records.output_tokens == 4).all()
    assert (records.chunk_counts == 4).all()
    assert (records.prompt_tokens == 6).all()
    assert (records.sent >= records.ready).all()
    assert (records.ended >= records.last - 1e-6).all()
    last = load.messages[-1]
    assert (last["ok"], last["ended"], last["sent"], last["chunks"], last["running"]) == (7, 7, 7, 28, 0)
    assert len({tuple(body["prompt"]) for body in server.bodies}) == 7


async def test_shards_split_the_schedule() -> None:
    """Together they send every request once."""
    async with running() as server:
        parts = [await Load(server, CLOSED, exact=9, shard=shard, shards=2).run() for shard in range(2)]
    assert [sorted(part.index) for part in parts] == [[0, 2, 4, 6, 8], [1, 3, 5, 7]]


@pytest.mark.parametrize(
    ("behaviour", "status"),
    [
        (CompletionServer.error_chunk, Status.ERROR),
        (CompletionServer.refuse, Status.ERROR),
        (CompletionServer.fail, Status.ERROR),
        (CompletionServer.disconnect, Status.ERROR),
        (CompletionServer.garbage, Status.GARBAGE),
        (CompletionServer.nonsense, Status.GARBAGE),
        (CompletionServer.short, Status.GARBAGE),
        (CompletionServer.countless, Status.GARBAGE),
        (CompletionServer.empty, Status.EMPTY),
        (CompletionServer.abort, Status.ABORTED),
        (CompletionServer.unmarked, Status.OK),
        (CompletionServer.double, Status.OK),
    ],
)
async def test_every_end_is_told_apart(behaviour: Behaviour, status: Status) -> None:
    """And says why."""
    async with running(behaviour) as server:
        load = Load(server, CLOSED, exact=1)
        records = await load.run()
    assert list(records.status) == [status]
    assert bool(load.client.summary["messages"]) is (status is not Status.OK)


async def test_a_bad_answer_does_not_end_the_load() -> None:
    """The client goes on after a pause."""
    async with running(CompletionServer.fail, CompletionServer.normal) as server:
        records = await Load(server, Workload(concurrency=1, output_tokens=Lengths(mean=2)), exact=2).run()
    assert list(records.status) == [Status.ERROR, Status.OK]
    assert records.ready[1] - records.ended[0] >= 0.05


async def test_the_load_goes_on_until_the_measured_requests_have_ended() -> None:
    """Then the rest is cut off."""
    async with running(CompletionServer.stall, CompletionServer.normal) as server:
        load = Load(server, CLOSED)
        task = asyncio.create_task(load.run())
        await server.stalled.wait()
        load.client.finish(time.monotonic())
        assert not load.drained.is_set()
        before = len(server.bodies)
        server.asked.clear()
        await server.asked.wait()
        server.release.set()
        await load.drained.wait()
        assert len(server.bodies) > before
        load.client.stop()
        records = await task
    assert set(records.status) <= {Status.OK, Status.ABORTED, Status.CUT}
    assert records.status[np.argmin(records.sent)] != Status.CUT


async def test_stopping_cuts_off_what_is_in_flight() -> None:
    """With what had arrived until then."""
    async with running(CompletionServer.stall) as server:
        load = Load(server, Workload(concurrency=1))
        task = asyncio.create_task(load.run())
        await server.stalled.wait()
        load.client.stop()
        records = await task
    assert list(records.status) == [Status.CUT]
    assert records.ended[0] > records.sent[0]


async def test_an_open_loop_may_be_bounded() -> None:
    """The second request waits for the first; that is told by ``ready``, not as lateness."""
    workload = Workload(
        mode=LoadMode.OPEN, rate=1000.0, arrival=Arrival.CONSTANT, concurrency=1, output_tokens=Lengths(mean=2)
    )
    async with running(CompletionServer.stall, CompletionServer.normal) as server:
        load = Load(server, workload, exact=2)
        task = asyncio.create_task(load.run())
        await server.stalled.wait()
        server.release.set()
        records = await task
    assert len(server.bodies) == 2
    assert records.ready[1] >= records.ended[0] - 1e-6
    assert records.scheduled[1] - records.scheduled[0] == pytest.approx(0.001)


async def test_requests_time_out_by_themselves() -> None:
    """As errors."""
    workload = Workload(concurrency=1, request_timeout=0.1)
    async with running(CompletionServer.stall) as server:
        load = Load(server, workload, exact=1)
        records = await load.run()
    assert list(records.status) == [Status.ERROR]
    assert list(load.client.summary["messages"]) == ["no complete answer within 0.1 s"]
