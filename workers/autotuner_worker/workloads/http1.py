"""A minimal HTTP/1.1 client for streamed completions, as asyncio protocols.

Written for one purpose, because a general client costs more than the engine's own work per token: there is no task and
no future per chunk, and every chunk is stamped when the socket hands it over, not when a task gets its turn.  It speaks
plain ``http`` with keep-alive, and understands bodies that are chunked, of known length, or ended by closing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import cast
from urllib.parse import urlsplit

from autotuner_worker.workloads.sse import Answer

__all__ = ["Call", "Endpoint", "Pool", "Tally"]

_LARGEST_HEAD = 65_536
_LARGEST_ERROR_BODY = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where requests go."""

    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, base_url: str, path: str = "/v1/completions") -> Endpoint:
        """Return the endpoint of *path* below *base_url*. Raise ``ValueError`` for anything but plain http."""
        parts = urlsplit(base_url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"{base_url!r} is not an http:// address")
        return cls(host=parts.hostname, port=parts.port or 80, path=parts.path.rstrip("/") + path)


@dataclass(slots=True)
class Tally:
    """What all calls of a process have received so far."""

    chunks: int = 0
    last_chunk: float = 0.0
    """Monotonic time of the latest content chunk; 0.0 before the first."""


class Call:
    """One request and what came back. Mutable until its future is done."""

    __slots__ = ("answer", "content_type", "ended", "error_body", "failure", "finished", "http_status", "sent")

    def __init__(self) -> None:
        self.answer = Answer()
        self.sent = 0.0
        """Monotonic time just before the request was handed to the socket."""
        self.ended = 0.0
        self.http_status = 0
        self.content_type = ""
        self.error_body = b""
        """Body of an answer that is no event stream, up to 64 KiB."""
        self.failure = ""
        """Why the transport failed; empty when the response was complete."""
        self.finished = False

    @property
    def is_stream(self) -> bool:
        """Whether the body is an event stream of a successful answer."""
        return self.http_status == 200 and self.content_type.startswith("text/event-stream")


class _State(Enum):
    HEAD = 0
    SIZE = 1
    """Before the size line of a chunk."""
    DATA = 2
    """Inside a chunk, or inside a body of known length."""
    CLOSE = 3
    """The body ends with the connection."""
    TRAILER = 4


class Connection(asyncio.Protocol):
    """One connection; one request at a time."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._transport: asyncio.Transport | None = None
        self._call: Call | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._buffer = b""
        self._state = _State.HEAD
        self._left = 0
        self._chunked = False
        self._stream = False
        self.keep_alive = True
        self.touched = False
        """A byte of the present answer has arrived."""

    @property
    def open(self) -> bool:
        """Whether another request can be sent."""
        return self._transport is not None and not self._transport.is_closing() and self.keep_alive

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def start(self, call: Call, request: bytes) -> asyncio.Future[None]:
        """Send *request*; the future is done when the answer is over, however it ended."""
        assert self._transport is not None and self._call is None
        self._call, self._state, self._buffer, self.touched = call, _State.HEAD, b"", False
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._waiter

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Decode what has arrived."""
        now = time.monotonic()
        self.touched = True
        if self._call is None:
            self.keep_alive = False  # The server speaks out of turn.
            self.abort()
            return
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        try:
            self._advance(data, now)
        except ValueError as error:
            self._finish(f"not a valid HTTP response ({error})")
            self.abort()

    def _advance(self, data: bytes, now: float) -> None:
        position, end = 0, len(data)
        if self._state is _State.SIZE:
            # The usual case first: one read holds exactly one chunk.
            stop = data.find(b"\r\n")
            if stop > 0:
                size = int(data[:stop].split(b";", 1)[0], 16)
                if size and end == stop + size + 4:
                    self._deliver(data[stop + 2 : -2], now)
                    return
        while position < end and self._call is not None:
            if self._state is _State.DATA:
                take = min(self._left, end - position)
                self._body(data[position : position + take], now)
                position += take
            elif self._state is _State.CLOSE:
                self._deliver(data[position:], now)
                return
            else:
                mark = b"\r\n\r\n" if self._state is _State.HEAD else b"\r\n"
                stop = data.find(mark, position)
                if stop < 0:
                    if end - position > _LARGEST_HEAD:
                        raise ValueError("endless header")
                    self._buffer = data[position:]
                    return
                self._line(data[position:stop])
                position = stop + len(mark)

    def _body(self, payload: bytes, now: float) -> None:
        self._deliver(payload, now)
        self._left -= len(payload)
        if self._left == 0:
            if not self._chunked:
                self._finish("")
            self._state = _State.SIZE

    def _line(self, line: bytes) -> None:
        if self._state is _State.HEAD:
            self._head(line)
        elif self._state is _State.TRAILER:
            if not line:
                self._finish("")
        elif line:  # The empty line is the end of the chunk before.
            self._left = int(line.split(b";", 1)[0], 16)
            self._state = _State.DATA if self._left else _State.TRAILER

    def _head(self, head: bytes) -> None:
        assert self._call is not None
        lines = head.decode("latin-1").split("\r\n")
        version, _, rest = lines[0].partition(" ")
        if not version.startswith("HTTP/1."):
            raise ValueError(f"unexpected answer {lines[0][:40]!r}")
        status = int(rest[:3])
        if 100 <= status < 200:
            return  # An interim answer; the real one follows.
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        self._call.http_status = status
        self._call.content_type = fields.get("content-type", "").lower()
        self.keep_alive = fields.get("connection", "").lower() != "close" and version != "HTTP/1.0"
        self._stream = self._call.is_stream
        self._chunked = "chunked" in fields.get("transfer-encoding", "").lower()
        length = fields.get("content-length")
        if self._chunked:
            self._state = _State.SIZE
        elif length is not None:
            self._left = int(length)
            self._state = _State.DATA
            if self._left == 0:
                self._finish("")
        else:
            self.keep_alive = False
            self._state = _State.CLOSE

    def _deliver(self, payload: bytes, now: float) -> None:
        call = self._call
        assert call is not None
        if self._stream:
            chunks = call.answer.feed(payload, now - call.sent)
            if chunks:
                self._tally.chunks += chunks
                self._tally.last_chunk = now
        elif len(call.error_body) < _LARGEST_ERROR_BODY:
            call.error_body += payload

    def connection_lost(self, exc: Exception | None) -> None:
        """End the present call: regularly when its body ends with the connection, else as a failure."""
        self._transport = None
        if self._call is not None:
            regular = self._state is _State.CLOSE and exc is None
            self._finish("" if regular else f"the connection was lost ({exc or 'closed by the server'})")

    def _finish(self, failure: str) -> None:
        call, waiter = self._call, self._waiter
        self._call = self._waiter = None
        if call is not None and not call.finished:
            call.ended = time.monotonic()
            call.failure, call.finished = failure, True
            call.answer.close(call.ended - call.sent)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class Pool:
    """Keep-alive connections to one endpoint, as many as are needed at once."""

    def __init__(self, endpoint: Endpoint, tally: Tally) -> None:
        self._endpoint, self._tally = endpoint, tally
        self._idle: list[Connection] = []
        self._head = (
            f"POST {endpoint.path} HTTP/1.1\r\nHost: {endpoint.host}:{endpoint.port}\r\n"
            "Content-Type: application/json\r\nAccept: text/event-stream\r\n"
        )

    async def post(self, call: Call, body: bytes, request_id: str, timeout: float, sent: Callable[[], None]) -> None:
        """Send *body* and wait until the answer is over; failures are told in *call*, not raised.

        *sent* is called right after ``call.sent`` is set.  Cancelling closes the connection.
        """
        request = f"{self._head}X-Request-Id: {request_id}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        call.sent = time.monotonic()
        sent()
        connection: Connection | None = None
        try:
            async with asyncio.timeout(timeout):
                while True:
                    connection, reused = await self._take()
                    await connection.start(call, request)
                    if not (reused and call.failure and not connection.touched):
                        break
                    # The server closed an idle connection just as it was used again: no byte came, so try a fresh one.
                    call.failure, call.finished = "", False
        except TimeoutError:
            call.failure = f"no complete answer within {timeout:g} s"
        except OSError as error:
            call.failure = f"cannot connect ({error.strerror or error})"
        finally:
            if not call.finished:
                call.ended, call.finished = time.monotonic(), True
                if connection is not None:
                    connection.abort()
        if connection is not None and connection.open and not call.failure:
            self._idle.append(connection)

    async def _take(self) -> tuple[Connection, bool]:
        while self._idle:
            connection = self._idle.pop()
            if connection.open:
                return connection, True
        loop = asyncio.get_running_loop()
        _, fresh = await loop.create_connection(
            lambda: Connection(self._tally), self._endpoint.host, self._endpoint.port
        )
        return fresh, False

    def close(self) -> None:
        """Close every idle connection."""
        for connection in self._idle:
            connection.abort()
        self._idle.clear()
