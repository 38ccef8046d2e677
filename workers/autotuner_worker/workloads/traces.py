"""Readers of recorded traces: arrival times and lengths, never contents.

Known formats, told apart by the header: ``azure`` (CSV with TIMESTAMP, ContextTokens and GeneratedTokens; no time zone,
seven fractional digits) and ``mooncake`` (JSON lines with a time stamp in milliseconds, lengths and the identifiers of
512-token prompt blocks, so that shared prefixes are kept).
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from autotuner.core.workload import TraceSource
from autotuner.errors import InputError, Problem

__all__ = ["BLOCK_TOKENS", "TraceRow", "read_trace"]

BLOCK_TOKENS = 512
"""Prompt tokens per block identifier of a Mooncake trace."""

_MOST_PROBLEMS = 20
_AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """One recorded request."""

    offset: float
    """Seconds after the first request of the trace; never falls."""
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    """Identifiers of the prompt's blocks; equal identifiers mean equal tokens."""


_Raw = tuple[float, int, int, tuple[int, ...]]


def read_trace(source: TraceSource) -> tuple[TraceRow, ...]:
    """Return the rows of *source* in the order of arrival, its speed-up not applied.

    Raise ``InputError`` with every unreadable row (20 at most) when the file cannot be used.
    """
    try:
        lines = Path(source.path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _refusal(source, f"cannot be read ({error})", "give the path of a readable UTF-8 file") from error
    while lines and not lines[-1].strip():
        lines.pop()
    parse = _READERS[_format(source, lines)]
    problems: list[Problem] = []
    raw: list[_Raw] = []
    for number, row in parse(lines):
        if isinstance(row, str):
            problems.append(_problem(source, f"line {number}: {row}", "mend or remove the line", number))
        else:
            raw.append(row)
        if len(problems) >= _MOST_PROBLEMS:
            break
    if problems:
        raise InputError(problems, source.path)
    if not raw:
        raise _refusal(source, "holds no request", "give a trace with at least one row below the header")
    raw.sort(key=lambda item: item[0])
    first = raw[0][0]
    return tuple(TraceRow(offset=t - first, prompt_tokens=p, output_tokens=o, blocks=b) for t, p, o, b in raw)


def _format(source: TraceSource, lines: list[str]) -> str:
    if source.format != "auto":
        if source.format not in _READERS:
            known = ", ".join(sorted(_READERS))
            problem = Problem(
                field="workload.trace.format",
                value=source.format,
                message="is not a known trace format",
                remedy=f"use one of auto, {known}",
            )
            raise InputError([problem], source.path)
        return source.format
    head = lines[0].strip().lstrip("\ufeff") if lines else ""
    if head.startswith("{"):
        return "mooncake"
    if all(column in head for column in _AZURE_COLUMNS):
        return "azure"
    raise _refusal(
        source,
        f"has an unknown header {head[:60]!r}",
        f"use a CSV with the columns {', '.join(_AZURE_COLUMNS)} or JSON lines with timestamp, input_length, output_length",
    )


def _azure(lines: list[str]) -> Iterator[tuple[int, _Raw | str]]:
    reader = csv.DictReader(line.lstrip("\ufeff") for line in lines)
    for row in reader:
        try:
            # Seven fractional digits; Python reads six.
            stamp = datetime.fromisoformat(row["TIMESTAMP"].strip()[:26]).replace(tzinfo=UTC).timestamp()
            yield reader.line_num, _checked(stamp, int(row["ContextTokens"]), int(row["GeneratedTokens"]))
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            yield reader.line_num, f"unreadable row ({error})"


def _mooncake(lines: list[str]) -> Iterator[tuple[int, _Raw | str]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            blocks = tuple(int(block) for block in row.get("hash_ids", ()))
            stamp = float(row["timestamp"]) / 1000.0
            yield number, _checked(stamp, int(row["input_length"]), int(row["output_length"]), blocks)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            yield number, f"unreadable row ({error})"


def _checked(stamp: float, prompt: int, output: int, blocks: tuple[int, ...] = ()) -> _Raw:
    if prompt < 0 or output < 0:
        raise ValueError("negative length")
    # A request without prompt or answer cannot be sent; the smallest one stands for it.
    return stamp, max(1, prompt), max(1, output), blocks


_READERS: dict[str, Callable[[list[str]], Iterator[tuple[int, _Raw | str]]]] = {"azure": _azure, "mooncake": _mooncake}


def _problem(source: TraceSource, message: str, remedy: str, line: int | None = None) -> Problem:
    return Problem(field="workload.trace.path", value=source.path, message=message, remedy=remedy, line=line)


def _refusal(source: TraceSource, message: str, remedy: str) -> InputError:
    return InputError([_problem(source, message, remedy)])
