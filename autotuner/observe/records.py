"""The raw records of one segment: one row per request, columns as arrays, in a compressed ``.npz`` file.

Everything that a measurement says is recomputed from this file by :func:`autotuner.observe.evaluate.evaluate`; a limit
that changes later needs no new run.  No prompt and no answer is stored, only counts and times.

Invariants: all columns have the same length; ``chunk_index`` has one entry more, starts at 0 and never falls;
``chunk_offsets[chunk_index[i]:chunk_index[i + 1]]`` are the arrival times of the content chunks of request *i*, relative to
``sent[i]``, never falling.  Points in time are seconds relative to the first send; NaN means "never happened".
"""

from __future__ import annotations

import contextlib
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autotuner.core.trial import LoadCheck
from autotuner.errors import StorageFault

__all__ = ["SCHEMA_VERSION", "Records", "SegmentMeta", "Status", "merge"]

SCHEMA_VERSION = 1
"""Of the file; a reader refuses another one."""


class Status(IntEnum):
    """How a request ended."""

    OK = 0
    """The whole answer arrived, with the server's own token count."""
    ERROR = 1
    """HTTP status of 400 or more, an error inside the stream, a broken connection or the request's time-out."""
    ABORTED = 2
    """The server ended the answer early: finish reason ``abort``, or the stream stopped without its end mark."""
    EMPTY = 3
    """A regular end without any token."""
    GARBAGE = 4
    """Not an event stream, unreadable, without token counts, or shorter than what was asked for."""
    CUT = 5
    """Cut off by the load generator when the segment was over; not counted anywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentMeta:
    """What belongs to the segment as a whole."""

    warmup_end: float = 0.0
    end_time: float = 0.0
    steady: bool = False
    """The warm-up ended because throughput was steady."""
    window: float = 1.0
    """Length of the windows of ``Measurement.windows``."""
    check: LoadCheck = LoadCheck()
    notes: tuple[str, ...] = ()
    """What a reader should know: clamped lengths, messages of failed requests."""
    labels: Mapping[str, str] = field(default_factory=dict)


def _empty(kind: str) -> Any:
    return field(default_factory=lambda: np.zeros(0, dtype=kind))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Records:
    """One row per request that was sent, in the order of sending."""

    index: npt.NDArray[np.int64] = _empty("i8")
    """Position in the schedule."""
    scheduled: npt.NDArray[np.float64] = _empty("f8")
    """When the schedule wanted it sent; in a closed loop the moment at which its client became free."""
    ready: npt.NDArray[np.float64] = _empty("f8")
    """When it could be sent: ``scheduled``, or later when the bound of requests in flight held it back."""
    sent: npt.NDArray[np.float64] = _empty("f8")
    ended: npt.NDArray[np.float64] = _empty("f8")
    """When the answer was over, complete or not."""
    asked_prompt: npt.NDArray[np.int32] = _empty("i4")
    asked_output: npt.NDArray[np.int32] = _empty("i4")
    prompt_tokens: npt.NDArray[np.int32] = _empty("i4")
    """As the server counted them; -1 when it did not say."""
    output_tokens: npt.NDArray[np.int32] = _empty("i4")
    """As the server counted them; -1 when it did not say."""
    status: npt.NDArray[np.int8] = _empty("i1")
    """A :class:`Status`."""
    http_status: npt.NDArray[np.int16] = _empty("i2")
    """0 when no answer came."""
    chunk_index: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, dtype="i8"))
    chunk_offsets: npt.NDArray[np.float32] = _empty("f4")
    meta: SegmentMeta = SegmentMeta()

    def __len__(self) -> int:
        return len(self.sent)

    @property
    def chunk_counts(self) -> npt.NDArray[np.int64]:
        """Content chunks per request, shape ``(n,)``."""
        return np.diff(self.chunk_index)

    @property
    def chunk_times(self) -> npt.NDArray[np.float64]:
        """Arrival of every content chunk in the segment's time, in the order of the rows."""
        times: npt.NDArray[np.float64] = np.repeat(self.sent, self.chunk_counts) + self.chunk_offsets
        return times

    @property
    def first(self) -> npt.NDArray[np.float64]:
        """Arrival of the first content chunk, shape ``(n,)``; NaN without one."""
        return self._edge(self.chunk_index[:-1])

    @property
    def last(self) -> npt.NDArray[np.float64]:
        """Arrival of the last content chunk, shape ``(n,)``; NaN without one."""
        return self._edge(self.chunk_index[1:] - 1)

    def _edge(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        result = np.full(len(self), np.nan)
        some = self.chunk_counts > 0
        result[some] = self.sent[some] + self.chunk_offsets[positions[some]]
        return result

    def shifted(self, origin: float) -> Records:
        """Return the same records with *origin* as the zero of all points in time but those in ``meta``."""
        moved = {name: getattr(self, name) - origin for name in ("scheduled", "ready", "sent", "ended")}
        return replace(self, **moved)

    def write(self, path: Path) -> None:
        """Write to *path*, atomically. Raise ``StorageFault`` when that fails."""
        columns = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "meta"}
        header = json.dumps({"schema_version": SCHEMA_VERSION, **asdict(self.meta)})
        partial = path.with_name(path.name + ".partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as stream:
                np.savez_compressed(stream, header=np.array(header), **columns)
            partial.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise StorageFault(f"cannot write the records {path}: {error}") from error

    @classmethod
    def read(cls, path: Path) -> Records:
        """Return what :meth:`write` stored. Raise ``StorageFault`` for a missing, damaged or foreign file."""
        try:
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
                header = json.loads(str(archive["header"]))
                if header.pop("schema_version") != SCHEMA_VERSION:
                    raise StorageFault(f"{path} has another schema version than {SCHEMA_VERSION}; measure again")
                names = [item.name for item in fields(cls) if item.name != "meta"]
                records = cls(meta=_meta(header), **{name: archive[name] for name in names})
        except (OSError, KeyError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise StorageFault(f"{path} is not a readable file of records: {error}") from error
        problem = records.problem()
        if problem:
            raise StorageFault(f"{path} is damaged: {problem}")
        return records

    def problem(self) -> str:
        """Return what contradicts the invariants, or an empty string."""
        rows = len(self.sent)
        for item in fields(self):
            if item.name not in ("meta", "chunk_index", "chunk_offsets") and len(getattr(self, item.name)) != rows:
                return f"column {item.name} has {len(getattr(self, item.name))} rows instead of {rows}"
        if len(self.chunk_index) != rows + 1 or self.chunk_index[0] != 0 or np.any(np.diff(self.chunk_index) < 0):
            return "the chunk index does not fit"
        if self.chunk_index[-1] != len(self.chunk_offsets):
            return "chunk times are missing"
        return ""


def _meta(header: dict[str, Any]) -> SegmentMeta:
    check = dict(header.pop("check"))
    check["void_reasons"] = tuple(check["void_reasons"])
    header["notes"] = tuple(header["notes"])
    return SegmentMeta(check=LoadCheck(**check), **header)


def merge(parts: Sequence[Records], meta: SegmentMeta) -> Records:
    """Return the rows of all *parts* in the order of sending, with times relative to the first send.

    Rows sent before the clock zero keep their order; ``meta`` is taken as given.
    """
    names = [item.name for item in fields(Records) if item.name not in ("meta", "chunk_index", "chunk_offsets")]
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    counts = np.concatenate([part.chunk_counts for part in parts])
    offsets = np.concatenate([part.chunk_offsets for part in parts])
    order = np.argsort(columns["sent"], kind="stable")
    starts = np.concatenate([[0], np.cumsum(counts)])[:-1]
    sorted_counts = counts[order]
    index = np.concatenate([[0], np.cumsum(sorted_counts)]).astype(np.int64)
    # Position of every chunk in the old array: start of its row plus its place within the row.
    places = np.arange(index[-1]) - np.repeat(index[:-1], sorted_counts) + np.repeat(starts[order], sorted_counts)
    merged = Records(
        **{name: column[order] for name, column in columns.items()},
        chunk_index=index,
        chunk_offsets=offsets[places.astype(np.int64)],
        meta=meta,
    )
    return merged.shifted(float(merged.sent[0])) if len(merged) else merged
