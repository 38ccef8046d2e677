"""The HTTP application: OpenAI endpoints, metrics and the live limits, all in front of one ``EngineCore``."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from autotuner_worker.simulator import SIMULATOR_VERSION
from autotuner_worker.simulator.engine import DEAD_MESSAGE, EngineCore, Mailbox
from autotuner_worker.simulator.flags import ServerSettings
from autotuner_worker.simulator.metrics import EngineMetrics
from autotuner_worker.simulator.protocol import Ask, BadRequest, Shape, error_body, parse_ask
from autotuner_worker.simulator.scheduler import Request, prefix_hashes
from autotuner_worker.simulator.surface import memory_plan
from autotuner_worker.simulator.tokens import AnswerSource, decode, encode

__all__ = ["build_app", "build_core"]

_SSE = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
_DONE = b"data: [DONE]\n\n"


def build_core(settings: ServerSettings) -> EngineCore:
    """Return an engine for *settings*; raise ``NoMemory`` when it does not fit."""
    memory = memory_plan(settings.surface)
    surface = settings.surface
    info = {
        "block_size": memory.block_size,
        "cache_dtype": settings.kv_cache_dtype,
        "enable_prefix_caching": settings.prefix_caching,
        "gpu_memory_utilization": surface.gpu_memory_utilization,
        "kv_cache_memory_bytes": surface.kv_cache_memory_bytes,
        "kv_cache_size_tokens": memory.kv_tokens,
        "num_gpu_blocks": memory.num_blocks,
        "num_gpu_blocks_override": surface.num_gpu_blocks_override,
    }
    drafts = surface.speculation.drafts if surface.speculation else 0
    metrics = EngineMetrics(model_name=settings.served_name, cache_info=info, drafts=drafts, exposed=settings.log_stats)
    return EngineCore(settings, memory, metrics)


def build_app(core: EngineCore) -> web.Application:
    """Return the application; its engine loop starts and ends with it."""
    handlers = _Handlers(core)
    app = web.Application(client_max_size=64 * 2**20, middlewares=[_refusals])
    app.add_routes(
        [
            web.get("/health", handlers.health),
            web.get("/ping", handlers.health),
            web.get("/version", handlers.version),
            web.get("/metrics", handlers.metrics),
            web.get("/v1/models", handlers.models),
            web.post("/v1/completions", handlers.completions),
            web.post("/v1/chat/completions", handlers.chat),
            web.post("/tokenize", handlers.tokenize),
            web.post("/detokenize", handlers.detokenize),
            web.get("/autotuner/state", handlers.state),
            web.post("/autotuner/limits", handlers.limits),
            web.post("/autotuner/reset_prefix_cache", handlers.reset_prefix_cache),
        ]
    )

    async def engine_task(_: web.Application) -> Any:
        task = asyncio.create_task(core.run())
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    app.cleanup_ctx.append(engine_task)
    return app


class _Handlers:
    """The request handlers."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._settings = core.settings
        self._numbers = itertools.count(1)
        surface = core.settings.surface
        self._vocabulary = surface.model.vocabulary
        self._bounds = {
            "max_num_seqs": surface.max_num_seqs,
            "max_num_batched_tokens": surface.max_num_batched_tokens,
            "long_prefill_token_threshold": surface.max_model_len,
        }

    async def health(self, _: web.Request) -> web.Response:
        """200 while the engine lives."""
        return web.Response(status=503 if self._core.dead.is_set() else 200)

    async def version(self, _: web.Request) -> web.Response:
        """The simulator's own version."""
        return web.json_response({"version": SIMULATOR_VERSION})

    async def metrics(self, _: web.Request) -> web.Response:
        """The exposition."""
        core = self._core
        text = core.metrics.render(running=core.running, waiting=core.waiting, kv_usage=core.pool.usage)
        return web.Response(text=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def models(self, _: web.Request) -> web.Response:
        """The one model."""
        surface = self._settings.surface
        model = {
            "id": self._settings.served_name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "simulated",
            "root": surface.model.name,
            "parent": None,
            "max_model_len": surface.max_model_len,
        }
        return web.json_response({"object": "list", "data": [model]})

    async def tokenize(self, request: web.Request) -> web.Response:
        """Text to token ids."""
        body = await _json(request)
        text = body.get("prompt") if isinstance(body, dict) else None
        if not isinstance(text, str):
            raise BadRequest("prompt must be a text")
        tokens = encode(text, self._vocabulary)
        limit = self._settings.surface.max_model_len
        return web.json_response({"count": len(tokens), "max_model_len": limit, "tokens": tokens, "token_strs": None})

    async def detokenize(self, request: web.Request) -> web.Response:
        """Token ids to text."""
        body = await _json(request)
        tokens = body.get("tokens") if isinstance(body, dict) else None
        if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
            raise BadRequest("tokens must be a list of token ids")
        return web.json_response({"prompt": decode(tokens)})

    async def state(self, _: web.Request) -> web.Response:
        """Limits, bounds, counts and effective values."""
        return web.json_response(self._state())

    async def limits(self, request: web.Request) -> web.Response:
        """Set hot limits within their bounds."""
        changes = await _json(request)
        problem = self._refusal(changes)
        if problem:
            return web.json_response({**self._state(), "hot": False, "reason": problem})
        for name, value in changes.items():
            low = 0 if name == "long_prefill_token_threshold" else 1
            setattr(self._core.limits, name, max(low, min(value, self._bounds[name])))
        return web.json_response(self._state())

    async def reset_prefix_cache(self, _: web.Request) -> web.Response:
        """Empty the prefix cache."""
        return web.json_response({"success": self._core.reset_prefix_cache()})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """Text completion."""
        return await self._answer(request, chat=False)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Chat completion."""
        return await self._answer(request, chat=True)

    def _refusal(self, changes: Any) -> str:
        if not isinstance(changes, dict):
            return "the body must be a JSON object"
        unknown = sorted(set(changes) - set(self._bounds))
        if unknown:
            return "unknown limits: " + ", ".join(unknown)
        if not all(isinstance(value, int) and not isinstance(value, bool) for value in changes.values()):
            return "limits must be whole numbers"
        tokens = changes.get("max_num_batched_tokens", self._bounds["max_num_batched_tokens"])
        if not self._settings.chunked_prefill and tokens < self._settings.surface.max_model_len:
            return "without chunked prefill max_num_batched_tokens must not fall below max_model_len"
        return ""

    def _state(self) -> dict[str, Any]:
        limits = self._core.limits
        return {
            "hot": not self._core.dead.is_set(),
            "reason": DEAD_MESSAGE if self._core.dead.is_set() else "",
            "limits": {name: getattr(limits, name) for name in self._bounds},
            "bounds": dict(self._bounds),
            "running": self._core.running,
            "waiting": self._core.waiting,
            "effective": _effective(self._settings, self._core),
            "engines": 1,
        }

    async def _answer(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        faults = self._settings.faults
        ask = parse_ask(
            await _json(request),
            chat=chat,
            model=self._settings.served_name,
            vocabulary=self._vocabulary,
            max_model_len=self._settings.surface.max_model_len,
        )
        if faults.has("garbage"):
            return web.Response(body=b"\x00\xfe<html>not the protocol\n\n" * 4, headers=_SSE)
        if self._core.dead.is_set():
            raise BadRequest(DEAD_MESSAGE, 500)
        number = next(self._numbers)
        source = AnswerSource.for_prompt(
            ask.prompt,
            seed=self._settings.seed,
            vocabulary=self._vocabulary,
            quantization=self._settings.surface.quantization,
            nonce=number if ask.temperature > 0 else 0,
        )
        target, reason = source.length(ask.max_tokens, ask.min_tokens, ask.ignore_eos)
        ident = f"{'chatcmpl' if chat else 'cmpl'}-{number:08d}"
        shape = Shape(
            chat=chat, ident=ident, created=int(time.time()), model=self._settings.served_name,
            prompt_tokens=len(ask.prompt),
        )  # fmt: skip
        if faults.has("empty_answers"):
            return await _empty(request, ask, shape)
        sim = self._request(ident, ask, target)
        mailbox = self._core.submit(sim, reason=reason, temperature=ask.temperature)
        writer = _Writer(ask, shape, source, sim, mailbox, reason)
        try:
            if ask.stream:
                return await writer.stream(request, broken=faults.has("error_chunk"))
            return await writer.whole()
        except ConnectionResetError:
            return web.Response(status=499)
        finally:
            self._core.abort(sim)

    def _request(self, ident: str, ask: Ask, target: int) -> Request:
        caching = self._settings.prefix_caching
        return Request(
            ident=ident,
            prompt_tokens=len(ask.prompt),
            target=target,
            hashes=prefix_hashes(ask.prompt, self._core.memory.block_size) if caching else (),
            priority=ask.priority,
        )


class _Writer:
    """Turns the news of one request into its answer."""

    def __init__(
        self, ask: Ask, shape: Shape, source: AnswerSource, sim: Request, mailbox: Mailbox, reason: str
    ) -> None:
        self._ask, self._shape, self._source, self._sim = ask, shape, source, sim
        self._mailbox, self._reason = mailbox, reason

    async def stream(self, request: web.Request, *, broken: bool) -> web.StreamResponse:
        """Stream events; *broken* ends with an error chunk after a few tokens, as a dying engine does."""
        response = web.StreamResponse(headers=_SSE)
        await response.prepare(request)
        done, finished = 0, False
        while not finished:
            count = await self._mailbox.take()
            failed = bool(self._mailbox.error) or (broken and done >= 3)
            if failed:
                body = json.dumps(error_body(self._mailbox.error or DEAD_MESSAGE, 500))
                await response.write(f"data: {body}\n\n".encode())
                break
            finished = self._mailbox.finished
            self._shape.cached = self._sim.cached_tokens
            event = self._shape.chunk(
                [self._source.token(position) for position in range(done, done + count)],
                finish=self._reason if finished else "",
                usage=done + count if self._ask.continuous_usage else None,
                token_ids=self._ask.token_ids,
            )
            done += count
            await response.write(event)
        if finished and self._ask.include_usage:
            await response.write(self._shape.last(done))
        await response.write(_DONE)
        return response

    async def whole(self) -> web.Response:
        """Collect the answer."""
        done = 0
        while not self._mailbox.finished:
            done += await self._mailbox.take()
            if self._mailbox.error:
                raise BadRequest(self._mailbox.error, 500)
        done += self._mailbox.pending
        self._shape.cached = self._sim.cached_tokens
        tokens = [self._source.token(position) for position in range(done)]
        return web.json_response(self._shape.whole(tokens, self._reason, token_ids=self._ask.token_ids))


async def _empty(request: web.Request, ask: Ask, shape: Shape) -> web.StreamResponse:
    """Answer with no token at all."""
    if not ask.stream:
        return web.json_response(shape.whole([], "stop", token_ids=False))
    response = web.StreamResponse(headers=_SSE)
    await response.prepare(request)
    await response.write(shape.chunk([], finish="stop", usage=None, token_ids=False))
    if ask.include_usage:
        await response.write(shape.last(0))
    await response.write(_DONE)
    return response


async def _json(request: web.Request) -> Any:
    try:
        return await request.json()
    except (ValueError, UnicodeDecodeError):
        raise BadRequest("the body is not JSON") from None


@web.middleware
async def _refusals(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer a ``BadRequest`` with the protocol's error object."""
    try:
        return await handler(request)
    except BadRequest as error:
        return web.json_response(error_body(error.message, error.status), status=error.status)


def _effective(settings: ServerSettings, core: EngineCore) -> Mapping[str, bool | int | float | str]:
    """Return the values in use, by section as the real engine names them."""
    surface, limits = settings.surface, core.limits
    found: dict[str, bool | int | float | str | None] = {
        "cache_config.block_size": core.memory.block_size,
        "cache_config.cache_dtype": settings.kv_cache_dtype,
        "cache_config.enable_prefix_caching": settings.prefix_caching,
        "cache_config.gpu_memory_utilization": surface.gpu_memory_utilization,
        "cache_config.kv_cache_memory_bytes": surface.kv_cache_memory_bytes,
        "cache_config.num_gpu_blocks": core.memory.num_blocks,
        "cache_config.num_gpu_blocks_override": surface.num_gpu_blocks_override,
        "model_config.dtype": settings.dtype,
        "model_config.enforce_eager": surface.enforce_eager,
        "model_config.max_model_len": surface.max_model_len,
        "model_config.quantization": surface.quantization,
        "model_config.seed": settings.seed,
        "parallel_config.tensor_parallel_size": surface.tensor_parallel_size,
        "scheduler_config.async_scheduling": surface.async_scheduling,
        "scheduler_config.enable_chunked_prefill": settings.chunked_prefill,
        "scheduler_config.long_prefill_token_threshold": limits.long_prefill_token_threshold,
        "scheduler_config.max_num_batched_tokens": limits.max_num_batched_tokens,
        "scheduler_config.max_num_seqs": limits.max_num_seqs,
        "scheduler_config.policy": "priority" if settings.priority else "fcfs",
        "scheduler_config.scheduler_reserve_full_isl": settings.reserve_full_prompt,
        "scheduler_config.watermark": settings.watermark,
    }
    if surface.speculation is not None:
        found["speculative_config.method"] = surface.speculation.method
        found["speculative_config.num_speculative_tokens"] = surface.speculation.drafts
    return {name: value for name, value in found.items() if value is not None}
