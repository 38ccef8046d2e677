"""The response surface: pure functions from a configuration and a step's load to seconds and bytes.

The formulae and their constants are in the package's docstring.  Nothing here reads a clock, draws a number or waits.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from dataclasses import dataclass

from autotuner_worker.simulator.models import Device, ModelFacts

__all__ = [
    "CostProfile",
    "MemoryPlan",
    "NoMemory",
    "Speculation",
    "StepCost",
    "StepLoad",
    "SurfaceSettings",
    "cost_profile",
    "memory_plan",
    "oom_probability",
    "oom_strikes",
    "scheduling_share",
    "startup_phases",
    "steady_throughput",
    "step_cost",
]

REFERENCE_PARAMETERS = 7.0e9
SMALLEST_PARAMETERS = 3.0e9
"""Smaller models take the time of this one: beyond some ten thousand tokens/s the simulator itself would be measured."""
OVERHEAD_S = 0.4e-3
SYNCHRONOUS_EXTRA_S = 0.4e-3
DECODE_TOKEN_S = 0.4e-3
PREFILL_TOKEN_S = 0.033e-3
PREFILL_SQUARE_TOKENS = 40_000.0
PREFILL_ATTENTION_S = 2.1e-13
EXCHANGE_S = 0.35e-3
EAGER_FACTOR = 1.0 / 0.85
BLOCK_LOOKUP = 8.0
SHARP = 4.0
SHARE_FLAT, SHARE_RISE, SHARE_KNEE, SHARE_MAX = 0.03, 0.12, 24, 0.5
OOM_TABLE = ((0.80, 0.0), (0.85, 0.05), (0.90, 0.18), (0.95, 0.43), (1.0, 0.75))
"""R7's table, with a safe and a hopeless end."""

QUANTIZATION: dict[str, tuple[float, float]] = {
    "fp8": (0.5, 0.6),
    "awq": (0.28, 1.15),
    "gptq": (0.28, 1.15),
    "int8_per_channel_weight_only": (0.5, 1.05),
}
"""Method → (weight bytes relative to 16 bit, arithmetic relative to 16 bit)."""

SPECULATION: dict[str, tuple[float, float, float]] = {
    "ngram": (0.60, 0.02e-3, 0.0),
    "suffix": (0.65, 0.03e-3, 0.0),
    "draft_model": (0.75, 0.0, 0.08),
    "eagle": (0.78, 0.0, 0.04),
    "eagle3": (0.82, 0.0, 0.04),
    "mtp": (0.80, 0.0, 0.03),
}
"""Method → (acceptance per draft, host seconds per sequence, share of the weights read per draft)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """A speculative method and its number of drafts per step."""

    method: str
    drafts: int

    def acceptance(self, temperature: float) -> float:
        """Return the probability that one draft is accepted, given that the ones before it were."""
        return SPECULATION[self.method][0] * (1.0 - 0.4 * min(max(temperature, 0.0), 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceSettings:
    """The part of a configuration that the surface depends on; every default is resolved."""

    model: ModelFacts
    device: Device
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int
    gpu_memory_utilization: float
    kv_cache_memory_bytes: int | None
    num_gpu_blocks_override: int | None
    float32: bool
    kv_bytes_per_value: float
    quantization: str | None
    enforce_eager: bool
    async_scheduling: bool
    tensor_parallel_size: int
    speculation: Speculation | None

    @property
    def weight_bytes(self) -> float:
        """Bytes of the weights on one device."""
        per_parameter = 4.0 if self.float32 else 2.0
        share = QUANTIZATION[self.quantization][0] if self.quantization else 1.0
        return self.model.parameters * per_parameter * share / self.tensor_parallel_size

    @property
    def kv_token_bytes(self) -> float:
        """Bytes of KV cache per token on one device."""
        return self.model.kv_token_bytes(self.kv_bytes_per_value) / self.tensor_parallel_size


@dataclass(frozen=True, slots=True, kw_only=True)
class CostProfile:
    """The coefficients of the step formula for one configuration, in seconds."""

    overhead: float
    weights: float
    decode_token: float
    prefill_token: float
    prefill_attention: float
    context_token: float
    draft_sequence: float
    draft_step: float
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLoad:
    """What one step processes."""

    sequences: int = 0
    """Sequences in the step, prefilling ones included."""
    decode_sequences: int = 0
    decode_tokens: int = 0
    """Tokens of decoding sequences, drafts included."""
    prefill_tokens: int = 0
    context_tokens: int = 0
    """Context read by the decoding sequences."""
    prefill_attention: float = 0.0
    """Sum over prefill chunks of chunk length × mean context length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """The seconds of one step."""

    device: float
    scheduling: float

    @property
    def total(self) -> float:
        """Device and scheduling time together."""
        return self.device + self.scheduling


def cost_profile(settings: SurfaceSettings) -> CostProfile:
    """Return the coefficients for *settings*."""
    ways = settings.tensor_parallel_size
    bandwidth = settings.device.bandwidth
    slowed = max(settings.model.parameters, SMALLEST_PARAMETERS)
    size = slowed / REFERENCE_PARAMETERS
    format_factor = (2.0 if settings.float32 else 1.0) * (
        QUANTIZATION[settings.quantization][1] if settings.quantization else 1.0
    )
    arithmetic = size * format_factor / settings.device.arithmetic / ways
    weights = settings.weight_bytes / bandwidth * slowed / settings.model.parameters
    draft_sequence = draft_step = 0.0
    if settings.speculation is not None:
        _, draft_sequence, share = SPECULATION[settings.speculation.method]
        draft_step = share * weights * settings.speculation.drafts
    return CostProfile(
        overhead=OVERHEAD_S
        + (0.0 if settings.async_scheduling else SYNCHRONOUS_EXTRA_S)
        + (EXCHANGE_S * math.log2(ways) if ways > 1 else 0.0),
        weights=weights,
        decode_token=DECODE_TOKEN_S * arithmetic,
        prefill_token=PREFILL_TOKEN_S * arithmetic,
        prefill_attention=PREFILL_ATTENTION_S * arithmetic,
        context_token=settings.kv_token_bytes / bandwidth * (1.0 + BLOCK_LOOKUP / settings.block_size),
        draft_sequence=draft_sequence,
        draft_step=draft_step,
        factor=EAGER_FACTOR if settings.enforce_eager else 1.0,
    )


def scheduling_share(sequences: int) -> float:
    """Return the share of a step that scheduling takes (R3)."""
    return min(SHARE_MAX, SHARE_FLAT + SHARE_RISE * max(0, sequences - SHARE_KNEE) / SHARE_KNEE)


def step_cost(profile: CostProfile, load: StepLoad) -> StepCost:
    """Return the time of one step under *load*."""
    memory = profile.weights + load.context_tokens * profile.context_token
    compute = (
        load.decode_tokens * profile.decode_token
        + load.prefill_tokens * profile.prefill_token * (1.0 + load.prefill_tokens / PREFILL_SQUARE_TOKENS)
        + load.prefill_attention * profile.prefill_attention
    )
    bound = (memory**SHARP + compute**SHARP) ** (1.0 / SHARP)
    drafting = (profile.draft_step + load.decode_sequences * profile.draft_sequence) if load.decode_sequences else 0.0
    device = (profile.overhead + bound + drafting) * profile.factor
    share = scheduling_share(load.sequences)
    return StepCost(device=device, scheduling=device * share / (1.0 - share))


def steady_throughput(settings: SurfaceSettings, batch: int, context: int = 0, temperature: float = 0.0) -> float:
    """Return generated tokens per second of *batch* sequences that only decode, each with *context* tokens."""
    drafts = settings.speculation.drafts if settings.speculation else 0
    gained = 1.0
    if settings.speculation is not None:
        accepted = settings.speculation.acceptance(temperature)
        gained = sum(accepted**position for position in range(drafts + 1))
    load = StepLoad(
        sequences=batch,
        decode_sequences=batch,
        decode_tokens=batch * (1 + drafts),
        context_tokens=batch * context,
    )
    return batch * gained / step_cost(cost_profile(settings), load).total


class NoMemory(Exception):
    """The configuration does not fit; ``lines`` are the last lines of the log, the cause first."""

    def __init__(self, *lines: str) -> None:
        self.lines = lines
        super().__init__(lines[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Where the device's memory goes, in bytes, and the KV cache that results."""

    weights: float
    activations: float
    graphs: float
    kv_cache: float
    num_blocks: int
    block_size: int
    utilisation: float
    """Share of the device's memory that the engine may use in the end."""

    @property
    def kv_tokens(self) -> int:
        """Tokens that fit the KV cache."""
        return self.num_blocks * self.block_size


def memory_plan(settings: SurfaceSettings) -> MemoryPlan:
    """Return the memory plan of a start; raise ``NoMemory`` when there is no room."""
    total = settings.device.memory_bytes
    free = total - settings.device.reserved_bytes
    desired = settings.gpu_memory_utilization * total
    weights = settings.weight_bytes
    activations = (
        settings.max_num_batched_tokens * settings.model.hidden * 2.0 * 24 / settings.tensor_parallel_size
        + settings.max_num_seqs * settings.model.vocabulary * 4.0 * 2
    )
    graphs = 0.0 if settings.enforce_eager else 0.35 * _GIB + min(settings.max_num_seqs, 512) * 0.5 * 1024**2
    if weights > free:
        raise NoMemory(_cuda_oom(weights / settings.model.layers, total))
    explicit = settings.kv_cache_memory_bytes
    if explicit is None and desired > free:
        raise NoMemory(
            f"ValueError: Free memory on device cuda:0 ({free / _GIB:.2f}/{total / _GIB:.2f} GiB) on startup is less than "
            f"desired GPU memory utilization ({settings.gpu_memory_utilization}, {desired / _GIB:.2f} GiB). "
            "Decrease GPU memory utilization or reduce GPU memory used by other processes."
        )
    kv_cache = float(explicit) if explicit is not None else desired - weights - activations - graphs
    if kv_cache <= 0:
        raise NoMemory(
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
            "initializing the engine."
        )
    if weights + activations + graphs + kv_cache > free:
        raise NoMemory(_cuda_oom(kv_cache / settings.model.layers, total))
    return _with_blocks(settings, weights, activations, graphs, kv_cache)


def _with_blocks(
    settings: SurfaceSettings, weights: float, activations: float, graphs: float, kv_cache: float
) -> MemoryPlan:
    """Cut the KV cache into blocks and check that the longest request fits."""
    block = settings.block_size
    metadata = 1.0 - 0.05 * max(0.0, math.log2(block / 32))
    blocks = int(kv_cache * metadata / (block * settings.kv_token_bytes))
    if settings.num_gpu_blocks_override is not None:
        blocks = settings.num_gpu_blocks_override
    if blocks * block < settings.max_model_len:
        needed = settings.max_model_len * settings.kv_token_bytes / _GIB
        available = blocks * block * settings.kv_token_bytes / _GIB
        raise NoMemory(
            f"ValueError: To serve at least one request with the model's max seq len ({settings.max_model_len}), "
            f"({needed:.2f} GiB KV cache is needed, which is larger than the available KV cache memory "
            f"({available:.2f} GiB). Based on the available memory, the estimated maximum model length is "
            f"{blocks * block}. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when "
            "initializing the engine."
        )
    used = weights + activations + graphs + min(kv_cache, blocks * block * settings.kv_token_bytes / metadata)
    return MemoryPlan(
        weights=weights,
        activations=activations,
        graphs=graphs,
        kv_cache=kv_cache,
        num_blocks=blocks,
        block_size=block,
        utilisation=min(1.0, used / settings.device.memory_bytes),
    )


def _cuda_oom(wanted: float, total: float) -> str:
    """Return the message of a failed allocation."""
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {max(wanted, 2**20) / _GIB:.2f} GiB. GPU 0 has a "
        f"total capacity of {total / _GIB:.2f} GiB of which 301.25 MiB is free."
    )


def oom_probability(utilisation: float) -> float:
    """Return the probability (R7) that an engine using *utilisation* of the memory runs out of it under full load."""
    if utilisation <= OOM_TABLE[0][0]:
        return 0.0
    for (left, low), (right, high) in itertools.pairwise(OOM_TABLE):
        if utilisation <= right:
            return low + (high - low) * (utilisation - left) / (right - left)
    return OOM_TABLE[-1][1]


def oom_strikes(seed: int, config_key: str, utilisation: float) -> bool:
    """Return whether a launch of *config_key* runs out of memory under load: a draw fixed by *seed* and configuration."""
    digest = hashlib.blake2b(f"{seed}|{config_key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64 < oom_probability(utilisation)


def startup_phases(settings: SurfaceSettings, compiled_before: bool) -> dict[str, float]:
    """Return start-up phase → unscaled seconds, in order."""
    phases = {"import": 16.0, "load_weights": 1.0 + settings.weight_bytes / 2.5e9}
    if not settings.enforce_eager:
        phases["compile"] = 6.0 if compiled_before else 32.0
    phases["profile"] = 2.5
    if not settings.enforce_eager:
        phases["capture"] = 4.0 + min(settings.max_num_seqs, 512) / 64
    phases["warmup"] = 1.0
    return phases


_GIB = 1024**3
