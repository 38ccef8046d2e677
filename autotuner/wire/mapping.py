"""Values to and from protocol messages, field by field: a field of a value travels in the message field of its name.

Directed by the declared types, so that a field added to a value and to its message needs no code here, and one that was
added to one side only fails (a test compares them).  The same checks hold in both directions: numbers are finite and
not negative, identifiers are there and printable, enumerations are known, required parts are present.  The first
breach raises ``InputError`` naming the field, such as ``outcome.measurement.latency[ttft_p99].low``.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from google.protobuf.message import Message

from autotuner.core.space import Value
from autotuner.core.trial import Interval, LoadCheck
from autotuner.v1 import common_pb2, worker_pb2
from autotuner.wire.shape import is_enum, is_value_class, item_hint, mapping_hints, problem, shape_of, split_optional

__all__ = ["build", "fill"]

T = TypeVar("T")

_IDENTIFIERS = frozenset({"worker_id", "instance_id", "session_id", "study_id"})
_IDENTIFIER_LENGTH = 200
_MAY_BE_INFINITE = frozenset({(Interval, "low"), (Interval, "high")})
"""An interval may be open."""
_MAY_BE_NEGATIVE = _MAY_BE_INFINITE | {(Interval, "value"), (LoadCheck, "late_p99")}
_LARGEST = {"percentile": 100.0}
_INT64 = 2**63
_REMEDY = "give the field the type and the range that the protocol states"


def fill(message: Message, value: object, path: str) -> None:
    """Write the value class instance *value* into the empty *message*."""
    kind = type(value)
    for field in shape_of(kind):
        _fill_field(message, kind, field.name, field.hint, getattr(value, field.name), f"{path}.{field.name}")


def build(kind: type[T], message: Message, path: str) -> T:
    """Return the instance of the value class *kind* that *message* holds."""
    return kind(
        **{
            field.name: _build_field(message, kind, field.name, field.hint, f"{path}.{field.name}")
            for field in shape_of(kind)
        }
    )


def _fill_field(message: Any, kind: type, name: str, hint: object, value: Any, path: str) -> None:
    members, optional = split_optional(hint)
    if value is None:
        if not optional:
            raise problem(path, "", "is missing", _REMEDY)
        return
    member = members[0]
    special = _SPECIAL.get(_message_name(message, name))
    item, pair = item_hint(member), mapping_hints(member)
    if special is not None:
        special[0](getattr(message, name), value, path)
    elif item is not None:
        target = getattr(message, name)
        for index, each in enumerate(value):
            if is_value_class(item):
                fill(target.add(), each, f"{path}[{index}]")
            else:
                target.append(_checked(kind, name, item, each, f"{path}[{index}]", signed=True))
    elif pair is not None:
        target = getattr(message, name)
        for key, each in value.items():
            place = f"{path}[{key}]"
            if is_value_class(pair[1]):
                fill(target[_clean(str(key))], each, place)
            else:
                target[_clean(str(key))] = _checked(kind, name, pair[1], each, place, signed=True)
    elif is_value_class(member):
        getattr(message, name).SetInParent()
        fill(getattr(message, name), value, path)
    else:
        setattr(message, name, _checked(kind, name, member, value, path))


def _build_field(message: Any, kind: type, name: str, hint: object, path: str) -> Any:
    members, optional = split_optional(hint)
    member = members[0]
    special = _SPECIAL.get(_message_name(message, name))
    item, pair = item_hint(member), mapping_hints(member)
    raw = getattr(message, name)
    if special is not None:
        return special[1](raw, path)
    if item is not None:
        return tuple(
            build(item, each, f"{path}[{i}]")
            if is_value_class(item)
            else _parsed(kind, name, item, each, f"{path}[{i}]", signed=True)
            for i, each in enumerate(raw)
        )
    if pair is not None:
        entries = pair[1]
        if is_value_class(entries):
            return {key: build(entries, each, f"{path}[{key}]") for key, each in raw.items()}
        return {key: _checked(kind, name, entries, each, f"{path}[{key}]", signed=True) for key, each in raw.items()}
    if (optional or is_value_class(member)) and not message.HasField(name):
        if not optional:
            raise problem(path, "", "is missing", _REMEDY)
        return None
    return build(member, raw, path) if is_value_class(member) else _parsed(kind, name, member, raw, path)


def _parsed(kind: type, name: str, hint: object, raw: Any, path: str, *, signed: bool = False) -> Any:
    checked = _checked(kind, name, hint, raw, path, signed=signed)
    return hint(checked) if is_enum(hint) else checked


def _checked(kind: type, name: str, hint: object, value: Any, path: str, *, signed: bool = False) -> Any:
    """Return the scalar *value* as the wire's type after checking it; *signed* lifts the sign rule."""
    signed = signed or (kind, name) in _MAY_BE_NEGATIVE
    if is_enum(hint):
        if value not in hint._value2member_map_:
            raise problem(path, value, "is not known", f"give one of {', '.join(hint)}")
        return str(value)
    if hint is bool:
        return bool(value)
    if hint is int:
        number = operator.index(value)
        if not (-_INT64 <= number < _INT64) or (number < 0 and not signed):
            raise problem(path, number, "is out of range", _REMEDY)
        return number
    if hint is float:
        return _checked_float(kind, name, float(value), path, signed)
    text = _clean(value)
    if name in _IDENTIFIERS and not (0 < len(text) <= _IDENTIFIER_LENGTH and text.isprintable()):
        raise problem(path, text, "is not an identifier", f"give 1 to {_IDENTIFIER_LENGTH} printable characters")
    return text


def _checked_float(kind: type, name: str, number: float, path: str, signed: bool) -> float:
    if math.isnan(number) or (math.isinf(number) and (kind, name) not in _MAY_BE_INFINITE):
        raise problem(path, number, "is not a finite number", _REMEDY)
    if (number < 0 and not signed) or number > _LARGEST.get(name, math.inf):
        raise problem(path, number, "is out of range", _REMEDY)
    return number


def _clean(text: str) -> str:
    """Return *text* with the lone surrogates that undecodable output leaves behind spelled out: UTF-8 cannot hold them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text


def _message_name(message: Message, name: str) -> str:
    """Return the full name of the message type of a field, or an empty text for a scalar."""
    kind = message.DESCRIPTOR.fields_by_name[name].message_type
    return "" if kind is None else kind.full_name


def _fill_config(target: common_pb2.Config, config: Mapping[str, Value], path: str) -> None:
    target.SetInParent()
    for name, value in config.items():
        place, entry = f"{path}[{name}]", target.values[_clean(name)]
        if isinstance(value, bool):
            entry.flag = value
        elif isinstance(value, int):
            entry.integer = _checked(dict, "", int, value, place, signed=True)
        elif isinstance(value, float):
            entry.number = _checked(dict, "", float, value, place, signed=True)
        elif isinstance(value, str):
            entry.text = _clean(value)
        else:
            raise problem(place, value, "is not a scalar", "give a flag, an integer, a number or a text")


def _build_config(source: common_pb2.Config, path: str) -> dict[str, Value]:
    config: dict[str, Value] = {}
    for name, entry in source.values.items():
        kind = entry.WhichOneof("kind")
        if kind is None:
            raise problem(f"{path}[{name}]", "", "has no value", "give a flag, an integer, a number or a text")
        value = getattr(entry, kind)
        config[name] = _checked(dict, "", float, value, f"{path}[{name}]", signed=True) if kind == "number" else value
    return config


def _fill_phases(target: Any, phases: Mapping[str, float], path: str) -> None:
    for name, seconds in phases.items():
        target.add(name=_clean(name), seconds=_checked(dict, "", float, seconds, f"{path}[{name}]"))


def _build_phases(source: Any, path: str) -> dict[str, float]:
    phases: dict[str, float] = {}
    for phase in source:
        if phase.name in phases:
            raise problem(f"{path}[{phase.name}]", phase.seconds, "is given twice", "name each phase once")
        phases[phase.name] = _checked(dict, "", float, phase.seconds, f"{path}[{phase.name}]")
    return phases


_SPECIAL: dict[str, tuple[Callable[[Any, Any, str], None], Callable[[Any, str], Any]]] = {
    common_pb2.Config.DESCRIPTOR.full_name: (_fill_config, _build_config),
    worker_pb2.Phase.DESCRIPTOR.full_name: (_fill_phases, _build_phases),
}
"""Message type → how it is written and read, where it does not mirror a value class: the values' types need a oneof,
and phases keep their order."""
