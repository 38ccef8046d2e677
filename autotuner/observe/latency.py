"""Percentiles with distribution-free confidence intervals.

An interval for a quantile is read from the order statistics: the number of samples below the true quantile is binomial,
whatever the distribution.  Where the sample is too small to bound the quantile, the interval is the sample's whole range.
Samples that come in correlated groups (the gaps of one answer) carry less information than their number says:
:func:`design_effect` tells by how much, and the effective number is what the interval is computed with.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from autotuner.core.trial import Interval

__all__ = ["CONFIDENCE", "binomial_bounds", "design_effect", "quantile_interval"]

CONFIDENCE = 0.95
"""Confidence of every interval."""

Floats = npt.NDArray[np.float64]


def binomial_bounds(count: int, probability: float, confidence: float = CONFIDENCE) -> tuple[int, int]:
    """Return the largest and smallest k whose tails hold at most half of what *confidence* leaves.

    For X ~ Binomial(count, probability): P(X < low) and P(X > high) are each at most ``(1 - confidence) / 2``.
    """
    tail = (1.0 - confidence) / 2.0
    deviation = math.sqrt(count * probability * (1.0 - probability))
    first = max(0, math.floor(count * probability - 12.0 * deviation - 2.0))
    last = min(count, math.ceil(count * probability + 12.0 * deviation + 2.0))
    k = np.arange(first, last, dtype=np.float64)
    ratio = np.log((count - k) / (k + 1.0)) + math.log(probability / (1.0 - probability))
    log_mass = np.concatenate([[0.0], np.cumsum(ratio)])
    mass = np.exp(log_mass - log_mass.max())
    cumulative = np.cumsum(mass / mass.sum())
    low = int(np.searchsorted(cumulative, tail, side="right"))
    high = int(np.searchsorted(cumulative, 1.0 - tail, side="left"))
    return first + low, first + min(high, len(cumulative) - 1)


def quantile_interval(samples: Floats, percentile: float, effective: float | None = None) -> Interval:
    """Return the *percentile* of sorted *samples* (shape ``(n,)``, n at least 1) with its 95 % interval.

    *effective* is the number of independent samples that they are worth; ``None`` means all.
    """
    count = len(samples)
    probability = percentile / 100.0
    value = float(np.quantile(samples, probability))
    worth = max(1, min(count, int(count if effective is None else effective)))
    low_rank, high_rank = binomial_bounds(worth, probability)
    # Ranks are one-based: at least low_rank samples lie below the quantile, at most high_rank.
    low = 0.0 if low_rank == 0 else (low_rank - 1) / max(1, worth - 1)
    high = 1.0 if high_rank >= worth else high_rank / max(1, worth - 1)
    low_value = float(samples[math.floor(low * (count - 1))])
    high_value = float(samples[math.ceil(min(1.0, high) * (count - 1))])
    return Interval(value=value, low=min(low_value, value), high=max(high_value, value))


def design_effect(values: Floats, groups: npt.NDArray[np.int64], threshold: float, probability: float) -> float:
    """Return the factor (at least 1) by which grouped samples are worth less than independent ones.

    *values* and *groups* have shape ``(n,)``; *groups* holds a small non-negative label per sample.  Compared are the
    variance of the count of samples above *threshold* between groups, and what independent samples would show.
    """
    if len(values) == 0:
        return 1.0
    deviation = (values <= threshold).astype(np.float64) - probability
    sums = np.bincount(groups, weights=deviation)
    expected = len(values) * probability * (1.0 - probability)
    return max(1.0, float(np.square(sums).sum()) / expected)
