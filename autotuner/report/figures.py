"""What the reports say, derived once from a ``StudyResult``: statuses, sentences, numbers as text.

Pure.  Every report (JSON, terminal, HTML) takes its words and figures from here, so that they agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from autotuner.core.budget import Limit
from autotuner.core.lifecycle import TrialState
from autotuner.core.results import StudyResult, Summary, TrialRecord, VerdictKind
from autotuner.core.space import Config, Value, config_key
from autotuner.core.study import Objective, StudySpec
from autotuner.core.trial import Interval, OutcomeClass, TrialKind

__all__ = [
    "LimitCheck",
    "Status",
    "because",
    "best_so_far",
    "binding_text",
    "changes",
    "differences",
    "duration",
    "finite",
    "gain_text",
    "headline",
    "is_simulated",
    "keeps_baseline",
    "key_parameters",
    "latency_text",
    "limit_checks",
    "limit_text",
    "milliseconds",
    "number",
    "objective_name",
    "parameter_text",
    "percent",
    "setting_text",
    "shown_latencies",
    "status",
    "unit",
    "unproven",
    "value_text",
    "winner_name",
]

_NOTHING_KNOWN = frozenset(
    {OutcomeClass.VOID, OutcomeClass.CANCELLED, OutcomeClass.PREEMPTED, OutcomeClass.INFRASTRUCTURE},
)
_SHORT = {
    "max_num_batched_tokens": "batched",
    "max_num_seqs": "seqs",
    "gpu_memory_utilization": "gpu_mem",
    "kv_cache_memory_bytes": "kv_bytes",
    "enable_prefix_caching": "prefix",
    "enable_chunked_prefill": "chunked",
    "enforce_eager": "eager",
    "long_prefill_token_threshold": "long_prefill",
    "speculative_config.method": "spec",
    "speculative_config.num_speculative_tokens": "spec_tokens",
    "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
    "data_parallel_size": "dp",
}
_ENDED = frozenset({TrialState.MEASURED.value, TrialState.FAILED.value})
_USUAL = ("ttft_p95", "itl_p95", "e2e_p95")


class Status(StrEnum):
    """What a trial says about its configuration."""

    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    """Measured; a limit is broken."""
    FAILED = "failed"
    """The engine could not run it."""
    REFUSED = "refused"
    """Not launched: a rule or estimate forbids it."""
    VOID = "void"
    """Nothing is known: the load generator, the host or a person was in the way."""
    UNFINISHED = "unfinished"
    """The study ended first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitCheck:
    """A limit beside what was observed."""

    limit: Limit
    observed: Interval | None
    """``None`` when it was not measured; that counts as broken."""

    @property
    def kept(self) -> bool:
        """Return whether the observed value keeps the limit."""
        return self.observed is not None and self.observed.value <= self.limit.seconds


def status(trial: TrialRecord) -> Status:
    """Return what *trial* says about its configuration."""
    if trial.refused:
        return Status.REFUSED
    if trial.outcome is None or trial.state not in _ENDED:
        return Status.UNFINISHED
    if trial.outcome.outcome in _NOTHING_KNOWN:
        return Status.VOID
    if trial.outcome.outcome is not OutcomeClass.COMPLETE or finite(trial.value) is None:
        return Status.FAILED
    return Status.INFEASIBLE if trial.feasible is False else Status.FEASIBLE


def is_simulated(spec: StudySpec) -> bool:
    """Return whether the figures come from a simulated engine."""
    return spec.engine.kind == "simulated"


def finite(value: float | None) -> float | None:
    """Return *value* when it is a finite number, else ``None``."""
    return value if value is not None and math.isfinite(value) else None


def winner_name(result: StudyResult) -> str:
    """Return what ``result.winner`` is called: only what was proven, or kept, is a winner."""
    if result.verdict.kind is VerdictKind.INFEASIBLE:
        return "closest"
    if unproven(result):
        return "candidate (unproven)"
    return "to keep" if result.verdict.kind is VerdictKind.INCONCLUSIVE else "winner"


def keeps_baseline(result: StudyResult) -> bool:
    """Return whether ``result.winner`` is the baseline itself."""
    return result.winner is not None and config_key(result.winner.config) == config_key(_baseline_config(result))


def unproven(result: StudyResult) -> bool:
    """Return whether ``result.winner`` differs from the baseline and nothing was decided about it."""
    undecided = result.verdict.kind is VerdictKind.INCONCLUSIVE
    return undecided and result.winner is not None and not keeps_baseline(result)


def _baseline_config(result: StudyResult) -> Config:
    return result.baseline.config if result.baseline is not None else result.spec.space.full(result.spec.baseline)


def unit(spec: StudySpec) -> str:
    """Return the objective's unit."""
    return "req/s" if spec.objective is Objective.GOODPUT else "tok/s"


def objective_name(spec: StudySpec) -> str:
    """Return the objective in words."""
    return {
        Objective.OUTPUT_THROUGHPUT: "output throughput",
        Objective.TOTAL_THROUGHPUT: "total throughput",
        Objective.GOODPUT: "goodput",
    }[spec.objective]


def number(value: float | None) -> str:
    """Return *value* with about four significant digits; a dash when there is none."""
    if finite(value) is None or value is None:
        return "–"
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 100 else f"{value:.2f}" if size >= 1 else f"{value:.3g}"


def percent(share: float | None, *, signed: bool = False) -> str:
    """Return a share as per cent; a dash when there is none."""
    if finite(share) is None or share is None:
        return "–"
    return f"{share * 100:+.1f} %" if signed else f"{share * 100:.1f} %"


def milliseconds(seconds: float | None) -> str:
    """Return *seconds* in milliseconds, without the unit; a dash when there is none."""
    return "–" if finite(seconds) is None or seconds is None else number(seconds * 1000)


def duration(seconds: float | None) -> str:
    """Return a time such as ``1 h 04 min``, ``3 min 20 s`` or ``12 s``."""
    if finite(seconds) is None or seconds is None:
        return "–"
    whole = max(0, round(seconds))
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {left:02d} s" if minutes else f"{left} s"


def value_text(value: Value | None) -> str:
    """Return a parameter's value as the engine's users write it."""
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def latency_text(key: str) -> str:
    """Return ``TTFT p99`` for ``ttft_p99`` (``p99.9`` for ``p99_9``)."""
    metric, _, rest = key.partition("_p")
    return f"{metric.upper()} p{rest.replace('_', '.')}" if rest else key.replace("_", " ")


def limit_text(limit: Limit) -> str:
    """Return a limit such as ``TTFT p99 ≤ 500 ms``."""
    return f"{latency_text(limit.key)} ≤ {limit.seconds * 1000:.6g} ms"


def shown_latencies(spec: StudySpec) -> tuple[str, ...]:
    """Return the latency figures of tables: the limited ones first, then the usual ones."""
    return tuple(dict.fromkeys([*(limit.key for limit in spec.budget.limits), *_USUAL]))


def limit_checks(summary: Summary, limits: Iterable[Limit]) -> tuple[LimitCheck, ...]:
    """Return every limit with what *summary* observed."""
    return tuple(LimitCheck(limit=limit, observed=summary.latency.get(limit.key)) for limit in limits)


def binding_text(binding: Sequence[str]) -> str:
    """Return the binding limits in words; empty without any."""
    return ", ".join(latency_text(name) for name in binding)


def gain_text(result: StudyResult) -> str:
    """Return the gain with its interval; empty when there is none."""
    verdict = result.verdict
    if finite(verdict.gain) is None:
        return ""
    text = percent(verdict.gain, signed=True)
    if finite(verdict.gain_low) is None or finite(verdict.gain_high) is None:
        return text
    low, high = percent(verdict.gain_low, signed=True), percent(verdict.gain_high, signed=True)
    return f"{text} ({verdict.confidence:.0%} interval {low} to {high})"


def headline(result: StudyResult) -> str:
    """Return the answer in one sentence."""
    if not result.points:
        return f"Nothing could be measured{_why_nothing(result)}."
    kind, gain, name = result.verdict.kind, gain_text(result), objective_name(result.spec)
    if kind is VerdictKind.BETTER:
        return f"Change to the winner: {gain} {name}." if gain else "Change to the winner."
    if kind is VerdictKind.NO_DIFFERENCE:
        return "Keep what you have: nothing found is better by a meaningful amount."
    if kind is VerdictKind.INFEASIBLE:
        binding = binding_text(result.verdict.binding)
        return f"Nothing measured keeps the latency budget{f': {binding} binds' if binding else ''}."
    return "Not decided: keep what you have until a longer study says more."


def because(result: StudyResult) -> str:
    """Return the verdict's reason as a sentence; empty where the headline says it already."""
    reason = result.verdict.reason.rstrip(".")
    return reason[:1].upper() + reason[1:] + "." if reason and result.points else ""


def _why_nothing(result: StudyResult) -> str:
    reason = result.verdict.reason.strip().rstrip(".")
    start = "nothing could be measured"
    if reason.lower().startswith(start):
        reason = reason[len(start) :].lstrip(": ")
    if not reason:
        reason = next((_trouble(trial) for trial in reversed(result.trials) if _trouble(trial)), "").rstrip(".")
    return f": {reason}" if reason else ""


def _trouble(trial: TrialRecord) -> str:
    return (trial.outcome.message if trial.outcome is not None else "") or trial.refused


def best_so_far(trials: Sequence[TrialRecord]) -> tuple[float | None, ...]:
    """Return, for every trial, the best feasible objective up to it; ``None`` before the first."""
    best: float | None = None
    found: list[float | None] = []
    for trial in trials:
        value = finite(trial.value)
        if value is not None and status(trial) is Status.FEASIBLE:
            best = value if best is None else max(best, value)
        found.append(best)
    return tuple(found)


def changes(result: StudyResult) -> tuple[tuple[str, Value | None, Value | None], ...]:
    """Return the parameters in which winner and baseline differ: name, baseline's value, winner's value."""
    if result.winner is None:
        return ()
    spec = result.spec
    old: Config = result.baseline.config if result.baseline is not None else {**spec.space.fixed, **spec.baseline}
    new = result.winner.config
    names = sorted({*old, *new})
    return tuple(
        (name, old.get(name), new.get(name))
        for name in names
        if old.get(name) != new.get(name) or type(old.get(name)) is not type(new.get(name))
    )


def setting_text(name: str, value: Value | None) -> str:
    """Return a setting for a table or a log line, its name shortened: ``seqs=16``."""
    return f"{_SHORT.get(name, name.rsplit('.', 1)[-1])}={value_text(value)}"


def differences(trial: TrialRecord, result: StudyResult) -> dict[str, Value | None]:
    """Return the parameters of *trial* that differ from the baseline's, in the order of ``key_parameters``."""
    base = _baseline_config(result)
    return {name: trial.config.get(name) for name in key_parameters(result) if trial.config.get(name) != base.get(name)}


def parameter_text(trial: TrialRecord, result: StudyResult) -> str:
    """Return what makes *trial* differ from the baseline, short enough for a table."""
    kind = "" if trial.kind is TrialKind.EXPLORE else f"{trial.kind.value}: "
    parts = [setting_text(name, value) for name, value in differences(trial, result).items()]
    if parts:
        return kind + " ".join(parts)
    return trial.kind.value if trial.kind is TrialKind.BASELINE else f"{kind}as the baseline"


def key_parameters(result: StudyResult) -> tuple[str, ...]:
    """Return the parameters that differ among the trials, in the space's order."""
    seen: dict[str, set[str]] = {}
    for trial in result.trials:
        for name in trial.config:
            seen.setdefault(name, set())
    for trial in result.trials:
        for name, values in seen.items():
            values.add(repr(trial.config.get(name)))
    varying = [name for name, values in seen.items() if len(values) > 1]
    order = [parameter.name for parameter in result.spec.space]
    return tuple(sorted(varying, key=lambda name: (order.index(name) if name in order else len(order), name)))
