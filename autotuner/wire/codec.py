"""Values to and from JSON text, directed by their declared types: the format of the journal and of the spool.

Works on frozen dataclasses, text enumerations, scalars, ``tuple``, ``Mapping``, ``None`` and unions of these.  A
dataclass becomes an object with its class name under ``"$"``; only classes that the declared type names are accepted.
A field with a default may be missing (an older program wrote the text), an unknown field is an error (a newer program
wrote it, and dropping it would lose something).  Numbers keep their type; infinities and NaN travel as
``{"$float": "inf"}``.  The text is pure ASCII, so that any database and any string can hold it.
"""

from __future__ import annotations

import json
import math
import operator
import types
import typing
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from autotuner.errors import InternalError
from autotuner.wire.shape import is_enum, is_value_class, item_hint, mapping_hints, problem, shape_of, union_members

__all__ = ["FORMAT", "Codec"]

FORMAT = 1
"""Version of the format; stored beside every text. Raised when a reader of the old format would misread the new."""

_TAG = "$"
_FLOAT = "$float"
_REMEDY = "use the version of the program that wrote it, or a newer one"

T = TypeVar("T")


class Codec(Generic[T]):
    """Converts values of one declared type, such as ``Codec[Event](Event)``."""

    def __init__(self, kind: object) -> None:
        self._kind = kind

    def encode(self, value: T) -> Any:
        """Return *value* as JSON-able data; raise ``InternalError`` when it is not of the declared type."""
        return _encode(self._kind, value, "value")

    def decode(self, data: object) -> T:
        """Return the value in *data*; raise ``InputError`` naming the place that does not fit."""
        return typing.cast("T", _decode(self._kind, data, "value"))

    def dumps(self, value: T) -> str:
        """Return *value* as one line of ASCII JSON."""
        return json.dumps(self.encode(value), separators=(",", ":"), allow_nan=False)

    def loads(self, text: str | bytes) -> T:
        """Return the value in *text*; raise ``InputError`` for anything that ``dumps`` did not write."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise problem("value", text[:40], f"is not JSON ({error})", _REMEDY) from error
        return self.decode(data)


def _encode(hint: object, value: object, path: str) -> Any:
    member = _member_for_value(hint, value)
    if member is None:
        raise InternalError(f"{path}: {type(value).__name__} is not a {_name(hint)}")
    if value is None:
        return None
    if is_value_class(member):
        data = {_TAG: member.__name__}
        for field in shape_of(member):
            data[field.name] = _encode(field.hint, getattr(value, field.name), f"{path}.{field.name}")
        return data
    if is_enum(member):
        return str(value)
    pair = mapping_hints(member)
    if pair is not None:
        items = typing.cast("Mapping[str, object]", value).items()
        return {str(key): _encode(pair[1], item, f"{path}[{key}]") for key, item in items}
    if typing.get_origin(member) is tuple:
        sequence = typing.cast("tuple[object, ...]", value)
        hints = _item_hints(member, len(sequence))
        if hints is None:
            raise InternalError(f"{path}: has {len(sequence)} items, not those of {_name(member)}")
        return [_encode(each, item, f"{path}[{i}]") for i, (each, item) in enumerate(zip(hints, sequence, strict=True))]
    return _encode_scalar(member, value)


def _encode_scalar(member: object, value: Any) -> Any:
    if member is float:
        number = float(value)
        return number if math.isfinite(number) else {_FLOAT: repr(number)}
    if member is int:
        return operator.index(value)
    return bool(value) if member is bool else str(value)


def _member_for_value(hint: object, value: object) -> object | None:
    """Return the union member that *value* belongs to: the exact type first, then a number that can be widened."""
    members = union_members(hint)
    for member in members:
        if _is_exact(member, value):
            return member
    if isinstance(value, bool | str | None):
        return None
    if int in members and hasattr(value, "__index__"):
        return int
    return float if float in members and hasattr(value, "__float__") else None


def _is_exact(member: object, value: object) -> bool:
    if member is types.NoneType:
        return value is None
    if is_value_class(member) or member is bool:
        return type(value) is member
    if is_enum(member):
        return isinstance(value, member)
    if mapping_hints(member) is not None:
        return isinstance(value, Mapping)
    if typing.get_origin(member) is tuple:
        return isinstance(value, tuple)
    return (
        member in (int, float, str) and isinstance(value, typing.cast("type", member)) and not isinstance(value, bool)
    )


def _decode(hint: object, data: object, path: str) -> object:
    members = union_members(hint)
    for member in members:
        if _fits(member, data):
            return _decode_member(member, data, path)
    if float in members and type(data) is int:
        try:
            return float(data)
        except OverflowError as error:
            raise problem(path, "a huge number", "does not fit a float", _REMEDY) from error
    if isinstance(data, dict) and _TAG in data and any(is_value_class(member) for member in members):
        raise problem(path, data[_TAG], f"is not the name of a {_name(hint)}", _REMEDY)
    raise problem(path, data, f"is not a {_name(hint)}", _REMEDY)


def _fits(member: object, data: object) -> bool:
    """Return whether *data* has the JSON type of *member* (and the tag of a class)."""
    if member is types.NoneType:
        return data is None
    if is_value_class(member):
        return isinstance(data, dict) and data.get(_TAG) == member.__name__
    if is_enum(member):
        return isinstance(data, str) and data in member._value2member_map_
    if mapping_hints(member) is not None:
        return isinstance(data, dict)
    if typing.get_origin(member) is tuple:
        return isinstance(data, list)
    if member is float and isinstance(data, dict):
        return data.keys() == {_FLOAT} and data[_FLOAT] in ("inf", "-inf", "nan")
    return type(data) is member


def _decode_member(member: object, data: Any, path: str) -> object:
    if is_value_class(member):
        return _decode_class(member, data, path)
    if is_enum(member):
        return member(data)
    pair = mapping_hints(member)
    if pair is not None:
        return {
            _decode(pair[0], key, f"{path}[{key}]"): _decode(pair[1], item, f"{path}[{key}]")
            for key, item in data.items()
        }
    if typing.get_origin(member) is tuple:
        hints = _item_hints(member, len(data))
        if hints is None:
            raise problem(path, data, f"does not have the items of {_name(member)}", _REMEDY)
        return tuple(
            _decode(each, item, f"{path}[{i}]") for i, (each, item) in enumerate(zip(hints, data, strict=True))
        )
    return float(data[_FLOAT]) if isinstance(data, dict) else data


def _decode_class(kind: type, data: dict[str, object], path: str) -> object:
    arguments: dict[str, object] = {}
    for field in shape_of(kind):
        if field.name in data:
            arguments[field.name] = _decode(field.hint, data[field.name], f"{path}.{field.name}")
        elif field.required:
            raise problem(f"{path}.{field.name}", "", "is missing", _REMEDY)
    unknown = data.keys() - arguments.keys() - {_TAG}
    if unknown:
        raise problem(f"{path}.{min(unknown)}", "", f"is not a field of {kind.__name__}", _REMEDY)
    return kind(**arguments)


def _item_hints(hint: object, length: int) -> tuple[object, ...] | None:
    """Return one type per item of a tuple of *length* items, or ``None`` when the length is wrong."""
    item = item_hint(hint)
    if item is not None:
        return (item,) * length
    hints = typing.get_args(hint)
    return hints if len(hints) == length else None


def _name(hint: object) -> str:
    members = union_members(hint)
    return " or ".join(
        getattr(member, "__name__", str(member)) if isinstance(member, type) else str(member) for member in members
    )
