"""The simulator's tokenizer and its deterministic answers.

A token id ``N`` is the word ``wN``; any other word gets an id by its checksum, so every text can be tokenized and ids
survive a round trip.  A greedy answer is a function of the prompt, the seed and the position alone; a quantised
configuration changes a small, fixed share of its tokens.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["AnswerSource", "decode", "encode"]

SPECIAL = 3
"""Ids below are reserved."""
EOS_PERIOD = 256
"""Mean answer length when the end is not ignored."""
DIVERGENCE = {"fp8": 5, "int8_per_channel_weight_only": 8, "awq": 25, "gptq": 25}
"""Quantisation → changed tokens per thousand."""

_WORD = re.compile(r"w(\d+)\Z")
_MASK = (1 << 64) - 1


def encode(text: str, vocabulary: int) -> list[int]:
    """Return one token id per word of *text*."""
    found = []
    for word in text.split():
        known = _WORD.match(word)
        number = int(known.group(1)) if known else zlib.crc32(word.encode())
        found.append(number if known and number < vocabulary else SPECIAL + number % (vocabulary - SPECIAL))
    return found


def decode(tokens: Sequence[int]) -> str:
    """Return the text of *tokens*, each with a space before it, so that texts can be joined; ``encode`` is its inverse."""
    return "".join(f" w{token}" for token in tokens)


def _mix(key: int, position: int) -> int:
    value = (key + (position + 1) * 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


@dataclass(frozen=True, slots=True)
class AnswerSource:
    """The answer to one request, position by position."""

    key: int
    vocabulary: int
    per_thousand: int = 0

    @classmethod
    def for_prompt(
        cls, prompt: Sequence[int], *, seed: int, vocabulary: int, quantization: str | None, nonce: int = 0
    ) -> AnswerSource:
        """Return the source for *prompt*; *nonce* makes sampled answers differ (0 = greedy)."""
        key = hash((seed, nonce, tuple(prompt))) & _MASK
        return cls(key, vocabulary, DIVERGENCE.get(quantization or "", 0))

    def token(self, position: int) -> int:
        """Return the token at *position*."""
        value = _mix(self.key, position)
        if self.per_thousand and (value >> 40) % 1000 < self.per_thousand:
            value = _mix(value, position)
        return SPECIAL + value % (self.vocabulary - SPECIAL)

    def length(self, max_tokens: int, min_tokens: int, ignore_eos: bool) -> tuple[int, str]:
        """Return how many tokens the answer has and its finish reason."""
        if not ignore_eos:
            for position in range(max(1, min_tokens), max_tokens):
                if _mix(self.key ^ _MASK, position) % EOS_PERIOD == 0:
                    return position, "stop"
        return max_tokens, "length"
