"""Values that the engine, the model or the device cannot take, and the rules across parameters.

An *impossible* value (the engine or the model refuses it) is an error.  A value that only this device cannot take is
left out of the search with a note, so that one study file serves several machines (R18).
"""

from __future__ import annotations

from collections.abc import Iterator

from autotuner.core.space import Condition, Config, CrossRule, Value
from autotuner.settings.catalog import PRECISIONS
from autotuner.settings.context import SpaceContext

__all__ = ["cross_rules", "impossible", "unfit_here"]

_AT_LEAST_ONE = (
    "block_size",
    "data_parallel_size",
    "kv_cache_memory_bytes",
    "max_num_batched_tokens",
    "max_num_seqs",
    "pipeline_parallel_size",
    "tensor_parallel_size",
)


def impossible(name: str, value: Value, context: SpaceContext) -> tuple[str, str] | None:
    """Return message and remedy when engine or model refuse *value*, else ``None``."""
    if isinstance(value, bool | str):
        return None
    heads, longest = context.fact("num_attention_heads"), context.fact("max_position_embeddings")
    if name in _AT_LEAST_ONE and value < 1:
        return "below 1", "give at least 1"
    if name == "gpu_memory_utilization" and not 0 < value <= 1:
        return "not a share of the memory", "give more than 0 and at most 1"
    if name == "block_size":
        unit = {"cpu": 32, "xpu": 64}.get(context.engine.platform, 16)
        if value % unit:
            return (
                f"the attention kernels of {context.engine.platform} need multiples of {unit}",
                f"give {unit} or more",
            )
    if name == "tensor_parallel_size" and heads and heads % value:
        return f"does not divide the model's {heads} attention heads", "give a divisor"
    if name == "max_model_len" and longest and value > longest:
        return f"the model has {longest} positions", f"give at most {longest}"
    return None


def unfit_here(name: str, value: Value, context: SpaceContext) -> str | None:
    """Return why this device cannot use *value*, else ``None``."""
    hardware = context.hardware
    capability = f"compute capability {hardware.compute_capability:g}"
    if name in {"tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"} and not context.cpu:
        if isinstance(value, int) and value > hardware.count:
            return f"needs {value} GPUs, there {'is' if hardware.count == 1 else 'are'} {hardware.count}"
        return None
    if not context.gpu_like_cuda:
        return None
    if name == "quantization" and isinstance(value, str) and context.capability_below(PRECISIONS.get(value, 0.0)):
        return f"{value} needs compute capability {PRECISIONS[value]:g}, this is {hardware.compute_capability:g}"
    if name == "kv_cache_dtype" and str(value).startswith("fp8") and context.capability_below(8.9):
        return f"no fast fp8 at {capability}"
    if name == "dtype" and value == "bfloat16" and context.capability_below(8.0):
        return f"no bfloat16 at {capability}"
    return None


def cross_rules(context: SpaceContext, fixed: Config, searched: frozenset[str]) -> tuple[CrossRule, ...]:
    """Return the rules that the engine enforces between the flags that are searched or fixed."""
    present = searched | fixed.keys()
    return tuple(
        rule
        for rule in _rules(context, fixed, present)
        if {rule.left, *rule.factors} & searched or _asks(rule, searched)
    )


def _asks(rule: CrossRule, searched: frozenset[str]) -> bool:
    return rule.right in searched or (rule.when is not None and rule.when.parameter in searched)


def _rules(context: SpaceContext, fixed: Config, present: frozenset[str]) -> Iterator[CrossRule]:
    longest: str | float = "max_model_len" if "max_model_len" in present else float(context.max_model_len)
    yield CrossRule(
        left="max_num_batched_tokens",
        relation=">=",
        right="max_num_seqs",
        reason="max_num_batched_tokens must be at least max_num_seqs",
    )
    if longest and "enable_chunked_prefill" in present:
        yield CrossRule(
            left="max_num_batched_tokens",
            relation=">=",
            right=longest,
            reason="without chunked prefill max_num_batched_tokens must be at least max_model_len",
            when=Condition(parameter="enable_chunked_prefill", values=(False,)),
        )
    if longest:
        yield CrossRule(
            left="long_prefill_token_threshold",
            relation="<=",
            right=longest,
            reason="long_prefill_token_threshold must not exceed max_model_len",
        )
    positions = context.fact("max_position_embeddings")
    if positions:
        yield CrossRule(
            left="max_model_len",
            relation="<=",
            right=float(positions),
            reason=f"max_model_len must not exceed the model's {positions} positions",
        )
    if not context.cpu:
        yield from _device_rules(context, fixed, present)


def _device_rules(context: SpaceContext, fixed: Config, present: frozenset[str]) -> Iterator[CrossRule]:
    others = ("pipeline_parallel_size", "data_parallel_size")
    count, ranks = context.hardware.count, context.memory_ranks()
    yield CrossRule(
        left="tensor_parallel_size",
        factors=others,
        relation="<=",
        right=float(count),
        reason=f"tensor × pipeline × data parallel size must not exceed {count} GPUs",
    )
    if 1 < ranks <= count:
        spread = fixed.get("enable_expert_parallel") is True
        searched = "enable_expert_parallel" in present and "enable_expert_parallel" not in fixed
        yield CrossRule(
            left="tensor_parallel_size",
            factors=others if spread or searched else others[:1],
            relation=">=",
            right=float(ranks),
            reason=f"the weights need at least {ranks} GPUs",
        )
        if searched:
            yield CrossRule(
                left="tensor_parallel_size",
                factors=others[:1],
                relation=">=",
                right=float(ranks),
                reason=f"without expert parallelism each replica needs at least {ranks} GPUs",
                when=Condition(parameter="enable_expert_parallel", values=(False,)),
            )
