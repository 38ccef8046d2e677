"""The answer of a study: who wins, by how much, how sure that is, and what binds.

Points are *selected* on the measurements of the exploration and *decided* on the fresh, interleaved ones of the race,
so that a lucky measurement cannot win.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean

from autotuner.core import race, statistics
from autotuner.core.lifecycle import StudyState, TrialState
from autotuner.core.policy import baseline_fails
from autotuner.core.results import StudyResult, Summary, TrialRecord, Verdict, VerdictKind
from autotuner.core.space import Config, config_key
from autotuner.core.state import Study, Trial
from autotuner.core.trial import Interval, OutcomeClass, TrialKind

__all__ = ["conclude", "records"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finalist:
    trials: list[Trial]
    gain: Interval | None
    pairs: int
    broken: tuple[str, ...]

    @property
    def value(self) -> float:
        return fmean(t.value for t in self.trials if t.value is not None)


def _finalists(study: Study) -> list[_Finalist]:
    """Return every configuration that was raced, with its gain over the baseline from the pairs of its own heat."""
    base_key = config_key(study.baseline_config())
    fields = [(h, key) for h in study.heats for m in h.members if (key := config_key(m)) != base_key]
    confidence = 1.0 - (1.0 - study.spec.search.confidence) / max(1, len(fields))
    found = []
    for heat, key in fields:
        base, mine = race.entries(study, heat.number, base_key), race.entries(study, heat.number, key)
        done = race.measured(list(mine.values()))
        if not done or any(t.state is TrialState.FAILED for t in mine.values()):
            continue
        pairs = [(base[r].value or 0.0, mine[r].value or 0.0) for r in sorted(base.keys() & mine.keys())]
        positive = [(old, new) for old, new in pairs if old > 0 and new > 0]
        gain = None
        if len(positive) >= 2:
            gain = statistics.paired_gain([old for old, _ in positive], [new for _, new in positive], confidence)
        found.append(_Finalist(trials=done, gain=gain, pairs=len(positive), broken=race.not_surely_kept(done)))
    return found


def _summary(study: Study, trials: list[Trial]) -> Summary:
    values = [t.value for t in trials if t.value is not None]
    latency: dict[str, Interval] = {}
    for key in trials[0].measurement.latency if trials[0].measurement else ():
        seen = [t.measurement.latency[key] for t in trials if t.measurement and key in t.measurement.latency]
        latency[key] = Interval(
            value=fmean(i.value for i in seen), low=min(i.low for i in seen), high=max(i.high for i in seen)
        )
    return Summary(
        config=dict(trials[0].config or {}),
        throughput=statistics.mean_interval(values, study.spec.search.confidence),
        latency=latency,
        trial_ids=tuple(t.trial_id for t in trials),
    )


def _tightest(trials: list[Trial]) -> tuple[str, ...]:
    """Return the limit that *trials* come closest to, when it is within a tenth."""
    amounts: dict[str, float] = {}
    for trial in trials:
        for name, amount in trial.amounts:
            amounts[name] = max(amount, amounts.get(name, -math.inf))
    near = [(amount, name) for name, amount in amounts.items() if amount > -0.1]
    return (max(near)[1],) if near else ()


def _closest(study: Study) -> Trial | None:
    """Return the measured point whose worst constraint is the smallest."""
    points = [t for t in race.measured(list(study.trials.values())) if t.amounts]
    return min(points, key=lambda t: (max(a for _, a in t.amounts), -(t.value or 0.0)), default=None)


def _no_gain(kind: VerdictKind, study: Study, reason: str, binding: tuple[str, ...] = ()) -> Verdict:
    return Verdict(
        kind=kind,
        gain=None,
        gain_low=None,
        gain_high=None,
        confidence=study.spec.search.confidence,
        binding=binding,
        reason=reason,
    )


def _without_finalist(study: Study, base: list[Trial]) -> tuple[Verdict, list[Trial]]:
    """Decide when no finalist keeps the budget (or none was raced)."""
    base_ok = bool(base) and not race.baseline_breaks(study)
    waiting = race.candidates(study)
    raced = {t.key for t in race.measured(study.of_kind(TrialKind.RACE))}
    unraced = [t for t in waiting if t.key not in raced]
    if unraced and (not raced or not base_ok):
        best = unraced[0]
        reason = f"trial {best.trial_id} looks best but was not confirmed against the baseline in fresh measurements"
        return _no_gain(VerdictKind.INCONCLUSIVE, study, reason, _tightest([best])), base or [best]
    if base_ok:
        reason = (
            "the finalists did not keep the latency budget when measured again"
            if raced
            else "no explored point that keeps the budget is faster than the baseline"
        )
        if not study.of_kind(TrialKind.EXPLORE):
            return _no_gain(VerdictKind.INCONCLUSIVE, study, "nothing but the baseline was measured"), base
        return _no_gain(VerdictKind.NO_DIFFERENCE, study, reason, _tightest(base)), base
    closest = _closest(study)
    if closest is None:
        kind = VerdictKind.INFEASIBLE if study.of_kind(TrialKind.EXPLORE) else VerdictKind.INCONCLUSIVE
        return _no_gain(kind, study, f"nothing could be measured: {_last_message(study)}"), []
    binding = tuple(name for name, amount in closest.amounts if amount > 0)
    if not binding:
        reason = "some points kept the latency budget once, but not when measured again"
        return _no_gain(VerdictKind.INCONCLUSIVE, study, reason, _tightest([closest])), base or [closest]
    worst = max(closest.amounts, key=lambda pair: pair[1])
    reason = f"no measured point keeps the latency budget; the closest exceeds {worst[0]} by {worst[1]:.0%}"
    return _no_gain(VerdictKind.INFEASIBLE, study, reason, binding), [closest]


def _last_message(study: Study) -> str:
    messages = [t.outcome.message for t in study.trials.values() if t.outcome is not None and t.outcome.message]
    return messages[-1] if messages else "no trial ended"


def _with_finalist(
    study: Study, base: list[Trial], best: _Finalist, floor: float | None
) -> tuple[Verdict, list[Trial]]:
    """Decide between the baseline and the best finalist that keeps the budget."""
    gain, search = best.gain, study.spec.search
    if gain is None:
        if baseline_fails(study):
            kind, reason = VerdictKind.BETTER, "the baseline does not work here; the winner keeps the latency budget"
        else:
            kind, reason = VerdictKind.INCONCLUSIVE, "fewer than two pairs with the baseline could be measured"
        chosen = best.trials if kind is VerdictKind.BETTER else base or best.trials
        return _no_gain(kind, study, reason, _tightest(chosen)), chosen
    bar = max(floor or 0.0, search.min_gain)
    base_broken = race.baseline_breaks(study)
    if base_broken:
        kind, chosen = VerdictKind.BETTER, best.trials
        than = f"{abs(gain.value):.1%} {'faster' if gain.value > 0 else 'slower'}"
        reason = f"the baseline breaks {', '.join(base_broken)}; the winner keeps the latency budget and is {than}"
    elif gain.low > 0 and gain.value > bar:
        kind, chosen = VerdictKind.BETTER, best.trials
        reason = f"the gain exceeds the noise floor and its {search.confidence:.0%} interval excludes zero"
    elif best.pairs < race.rounds_wanted(study) and gain.value > 0 and gain.high > bar:
        kind, chosen = VerdictKind.INCONCLUSIVE, base
        reason = f"only {best.pairs} of {race.rounds_wanted(study)} pairs were measured; keep what you have"
    else:
        kind, chosen = VerdictKind.NO_DIFFERENCE, base
        reason = f"the best finalist's gain of {gain.value:+.1%} does not stand out from the noise; keep what you have"
    verdict = Verdict(
        kind=kind,
        gain=gain.value,
        gain_low=gain.low,
        gain_high=gain.high,
        confidence=search.confidence,
        binding=_tightest(chosen),
        reason=reason,
        pairs=best.pairs,
    )
    return verdict, chosen


def records(study: Study) -> tuple[TrialRecord, ...]:
    """Return every trial as the reports show it, with the numbers of their launches."""
    found = []
    for trial in study.trials.values():
        launch = trial.outcome.launch if trial.outcome is not None else None
        number = study.launches.get(launch.launch_id) if launch is not None else None
        refused = trial.state is TrialState.REFUSED
        found.append(
            TrialRecord(
                trial_id=trial.trial_id,
                kind=trial.kind,
                state=trial.state.value,
                source=trial.source,
                config=dict(trial.config or {}),
                attempts=trial.attempt,
                outcome=trial.outcome,
                value=trial.value,
                feasible=trial.feasible if trial.state is TrialState.MEASURED else None,
                constraints=trial.amounts,
                launch=number,
                refused="; ".join(name for name, _ in trial.amounts) if refused else "",
            )
        )
    return tuple(found)


_CHANGES_ANSWERS = {
    "speculative_config.method": ("none", ""),
    "quantization": ("none", ""),
    "kv_cache_dtype": ("auto",),
    "dtype": ("auto",),
}
"""Flags that may change what the model answers → their values that do not."""


def _unproven_answers(study: Study, config: Config) -> str:
    """Return what to say about a winner whose answers may differ from the baseline's; empty when none can."""
    base = study.baseline_config()
    changed = [
        name
        for name, same in _CHANGES_ANSWERS.items()
        if name in config and config[name] not in same and config[name] != base.get(name)
    ]
    if not changed:
        return ""
    return f"the winner changes {', '.join(changed)}: its answers were not compared with the baseline's"


def _notes(study: Study) -> tuple[str, ...]:
    notes: list[str] = []
    ignored: dict[str, None] = {}
    unsteady = [
        t.trial_id for t in race.measured(list(study.trials.values())) if t.measurement and not t.measurement.steady
    ]
    void = [t.trial_id for t in study.trials.values() if t.outcome and t.outcome.outcome is OutcomeClass.VOID]
    for trial in study.trials.values():
        if trial.outcome is not None and trial.outcome.launch is not None:
            ignored.update(dict.fromkeys(trial.outcome.launch.no_ops))
    notes.extend(f"the engine accepted {flag} and ignored it" for flag in ignored)
    if unsteady:
        notes.append(f"throughput was not steady at the end of the warm-up in trials {unsteady}")
    if void:
        notes.append(f"the load generator could not keep its own schedule in trials {void}: they say nothing")
    notes.extend(text for name, text in sorted(study.spec.labels.items()) if name.startswith("note"))
    return tuple(notes)


def conclude(study: Study, now: float) -> StudyResult:
    """Return everything that is known about *study* at the time *now* (UTC seconds); partial while it runs."""
    base = race.measured(study.of_kind(TrialKind.BASELINE))
    base_key = config_key(study.baseline_config())
    base_race = race.measured([t for t in study.of_kind(TrialKind.RACE) if t.key == base_key])
    kept = [f for f in _finalists(study) if not f.broken]
    floor = statistics.noise_floor(
        [t.value for t in base + base_race if t.value is not None], study.spec.search.confidence
    )
    if kept:
        best = max(kept, key=lambda f: (f.gain is not None, f.gain.value if f.gain is not None else f.value))
        verdict, chosen = _with_finalist(study, base, best, floor)
    else:
        verdict, chosen = _without_finalist(study, base)
    trials = records(study)
    summary_base = base_race if len(base_race) >= 2 else base
    chosen = summary_base if chosen and chosen[0].key == base_key else chosen
    return StudyResult(
        study_id=study.study_id,
        spec=study.spec,
        trials=trials,
        baseline=_summary(study, summary_base) if summary_base else None,
        winner=_summary(study, chosen) if chosen else None,
        verdict=verdict,
        noise_floor=floor,
        launches=len(study.launches),
        points=sum(1 for t in trials if t.state == TrialState.MEASURED.value),
        wall_seconds=study.active_seconds,
        engine_seconds=study.engine_seconds,
        started_utc=study.submitted,
        ended_utc=now,
        complete=not study.stop_reason and study.state in (StudyState.PUBLISHING, StudyState.ENDED),
        stopped=study.stop_reason,
        notes=tuple(filter(None, (_unproven_answers(study, chosen[0].config or {}) if chosen else "", *_notes(study)))),
    )
