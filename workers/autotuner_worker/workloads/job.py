"""What one generator process is asked to do, as a value that travels as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from autotuner.core.workload import (
    Arrival,
    LengthKind,
    Lengths,
    LoadMode,
    PromptFormat,
    SharedPrefix,
    TraceSource,
    Workload,
)

__all__ = ["Job", "prompt_seed"]


def prompt_seed(seed: int, salt: int) -> int:
    """Return the seed of the prompts' content: equal schedules with different salts share no prompt."""
    return (seed * 1_000_003 + salt) & 0xFFFFFFFFFFFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One shard of a segment's load."""

    base_url: str
    model_name: str
    workload: Workload
    seed: int
    """Decides the schedule."""
    vocabulary: int
    salt: int = 0
    """Decides the prompts' content together with the seed."""
    shard: int = 0
    shards: int = 1
    """Request *i* of the schedule belongs to shard ``i % shards``."""
    exact: int | None = None
    """Send the first so many requests of the schedule (all shards together) and end; ``None`` goes on until stopped."""
    context: int | None = None
    """The model's context in tokens: longer requests of a trace are clamped."""
    pool_text: str = ""
    """Text to cut text prompts from."""
    pool_tokens: float = 0.0
    """Tokens in ``pool_text``."""
    records_path: str = ""
    """Where the shard's records go, with the monotonic clock of the host as time."""
    report_every: float = 0.2

    @property
    def prompt_seed(self) -> int:
        """Seed of the prompts' content."""
        return prompt_seed(self.seed, self.salt)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object that :meth:`from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Job:
        """Return the job of a JSON object made by :meth:`to_json`."""
        return cls(**{**value, "workload": _workload(value["workload"])})

    @property
    def clients(self) -> int:
        """This shard's part of the workload's concurrency; at least 1 when there is a bound."""
        total, more = divmod(self.workload.concurrency, self.shards)
        return total + (1 if self.shard < more else 0)


def _workload(value: Mapping[str, Any]) -> Workload:
    trace = value["trace"]
    return Workload(
        **{
            **value,
            "mode": LoadMode(value["mode"]),
            "arrival": Arrival(value["arrival"]),
            "input_tokens": _lengths(value["input_tokens"]),
            "output_tokens": _lengths(value["output_tokens"]),
            "shared_prefix": SharedPrefix(**value["shared_prefix"]),
            "trace": None if trace is None else TraceSource(**trace),
            "prompt_format": PromptFormat(value["prompt_format"]),
        }
    )


def _lengths(value: Mapping[str, Any]) -> Lengths:
    return Lengths(**{**value, "kind": LengthKind(value["kind"])})
