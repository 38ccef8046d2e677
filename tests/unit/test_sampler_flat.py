"""The flat space: every point lies in the domains, repairs hold, caps and conditions are respected."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotuner.core.space import CrossRule, Lever, Parameter, ParameterKind, Space, Value
from autotuner.search.flat import FlatSpace, Frame, levels, snap
from tests.conformance.sampler import mixed_spec

INT, FLOAT, CHOICE = ParameterKind.INT, ParameterKind.FLOAT, ParameterKind.CHOICE
SEQS = Parameter(name="seqs", kind=CHOICE, choices=(16, 32, 64, 128), lever=Lever.HOT)
TOKENS = Parameter(name="tokens", kind=INT, low=30, high=100, step=20, lever=Lever.HOT)
SHARE = Parameter(name="share", kind=FLOAT, low=0.5, high=0.95, step=0.1)
WIDE = Parameter(name="wide", kind=INT, low=1, high=1000, log=True)
SEEDS = st.integers(0, 10_000)


def _flat(*parameters: Parameter, rules: tuple[CrossRule, ...] = ()) -> FlatSpace:
    return FlatSpace.of(replace(mixed_spec(), space=Space(parameters=parameters, rules=rules)))


def _rule(left: str, relation: str, right: str | float) -> CrossRule:
    return CrossRule(left=left, relation=relation, right=right, reason=f"{left} {relation} {right}")


@pytest.mark.parametrize(
    ("parameter", "value", "member"),
    [
        (SEQS, 32, 32),
        (SEQS, 50, 64),
        (SEQS, "many", 16),
        (SEQS, None, 16),
        (TOKENS, 100, 90),
        (TOKENS, 12, 30),
        (TOKENS, None, 30),
        (TOKENS, True, 30),
        (SHARE, 0.7000000000000002, 0.7),
        (SHARE, 0.95, 0.9),
        (WIDE, 5000, 1000),
        (Parameter(name="b", kind=CHOICE, choices=(True, False)), False, False),
    ],
)
def test_snapping(parameter: Parameter, value: Value | None, member: Value) -> None:
    assert snap(parameter, value) == member
    assert parameter.contains(snap(parameter, value))


def test_levels_spread_on_the_scale_of_the_parameter() -> None:
    assert levels(SEQS, 2) == SEQS.choices
    assert levels(TOKENS, 10) == (30, 50, 70, 90)
    assert levels(WIDE, 4) == (1, 10, 100, 1000)
    assert levels(SHARE, 3) == (0.5, 0.7, 0.9)
    assert levels(WIDE, 1) == (1,)
    assert levels(Parameter(name="one", kind=INT, low=3, high=3), 5) == (3,)


@given(SEEDS)
@settings(max_examples=60, deadline=None)
def test_random_points_and_their_neighbours_are_repaired_into_the_space(seed: int) -> None:
    spec, rng = mixed_spec(), random.Random(seed)
    flat = FlatSpace.of(spec)
    for frame in (
        Frame(),
        Frame(fixed={"block_size": 32}, ceiling={"max_num_seqs": 100, "max_num_batched_tokens": 256}),
    ):
        point = flat.neighbour(flat.random_point(frame, rng), frame, rng)
        repaired = flat.repair(point, frame)
        assert repaired is not None
        assert flat.within_caps(repaired, frame)
        config = flat.configuration(repaired, frame)
        assert flat.problem(config) == ""
        assert flat.repair(repaired, frame) == repaired
        if not frame.in_launch:
            assert flat.configuration(flat.flatten(config), frame) == config


@pytest.mark.parametrize(
    ("rules", "point", "frame", "mended"),
    [
        ((_rule("seqs", "<=", "tokens"),), {"seqs": 128, "tokens": 50}, Frame(), {"seqs": 32, "tokens": 50}),
        ((_rule("seqs", ">=", "tokens"),), {"seqs": 16, "tokens": 50}, Frame(), {"seqs": 64, "tokens": 50}),
        ((_rule("tokens", ">=", "seqs"),), {"seqs": 64, "tokens": 30}, Frame(), {"seqs": 64, "tokens": 70}),
        ((_rule("tokens", ">=", "seqs"),), {"seqs": 128, "tokens": 30}, Frame(), {"seqs": 16, "tokens": 30}),
        ((_rule("tokens", "<=", 55.0),), {"seqs": 16, "tokens": 90}, Frame(), {"seqs": 16, "tokens": 50}),
        ((_rule("tokens", "<=", 20.0),), {"seqs": 16, "tokens": 90}, Frame(), None),
        (
            (_rule("tokens", ">=", "seqs"),),
            {"seqs": 64, "tokens": 30},
            Frame(ceiling={"seqs": 64, "tokens": 50}),
            {"seqs": 16, "tokens": 30},
        ),
        (
            (_rule("tokens", ">=", "seqs"),),
            {"seqs": 64, "tokens": 30},
            Frame(fixed={"seqs": 64}, ceiling={"tokens": 50}),
            None,
        ),
    ],
)
def test_repairs(
    rules: tuple[CrossRule, ...], point: dict[str, Value], frame: Frame, mended: dict[str, Value] | None
) -> None:
    assert _flat(SEQS, TOKENS, rules=rules).repair(point, frame) == mended


def test_values_above_their_cap_are_drawn_again() -> None:
    flat, frame = _flat(SEQS, TOKENS), Frame(ceiling={"seqs": 40, "tokens": 69})
    for seed in range(30):
        lowered = flat.lower({"seqs": 128, "tokens": 90}, frame, random.Random(seed))
        assert lowered["seqs"] in (16, 32)
        assert lowered["tokens"] in (30, 50)
    assert flat.lower({"seqs": 16, "tokens": 30}, frame, random.Random(1)) == {"seqs": 16, "tokens": 30}


def test_a_hot_parameter_without_any_member_below_its_cap_stays_where_it_is() -> None:
    flat = _flat(SEQS, TOKENS)
    frame = Frame(ceiling={"seqs": 8, "tokens": 20})
    assert flat.free(frame) == ()
    assert flat.size(frame) == 1


def test_sizes_and_points_agree() -> None:
    flat = _flat(SEQS, TOKENS, Parameter(name="eager", kind=CHOICE, choices=(True, False)))
    assert flat.size(Frame()) == 4 * 4 * 2 == len(list(flat.points(Frame())))
    inside = Frame(fixed={"eager": True}, ceiling={"seqs": 64, "tokens": 90})
    assert flat.size(inside) == 3 * 4 == len(list(flat.points(inside)))
    assert _flat(Parameter(name="x", kind=FLOAT, low=0, high=1)).size(Frame()) is None


def test_a_parameter_under_an_inactive_parent_is_inactive() -> None:
    spec = mixed_spec()
    flat = FlatSpace.of(spec)
    assert flat.active({"speculative_config.num_speculative_tokens": 4}) == {}
    point = flat.flatten({"speculative_config.num_speculative_tokens": 4})
    assert point["speculative_config.num_speculative_tokens"] == 1
    assert point["max_num_seqs"] == 128
    assert point["block_size"] == 16


def test_keys_ignore_what_makes_no_difference() -> None:
    flat = FlatSpace.of(mixed_spec())
    assert flat.key({}) == flat.key({"max_num_seqs": 128, "dtype": "float16", "block_size": 16})
    assert flat.key({}) != flat.key({"max_num_seqs": 127})
    assert flat.key({"dtype": "bfloat16"}) != flat.key({})


def test_problems_are_named() -> None:
    flat = FlatSpace.of(mixed_spec())
    assert flat.problem({"max_num_seqs": 9999}) == "max_num_seqs = 9999 is outside of its domain"
    assert flat.problem({"swap_space": 4}) == "swap_space is not searched"
    assert "must not be below" in flat.problem({"max_num_seqs": 256, "max_num_batched_tokens": 128})
