"""The traffic that a measurement offers to the engine, as values.

Lengths are in tokens, times in seconds, rates in requests per second.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Arrival", "LengthKind", "Lengths", "LoadMode", "PromptFormat", "SharedPrefix", "TraceSource", "Workload"]


class LoadMode(StrEnum):
    """Who decides when the next request is sent."""

    CLOSED = "closed"
    """A fixed number of clients, each sending its next request when the last one has ended."""
    OPEN = "open"
    """Requests arrive by a schedule fixed up front, whatever the engine does."""


class Arrival(StrEnum):
    """The arrival process of an open loop."""

    POISSON = "poisson"
    GAMMA = "gamma"
    """Gamma distributed gaps; ``burstiness`` is the shape (1 = Poisson, below 1 = burstier)."""
    CONSTANT = "constant"
    TRACE = "trace"
    """The recorded time stamps of a trace, divided by its speed-up."""


class LengthKind(StrEnum):
    """A distribution of token counts."""

    FIXED = "fixed"
    UNIFORM = "uniform"
    NORMAL = "normal"
    LOGNORMAL = "lognormal"
    TRACE = "trace"


class PromptFormat(StrEnum):
    """How prompts travel."""

    TOKENS = "tokens"
    """Token ids: exact lengths, no tokenizer work in the server."""
    TEXT = "text"
    """Text that the server tokenizes, as real clients send it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Token counts of prompts or of answers."""

    kind: LengthKind = LengthKind.FIXED
    mean: float = 128.0
    """The value of FIXED, the middle of UNIFORM, the mean of NORMAL and LOGNORMAL (of the counts, not of their logs)."""
    spread: float = 0.0
    """Half width of UNIFORM, standard deviation of NORMAL and LOGNORMAL."""
    low: int = 1
    """Smallest count; draws below are clipped."""
    high: int = 1_000_000
    """Largest count; draws above are clipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix:
    """Prompts that begin alike, as with a common system prompt."""

    tokens: int = 0
    """Length of the shared part; 0 means that every prompt is fresh."""
    groups: int = 1
    """Number of different prefixes, chosen per request with equal chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSource:
    """A recorded trace of arrivals and lengths."""

    path: str
    format: str = "auto"
    """``azure`` (CSV), ``mooncake`` (JSONL) or ``auto`` (by header)."""
    speed_up: float = 1.0
    """Arrival times are divided by this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Everything that decides which requests are sent and when."""

    mode: LoadMode = LoadMode.CLOSED
    concurrency: int = 16
    """Clients of a closed loop; the upper bound of requests in flight of an open loop when positive (0 = unbounded)."""
    rate: float = 0.0
    """Requests per second of an open loop."""
    arrival: Arrival = Arrival.POISSON
    burstiness: float = 1.0
    input_tokens: Lengths = Lengths()
    output_tokens: Lengths = Lengths(mean=64.0)
    shared_prefix: SharedPrefix = SharedPrefix()
    trace: TraceSource | None = None
    prompt_format: PromptFormat = PromptFormat.TOKENS
    temperature: float | None = None
    """Sampling temperature; ``None`` leaves the server's own default."""
    ignore_eos: bool = True
    """Every answer has exactly the drawn length."""
    request_timeout: float = 120.0
    """Seconds after which one request counts as failed."""
