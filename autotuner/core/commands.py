"""What the machine wants done, as values.  The loop carries them out; each is idempotent and may be issued again."""

from __future__ import annotations

from dataclasses import dataclass

from autotuner.core.space import Config
from autotuner.core.trial import Assignment, Outcome

__all__ = ["Abort", "Command", "Offer", "Propose", "Publish", "Tell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Propose:
    """Ask the sampler for the point of a trial; answer with ``PointProposed`` or ``NothingProposed``."""

    study_id: str
    trial_id: int
    fixed: Config
    """Parameters that must keep these values (the cold part of a running launch); empty for a free choice."""
    ceiling: Config
    """Hot parameters may not exceed these values; empty without a running launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Lease this assignment to the worker at its next Sync; answer with ``TrialLeased``."""

    worker_id: str
    assignment: Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """The worker must drop the attempt; it answers with a CANCELLED outcome."""

    worker_id: str
    study_id: str
    trial_id: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell:
    """Tell the sampler how a proposed point ended."""

    study_id: str
    trial_id: int
    config: Config
    value: float | None
    """Objective; ``None`` when nothing was measured."""
    constraints: tuple[tuple[str, float], ...]
    """Name and amount: at most 0 is feasible."""
    outcome: Outcome | None
    """``None`` for a point refused before any launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """Write the study's results; answer with ``StudyEnded``."""

    study_id: str


Command = Propose | Offer | Abort | Tell | Publish
