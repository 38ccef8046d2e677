"""Expert seeds: complete, allowed, new, and right for the situation."""

from __future__ import annotations

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from autotuner.core.seeds import complete, effective_baseline, expert_seeds, seed_limit
from autotuner.core.space import (
    Condition,
    CrossRule,
    EngineDescription,
    Parameter,
    ParameterKind,
    Space,
    Value,
    config_key,
)
from autotuner.core.study import Hardware, StudySpec
from autotuner.core.workload import Lengths, SharedPrefix, Workload
from tests.unit.settings_samples import A100, build, cuda_description

ENGINE = EngineDescription(kind="vllm", version="1", platform="cuda", context_defaults={"max_num_seqs": 256})


def seeds_of(text: str, hardware: Hardware = A100) -> dict[str, dict[str, Value]]:
    return dict(expert_seeds(build(text, cuda_description(large=False), hardware).spec))


def test_compute_units_times_one_and_a_half() -> None:
    text = "workload: {concurrency: 300}\nsearch: {space: {max_num_seqs: {low: 8, high: 512}}}"

    assert seeds_of(text)["compute units × 1.5"]["max_num_seqs"] == 162


def test_seeds_follow_the_clients() -> None:
    seeds = seeds_of("workload: {concurrency: 24}\nsearch: {space: {max_num_seqs: {low: 1, high: 64}}}")

    found = {name: seed["max_num_seqs"] for name, seed in seeds.items() if "clients" in name}
    assert found == {
        "as many sequences as clients": 24,
        "half as many sequences as clients": 12,
        "twice as many sequences as clients": 48,
    }


def test_block_size_follows_the_context() -> None:
    for length, expected in ((32768, 64), (65536, 64), (131072, 128)):
        seeds = seeds_of(
            f"engine: {{args: {{max_model_len: {length}}}}}\nsearch: {{space: {{block_size: [16, 32, 64, 128]}}}}"
        )
        assert seeds["block size for long contexts"]["block_size"] == expected


def test_prefix_seed_only_for_shared_prefixes() -> None:
    assert "prefix caching in small blocks" not in seeds_of("")
    shared = seeds_of(
        "workload: {shared_prefix: {tokens: 64}}\nsearch: {space: {enable_prefix_caching: [false, true]}}"
    )
    assert shared["prefix caching in small blocks"]["enable_prefix_caching"] is True


def test_speculation_seed_at_low_concurrency() -> None:
    assert seeds_of("workload: {concurrency: 2}")["speculation by ngram"]["speculative_config.method"] == "ngram"
    many = "workload: {concurrency: 200}\nsearch: {space: {include: [speculative_config.method]}}"
    assert not [name for name in seeds_of(many) if name.startswith("speculation")]


def test_token_latency_limits_put_the_small_budget_first() -> None:
    text = "workload: {concurrency: 400}"
    limited = seeds_of(f"{text}\nlatency: {{limits: {{itl_p99: 50 ms}}}}")
    free = seeds_of(text)

    assert list(limited).index("small token budget") < list(limited).index("compute units × 1.5")
    assert list(free).index("small token budget") > list(free).index("latency profile")


def test_effective_baseline_adds_defaults_below_what_is_set() -> None:
    spec = build(
        "engine: {args: {max_model_len: 1024}}\nbaseline: {max_num_seqs: 8}\n"
        "search: {space: {include: [quantization, kv_cache_dtype]}}"
    ).spec

    known = effective_baseline(spec)

    assert known["max_num_seqs"] == 8
    assert known["max_num_batched_tokens"] == 2048
    assert known["max_model_len"] == 1024
    assert known["enforce_eager"] is False
    assert known["quantization"] == "none"
    assert known["kv_cache_dtype"] == "auto"
    assert "quantization" not in spec.space.full(known)


def test_defaults_of_the_engine_never_contradict_each_other() -> None:
    assert effective_baseline(build("baseline: {max_num_batched_tokens: 32}").spec)["max_num_seqs"] == 32
    small = build("engine: {args: {max_model_len: 256}}\nbaseline: {max_num_seqs: 2}").spec
    assert effective_baseline(small)["max_num_batched_tokens"] == 512


def test_user_seeds_come_first_and_are_completed() -> None:
    spec = build("seeds: [{max_num_seqs: 5}]").spec

    assert spec.labels["seed.0"] == "user 1"
    assert spec.seeds[0]["max_num_seqs"] == 5
    assert set(spec.seeds[0]) == {parameter.name for parameter in spec.space}


def test_a_space_that_no_idea_fits_has_no_seeds() -> None:
    space = Space(parameters=(Parameter(name="other", kind=ParameterKind.CHOICE, choices=("a", "b")),))

    assert expert_seeds(StudySpec(name="s", model="m", engine=ENGINE, space=space)) == ()


def test_seed_limit_leaves_room() -> None:
    assert [seed_limit(trials) for trials in (1, 4, 10, 40)] == [2, 2, 5, 8]


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    """Return a space over some of the known parameters, conditions and rules included."""
    parameters = []
    for name in draw(st.sets(st.sampled_from(["max_num_seqs", "max_num_batched_tokens", "block_size"]), max_size=3)):
        low = draw(st.integers(1, 300))
        high = low + draw(st.integers(0, 9000))
        log = draw(st.booleans())
        step = None if log else draw(st.sampled_from([None, 1, 7, 64]))
        parameters.append(Parameter(name=name, kind=ParameterKind.INT, low=low, high=high, log=log, step=step))
    if draw(st.booleans()):
        method = "speculative_config.method"
        parameters += [
            Parameter(name=method, kind=ParameterKind.CHOICE, choices=("none", "ngram"), absent="none"),
            Parameter(
                name="speculative_config.num_speculative_tokens",
                kind=ParameterKind.INT,
                low=1,
                high=draw(st.integers(1, 8)),
                condition=Condition(parameter=method, values=("ngram",)),
                neutral=1,
            ),
        ]
    rule = CrossRule(
        left="max_num_batched_tokens", relation=">=", right="max_num_seqs", reason="budget below sequences"
    )
    return Space(parameters=tuple(parameters), rules=(rule,))


@settings(max_examples=40)
@given(spaces(), st.integers(0, 4096), st.integers(0, 200), st.integers(0, 100))
def test_seeds_are_complete_allowed_and_new_in_any_space(space: Space, clients: int, units: int, prefix: int) -> None:
    spec = StudySpec(
        name="s",
        model="m",
        engine=ENGINE,
        hardware=Hardware(device="cuda", compute_units=units, count=2),
        workload=Workload(
            concurrency=clients, input_tokens=Lengths(mean=2048.0), shared_prefix=SharedPrefix(tokens=prefix)
        ),
        space=space,
    )

    seeds = [config for _, config in expert_seeds(spec)]

    assert len({config_key(config) for config in seeds}) == len(seeds)
    for config in seeds:
        assert space.violations(config) == {}
        assert config == space.active(config)
        for parameter in space:
            if parameter.condition is None or parameter.condition.holds(config):
                assert parameter.contains(config[parameter.name])
    assert expert_seeds(spec, limit=1) == expert_seeds(spec)[:1]


@given(spaces())
def test_completion_is_idempotent(space: Space) -> None:
    once = complete(space, {}, {})

    assert complete(space, once, {}) == once


def test_factors_multiply_and_count_one_when_unset() -> None:
    rule = CrossRule(left="a", factors=("b",), relation="<=", right=8.0, reason="too many")

    assert rule.violation({}) == 0.0
    assert rule.violation({"a": 4, "b": 4}) == 1.0
    assert dataclasses.replace(rule, relation=">=").violation({"b": 4}) == 0.5
