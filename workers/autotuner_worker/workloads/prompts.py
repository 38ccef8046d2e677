"""Prompts and request bodies.  Fresh per segment: every token depends on the segment's seed and the request's index.

Token prompts are ids drawn evenly from the vocabulary; a shared prefix depends on its group alone, a trace's block on its
identifier alone.  Text prompts are slices, at random places, of a pool of text that the server made of random tokens once.
"""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt

from autotuner.core.workload import PromptFormat, Workload
from autotuner_worker.workloads.schedule import Planned
from autotuner_worker.workloads.traces import BLOCK_TOKENS

__all__ = ["BodyMaker", "TextPool", "first_ordinary_token", "pool_tokens"]

_FRESH, _PREFIX, _BLOCK, _POOL, _SLICE, _TEXT_PREFIX = range(16, 22)


def first_ordinary_token(vocabulary: int) -> int:
    """Return the smallest id to draw: tokenizers keep special and byte tokens at the bottom."""
    return min(1000, vocabulary // 10)


def pool_tokens(vocabulary: int, seed: int, count: int) -> list[int]:
    """Return *count* random token ids for a pool of text."""
    rng = np.random.default_rng([seed, _POOL])
    return [int(token) for token in rng.integers(first_ordinary_token(vocabulary), vocabulary, count)]


class TextPool:
    """A long text, and how many of its characters make a token."""

    def __init__(self, text: str, tokens: float) -> None:
        self.text, self.per_token = text, len(text) / tokens

    def cut(self, tokens: int, rng: np.random.Generator) -> str:
        """Return about *tokens* tokens of text from a random place; the pool repeats as often as needed."""
        size = max(1, round(tokens * self.per_token))
        start = int(rng.integers(0, len(self.text)))
        part = self.text[start : start + size]
        while len(part) < size:
            part += self.text[: size - len(part)]
        return part


class BodyMaker:
    """Makes the JSON body of any planned request."""

    def __init__(
        self, workload: Workload, model: str, seed: int, vocabulary: int, pool: TextPool | None = None
    ) -> None:
        """Take the name of the *model* to send, and the *pool* exactly when prompts travel as text."""
        if (workload.prompt_format is PromptFormat.TEXT) != (pool is not None):
            raise ValueError("a pool of text belongs to text prompts")
        self._workload, self._pool = workload, pool
        self._seed = seed & 0xFFFFFFFFFFFFFFFF
        self._low, self._high = first_ordinary_token(vocabulary), max(vocabulary, 2)
        self._head = f'{{"model":{json.dumps(model)},"prompt":'
        options = ',"stream":true,"stream_options":{"include_usage":true}'
        if workload.temperature is not None:
            options += f',"temperature":{workload.temperature!r}'
        if workload.ignore_eos:
            options += ',"ignore_eos":true'
        self._options = options + "}"

    def body(self, planned: Planned) -> bytes:
        """Return the UTF-8 body of the request."""
        prompt = self._text(planned) if self._pool is not None else self._ids(planned)
        length = f',"max_tokens":{planned.output_tokens}'
        if self._workload.ignore_eos:
            length += f',"min_tokens":{planned.output_tokens}'
        return f"{self._head}{prompt}{length}{self._options}".encode()

    def tokens(self, planned: Planned) -> list[int]:
        """Return the prompt's token ids, exactly as many as planned."""
        if planned.blocks:
            parts = [self._draw(BLOCK_TOKENS, _BLOCK, block) for block in planned.blocks]
            covered = BLOCK_TOKENS * len(parts)
            if covered < planned.prompt_tokens:
                parts.append(self._draw(planned.prompt_tokens - covered, _FRESH, planned.index))
            ids = np.concatenate(parts)[: planned.prompt_tokens]
        else:
            # At least one token stays fresh, so that no prompt is wholly another's prefix.
            shared = min(self._workload.shared_prefix.tokens, planned.prompt_tokens - 1)
            ids = self._draw(planned.prompt_tokens - shared, _FRESH, planned.index)
            if shared:
                ids = np.concatenate([self._draw(shared, _PREFIX, planned.group), ids])
        return [int(token) for token in ids.tolist()]

    def _draw(self, count: int, purpose: int, number: int) -> npt.NDArray[np.int64]:
        rng = np.random.default_rng([self._seed, purpose, number & 0xFFFFFFFFFFFFFFFF])
        return rng.integers(self._low, self._high, count)

    def _ids(self, planned: Planned) -> str:
        return f"[{','.join(map(str, self.tokens(planned)))}]"

    def _text(self, planned: Planned) -> str:
        assert self._pool is not None
        shared = min(self._workload.shared_prefix.tokens, planned.prompt_tokens - 1)
        rng = np.random.default_rng([self._seed, _SLICE, planned.index])
        text = self._pool.cut(planned.prompt_tokens - shared, rng)
        if shared:
            common = np.random.default_rng([self._seed, _TEXT_PREFIX, planned.group])
            text = self._pool.cut(shared, common) + text
        return json.dumps(text)
