"""What the machine wants done, as values.  The loop carries them out.

Commands are level-triggered: the machine names all that is outstanding, again and again until an event says that it was
done; each is idempotent.  What workers should do is not a command but a state that they read at every Sync
(``Machine.desired``).
"""

from __future__ import annotations

from dataclasses import dataclass

from autotuner.core.space import Config
from autotuner.core.trial import Outcome

__all__ = ["Command", "Propose", "Publish", "Tell"]


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
class Tell:
    """Tell the sampler how a point ended; answer with ``TrialTold``."""

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


Command = Propose | Tell | Publish
