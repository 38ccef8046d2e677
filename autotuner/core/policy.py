"""What a study does next.  Pure functions of the study's state.

A study has three parts: the **baseline** is measured several times (the noise floor), points are **explored** in
groups that share a launch, and the best few **race** against the baseline in fresh, interleaved measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import StrEnum
from statistics import fmean, median

from autotuner.core import race
from autotuner.core.events import RaceBegan, StopReason, TrialCreated
from autotuner.core.lifecycle import TrialState
from autotuner.core.oom import kv_shortage, oom_probability
from autotuner.core.outcomes import says_nothing
from autotuner.core.space import ParameterKind, Space, Value
from autotuner.core.state import Study, Trial, Worker
from autotuner.core.trial import OutcomeClass, TrialKind

__all__ = ["Phase", "baseline_fails", "baseline_point", "ceiling_of", "hopeless", "next_step", "phase", "preflight"]

MAX_OOM_PROBABILITY = 0.05
SHORT_RACE = 3
"""Pairs of a race for which exploration leaves time at least."""


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
    counted = [t for t in baselines if not says_nothing(t)]
    repeats = max(1, study.spec.search.baseline_repeats)
    if not baseline_fails(study) and len(counted) < repeats and len(baselines) < 2 * repeats:
        return Phase.BASELINE
    if _exploring(study, worker, elapsed):
        return Phase.EXPLORE
    if any(t.live for t in study.trials.values() if t.kind is not TrialKind.RACE):
        return Phase.EXPLORE
    racing = race.begin(study) or race.next_entry(study, _fits_entries(study, worker, elapsed))
    return Phase.RACE if racing is not None else Phase.DONE


def baseline_fails(study: Study) -> bool:
    """Return whether the baseline itself does not work here, as against a host that could not measure it."""
    return any(t.state is TrialState.FAILED and not says_nothing(t) for t in study.of_kind(TrialKind.BASELINE))


def _explored(study: Study) -> int:
    tried = [t for t in study.of_kind(TrialKind.EXPLORE) if t.state is not TrialState.REFUSED]
    return 1 + len(tried)


def _exploring(study: Study, worker: Worker, elapsed: float) -> bool:
    if study.exhausted or len(study.heats) > study.heats_before or not study.spec.space.parameters:
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


def _fits_entries(study: Study, worker: Worker, elapsed: float) -> Callable[[int], bool]:
    """Return what says whether there is time for a round with so many members."""

    def fits(members: int) -> bool:
        launches = 0 if worker.resident_engines >= members else members - 1
        return _fits(study, elapsed, members * _segment_seconds(study) + launches * _launch_seconds(study))

    return fits


def next_step(study: Study, worker: Worker, trial_id: int, elapsed: float) -> TrialCreated | RaceBegan | None:
    """Return what *worker* should do next for *study*, or ``None`` when there is nothing for it now."""
    part = phase(study, worker, elapsed)
    if part is Phase.BASELINE:
        return _created(study, worker, trial_id, TrialKind.BASELINE, study.baseline_config())
    if part is Phase.EXPLORE and _exploring(study, worker, elapsed):
        return _exploration(study, worker, trial_id)
    if part is not Phase.RACE:
        return None
    if any(t.live and t.worker_id != worker.worker_id for t in study.of_kind(TrialKind.RACE)):
        return None  # a pair only counts when one worker measured both sides
    heat = race.begin(study)
    if heat is not None:
        return heat
    entry = race.next_entry(study, _fits_entries(study, worker, elapsed))
    if entry is None:
        return None
    config, number, in_round = entry
    created = _created(study, worker, trial_id, TrialKind.RACE, config)
    return replace(created, heat=number, round=in_round)


def _created(
    study: Study, worker: Worker, trial_id: int, kind: TrialKind, config: Mapping[str, Value] | None
) -> TrialCreated:
    return TrialCreated(
        study_id=study.study_id,
        trial_id=trial_id,
        kind=kind,
        worker_id=worker.worker_id,
        group=trial_id,
        config=config,
        fixed={},
        ceiling={},
        hot=False,
        source="" if config is None else kind.value,
    )


def _exploration(study: Study, worker: Worker, trial_id: int) -> TrialCreated:
    """Return a point of the sampler's choice: a hot one of the running launch where it may take one more."""
    space = study.spec.space
    hot = worker.hot_capable and study.spec.search.hot_points_per_launch > 1 and bool(space.hot_names())
    created = replace(_created(study, worker, trial_id, TrialKind.EXPLORE, None), hot=hot)
    first = _open_group(study, worker)
    if first is None or first.point is None:
        return created
    ceiling = {k: v for k, v in (first.launch_config or {}).items() if k in space.hot_names()}
    return replace(created, group=first.group, fixed=space.cold_part(first.point), ceiling=ceiling)


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
    if len(ended) >= 8 and all(says_nothing(t) for t in ended[-8:]):
        return StopReason.INFRASTRUCTURE
    if len(ended) >= 4 and all(t.state is TrialState.FAILED and not says_nothing(t) for t in ended):
        return StopReason.NOTHING_STARTS
    return None
