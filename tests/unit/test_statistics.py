"""Student's t against SciPy, intervals and gains by their coverage, the noise floor, and the memory model."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from autotuner.core.objective import throughput
from autotuner.core.oom import OOM_PRIOR, kv_bytes_per_token, kv_shortage, oom_probability
from autotuner.core.space import EngineDescription
from autotuner.core.statistics import mean_interval, noise_floor, paired_gain, t_quantile


@given(
    st.floats(0.501, 0.9995, allow_nan=False),
    st.integers(1, 400),
)
def test_t_quantiles_are_those_of_scipy(probability: float, df: int) -> None:
    assert t_quantile(probability, df) == pytest.approx(float(stats.t.ppf(probability, df)), rel=1e-6)


@pytest.mark.parametrize(("probability", "df"), [(0.5, 3), (1.0, 3), (0.9, 0)])
def test_impossible_quantiles_are_refused(probability: float, df: int) -> None:
    with pytest.raises(ValueError, match="t_quantile needs"):
        t_quantile(probability, df)


def test_the_interval_of_a_gain_covers_the_truth_as_often_as_it_says() -> None:
    rng = random.Random(1)
    hits = 0
    for _ in range(2000):
        drift = [rng.gauss(0, 0.3) for _ in range(5)]
        base = [1000 * math.exp(d + rng.gauss(0, 0.04)) for d in drift]
        new = [1100 * math.exp(d + rng.gauss(0, 0.04)) for d in drift]
        gain = paired_gain(base, new, 0.95)
        hits += gain.low <= 0.1 <= gain.high
    assert 0.93 <= hits / 2000 <= 0.97


def test_equal_configurations_rarely_differ_by_more_than_the_noise_floor() -> None:
    rng = random.Random(2)
    beyond = 0
    for _ in range(2000):
        first = [1000 * math.exp(rng.gauss(0, 0.05)) for _ in range(4)]
        second = [1000 * math.exp(rng.gauss(0, 0.05)) for _ in range(4)]
        floor = noise_floor(first, 0.95)
        assert floor is not None
        beyond += abs(math.log(sum(second) / sum(first))) > math.log1p(floor)
    assert 0.02 < beyond / 2000 < 0.06


def test_one_value_has_no_noise_floor_and_is_its_own_interval() -> None:
    assert noise_floor([5.0], 0.95) is None
    assert noise_floor([5.0, 0.0], 0.95) is None
    assert mean_interval([5.0], 0.95).low == 5.0


def test_pairs_must_be_pairs() -> None:
    with pytest.raises(ValueError, match="at least two pairs"):
        paired_gain([1.0], [1.0], 0.95)


def test_the_score_is_the_formula_and_refuses_an_empty_part() -> None:
    assert throughput(1000, 200, 12.0, 2.0) == 80.0
    with pytest.raises(ValueError, match="empty"):
        throughput(1000, 200, 2.0, 2.0)


def test_the_memory_prior_is_its_table_and_moves_with_what_was_seen() -> None:
    for utilization, probability in OOM_PRIOR:
        assert oom_probability(utilization) == pytest.approx(probability)
    assert oom_probability(0.80) < 0.05
    assert oom_probability(0.97) > 0.43
    assert oom_probability(0.90, ((0.92, False),) * 20) < 0.05
    assert oom_probability(0.90, ((0.88, True),) * 3) > 0.4


def test_a_cache_that_holds_no_whole_request_is_short() -> None:
    model = {"num_hidden_layers": 32, "num_key_value_heads": 8, "hidden_size": 4096, "num_attention_heads": 32}
    engine = EngineDescription(kind="vllm", version="1", platform="cpu", model=model)
    per_token = 2 * 32 * 8 * 128 * 2
    assert kv_bytes_per_token(engine, {}) == per_token
    assert kv_bytes_per_token(engine, {"kv_cache_dtype": "fp8"}) == per_token // 2
    assert kv_bytes_per_token(engine, {"dtype": "float32"}) == per_token * 2
    config = {"max_model_len": 4096, "kv_cache_memory_bytes": per_token * 2048}
    assert kv_shortage(engine, config) == pytest.approx(1.0)
    assert kv_shortage(engine, {**config, "kv_cache_memory_bytes": per_token * 4096}) == 0.0
    assert kv_shortage(engine, {"max_model_len": 4096}) == 0.0
