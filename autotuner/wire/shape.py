"""What the declared types of the core's values look like, for the two converters that walk them."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from autotuner.errors import InputError, Problem

__all__ = [
    "FieldShape",
    "is_enum",
    "is_value_class",
    "item_hint",
    "mapping_hints",
    "problem",
    "shape_of",
    "split_optional",
    "union_members",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldShape:
    """One field of a value class."""

    name: str
    hint: object
    """The declared type, resolved."""
    required: bool
    """There is no default."""


def shape_of(kind: type) -> tuple[FieldShape, ...]:
    """Return the fields of the value class *kind* in order."""
    return _shape(typing.cast("Hashable", kind))


@cache
def _shape(kind: Any) -> tuple[FieldShape, ...]:
    hints = typing.get_type_hints(kind)
    return tuple(
        FieldShape(
            name=field.name,
            hint=hints[field.name],
            required=field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
        )
        for field in dataclasses.fields(kind)
    )


def is_value_class(hint: object) -> typing.TypeGuard[type]:
    """Return whether *hint* is a dataclass."""
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


def is_enum(hint: object) -> typing.TypeGuard[type[StrEnum]]:
    """Return whether *hint* is a text enumeration."""
    return isinstance(hint, type) and issubclass(hint, StrEnum)


def union_members(hint: object) -> tuple[object, ...]:
    """Return the members of a union; a tuple of one for any other type."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return typing.get_args(hint)
    return (hint,)


def split_optional(hint: object) -> tuple[tuple[object, ...], bool]:
    """Return the members of *hint* without ``None``, and whether ``None`` was among them."""
    members = union_members(hint)
    rest = tuple(member for member in members if member is not types.NoneType)
    return rest, len(rest) < len(members)


def item_hint(hint: object) -> object | None:
    """Return ``X`` of ``tuple[X, ...]``, else ``None``."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return typing.cast("object", arguments[0])
    return None


def mapping_hints(hint: object) -> tuple[object, object] | None:
    """Return ``(K, V)`` of ``Mapping[K, V]``, else ``None``."""
    if typing.get_origin(hint) is not Mapping:
        return None
    key, value = typing.get_args(hint)
    return key, value


def problem(path: str, value: object, message: str, remedy: str) -> InputError:
    """Return the error that says what is wrong at *path*."""
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return InputError([Problem(field=path, value=shown, message=message, remedy=remedy)])
