"""One table between this project's errors and gRPC's status codes, used by both ends.

The class travels beside the status as trailing metadata, because several classes share a code; the problems of an
input error travel too, so that a client shows all of them.  A code without a class comes from gRPC itself (the peer is
away, the deadline passed) and becomes the class that says what the caller must do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast

import grpc

from autotuner.errors import (
    AutotunerError,
    EngineUnavailable,
    EnvironmentFault,
    IllegalTransition,
    InputError,
    InternalError,
    Interrupted,
    Problem,
    ProtocolMismatch,
    Refused,
    SessionUnknown,
    SpaceError,
    StaleLease,
    StorageFault,
    StudyFileError,
)
from autotuner.wire.codec import Codec

__all__ = ["Status", "error_of_call", "is_transient", "restore", "status_of"]

_ERROR_KEY = "autotuner-error"
_PROBLEMS_KEY = "autotuner-problems-bin"
_LONGEST_DETAIL = 1000
"""Characters of a message; headers have a limit and characters outside ASCII take nine bytes in them."""
_LONGEST_PROBLEMS = 4000
"""Bytes of the encoded problems; a longer list is left out and the message alone has to do."""

_PROBLEMS: Codec[tuple[Problem, ...]] = Codec(tuple[Problem, ...])

_CODES: tuple[tuple[type[AutotunerError], grpc.StatusCode], ...] = (
    (StudyFileError, grpc.StatusCode.INVALID_ARGUMENT),
    (SpaceError, grpc.StatusCode.INVALID_ARGUMENT),
    (InputError, grpc.StatusCode.INVALID_ARGUMENT),
    (SessionUnknown, grpc.StatusCode.NOT_FOUND),
    (StaleLease, grpc.StatusCode.FAILED_PRECONDITION),
    (ProtocolMismatch, grpc.StatusCode.FAILED_PRECONDITION),
    (IllegalTransition, grpc.StatusCode.FAILED_PRECONDITION),
    (Refused, grpc.StatusCode.FAILED_PRECONDITION),
    (EngineUnavailable, grpc.StatusCode.UNAVAILABLE),
    (StorageFault, grpc.StatusCode.UNAVAILABLE),
    (EnvironmentFault, grpc.StatusCode.UNAVAILABLE),
    (Interrupted, grpc.StatusCode.CANCELLED),
    (InternalError, grpc.StatusCode.INTERNAL),
    (AutotunerError, grpc.StatusCode.INTERNAL),
)
"""The most special class first: the first that an error is an instance of decides."""

_TRANSIENT = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.ABORTED,
    }
)

_FOREIGN: dict[grpc.StatusCode, Callable[[str], AutotunerError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: lambda text: InputError([_problem(text)]),
    grpc.StatusCode.NOT_FOUND: SessionUnknown,
    grpc.StatusCode.FAILED_PRECONDITION: Refused,
    grpc.StatusCode.PERMISSION_DENIED: Refused,
    grpc.StatusCode.UNAUTHENTICATED: Refused,
    grpc.StatusCode.UNIMPLEMENTED: ProtocolMismatch,
    grpc.StatusCode.UNAVAILABLE: EnvironmentFault,
    grpc.StatusCode.DEADLINE_EXCEEDED: EnvironmentFault,
    grpc.StatusCode.RESOURCE_EXHAUSTED: EnvironmentFault,
    grpc.StatusCode.CANCELLED: EnvironmentFault,
    grpc.StatusCode.ABORTED: EnvironmentFault,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What a server answers instead of a response."""

    code: grpc.StatusCode
    details: str
    metadata: tuple[tuple[str, str | bytes], ...] = ()


def status_of(error: BaseException) -> Status:
    """Return the status for *error*; anything outside the tree is INTERNAL and keeps its text to itself."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return Status(code=code, details=_shorten(str(error)), metadata=_metadata(error, kind))
    return Status(code=grpc.StatusCode.INTERNAL, details="internal error; see the log of the server")


def restore(code: grpc.StatusCode, details: str, metadata: Iterable[tuple[str, str | bytes]] = ()) -> AutotunerError:
    """Return the error that a status stands for; the reverse of ``status_of``."""
    values = dict(metadata)
    named = next((kind for kind, _ in _CODES if kind.__name__ == values.get(_ERROR_KEY)), None)
    if named is None:
        return _FOREIGN.get(code, InternalError)(f"{code.name}: {details}")
    if issubclass(named, InputError):
        return named(_problems(values.get(_PROBLEMS_KEY)) or [_problem(details)])
    if issubclass(named, IllegalTransition):
        return Refused(details)
    return named(details)


def error_of_call(error: grpc.aio.AioRpcError) -> AutotunerError:
    """Return the error that a failed call stands for."""
    metadata = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    return restore(error.code(), error.details() or "", metadata)


def is_transient(code: grpc.StatusCode) -> bool:
    """Return whether the same call may succeed later without anybody changing anything in it."""
    return code in _TRANSIENT


def _metadata(error: AutotunerError, kind: type[AutotunerError]) -> tuple[tuple[str, str | bytes], ...]:
    name = (_ERROR_KEY, kind.__name__)
    if not isinstance(error, InputError):
        return (name,)
    problems = _PROBLEMS.dumps(tuple(error.problems)).encode()
    return (name, (_PROBLEMS_KEY, problems)) if len(problems) <= _LONGEST_PROBLEMS else (name,)


def _problems(encoded: str | bytes | None) -> list[Problem]:
    if encoded is None:
        return []
    try:
        return list(_PROBLEMS.loads(encoded))
    except InputError:
        return []


def _problem(details: str) -> Problem:
    return Problem(field="request", value="", message=details, remedy="correct it and send it again")


def _shorten(text: str) -> str:
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= _LONGEST_DETAIL else text[: _LONGEST_DETAIL - 1] + "…"
