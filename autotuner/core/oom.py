"""What is known about memory before a launch: the risk of running out (R7) and the KV cache that one request needs."""

from __future__ import annotations

import math

from autotuner.core.space import Config, EngineDescription

__all__ = ["KV_DTYPE_BYTES", "OOM_PRIOR", "kv_bytes_per_token", "kv_shortage", "oom_probability"]

OOM_PRIOR: tuple[tuple[float, float], ...] = ((0.85, 0.05), (0.90, 0.18), (0.95, 0.43))
"""``gpu_memory_utilization`` → probability of running out of memory, from 200 stress tests of a 7B model on a 40 GB
card.  A prior, not a truth: observed launches at or above a utilisation move it."""

KV_DTYPE_BYTES = {"fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "float32": 4, "float": 4}


def _logit(probability: float) -> float:
    return math.log(probability / (1.0 - probability))


def _prior(utilization: float) -> float:
    """Interpolate the table in log-odds; beyond its ends the nearest segment's slope goes on."""
    points = [(x, _logit(p)) for x, p in OOM_PRIOR]
    index = 0 if utilization < points[1][0] else 1
    (x0, y0), (x1, y1) = points[index], points[index + 1]
    y = y0 + (y1 - y0) * (utilization - x0) / (x1 - x0)
    return 1.0 / (1.0 + math.exp(-y))


def oom_probability(utilization: float, observed: tuple[tuple[float, bool], ...] = (), weight: float = 4.0) -> float:
    """Return the probability of running out of memory at *utilization*.

    ``observed`` lists (utilisation, ran out) of launches on this device.  The prior counts as *weight* launches;
    a success at a higher utilisation and a failure at a lower one bear on this one as well.
    """
    failures = sum(1 for at, failed in observed if failed and at <= utilization)
    successes = sum(1 for at, failed in observed if not failed and at >= utilization)
    return (_prior(utilization) * weight + failures) / (weight + failures + successes)


def kv_bytes_per_token(description: EngineDescription, config: Config) -> int | None:
    """Return the bytes that one token takes in the KV cache over all layers; ``None`` when the model is unknown."""
    model = description.model
    layers, heads = model.get("num_hidden_layers"), model.get("num_key_value_heads")
    size, attention_heads = model.get("hidden_size"), model.get("num_attention_heads")
    if model.get("uses_mla") or not all(isinstance(x, int) and x > 0 for x in (layers, heads, size, attention_heads)):
        return None
    head_dim = model.get("head_dim") or int(size) // int(attention_heads)  # type: ignore[arg-type]
    kind = str(config.get("kv_cache_dtype", "auto"))
    per_value = KV_DTYPE_BYTES.get(str(config.get("dtype", "auto")) if kind == "auto" else kind, 2)
    return 2 * int(layers) * int(heads) * int(head_dim) * per_value  # type: ignore[arg-type]


def kv_shortage(description: EngineDescription, config: Config) -> float:
    """Return by which share the KV cache is too small for one request of full length: 0.0 when it suffices.

    Only judged when the cache has a fixed size in bytes and the model's shape is known.
    """
    size, length = config.get("kv_cache_memory_bytes"), config.get("max_model_len")
    per_token = kv_bytes_per_token(description, config)
    if not isinstance(size, int) or not isinstance(length, int) or per_token is None or size <= 0:
        return 0.0
    shards = config.get("tensor_parallel_size", 1)
    needed = per_token * length / (shards if isinstance(shards, int) and shards > 0 else 1)
    return max(0.0, needed / size - 1.0)
