"""What a study does next, and what each outcome means for it.  Pure functions of the study's state.

A study has three parts: the **baseline** is measured several times (the noise floor), points are **explored** in
groups that share a launch, and the best few **race** against the baseline in fresh, interleaved measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, median

from autotuner.core.events import StopReason, TrialCreated
from autotuner.core.lifecycle import TrialState
from autotuner.core.oom import kv_shortage, oom_probability
from autotuner.core.space import ParameterKind, Space, Value, config_key
from autotuner.core.state import Study, Trial, Worker
from autotuner.core.trial import OutcomeClass, TrialKind

__all__ = [
    "TREATMENT",
    "Phase",
    "Treatment",
    "baseline_fails",
    "baseline_point",
    "candidates",
    "ceiling_of",
    "hopeless",
    "next_trial",
    "pairs_wanted",
    "phase",
    "preflight",
    "race_members",
    "race_values",
]

CRASH_AMOUNT = 3.0
"""Constraint amount of a point that never gave a number: larger than any near miss."""
MAX_OOM_PROBABILITY = 0.05
SHORT_RACE = 3
"""Pairs of a race for which exploration leaves time at least."""
MAX_SUBSTITUTES = 2
"""Further points that may take the place of finalists that fail or break the budget when measured again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Treatment:
    """What an outcome class means."""

    blames_config: bool
    """The sampler is told, as a constraint with ``amount``."""
    retry: bool
    """Another attempt may end better."""
    amount: float = 0.0
    counts_as_fault: bool = True
    """The attempt counts against the study's ``max_attempts``."""


TREATMENT: Mapping[OutcomeClass, Treatment] = {
    OutcomeClass.COMPLETE: Treatment(blames_config=False, retry=False),
    OutcomeClass.INFEASIBLE_CONFIG: Treatment(blames_config=True, retry=False, amount=CRASH_AMOUNT),
    OutcomeClass.OOM_AT_START: Treatment(blames_config=True, retry=False, amount=CRASH_AMOUNT),
    OutcomeClass.OOM_UNDER_LOAD: Treatment(blames_config=True, retry=False, amount=CRASH_AMOUNT),
    OutcomeClass.CRASHED: Treatment(blames_config=True, retry=True, amount=CRASH_AMOUNT),
    OutcomeClass.HUNG: Treatment(blames_config=True, retry=True, amount=CRASH_AMOUNT),
    OutcomeClass.TIMED_OUT: Treatment(blames_config=True, retry=False, amount=CRASH_AMOUNT),
    OutcomeClass.GARBAGE: Treatment(blames_config=True, retry=False, amount=CRASH_AMOUNT),
    OutcomeClass.VOID: Treatment(blames_config=False, retry=True),
    OutcomeClass.CANCELLED: Treatment(blames_config=False, retry=False),
    OutcomeClass.PREEMPTED: Treatment(blames_config=False, retry=True, counts_as_fault=False),
    OutcomeClass.INFRASTRUCTURE: Treatment(blames_config=False, retry=True),
}


class Phase(StrEnum):
    """The part of the plan that a study is in."""

    BASELINE = "baseline"
    EXPLORE = "explore"
    RACE = "race"
    DONE = "done"


# --- time ----------------------------------------------------------------------------------------------------------


def _mean(values: list[float], default: float) -> float:
    return fmean(values) if values else default


def _segment_seconds(study: Study) -> float:
    """Estimate the time of one measured segment, its warm-up included."""
    plan = study.spec.measure
    seen = [
        t.outcome.engine_seconds - (0.0 if t.outcome.launch.reused else t.outcome.launch.ready_seconds or 0.0)
        for t in study.trials.values()
        if t.state is TrialState.MEASURED and t.outcome is not None and t.outcome.launch is not None
    ]
    return _mean(seen, plan.warmup_min + plan.duration + 5.0)


def _launch_seconds(study: Study) -> float:
    """Estimate the time from starting an engine to its first answer."""
    seen = [
        t.outcome.launch.ready_seconds
        for t in study.trials.values()
        if t.outcome is not None
        and t.outcome.launch is not None
        and not t.outcome.launch.reused
        and t.outcome.launch.ready_seconds is not None
    ]
    return median(seen[-3:]) if seen else 60.0  # the first starts fill the caches


def _race_seconds(study: Study, worker: Worker) -> float:
    """Estimate the time that a race needs, a short one: exploring may cost it its last pairs, not itself."""
    search = study.spec.search
    pairs, members = min(search.race_pairs, SHORT_RACE), 1 + search.finalists
    launches = members if worker.resident_engines >= members else pairs * (members - 1) + 1
    return launches * _launch_seconds(study) + pairs * members * _segment_seconds(study)


def _fits(study: Study, elapsed: float, seconds: float) -> bool:
    limit = study.spec.effort.wall_seconds
    return limit is None or elapsed + seconds <= limit


# --- the three parts -------------------------------------------------------------------------------------------------


def phase(study: Study, worker: Worker, elapsed: float) -> Phase:
    """Return the part that *study* is in when *worker* asks after *elapsed* seconds of work on it."""
    baselines = study.of_kind(TrialKind.BASELINE)
    counted = [t for t in baselines if not _says_nothing(t)]
    repeats = max(1, study.spec.search.baseline_repeats)
    if not baseline_fails(study) and len(counted) < repeats and len(baselines) < 2 * repeats:
        return Phase.BASELINE
    if _exploring(study, worker, elapsed):
        return Phase.EXPLORE
    if any(t.live for t in study.trials.values() if t.kind is not TrialKind.RACE):
        return Phase.EXPLORE
    return Phase.RACE if _next_member(study, worker, elapsed) is not None else Phase.DONE


def baseline_fails(study: Study) -> bool:
    """Return whether the baseline itself does not work here, as against a host that could not measure it."""
    return any(t.state is TrialState.FAILED and not _says_nothing(t) for t in study.of_kind(TrialKind.BASELINE))


def _explored(study: Study) -> int:
    tried = [t for t in study.of_kind(TrialKind.EXPLORE) if t.state is not TrialState.REFUSED]
    return 1 + len(tried)


def _exploring(study: Study, worker: Worker, elapsed: float) -> bool:
    if study.exhausted or study.of_kind(TrialKind.RACE) or not study.spec.space.parameters:
        return False
    if _explored(study) >= study.spec.effort.trials:
        return False
    if len(study.of_kind(TrialKind.EXPLORE)) >= 4 * study.spec.effort.trials:
        return False
    new_launch = 0.0 if _open_group(study, worker) is not None else _launch_seconds(study)
    race = _race_seconds(study, worker) if study.of_kind(TrialKind.EXPLORE) else 0.0
    return _fits(study, elapsed, new_launch + _segment_seconds(study) + race)


def _open_group(study: Study, worker: Worker) -> Trial | None:
    """Return the first trial of the launch in *worker* that may take one more hot point."""
    mine = [t for t in study.trials.values() if t.kind is TrialKind.EXPLORE and t.worker_id == worker.worker_id]
    if not mine:
        return None
    first = study.trials[mine[-1].group]
    members = [t for t in mine if t.group == first.trial_id]
    if not first.hot or first.config is None or not worker.hot_capable:
        return None
    if any(t.state is not TrialState.MEASURED for t in members):
        return None
    return first if len(members) < study.spec.search.hot_points_per_launch else None


def ceiling_of(space: Space, full: Mapping[str, Value]) -> dict[str, Value]:
    """Return the launch values of the hot parameters for a group that starts from *full*."""
    raised: dict[str, Value] = {}
    for name in space.hot_names():
        parameter = space.parameter(name)
        if parameter is None or name not in full:
            continue
        if parameter.kind is ParameterKind.CHOICE:
            numbers = [c for c in parameter.choices if isinstance(c, int | float) and not isinstance(c, bool)]
            if numbers:
                raised[name] = max(numbers)
        elif parameter.high is not None:
            raised[name] = parameter.clip(parameter.high)
    return raised if not space.violations({**full, **raised}) else {}


def race_values(study: Study, key: str) -> list[Trial]:
    """Return the race's trials of the configuration *key*, in order of the pairs.

    One that failed without saying anything about the configuration is left out: another takes its place in the pair.
    """
    return [t for t in study.of_kind(TrialKind.RACE) if t.key == key and not _says_nothing(t)]


def _says_nothing(trial: Trial) -> bool:
    """Return whether a trial ended without telling anything about its configuration."""
    if trial.state is not TrialState.FAILED or trial.outcome is None:
        return False
    return not TREATMENT[trial.outcome.outcome].blames_config


def candidates(study: Study) -> list[Trial]:
    """Return the explored feasible points that are worth a race, best first, one per configuration."""
    baselines = [t for t in study.of_kind(TrialKind.BASELINE) if t.state is TrialState.MEASURED]
    bar = 0.0
    if baselines and all(t.feasible for t in baselines):
        bar = fmean(t.value for t in baselines if t.value is not None)
    base_key = config_key(study.baseline_config())
    best: dict[str, Trial] = {}
    for trial in study.of_kind(TrialKind.EXPLORE):
        if not trial.feasible or trial.value is None or trial.key == base_key or trial.value <= bar:
            continue
        if trial.key not in best or trial.value > (best[trial.key].value or 0.0):
            best[trial.key] = trial
    return sorted(best.values(), key=lambda t: (-(t.value or 0.0), t.trial_id))


def race_members(study: Study) -> list[dict[str, Value]]:
    """Return the configurations in the race, the baseline first where it could be measured."""
    base_key = config_key(study.baseline_config())
    entered: dict[str, dict[str, Value]] = {}
    out: set[str] = set()
    for trial in study.of_kind(TrialKind.RACE):
        if trial.key != base_key:
            entered.setdefault(trial.key, dict(trial.config or {}))
            failed = trial.state is TrialState.FAILED and not _says_nothing(trial)
            if failed or _breaks_budget(race_values(study, trial.key)):
                out.add(trial.key)
    running = [config for key, config in entered.items() if key not in out]
    if not running and len(entered) < study.spec.search.finalists + MAX_SUBSTITUTES:
        fresh = [dict(t.config or {}) for t in candidates(study) if t.key not in out]
        running = fresh[: study.spec.search.finalists]
    if not running:
        return []
    has_baseline = any(t.state is TrialState.MEASURED for t in study.of_kind(TrialKind.BASELINE))
    return [study.baseline_config(), *running] if has_baseline else running


def _breaks_budget(trials: list[Trial]) -> bool:
    """Return whether a finalist broke a limit on average over three measurements or more."""
    measured = [t for t in trials if t.state is TrialState.MEASURED]
    series: dict[str, list[float]] = {}
    for trial in measured:
        for name, amount in trial.amounts:
            series.setdefault(name, []).append(amount)
    return len(measured) >= 3 and any(fmean(amounts) > 0 for amounts in series.values())


def pairs_wanted(study: Study) -> int:
    """Return the number of interleaved rounds of the race."""
    return max(2, study.spec.search.race_pairs)


def _losing(study: Study, key: str) -> bool:
    """Return whether a finalist is behind a feasible baseline after three pairs: going on would be futile."""
    base = race_values(study, config_key(study.baseline_config()))
    if not base or not all(t.feasible for t in base if t.state is TrialState.MEASURED):
        return False
    pairs = [
        (b.value, c.value)
        for b, c in zip(base, race_values(study, key), strict=False)
        if b.value is not None and c.value is not None
    ]
    return len(pairs) >= 3 and fmean(new for _, new in pairs) <= fmean(old for old, _ in pairs)


def _next_member(study: Study, worker: Worker, elapsed: float) -> dict[str, Value] | None:
    members = race_members(study)
    base_key = config_key(study.baseline_config())
    if not [m for m in members if config_key(m) != base_key and not _losing(study, config_key(m))]:
        return None
    if sum(_says_nothing(t) for t in study.of_kind(TrialKind.RACE)) > pairs_wanted(study):
        return None  # this host does not get measurements done
    counts = {config_key(m): len(race_values(study, config_key(m))) for m in members}
    cost = len(members) * _segment_seconds(study)
    if worker.resident_engines < len(members):
        cost += (len(members) - 1) * _launch_seconds(study)
    for index in range(pairs_wanted(study)):
        round_open = any(count > index for count in counts.values())
        for member in members if index % 2 == 0 else list(reversed(members)):
            if counts[config_key(member)] <= index:
                return member if round_open or _fits(study, elapsed, cost) else None
    return None


def next_trial(study: Study, worker: Worker, trial_id: int, elapsed: float) -> TrialCreated | None:
    """Return the trial that *worker* should do next for *study*, or ``None`` when there is nothing for it now."""
    part = phase(study, worker, elapsed)
    kind, source, config, group = TrialKind.EXPLORE, "", None, trial_id
    fixed: dict[str, Value] = {}
    ceiling: dict[str, Value] = {}
    hot = False
    if part is Phase.BASELINE:
        kind, source, config = TrialKind.BASELINE, "baseline", study.baseline_config()
    elif part is Phase.EXPLORE and _exploring(study, worker, elapsed):
        first = _open_group(study, worker)
        hot = worker.hot_capable and study.spec.search.hot_points_per_launch > 1 and bool(study.spec.space.hot_names())
        if first is not None and first.point is not None:
            group, fixed = first.group, study.spec.space.cold_part(first.point)
            names = study.spec.space.hot_names()
            ceiling = {k: v for k, v in (first.launch_config or {}).items() if k in names}
    elif part is Phase.RACE:
        if any(t.live and t.worker_id != worker.worker_id for t in study.of_kind(TrialKind.RACE)):
            return None  # a pair only counts when one worker measured both sides
        kind, source, config = TrialKind.RACE, "race", _next_member(study, worker, elapsed)
    else:
        return None
    return TrialCreated(
        study_id=study.study_id,
        trial_id=trial_id,
        kind=kind,
        worker_id=worker.worker_id,
        group=group,
        config=config,
        fixed=fixed,
        ceiling=ceiling,
        hot=hot,
        source=source,
    )


def baseline_point(study: Study) -> dict[str, Value] | None:
    """Return the baseline as a point of the space, or ``None`` when it lies outside or a default is unknown."""
    spec = study.spec
    known = {**spec.engine.context_defaults, **study.baseline_config()}
    point: dict[str, Value] = {}
    for parameter in spec.space:
        flag = spec.engine.flag(parameter.name) if "." not in parameter.name else None
        value = known.get(parameter.name, flag.default if flag is not None else None)
        if parameter.condition is not None and not parameter.condition.holds(point):
            continue
        if value is None or not parameter.contains(value):
            return None
        point[parameter.name] = value
    return point


# --- before and after a launch ---------------------------------------------------------------------------------------


def preflight(study: Study, config: Mapping[str, Value]) -> tuple[tuple[str, float], ...]:
    """Return why *config* cannot work, with relative amounts; empty when nothing speaks against it."""
    spec = study.spec
    found = list(spec.space.violations(config).items())
    shortage = kv_shortage(spec.engine, config)
    if shortage > 0:
        found.append(("the KV cache is too small for one request of max_model_len tokens", shortage))
    utilization = config.get("gpu_memory_utilization")
    if spec.hardware.device == "cuda" and isinstance(utilization, float) and "kv_cache_memory_bytes" not in config:
        risk = oom_probability(utilization, _observed_memory(study))
        if risk > MAX_OOM_PROBABILITY * 1.0001:
            found.append((f"probability {risk:.2f} of running out of memory", risk / MAX_OOM_PROBABILITY - 1.0))
    return tuple(found)


def _observed_memory(study: Study) -> tuple[tuple[float, bool], ...]:
    seen: list[tuple[float, bool]] = []
    for trial in study.trials.values():
        at = (trial.config or {}).get("gpu_memory_utilization")
        if isinstance(at, float) and trial.outcome is not None:
            oom = trial.outcome.outcome in (OutcomeClass.OOM_AT_START, OutcomeClass.OOM_UNDER_LOAD)
            if oom or trial.outcome.outcome is OutcomeClass.COMPLETE:
                seen.append((at, oom))
    return tuple(seen)


def hopeless(study: Study) -> StopReason | None:
    """Return why the study should stop by itself: nothing ever starts, or the hosts keep failing."""
    ended = [
        t
        for t in study.trials.values()
        if t.trial_id > study.resumed_after and t.state in (TrialState.MEASURED, TrialState.FAILED)
    ]
    last = ended[-3:]
    if len(last) == 3 and all(t.outcome and t.outcome.outcome is OutcomeClass.INFRASTRUCTURE for t in last):
        return StopReason.INFRASTRUCTURE
    if len(ended) >= 8 and all(_says_nothing(t) for t in ended[-8:]):
        return StopReason.INFRASTRUCTURE
    if len(ended) >= 4 and all(t.state is TrialState.FAILED and not _says_nothing(t) for t in ended):
        return StopReason.NOTHING_STARTS
    return None
