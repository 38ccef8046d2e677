"""Random values of the core's classes, made from their declared types and the protocol's ranges."""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from hypothesis import strategies as st

from autotuner.core.space import Config, Value
from autotuner.core.trial import Interval, Launch, LoadCheck, Measurement, Outcome, OutcomeClass
from autotuner.wire.shape import is_enum, is_value_class, item_hint, mapping_hints, shape_of, split_optional

T = TypeVar("T")

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
IDENTIFIERS = st.text("abcXYZ019-_.é", min_size=1, max_size=12)
WHOLE = st.integers(0, 2**63 - 1)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
AMOUNTS = st.floats(0, allow_nan=False, allow_infinity=False)
VALUES: st.SearchStrategy[Value] = st.booleans() | st.integers(-(2**63), 2**63 - 1) | FINITE | TEXT
CONFIGS: st.SearchStrategy[Config] = st.dictionaries(TEXT, VALUES, max_size=3)

_SIGNED = {(Interval, "value"), (LoadCheck, "late_p99")}


@cache
def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Return valid values of the class *kind*."""
    if kind is Outcome:
        return st.builds(_outcome, _plain(Outcome), values_of(Measurement))
    return _plain(kind)


def _plain(kind: type[T]) -> st.SearchStrategy[T]:
    return st.builds(kind, **{field.name: _field(kind, field.name, field.hint) for field in shape_of(kind)})


def _outcome(outcome: Outcome, measurement: Measurement) -> Outcome:
    data = {field.name: getattr(outcome, field.name) for field in shape_of(Outcome)}
    return Outcome(**{**data, "measurement": measurement if outcome.outcome is OutcomeClass.COMPLETE else None})


def _field(kind: type, name: str, hint: object) -> st.SearchStrategy[Any]:
    members, optional = split_optional(hint)
    strategy = _member(kind, name, members[0] if len(members) == 1 else typing.Union[members])  # noqa: UP007
    return st.none() | strategy if optional else strategy


def _member(kind: type, name: str, hint: Any) -> st.SearchStrategy[Any]:
    item, pair = item_hint(hint), mapping_hints(hint)
    if hint == Config:
        return CONFIGS
    if pair is not None:
        return _mapping(kind, name, pair)
    if item is not None:
        return st.lists(_item(item), max_size=3).map(tuple)
    if typing.get_origin(hint) is tuple:
        return st.tuples(*(_item(each) for each in typing.get_args(hint)))
    if hint is float:
        return _number(kind, name)
    return _item(hint) if hint is not str or not name.endswith("_id") or kind is Launch else IDENTIFIERS


def _number(kind: type, name: str) -> st.SearchStrategy[float]:
    if kind is Interval and name in ("low", "high"):
        return FINITE | st.sampled_from([math.inf, -math.inf])
    if name == "percentile":
        return st.floats(0, 100)
    return FINITE if (kind, name) in _SIGNED else AMOUNTS


def _mapping(kind: type, name: str, pair: tuple[object, object]) -> st.SearchStrategy[Mapping[Any, Any]]:
    entries = AMOUNTS if (kind, name) == (Launch, "phases") else _item(pair[1])
    return st.dictionaries(TEXT, entries, max_size=3)


def _item(hint: Any) -> st.SearchStrategy[Any]:
    if is_value_class(hint):
        return values_of(hint)
    if is_enum(hint):
        return st.sampled_from(list(hint))
    members, optional = split_optional(hint)
    if optional or len(members) > 1:
        return st.one_of(*(_item(member) for member in members), *([st.none()] if optional else []))
    scalars: dict[Any, st.SearchStrategy[Any]] = {bool: st.booleans(), int: WHOLE, float: FINITE, str: TEXT}
    return scalars[hint] if hint in scalars else _member(object, "", hint)
