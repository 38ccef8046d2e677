"""A journal that ends with its process: for tests and for trying things out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autotuner.core.events import Event
from autotuner.errors import StorageFault
from autotuner.ports import JournalEntry
from autotuner.storage.records import EVENTS

__all__ = ["MemoryJournal"]


class MemoryJournal:
    """Keeps events as the text that a database would keep, so that what cannot be stored fails here as well."""

    def __init__(self) -> None:
        self._rows: list[tuple[float, str]] = []
        self._closed = False

    def append(self, events: Sequence[Event], stamp: float) -> None:
        """Store *events* in order, all or none."""
        self._check()
        self._rows += [(stamp, EVENTS.dumps(event)) for event in events]

    def read(self) -> Iterable[JournalEntry]:
        """Return every entry in order."""
        self._check()
        return [(seq, stamp, EVENTS.loads(text)) for seq, (stamp, text) in enumerate(self._rows, start=1)]

    def close(self) -> None:
        """End the journal; safe to call twice."""
        self._closed = True

    def _check(self) -> None:
        if self._closed:
            raise StorageFault("the journal is closed")
