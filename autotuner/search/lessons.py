"""What a sampler is told about the end of a trial.

Samplers ignore failed trials, so a point that failed would be proposed again.  Therefore every end that says
something about the configuration is told as *complete*, with a finite value and with constraint amounts:

========================================  =================================  =======================================
end of the trial                          value                              constraint amounts
========================================  =================================  =======================================
measured                                  the objective                      as judged, at most ``AMOUNT_CAP``
refused before any launch, rule broken    the worst value so far (or 0)      as given, at most ``FAILURE_AMOUNT``
out of memory, crash, hang, garbage       the worst value so far (or 0)      as given, else ``FAILURE_AMOUNT``
void, cancelled, preempted, host's fault  none: told as failed, so that      none
                                          the sampler learns nothing
========================================  =================================  =======================================

The value of a point that was not measured is a placeholder: models that use the amounts alone never look at it, and
those that fit a surface to all values get a bad but plausible number instead of a cliff.  Every observation carries
the same constraint names: the budget's limits, ``error_ratio``, and ``other`` for the largest of all else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autotuner.core.commands import Tell
from autotuner.core.study import StudySpec
from autotuner.core.trial import OutcomeClass

__all__ = ["AMOUNT_CAP", "FAILURE_AMOUNT", "Lesson", "attributes", "constraint_names", "lesson", "rejected"]

AMOUNT_CAP = 2.0
"""Largest amount told of a measured point; a relative excess beyond it teaches nothing more and distorts a model's scale."""
FAILURE_AMOUNT = 3.0
"""Amount of a point about which only the failure is known: larger than any near miss."""
_OTHER = "other"
_UNTOLD = frozenset(
    {OutcomeClass.VOID, OutcomeClass.CANCELLED, OutcomeClass.PREEMPTED, OutcomeClass.INFRASTRUCTURE},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """An observation; ``value`` is ``None`` when there is nothing to learn."""

    value: float | None
    constraints: Mapping[str, float]


def constraint_names(spec: StudySpec) -> tuple[str, ...]:
    """Return the constraint names that every observation of the study carries."""
    return (*dict.fromkeys(limit.key for limit in spec.budget.limits), "error_ratio", _OTHER)


def lesson(result: Tell, names: Sequence[str], values: Iterable[float]) -> Lesson:
    """Return what is told about *result*; *values* are the objectives measured so far."""
    if result.outcome is not None and result.outcome.outcome in _UNTOLD:
        return Lesson(value=None, constraints={})
    if result.value is not None and math.isfinite(result.value):
        return Lesson(value=result.value, constraints=_spread(result.constraints, names, AMOUNT_CAP))
    amounts = _spread(result.constraints, names, FAILURE_AMOUNT)
    if all(amount <= 0 for amount in amounts.values()):
        amounts[_OTHER] = FAILURE_AMOUNT
    return Lesson(value=min(values, default=0.0), constraints=amounts)


def rejected(violations: Mapping[str, float], names: Sequence[str], values: Iterable[float]) -> Lesson:
    """Return what is told about a point that breaks rules of the space."""
    return Lesson(value=min(values, default=0.0), constraints=_spread(violations.items(), names, FAILURE_AMOUNT))


def _spread(constraints: Iterable[tuple[str, float]], names: Sequence[str], cap: float) -> dict[str, float]:
    amounts = dict.fromkeys(names, 0.0)
    seen: set[str] = set()
    for name, amount in constraints:
        key = name if name in amounts else _OTHER
        capped = cap if math.isnan(amount) else min(max(amount, -1.0), cap)
        amounts[key] = max(amounts[key], capped) if key in seen else capped
        seen.add(key)
    return amounts


def attributes(result: Tell, spec: StudySpec) -> dict[str, str | float]:
    """Return the figures that a person wants beside the trial in a dashboard; latencies in seconds."""
    found: dict[str, str | float] = {}
    outcome = result.outcome
    if outcome is None:
        found["outcome"] = "refused"
        return found
    found["outcome"] = outcome.outcome.value
    if outcome.message:
        found["message"] = outcome.message[:500]
    if outcome.launch is not None:
        found["launch"] = outcome.launch.launch_id
    if outcome.measurement is not None:
        if result.value is not None and math.isfinite(result.value):
            found["throughput"] = result.value
        wanted = dict.fromkeys(["ttft_p50", "ttft_p95", "itl_p95", "e2e_p95", *(x.key for x in spec.budget.limits)])
        for name in wanted:
            interval = outcome.measurement.latency.get(name)
            if interval is not None and math.isfinite(interval.value):
                found[name] = interval.value
    return found
