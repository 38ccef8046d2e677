"""Loopback ports that stay ours from the reservation until the engine listens."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Self

__all__ = ["PortLease", "port_is_free", "reserve_port"]


class PortLease:
    """A port of 127.0.0.1 that is bound and not listening: the kernel gives it to nobody who asks for any port.

    A server that sets ``SO_REUSEADDR`` or ``SO_REUSEPORT`` before it binds (uvicorn, aiohttp, vLLM do) can bind and listen
    while the lease is held, so the lease may be kept until the engine is ready and there is no gap.  For one that
    sets neither, call ``close`` just before the start.
    """

    def __init__(self, bound: socket.socket) -> None:
        self._socket = bound
        self.port: int = bound.getsockname()[1]

    def close(self) -> None:
        """Give the port up; may be called twice."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def reserve_port(host: str = "127.0.0.1") -> PortLease:
    """Reserve a free port of *host*; raise ``OSError`` when there is none."""
    bound = socket.socket()
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((host, 0))
    except OSError:
        bound.close()
        raise
    return PortLease(bound)


def port_is_free(host: str, port: int) -> bool:
    """Return whether nobody listens on the port any more; connections that are only fading out do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
