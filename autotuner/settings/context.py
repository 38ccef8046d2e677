"""What the proposals for the search space depend on, as one value with the questions that they ask."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from autotuner.core.space import Config, EngineDescription, Parameter, Value
from autotuner.core.study import Hardware
from autotuner.core.workload import LengthKind, Lengths, LoadMode, Workload
from autotuner.settings.study_file import DraftSection

__all__ = ["Proposal", "SpaceContext", "powers_of_two"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The answer of the catalogue for one parameter."""

    reason: str
    """Why it is searched, offered, or impossible here; for people."""
    parameter: Parameter | None = None
    """Its automatic domain; ``None`` when it cannot be searched here."""
    auto: bool = False
    """Part of the automatic space."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceContext:
    """Engine, device, traffic and fixed flags."""

    engine: EngineDescription
    hardware: Hardware
    workload: Workload
    fixed: Config = field(default_factory=dict)
    """Flags of ``engine.args``."""
    searched: frozenset[str] = frozenset()
    """Parameters that the study asks for by name: they count as present for the conditions of others."""
    draft: DraftSection | None = None

    @property
    def cpu(self) -> bool:
        """The engine computes on the CPU."""
        return self.engine.platform == "cpu"

    @property
    def gpu_like_cuda(self) -> bool:
        """The engine runs on NVIDIA's platform."""
        return self.engine.platform == "cuda"

    def fact(self, name: str) -> int:
        """Return a whole-number fact of the model, 0 when unknown."""
        value = self.engine.model.get(name, 0)
        return int(value) if isinstance(value, int | float) else 0

    def knows(self, name: str) -> bool:
        """Return whether a yes-or-no fact of the model is true."""
        return self.engine.model.get(name) is True

    def default(self, name: str) -> Value | None:
        """Return the value that the engine uses without being told."""
        if name in self.engine.context_defaults:
            return self.engine.context_defaults[name]
        flag = self.engine.flag(name)
        return flag.default if flag is not None and "." not in name else None

    def number(self, name: str, fallback: int) -> int:
        """Return the fixed or default value of a numeric flag."""
        value = self.fixed.get(name, self.default(name))
        return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else fallback

    @property
    def max_model_len(self) -> int:
        """Longest sequence that the engine will accept; 0 when unknown."""
        return self.number("max_model_len", self.fact("max_position_embeddings"))

    @property
    def prompt_tokens(self) -> float:
        """A long but ordinary prompt."""
        return typical_high(self.workload.input_tokens)

    @property
    def answer_tokens(self) -> float:
        """A long but ordinary answer."""
        return typical_high(self.workload.output_tokens)

    @property
    def clients(self) -> int:
        """Requests in flight that the traffic can reach; 0 when unbounded."""
        return max(0, self.workload.concurrency)

    @property
    def repeats_prompts(self) -> bool:
        """Prompts share beginnings, or may do so."""
        return self.workload.shared_prefix.tokens > 0

    @property
    def closed(self) -> bool:
        """The traffic is a closed loop."""
        return self.workload.mode is LoadMode.CLOSED

    def memory_ranks(self) -> int:
        """Return the number of devices that the weights need at least, 1 when unknown."""
        weights, memory = self.fact("weight_bytes"), self.hardware.memory_bytes
        return max(1, math.ceil(weights / (0.9 * memory))) if weights and memory and not self.cpu else 1

    def capability_below(self, needed: float) -> bool:
        """Return whether the GPU is known to be older than compute capability *needed*."""
        return 0 < self.hardware.compute_capability < needed


def typical_high(lengths: Lengths) -> float:
    """Return a length that few draws exceed."""
    if lengths.kind is LengthKind.TRACE:
        return 4096.0
    factor = {LengthKind.UNIFORM: 1.0, LengthKind.NORMAL: 2.0, LengthKind.LOGNORMAL: 3.0}.get(lengths.kind, 0.0)
    return min(lengths.mean + factor * lengths.spread, float(lengths.high))


def powers_of_two(low: int, high: int) -> tuple[int, ...]:
    """Return the powers of two in ``low..high``."""
    return tuple(2**power for power in range(40) if low <= 2**power <= high)
