"""A fast fake of an OpenAI completion server, for measuring load generators.

It answers ``POST /v1/completions`` with as many one-token events as ``max_tokens`` asks for, paced by a schedule fixed
when the request was received, and keeps its own record of every request: when it was received in full, when its first
and its last event were written.  ``GET /records`` returns them (monotonic clock of the host, so that a client on the
same host can compare) and ``POST /reset`` forgets them.  It prints ``{"port": N}`` on one line when it listens.

Raw asyncio protocols, one process: cheap enough that the client under test is what is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import sys
import time
from dataclasses import dataclass, field

_LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)
_REQUEST_ID = re.compile(rb"x-request-id:\s*(\S+)", re.IGNORECASE)
_MAX_TOKENS = re.compile(rb'"max_tokens":\s*(\d+)')
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\nconnection: keep-alive\r\n\r\n"
)
_FRAME = '{"id":"cmpl-0","object":"text_completion","created":1,"model":"fake","choices":[%s]%s}'


def _chunk(payload: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(payload), payload)


def _event(choice: str, usage: str = "") -> bytes:
    return _chunk(f"data: {_FRAME % (choice, usage)}\n\n".encode())


_TOKEN = _event('{"index":0,"text":" word","logprobs":null,"finish_reason":null}')
_LAST_TOKEN = _event('{"index":0,"text":" word","logprobs":null,"finish_reason":"length"}')


@dataclass(slots=True)
class Ledger:
    """Pacing of every answer and the record of all of them."""

    first: float
    interval: float
    rows: list[dict[str, object]] = field(default_factory=list)


class Connection(asyncio.Protocol):
    """One keep-alive connection; one request at a time."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._buffer = bytearray()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._buffer[:end])
        match = _LENGTH.search(head)
        length = int(match.group(1)) if match else 0
        if len(self._buffer) < end + 4 + length:
            return
        body = bytes(self._buffer[end + 4 : end + 4 + length])
        del self._buffer[: end + 4 + length]
        self._serve(head, body)

    def _serve(self, head: bytes, body: bytes) -> None:
        line = head.split(b"\r\n", 1)[0]
        if line.startswith(b"POST /v1/completions"):
            self._complete(head, body)
        elif line.startswith(b"GET /records"):
            self._answer(self._ledger.rows)
        elif line.startswith(b"POST /reset"):
            self._ledger.rows.clear()
            self._answer({})
        elif line.startswith(b"GET /v1/models"):
            self._answer({"object": "list", "data": [{"id": "fake", "max_model_len": 65536}]})
        else:
            self._answer({})

    def _answer(self, value: object) -> None:
        content = json.dumps(value).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n".encode()
        if self._transport is not None:
            self._transport.write(head + content)

    def _complete(self, head: bytes, body: bytes) -> None:
        received = time.monotonic()
        asked = _MAX_TOKENS.search(body)
        tokens = int(asked.group(1)) if asked else 16
        name = _REQUEST_ID.search(head)
        row: dict[str, object] = {"id": name.group(1).decode() if name else "", "received": received, "tokens": tokens}
        self._ledger.rows.append(row)
        self._loop.call_at(received + self._ledger.first, self._token, row, received, 0, tokens)

    def _token(self, row: dict[str, object], received: float, index: int, tokens: int) -> None:
        if self._transport is None:
            return
        now = time.monotonic()
        if index == 0:
            row["first"] = now
            self._transport.write(_STREAM_HEAD + (_TOKEN if tokens > 1 else _LAST_TOKEN))
        elif index < tokens - 1:
            self._transport.write(_TOKEN)
        else:
            self._transport.write(_LAST_TOKEN)
        if index + 1 < tokens:
            due = received + self._ledger.first + (index + 1) * self._ledger.interval
            self._loop.call_at(due, self._token, row, received, index + 1, tokens)
            return
        row["last"] = now
        usage = f',"usage":{{"prompt_tokens":1,"total_tokens":{tokens + 1},"completion_tokens":{tokens}}}'
        self._transport.write(_event("", usage) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


async def serve(first: float, interval: float) -> None:
    """Listen on a free loopback port until the standard input closes."""
    loop = asyncio.get_running_loop()
    ledger = Ledger(first=first, interval=interval)
    server = await loop.create_server(lambda: Connection(ledger), "127.0.0.1", 0, backlog=4096)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    reader = asyncio.StreamReader()
    with contextlib.suppress(NotImplementedError):
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()
    server.close()


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=float, default=0.05, help="seconds to the first token")
    parser.add_argument("--interval", type=float, default=0.01, help="seconds between tokens")
    options = parser.parse_args()
    # Its record is the truth that clients are compared with: where it is allowed, it does not wait for its turn.
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    asyncio.run(serve(options.first, options.interval))


if __name__ == "__main__":
    main()
