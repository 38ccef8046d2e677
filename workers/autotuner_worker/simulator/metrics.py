"""The engine's metrics under vLLM's names, in Prometheus' text format.

Only what the simulator really does is counted; a metric that has no meaning here is not exposed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

__all__ = ["EngineMetrics", "Histogram"]

_TTFT = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
_TOKEN = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_REQUEST = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0,
    7680.0,
)  # fmt: skip
_ITERATION = (1.0, *(float(2**power) for power in range(3, 15)))
_LENGTHS = tuple(float(step * 10**power) for power in range(5) for step in (1, 2, 5))

_HISTOGRAMS: dict[str, tuple[float, ...]] = {
    "vllm:time_to_first_token_seconds": _TTFT,
    "vllm:inter_token_latency_seconds": _TOKEN,
    "vllm:request_time_per_output_token_seconds": _TOKEN,
    "vllm:e2e_request_latency_seconds": _REQUEST,
    "vllm:request_queue_time_seconds": _REQUEST,
    "vllm:request_inference_time_seconds": _REQUEST,
    "vllm:request_prefill_time_seconds": _REQUEST,
    "vllm:request_decode_time_seconds": _REQUEST,
    "vllm:iteration_tokens_total": _ITERATION,
    "vllm:request_prompt_tokens": _LENGTHS,
    "vllm:request_generation_tokens": _LENGTHS,
}

_COUNTERS = (
    "vllm:num_preemptions",
    "vllm:prompt_tokens",
    "vllm:prompt_tokens_cached",
    "vllm:generation_tokens",
    "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits",
)
_SPECULATIVE = (
    "vllm:spec_decode_num_drafts",
    "vllm:spec_decode_num_draft_tokens",
    "vllm:spec_decode_num_accepted_tokens",
)
_REASONS = ("stop", "length", "abort", "error")


class Histogram:
    """A cumulative histogram with fixed buckets."""

    __slots__ = ("_bounds", "_counts", "count", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.count = 0

    def observe(self, value: float, times: int = 1) -> None:
        """Count *value*, *times* times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self.total += value * times
        self.count += times

    def lines(self, name: str, labels: str) -> list[str]:
        """Return the samples in text format."""
        found, running = [], 0
        for bound, count in zip(self._bounds, self._counts, strict=False):
            running += count
            found.append(f'{name}_bucket{{le="{bound}",{labels}}} {float(running)}')
        found.append(f'{name}_bucket{{le="+Inf",{labels}}} {float(self.count)}')
        found.append(f"{name}_count{{{labels}}} {float(self.count)}")
        found.append(f"{name}_sum{{{labels}}} {self.total}")
        return found


class EngineMetrics:
    """All counters and histograms of one engine."""

    def __init__(self, *, model_name: str, cache_info: Mapping[str, object], drafts: int, exposed: bool = True) -> None:
        self._exposed = exposed
        self._labels = f'engine="0",model_name="{_escape(model_name)}"'
        self._cache_info = dict(cache_info)
        names = _COUNTERS + (_SPECULATIVE if drafts else ())
        self.counters: dict[str, float] = dict.fromkeys(names, 0.0)
        self.histograms = {name: Histogram(bounds) for name, bounds in _HISTOGRAMS.items()}
        self.finished = dict.fromkeys(_REASONS, 0)
        self.accepted_at = [0] * drafts

    def add(self, name: str, amount: float) -> None:
        """Increase the counter *name*."""
        self.counters[name] += amount

    def observe(self, name: str, value: float, times: int = 1) -> None:
        """Count *value* in the histogram *name*."""
        self.histograms[name].observe(value, times)

    def draft(self, drafted: int, accepted: int) -> None:
        """Count one verification of *drafted* tokens of which the first *accepted* were right."""
        self.counters[_SPECULATIVE[0]] += 1
        self.counters[_SPECULATIVE[1]] += drafted
        self.counters[_SPECULATIVE[2]] += accepted
        for position in range(accepted):
            self.accepted_at[position] += 1

    def render(self, *, running: int, waiting: int, kv_usage: float) -> str:
        """Return the exposition; empty when statistics are off."""
        if not self._exposed:
            return ""
        gauges = {
            "vllm:num_requests_running": running,
            "vllm:num_requests_waiting": waiting,
            "vllm:kv_cache_usage_perc": kv_usage,
        }
        lines: list[str] = []
        for name, value in gauges.items():
            lines += [f"# TYPE {name} gauge", f"{name}{{{self._labels}}} {float(value)}"]
        for name, value in self.counters.items():
            lines += [f"# TYPE {name}_total counter", f"{name}_total{{{self._labels}}} {value}"]
        lines += self._labelled()
        for name, histogram in self.histograms.items():
            lines += [f"# TYPE {name} histogram", *histogram.lines(name, self._labels)]
        return "\n".join(lines) + "\n"

    def _labelled(self) -> list[str]:
        lines = ["# TYPE vllm:request_success_total counter"]
        for reason, count in self.finished.items():
            lines.append(f'vllm:request_success_total{{{self._labels},finished_reason="{reason}"}} {float(count)}')
        if self.accepted_at:
            name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
            lines.append(f"# TYPE {name} counter")
            for position, count in enumerate(self.accepted_at):
                lines.append(f'{name}{{{self._labels},position="{position}"}} {float(count)}')
        info = ",".join(f'{name}="{_escape(str(value))}"' for name, value in self._cache_info.items())
        lines += ["# TYPE vllm:cache_config_info gauge", f'vllm:cache_config_info{{engine="0",{info}}} 1.0']
        return lines


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
