"""From raw records to a measurement: throughput by R23, percentiles with intervals, counts.  Pure.

Tokens are attributed to the arrival time of their chunk: the server's own count of an answer is spread evenly over
its content chunks; an answer without a count uses the mean of those that have one.  A request is *measured* when it was
sent in ``[warmup_end, end_time]``; latencies are those of the measured requests that ended well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from autotuner.core import objective
from autotuner.core.budget import PERCENTILES, LatencyMetric, Limit, metric_key
from autotuner.core.trial import Interval, Measurement
from autotuner.observe.latency import design_effect, quantile_interval
from autotuner.observe.records import Records, Status

__all__ = ["count_good", "evaluate", "latency_samples", "measured_rows", "throughput", "token_weights"]

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


def evaluate(
    records: Records,
    *,
    limits: Sequence[Limit] = (),
    warmup_end: float | None = None,
    end_time: float | None = None,
    name: str = "",
) -> Measurement:
    """Return the measurement that *records* hold; the bounds default to those stored in them.

    *limits* decide ``good`` alone. *name* is stored as the measurement's ``records``.
    """
    meta = records.meta
    start = meta.warmup_end if warmup_end is None else warmup_end
    end = meta.end_time if end_time is None else end_time
    times, weights = records.chunk_times, token_weights(records)
    rows = measured_rows(records, start, end)
    status = records.status
    ok = rows & (status == Status.OK)
    first = records.first
    prompts = np.where(records.prompt_tokens >= 0, records.prompt_tokens, records.asked_prompt)
    return Measurement(
        total_tokens=float(weights[times <= end].sum()),
        warmup_tokens=float(weights[times <= start].sum()),
        warmup_end=start,
        end_time=end,
        prompt_tokens=float(prompts[(first > start) & (first <= end)].sum()),
        steady=meta.steady,
        requests=int(rows.sum()),
        ok=int(ok.sum()),
        errors=int((rows & ((status == Status.ERROR) | (status == Status.GARBAGE))).sum()),
        aborted=int((rows & (status == Status.ABORTED)).sum()),
        empty=int((rows & (status == Status.EMPTY)).sum()),
        good=count_good(records, ok, limits) if limits else None,
        latency=_latency(records, ok),
        latency_scheduled=_latency_scheduled(records, ok),
        windows=_windows(times, weights, meta.window, end),
        check=meta.check,
        records=name,
    )


def throughput(measurement: Measurement) -> float:
    """Return generated tokens per second: (total - warm-up tokens) / (end time - warm-up end) (R23)."""
    if measurement.end_time <= measurement.warmup_end:
        return 0.0
    return objective.throughput(
        measurement.total_tokens, measurement.warmup_tokens, measurement.end_time, measurement.warmup_end
    )


def measured_rows(records: Records, warmup_end: float, end_time: float) -> Flags:
    """Return which requests were sent in the measured part, shape ``(n,)``; those cut off are no requests."""
    inside = (records.sent >= warmup_end) & (records.sent <= end_time)
    rows: Flags = inside & (records.status != Status.CUT)
    return rows


def token_weights(records: Records) -> Floats:
    """Return the number of tokens that each content chunk stands for, shape ``(chunks,)``."""
    counts = records.chunk_counts
    known = (records.output_tokens >= 0) & (counts > 0)
    mean = float(records.output_tokens[known].sum()) / float(counts[known].sum()) if known.any() else 1.0
    per_chunk = np.full(len(records), mean)
    per_chunk[known] = records.output_tokens[known] / counts[known]
    weights: Floats = np.repeat(per_chunk, counts)
    return weights


def latency_samples(records: Records, rows: Flags) -> Mapping[LatencyMetric, Floats]:
    """Return the per-request latencies of *rows* in seconds, unsorted; ITL has one entry per gap.

    TPOT exists for answers of two tokens or more only.
    """
    first, last = records.first[rows], records.last[rows]
    sent, tokens = records.sent[rows], records.output_tokens[rows]
    several = tokens > 1
    return {
        LatencyMetric.TTFT: first - sent,
        LatencyMetric.ITL: _gaps(records, rows)[0],
        LatencyMetric.TPOT: (last - first)[several] / (tokens[several] - 1),
        LatencyMetric.E2E: last - sent,
    }


def _gaps(records: Records, rows: Flags) -> tuple[Floats, npt.NDArray[np.int64], Floats]:
    """Return every gap between content chunks of *rows*, its request's number and the time of its end."""
    counts = records.chunk_counts
    owner = np.repeat(np.arange(len(records)), counts)
    within = (owner[1:] == owner[:-1]) & rows[owner[1:]]
    gaps = np.diff(records.chunk_offsets.astype(np.float64))[within]
    return gaps, owner[1:][within], records.chunk_times[1:][within]


def _latency(records: Records, rows: Flags) -> dict[str, Interval]:
    figures: dict[str, Interval] = {}
    for metric, values in latency_samples(records, rows).items():
        if len(values) == 0:
            continue
        ordered = np.sort(values)
        for percentile in PERCENTILES:
            effective = None if metric is not LatencyMetric.ITL else _worth(records, rows, ordered, percentile)
            figures[metric_key(metric, percentile)] = quantile_interval(ordered, percentile, effective)
    return figures


def _worth(records: Records, rows: Flags, ordered: Floats, percentile: float) -> float:
    """Return the number of independent samples that the gaps are worth.

    Gaps are alike within an answer, and across answers at the same moment (one engine step serves them all).
    """
    gaps, owner, times = _gaps(records, rows)
    threshold = float(np.quantile(ordered, percentile / 100.0))
    moments = ((times - times.min()) / 0.25).astype(np.int64)
    shares = percentile / 100.0
    effect = max(design_effect(gaps, owner, threshold, shares), design_effect(gaps, moments, threshold, shares))
    return len(gaps) / effect


def _latency_scheduled(records: Records, rows: Flags) -> dict[str, float]:
    scheduled = records.scheduled[rows]
    figures: dict[str, float] = {}
    for metric, moments in ((LatencyMetric.TTFT, records.first[rows]), (LatencyMetric.E2E, records.last[rows])):
        if len(moments):
            values = np.quantile(moments - scheduled, np.array(PERCENTILES) / 100.0)
            figures |= {metric_key(metric, p): float(v) for p, v in zip(PERCENTILES, values, strict=True)}
    return figures


def count_good(records: Records, rows: Flags, limits: Sequence[Limit]) -> int:
    """Return how many of *rows* keep every limit themselves.

    TTFT, TPOT and E2E are the request's own; its ITL is the limit's percentile of its own gaps.  Answers too short to
    have a TPOT or a gap keep those limits.
    """
    good = rows.copy()
    first, last, tokens = records.first, records.last, records.output_tokens
    with np.errstate(invalid="ignore"):
        own: dict[LatencyMetric, Floats] = {
            LatencyMetric.TTFT: first - records.sent,
            LatencyMetric.TPOT: (last - first) / np.maximum(tokens - 1, 1),
            LatencyMetric.E2E: last - records.sent,
        }
        for limit in limits:
            values = own.get(limit.metric)
            good &= (_own_gap(records, rows, limit.percentile) if values is None else values) <= limit.seconds
    return int(good.sum())


def _own_gap(records: Records, rows: Flags, percentile: float) -> Floats:
    result = np.zeros(len(records))
    index = records.chunk_index
    for row in np.flatnonzero(rows & (records.chunk_counts > 1)):
        gaps = np.diff(records.chunk_offsets[index[row] : index[row + 1]].astype(np.float64))
        result[row] = np.quantile(gaps, percentile / 100.0)
    return result


def _windows(times: Floats, weights: Floats, window: float, end: float) -> tuple[float, ...]:
    count = int(end / window + 1e-9)
    if count <= 0:
        return ()
    sums, _ = np.histogram(times, bins=np.arange(count + 1) * window, weights=weights)
    return tuple(float(value) for value in sums / window)
