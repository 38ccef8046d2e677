"""Reading the Prometheus text format: what an engine says about itself on ``/metrics``.

Samples are kept as they come; ``totals`` sums each name over its label sets.  Histograms appear as ``NAME_sum`` and
``NAME_count`` (buckets are kept for ``by_label`` only), ``_created`` time stamps are dropped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from autotuner.errors import AutotunerError

__all__ = ["Exposition", "ExpositionError", "Sample", "parse"]

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\\n]|\\.)*)"\s*(,|(?=\}))')
_ESCAPE = re.compile(r"\\(.)")
_SHOWN = 120


class ExpositionError(AutotunerError):
    """The text is not in the exposition format; carries the line."""

    def __init__(self, number: int, line: str, reason: str) -> None:
        """*number* counts from 1; *line* is shortened for the message."""
        self.number, self.line, self.reason = number, line[:_SHOWN], reason
        super().__init__(f"line {number}: {reason}: {self.line!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One value of one metric."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposition:
    """Everything that one scrape said."""

    samples: tuple[Sample, ...]
    types: Mapping[str, str] = field(default_factory=dict)
    """Metric family → ``counter``, ``gauge``, ``histogram`` …, where the text says so."""

    def totals(self) -> dict[str, float]:
        """Return name → sum over its label sets, buckets and quantiles excluded."""
        sums: dict[str, float] = {}
        for sample in self.samples:
            if "le" in sample.labels and sample.name.endswith("_bucket"):
                continue
            if "quantile" in sample.labels:
                continue
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
        return sums

    def value(self, name: str, **labels: str) -> float | None:
        """Return the sum of the samples of *name* that carry *labels*; ``None`` when there is none."""
        values = [sample.value for sample in self.select(name, **labels)]
        return math.fsum(values) if values else None

    def select(self, name: str, **labels: str) -> Iterator[Sample]:
        """Yield the samples of *name* that carry *labels*."""
        for sample in self.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                yield sample

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """Return label value → sum, for instance accepted tokens by ``position``."""
        sums: dict[str, float] = {}
        for sample in self.select(name):
            if label in sample.labels:
                key = sample.labels[label]
                sums[key] = sums.get(key, 0.0) + sample.value
        return sums

    def info(self, name: str) -> dict[str, str]:
        """Return the labels of an information metric such as ``vllm:cache_config_info``; empty without one.

        Of several label sets (one for each engine) a label keeps its value where all agree.
        """
        merged: dict[str, str] = {}
        differing: set[str] = set()
        for sample in self.select(name):
            for key, text in sample.labels.items():
                if merged.setdefault(key, text) != text:
                    differing.add(key)
        return {key: text for key, text in merged.items() if key not in differing}


def parse(text: str) -> Exposition:
    """Parse one scrape; raise ``ExpositionError`` on the first line that is not in the format."""
    samples: list[Sample] = []
    types: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = line.strip()
        if stripped.startswith("#"):
            words = stripped.split(None, 3)
            if len(words) == 4 and words[1] == "TYPE":
                types[words[2]] = words[3]
        elif stripped:
            sample = _sample(number, stripped)
            if not sample.name.endswith("_created"):
                samples.append(sample)
    return Exposition(samples=tuple(samples), types=types)


def _sample(number: int, line: str) -> Sample:
    name = _NAME.match(line)
    if name is None:
        raise ExpositionError(number, line, "no metric name")
    labels, rest = _labels(number, line, name.end())
    words = rest.split("#", 1)[0].split()  # an exemplar may follow
    if len(words) not in (1, 2):
        raise ExpositionError(number, line, "expected a value and perhaps a time stamp")
    try:
        value = float(words[0])
    except ValueError:
        raise ExpositionError(number, line, "the value is not a number") from None
    return Sample(name=name.group(), labels=labels, value=value)


def _labels(number: int, line: str, at: int) -> tuple[dict[str, str], str]:
    while at < len(line) and line[at] == " ":
        at += 1
    if at >= len(line) or line[at] != "{":
        return {}, line[at:]
    at += 1
    labels: dict[str, str] = {}
    while (found := _LABEL.match(line, at)) is not None:
        labels[found.group(1)] = _unescape(found.group(2))
        at = found.end()
    end = line.find("}", at)
    if end < 0 or line[at:end].strip():
        raise ExpositionError(number, line, "broken labels")
    return labels, line[end + 1 :]


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda found: "\n" if found.group(1) == "n" else found.group(1), text)
