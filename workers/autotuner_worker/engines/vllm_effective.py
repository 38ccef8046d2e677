"""Compares what was asked of vLLM with what the running engine says about itself: ignored flags show here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from autotuner.core.space import Config, EngineDescription, Value

__all__ = ["effective_values", "ignored_flags", "static_no_ops"]

_PLACES: Mapping[str, str] = {
    "attention_backend": "attention_config.backend",
    "cpu_offload_gb": "offload_config.uva.cpu_offload_gb",
    "kv_cache_dtype": "cache_config.cache_dtype",
    "scheduling_policy": "scheduler_config.policy",
    "spec_method": "speculative_config.method",
    "spec_model": "speculative_config.model",
    "spec_tokens": "speculative_config.num_speculative_tokens",
}
"""Flags whose value lives under another name."""
_SECTIONS = (
    "scheduler_config.",
    "cache_config.",
    "model_config.",
    "parallel_config.",
    "compilation_config.",
    "speculative_config.",
    "kernel_config.",
    "attention_config.",
    "load_config.",
    "lora_config.",
    "observability_config.",
    "offload_config.",
    "offload_config.uva.",
    "offload_config.prefetch.",
    "",
)
"""Where a flag is looked for under its own name, in this order."""
_REFINED = frozenset(
    {"quantization", "spec_method", "speculative_config.method", "model", "tokenizer", "served_model_name"}
)
"""vLLM replaces these by a more exact name of the same thing."""
_SAME = {"half": "float16", "float": "float32", "fp8_e4m3": "fp8", "true": "1", "false": "0"}

_CPU_NO_OPS: Mapping[str, str] = {
    "async_scheduling": "a CPU engine always schedules synchronously",
    "cpu_offload_gb": "weights already lie in host memory",
    "disable_cascade_attn": "this engine has no cascade attention any more",
    "disable_custom_all_reduce": "custom all-reduce exists on GPUs only",
    "enable_flashinfer_autotune": "FlashInfer exists on GPUs only",
    "cudagraph_capture_sizes": "graphs are captured on GPUs only",
    "max_cudagraph_capture_size": "graphs are captured on GPUs only",
    "compilation_config.cudagraph_mode": "graphs are captured on GPUs only",
    "kv_cache_dtype=turboquant_3bit_nc": "accepted on a CPU, but the cache stays as it is",
    "kv_cache_dtype=turboquant_4bit_nc": "accepted on a CPU, but the cache stays as it is",
    "kv_cache_dtype=turboquant_k3v4_nc": "accepted on a CPU, but the cache stays as it is",
    "kv_cache_dtype=turboquant_k8v4": "accepted on a CPU, but the cache stays as it is",
}
_ALL_NO_OPS: Mapping[str, str] = {"disable_cascade_attn": "this engine has no cascade attention any more"}


def static_no_ops(platform: str) -> dict[str, str]:
    """Return the flags (or ``flag=value``) that a platform accepts and ignores → the reason."""
    return dict(_CPU_NO_OPS if platform == "cpu" else _ALL_NO_OPS)


def effective_values(config: Config, reported: Mapping[str, Value]) -> dict[str, str]:
    """Return the reported value of every flag in *config* for which the engine reports one.

    Args:
        config: What was asked for; dotted names address parts of JSON flags.
        reported: ``section.field`` → value, as :class:`autotuner_worker.engines.http.LiveState` holds it.
    """
    found: dict[str, str] = {}
    for name in sorted(config):
        for place in _candidates(name):
            if place in reported:
                found[name] = str(reported[place])
                break
    return found


def _candidates(name: str) -> Iterator[str]:
    if name in _PLACES:
        yield _PLACES[name]
    if "." in name:
        yield name
        return
    for section in _SECTIONS:
        yield section + name


def ignored_flags(
    config: Config, effective: Mapping[str, str], description: EngineDescription | None = None
) -> tuple[str, ...]:
    """Return the names in *config* that had no effect: the engine reports another value, or is known to ignore them."""
    known = description.no_ops if description else {}
    ignored = {name for name, value in effective.items() if name in config and _differs(name, config[name], value)}
    ignored |= {name for name, value in config.items() if name in known or f"{name}={value}" in known}
    if "gpu_memory_utilization" in config and "kv_cache_memory_bytes" in config:
        ignored.add("gpu_memory_utilization")  # the bytes decide
    return tuple(sorted(ignored))


def _differs(name: str, asked: Value, effective: str) -> bool:
    wanted = str(asked).lower()
    if name in _REFINED or wanted in ("auto", ""):
        return False
    return _plain(name, wanted) != _plain(name, effective.lower())


def _plain(name: str, value: str) -> str:
    value = _SAME.get(value, value)
    if name == "optimization_level":
        value = value.removeprefix("o")
    try:
        return repr(float(value))
    except ValueError:
        return value
