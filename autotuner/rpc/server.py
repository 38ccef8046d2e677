"""The gRPC server: listens on a unix socket or on loopback, and stops in bounded time."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc

from autotuner.errors import EnvironmentFault
from autotuner.rpc.address import Address, claim_socket, parse_address
from autotuner.rpc.unary import Service, generic_handler
from autotuner.wire.channel import DEFAULT_KEEPALIVE, Keepalive, server_options

__all__ = ["RpcServer"]

_CONCURRENT_CALLS = 512
"""Calls beyond these get RESOURCE_EXHAUSTED at once; every worker holds one and clients a few."""


class RpcServer:
    """Serves *services* at *address* (``unix:/path`` or ``127.0.0.1:PORT``).

    Args:
        address: where to listen; port 0 takes a free one.
        services: what to serve.
        socket_mode: permissions of a unix socket; 0o600 for the user alone, 0o660 to let a group in.
        keepalive: how soon a hung peer is noticed.
        concurrent_calls: calls served at the same time.
    """

    def __init__(
        self,
        address: str,
        services: Sequence[Service],
        *,
        socket_mode: int = 0o600,
        keepalive: Keepalive = DEFAULT_KEEPALIVE,
        concurrent_calls: int = _CONCURRENT_CALLS,
    ) -> None:
        self._address = parse_address(address)
        self._services = tuple(services)
        self._socket_mode = socket_mode
        self._keepalive = keepalive
        self._concurrent_calls = concurrent_calls
        self._server: grpc.aio.Server | None = None

    async def start(self) -> str:
        """Listen and return the address to dial, the real port in it.

        Raises:
            EnvironmentFault: the address is taken or cannot be used.
        """
        server = grpc.aio.server(
            options=server_options(self._keepalive), maximum_concurrent_rpcs=self._concurrent_calls
        )
        server.add_generic_rpc_handlers(tuple(generic_handler(service) for service in self._services))
        bound = _bind(server, self._address, self._socket_mode)
        await server.start()
        self._server = server
        return bound

    async def stop(self, grace: float = 2.0) -> None:
        """Release the waiting calls, give the others *grace* seconds and close; safe to call twice."""
        server, self._server = self._server, None
        if server is None:
            return
        for service in self._services:
            service.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(server.stop(grace), grace + 3.0)
        if self._address.path is not None:
            self._address.path.unlink(missing_ok=True)


def _bind(server: grpc.aio.Server, address: Address, mode: int) -> str:
    if address.path is None:
        port = _listen(server, address.render())
        return address.render(port)
    claim_socket(address.path)
    with _umask(0o777 & ~mode):
        _listen(server, address.render())
    _restrict(address.path, mode)
    return address.render()


def _listen(server: grpc.aio.Server, address: str) -> int:
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise _cannot_listen(address) from error
    if port == 0:
        raise _cannot_listen(address)
    return port


def _restrict(path: Path, mode: int) -> None:
    """Set the permissions of the socket, whatever the umask made of them."""
    try:
        path.chmod(mode)
    except OSError as error:
        raise EnvironmentFault(f"cannot set the permissions of {path}: {error.strerror}") from error


@contextlib.contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def _cannot_listen(address: str) -> EnvironmentFault:
    return EnvironmentFault(
        f"cannot listen on {address}; it is in use, its folder is missing or it is not yours: give another address"
    )
