"""The few statistics that verdicts need: Student's t, intervals of means, paired gains, the noise floor.

Everything is deterministic and takes plain sequences; gains are relative (0.12 = 12 % more).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import fmean, stdev

from autotuner.core.trial import Interval

__all__ = ["mean_interval", "noise_floor", "paired_gain", "t_quantile"]


def _beta_continued_fraction(a: float, b: float, x: float) -> float:
    """Evaluate the continued fraction of the incomplete beta function by the modified Lentz method."""
    tiny = 1e-300
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > tiny else tiny)
    result = d
    for m in range(1, 300):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 + numerator * d
            d = 1.0 / (d if abs(d) > tiny else tiny)
            c = 1.0 + numerator / c
            c = c if abs(c) > tiny else tiny
            result *= c * d
        if abs(c * d - 1.0) < 1e-14:
            break
    return result


def _t_cdf(t: float, df: float) -> float:
    """Return P(T <= t) for Student's t with *df* degrees of freedom."""
    x = df / (df + t * t)
    a, b = df / 2.0, 0.5
    front = (
        math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
        if 0.0 < x < 1.0
        else 0.0
    )
    if x < (a + 1.0) / (a + b + 2.0):
        tail = front * _beta_continued_fraction(a, b, x) / a
    else:
        tail = 1.0 - front * _beta_continued_fraction(b, a, 1.0 - x) / b
    return 1.0 - tail / 2.0 if t > 0 else tail / 2.0


@lru_cache(maxsize=1024)
def t_quantile(probability: float, df: float) -> float:
    """Return the *probability* quantile (0.5 < p < 1) of Student's t with *df* degrees of freedom."""
    if not 0.5 < probability < 1.0 or df < 1:
        raise ValueError(f"t_quantile needs 0.5 < probability < 1 and df >= 1, got {probability} and {df}")
    low, high = 0.0, 2.0
    while _t_cdf(high, df) < probability:
        high *= 2.0
    for _ in range(200):
        middle = (low + high) / 2.0
        if _t_cdf(middle, df) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


def mean_interval(values: Sequence[float], confidence: float) -> Interval:
    """Return the mean with its two-sided t interval; a single value has itself as both bounds."""
    mean = fmean(values)
    if len(values) < 2:
        return Interval(value=mean, low=mean, high=mean)
    half = t_quantile(0.5 + confidence / 2.0, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Interval(value=mean, low=mean - half, high=mean + half)


def paired_gain(baseline: Sequence[float], candidate: Sequence[float], confidence: float) -> Interval:
    """Return the relative gain of *candidate* over *baseline* from interleaved pairs, with its interval.

    The mean of the pairs' log ratios is tested, so that a drift common to both sides of a pair cancels out.
    Needs at least two pairs of positive values.
    """
    if len(baseline) != len(candidate) or len(baseline) < 2:
        raise ValueError("paired_gain needs at least two pairs of equal number")
    logs = [math.log(new / old) for old, new in zip(baseline, candidate, strict=True)]
    interval = mean_interval(logs, confidence)
    return Interval(
        value=math.expm1(interval.value), low=math.expm1(interval.low), high=math.expm1(min(interval.high, 700.0))
    )


def noise_floor(values: Sequence[float], confidence: float) -> float | None:
    """Return the relative difference that the means of two equal sets like *values* may show by chance.

    Half width of the interval of a ratio of two such means when both come from the same configuration:
    ``t * s * sqrt(2 / n)`` with *s* the standard deviation of the logs and *t* of n - 1 degrees of freedom, because *s*
    comes from these n values alone.  ``None`` for fewer than two values.
    """
    if len(values) < 2 or min(values) <= 0:
        return None
    logs = [math.log(value) for value in values]
    n = len(logs)
    return math.expm1(t_quantile(0.5 + confidence / 2.0, n - 1) * stdev(logs) * math.sqrt(2.0 / n))
