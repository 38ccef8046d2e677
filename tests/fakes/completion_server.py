"""A scripted completion server on a free loopback port, in the test's own event loop.

Every request takes the next behaviour of the script; the last one repeats.  Nothing in it waits for a clock: a stalled
answer waits for an event that the test sets.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

__all__ = ["Behaviour", "CompletionServer", "running"]

Behaviour = Callable[["CompletionServer", web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


def chunk(text: str = " word", finish: str | None = None, **more: Any) -> bytes:
    """Return one event of an answer."""
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    value = {"id": "cmpl-1", "object": "text_completion", "choices": [choice], **more}
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def usage(prompt: int, completion: int) -> bytes:
    """Return the event with the token counts."""
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return b"data: " + json.dumps({"id": "cmpl-1", "choices": [], "usage": counts}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


class CompletionServer:
    """What the server was asked, and how it answers."""

    def __init__(self, *script: Behaviour) -> None:
        self.script = list(script) or [CompletionServer.normal]
        self.bodies: list[dict[str, Any]] = []
        self.names: list[str] = []
        self.release = asyncio.Event()
        """Lets stalled answers go on."""
        self.stalled = asyncio.Event()
        """Set when an answer stalls."""
        self.asked = asyncio.Event()
        """Set by every request."""
        self.base_url = ""
        self.context = 64

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Answer with the next behaviour."""
        body = await request.json()
        self.bodies.append(body)
        self.names.append(request.headers.get("X-Request-Id", ""))
        self.asked.set()
        position = min(len(self.bodies), len(self.script)) - 1
        return await self.script[position](self, request, body)

    @staticmethod
    async def open_stream(request: web.Request) -> web.StreamResponse:
        """Send the head of an event stream."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        return response

    async def stream(self, request: web.Request, *parts: bytes) -> web.StreamResponse:
        """Send these parts as an event stream."""
        response = await self.open_stream(request)
        for part in parts:
            await response.write(part)
        return response

    async def normal(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """Give exactly the tokens asked for."""
        count = body["max_tokens"]
        parts = [chunk() for _ in range(count - 1)] + [chunk(finish="length")]
        prompt = body["prompt"]
        return await self.stream(request, *parts, usage(len(prompt), count), DONE)

    async def double(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """Two tokens per chunk."""
        count = body["max_tokens"]
        parts = [chunk(finish="length" if last else None) for last in [False] * (count // 2 - 1) + [True]]
        return await self.stream(request, *parts, usage(3, count), DONE)

    async def unmarked(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """A good answer without the end mark."""
        return await self.stream(request, chunk(), chunk(finish="length"), usage(3, body["max_tokens"]))

    async def error_chunk(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """HTTP 200, then an error event and a regular end mark."""
        error = b'data: {"error": {"message": "engine died", "code": 500}}\n\n'
        return await self.stream(request, chunk(), error, DONE)

    async def refuse(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """HTTP 400."""
        return web.json_response({"error": {"message": "prompt too long"}}, status=400)

    async def fail(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """HTTP 500."""
        return web.Response(text="internal", status=500)

    async def garbage(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """A page instead of an answer."""
        return web.Response(text="<html>hello</html>", content_type="text/html")

    async def nonsense(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """An event stream of something else."""
        return await self.stream(request, b"lorem ipsum\n\n", b"data: {]\n\n")

    async def short(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """Fewer tokens than asked for."""
        return await self.stream(request, chunk(finish="stop"), usage(3, 1), DONE)

    async def countless(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """No token counts."""
        return await self.stream(request, chunk(), chunk(finish="length"), DONE)

    async def empty(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """A regular end without any token."""
        return await self.stream(request, usage(3, 0), DONE)

    async def abort(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """The server gives the answer up."""
        return await self.stream(request, chunk(), chunk(finish="abort"), usage(3, 2), DONE)

    async def disconnect(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """The connection breaks inside the answer."""
        response = await self.stream(request, chunk())
        assert request.transport is not None
        request.transport.abort()
        return response

    async def stall(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """One token, then nothing until the test says so."""
        response = await self.stream(request, chunk())
        self.stalled.set()
        await self.release.wait()
        return response

    async def models(self, request: web.Request) -> web.Response:
        """Tell the context."""
        return web.json_response({"data": [{"id": "model", "max_model_len": self.context}]})

    async def detokenize(self, request: web.Request) -> web.Response:
        """Make a word of every token."""
        body = await request.json()
        return web.json_response({"prompt": "".join(f" w{token}" for token in body["tokens"])})

    async def tokenize(self, request: web.Request) -> web.Response:
        """Count two tokens per word."""
        body = await request.json()
        return web.json_response({"count": 2 * len(body["prompt"].split())})


@asynccontextmanager
async def running(*script: Behaviour) -> AsyncIterator[CompletionServer]:
    """Run a server with this script."""
    server = CompletionServer(*script)
    application = web.Application(client_max_size=1 << 26)
    application.router.add_post("/v1/completions", server.complete)
    application.router.add_get("/v1/models", server.models)
    application.router.add_post("/detokenize", server.detokenize)
    application.router.add_post("/tokenize", server.tokenize)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        server.release.set()
        await runner.cleanup()
