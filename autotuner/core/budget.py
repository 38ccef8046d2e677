"""The latency budget (R19): named parts in milliseconds, and limits on percentiles of measured latencies.

The inference part, where given, bounds the end-to-end latency that the load generator measures at the engine's own
socket: what remains of the total after the parts that lie outside the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["PERCENTILES", "LatencyBudget", "LatencyMetric", "Limit", "excess", "metric_key"]

PERCENTILES: tuple[float, ...] = (50.0, 75.0, 90.0, 95.0, 99.0, 99.9)
"""The percentiles that every measurement reports."""


class LatencyMetric(StrEnum):
    """A per-request latency, in seconds wherever it is a number."""

    TTFT = "ttft"
    """Time to first token, from sending."""
    ITL = "itl"
    """Inter-token latency: each gap between chunks of one answer."""
    TPOT = "tpot"
    """Time per output token of one request, the first token excluded."""
    E2E = "e2e"
    """From sending to the last chunk."""


def metric_key(metric: LatencyMetric, percentile: float) -> str:
    """Return the name used in tables and files, such as ``ttft_p99`` or ``e2e_p99_9``."""
    return f"{metric.value}_p{percentile:g}".replace(".", "_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """``metric`` at ``percentile`` must not exceed ``seconds``."""

    metric: LatencyMetric
    percentile: float
    seconds: float

    @property
    def key(self) -> str:
        """Name of the limited figure, such as ``itl_p95``."""
        return metric_key(self.metric, self.percentile)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyBudget:
    """Limits that a configuration has to keep."""

    parts: Mapping[str, float] = field(default_factory=dict)
    """Seconds per named part (``network``, ``preprocessing``, ``inference``); informative but for ``inference``."""
    limits: tuple[Limit, ...] = ()
    """All limits, the one derived from the inference part included."""
    max_error_ratio: float = 0.01
    """Largest share of requests that may fail, abort or come back empty."""


def excess(observed: float, limit: float) -> float:
    """Return the relative excess of *observed* over *limit*: negative or 0 when kept, 0.5 for 50 % too much."""
    return observed / limit - 1.0
