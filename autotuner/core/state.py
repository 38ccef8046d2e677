"""What the controller knows, folded from events.  Only ``machine`` changes these records."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from autotuner.core.lifecycle import StudyState, TrialState
from autotuner.core.space import Config, Value, config_key
from autotuner.core.study import Effort, StudySpec
from autotuner.core.trial import Measurement, Outcome, TrialKind

__all__ = ["Heat", "Study", "Trial", "Worker"]


@dataclass(slots=True, kw_only=True)
class Trial:
    """One trial and everything that happened to it."""

    study_id: str
    trial_id: int
    kind: TrialKind
    group: int
    worker_id: str
    """The worker that it is meant for; another may take it when that one is gone."""
    hot: bool
    fixed: Config
    ceiling: Config
    source: str
    state: TrialState
    config: dict[str, Value] | None = None
    """Full flags; ``None`` until proposed."""
    point: dict[str, Value] | None = None
    """The searched part of ``config``; ``None`` until proposed."""
    launch_config: dict[str, Value] | None = None
    heat: int = 0
    round: int = 0
    attempt: int = 0
    faults: int = 0
    """Attempts that ended in a retried failure."""
    epoch: int = 0
    outcome: Outcome | None = None
    value: float | None = None
    amounts: tuple[tuple[str, float], ...] = ()
    told: bool = False
    story: list[str] = field(default_factory=list)

    @property
    def key(self) -> str:
        """Stable text of the full configuration."""
        return config_key(self.config or {})

    @property
    def measurement(self) -> Measurement | None:
        """The measurement, when there is one."""
        return self.outcome.measurement if self.outcome is not None else None

    @property
    def feasible(self) -> bool:
        """Measured, with every constraint kept."""
        return self.state is TrialState.MEASURED and all(amount <= 0 for _, amount in self.amounts)

    @property
    def live(self) -> bool:
        """Something is still to come."""
        return self.state in (TrialState.PROPOSING, TrialState.READY, TrialState.LEASED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """A field of the race."""

    number: int
    members: tuple[dict[str, Value], ...]


@dataclass(slots=True, kw_only=True)
class Worker:
    """One worker as the journal knows it."""

    worker_id: str
    instance_id: str
    hot_capable: bool
    resident_engines: int
    alive: bool = True


@dataclass(slots=True, kw_only=True)
class Study:
    """One study and its trials, by number from 1."""

    study_id: str
    spec: StudySpec
    state: StudyState = StudyState.RUNNING
    trials: dict[int, Trial] = field(default_factory=dict)
    submitted: float = 0.0
    """UTC stamp of the submission."""
    last_stamp: float = 0.0
    """UTC stamp of the last event."""
    active_seconds: float = 0.0
    """Time in which a controller was at work on it."""
    engine_seconds: float = 0.0
    stop_reason: str = ""
    resumed_after: int = 0
    """Trials that there were when the study was last resumed; what failed before does not end it again."""
    discounted: int = 0
    """Trials up to this number count for nothing: they came to nothing before the study was resumed."""
    heats: list[Heat] = field(default_factory=list)
    heats_before: int = 0
    """Heats that were over when the budget was last changed."""
    launches: dict[str, int] = field(default_factory=dict)
    """Engine starts by identifier, numbered from 1 in order of appearance; attempts that failed count too."""
    exhausted: bool = False
    """The sampler has no further point."""
    story: list[str] = field(default_factory=list)

    def account(self, outcome: Outcome) -> None:
        """Count what an attempt cost, whatever came of it."""
        self.engine_seconds += outcome.engine_seconds
        if outcome.launch is not None:
            self.launches.setdefault(outcome.launch.launch_id, len(self.launches) + 1)

    def resume(self, effort: Effort | None, now: float) -> None:
        """Go on, with another budget where one is given; what came to nothing before counts no more."""
        self.stop_reason, self.last_stamp, self.resumed_after = "", now, len(self.trials)
        if not any(trial.state is TrialState.MEASURED for trial in self.trials.values()):
            self.discounted = len(self.trials)
        if effort is not None and effort != self.spec.effort:
            self.spec = replace(self.spec, effort=effort)
            self.heats_before = len(self.heats)
            self.exhausted = False

    def of_kind(self, kind: TrialKind) -> list[Trial]:
        """Return the trials of *kind* that count (not abandoned, not discounted), in order."""
        return [
            t
            for t in self.trials.values()
            if t.kind is kind and t.state is not TrialState.ABANDONED and t.trial_id > self.discounted
        ]

    def live_trials(self) -> list[Trial]:
        """Return the trials that are not final, in order."""
        return [trial for trial in self.trials.values() if trial.live]

    def baseline_config(self) -> dict[str, Value]:
        """Return the full flags of the configuration in production."""
        return {**self.spec.space.fixed, **self.spec.baseline}
