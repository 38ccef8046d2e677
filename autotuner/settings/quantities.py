"""Durations, sizes and latency limits as people write them.

A duration needs its unit (``80 ms``, ``1.5 s``, ``7 min``, ``2 h``): a bare number is refused, because nobody can tell
whether 500 means seconds or milliseconds.  Sizes are bytes, or a number with a unit (``512 MiB``, ``80 GB``).
"""

from __future__ import annotations

import math
import re

from autotuner.core.budget import PERCENTILES, LatencyMetric, Limit, metric_key

__all__ = ["Malformed", "parse_duration", "parse_limit_key", "parse_size", "stricter"]

_NUMBER_UNIT = re.compile(r"^\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµ]*)\s*$")
_SECONDS = {
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "min": 60.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_LONGEST = 3650 * 86400.0
_LARGEST = 2.0**60
_BYTES = {"": 1, "b": 1} | {
    prefix + suffix: base**power
    for power, prefix in enumerate(("k", "m", "g", "t"), start=1)
    for suffix, base in (("ib", 1024), ("b", 1000))
}


class Malformed(ValueError):
    """A value that cannot be read; carries what to write instead."""

    def __init__(self, message: str, remedy: str) -> None:
        self.message, self.remedy = message, remedy
        super().__init__(f"{message}; {remedy}")


def parse_duration(value: object) -> float:
    """Return *value* (``"80 ms"``) in seconds; raise :class:`Malformed` for anything but a positive, finite duration."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value) or value <= 0:
            raise Malformed("a duration must be positive", 'write a positive time, such as "500 ms"')
        raise Malformed("a duration needs its unit", f'write "{value:g} ms" or "{value:g} s"')
    match = _NUMBER_UNIT.match(value) if isinstance(value, str) else None
    if match is None or match[2] not in _SECONDS:
        raise Malformed("not a duration", 'write a number and a unit, such as "80 ms", "1.5 s", "7 min" or "2 h"')
    seconds = float(match[1]) * _SECONDS[match[2]]
    if not math.isfinite(seconds) or seconds <= 0:
        raise Malformed("a duration must be positive", 'write a positive time, such as "500 ms"')
    if seconds > _LONGEST:
        raise Malformed("longer than ten years", 'write a shorter time, such as "12 h"')
    return seconds


def parse_size(value: object) -> int:
    """Return *value* (``"512 MiB"`` or a number of bytes) in bytes; raise :class:`Malformed` when it is not positive."""
    match = _NUMBER_UNIT.match(value) if isinstance(value, str) else None
    if isinstance(value, int) and not isinstance(value, bool):
        size = float(value)
    elif match is not None and match[2].lower() in _BYTES:
        size = float(match[1]) * _BYTES[match[2].lower()]
    else:
        raise Malformed("not a size", 'write bytes, or a number and a unit such as "512 MiB" or "80 GB"')
    if not math.isfinite(size) or size < 1:
        raise Malformed("a size must be positive", 'write a positive size, such as "512 MiB"')
    if size > _LARGEST:
        raise Malformed("more than a machine can have", 'write a smaller size, such as "80 GB"')
    return int(size)


def parse_limit_key(key: str) -> tuple[LatencyMetric, float]:
    """Return metric and percentile of a name such as ``ttft_p99`` or ``e2e_p99_9``; raise :class:`Malformed`."""
    match = re.fullmatch(r"([a-z0-9]+)_p(\d+(?:[._]\d+)?)", key)
    metrics = ", ".join(metric.value for metric in LatencyMetric)
    measured = ", ".join(metric_key(LatencyMetric.TTFT, percentile) for percentile in PERCENTILES)
    if match is None or match[1] not in {metric.value for metric in LatencyMetric}:
        raise Malformed("not a latency limit", f"use one of {metrics} with a percentile, such as ttft_p95")
    percentile = float(match[2].replace("_", "."))
    if not 0 < percentile < 100:
        raise Malformed(f"percentile {percentile:g} is impossible", f"use one of {measured} (or itl, tpot, e2e)")
    if percentile not in PERCENTILES:
        raise Malformed(f"percentile {percentile:g} is not measured", f"use one of {measured} (or itl, tpot, e2e)")
    return LatencyMetric(match[1]), percentile


def stricter(limits: list[Limit]) -> tuple[Limit, ...]:
    """Return *limits* with the smallest of those on the same figure, in the order of first mention."""
    kept: dict[str, Limit] = {}
    for limit in limits:
        known = kept.get(limit.key)
        if known is None or limit.seconds < known.seconds:
            kept[limit.key] = limit
    return tuple(kept.values())
