"""The worker's link against a real server on a unix socket."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from autotuner.core.trial import Outcome, OutcomeClass
from autotuner.core.workers import EngineSummary, Held, WorkerInfo, WorkerState, held
from autotuner.errors import EnvironmentFault, InternalError, ProtocolMismatch, SessionUnknown, StaleLease, StorageFault
from autotuner.rpc.server import RpcServer
from autotuner.rpc.worker_service import WorkerService
from autotuner_worker.link import Delivered, Link, Patience
from autotuner_worker.spool import Spool
from tests.fakes.clock import ManualClock
from tests.fakes.worker_host import FakeHost
from tests.unit.test_wire import ASSIGNMENT, OUTCOME

pytestmark = pytest.mark.asyncio(loop_scope="session")

INFO = WorkerInfo(worker_id="w", instance_id="i", engine=EngineSummary(kind="simulated"))


class World:
    """A controller that can be stopped and started, and workers that dial it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"unix:{folder}/s"
        self.host = FakeHost()
        self.clock = ManualClock(eager=True)
        self.on_sleep: Callable[[], Awaitable[object]] | None = None
        self._server: RpcServer | None = None
        self._links: list[Link] = []

    async def start(self, host: FakeHost | None = None) -> None:
        self.host = host or self.host
        self._server = RpcServer(self.address, [WorkerService(self.host)])
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0.1)
            self._server = None

    def link(self, info: WorkerInfo = INFO, lease: float = 600.0) -> Link:
        link = Link(
            self.address,
            info,
            Spool(self.folder / "spool"),
            self.clock,
            patience=Patience(lease=lease, call=5.0),
            sleep=self.sleep,
            chance=random.Random(1),
        )
        self._links.append(link)
        return link

    async def sleep(self, seconds: float) -> None:
        await self.clock.sleep(seconds)
        if self.on_sleep is not None:
            action, self.on_sleep = self.on_sleep, None
            await action()
        await asyncio.sleep(0.01)  # gRPC's own reconnecting runs on real time

    async def close(self) -> None:
        for link in self._links:
            await link.close()
        await self.stop()

    def files(self) -> list[Path]:
        return list((self.folder / "spool").iterdir())


@pytest_asyncio.fixture(loop_scope="session")
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    yield world
    await world.close()


async def test_connecting_waits_for_a_controller_that_comes_later(world: World) -> None:
    world.on_sleep = world.start
    session = await world.link().connect()
    assert session.epoch == 1
    assert world.host.infos == [INFO]
    assert world.clock.slept
    assert max(world.clock.slept) <= 5.0


async def test_a_controller_that_never_comes_is_a_fault_with_its_remedy(world: World) -> None:
    with pytest.raises(EnvironmentFault, match=r"no contact.*check that it runs"):
        await world.link(lease=30.0).connect()
    assert 20.0 < sum(world.clock.slept) <= 30.0


async def test_no_common_protocol_ends_at_once(world: World) -> None:
    await world.start()
    with pytest.raises(ProtocolMismatch):
        await world.link(dataclasses.replace(INFO, protocol_versions=("0",))).connect()
    assert world.clock.slept == []


async def test_sync_fills_in_who_speaks_and_returns_the_desired_state(world: World) -> None:
    await world.start()
    world.host.assignments.append(ASSIGNMENT)
    link = world.link()
    session = await link.connect()
    running = Held(study_id="s", trial_id=9, attempt=1, epoch=1)
    desired = await link.sync(WorkerState(held=(running,), draining=True))
    assert desired.assignment == ASSIGNMENT
    assert world.host.states[-1] == WorkerState(
        session_id=session.session_id, worker_id="w", held=(running,), draining=True
    )


async def test_sync_without_connect_registers_by_itself(world: World) -> None:
    await world.start()
    await world.link().sync(WorkerState())
    assert world.host.infos == [INFO]


async def test_a_restarted_controller_gets_the_worker_back(world: World) -> None:
    await world.start()
    link = world.link()
    await link.connect()
    await world.stop()
    later = FakeHost(epoch=2)
    world.on_sleep = lambda: world.start(later)
    running = Held(study_id="s", trial_id=9, attempt=1, epoch=1)
    await link.sync(WorkerState(held=(running,)))
    assert later.infos == [INFO]
    assert later.states[-1].held == (running,)
    assert link.session is not None
    assert link.session.epoch == 2


async def test_contact_counts_from_the_sending_of_a_call_that_succeeded(world: World) -> None:
    await world.start(FakeHost(lease_seconds=60.0))
    link = world.link()
    await link.connect()
    world.clock.advance(10)
    assert link.silence() == 10.0
    assert link.lease_seconds == 60.0
    poll = asyncio.ensure_future(link.sync(WorkerState(wait_seconds=30)))
    await world.host.polling.wait()
    world.clock.advance(7)
    world.host.changed.set()
    await poll
    assert link.silence() == 7.0


async def test_sync_gives_up_when_the_lease_ends(world: World) -> None:
    await world.start(FakeHost(lease_seconds=20.0))
    link = world.link()
    await link.connect()
    await world.stop()
    with pytest.raises(EnvironmentFault, match="no contact"):
        await link.sync(WorkerState())
    assert link.silence() <= 20.0


async def test_a_worker_that_was_replaced_learns_it(world: World) -> None:
    await world.start()
    link = world.link()
    await link.connect()
    world.host.failures.append(StaleLease("another process is this worker now"))
    with pytest.raises(StaleLease, match="another process"):
        await link.sync(WorkerState())


async def test_a_defect_of_the_controller_is_not_repeated_for_ever(world: World) -> None:
    await world.start()
    link = world.link()
    await link.connect()
    world.host.failures.append(ZeroDivisionError())
    with pytest.raises(InternalError):
        await link.sync(WorkerState())


async def test_a_delivered_outcome_leaves_the_disk(world: World) -> None:
    await world.start()
    link = world.link()
    await link.connect()
    assert await link.deliver(OUTCOME) is Delivered.FIRST
    assert await link.deliver(OUTCOME) is Delivered.REPLAY
    assert world.host.outcomes == {held(OUTCOME): OUTCOME}
    assert world.files() == []
    assert link.pending() == ()


async def test_an_outcome_waits_on_disk_while_the_controller_is_away_and_arrives_with_the_next_sync(
    world: World,
) -> None:
    await world.start()
    link = world.link()
    await link.connect()
    await world.stop()
    assert await link.deliver(OUTCOME) is Delivered.SPOOLED
    assert len(world.files()) == 1
    world.on_sleep = lambda: world.start(FakeHost(epoch=2))
    await link.sync(WorkerState())
    assert world.host.outcomes == {held(OUTCOME): OUTCOME}
    assert world.files() == []


async def test_outcomes_of_an_earlier_life_are_delivered_after_registering(world: World) -> None:
    Spool(world.folder / "spool").put(OUTCOME)
    await world.start()
    await world.link().connect()
    assert world.host.outcomes == {held(OUTCOME): OUTCOME}
    assert world.files() == []


async def test_a_waiting_outcome_is_reported_as_held(world: World) -> None:
    await world.start()
    link = world.link()
    await link.connect()
    world.host.failures.append(StorageFault("the disk is full"))
    assert await link.deliver(OUTCOME) is Delivered.SPOOLED
    world.host.failures.append(StorageFault("the disk is full"))
    await link.sync(WorkerState(held=(held(OUTCOME),)))
    assert world.host.states[-1].held == (held(OUTCOME),)
    await link.sync(WorkerState())
    assert world.host.outcomes == {held(OUTCOME): OUTCOME}
    assert not world.host.states[-1].held


async def test_a_stale_outcome_is_dropped_and_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.start()
    link = world.link()
    await link.connect()
    world.host.stale.add(held(OUTCOME))
    assert await link.deliver(OUTCOME) is Delivered.STALE
    assert "was replaced" in caplog.text
    assert world.files() == []


async def test_a_session_that_the_controller_forgot_does_not_cost_an_outcome(world: World) -> None:
    await world.start()
    link = world.link()
    await link.connect()
    world.host.failures.append(SessionUnknown("who are you"))
    assert await link.deliver(OUTCOME) is Delivered.SPOOLED
    world.host.sessions.clear()
    await link.sync(WorkerState())
    assert world.host.outcomes == {held(OUTCOME): OUTCOME}


async def test_a_full_disk_does_not_stop_a_delivery(world: World) -> None:
    await world.start()
    link = world.link()
    await link.connect()
    shutil.rmtree(world.folder / "spool")
    assert await link.deliver(OUTCOME) is Delivered.FIRST
    await world.stop()
    with pytest.raises(StorageFault):
        await link.deliver(dataclasses.replace(OUTCOME, attempt=2))
    assert [each.attempt for each in link.pending()] == [2]


@pytest.mark.parametrize(
    "broken",
    [
        dataclasses.replace(OUTCOME, hint={"x": float("nan")}),
        dataclasses.replace(OUTCOME, outcome=OutcomeClass.VOID),
        dataclasses.replace(OUTCOME, evidence=("x" * 9_000_000,)),
    ],
    ids=["nan", "rule", "size"],
)
async def test_an_outcome_that_cannot_travel_ends_its_trial_all_the_same(world: World, broken: Outcome) -> None:
    await world.start()
    link = world.link()
    await link.connect()
    assert await link.deliver(broken) is Delivered.FIRST
    [arrived] = world.host.outcomes.values()
    assert arrived.outcome is OutcomeClass.INFRASTRUCTURE
    assert arrived.evidence
    assert world.files() == []


async def test_an_outcome_without_any_identity_is_dropped_with_a_log(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await world.start()
    link = world.link()
    await link.connect()
    assert await link.deliver(dataclasses.replace(OUTCOME, study_id="")) is Delivered.REFUSED
    assert "dropped" in caplog.text
    assert world.files() == []


async def test_a_cancelled_sync_leaves_the_link_usable(world: World) -> None:
    await world.start()
    link = world.link()
    await link.connect()
    poll = asyncio.ensure_future(link.sync(WorkerState(wait_seconds=30)))
    await world.host.polling.wait()
    poll.cancel()
    with pytest.raises(asyncio.CancelledError):
        await poll
    await link.sync(WorkerState())
    assert await link.deliver(OUTCOME) is Delivered.FIRST
