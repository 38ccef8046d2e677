"""Percentiles and their intervals."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from autotuner.observe.latency import binomial_bounds, design_effect, quantile_interval


@pytest.mark.parametrize("count", [1, 5, 20, 100, 3000, 200_000])
@pytest.mark.parametrize("probability", [0.5, 0.75, 0.99, 0.999])
def test_binomial_bounds_are_the_exact_ones(count: int, probability: float) -> None:
    """Compared with another implementation."""
    expected = (int(binom.ppf(0.025, count, probability)), int(binom.ppf(0.975, count, probability)))
    assert binomial_bounds(count, probability) == expected


def test_the_interval_covers_the_true_quantile_as_often_as_it_says() -> None:
    """Skewed samples of 200; a distribution-free interval covers at least 95 %."""
    rng = np.random.default_rng(7)
    for percentile, true in ((50.0, np.log(2.0)), (90.0, np.log(10.0))):
        hits = 0
        for _ in range(400):
            interval = quantile_interval(np.sort(rng.exponential(1.0, 200)), percentile)
            hits += interval.low <= true <= interval.high
        assert hits >= 368


def test_a_small_sample_gives_its_whole_range() -> None:
    """Five samples say nothing about the upper end of p99."""
    interval = quantile_interval(np.array([1.0, 2.0, 3.0, 4.0, 5.0]), 99.0)
    assert interval.high == 5.0
    one = quantile_interval(np.array([2.0]), 50.0)
    assert (one.low, one.value, one.high) == (2.0, 2.0, 2.0)


def test_fewer_independent_samples_give_a_wider_interval() -> None:
    """The same samples, worth a tenth."""
    samples = np.sort(np.random.default_rng(1).normal(size=1000))
    narrow, wide = quantile_interval(samples, 50.0), quantile_interval(samples, 50.0, 100.0)
    assert wide.low < narrow.low < narrow.high < wide.high


def test_design_effect_sees_groups() -> None:
    """Groups of ten equal samples are worth one sample each; shuffled ones are worth nearly all."""
    rng = np.random.default_rng(2)
    values = np.repeat(rng.normal(size=300), 10)
    groups = np.repeat(np.arange(300), 10)
    assert design_effect(values, groups, 0.0, 0.5) == pytest.approx(10.0, rel=0.05)
    assert design_effect(values, rng.permutation(groups), 0.0, 0.5) == pytest.approx(1.0, abs=0.3)
    assert design_effect(values[:0], groups[:0], 0.0, 0.5) == 1.0
