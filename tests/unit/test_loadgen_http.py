"""The HTTP client of the hot path: framing, connections, failures."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotuner_worker.workloads.http1 import Call, Connection, Endpoint, Pool, Tally
from tests.fakes.completion_server import DONE, CompletionServer, chunk, running, usage

BODY = chunk() + chunk(finish="length") + usage(2, 2) + DONE
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def chunked(*parts: bytes) -> bytes:
    """Return a chunked body."""
    return b"".join(b"%x;ext=1\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\nTrailer: x\r\n\r\n"


class Wire(asyncio.Transport):
    """A transport that goes nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True


async def receive(*reads: bytes, close: bool = False, error: Exception | None = None) -> tuple[Call, Connection, bool]:
    """Return the call after these reads, its connection, and whether it is over."""
    connection, call = Connection(Tally()), Call()
    connection.connection_made(Wire())
    waiter = connection.start(call, b"request")
    for data in reads:
        connection.data_received(data)
    if close:
        connection.connection_lost(error)
    return call, connection, waiter.done()


RESPONSES = [
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(BODY[:70], BODY[70:]),
    HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY,
    b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(BODY),
]


@given(response=st.sampled_from(RESPONSES), cuts=st.lists(st.integers(0, 600), max_size=8))
@settings(deadline=None)
def test_it_does_not_matter_where_reads_are_cut(response: bytes, cuts: list[int]) -> None:
    """Heads, sizes and bodies may come in any pieces."""
    edges = [0, *sorted(min(cut, len(response)) for cut in cuts), len(response)]
    parts = [response[a:b] for a, b in itertools.pairwise(edges) if a < b]
    call, connection, over = asyncio.run(receive(*parts))
    assert over
    assert connection.open
    assert (call.failure, call.http_status, call.answer.completion_tokens, call.answer.done) == ("", 200, 2, True)
    assert len(call.answer.offsets) == 2


async def test_a_body_may_end_with_the_connection() -> None:
    """Old servers do that; the connection is not used again."""
    call, connection, over = await receive(HEAD + b"\r\n" + BODY, close=True)
    assert (over, call.failure, call.answer.completion_tokens, connection.open) == (True, "", 2, False)


@pytest.mark.parametrize(
    ("reads", "words"),
    [
        ((), "connection was lost"),
        ((HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nda",), "connection was lost"),
        ((HEAD + b"Content-Length: 9\r\n\r\n1",), "connection was lost"),
    ],
)
async def test_a_broken_connection_is_a_failure(reads: tuple[bytes, ...], words: str) -> None:
    """Not an end."""
    call, _, over = await receive(*reads, close=True, error=ConnectionResetError("reset"))
    assert over
    assert words in call.failure


@pytest.mark.parametrize(
    "data", [b"SSH-2.0-OpenSSH\r\n\r\n", HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", b"x" * 70_000]
)
async def test_what_is_not_http_is_a_failure(data: bytes) -> None:
    """And ends the connection."""
    call, connection, over = await receive(data)
    assert over
    assert "not a valid HTTP response" in call.failure
    assert not connection.open


async def test_error_bodies_are_kept_and_empty_bodies_end() -> None:
    """For the message."""
    call, _, over = await receive(b"HTTP/1.1 500 Oops\r\nContent-Length: 4\r\nConnection: close\r\n\r\nlost")
    assert (over, call.http_status, call.error_body, call.is_stream) == (True, 500, b"lost", False)
    _, connection, over = await receive(b"HTTP/1.1 204 None\r\nContent-Length: 0\r\n\r\n")
    assert over
    connection.data_received(b"unasked")
    assert not connection.open


def test_addresses() -> None:
    """Plain http only."""
    assert Endpoint.parse("http://127.0.0.1:80/base/") == Endpoint(
        host="127.0.0.1", port=80, path="/base/v1/completions"
    )
    with pytest.raises(ValueError, match="http://"):
        Endpoint.parse("https://host")


async def post(pool: Pool, timeout: float = 30.0) -> Call:
    """Send one request."""
    call = Call()
    await pool.post(call, b'{"prompt":[1],"max_tokens":2}', "name", timeout, lambda: None)
    return call


async def test_connections_are_used_again() -> None:
    """And the request carries its name."""
    async with running() as server:
        pool = Pool(Endpoint.parse(server.base_url), Tally())
        calls = [await post(pool) for _ in range(3)]
        assert [call.answer.completion_tokens for call in calls] == [2, 2, 2]
        assert len(pool._idle) == 1
        assert server.names == ["name"] * 3
        pool.close()


async def test_a_time_out_is_told_and_closes_the_connection() -> None:
    """The late end of the connection changes nothing."""
    async with running(CompletionServer.stall) as server:
        pool = Pool(Endpoint.parse(server.base_url), Tally())
        call = await post(pool, timeout=0.2)
        assert "within 0.2 s" in call.failure
        assert pool._idle == []


async def test_a_refused_connection_is_told() -> None:
    """The port was free a moment ago."""
    async with running() as server:
        address = server.base_url
    call = await post(Pool(Endpoint.parse(address), Tally()))
    assert "cannot connect" in call.failure
    assert call.ended >= call.sent > 0.0


class Closing(asyncio.Protocol):
    """Answers the first request of a connection and closes it when the second arrives."""

    def __init__(self, seen: Callable[[], None]) -> None:
        self._seen, self._count = seen, 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._seen()
        self._count += 1
        if self._count > 1:
            self._transport.abort()
        else:
            self._transport.write(RESPONSES[1])


@asynccontextmanager
async def closing(seen: Callable[[], None]) -> AsyncIterator[str]:
    """Run such a server."""
    server = await asyncio.get_running_loop().create_server(lambda: Closing(seen), "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def test_a_connection_closed_while_idle_is_replaced() -> None:
    """The second request is sent again on a fresh connection."""
    seen: list[int] = []
    async with closing(lambda: seen.append(1)) as address:
        pool = Pool(Endpoint.parse(address), Tally())
        first, second = await post(pool), await post(pool)
        assert (first.failure, second.failure) == ("", "")
        assert second.answer.completion_tokens == 2
        assert len(seen) == 3
        pool.close()
