"""What the controller knows, folded from events.  Only ``machine`` changes these records."""

from __future__ import annotations

from dataclasses import dataclass, field

from autotuner.core.lifecycle import StudyState, TrialState
from autotuner.core.space import Config, Value, config_key
from autotuner.core.study import StudySpec
from autotuner.core.trial import Measurement, Outcome, TrialKind

__all__ = ["Study", "Trial", "Worker"]


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

    def of_kind(self, kind: TrialKind) -> list[Trial]:
        """Return the trials of *kind* that were not abandoned, in order."""
        return [t for t in self.trials.values() if t.kind is kind and t.state is not TrialState.ABANDONED]

    def live_trials(self) -> list[Trial]:
        """Return the trials that are not final, in order."""
        return [trial for trial in self.trials.values() if trial.live]

    def baseline_config(self) -> dict[str, Value]:
        """Return the full flags of the configuration in production."""
        return {**self.spec.space.fixed, **self.spec.baseline}
