"""Everything that touches Optuna: storage, distributions, one asking round.  Imported only when a sampler is made.

A round of asking happens in a throw-away study in memory that holds the (windowed) history.  Candidates that are
asked and not used therefore leave no trace in the user's study, a round costs no database writes, and the sampler
still sees them as running and moves away from them.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

import optuna
import sqlalchemy
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import BaseStorage, RDBStorage
from optuna.study import Study
from optuna.trial import TrialState

from autotuner.core.space import Parameter, ParameterKind, Space, Value
from autotuner.errors import EnvironmentFault, StorageFault

__all__ = [
    "Observation",
    "Recorded",
    "Round",
    "add_trial",
    "distributions",
    "finish_trial",
    "load_study",
    "open_storage",
    "require_sampler",
    "storage_errors",
    "window",
]

_SQLITE_TIMEOUT = 30.0
_WINDOWS = {"tpe": 400, "gp": 80, "random": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One point of the history as samplers see it."""

    params: Mapping[str, Value]
    """Flat point."""
    value: float | None
    """Objective to maximise; ``None`` while the trial runs."""
    constraints: Mapping[str, float]
    """Amounts, the same names in every observation; empty while the trial runs."""


@contextmanager
def storage_errors(action: str) -> Iterator[None]:
    """Turn the storage's failures into ``StorageFault``."""
    try:
        yield
    except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        raise StorageFault(f"the study database cannot be used to {action}: {error}") from error


def open_storage(url: str) -> RDBStorage:
    """Return the relational storage at *url*; SQLite waits for other writers and keeps a write-ahead log.

    Raises:
        StorageFault: The database cannot be opened.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sqlite = url.startswith("sqlite")
    options: dict[str, Any] = {"connect_args": {"timeout": _SQLITE_TIMEOUT}} if sqlite else {"pool_pre_ping": True}
    with storage_errors("open it"):
        storage = RDBStorage(url, engine_kwargs=options)
        if sqlite:
            storage.engine.dispose()
            sqlalchemy.event.listen(storage.engine, "connect", _prepare_sqlite)
            with storage.engine.connect():
                pass
    return storage


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    """Let readers and another writer work beside us; losing the last commits in a power cut is harmless here."""
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")


def load_study(storage: BaseStorage, study_id: str, attrs: Mapping[str, str], metric: str) -> Study:
    """Create or load the study called *study_id* and give it *attrs*."""
    with storage_errors("load the study"), warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study = optuna.create_study(
            storage=storage,
            study_name=study_id,
            direction="maximize",
            load_if_exists=True,
            sampler=optuna.samplers.RandomSampler(seed=0),
            pruner=optuna.pruners.NopPruner(),
        )
        known = study.user_attrs
        for name, value in attrs.items():
            if known.get(name) != value:
                study.set_user_attr(name, value)
        if study.metric_names is None:
            study.set_metric_names([metric])
    return study


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """Return Optuna's distribution of every parameter of *space*."""
    return {parameter.name: _distribution(parameter) for parameter in space}


def _distribution(parameter: Parameter) -> BaseDistribution:
    if parameter.kind is ParameterKind.CHOICE:
        return CategoricalDistribution(parameter.choices)
    assert parameter.low is not None and parameter.high is not None
    step = None if parameter.log else parameter.step
    if parameter.kind is ParameterKind.INT:
        low, high, whole = int(parameter.low), int(parameter.high), int(step or 1)
        return IntDistribution(low, low + (high - low) // whole * whole, log=parameter.log, step=whole)
    if step is None:
        return FloatDistribution(parameter.low, parameter.high, log=parameter.log)
    low_d, high_d, step_d = (Decimal(repr(float(x))) for x in (parameter.low, parameter.high, step))
    return FloatDistribution(parameter.low, float(low_d + (high_d - low_d) // step_d * step_d), step=step)


def require_sampler(name: str) -> None:
    """Raise ``EnvironmentFault`` when the sampler called *name* lacks a package."""
    if name == "gp" and importlib.util.find_spec("torch") is None:
        raise EnvironmentFault(
            "the gp sampler needs torch, which is not installed here; install torch beside the controller "
            "or choose sampler: tpe"
        )


def window(observations: Sequence[Observation], sampler: str) -> list[Observation]:
    """Return the history that *sampler* gets: all of it, or the best half and the newest when it is long."""
    limit = _WINDOWS[sampler]
    if len(observations) <= limit:
        return list(observations)
    if limit == 0:
        return []
    ranked = sorted(range(len(observations)), key=lambda index: _rank(observations[index]))
    kept = set(ranked[: limit // 2])
    for index in reversed(range(len(observations))):
        if len(kept) >= limit:
            break
        kept.add(index)
    return [observations[index] for index in sorted(kept)]


def _rank(observation: Observation) -> tuple[float, float]:
    broken = sum(amount for amount in observation.constraints.values() if amount > 0)
    return (broken, -observation.value) if observation.value is not None else (float("inf"), 0.0)


class Round:
    """One round of asking: a sampler over a throw-away copy of the history."""

    def __init__(
        self,
        sampler: str,
        seed: int,
        space: Mapping[str, BaseDistribution],
        history: Sequence[Observation],
        pinned: Mapping[str, Value],
        startup: int,
    ) -> None:
        self._space = dict(space)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            base = _make(sampler, seed, startup)
            chosen = optuna.samplers.PartialFixedSampler(dict(pinned), base) if pinned else base
        self._study = optuna.create_study(direction="maximize", sampler=chosen)
        for observation in window(history, sampler):
            self._study.add_trial(self._frozen(observation))

    def ask(self) -> dict[str, Value]:
        """Return the next candidate: a value for every parameter."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            params: dict[str, Value] = self._study.ask(fixed_distributions=self._space).params
        return params

    def reject(self, observation: Observation) -> None:
        """Teach this round that a point is not wanted."""
        self._study.add_trial(self._frozen(observation))

    def _frozen(self, observation: Observation) -> optuna.trial.FrozenTrial:
        running = observation.value is None
        return optuna.trial.create_trial(
            state=TrialState.RUNNING if running else TrialState.COMPLETE,
            value=observation.value,
            params=dict(observation.params),
            distributions=self._space,
            constraints=None if running else dict(observation.constraints),
        )


def _make(sampler: str, seed: int, startup: int) -> optuna.samplers.BaseSampler:
    if sampler == "tpe":
        return optuna.samplers.TPESampler(
            seed=seed,
            multivariate=True,
            constant_liar=True,
            n_startup_trials=startup,
        )
    if sampler == "gp":
        return optuna.samplers.GPSampler(
            seed=seed, n_startup_trials=startup, deterministic_objective=False, warn_independent_sampling=False
        )
    return optuna.samplers.RandomSampler(seed=seed)


class Recorded(Protocol):
    """What ``add_trial`` needs to know about a point."""

    @property
    def number(self) -> int:
        """Expected number of the trial."""
        ...

    @property
    def params(self) -> Mapping[str, Value]:
        """Flat point."""
        ...

    @property
    def value(self) -> float | None:
        """Objective or placeholder."""
        ...

    @property
    def constraints(self) -> Mapping[str, float]:
        """Amounts."""
        ...

    @property
    def finished(self) -> bool:
        """Whether the trial has ended."""
        ...


def add_trial(
    study: Study, space: Mapping[str, BaseDistribution], point: Recorded, attrs: Mapping[str, str | float]
) -> None:
    """Add *point* to *study* in one write: running, complete, or failed when it ended without a value."""
    if not point.finished:
        state = TrialState.RUNNING
    else:
        state = TrialState.FAIL if point.value is None else TrialState.COMPLETE
    study.add_trial(
        optuna.trial.create_trial(
            state=state,
            value=point.value,
            params=dict(point.params),
            distributions=dict(space),
            user_attrs=dict(attrs),
            constraints=dict(point.constraints) or None,
        )
    )


def finish_trial(
    study: Study,
    number: int,
    value: float | None,
    constraints: Mapping[str, float],
    attrs: Mapping[str, str | float],
) -> None:
    """End the running trial *number*; safe to repeat after a crash half-way."""
    frozen = study.get_trials(deepcopy=False)[number]
    if frozen.state.is_finished():
        return
    trial = optuna.trial.Trial(study, frozen._trial_id)  # noqa: SLF001  no public way from a number to a Trial
    for name, attr in attrs.items():
        if frozen.user_attrs.get(name) != attr:
            trial.set_user_attr(name, attr)
    known = frozen.constraints
    for name, amount in constraints.items():
        if name not in known:
            trial.set_constraint(name, amount)
    if value is None:
        study.tell(number, state=TrialState.FAIL)
    else:
        study.tell(number, value)
