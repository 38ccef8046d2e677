"""The decision core under random events, losses, restarts and repeats: nothing lost, nothing told twice."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from autotuner.core import events as ev
from autotuner.core.lifecycle import StudyState, TrialState, is_final
from autotuner.core.trial import Assignment, Outcome, OutcomeClass, TrialKind
from autotuner.errors import StaleLease
from tests.fakes import studies
from tests.fakes.world import World

WORKERS = ("a", "b")
KINDS = [k for k in OutcomeClass if k is not OutcomeClass.COMPLETE]


class Core(RuleBasedStateMachine):
    """Two workers, one study, a network that loses, repeats and delays, and a controller that is killed."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.world.submit(studies.spec(trials=8))
        self.holding: dict[str, Assignment] = {}
        self.delayed: list[Outcome] = []
        self.accepted: dict[int, Outcome] = {}

    def _deliver(self, outcome: Outcome) -> None:
        trial = self.world.machine.studies["s"].trials[outcome.trial_id]
        current = (trial.attempt, trial.epoch, trial.state)
        try:
            self.world.post(ev.TrialCompleted(outcome=outcome))
        except StaleLease:
            return
        assert current == (outcome.attempt, outcome.epoch, TrialState.LEASED), "a stale attempt was accepted"
        if outcome.outcome is OutcomeClass.COMPLETE:
            assert outcome.trial_id not in self.accepted, "one trial was measured twice"
            self.accepted[outcome.trial_id] = outcome

    @rule(name=st.sampled_from(WORKERS))
    def introduce(self, name: str) -> None:
        """A worker (re)starts without what it held."""
        self.holding.pop(name, None)
        self.world.worker(name)

    @rule(name=st.sampled_from(WORKERS))
    def sync(self, name: str) -> None:
        """A worker asks what to do."""
        self.world.machine.contact(name, self.world.now)
        given, cancel = self.world.machine.desired(name, ())
        assert not cancel
        if given is not None:
            self.holding[name] = given

    @precondition(lambda self: self.holding)
    @rule(data=st.data(), kind=st.none() | st.sampled_from(KINDS), late=st.booleans())
    def finish(self, data: st.DataObject, kind: OutcomeClass | None, late: bool) -> None:
        """A worker's attempt ends; its outcome arrives now or later."""
        name = data.draw(st.sampled_from(sorted(self.holding)))
        given = self.holding.pop(name)
        outcome = self.world.answer(given) if kind is None else studies.failed(given, kind)
        if late:
            self.delayed.append(outcome)
        else:
            self._deliver(outcome)

    @precondition(lambda self: self.delayed)
    @rule(data=st.data(), again=st.booleans())
    def arrive(self, data: st.DataObject, again: bool) -> None:
        """A delayed outcome arrives, perhaps a second time later."""
        outcome = data.draw(st.sampled_from(self.delayed))
        if not again:
            self.delayed.remove(outcome)
        self._deliver(outcome)

    @rule()
    def effects(self) -> None:
        """The sampler and the publisher answer."""
        self.world.effects()

    @rule(seconds=st.sampled_from([1.0, 100.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        """Time passes, perhaps more than a lease."""
        self.world.now += seconds
        self.world.post(None)

    @rule()
    def kill(self) -> None:
        """The controller dies and a new one folds the journal."""
        self.world.restart()

    @rule()
    def stop_and_resume(self) -> None:
        """The user stops the study and goes on at once."""
        if self.world.machine.studies["s"].state is StudyState.RUNNING:
            self.world.post(ev.StopRequested(study_id="s", reason=ev.StopReason.USER))
            self.world.post(ev.StudyResumed(study_id="s"))

    @invariant()
    def sound(self) -> None:
        """What must hold after everything."""
        self.world.machine.check()
        study = self.world.machine.studies["s"]
        for number, outcome in self.accepted.items():
            trial = study.trials[number]
            assert trial.state is TrialState.MEASURED
            assert trial.outcome == outcome
        for _, trial_id in self.world.tells:
            assert is_final(study.trials[trial_id].state)

    def teardown(self) -> None:
        """Whatever happened, a quiet network brings the study to its end with its full budget."""
        world = self.world
        for name in WORKERS:
            world.now += 1
            world.worker(name)
        for _ in range(300):
            world.effects()
            if world.machine.studies["s"].state is StudyState.ENDED:
                break
            for name in WORKERS:
                world.step(name)
                world.post(None)
        study = world.machine.studies["s"]
        assert study.state is StudyState.ENDED
        assert not study.live_trials()
        explored = [t for t in study.of_kind(TrialKind.EXPLORE) if t.state is not TrialState.REFUSED]
        if not study.stop_reason:
            assert len(explored) == study.spec.effort.trials - 1


TestCore = Core.TestCase
TestCore.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
