"""The worker's runner: what it decides, step by step, and what may never happen in any order of events."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from autotuner.core.space import Value, config_key
from autotuner.core.study import MeasurePlan
from autotuner.core.trial import Assignment, Launch, Outcome, OutcomeClass, TrialKind
from autotuner.core.workload import Workload
from autotuner_worker import runner as r
from tests.fakes.studies import measurement


def assignment(
    trial_id: int = 1,
    config: Mapping[str, Value] | None = None,
    *,
    hot: Mapping[str, Value] | None = None,
    attempt: int = 1,
    kind: TrialKind = TrialKind.EXPLORE,
) -> Assignment:
    """Return an assignment; with *hot* the launch has the rest of *config* and a ceiling."""
    config = {"block_size": 16} if config is None else config
    launch = {**config, **dict.fromkeys(hot, 128)} if hot else config
    return Assignment(
        study_id="s",
        trial_id=trial_id,
        attempt=attempt,
        epoch=1,
        lease_seconds=600.0,
        kind=kind,
        model="model",
        config={**config, **(hot or {})},
        launch_config=launch,
        hot=hot or {},
        workload=Workload(),
        measure=MeasurePlan(start_timeout=77.0),
        seed=1,
    )


def key_of(given: Assignment) -> str:
    return config_key(given.launch_config)


def give(runner: r.Runner, given: Assignment) -> list[r.Command]:
    return runner.handle(r.AssignmentGiven(assignment=given), 0.0)


def started(runner: r.Runner, key: str, *, hot: bool = True) -> list[r.Command]:
    launch = Launch(launch_id=f"launch-{key}", ready_seconds=3.0)
    return runner.handle(r.EngineStarted(key=key, launch=launch, hot_capable=hot), 5.0)


def done(runner: r.Runner, key: str, now: float = 9.0) -> list[r.Command]:
    return runner.handle(r.SegmentDone(key=key, measurement=measurement(100.0)), now)


def running(given: Assignment, resident: int = 1) -> r.Runner:
    """Return a runner in the middle of the segment of *given*."""
    runner = r.Runner(instance_id="i", resident=resident)
    give(runner, given)
    started(runner, key_of(given))
    assert runner.phase == "measuring"
    return runner


def delivered(commands: list[r.Command]) -> Outcome:
    (outcome,) = [command.outcome for command in commands if isinstance(command, r.Deliver)]
    return outcome


def test_a_trial_is_started_measured_and_delivered() -> None:
    runner, given = r.Runner(instance_id="i"), assignment()
    (start,) = give(runner, given)
    assert start == r.StartEngine(
        key=key_of(given), launch_id="i-1", model="model", config={"block_size": 16}, timeout=77.0
    )
    assert runner.phase == "starting"
    assert started(runner, key_of(given)) == [r.RunSegment(key=key_of(given), assignment=given, hot={})]
    outcome = delivered(done(runner, key_of(given)))
    assert (outcome.outcome, outcome.trial_id, outcome.attempt) == (OutcomeClass.COMPLETE, 1, 1)
    assert outcome.engine_seconds == 9.0
    assert outcome.launch is not None
    assert not outcome.launch.reused
    assert runner.phase == "idle"


def test_the_same_assignment_again_changes_nothing() -> None:
    given = assignment()
    runner = running(given)
    assert give(runner, given) == []
    assert runner.phase == "measuring"


def test_hot_points_share_the_engine() -> None:
    first, second = assignment(1, hot={"max_num_seqs": 8}), assignment(2, hot={"max_num_seqs": 16})
    runner = running(first)
    done(runner, key_of(first))
    (segment,) = give(runner, second)
    assert segment == r.RunSegment(key=key_of(first), assignment=second, hot={"max_num_seqs": 16})
    outcome = delivered(done(runner, key_of(first), 7.0))
    assert outcome.launch is not None
    assert outcome.launch.reused


def test_an_engine_that_cannot_change_hot_values_is_replaced_by_one_of_the_point_itself() -> None:
    runner, given = r.Runner(instance_id="i"), assignment(hot={"max_num_seqs": 8})
    give(runner, given)
    (stop,) = started(runner, key_of(given), hot=False)
    assert stop == r.StopEngine(key=key_of(given))
    (start,) = runner.handle(r.EngineStopped(key=key_of(given)), 6.0)
    assert isinstance(start, r.StartEngine)
    assert start.config == {"block_size": 16, "max_num_seqs": 8}
    (segment,) = started(runner, start.key, hot=False)
    assert isinstance(segment, r.RunSegment)
    assert segment.hot == {}


def test_the_oldest_engine_makes_room_and_the_baseline_last() -> None:
    runner = r.Runner(instance_id="i", resident=2)
    keys = []
    for number, kind in enumerate((TrialKind.BASELINE, TrialKind.EXPLORE), start=1):
        given = assignment(number, {"block_size": number}, kind=kind)
        keys.append(key_of(given))
        give(runner, given)
        started(runner, keys[-1])
        done(runner, keys[-1])
    assert give(runner, assignment(3, {"block_size": 99})) == [r.StopEngine(key=keys[1])]
    assert runner.handle(r.EngineStopped(key=keys[1]), 10.0)[0] == r.StartEngine(
        key=config_key({"block_size": 99}), launch_id="i-3", model="model", config={"block_size": 99}, timeout=77.0
    )
    assert keys[0] in runner.engines


def test_a_failed_start_is_delivered_with_what_is_known() -> None:
    runner, given = r.Runner(instance_id="i"), assignment()
    give(runner, given)
    failed = r.EngineFailed(
        key=key_of(given),
        outcome=OutcomeClass.OOM_AT_START,
        message="no memory",
        evidence=("exit code 1",),
        hint={"max_model_len": 384.0},
        launch=Launch(launch_id="i-1"),
    )
    outcome = delivered(runner.handle(failed, 4.0))
    assert (outcome.outcome, outcome.message) == (OutcomeClass.OOM_AT_START, "no memory")
    assert (outcome.evidence, outcome.hint) == (("exit code 1",), {"max_model_len": 384.0})
    assert runner.engines == {}


@pytest.mark.parametrize("kind", [OutcomeClass.VOID, OutcomeClass.INFRASTRUCTURE, OutcomeClass.HUNG])
def test_only_a_segment_that_says_nothing_about_the_engine_keeps_it(kind: OutcomeClass) -> None:
    given = assignment()
    runner = running(given)
    failed = r.SegmentFailed(key=key_of(given), outcome=kind, message="m", evidence=())
    commands = runner.handle(failed, 9.0)
    assert delivered(commands).outcome is kind
    kept = kind in r.KEEP_AFTER
    assert (r.StopEngine(key=key_of(given)) in commands) is not kept
    assert runner.engines[key_of(given)].state is (r.EngineState.READY if kept else r.EngineState.STOPPING)


def test_an_engine_that_dies_under_load_ends_the_segment() -> None:
    given = assignment()
    runner = running(given)
    died = r.EngineDied(key=key_of(given), outcome=OutcomeClass.CRASHED, message="gone", evidence=("signal 9",))
    commands = runner.handle(died, 9.0)
    assert commands[0] == r.AbortSegment(key=key_of(given))
    assert delivered(commands).evidence == ("signal 9",)
    assert runner.engines == {}
    assert runner.handle(died, 10.0) == []


def test_an_idle_engine_that_dies_is_started_anew_when_it_is_wanted() -> None:
    given = assignment()
    runner = running(given)
    done(runner, key_of(given))
    runner.handle(r.EngineDied(key=key_of(given), outcome=OutcomeClass.CRASHED, message="gone", evidence=()), 10.0)
    (start,) = give(runner, assignment(2))
    assert isinstance(start, r.StartEngine)


def test_a_death_during_a_stop_is_answered_by_the_stop_alone() -> None:
    given = assignment()
    runner = running(given)
    done(runner, key_of(given))
    assert give(runner, assignment(2, {"block_size": 32})) == [r.StopEngine(key=key_of(given))]
    died = r.EngineDied(key=key_of(given), outcome=OutcomeClass.CRASHED, message="gone", evidence=())
    assert runner.handle(died, 10.0) == []
    (start,) = runner.handle(r.EngineStopped(key=key_of(given)), 11.0)
    assert isinstance(start, r.StartEngine)


def test_a_cancelled_trial_keeps_the_engine_that_runs_and_stops_the_one_that_starts() -> None:
    given = assignment()
    cancel = r.CancelGiven(study_id="s", trial_id=1, attempt=1)
    runner = running(given)
    commands = runner.handle(cancel, 9.0)
    assert commands[0] == r.AbortSegment(key=key_of(given))
    assert delivered(commands).outcome is OutcomeClass.CANCELLED
    assert runner.handle(cancel, 9.5) == []
    assert done(runner, key_of(given)) == []  # it had ended in the very moment

    runner = r.Runner(instance_id="i")
    give(runner, given)
    commands = runner.handle(cancel, 1.0)
    assert commands[0] == r.StopEngine(key=key_of(given))
    assert started(runner, key_of(given)) == []
    assert runner.handle(r.EngineStopped(key=key_of(given)), 2.0) == []


def test_another_assignment_replaces_the_one_in_hand() -> None:
    given = assignment()
    runner = running(given)
    commands = give(runner, assignment(1, attempt=2))
    assert delivered(commands).attempt == 1
    assert isinstance(commands[-1], r.RunSegment)
    assert commands[-1].assignment.attempt == 2


def test_the_end_of_the_lease_lets_go_of_everything_and_work_goes_on_later() -> None:
    given = assignment()
    runner = running(given)
    commands = runner.handle(r.FenceDue(), 9.0)
    assert commands[:2] == [r.AbortSegment(key=key_of(given)), r.StopEngine(key=key_of(given))]
    assert delivered(commands).outcome is OutcomeClass.PREEMPTED
    assert runner.handle(r.FenceDue(), 10.0) == []
    assert give(runner, assignment(1, attempt=2)) == []
    (start,) = runner.handle(r.EngineStopped(key=key_of(given)), 11.0)
    assert isinstance(start, r.StartEngine)


def test_a_shutdown_ends_when_every_engine_is_gone() -> None:
    assert r.Runner(instance_id="i").handle(r.ShutdownGiven(), 0.0) == [r.Exit()]
    given = assignment()
    runner = running(given)
    commands = runner.handle(r.ShutdownGiven(), 9.0)
    assert r.Exit() not in commands
    assert runner.phase == "stopping"
    assert give(runner, assignment(2)) == []
    assert runner.handle(r.EngineStopped(key=key_of(given)), 10.0) == [r.Exit()]


CONFIGS = [({"block_size": size}, hot) for size in (16, 32) for hot in ({}, {"max_num_seqs": 4})]


class AnyOrder(RuleBasedStateMachine):
    """A host that carries commands out as the agent does, and lets things happen in any order."""

    @initialize(resident=st.integers(1, 2))
    def begin(self, resident: int) -> None:
        self.runner = r.Runner(instance_id="i", resident=resident)
        self.resident = resident
        self.engines: dict[str, str] = {}
        """Key → starting, ready, stopping; ``dying`` and ``dying-stopping`` when its death is not told yet."""
        self.segment: str | None = None
        self.accepted: list[tuple[int, int]] = []
        self.ended: list[tuple[int, int]] = []
        self.exited = self.leaving = False
        self.number = 0

    def tell(self, event: r.Event) -> None:
        for command in self.runner.handle(event, 1.0):
            self.carry_out(command)
        self.runner.check()

    def carry_out(self, command: r.Command) -> None:
        match command:
            case r.StartEngine(key=key):
                assert key not in self.engines, "an engine of that key is there already"
                assert len(self.engines) < self.resident, "no room"
                self.engines[key] = "starting"
            case r.StopEngine(key=key):
                assert not self.engines[key].endswith("stopping"), "stopped twice"
                self.engines[key] = "dying-stopping" if self.engines[key] == "dying" else "stopping"
                self.segment = None if self.segment == key else self.segment
            case r.RunSegment(key=key):
                assert self.engines[key] in ("ready", "dying"), "load on an engine that is not ready"
                assert self.segment is None, "two loads"
                self.segment = key
            case r.AbortSegment(key=key):
                self.segment = None if self.segment == key else self.segment
            case r.Deliver(outcome=outcome):
                self.ended.append((outcome.trial_id, outcome.attempt))
            case r.Exit():
                assert not self.engines
                self.exited = True

    def of_state(self, *states: str) -> list[str]:
        return sorted(key for key, state in self.engines.items() if state in states)

    @rule(choice=st.sampled_from(CONFIGS), baseline=st.booleans())
    def give(self, choice: tuple[dict[str, Value], dict[str, Value]], baseline: bool) -> None:
        self.number += 1
        kind = TrialKind.BASELINE if baseline else TrialKind.EXPLORE
        given = assignment(self.number, choice[0], hot=choice[1], kind=kind)
        if not self.leaving:
            self.accepted.append((given.trial_id, given.attempt))
        self.tell(r.AssignmentGiven(assignment=given))

    @rule()
    def cancel(self) -> None:
        self.tell(r.CancelGiven(study_id="s", trial_id=self.number, attempt=1))

    @precondition(lambda self: self.of_state("starting"))
    @rule(data=st.data(), well=st.booleans(), hot=st.booleans())
    def start_ends(self, data: st.DataObject, well: bool, hot: bool) -> None:
        key = data.draw(st.sampled_from(self.of_state("starting")))
        if well:
            self.engines[key] = "ready"
            self.tell(r.EngineStarted(key=key, launch=Launch(launch_id=key), hot_capable=hot))
        else:
            del self.engines[key]
            kind = OutcomeClass.TIMED_OUT
            self.tell(r.EngineFailed(key=key, outcome=kind, message="m", evidence=(), hint={}, launch=None))

    @precondition(lambda self: self.of_state("stopping", "dying-stopping"))
    @rule(data=st.data(), death_first=st.booleans())
    def stop_ends(self, data: st.DataObject, death_first: bool) -> None:
        key = data.draw(st.sampled_from(self.of_state("stopping", "dying-stopping")))
        dying = self.engines.pop(key) == "dying-stopping"
        died = r.EngineDied(key=key, outcome=OutcomeClass.CRASHED, message="m", evidence=())
        if dying and death_first:
            self.engines[key] = "dying-stopping"  # nothing may be started before the stop is answered
            self.tell(died)
            del self.engines[key]
        self.tell(r.EngineStopped(key=key))
        if dying and not death_first:
            self.tell(died)

    @precondition(lambda self: self.of_state("ready"))
    @rule(data=st.data())
    def engine_dies(self, data: st.DataObject) -> None:
        self.engines[data.draw(st.sampled_from(self.of_state("ready")))] = "dying"

    @precondition(lambda self: self.of_state("dying"))
    @rule(data=st.data())
    def death_is_told(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self.of_state("dying")))
        del self.engines[key]
        self.segment = None if self.segment == key else self.segment
        self.tell(r.EngineDied(key=key, outcome=OutcomeClass.CRASHED, message="m", evidence=()))

    @precondition(lambda self: self.segment is not None and self.engines[self.segment] == "ready")
    @rule(kind=st.sampled_from([OutcomeClass.COMPLETE, OutcomeClass.VOID, OutcomeClass.HUNG]))
    def segment_ends(self, kind: OutcomeClass) -> None:
        key, self.segment = self.segment, None
        assert key is not None
        if kind is OutcomeClass.COMPLETE:
            self.tell(r.SegmentDone(key=key, measurement=measurement(1.0)))
        else:
            self.tell(r.SegmentFailed(key=key, outcome=kind, message="m", evidence=()))

    @rule(really=st.integers(0, 4))
    def fence(self, really: int) -> None:
        if really == 4:
            self.tell(r.FenceDue())

    @rule(really=st.integers(0, 19))
    def shut_down(self, really: int) -> None:
        if really == 19:
            self.leaving = True
            self.tell(r.ShutdownGiven())

    @invariant()
    def every_assignment_ends_once(self) -> None:
        given = self.runner.assignment if hasattr(self, "runner") else None
        if hasattr(self, "accepted"):
            in_hand = [(given.trial_id, given.attempt)] if given is not None else []
            assert sorted(self.ended + in_hand) == self.accepted

    def teardown(self) -> None:
        """Let everything that is under way end well: what is in hand is measured, and a shutdown is complete."""
        if not hasattr(self, "runner"):
            return
        for _ in range(20):
            for key in self.of_state("dying"):
                del self.engines[key]
                self.segment = None if self.segment == key else self.segment
                self.tell(r.EngineDied(key=key, outcome=OutcomeClass.CRASHED, message="m", evidence=()))
            for key in self.of_state("stopping", "dying-stopping"):
                del self.engines[key]
                self.tell(r.EngineStopped(key=key))
            for key in self.of_state("starting"):
                self.engines[key] = "ready"
                self.tell(r.EngineStarted(key=key, launch=Launch(launch_id=key), hot_capable=True))
            if self.segment is not None:
                self.segment_ends(OutcomeClass.COMPLETE)
        assert self.runner.assignment is None
        assert sorted(self.ended) == self.accepted
        assert self.exited is self.leaving


AnyOrder.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestAnyOrder = AnyOrder.TestCase
