"""The simulated engine's surface has the documented shape."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotuner_worker.simulator.flags import parse, settings_from
from autotuner_worker.simulator.surface import (
    NoMemory,
    StepLoad,
    SurfaceSettings,
    cost_profile,
    memory_plan,
    oom_probability,
    oom_strikes,
    scheduling_share,
    startup_phases,
    steady_throughput,
    step_cost,
)


def surface(*arguments: str) -> SurfaceSettings:
    return settings_from(parse(["sim-7b", *arguments], {})).surface


def prefill_seconds(settings: SurfaceSettings, prompt: int, chunk: int) -> float:
    profile, done, seconds = cost_profile(settings), 0, 0.0
    while done < prompt:
        tokens = min(chunk, prompt - done)
        load = StepLoad(sequences=1, prefill_tokens=tokens, prefill_attention=tokens * (done + tokens / 2))
        seconds += step_cost(profile, load).total
        done += tokens
    return seconds


def test_throughput_at_the_reported_batches() -> None:
    base = surface()
    assert steady_throughput(base, 8) == pytest.approx(850, rel=0.05)
    assert steady_throughput(base, 32) == pytest.approx(2100, rel=0.05)


def test_knee_between_16_and_32() -> None:
    base = surface()
    gains = [steady_throughput(base, 2 * batch) / steady_throughput(base, batch) for batch in (4, 8, 16, 32)]
    assert gains[0] > 1.9
    assert gains[1] > 1.8
    assert 1.1 < gains[2] < 1.6
    assert gains[3] < 1.0
    assert all(left > right for left, right in pairwise(gains))


def test_batch_has_one_interior_optimum() -> None:
    base = surface()
    curve = [steady_throughput(base, batch) for batch in range(1, 257)]
    best = curve.index(max(curve)) + 1
    assert 30 <= best <= 48
    assert all(left < right for left, right in pairwise(curve[: best - 1]))
    assert curve[-1] < 0.75 * max(curve)


def test_scheduling_share_rises_from_3_to_15_percent() -> None:
    assert scheduling_share(8) == scheduling_share(24) == pytest.approx(0.03)
    assert scheduling_share(48) == pytest.approx(0.15)
    assert scheduling_share(10_000) == 0.5


def test_chunked_prefill_matches_the_reported_times() -> None:
    base = surface()
    assert prefill_seconds(base, 8192, 8192) == pytest.approx(0.320, rel=0.1)
    assert prefill_seconds(base, 8192, 2048) == pytest.approx(0.290, rel=0.1)
    assert prefill_seconds(base, 32768, 32768) == pytest.approx(2.1, rel=0.1)
    assert prefill_seconds(base, 32768, 2048) == pytest.approx(1.25, rel=0.1)


def test_token_budget_has_an_interior_optimum() -> None:
    base = surface()
    times = {chunk: prefill_seconds(base, 16384, chunk) for chunk in (64, 256, 512, 1024, 2048, 8192, 16384)}
    best = min(times, key=times.__getitem__)
    assert 256 <= best <= 2048
    assert times[64] > 2 * times[best]
    assert times[16384] > 1.2 * times[best]


def test_speculation_gains_when_idle_and_loses_when_full() -> None:
    plain = surface()
    ngram = surface("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}')
    assert steady_throughput(ngram, 1) > 1.7 * steady_throughput(plain, 1)
    assert steady_throughput(ngram, 32) < 0.8 * steady_throughput(plain, 32)
    assert steady_throughput(ngram, 1, temperature=1.0) < steady_throughput(ngram, 1, temperature=0.0)


def test_eager_steps_are_slower_and_start_sooner() -> None:
    graphs, eager = surface(), surface("--enforce-eager")
    assert steady_throughput(eager, 16) == pytest.approx(0.85 * steady_throughput(graphs, 16))
    assert sum(startup_phases(eager, False).values()) < 0.5 * sum(startup_phases(graphs, False).values())
    assert sum(startup_phases(graphs, True).values()) < sum(startup_phases(graphs, False).values())


def test_block_size_trades_long_contexts_against_capacity() -> None:
    small, large = surface("--block-size", "16"), surface("--block-size", "128")
    assert steady_throughput(large, 8, context=8000) > 1.1 * steady_throughput(small, 8, context=8000)
    assert memory_plan(large).kv_tokens < 0.95 * memory_plan(small).kv_tokens


def test_formats_change_speed_and_memory() -> None:
    base, wide, narrow = surface(), surface("--dtype", "float32"), surface("--quantization", "awq")
    assert steady_throughput(wide, 4) < 0.6 * steady_throughput(base, 4)
    assert steady_throughput(narrow, 4) > 2.0 * steady_throughput(base, 4)
    assert steady_throughput(narrow, 64) < steady_throughput(base, 64)
    assert memory_plan(surface("--kv-cache-dtype", "fp8")).kv_tokens == pytest.approx(
        2 * memory_plan(base).kv_tokens, rel=0.01
    )


def test_tensor_parallel_helps_the_large_model_fit() -> None:
    alone = settings_from(parse(["sim-70b", "--quantization", "awq", "--max-model-len", "4096"], {})).surface
    with pytest.raises(NoMemory, match=r"out of memory|No available memory"):
        memory_plan(alone)
    four = dataclasses.replace(alone, tensor_parallel_size=4)
    assert memory_plan(four).num_blocks > 0
    assert steady_throughput(four, 8) > 2 * steady_throughput(alone, 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gpu-memory-utilization", "0.30"), "No available memory for the cache blocks"),
        (("--gpu-memory-utilization", "0.42", "--enforce-eager"), "estimated maximum model length is"),
        (("--gpu-memory-utilization", "0.99"), "is less than desired GPU memory utilization"),
        (("--kv-cache-memory-bytes", "30G"), r"torch\.OutOfMemoryError: CUDA out of memory"),
    ],
)
def test_start_fails_over_the_cliff(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(NoMemory, match=message):
        memory_plan(surface(*arguments))


def test_oom_probability_is_the_reported_table() -> None:
    assert [oom_probability(at) for at in (0.5, 0.85, 0.90, 0.95)] == pytest.approx([0.0, 0.05, 0.18, 0.43])


def test_oom_strikes_as_often_as_the_table_says_and_always_alike() -> None:
    hits = [oom_strikes(seed, "config", 0.95) for seed in range(2000)]
    assert sum(hits) / len(hits) == pytest.approx(0.43, abs=0.04)
    assert hits == [oom_strikes(seed, "config", 0.95) for seed in range(2000)]


@given(
    batch=st.integers(1, 512),
    context=st.integers(0, 4000),
    prefill=st.integers(0, 16384),
)
def test_more_work_never_takes_less_time(batch: int, context: int, prefill: int) -> None:
    profile = cost_profile(surface())
    load = StepLoad(
        sequences=batch,
        decode_sequences=batch,
        decode_tokens=batch,
        context_tokens=batch * context,
        prefill_tokens=prefill,
    )
    more = dataclasses.replace(load, decode_tokens=batch + 1, prefill_tokens=prefill + 1, context_tokens=10 * batch + 1)
    if context <= 10:
        assert step_cost(profile, load).total <= step_cost(profile, more).total
    assert step_cost(profile, load).total >= profile.weights
