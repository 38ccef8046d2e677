"""The ``Sampler`` port on Optuna: proposes flat points, records them, and learns from every end of a trial.

Invariants:

- One Optuna trial per proposed trial, found again by the user attribute ``autotuner_trial_id``; the configuration
  that was proposed is stored beside it, so proposing again answers the same, after a restart too.
- A proposal is stored in one write before it is returned.
- What is told is decided in ``lessons``; a trial is told once.

Optuna is imported when a sampler is made, not when this module is.  The calls block (a Gaussian process for seconds):
run them in a thread of their own.  One process at a time may use a study.
"""

from __future__ import annotations

import json
import logging
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autotuner.core.commands import Propose, Tell
from autotuner.core.events import NothingProposed, PointProposed
from autotuner.core.space import Value, config_key
from autotuner.core.study import StudySpec
from autotuner.errors import InputError, InternalError, Problem
from autotuner.search import lessons
from autotuner.search.flat import FlatSpace, Frame

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.study import Study
    from optuna.trial import FrozenTrial

    from autotuner.search.optuna_backend import Observation

__all__ = ["SAMPLERS", "OptunaSampler"]

SAMPLERS = ("tpe", "gp", "random", "grid")
_ASKS = 12
_TRIES = 64
_ENUMERABLE = 2_000
_GRID_LEVELS = 5
_ID, _CONFIG, _SOURCE = "autotuner_trial_id", "autotuner_config", "source"

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Entry:
    """A trial that Optuna's storage holds."""

    number: int
    trial_id: int | None
    config: dict[str, Value]
    source: str
    key: str
    params: dict[str, Value]
    value: float | None = None
    constraints: Mapping[str, float] = field(default_factory=dict)
    finished: bool = False
    told: bool = False
    """Finished with a lesson: samplers see it."""
    measured: bool = False


@dataclass(slots=True)
class _Memory:
    """One study, as this process knows it."""

    spec: StudySpec
    study: Study
    flat: FlatSpace
    space: dict[str, BaseDistribution]
    names: tuple[str, ...]
    entries: dict[int, _Entry] = field(default_factory=dict)
    """Optuna's trial number → entry."""
    numbers: dict[int, int] = field(default_factory=dict)
    """Our trial → Optuna's trial number."""

    def entry(self, trial_id: int) -> _Entry | None:
        number = self.numbers.get(trial_id)
        return None if number is None else self.entries[number]

    def values(self) -> list[float]:
        return [e.value for e in self.entries.values() if e.measured and e.value is not None]

    def known(self) -> set[str]:
        """Return the keys of every configuration that is known or under way."""
        return {e.key for e in self.entries.values() if e.told or not e.finished}

    def add(self, entry: _Entry) -> None:
        self.entries[entry.number] = entry
        if entry.trial_id is not None:
            self.numbers[entry.trial_id] = entry.number


class OptunaSampler:
    """Proposes points with Optuna and keeps the study that optuna-dashboard shows.

    Args:
        storage_url: SQLAlchemy URL such as ``sqlite:////out/study.db``; created when missing.

    Raises:
        StorageFault: The database cannot be opened.
    """

    def __init__(self, storage_url: str) -> None:
        from autotuner.search import optuna_backend  # noqa: PLC0415  half a second that not every command needs

        self._optuna = optuna_backend
        self._storage = optuna_backend.open_storage(storage_url)
        self._memories: dict[str, _Memory] = {}
        self._lock = threading.RLock()

    def open(self, study_id: str, spec: StudySpec) -> None:
        """Create or load the study's memory.

        Raises:
            InputError: The sampler's name is not one of ``SAMPLERS``.
            EnvironmentFault: The sampler needs a package that is not installed.
            StorageFault: The database cannot be used.
        """
        if spec.search.sampler not in SAMPLERS:
            raise InputError(
                [
                    Problem(
                        field="search.sampler",
                        value=spec.search.sampler,
                        message="there is no such sampler",
                        remedy=f"choose one of {', '.join(SAMPLERS)}",
                    )
                ]
            )
        self._optuna.require_sampler(spec.search.sampler)
        with self._lock:
            study = self._optuna.load_study(self._storage, study_id, _study_attributes(spec), spec.objective.value)
            memory = _Memory(
                spec=spec,
                study=study,
                flat=FlatSpace.of(spec),
                space=self._optuna.distributions(spec.space),
                names=lessons.constraint_names(spec),
            )
            with self._optuna.storage_errors("read the trials"):
                for trial in study.get_trials(deepcopy=False):
                    memory.add(_loaded(trial, memory.flat))
            self._memories[study_id] = memory

    def propose(self, request: Propose) -> PointProposed | NothingProposed:
        """Return the point of ``request.trial_id``; the same point when asked again."""
        with self._lock:
            memory = self._memory(request.study_id)
            entry = memory.entry(request.trial_id)
            if entry is None:
                frame = Frame(fixed=dict(request.fixed), ceiling=dict(request.ceiling))
                choice = self._choose(memory, request.trial_id, frame)
                if choice is None:
                    return NothingProposed(study_id=request.study_id, trial_id=request.trial_id)
                config, source = choice
                entry = self._record(memory, request.trial_id, config, source)
            return PointProposed(
                study_id=request.study_id, trial_id=request.trial_id, config=dict(entry.config), source=entry.source
            )

    def tell(self, result: Tell) -> None:
        """Record the end of a trial; telling the same trial again changes nothing.

        A trial that was not proposed here (the baseline, a race) is added.
        """
        with self._lock:
            memory = self._memory(result.study_id)
            entry = memory.entry(result.trial_id)
            if entry is not None and entry.finished:
                return
            lesson = lessons.lesson(result, memory.names, memory.values())
            extra = lessons.attributes(result, memory.spec)
            measured = result.value is not None and lesson.value == result.value
            if entry is None:
                self._record(memory, result.trial_id, dict(result.config), "told", lesson, extra, measured)
                return
            with self._optuna.storage_errors("record a result"):
                self._finish(memory, entry, lesson, {**extra, **_mark(measured)})
            entry.value, entry.constraints, entry.measured = lesson.value, lesson.constraints, measured
            entry.finished, entry.told = True, lesson.value is not None

    def abandon(self, study_id: str, trial_ids: Iterable[int]) -> None:
        """Close proposed trials that nobody will finish; the sampler learns nothing from them."""
        with self._lock:
            memory = self._memory(study_id)
            for trial_id in trial_ids:
                entry = memory.entry(trial_id)
                if entry is None or entry.finished:
                    continue
                with self._optuna.storage_errors("close a trial"):
                    self._finish(memory, entry, lessons.Lesson(value=None, constraints={}), {"outcome": "abandoned"})
                entry.finished = True

    def running(self, study_id: str) -> tuple[int, ...]:
        """Return the trials that were proposed and have not ended, in order."""
        with self._lock:
            memory = self._memory(study_id)
            return tuple(
                sorted(trial_id for trial_id, number in memory.numbers.items() if not memory.entries[number].finished)
            )

    def close(self) -> None:
        """Release the database connections."""
        with self._lock:
            self._memories.clear()
            self._storage.remove_session()
            self._storage.engine.dispose()

    # --- choosing

    def _choose(self, memory: _Memory, trial_id: int, frame: Frame) -> tuple[dict[str, Value], str] | None:
        """Return the next configuration and its source, or ``None`` when there is none."""
        known = memory.known()
        seed = _next_seed(memory, known, frame)
        if seed is not None:
            return seed
        rng = random.Random(f"{memory.spec.search.seed}:{trial_id}")
        if not memory.flat.free(frame):
            return _fresh(memory, iter([memory.flat.pinned(frame)]), frame, known, memory.spec.search.sampler)
        if memory.spec.search.sampler == "grid":
            return _fresh(memory, memory.flat.points(frame, _GRID_LEVELS), frame, known, "grid")
        asked, last = self._ask(memory, trial_id, frame, known, rng)
        return asked or _elsewhere(memory, frame, known, rng, last)

    def _ask(
        self, memory: _Memory, trial_id: int, frame: Frame, known: set[str], rng: random.Random
    ) -> tuple[tuple[dict[str, Value], str] | None, dict[str, Value] | None]:
        """Return a new point of the sampler, if it has one, and the last candidate that was not new."""
        spec, flat = memory.spec, memory.flat
        round_ = self._optuna.Round(
            spec.search.sampler,
            rng.randrange(2**31),
            memory.space,
            self._history(memory),
            flat.pinned(frame),
            startup=min(10, max(4, spec.effort.trials // 4)),
        )
        duplicate: dict[str, Value] | None = None
        for _ in range(_ASKS):
            candidate = flat.neutralise({**round_.ask(), **flat.pinned(frame)})
            if not flat.within_caps(candidate, frame):
                candidate = flat.neutralise(flat.lower(candidate, frame, rng))
            repaired = flat.repair(candidate, frame)
            if repaired is None:
                self._reject(memory, round_.reject, candidate, frame)
                continue
            config = flat.configuration(repaired, frame)
            if flat.key(config) not in known:
                return (config, spec.search.sampler), None
            duplicate = repaired
        return None, duplicate

    def _reject(
        self, memory: _Memory, teach: Callable[[Observation], None], point: dict[str, Value], frame: Frame
    ) -> None:
        """Record, once, that *point* breaks the rules, in the study and in the running round."""
        config = memory.flat.configuration(point, frame)
        broken = memory.flat.space.violations(config)
        lesson = lessons.rejected(broken, memory.names, memory.values())
        observation = self._optuna.Observation(params=point, value=lesson.value, constraints=lesson.constraints)
        teach(observation)
        if memory.flat.key(config) not in memory.known():
            extra: dict[str, str | float] = {"outcome": "refused", "message": "; ".join(broken)[:500]}
            self._record(memory, None, config, memory.spec.search.sampler, lesson, extra)

    def _history(self, memory: _Memory) -> list[Observation]:
        return [
            self._optuna.Observation(params=e.params, value=e.value, constraints=e.constraints)
            for e in memory.entries.values()
            if e.told or not e.finished
        ]

    # --- recording

    def _memory(self, study_id: str) -> _Memory:
        try:
            return self._memories[study_id]
        except KeyError:
            raise InternalError(f"the study {study_id} was not opened") from None

    def _record(
        self,
        memory: _Memory,
        trial_id: int | None,
        config: dict[str, Value],
        source: str,
        lesson: lessons.Lesson | None = None,
        extra: Mapping[str, str | float] | None = None,
        measured: bool = False,
    ) -> _Entry:
        """Add a trial in one write: a running one without *lesson*, else a finished one."""
        entry = _Entry(
            number=len(memory.entries),
            trial_id=trial_id,
            config=config,
            source=source,
            key=memory.flat.key(config),
            params=memory.flat.flatten(config),
            measured=measured,
        )
        if lesson is not None:
            entry.value, entry.constraints = lesson.value, lesson.constraints
            entry.finished, entry.told = True, lesson.value is not None
        attrs: dict[str, str | float] = {_CONFIG: json.dumps(config, sort_keys=True), _SOURCE: source}
        if trial_id is not None:
            attrs[_ID] = trial_id
        with self._optuna.storage_errors("record a trial"):
            self._optuna.add_trial(memory.study, memory.space, entry, {**attrs, **(extra or {}), **_mark(measured)})
        memory.add(entry)
        return entry

    def _finish(self, memory: _Memory, entry: _Entry, lesson: lessons.Lesson, extra: Mapping[str, str | float]) -> None:
        self._optuna.finish_trial(memory.study, entry.number, lesson.value, lesson.constraints, extra)


def _mark(measured: bool) -> dict[str, str | float]:
    return {"autotuner_measured": "yes"} if measured else {}


def _next_seed(memory: _Memory, known: set[str], frame: Frame) -> tuple[dict[str, Value], str] | None:
    """Return the next seed that was not proposed, lies in the space and is new.

    Inside a launch only a seed with the launch's cold part will do.  For a launch of its own a seed comes first whose
    cold part was not launched yet: the others can be hot points of a launch that there is anyway.
    """
    space = memory.flat.space
    used = {entry.source for entry in memory.entries.values()}
    launched = {config_key(space.cold_part(entry.config)) for entry in memory.entries.values()}
    waiting: list[tuple[dict[str, Value], str]] = []
    for index, seed in enumerate(memory.spec.seeds):
        source = f"seed:{index + 1}"
        config = memory.flat.active(seed)
        if source in used or memory.flat.key(config) in known:
            continue
        problem = memory.flat.problem(config)
        if problem:
            _log.info("seed %d is skipped: %s", index + 1, problem)
            continue
        cold = config_key(space.cold_part(config))
        if frame.in_launch:
            if cold == config_key(frame.fixed) and memory.flat.within_caps(memory.flat.flatten(config), frame):
                return config, source
        elif cold not in launched:
            return config, source
        else:
            waiting.append((config, source))
    return waiting[0] if waiting else None


def _fresh(
    memory: _Memory, points: Iterator[dict[str, Value]], frame: Frame, known: set[str], source: str
) -> tuple[dict[str, Value], str] | None:
    """Return the first point that, repaired where necessary, is allowed and new."""
    for point in points:
        repaired = memory.flat.repair(point, frame)
        if repaired is None:
            continue
        config = memory.flat.configuration(repaired, frame)
        if memory.flat.key(config) not in known:
            return config, source
    return None


def _elsewhere(
    memory: _Memory, frame: Frame, known: set[str], rng: random.Random, near: dict[str, Value] | None
) -> tuple[dict[str, Value], str] | None:
    """Return a new random point, near the sampler's last candidate where possible."""
    flat = memory.flat

    def tries() -> Iterator[dict[str, Value]]:
        if near is not None:
            for _ in range(_TRIES):
                yield flat.neighbour(near, frame, rng)
        for _ in range(_TRIES):
            yield flat.random_point(frame, rng)
        size = flat.size(frame)
        if size is not None and size <= _ENUMERABLE:
            rest = list(flat.points(frame))
            rng.shuffle(rest)
            yield from rest

    return _fresh(memory, tries(), frame, known, "random")


def _loaded(trial: FrozenTrial, flat: FlatSpace) -> _Entry:
    """Return the entry of a stored trial; one that was not ours (added by hand) is kept out of the history."""
    attrs = trial.user_attrs
    ours, finished = _CONFIG in attrs, trial.state.is_finished()
    told = ours and finished and trial.values is not None
    config: dict[str, Value] = json.loads(attrs.get(_CONFIG, "{}"))
    return _Entry(
        number=trial.number,
        trial_id=int(attrs[_ID]) if _ID in attrs else None,
        config=config,
        source=str(attrs.get(_SOURCE, "")),
        key=flat.key(config),
        params=flat.flatten(config),
        value=trial.value if told else None,
        constraints=dict(trial.constraints) if told else {},
        finished=finished or not ours,
        told=told,
        measured="autotuner_measured" in attrs,
    )


def _study_attributes(spec: StudySpec) -> dict[str, str]:
    attrs = {
        "name": spec.name,
        "model": spec.model,
        "engine": f"{spec.engine.kind} {spec.engine.version}".strip(),
        "objective": spec.objective.value,
        "sampler": spec.search.sampler,
    }
    if spec.engine.kind == "simulated":
        attrs["label"] = "SIMULATED: these figures come from a simulated engine"
    return attrs
