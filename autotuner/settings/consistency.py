"""Checks that span several fields of a study file.

Each section is checked on its own, so that one broken section does not hide the problems of the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from autotuner.core.workload import Arrival, LengthKind, LoadMode
from autotuner.settings.study_file import (
    EngineSection,
    LatencySection,
    LengthsSection,
    MeasureSection,
    SearchSection,
    Section,
    WorkloadSection,
)

__all__ = ["Finding", "inconsistencies"]

_SECRET = re.compile(r"(TOKEN|SECRET|PASSWORD|API_KEY|CREDENTIAL)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem before its line is known; ``path`` is relative to the section."""

    path: tuple[str | int, ...]
    message: str
    remedy: str
    value: str = ""


def inconsistencies(section: Section) -> Iterator[Finding]:
    """Yield every contradiction within *section*."""
    if isinstance(section, WorkloadSection):
        yield from _workload(section)
    elif isinstance(section, LatencySection):
        yield from _latency(section)
    elif isinstance(section, MeasureSection):
        yield from _measure(section)
    elif isinstance(section, EngineSection):
        yield from _engine(section)
    elif isinstance(section, SearchSection):
        yield from _search(section)


def _workload(load: WorkloadSection) -> Iterator[Finding]:
    traced = load.arrival is Arrival.TRACE
    if load.mode is LoadMode.OPEN and not traced and load.rate <= 0:
        yield Finding(path=("rate",), message="an open loop needs a rate", remedy="give requests per second, above 0")
    if load.mode is LoadMode.CLOSED and load.rate > 0:
        yield Finding(
            path=("rate",),
            value=f"{load.rate:g}",
            message="a closed loop has no rate",
            remedy="write mode: open, or remove the rate",
        )
    if load.mode is LoadMode.CLOSED and traced:
        yield Finding(
            path=("arrival",), value="trace", message="recorded arrivals need an open loop", remedy="write mode: open"
        )
    if load.mode is LoadMode.CLOSED and load.concurrency == 0:
        yield Finding(path=("concurrency",), value="0", message="nobody would send", remedy="give at least 1")
    kinds = {load.input_tokens.kind, load.output_tokens.kind}
    if load.trace is None and (traced or LengthKind.TRACE in kinds):
        yield Finding(path=("trace",), message="a trace is used but not given", remedy="add trace: {path: FILE}")
    if load.trace is not None and not traced and LengthKind.TRACE not in kinds:
        yield Finding(
            path=("trace",),
            message="the trace is given but not used",
            remedy="write arrival: trace, or kind: trace for the lengths, or remove it",
        )
    yield from _lengths("input_tokens", load.input_tokens)
    yield from _lengths("output_tokens", load.output_tokens)
    if load.input_tokens.kind is LengthKind.FIXED and load.shared_prefix.tokens >= load.input_tokens.mean:
        yield Finding(
            path=("shared_prefix", "tokens"),
            value=str(load.shared_prefix.tokens),
            message=f"not shorter than the prompts ({load.input_tokens.mean:g} tokens)",
            remedy="give a smaller prefix or longer prompts",
        )


def _lengths(name: str, lengths: LengthsSection) -> Iterator[Finding]:
    if lengths.high is not None and lengths.high < lengths.low:
        yield Finding(
            path=(name, "high"), value=str(lengths.high), message=f"below low ({lengths.low})", remedy="swap the two"
        )
    elif lengths.kind is not LengthKind.TRACE and not lengths.low <= lengths.mean <= (lengths.high or lengths.mean):
        yield Finding(
            path=(name, "mean"),
            value=f"{lengths.mean:g}",
            message="outside low..high: every draw would be clipped",
            remedy="move the mean between low and high",
        )
    if lengths.kind is LengthKind.UNIFORM and lengths.spread >= lengths.mean:
        yield Finding(
            path=(name, "spread"),
            value=f"{lengths.spread:g}",
            message="a half width as large as the mean reaches below 1",
            remedy="give less than the mean",
        )


def _latency(latency: LatencySection) -> Iterator[Finding]:
    spent = sum(latency.parts.values())
    if latency.total is not None and spent > latency.total * (1 + 1e-9):
        yield Finding(
            path=("parts",),
            value=" + ".join(f"{name} {seconds * 1000:g} ms" for name, seconds in latency.parts.items()),
            message=f"the parts take {spent * 1000:g} ms, the total is {latency.total * 1000:g} ms",
            remedy="shorten a part or raise the total",
        )
    elif latency.total is not None and "inference" not in latency.parts and spent >= latency.total * (1 - 1e-9):
        yield Finding(
            path=("parts",),
            message="nothing of the total is left for inference",
            remedy="shorten a part or raise the total",
        )


def _measure(measure: MeasureSection) -> Iterator[Finding]:
    pairs = (
        ("warmup_min", measure.warmup_min, "warmup_max", measure.warmup_max),
        ("window", measure.window, "duration", measure.duration),
        ("duration", measure.duration, "duration_max", measure.duration_max),
    )
    for name, value, bound, limit in pairs:
        if limit is not None and value > limit:
            yield Finding(
                path=(name,),
                value=f"{value:g} s",
                message=f"longer than {bound} ({limit:g} s)",
                remedy="swap or adjust them",
            )


def _engine(engine: EngineSection) -> Iterator[Finding]:
    for name, text in engine.env.items():
        if _SECRET.search(name) and text and not re.fullmatch(r"\$\{\w+\}", text):
            yield Finding(
                path=("env", name),
                message="looks like a secret written into a file",
                remedy=f"write ${{{name}}} and set the variable where the worker runs",
            )


def _search(search: SearchSection) -> Iterator[Finding]:
    space = search.space
    for name in sorted({*space.include, *space.parameters} & set(space.exclude)):
        yield Finding(
            path=("space", "exclude"), value=name, message="both wanted and excluded", remedy="keep one of the two"
        )
    for name, domain in space.parameters.items():
        path = ("space", "parameters", name)
        ranged = [key for key in ("low", "high", "log", "step") if getattr(domain, key) is not None]
        if len([part for part in (ranged, domain.choices, domain.fixed is not None) if part]) > 1:
            yield Finding(path=path, message="mixes a range, choices and a fixed value", remedy="keep one of them")
        if domain.low is not None and domain.high is not None and domain.low > domain.high:
            yield Finding(
                path=(*path, "low"), value=str(domain.low), message=f"above high ({domain.high})", remedy="swap the two"
            )
        if domain.log and domain.low is not None and domain.low <= 0:
            yield Finding(
                path=(*path, "low"),
                value=str(domain.low),
                message="a logarithmic scale begins above 0",
                remedy="give a positive low or remove log",
            )
        if domain.log and domain.step is not None:
            yield Finding(
                path=(*path, "step"),
                value=str(domain.step),
                message="a logarithmic scale has no step",
                remedy="remove one",
            )
        if domain.choices is not None and len({(type(c), c) for c in domain.choices}) < len(domain.choices):
            yield Finding(
                path=path, value=str(domain.choices), message="a choice is given twice", remedy="keep one of them"
            )
