"""The score and the constraints of one measurement."""

from __future__ import annotations

from autotuner.core.budget import LatencyBudget, excess
from autotuner.core.study import Objective
from autotuner.core.trial import Measurement

__all__ = ["MISSING_AMOUNT", "constraints", "is_feasible", "objective_value", "throughput"]

MISSING_AMOUNT = 1.0
"""Amount of a limit whose figure could not be measured: missing evidence is a failure."""


def throughput(total_tokens: float, warmup_tokens: float, end_time: float, warmup_end: float) -> float:
    """Return (total_tokens − warmup_tokens) ÷ (end_time − warmup_end) in tokens per second (R23)."""
    if not end_time > warmup_end:
        raise ValueError(f"the measured part is empty: it ends at {end_time} s, its warm-up at {warmup_end} s")
    return (total_tokens - warmup_tokens) / (end_time - warmup_end)


def objective_value(measurement: Measurement, objective: Objective) -> float:
    """Return the figure that the study maximises."""
    if objective is Objective.GOODPUT:
        good = measurement.ok if measurement.good is None else measurement.good
        return good / (measurement.end_time - measurement.warmup_end)
    extra = measurement.prompt_tokens if objective is Objective.TOTAL_THROUGHPUT else 0.0
    return throughput(
        measurement.total_tokens + extra, measurement.warmup_tokens, measurement.end_time, measurement.warmup_end
    )


def constraints(measurement: Measurement, budget: LatencyBudget) -> tuple[tuple[str, float], ...]:
    """Return every limit's name with its relative excess; at most 0 is kept.

    The error ratio is a constraint too: its amount is how many times over the allowed ratio it is, less one.
    """
    found: list[tuple[str, float]] = []
    for limit in budget.limits:
        interval = measurement.latency.get(limit.key)
        found.append((limit.key, MISSING_AMOUNT if interval is None else excess(interval.value, limit.seconds)))
    bad = measurement.errors + measurement.aborted + measurement.empty
    ratio = bad / measurement.requests if measurement.requests else 1.0
    found.append(("error_ratio", excess(ratio, budget.max_error_ratio) if budget.max_error_ratio > 0 else ratio))
    return tuple(found)


def is_feasible(amounts: tuple[tuple[str, float], ...]) -> bool:
    """Return whether every constraint is kept."""
    return all(amount <= 0 for _, amount in amounts)
