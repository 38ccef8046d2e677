"""One row of the journal: an event as checked text."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from autotuner.core.events import Event
from autotuner.errors import InputError, StorageFault
from autotuner.ports import JournalEntry
from autotuner.wire.codec import FORMAT, Codec

__all__ = ["EVENTS", "Row", "row_of"]

EVENTS: Codec[Event] = Codec(Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What is stored of one event."""

    seq: int
    """From 1, without gaps."""
    stamp: float
    """UTC in seconds."""
    kind: str
    """The event's class, for people who look into the table."""
    format: int
    body: str
    crc: int
    """Over everything else, so that a row changed by hand or by a bad disk is noticed."""

    def entry(self, expected_seq: int) -> JournalEntry:
        """Return the entry after checking it; raise ``StorageFault`` for a gap, a damage or an unknown format."""
        if self.seq != expected_seq:
            raise StorageFault(
                f"the journal has a gap: entry {expected_seq} is missing (found {self.seq}); restore it from a backup"
            )
        if self.format != FORMAT:
            raise StorageFault(
                f"entry {self.seq} of the journal has format {self.format}, this program knows {FORMAT}; "
                "use the version of the program that wrote it"
            )
        if self.crc != _crc(self.seq, self.stamp, self.kind, self.format, self.body):
            raise StorageFault(f"entry {self.seq} of the journal is damaged; restore it from a backup")
        try:
            return (self.seq, self.stamp, EVENTS.loads(self.body))
        except InputError as error:
            raise StorageFault(f"entry {self.seq} of the journal cannot be read: {error}") from error


def row_of(seq: int, stamp: float, event: Event) -> Row:
    """Return the row that stores *event*."""
    stamp = float(stamp)
    kind, body = type(event).__name__, EVENTS.dumps(event)
    return Row(seq=seq, stamp=stamp, kind=kind, format=FORMAT, body=body, crc=_crc(seq, stamp, kind, FORMAT, body))


def _crc(seq: int, stamp: float, kind: str, version: int, body: str) -> int:
    return zlib.crc32(f"{seq}|{stamp!r}|{kind}|{version}|{body}".encode())
