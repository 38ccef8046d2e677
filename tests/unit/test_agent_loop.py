"""The worker's loop with a scripted controller, an engine in memory and a load that ends when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from autotuner.core import workers as w
from autotuner.core.space import Config, EngineDescription, Value
from autotuner.core.study import MeasurePlan
from autotuner.core.trial import Assignment, Launch, Measurement, Outcome, OutcomeClass, TrialKind
from autotuner.core.workload import Workload
from autotuner.errors import EnvironmentFault, StaleLease
from autotuner_worker.agent import loop
from autotuner_worker.agent.config import WorkerConfig
from autotuner_worker.agent.loop import Agent
from autotuner_worker.ports import (
    EngineDeath,
    EngineFault,
    LaunchPlan,
    PlanPaths,
    ProgressSink,
    Segment,
    SegmentFault,
)
from autotuner_worker.runner import Runner
from tests.fakes.studies import DESCRIPTION, measurement

DEADLINE = 5.0
CRASH = EngineFault(outcome=OutcomeClass.CRASHED, message="it is gone", evidence=("signal 9",))


def assignment(trial_id: int = 1, block_size: int = 16, hot: Mapping[str, Value] | None = None) -> Assignment:
    launch: dict[str, Value] = {"block_size": block_size, **dict.fromkeys(hot or {}, 64)}
    return Assignment(
        study_id="s",
        trial_id=trial_id,
        attempt=1,
        epoch=1,
        lease_seconds=600.0,
        kind=TrialKind.EXPLORE,
        model="model",
        config={**launch, **(hot or {})},
        launch_config=launch,
        hot=hot or {},
        workload=Workload(),
        measure=MeasurePlan(),
        seed=5,
    )


class ScriptedLink:
    """The agent's way to a controller that wants what the test says."""

    def __init__(self) -> None:
        self.wishes: asyncio.Queue[w.Desired | BaseException] = asyncio.Queue()
        self.states: list[w.WorkerState] = []
        self.outcomes: asyncio.Queue[Outcome] = asyncio.Queue()
        self.undelivered: tuple[Outcome, ...] = ()
        self.silent = 0.0
        self.closed = False

    def want(
        self, given: Assignment | None = None, *, cancel: Assignment | None = None, shutdown: bool = False
    ) -> None:
        cancelled = (w.held(cancel),) if cancel is not None else ()
        self.wishes.put_nowait(w.Desired(assignment=given, cancel=cancelled, shutdown=shutdown, lease_seconds=600.0))

    async def connect(self) -> w.Session:
        return w.Session(session_id="x", epoch=1, lease_seconds=600.0, heartbeat_seconds=2.0)

    async def sync(self, state: w.WorkerState) -> w.Desired:
        self.states.append(state)
        wish = await self.wishes.get()
        if isinstance(wish, BaseException):
            raise wish
        return wish

    async def deliver(self, outcome: Outcome) -> object:
        self.outcomes.put_nowait(outcome)
        return None

    def pending(self) -> tuple[Outcome, ...]:
        return self.undelivered

    def silence(self) -> float:
        return self.silent

    async def close(self) -> None:
        self.closed = True

    async def outcome(self) -> Outcome:
        return await asyncio.wait_for(self.outcomes.get(), DEADLINE)


class MemoryEngine:
    """An engine that is nothing but its state."""

    base_url, model_name = "http://127.0.0.1:1", "model"

    def __init__(self, launch_id: str, *, hot_capable: bool = True) -> None:
        self.launch = Launch(launch_id=launch_id, ready_seconds=1.0)
        self.hot_capable = hot_capable
        self.death: asyncio.Future[EngineFault] = asyncio.get_running_loop().create_future()
        self.hot: list[Config] = []
        self.stops = asyncio.Semaphore(0)
        self.stopped = asyncio.Event()
        self.may_stop = asyncio.Event()
        self.may_stop.set()

    async def apply_hot(self, hot: Config) -> Mapping[str, Value]:
        self.hot.append(dict(hot))
        return hot

    async def settle(self, timeout: float) -> None:
        if self.death.done():
            raise EngineDeath(self.death.result(), self.launch)

    async def reset_caches(self) -> None:
        """Nothing is cached."""

    async def metrics(self) -> Mapping[str, float]:
        return {"vllm:num_preemptions_total": 3.0}

    async def host_usage(self) -> Mapping[str, float]:
        return {"cpu_seconds": 1.0, "rss_bytes": 2.0}

    async def died(self) -> EngineFault:
        return await asyncio.shield(self.death)

    async def stop(self) -> None:
        self.stops.release()
        await self.may_stop.wait()
        self.stopped.set()


class MemoryAdapter:
    """Starts engines in memory."""

    def __init__(self) -> None:
        self.engines: list[MemoryEngine] = []
        self.plans: list[LaunchPlan] = []
        self.fault: BaseException | None = None
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.starting = asyncio.Event()
        self.abandoned = 0
        self.hot_capable = True

    async def describe(self, model: str | None) -> EngineDescription:
        return DESCRIPTION

    def plan(self, model: str, config: Config, paths: PlanPaths, port: int) -> LaunchPlan:
        plan = LaunchPlan(
            argv=("engine",), env={}, added_env={}, files={}, host="127.0.0.1", port=port, model=model, config=config,
            served_name=model,
        )  # fmt: skip
        self.plans.append(plan)
        return plan

    async def start(
        self, plan: LaunchPlan, paths: PlanPaths, launch_id: str, timeout: float, progress: ProgressSink
    ) -> MemoryEngine:
        assert paths.run_dir.is_dir()
        progress("starting", "compile", 0.0)
        self.starting.set()
        try:
            await self.may_start.wait()
        except asyncio.CancelledError:
            self.abandoned += 1
            raise
        if self.fault is not None:
            raise self.fault
        self.engines.append(MemoryEngine(launch_id, hot_capable=self.hot_capable))
        return self.engines[-1]


class HeldLoad:
    """A load whose end the test decides."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.begun = asyncio.Event()
        self.ends: asyncio.Queue[Measurement | BaseException] = asyncio.Queue()
        self.cancelled = 0

    async def run(self, segment: Segment, progress: ProgressSink) -> Measurement:
        self.segments.append(segment)
        progress("measuring", "", 10.0)
        self.begun.set()
        try:
            end = await self.ends.get()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if isinstance(end, BaseException):
            raise end
        return end

    async def begins(self) -> Segment:
        await asyncio.wait_for(self.begun.wait(), DEADLINE)
        self.begun.clear()
        return self.segments[-1]


class Bench:
    """An agent with everything around it."""

    def __init__(self, folder: Path, resident: int = 1) -> None:
        self.link, self.adapter, self.load = ScriptedLink(), MemoryAdapter(), HeldLoad()
        config = WorkerConfig(
            worker_id="w",
            controller="unix:/none",
            engine_kind="simulated",
            out_dir=folder / "out",
            state_dir=folder / "state",
            cache_dir=folder / "cache",
        )
        self.agent = Agent(
            config=config,
            link=self.link,
            runner=Runner(instance_id="i", resident=resident),
            adapter=self.adapter,
            load=self.load,
            vocabulary=100,
        )
        self.running = asyncio.create_task(self.agent.run())

    async def measuring(self, given: Assignment) -> MemoryEngine:
        """Give an assignment and wait for its load."""
        self.link.want(given)
        await self.load.begins()
        return self.adapter.engines[-1]

    async def end(self) -> None:
        """Wait for the agent's end."""
        await asyncio.wait_for(self.running, DEADLINE)


@asynccontextmanager
async def bench(folder: Path, resident: int = 1) -> AsyncIterator[Bench]:
    """Run an agent; at the end it must have stopped every engine that it started."""
    made = Bench(folder, resident)
    try:
        yield made
    finally:
        if not made.running.done():
            made.link.want(shutdown=True)
            await made.end()
        assert made.link.closed
        assert all(engine.stopped.is_set() for engine in made.adapter.engines)


async def test_an_assignment_is_measured_and_its_engine_serves_the_next(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        engine = await b.measuring(assignment(1, hot={"max_num_seqs": 4}))
        segment = b.load.segments[0]
        assert (segment.base_url, segment.vocabulary, segment.seed) == (engine.base_url, 100, 5)
        assert segment.records_path == tmp_path / "out" / "records" / "s-0001-1.npz"
        b.load.ends.put_nowait(measurement(50.0))
        outcome = await b.link.outcome()
        assert outcome.outcome is OutcomeClass.COMPLETE
        assert outcome.measurement is not None
        assert outcome.measurement.records == "records/s-0001-1.npz"
        assert outcome.measurement.host["engine_rss_bytes"] == 2.0
        await b.measuring(assignment(2, hot={"max_num_seqs": 8}))
        assert engine.hot == [{"max_num_seqs": 4}, {"max_num_seqs": 8}]
        assert len(b.adapter.engines) == 1
        b.load.ends.put_nowait(measurement(60.0))
        second = await b.link.outcome()
        assert second.launch is not None
        assert second.launch.reused


async def test_progress_tells_the_phase_and_ends_with_the_trial(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        given = assignment()
        await b.measuring(given)
        b.link.want(given)
        b.load.ends.put_nowait(measurement(50.0))
        await b.link.outcome()
        reports = [state.progress for state in b.link.states if state.progress is not None]
        assert [(report.phase, report.throughput) for report in reports] == [("measuring", 10.0)]
        assert b.link.states[-1].held == (w.held(given),)


async def test_an_outcome_on_its_way_is_not_measured_again(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        given = assignment()
        await b.measuring(given)
        b.load.ends.put_nowait(measurement(50.0))
        b.link.undelivered = (await b.link.outcome(),)
        b.link.want(given)
        b.link.want(shutdown=True)
        await b.end()
        assert len(b.load.segments) == 1


@pytest.mark.parametrize(
    ("error", "kind", "word"),
    [
        (EngineDeath(replace(CRASH, hint={"x": 1.0}), Launch(launch_id="l")), OutcomeClass.CRASHED, "it is gone"),
        (EnvironmentFault("no memory"), OutcomeClass.INFRASTRUCTURE, "no memory"),
        (OSError(28, "No space left on device"), OutcomeClass.INFRASTRUCTURE, "No space left"),
    ],
)
async def test_a_failed_start_is_told(tmp_path: Path, error: BaseException, kind: OutcomeClass, word: str) -> None:
    async with bench(tmp_path) as b:
        b.adapter.fault = error
        b.link.want(assignment())
        outcome = await b.link.outcome()
        assert outcome.outcome is kind
        assert word in outcome.message


async def test_the_death_of_the_engine_ends_the_load(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        engine = await b.measuring(assignment())
        engine.death.set_result(CRASH)
        outcome = await b.link.outcome()
        assert (outcome.outcome, outcome.evidence) == (OutcomeClass.CRASHED, ("signal 9",))
        assert b.load.cancelled == 1


async def test_a_load_that_fails_because_the_engine_died_names_the_death(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        engine = await b.measuring(assignment())
        refused = EngineFault(outcome=OutcomeClass.CRASHED, message="connections are refused")
        b.load.ends.put_nowait(SegmentFault(refused))
        await asyncio.sleep(0)
        engine.death.set_result(CRASH)
        assert (await b.link.outcome()).message == "it is gone"


async def test_a_load_that_fails_on_a_living_engine_stops_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "DEATH_GRACE", 0.01)
    async with bench(tmp_path) as b:
        engine = await b.measuring(assignment())
        b.load.ends.put_nowait(SegmentFault(EngineFault(outcome=OutcomeClass.HUNG, message="no token")))
        assert (await b.link.outcome()).outcome is OutcomeClass.HUNG
        await asyncio.wait_for(engine.stopped.wait(), DEADLINE)


async def test_a_load_that_spoiled_itself_leaves_the_engine_alone(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        engine = await b.measuring(assignment(1))
        b.load.ends.put_nowait(SegmentFault(EngineFault(outcome=OutcomeClass.VOID, message="late")))
        assert (await b.link.outcome()).outcome is OutcomeClass.VOID
        assert await b.measuring(assignment(2)) is engine


async def test_a_disk_that_fails_under_load_is_infrastructure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "DEATH_GRACE", 0.01)
    async with bench(tmp_path) as b:
        await b.measuring(assignment())
        b.load.ends.put_nowait(OSError(28, "No space left on device"))
        outcome = await b.link.outcome()
        assert outcome.outcome is OutcomeClass.INFRASTRUCTURE
        assert "No space left" in outcome.message


async def test_a_cancelled_trial_ends_its_load(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        given = assignment()
        engine = await b.measuring(given)
        b.link.want(cancel=given)
        assert (await b.link.outcome()).outcome is OutcomeClass.CANCELLED
        assert await b.measuring(assignment(2)) is engine
        assert b.load.cancelled == 1


async def test_a_trial_cancelled_while_its_engine_starts_abandons_the_start(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        given = assignment()
        b.adapter.may_start.clear()
        b.link.want(given)
        await asyncio.wait_for(b.adapter.starting.wait(), DEADLINE)
        b.link.want(cancel=given)
        assert (await b.link.outcome()).outcome is OutcomeClass.CANCELLED
        b.adapter.may_start.set()
        await b.measuring(assignment(2))
        assert b.adapter.abandoned == 1
        assert len(b.adapter.engines) == 1


async def test_another_configuration_makes_room_first(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        engine = await b.measuring(assignment(1))
        b.load.ends.put_nowait(measurement(50.0))
        await b.link.outcome()
        await b.measuring(assignment(2, block_size=32))
        assert engine.stopped.is_set()
        assert [plan.config["block_size"] for plan in b.adapter.plans] == [16, 32]


async def test_an_engine_that_died_is_cleared_away_before_the_next_is_started(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        engine = await b.measuring(assignment(1))
        b.load.ends.put_nowait(measurement(50.0))
        await b.link.outcome()
        engine.may_stop.clear()
        engine.death.set_result(CRASH)  # idle; its clearing away takes long
        await asyncio.wait_for(engine.stops.acquire(), DEADLINE)
        b.link.want(assignment(2, block_size=32))
        await asyncio.wait_for(engine.stops.acquire(), DEADLINE)  # the stop that makes room waits for the same end
        assert len(b.adapter.plans) == 1
        engine.may_stop.set()
        await b.load.begins()
        assert len(b.adapter.engines) == 2


async def test_a_shutdown_stops_everything_and_delivers(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        engine = await b.measuring(assignment())
        b.link.want(shutdown=True)
        await b.end()
        assert (await b.link.outcome()).outcome is OutcomeClass.PREEMPTED
        assert engine.stopped.is_set()
        assert b.load.cancelled == 1


async def test_a_signal_during_a_start_leaves_nothing(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.adapter.may_start.clear()
        b.link.want(assignment())
        await asyncio.wait_for(b.adapter.starting.wait(), DEADLINE)
        b.agent.leave("SIGTERM")
        await b.end()
        assert b.adapter.abandoned == 1
        assert b.adapter.engines == []


async def test_a_worker_that_was_replaced_stops_everything_and_says_why(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        engine = await b.measuring(assignment())
        b.link.wishes.put_nowait(StaleLease("another process took the place"))
        with pytest.raises(StaleLease, match="another process"):
            await b.end()
        assert engine.stopped.is_set()
        assert b.load.cancelled == 1


async def test_silence_until_the_end_of_the_lease_fences_the_worker(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        engine = await b.measuring(assignment())
        b.link.silent = 590.0
        assert (await b.link.outcome()).outcome is OutcomeClass.PREEMPTED
        await asyncio.wait_for(engine.stopped.wait(), DEADLINE)
