"""One way to serve a call: parse, answer, and turn every error into a status, in one place.

Requests are parsed here and not by gRPC, so that bytes that are no message get INVALID_ARGUMENT like any other bad
input.  A failed call is always ended with ``context.abort``; nothing is ever set and carried on with.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from autotuner.errors import AutotunerError, InputError, InternalError, Problem
from autotuner.wire.status import status_of

__all__ = ["CallContext", "Handler", "Service", "generic_handler", "unary"]

_LOG = logging.getLogger(__name__)

Request = TypeVar("Request", bound=Message)


class CallContext(Protocol):
    """The part of gRPC's context that a handler may use."""

    def time_remaining(self) -> float | None:
        """Return the seconds until the caller's deadline; ``None`` without one."""
        ...


Handler = Callable[[bytes, Any], Awaitable[bytes]]


class Service(Protocol):
    """A service that a server can carry."""

    @property
    def full_name(self) -> str:
        """Package and name, such as ``autotuner.v1.WorkerService``."""
        ...

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handler of each method."""
        ...

    def close(self) -> None:
        """Let go of the calls that wait: the server is about to stop."""
        ...


def unary(request_kind: type[Request], answer: Callable[[Request, CallContext], Awaitable[Message]]) -> Handler:
    """Return the handler that parses *request_kind* and serialises what *answer* returns."""

    async def handle(data: bytes, context: Any) -> bytes:
        try:
            response = await answer(_parse(request_kind, data), context)
            return response.SerializeToString()
        except AutotunerError as error:
            if isinstance(error, InternalError):
                _LOG.exception("%s failed", request_kind.__name__)
            failure: Exception = error
        except Exception as error:  # noqa: BLE001  a defect in one call must not take the server with it; it is logged
            _LOG.exception("%s failed", request_kind.__name__)
            failure = error
        status = status_of(failure)
        await context.abort(status.code, status.details, status.metadata)
        raise AssertionError("abort does not return")

    return handle


def generic_handler(service: Service) -> grpc.GenericRpcHandler[bytes, bytes]:
    """Return *service* as gRPC takes it: bytes in, bytes out."""
    methods = {name: grpc.unary_unary_rpc_method_handler(handler) for name, handler in service.handlers().items()}
    return grpc.method_handlers_generic_handler(service.full_name, methods)


def _parse(kind: type[Request], data: bytes) -> Request:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        trouble = Problem(
            field=kind.__name__,
            value=f"{len(data)} bytes",
            message="is not such a message",
            remedy="use a client of the same protocol version",
        )
        raise InputError([trouble]) from error
