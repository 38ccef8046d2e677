"""What can happen, as values.  The journal is the list of these; folding it rebuilds the controller's state.

Every event is a fact about the past: effects report their results as events, failures included.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from autotuner.core.space import Config
from autotuner.core.study import StudySpec
from autotuner.core.trial import Outcome

__all__ = [
    "ControllerStarted",
    "Event",
    "LeaseExpired",
    "NothingProposed",
    "PointProposed",
    "StopReason",
    "StopRequested",
    "StudyEnded",
    "StudyResumed",
    "StudySubmitted",
    "TrialCompleted",
    "TrialLeased",
    "WorkerLost",
    "WorkerReady",
]


class StopReason(StrEnum):
    """Why a study stops before its trials are used up."""

    USER = "user"
    WALL_TIME = "wall_time"
    GPU_HOURS = "gpu_hours"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReady:
    """A worker reported (again) and has a free slot."""

    worker_id: str
    hot_capable: bool = False
    """Its engines can change hot parameters while running."""
    resident_engines: int = 1
    """Engines that fit beside each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLost:
    """A worker said goodbye."""

    worker_id: str


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
class StudyEnded:
    """The verdict was computed and the results are on disk."""

    study_id: str


Event = (
    ControllerStarted
    | StudySubmitted
    | StudyResumed
    | WorkerReady
    | WorkerLost
    | PointProposed
    | NothingProposed
    | TrialLeased
    | TrialCompleted
    | LeaseExpired
    | StopRequested
    | StudyEnded
)
