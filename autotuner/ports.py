"""The controller's ports: what the core needs from the world, as narrow protocols.

Adapters live in ``search``, ``storage``, ``daemon``; fakes live in ``tests/fakes``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from autotuner.core.commands import Propose, Tell
from autotuner.core.events import Event, NothingProposed, PointProposed
from autotuner.core.study import StudySpec

__all__ = ["Clock", "Journal", "JournalEntry", "Sampler"]

JournalEntry = tuple[int, float, Event]
"""Sequence number (from 1, without gaps), UTC time stamp in seconds, event."""


class Clock(Protocol):
    """Time, in one place."""

    def monotonic(self) -> float:
        """Return seconds that never go back; for durations."""
        ...

    def utc(self) -> float:
        """Return seconds since the epoch; for stamps only."""
        ...


class Journal(Protocol):
    """The append-only list of events."""

    def append(self, events: Sequence[Event], stamp: float) -> None:
        """Store *events* durably and in order, all or none. Raise ``StorageFault`` when that fails."""
        ...

    def read(self) -> Iterable[JournalEntry]:
        """Return every entry in order."""
        ...

    def close(self) -> None:
        """Release the storage; further calls are errors."""
        ...


class Sampler(Protocol):
    """Proposes points of one study and learns from their outcomes. Idempotent per trial."""

    def open(self, study_id: str, spec: StudySpec) -> None:
        """Create or load the study's memory."""
        ...

    def propose(self, request: Propose) -> PointProposed | NothingProposed:
        """Return the point of ``request.trial_id``; the same point when asked again."""
        ...

    def tell(self, result: Tell) -> None:
        """Record the end of a trial; telling the same trial again changes nothing."""
        ...

    def abandon(self, study_id: str, trial_ids: Iterable[int]) -> None:
        """Close proposed trials about which nothing was learned; those that were told or never proposed are skipped."""
        ...
