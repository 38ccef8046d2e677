"""The controller's loop with a journal in memory, a plain sampler and workers that speak to it directly."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

import pytest

from autotuner.core import events as ev
from autotuner.core import workers as w
from autotuner.core.commands import Propose, Tell
from autotuner.core.lifecycle import StudyState, TrialState
from autotuner.core.machine import Machine
from autotuner.core.results import StudyResult
from autotuner.core.study import SearchPlan, StudySpec
from autotuner.core.trial import Assignment, Outcome, OutcomeClass
from autotuner.daemon.loop import Controller
from autotuner.errors import EnvironmentFault, Refused, SessionUnknown, StaleLease, StorageFault
from autotuner.ports import JournalEntry
from autotuner.storage.journal_memory import MemoryJournal
from tests.fakes import studies
from tests.fakes.clock import ManualClock
from tests.fakes.sampler import FakeSampler
from tests.fakes.world import on_surface

DEADLINE = 10.0
STUDY = "s"
SMALL = SearchPlan(baseline_repeats=1, race_pairs=2, finalists=1, hot_points_per_launch=2)


class KeptJournal(MemoryJournal):
    """A journal that outlives its controller, and fails when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False

    def append(self, events: Sequence[ev.Event], stamp: float) -> None:
        if self.full:
            raise StorageFault("the disk is full: free some space")
        super().append(events, stamp)

    def read(self) -> Iterable[JournalEntry]:
        self._closed = False
        return super().read()


class Results:
    """A publisher that keeps what it is given, on the thread of the effects."""

    def __init__(self) -> None:
        self.published: list[StudyResult] = []
        self.threads: set[int] = set()
        self.fault: Exception | None = None

    def __call__(self, result: StudyResult) -> None:
        self.threads.add(threading.get_ident())
        if self.fault is not None:
            raise self.fault
        self.published.append(result)


class Bench:
    """A controller and what it stands on; ``restart`` makes a new one on the same journal and sampler."""

    def __init__(self, sampler: FakeSampler) -> None:
        self.journal, self.sampler, self.results = KeptJournal(), sampler, Results()
        self.clock = ManualClock()
        self.controller = self._make()

    def _make(self) -> Controller:
        return Controller(
            machine=Machine(lease_seconds=600.0),
            journal=self.journal,
            sampler=self.sampler,
            clock=self.clock,
            publish=self.results,
        )

    async def restart(self) -> None:
        await self.controller.close()
        self.controller = self._make()
        await self.controller.start()

    async def submit(self, spec: StudySpec) -> None:
        await self.controller.submit(ev.StudySubmitted(study_id=STUDY, spec=spec))

    def ended(self) -> bool:
        return self.controller.machine.studies[STUDY].state is StudyState.ENDED

    async def until_ended(self) -> None:
        await asyncio.wait_for(self.controller.run_until(self.ended), DEADLINE)

    def events(self, kind: type[ev.Event]) -> list[ev.Event]:
        return [event for _, _, event in self.journal.read() if isinstance(event, kind)]


class Hand:
    """A worker: does what it is given by the surface, one trial after the other."""

    def __init__(self, bench: Bench, worker_id: str = "w") -> None:
        self.bench, self.worker_id = bench, worker_id
        self.session = ""
        self.held: tuple[w.Held, ...] = ()
        self.done: list[Assignment] = []
        self.shutdown = False

    async def register(self, instance: str = "i") -> w.Session:
        info = w.WorkerInfo(
            worker_id=self.worker_id,
            instance_id=instance,
            engine=w.EngineSummary(kind="simulated", hot_capable=True),
            resident_engines=2,
        )
        session = await self.bench.controller.register(info)
        self.session = session.session_id
        return session

    async def sync(self, *, wait: float = 0.0, draining: bool = False) -> w.Desired:
        state = w.WorkerState(
            session_id=self.session, worker_id=self.worker_id, held=self.held, wait_seconds=wait, draining=draining
        )
        return await self.bench.controller.sync(state)

    async def take(self) -> Assignment:
        """Ask until there is something to do."""
        while (given := (await self.sync()).assignment) is None:
            self.bench.controller.post(None)  # time passes
            await asyncio.sleep(0)
        return given

    async def complete(self, outcome: Outcome) -> bool:
        self.bench.clock.advance(10.0)
        return await self.bench.controller.complete(self.session, self.worker_id, outcome)

    async def work(self, answer: Callable[[Assignment], Outcome] = on_surface) -> None:
        """Register, then do everything until dismissed."""
        await self.register()
        while not self.shutdown:
            desired = await self.sync()
            self.shutdown = desired.shutdown
            if desired.assignment is not None:
                self.done.append(desired.assignment)
                assert await self.complete(answer(desired.assignment))
            await asyncio.sleep(0)


@asynccontextmanager
async def bench(sampler: FakeSampler | None = None) -> AsyncIterator[Bench]:
    made = Bench(sampler or FakeSampler())
    await made.controller.start()
    try:
        yield made
    finally:
        await made.controller.close()


async def worked(b: Bench, hand: Hand, answer: Callable[[Assignment], Outcome] = on_surface) -> None:
    """Let *hand* work until the study has ended and it was dismissed."""
    task = asyncio.create_task(hand.work(answer))
    await b.until_ended()
    b.controller.dismiss_workers()
    await asyncio.wait_for(task, DEADLINE)


async def test_a_study_runs_to_its_end_and_is_published_once() -> None:
    async with bench() as b:
        await b.submit(studies.spec(trials=4, search=SMALL))
        hand = Hand(b)
        await worked(b, hand)
        (result,) = b.results.published
        assert result.complete
        assert hand.shutdown
        assert b.results.threads.isdisjoint({threading.get_ident()})
        told = set(b.sampler.told(STUDY))
        assert told >= {t.trial_id for t in b.controller.machine.studies[STUDY].trials.values() if t.source != "race"}
        b.controller.machine.check()


async def test_a_restart_continues_where_the_journal_ends() -> None:
    async with bench() as b:
        await b.submit(studies.spec(trials=4, search=SMALL))
        hand = Hand(b)
        await hand.register()
        given = await hand.take()
        outcome = on_surface(given)
        await b.restart()
        with pytest.raises(SessionUnknown, match="register first"):
            await hand.sync()
        hand.held = (w.held(given),)
        assert (await hand.register()).epoch == 2
        again = await hand.sync()
        assert again.assignment is not None
        assert (again.assignment.trial_id, again.assignment.attempt) == (given.trial_id, given.attempt)
        assert await hand.complete(outcome)
        assert not await hand.complete(outcome), "a replay"
        hand.held = ()
        await worked(b, Hand(b))
        assert [type(e).__name__ for e in b.events(ev.ControllerStarted)] == ["ControllerStarted"] * 2
        trials = b.controller.machine.studies[STUDY].trials.values()
        assert all(t.state is TrialState.MEASURED and t.attempt == 1 for t in trials)


async def test_what_a_new_life_of_a_worker_does_not_hold_is_given_out_again() -> None:
    async with bench() as b:
        await b.submit(studies.spec(trials=2, search=SMALL))
        old, new = Hand(b), Hand(b)
        await old.register("first")
        given = await old.take()
        await new.register("second")
        with pytest.raises(StaleLease, match="another process"):
            await old.sync()
        again = await new.take()
        assert (again.trial_id, again.attempt) == (given.trial_id, given.attempt + 1)
        with pytest.raises(StaleLease, match="not the current one"):
            await old.complete(on_surface(given))


async def test_a_long_poll_ends_when_there_is_something_to_do() -> None:
    async with bench() as b:
        hand = Hand(b)
        await hand.register()
        waiting = asyncio.create_task(hand.sync(wait=60.0))
        await asyncio.sleep(0)
        assert not waiting.done()
        await b.submit(studies.spec(trials=2, search=SMALL))
        desired = await asyncio.wait_for(waiting, DEADLINE)
        assert desired.assignment is not None


async def test_a_draining_worker_gets_nothing_new() -> None:
    async with bench() as b:
        hand = Hand(b)
        await hand.register()
        await hand.sync(draining=True)
        await b.submit(studies.spec(trials=2, search=SMALL))
        assert (await hand.sync(draining=True)).assignment is None
        await hand.take()


async def test_a_stop_calls_back_what_is_leased_and_publishes() -> None:
    async with bench() as b:
        await b.submit(studies.spec(trials=4, search=SMALL))
        hand = Hand(b)
        await hand.register()
        given = await hand.take()
        hand.held = (w.held(given),)
        b.controller.post(ev.StopRequested(study_id=STUDY, reason=ev.StopReason.USER))
        desired = await hand.sync(wait=60.0)
        assert (desired.assignment, desired.cancel) == (None, hand.held)
        await hand.complete(studies.failed(given, OutcomeClass.CANCELLED))
        await b.until_ended()
        (result,) = b.results.published
        assert (result.complete, result.stopped) == (False, "user")


async def test_a_stopped_study_is_resumed_and_published_again() -> None:
    async with bench() as b:
        spec = studies.spec(trials=2, search=SMALL)
        await b.submit(spec)
        b.controller.post(ev.StopRequested(study_id=STUDY, reason=ev.StopReason.USER))
        await b.until_ended()
        await b.controller.resume(ev.StudyResumed(study_id=STUDY, effort=spec.effort))
        await worked(b, Hand(b))
        assert [result.complete for result in b.results.published] == [False, True]


async def test_points_that_nobody_will_measure_are_closed_in_the_sampler() -> None:
    async with bench() as b:
        await b.submit(studies.spec(trials=4, search=SMALL))
        hand = Hand(b)
        await hand.register()
        assert await hand.complete(on_surface(await hand.take()))
        explored = await hand.take()
        b.controller.post(ev.StopRequested(study_id=STUDY, reason=ev.StopReason.USER))
        await hand.complete(studies.failed(explored, OutcomeClass.CANCELLED))
        await b.until_ended()
        assert (STUDY, explored.trial_id) in b.sampler.abandoned


async def test_a_journal_that_fails_ends_the_run_and_acknowledges_nothing() -> None:
    async with bench() as b:
        await b.submit(studies.spec(trials=2, search=SMALL))
        hand = Hand(b)
        await hand.register()
        given = await hand.take()
        b.journal.full = True
        with pytest.raises(StorageFault, match="disk is full"):
            await hand.complete(on_surface(given))
        with pytest.raises(StorageFault, match="disk is full"):
            await b.until_ended()
        b.journal.full = False
        await b.restart()
        await hand.register()
        hand.held = (w.held(given),)
        assert (await hand.sync()).assignment is not None
        assert await hand.complete(on_surface(given)), "it was not accepted before"


async def test_results_that_cannot_be_written_end_the_run() -> None:
    async with bench() as b:
        await b.submit(studies.spec(trials=1, search=SMALL))
        b.results.fault = EnvironmentFault("result.json cannot be written")
        b.controller.post(ev.StopRequested(study_id=STUDY, reason=ev.StopReason.USER))
        with pytest.raises(EnvironmentFault, match="cannot be written"):
            await b.until_ended()
        b.results.fault = None
        await b.restart()  # the publication is outstanding and is tried again
        await b.until_ended()
        assert len(b.results.published) == 1


class BrokenSampler(FakeSampler):
    """Fails at one of its duties."""

    duty = "propose"

    def propose(self, request: Propose) -> ev.PointProposed | ev.NothingProposed:
        if self.duty == "propose":
            raise StorageFault("the study database cannot be used")
        return super().propose(request)

    def tell(self, result: Tell) -> None:
        if self.duty == "tell":
            raise ZeroDivisionError("a defect")
        super().tell(result)


@pytest.mark.parametrize(("duty", "error"), [("propose", StorageFault), ("tell", ZeroDivisionError)])
async def test_a_sampler_that_fails_ends_the_run(duty: str, error: type[Exception]) -> None:
    sampler = BrokenSampler()
    sampler.duty = duty
    async with bench(sampler) as b:
        await b.submit(studies.spec(trials=3, search=SMALL))
        hand = Hand(b)
        await hand.register()
        await hand.complete(on_surface(await hand.take()))
        with pytest.raises(error):
            await b.until_ended()


async def test_an_event_that_is_not_allowed_is_refused_and_the_run_goes_on() -> None:
    async with bench() as b:
        await b.submit(studies.spec(trials=1, search=SMALL))
        with pytest.raises(Refused):
            b.controller.post(ev.TrialTold(study_id=STUDY, trial_id=99))
        await worked(b, Hand(b))
        assert b.ended()


async def test_progress_is_kept_for_people() -> None:
    async with bench() as b:
        hand = Hand(b)
        await hand.register()
        report = w.ProgressReport(study_id=STUDY, trial_id=1, phase="warming", throughput=5.0)
        state = w.WorkerState(session_id=hand.session, worker_id="w", progress=report)
        await b.controller.sync(state)
        assert b.controller.progress["w"] == (report, b.clock.monotonic())
