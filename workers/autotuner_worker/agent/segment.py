"""One segment on one engine: settle, set hot parameters, offer load, and read the engine's own figures around it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import replace

from autotuner.core.space import Value
from autotuner.core.trial import Measurement
from autotuner_worker.ports import Engine, LoadGenerator, ProgressSink, Segment

__all__ = ["engine_figures", "measure"]

SETTLE_SECONDS = 30.0
SAMPLE_SECONDS = 1.0
_GAUGES = {
    "vllm:kv_cache_usage_perc": "kv_cache_usage",
    "vllm:num_requests_running": "requests_running",
    "vllm:num_requests_waiting": "requests_waiting",
}
_COUNTERS = {
    "vllm:num_preemptions_total": "preemptions",
    "vllm:generation_tokens_total": "generation_tokens",
    "vllm:prompt_tokens_total": "prompt_tokens",
}
_RATIOS = {
    "prefix_cache_hit_ratio": ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
    "spec_acceptance_ratio": (
        "vllm:spec_decode_num_accepted_tokens_total",
        "vllm:spec_decode_num_draft_tokens_total",
    ),
    "queue_seconds_mean": ("vllm:request_queue_time_seconds_sum", "vllm:request_queue_time_seconds_count"),
    "prefill_seconds_mean": ("vllm:request_prefill_time_seconds_sum", "vllm:request_prefill_time_seconds_count"),
    "decode_seconds_mean": ("vllm:request_decode_time_seconds_sum", "vllm:request_decode_time_seconds_count"),
    "tokens_per_step_mean": ("vllm:iteration_tokens_total_sum", "vllm:iteration_tokens_total_count"),
}


def engine_figures(
    before: Mapping[str, float], after: Mapping[str, float], samples: list[Mapping[str, float]]
) -> dict[str, float]:
    """Return the engine's own figures over a segment from two scrapes of its counters and samples of its gauges.

    Figures whose metrics the engine does not export are absent, never zero.
    """
    found: dict[str, float] = {}
    for metric, name in _COUNTERS.items():
        if metric in after:
            found[name] = after[metric] - before.get(metric, 0.0)
    for name, (part, whole) in _RATIOS.items():
        total = after.get(whole, 0.0) - before.get(whole, 0.0)
        if total > 0:
            found[name] = (after.get(part, 0.0) - before.get(part, 0.0)) / total
    for metric, name in _GAUGES.items():
        seen = [sample[metric] for sample in samples if metric in sample]
        if seen:
            found[f"{name}_mean"] = sum(seen) / len(seen)
            found[f"{name}_max"] = max(seen)
    return found


async def _sample(engine: Engine, samples: list[Mapping[str, float]]) -> None:
    """Read the engine's gauges once a second until cancelled; a failed read is left out."""
    while True:
        with contextlib.suppress(OSError, ValueError, TimeoutError):
            samples.append(await engine.metrics())
        await asyncio.sleep(SAMPLE_SECONDS)


async def measure(
    engine: Engine, load: LoadGenerator, segment: Segment, hot: Mapping[str, Value], progress: ProgressSink
) -> Measurement:
    """Run *segment* on *engine* with the hot parameters set; raise ``SegmentFault`` or ``EngineDeath``."""
    await engine.settle(SETTLE_SECONDS)
    await engine.apply_hot(hot)
    await engine.reset_caches()
    before, usage = await engine.metrics(), await engine.host_usage()
    samples: list[Mapping[str, float]] = []
    sampler = asyncio.create_task(_sample(engine, samples))
    try:
        measured = await load.run(segment, progress)
    finally:
        sampler.cancel()
        await asyncio.gather(sampler, return_exceptions=True)
    after, used = await engine.metrics(), await engine.host_usage()
    host = {
        "engine_cpu_seconds": used.get("cpu_seconds", 0.0) - usage.get("cpu_seconds", 0.0),
        "engine_rss_bytes": used.get("rss_bytes", 0.0),
    }
    return replace(measured, engine=engine_figures(before, after, samples), host=host)
