"""What can happen, as values.  The journal is the list of these; folding it rebuilds the controller's state.

Every event is a fact about the past: effects report their results as events, failures included.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from autotuner.core.space import Config
from autotuner.core.study import Effort, StudySpec
from autotuner.core.trial import Outcome, TrialKind

__all__ = [
    "ControllerStarted",
    "Event",
    "LeaseExpired",
    "NothingProposed",
    "PointProposed",
    "PointRefused",
    "RaceBegan",
    "StopReason",
    "StopRequested",
    "StudyEnded",
    "StudyFinished",
    "StudyResumed",
    "StudySubmitted",
    "TrialCompleted",
    "TrialCreated",
    "TrialLeased",
    "TrialTold",
    "WorkerLost",
    "WorkerReady",
]


class StopReason(StrEnum):
    """Why a study stops before its trials are used up."""

    USER = "user"
    WALL_TIME = "wall_time"
    GPU_HOURS = "gpu_hours"
    NOTHING_STARTS = "nothing_starts"
    """Launch after launch failed and nothing was ever measured: more of the same would be waste."""
    NOTHING_MEASURED = "nothing_measured"
    """The plan ended without a single measurement."""
    INFRASTRUCTURE = "infrastructure"
    """The workers' hosts keep failing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerStarted:
    """A controller life began; ``epoch`` is larger than any before it in this journal."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySubmitted:
    """A study was accepted."""

    study_id: str
    spec: StudySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResumed:
    """A stopped study goes on."""

    study_id: str
    effort: Effort | None = None
    """The new budget; ``None`` keeps the old one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReady:
    """A worker introduced itself; whatever an earlier life of it held and it does not name is over."""

    worker_id: str
    instance_id: str = ""
    hot_capable: bool = False
    """Its engines can change hot parameters while running."""
    resident_engines: int = 1
    """Engines that fit beside each other."""
    held: tuple[tuple[str, int, int], ...] = ()
    """(study, trial, attempt) that it still runs or has spooled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLost:
    """A worker said goodbye."""

    worker_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialCreated:
    """The policy decided on one more trial, for a worker that is free."""

    study_id: str
    trial_id: int
    kind: TrialKind
    worker_id: str
    group: int
    """Trials of one group share a launch; the number is its first trial's."""
    config: Config | None
    """Full flags of a known point; ``None`` when the sampler is to be asked."""
    fixed: Config
    """What the sampler must keep: the cold part of the group."""
    ceiling: Config
    """Upper bounds of hot parameters in the group's launch."""
    hot: bool
    """The point is set in a running engine where possible; otherwise it gets a launch with exactly its flags."""
    source: str
    """``baseline``, ``race`` or empty until the sampler says."""
    heat: int = 0
    """Of a race: its field; 0 elsewhere."""
    round: int = 0
    """Of a race: measurements of one round are compared with each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceBegan:
    """A field of configurations is raced from now on."""

    study_id: str
    heat: int
    """From 1."""
    members: tuple[Config, ...]
    """Full flags, the baseline first where it could be measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointRefused:
    """The preflight found a proposed point impossible; it costs no launch."""

    study_id: str
    trial_id: int
    amounts: tuple[tuple[str, float], ...]
    """Reason and relative excess."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialTold:
    """The sampler knows how the trial ended."""

    study_id: str
    trial_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PointProposed:
    """The sampler answered ``Propose``."""

    study_id: str
    trial_id: int
    config: Config
    source: str
    """``seed:…`` or the sampler's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingProposed:
    """The sampler has no further point (a finite grid is exhausted, or only duplicates are left)."""

    study_id: str
    trial_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialLeased:
    """A worker took an assignment."""

    study_id: str
    trial_id: int
    worker_id: str
    attempt: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialCompleted:
    """A worker delivered the outcome of an attempt."""

    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseExpired:
    """The full lease passed without contact: the attempt is over whatever the worker does."""

    study_id: str
    trial_id: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """The study shall end with what it has."""

    study_id: str
    reason: StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFinished:
    """The plan is carried out: no worker finds anything left to do."""

    study_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyEnded:
    """The verdict was computed and the results are on disk."""

    study_id: str


Event = (
    ControllerStarted
    | StudySubmitted
    | StudyResumed
    | WorkerReady
    | WorkerLost
    | TrialCreated
    | RaceBegan
    | PointProposed
    | PointRefused
    | TrialTold
    | NothingProposed
    | TrialLeased
    | TrialCompleted
    | LeaseExpired
    | StopRequested
    | StudyFinished
    | StudyEnded
)
