"""The race: the best points against the baseline, in fresh measurements, heat by heat and round by round.

A *heat* is a field of configurations, fixed when it begins.  In each *round* every member is measured once, the order
turned round each time (A B, B A, A B, …), under the same schedule of requests.  A pair is two measurements of one
round: only these are compared, so that a drift of the host cancels out.  Pure functions of the study's state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import fmean, stdev

from autotuner.core.events import RaceBegan
from autotuner.core.lifecycle import TrialState
from autotuner.core.outcomes import says_nothing
from autotuner.core.space import Value, config_key
from autotuner.core.state import Heat, Study, Trial
from autotuner.core.statistics import t_quantile
from autotuner.core.trial import TrialKind

__all__ = [
    "Entry",
    "baseline_breaks",
    "begin",
    "candidates",
    "certainly_over",
    "entries",
    "next_entry",
    "not_surely_kept",
    "rounds_wanted",
]

Entry = tuple[Mapping[str, Value], int, int]
"""Configuration, heat, round."""

BOUND = 0.95
"""One-sided confidence of the bounds with which a limit is kept or broken."""
MAX_SUBSTITUTES = 2
"""Further heats for points that take the place of finalists that fail or break the budget when measured again."""
FUTILE_AFTER = 3
"""Rounds after which a finalist that is behind the baseline, or over a limit, gives up."""


def _series(trials: list[Trial]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for trial in trials:
        for name, amount in trial.amounts:
            found.setdefault(name, []).append(amount)
    return found


def _half_width(amounts: list[float]) -> float:
    if len(amounts) < 2:
        return 0.0
    return t_quantile(BOUND, len(amounts) - 1) * stdev(amounts) / math.sqrt(len(amounts))


def not_surely_kept(trials: list[Trial]) -> tuple[str, ...]:
    """Return the constraints whose mean amount may be above zero: a finalist must not have any."""
    return tuple(name for name, a in _series(trials).items() if fmean(a) + _half_width(a) > 0)


def certainly_over(trials: list[Trial]) -> tuple[str, ...]:
    """Return the constraints whose mean amount is above zero with confidence: what to say "breaks" of."""
    return tuple(name for name, a in _series(trials).items() if fmean(a) - _half_width(a) > 0)


def measured(trials: list[Trial]) -> list[Trial]:
    """Return those of *trials* that were measured."""
    return [t for t in trials if t.state is TrialState.MEASURED and t.value is not None]


def baseline_breaks(study: Study) -> tuple[str, ...]:
    """Return the limits that the baseline breaks with confidence, over all its measurements."""
    key = config_key(study.baseline_config())
    return certainly_over(
        measured([t for t in study.trials.values() if t.kind is not TrialKind.EXPLORE and t.key == key])
    )


def candidates(study: Study) -> list[Trial]:
    """Return the explored feasible points that are worth a race, best first, one per configuration.

    Unless the baseline breaks the budget, a point must have been faster than the baseline's mean.
    """
    base = measured(study.of_kind(TrialKind.BASELINE))
    bar = fmean(t.value or 0.0 for t in base) if base and not baseline_breaks(study) else 0.0
    base_key = config_key(study.baseline_config())
    best: dict[str, Trial] = {}
    for trial in study.of_kind(TrialKind.EXPLORE):
        if not trial.feasible or trial.value is None or trial.key == base_key or trial.value <= bar:
            continue
        if trial.key not in best or trial.value > (best[trial.key].value or 0.0):
            best[trial.key] = trial
    return sorted(best.values(), key=lambda t: (-(t.value or 0.0), t.trial_id))


def rounds_wanted(study: Study) -> int:
    """Return the number of rounds of a heat."""
    return max(2, study.spec.search.race_pairs)


def entries(study: Study, heat: int, key: str) -> dict[int, Trial]:
    """Return the trials of the configuration *key* in *heat*, by round; those that say nothing are left out."""
    return {
        t.round: t for t in study.of_kind(TrialKind.RACE) if t.heat == heat and t.key == key and not says_nothing(t)
    }


def _given_up(study: Study, heat: Heat, key: str) -> bool:
    """Return whether a finalist failed or broke a limit on average: a substitute may take its place."""
    mine = list(entries(study, heat.number, key).values())
    if any(t.state is TrialState.FAILED for t in mine):
        return True
    done = measured(mine)
    return len(done) >= FUTILE_AFTER and any(fmean(amounts) > 0 for amounts in _series(done).values())


def _losing(study: Study, heat: Heat, key: str) -> bool:
    """Return whether a finalist is behind a baseline that keeps the budget: going on would be futile."""
    base = entries(study, heat.number, config_key(study.baseline_config()))
    if not base or baseline_breaks(study):
        return False
    mine = entries(study, heat.number, key)
    pairs = [
        (base[r].value, mine[r].value)
        for r in base.keys() & mine.keys()
        if base[r].value is not None and mine[r].value is not None
    ]
    return len(pairs) >= FUTILE_AFTER and fmean(new or 0.0 for _, new in pairs) <= fmean(old or 0.0 for old, _ in pairs)


def _finalists(study: Study, heat: Heat) -> list[str]:
    base_key = config_key(study.baseline_config())
    return [key for member in heat.members if (key := config_key(member)) != base_key]


def begin(study: Study) -> RaceBegan | None:
    """Return the heat that should begin now, if any."""
    heats = study.heats[study.heats_before :]
    raced = {key for heat in heats for key in _finalists(study, heat)}
    wanted = study.spec.search.finalists
    if heats:
        stuck = all(_given_up(study, heats[-1], key) for key in _finalists(study, heats[-1]))
        if not stuck or len(heats) > MAX_SUBSTITUTES:
            return None
        wanted = 1
    fresh = [dict(t.config or {}) for t in candidates(study) if t.key not in raced][:wanted]
    if not fresh:
        return None
    has_baseline = bool(measured(study.of_kind(TrialKind.BASELINE)))
    members = (study.baseline_config(), *fresh) if has_baseline else tuple(fresh)
    return RaceBegan(study_id=study.study_id, heat=len(study.heats) + 1, members=members)


def next_entry(study: Study, fits: Callable[[int], bool]) -> Entry | None:
    """Return the next measurement of the running heat; *fits* says whether there is time for so many of them."""
    if len(study.heats) <= study.heats_before:
        return None
    heat = study.heats[-1]
    running = [k for k in _finalists(study, heat) if not _given_up(study, heat, k) and not _losing(study, heat, k)]
    void = sum(says_nothing(t) for t in study.of_kind(TrialKind.RACE) if t.heat == heat.number)
    if not running or void > rounds_wanted(study):
        return None
    base_key = config_key(study.baseline_config())
    members = [m for m in heat.members if config_key(m) == base_key or config_key(m) in running]
    for number in range(rounds_wanted(study)):
        missing = [m for m in members if number not in entries(study, heat.number, config_key(m))]
        if missing:
            begun = len(missing) < len(members)
            order = missing if number % 2 == 0 else list(reversed(missing))
            return (order[0], heat.number, number) if begun or fits(len(members)) else None
    return None
