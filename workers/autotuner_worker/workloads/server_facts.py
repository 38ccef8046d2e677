"""What the generator asks the server before the load: the model's context, and a text to cut prompts from."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import aiohttp

from autotuner.core.trial import OutcomeClass
from autotuner.core.workload import LengthKind, PromptFormat
from autotuner_worker.ports import EngineFault, Segment, SegmentFault
from autotuner_worker.workloads.job import prompt_seed
from autotuner_worker.workloads.prompts import pool_tokens

__all__ = ["ServerFacts", "learn_server"]

_POOL_TOKENS = 32_768
_TOKENS_PER_CALL = 1_024
_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """The server's answers."""

    context: int | None = None
    """Tokens that a request may have, prompt and answer together; ``None`` when the server does not say."""
    pool_text: str = ""
    pool_tokens: float = 0.0
    """Tokens that the server counts in ``pool_text``."""


async def learn_server(segment: Segment) -> ServerFacts:
    """Ask what this segment needs to know; most need nothing. Raise ``SegmentFault`` when text cannot be made."""
    workload = segment.workload
    traced = LengthKind.TRACE in (workload.input_tokens.kind, workload.output_tokens.kind)
    as_text = workload.prompt_format is PromptFormat.TEXT
    if not traced and not as_text:
        return ServerFacts()
    async with aiohttp.ClientSession(segment.base_url, timeout=aiohttp.ClientTimeout(total=_TIMEOUT)) as session:
        context = await _context(session, segment.model_name) if traced else None
        if not as_text:
            return ServerFacts(context=context)
        try:
            text, tokens = await _pool(session, segment)
        except (aiohttp.ClientError, TimeoutError, KeyError, TypeError, ValueError) as error:
            fault = EngineFault(
                outcome=OutcomeClass.GARBAGE,
                message="the server cannot turn tokens into text; use prompt_format: tokens",
                evidence=(f"POST /detokenize: {error!r}"[:300],),
            )
            raise SegmentFault(fault) from error
        return ServerFacts(context=context, pool_text=text, pool_tokens=tokens)


async def _context(session: aiohttp.ClientSession, model: str) -> int | None:
    try:
        async with session.get("/v1/models") as response:
            entries = (await response.json())["data"]
        named = [entry for entry in entries if entry.get("id") == model] or entries
        length = named[0].get("max_model_len")
        return length if isinstance(length, int) else None
    except (aiohttp.ClientError, TimeoutError, KeyError, IndexError, TypeError, AttributeError, ValueError):
        return None


async def _post(session: aiohttp.ClientSession, path: str, value: dict[str, Any]) -> dict[str, Any]:
    async with session.post(path, json=value) as response:
        response.raise_for_status()
        answer: dict[str, Any] = await response.json()
        return answer


async def _pool(session: aiohttp.ClientSession, segment: Segment) -> tuple[str, float]:
    ids = pool_tokens(segment.vocabulary, prompt_seed(segment.seed, segment.salt), _POOL_TOKENS)
    parts = [ids[start : start + _TOKENS_PER_CALL] for start in range(0, len(ids), _TOKENS_PER_CALL)]
    model = segment.model_name
    answers = await asyncio.gather(*(_post(session, "/detokenize", {"model": model, "tokens": part}) for part in parts))
    texts = [str(answer["prompt"]) for answer in answers]
    # Text of random tokens is cut differently by the tokenizer: ask once how many tokens it makes of it.
    sample = {"model": model, "prompt": texts[0], "add_special_tokens": False}
    counted = int((await _post(session, "/tokenize", sample))["count"])
    if not all(texts) or counted < 1:
        raise ValueError("empty text")
    return "".join(texts), len(ids) * counted / len(parts[0])
