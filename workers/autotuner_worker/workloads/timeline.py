"""When the warm-up is over and when the measured part ends, from the reports of the generator processes.  Pure.

Times are on the monotonic clock that all processes of a host share.  Progress is judged by content chunks: their rate
is proportional to that of tokens, and known at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autotuner.core.study import MeasurePlan

__all__ = ["Timeline", "end_of_part", "end_of_warmup", "steady"]

_LEAST_WINDOWS = 3


def steady(rates: Sequence[float], tolerance: float) -> bool:
    """Return whether the last windows' rates differ by less than *tolerance* (a share) from their mean.

    The last three windows are compared; where they are too noisy, the last six in pairs, the last twelve in fours, and
    so on: a load that varies around a constant mean becomes steady, one that still grows does not.
    """
    size = 1
    while size * _LEAST_WINDOWS <= len(rates):
        recent = (
            np.asarray(rates[-size * _LEAST_WINDOWS :], dtype=np.float64).reshape(_LEAST_WINDOWS, size).mean(axis=1)
        )
        mean = float(recent.mean())
        if mean > 0.0 and float(np.abs(recent - mean).max()) <= tolerance * mean:
            return True
        size *= 2
    return False


@dataclass(slots=True)
class _Shard:
    at: list[float] = field(default_factory=list)
    chunks: list[float] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    stalls: list[float] = field(default_factory=list)
    latest: Mapping[str, Any] = field(default_factory=dict)


class Timeline:
    """The reports of all shards of one load."""

    def __init__(self, start: float, shards: int) -> None:
        """Take the monotonic time at which the load begins."""
        self.start = start
        self._shards = [_Shard([start], [0.0], [0.0], [], []) for _ in range(shards)]

    def add(self, shard: int, report: Mapping[str, Any]) -> None:
        """Take in a report; those of one shard come in order."""
        entry = self._shards[shard]
        entry.latest = report
        if report["at"] <= entry.at[-1]:
            return
        entry.at.append(report["at"])
        entry.chunks.append(report["chunks"])
        entry.sent.append(report["sent"])
        entry.cpu.append(report["cpu"])
        entry.stalls.append(report["stall"])

    @property
    def known(self) -> float:
        """The latest time up to which every shard has reported."""
        return min(shard.at[-1] for shard in self._shards)

    def chunks(self, moment: float) -> float:
        """Return the content chunks received until *moment* (interpolated)."""
        return float(sum(np.interp(moment, shard.at, shard.chunks) for shard in self._shards))

    def sent(self, moment: float) -> float:
        """Return the requests sent until *moment* (interpolated)."""
        return float(sum(np.interp(moment, shard.at, shard.sent) for shard in self._shards))

    def rates(self, window: float) -> list[float]:
        """Return chunks per second of every complete window since the start."""
        edges = self.start + window * np.arange(int((self.known - self.start) / window + 1e-9) + 1)
        counts = np.sum([np.interp(edges, shard.at, shard.chunks) for shard in self._shards], axis=0)
        return [float(rate) for rate in np.diff(counts) / window]

    def rate(self, span: float) -> float:
        """Return chunks per second over the last *span* seconds."""
        known = self.known
        begin = max(self.start, known - span)
        return (self.chunks(known) - self.chunks(begin)) / (known - begin) if known > begin else 0.0

    def total(self, name: str) -> float:
        """Return the sum over the shards of the latest figure *name*."""
        return float(sum(shard.latest.get(name, 0) for shard in self._shards))

    def earliest(self, name: str) -> float:
        """Return the smallest latest figure *name* above 0 over the shards, or 0.0 when every shard says 0."""
        values = [value for shard in self._shards if (value := shard.latest.get(name, 0.0)) > 0.0]
        return min(values, default=0.0)

    def messages(self) -> tuple[str, ...]:
        """Return the different latest messages of requests that did not end well."""
        return tuple(sorted({message for shard in self._shards if (message := shard.latest.get("message", ""))}))

    def waiting_since(self) -> float:
        """Return since when requests are in flight and no shard has seen a token, or 0.0 when none is in flight."""
        values = [shard.latest.get("waiting_since", 0.0) for shard in self._shards]
        return max(values, default=0.0)

    def cpu_share(self, begin: float, end: float) -> float:
        """Return the CPU seconds per second of the busiest shard between two times."""
        shares = [0.0]
        for shard in self._shards:
            if len(shard.cpu) > 1 and end > begin:
                used = np.interp([begin, end], shard.at[1:], shard.cpu)
                shares.append(float(used[1] - used[0]) / (end - begin))
        return max(shares)

    def longest_stall(self, begin: float) -> float:
        """Return the longest gap between two beats of a shard's event loop, in reports after *begin*."""
        stalls = [
            stall for shard in self._shards for at, stall in zip(shard.at[1:], shard.stalls, strict=True) if at >= begin
        ]
        return max(stalls, default=0.0)


def end_of_warmup(timeline: Timeline, plan: MeasurePlan) -> tuple[float, bool] | None:
    """Return when the warm-up ended and whether by steadiness, or ``None`` while it goes on."""
    elapsed = timeline.known - timeline.start
    rates = timeline.rates(plan.window)
    edge = timeline.start + len(rates) * plan.window
    if edge - timeline.start >= plan.warmup_min and steady(rates, plan.tolerance):
        return edge, True
    if elapsed >= plan.warmup_max:
        return timeline.known, False
    return None


def end_of_part(timeline: Timeline, plan: MeasurePlan, warmup_end: float) -> float | None:
    """Return when the measured part ended, or ``None`` while it goes on."""
    regular = warmup_end + plan.duration
    if timeline.known < regular:
        return None
    before = timeline.sent(warmup_end)
    if timeline.sent(regular) - before >= plan.min_requests:
        return regular
    if timeline.sent(timeline.known) - before >= plan.min_requests or timeline.known >= warmup_end + plan.duration_max:
        return timeline.known
    return None
