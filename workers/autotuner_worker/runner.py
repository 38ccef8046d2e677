"""One trial at a time on this host: event in, commands out.

The runner owns the decision which engine runs, is kept for the next trial or makes room for another; the agent's loop
carries the commands out and reports what came of them.  Pure: time is an argument.

Invariants (``check``): at most ``resident`` engines exist; at most one segment runs, on an engine that is ready; every
assignment that was accepted ends in exactly one ``Deliver``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from autotuner.core.space import Value, config_key
from autotuner.core.trial import Assignment, Launch, Measurement, Outcome, OutcomeClass, TrialKind
from autotuner.errors import InternalError

__all__ = [
    "AbortSegment",
    "AssignmentGiven",
    "CancelGiven",
    "Command",
    "Deliver",
    "EngineDied",
    "EngineFailed",
    "EngineStarted",
    "EngineState",
    "EngineStopped",
    "Event",
    "Exit",
    "FenceDue",
    "RunSegment",
    "Runner",
    "SegmentDone",
    "SegmentFailed",
    "ShutdownGiven",
    "StartEngine",
    "StopEngine",
]

KEEP_AFTER = frozenset({OutcomeClass.COMPLETE, OutcomeClass.VOID, OutcomeClass.CANCELLED})
"""Outcomes after which the engine may serve another trial."""


# --- events ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentGiven:
    """The controller wants this attempt done."""

    assignment: Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelGiven:
    """The controller wants this attempt dropped."""

    study_id: str
    trial_id: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStarted:
    """An engine gave its first real answer."""

    key: str
    launch: Launch
    hot_capable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFailed:
    """An engine did not start; nothing of it is left."""

    key: str
    outcome: OutcomeClass
    message: str
    evidence: tuple[str, ...]
    hint: Mapping[str, float]
    launch: Launch | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDied:
    """A running engine ended by itself or was found unusable; nothing of it is left."""

    key: str
    outcome: OutcomeClass
    message: str
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStopped:
    """A stop was carried out and verified."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentDone:
    """The load was measured."""

    key: str
    measurement: Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFailed:
    """The load ended without a measurement; the engine still lives."""

    key: str
    outcome: OutcomeClass
    message: str
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceDue:
    """The lease is about to end without contact: let go of everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownGiven:
    """The worker shall end."""


Event = (
    AssignmentGiven
    | CancelGiven
    | EngineStarted
    | EngineFailed
    | EngineDied
    | EngineStopped
    | SegmentDone
    | SegmentFailed
    | FenceDue
    | ShutdownGiven
)


# --- commands --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StartEngine:
    """Start an engine; answer with ``EngineStarted`` or ``EngineFailed``."""

    key: str
    launch_id: str
    model: str
    config: Mapping[str, Value]
    timeout: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StopEngine:
    """Stop an engine, also one that is still starting; answer with ``EngineStopped``."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSegment:
    """Set the hot parameters, then offer load; answer with ``SegmentDone``, ``SegmentFailed`` or ``EngineDied``."""

    key: str
    assignment: Assignment
    hot: Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortSegment:
    """Stop the load; no answer."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliver:
    """Spool and send the outcome."""

    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """Everything is down: the process may end."""


Command = StartEngine | StopEngine | RunSegment | AbortSegment | Deliver | Exit


# --- the machine -------------------------------------------------------------------------------------------------------


class EngineState(StrEnum):
    """Where an engine stands."""

    STARTING = "starting"
    READY = "ready"
    BUSY = "busy"
    STOPPING = "stopping"


@dataclass(slots=True, kw_only=True)
class _Engine:
    key: str
    config: Mapping[str, Value]
    kind: TrialKind
    """Of the trial that it was started for."""
    state: EngineState
    launch: Launch | None = None
    hot_capable: bool = False
    used: float = 0.0
    segments: int = 0


class Runner:
    """The state of this host's one trial and its engines."""

    def __init__(self, *, instance_id: str, resident: int = 1) -> None:
        self.instance_id = instance_id
        self.resident = max(1, resident)
        self.assignment: Assignment | None = None
        self.engines: dict[str, _Engine] = {}
        self.hot_works = True
        self._launches = 0
        self._began = 0.0
        self._leaving = False

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take one event at the monotonic time *now* and return what is to be done."""
        match event:
            case AssignmentGiven():
                return self._given(event.assignment, now)
            case CancelGiven():
                return self._cancel(event, now)
            case EngineStarted():
                return self._started(event, now)
            case EngineFailed():
                self.engines.pop(event.key, None)
                return self._fault(
                    event.key, event.outcome, event.message, event.evidence, event.launch, event.hint, now
                )
            case EngineDied():
                return self._died(event, now)
            case EngineStopped():
                self.engines.pop(event.key, None)
                return self._proceed(now)
            case SegmentDone():
                return self._measured(event, now)
            case SegmentFailed():
                return self._segment_failed(event, now)
            case FenceDue():
                return self._let_go(OutcomeClass.PREEMPTED, "the lease ended without contact to the controller", now)
            case ShutdownGiven():
                self._leaving = True
                return self._let_go(OutcomeClass.PREEMPTED, "the worker was told to end", now)

    @property
    def phase(self) -> str:
        """What the host is doing: idle, starting, measuring or stopping."""
        if self._leaving or any(e.state is EngineState.STOPPING for e in self.engines.values()):
            return "stopping"
        if self.assignment is None:
            return "idle"
        return "starting" if any(e.state is EngineState.STARTING for e in self.engines.values()) else "measuring"

    def check(self) -> None:
        """Raise ``InternalError`` when an invariant is broken."""
        if len(self.engines) > self.resident:
            raise InternalError(f"{len(self.engines)} engines where {self.resident} fit")
        busy = [e for e in self.engines.values() if e.state is EngineState.BUSY]
        if len(busy) > 1 or (busy and self.assignment is None):
            raise InternalError("load runs without an assignment, or twice")

    # --- steps ---------------------------------------------------------------------------------------------------------

    def _wanted(self, assignment: Assignment) -> tuple[str, Mapping[str, Value], Mapping[str, Value]]:
        """Return (key, flags, hot parameters) of the engine for *assignment*."""
        hot = assignment.hot if self.hot_works else {}
        config = assignment.launch_config if hot else assignment.config
        return config_key(config), config, hot

    def _given(self, assignment: Assignment, now: float) -> list[Command]:
        held = self.assignment
        if held is not None:
            same = (held.study_id, held.trial_id, held.attempt) == (
                assignment.study_id,
                assignment.trial_id,
                assignment.attempt,
            )
            if same:
                return []
            cancel = CancelGiven(study_id=held.study_id, trial_id=held.trial_id, attempt=held.attempt)
            return [*self._cancel(cancel, now), *self._given(assignment, now)]
        if self._leaving:
            return []
        self.assignment, self._began = assignment, now
        return self._proceed(now)

    def _proceed(self, now: float) -> list[Command]:
        """Take the next step towards the assignment's segment."""
        if self._leaving:
            return [] if self.engines else [Exit()]
        assignment = self.assignment
        if assignment is None:
            return []
        key, config, hot = self._wanted(assignment)
        engine = self.engines.get(key)
        if engine is not None:
            if engine.state is not EngineState.READY:
                return []
            engine.state, engine.used, engine.segments = EngineState.BUSY, now, engine.segments + 1
            return [RunSegment(key=key, assignment=assignment, hot=hot)]
        if len(self.engines) >= self.resident:
            return self._make_room()
        self._launches += 1
        self.engines[key] = _Engine(key=key, config=config, kind=assignment.kind, state=EngineState.STARTING, used=now)
        launch_id = f"{self.instance_id}-{self._launches}"
        timeout = assignment.measure.start_timeout
        return [StartEngine(key=key, launch_id=launch_id, model=assignment.model, config=config, timeout=timeout)]

    def _make_room(self) -> list[Command]:
        if any(e.state is EngineState.STOPPING for e in self.engines.values()):
            return []
        # The baseline's engine is kept as long as anything else can go: the race needs it again.
        ready = [e for e in self.engines.values() if e.state is EngineState.READY]
        oldest = min(ready, key=lambda e: (e.kind is TrialKind.BASELINE, e.used))
        oldest.state = EngineState.STOPPING
        return [StopEngine(key=oldest.key)]

    def _started(self, event: EngineStarted, now: float) -> list[Command]:
        engine = self.engines.get(event.key)
        if engine is None or engine.state is not EngineState.STARTING:
            return []
        engine.state, engine.launch, engine.hot_capable = EngineState.READY, event.launch, event.hot_capable
        if self.assignment is not None and self.assignment.hot and not event.hot_capable:
            self.hot_works = False
        return self._proceed(now)

    def _finish(self, outcome: Outcome) -> list[Command]:
        self.assignment = None
        return [Deliver(outcome=outcome)]

    def _outcome(self, kind: OutcomeClass, engine: _Engine | None, now: float, **parts: object) -> Outcome:
        assert self.assignment is not None
        given = self.assignment
        launch = parts.pop("launch", None) or (engine.launch if engine is not None else None)
        if isinstance(launch, Launch) and engine is not None and engine.segments > 1:
            launch = replace(launch, reused=True)
        return Outcome(
            study_id=given.study_id,
            trial_id=given.trial_id,
            attempt=given.attempt,
            epoch=given.epoch,
            outcome=kind,
            launch=launch,  # type: ignore[arg-type]
            engine_seconds=max(0.0, now - self._began),
            **parts,  # type: ignore[arg-type]
        )

    def _measured(self, event: SegmentDone, now: float) -> list[Command]:
        engine = self.engines.get(event.key)
        if engine is None or engine.state is not EngineState.BUSY or self.assignment is None:
            return []
        engine.state = EngineState.READY
        launch = engine.launch
        if launch is not None:  # the hot values were read back from the engine before the load
            hot = {name: str(value) for name, value in self._wanted(self.assignment)[2].items()}
            launch = replace(launch, effective={**launch.effective, **hot})
        done = self._outcome(OutcomeClass.COMPLETE, engine, now, launch=launch, measurement=event.measurement)
        return self._finish(done)

    def _segment_failed(self, event: SegmentFailed, now: float) -> list[Command]:
        engine = self.engines.get(event.key)
        if engine is None or engine.state is not EngineState.BUSY or self.assignment is None:
            return []
        done = self._finish(self._outcome(event.outcome, engine, now, message=event.message, evidence=event.evidence))
        if event.outcome in KEEP_AFTER:
            engine.state = EngineState.READY
            return done
        engine.state = EngineState.STOPPING
        return [*done, StopEngine(key=event.key)]

    def _died(self, event: EngineDied, now: float) -> list[Command]:
        engine = self.engines.get(event.key)
        if engine is None or engine.state in (EngineState.STARTING, EngineState.STOPPING):
            return []  # an earlier engine of that key, or one that is being stopped: the answer to that is still to come
        del self.engines[event.key]
        if engine.state is not EngineState.BUSY:
            return self._proceed(now)
        launch = replace(engine.launch, reused=engine.segments > 1) if engine.launch is not None else None
        abort: list[Command] = [AbortSegment(key=event.key)]
        return abort + self._fault(event.key, event.outcome, event.message, event.evidence, launch, {}, now)

    def _fault(
        self,
        key: str,
        kind: OutcomeClass,
        message: str,
        evidence: tuple[str, ...],
        launch: Launch | None,
        hint: Mapping[str, float],
        now: float,
    ) -> list[Command]:
        if self.assignment is None or self._wanted(self.assignment)[0] != key:
            return self._proceed(now)
        outcome = self._outcome(kind, None, now, message=message, evidence=evidence, launch=launch, hint=hint)
        return [*self._finish(outcome), *self._proceed(now)]

    def _cancel(self, event: CancelGiven, now: float) -> list[Command]:
        held = self.assignment
        wanted = (event.study_id, event.trial_id, event.attempt)
        if held is None or (held.study_id, held.trial_id, held.attempt) != wanted:
            return []
        engine = self.engines.get(self._wanted(held)[0])
        outcome = self._outcome(OutcomeClass.CANCELLED, engine, now, message="the controller took the trial back")
        commands = self._finish(outcome)
        if engine is not None and engine.state is EngineState.BUSY:
            engine.state = EngineState.READY
            return [AbortSegment(key=engine.key), *commands]
        if engine is not None and engine.state is EngineState.STARTING:
            engine.state = EngineState.STOPPING
            return [StopEngine(key=engine.key), *commands]
        return commands

    def _let_go(self, kind: OutcomeClass, why: str, now: float) -> list[Command]:
        """Drop the assignment and stop every engine."""
        commands: list[Command] = []
        for engine in self.engines.values():
            if engine.state is EngineState.BUSY:
                commands.append(AbortSegment(key=engine.key))
            if engine.state is not EngineState.STOPPING:
                commands.append(StopEngine(key=engine.key))
        if self.assignment is not None:
            mine = self.engines.get(self._wanted(self.assignment)[0])
            commands += self._finish(self._outcome(kind, mine, now, message=why))
        for engine in self.engines.values():
            engine.state = EngineState.STOPPING
        if self._leaving and not self.engines:
            commands.append(Exit())
        return commands
