"""The worker's loop: what the controller wants and what the engine does go in, commands come out and are carried out.

The runner decides; this module owns the tasks.  Every command that takes time is a task that ends in an event.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, Protocol

from autotuner.core import workers as w
from autotuner.core.trial import Assignment, Launch, Outcome, OutcomeClass
from autotuner.errors import AutotunerError, EnvironmentFault
from autotuner_worker import runner as r
from autotuner_worker.agent.config import WorkerConfig
from autotuner_worker.agent.segment import measure
from autotuner_worker.ports import (
    Engine,
    EngineAdapter,
    EngineDeath,
    EngineFault,
    LoadGenerator,
    PlanPaths,
    Segment,
    SegmentFault,
)
from autotuner_worker.process import reserve_port

__all__ = ["Agent", "ControllerLink"]

log = logging.getLogger(__name__)

DEATH_GRACE = 6.0
"""Seconds in which an engine whose load failed may turn out to be dead: its own watchdog needs up to five."""
FENCE_MARGIN = 30.0
"""Seconds before the end of the lease at which a worker without contact lets go."""


class ControllerLink(Protocol):
    """The agent's way to the controller."""

    async def connect(self) -> w.Session:
        """Introduce this worker; retry while the controller is away."""
        ...

    async def sync(self, state: w.WorkerState) -> w.Desired:
        """Exchange states; registers again by itself when the controller has forgotten the session."""
        ...

    async def deliver(self, outcome: Outcome) -> object:
        """Spool the outcome, send it, and remove it from the spool once it is acknowledged."""
        ...

    def pending(self) -> tuple[Outcome, ...]:
        """Return the outcomes that are spooled and not acknowledged; ``sync`` names them by itself."""
        ...

    def silence(self) -> float:
        """Return the seconds since the last contact."""
        ...

    async def close(self) -> None:
        """Release the channel."""
        ...


class Agent:
    """Runs trials on this host until it is told to end."""

    def __init__(
        self,
        *,
        config: WorkerConfig,
        link: ControllerLink,
        runner: r.Runner,
        adapter: EngineAdapter,
        load: LoadGenerator,
        vocabulary: int,
    ) -> None:
        self._config = config
        self._link = link
        self._runner = runner
        self._adapter = adapter
        self._load = load
        self._vocabulary = vocabulary
        self._engines: dict[str, Engine] = {}
        self._dying: dict[str, Engine] = {}
        """Ended by themselves; what is left of them is being cleared away."""
        self._starts: dict[str, asyncio.Task[None]] = {}
        self._segments: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._done = asyncio.Event()
        self._failure: BaseException | None = None
        self._progress: w.ProgressReport | None = None
        self._phase_began = time.monotonic()
        self._lease = 600.0

    # --- life ----------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve the controller until it dismisses this worker or ``leave`` is called."""
        exchange = self._spawn(self._exchange())
        try:
            await self._done.wait()
        finally:
            exchange.cancel()
            for task in list(self._tasks):
                if task is not exchange and task.get_name() == "deliver":
                    with contextlib.suppress(Exception):
                        await asyncio.wait_for(task, 3.0)
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for engine in list(self._engines.values()):
                await engine.stop()
            await self._link.close()
        if self._failure is not None:
            raise self._failure

    def leave(self, why: str) -> None:
        """Stop everything and end; called by signals and when the parent is gone."""
        log.info("leaving: %s", why)
        self._post(r.ShutdownGiven())

    def _spawn(self, work: Coroutine[Any, Any, None], name: str = "") -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name or None)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s", error, exc_info=None if isinstance(error, AutotunerError) else error)
            self._failure = self._failure or error
            self._done.set()

    # --- the controller's wishes -----------------------------------------------------------------------------------------

    async def _exchange(self) -> None:
        session = await self._link.connect()
        self._lease = session.lease_seconds
        watch = self._spawn(self._watch_lease())
        try:
            while True:
                desired = await self._link.sync(self._state())
                self._lease = desired.lease_seconds
                for held in desired.cancel:
                    self._post(r.CancelGiven(study_id=held.study_id, trial_id=held.trial_id, attempt=held.attempt))
                if desired.assignment is not None and not self._is_pending(desired.assignment):
                    self._post(r.AssignmentGiven(assignment=desired.assignment))
                if desired.shutdown:
                    self.leave("the controller dismissed this worker")
                    return
        finally:
            watch.cancel()

    async def _watch_lease(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            if self._link.silence() > max(self._lease - FENCE_MARGIN, self._lease / 2):
                self._post(r.FenceDue())

    def _is_pending(self, assignment: Assignment) -> bool:
        """Return whether the attempt's outcome is on its way already."""
        return any(w.held(outcome) == w.held(assignment) for outcome in self._link.pending())

    def _state(self) -> w.WorkerState:
        given = self._runner.assignment
        held = (w.held(given),) if given is not None else ()
        return w.WorkerState(held=held, progress=self._progress, wait_seconds=1.0)

    def _report(self, phase: str, detail: str, throughput: float) -> None:
        given, now = self._runner.assignment, time.monotonic()
        if given is None:
            self._progress = None
            return
        if self._progress is None or (self._progress.phase, self._progress.trial_id) != (phase, given.trial_id):
            self._phase_began = now
        self._progress = w.ProgressReport(
            study_id=given.study_id,
            trial_id=given.trial_id,
            phase=phase,
            detail=detail,
            seconds=now - self._phase_began,
            throughput=throughput,
        )

    # --- events and commands -----------------------------------------------------------------------------------------------

    def _post(self, event: r.Event) -> None:
        commands = self._runner.handle(event, time.monotonic())
        self._runner.check()
        for command in commands:
            self._carry_out(command)

    def _carry_out(self, command: r.Command) -> None:
        match command:
            case r.StartEngine():
                self._starts[command.key] = self._spawn(self._start(command))
            case r.StopEngine():
                self._spawn(self._stop(command.key))
            case r.RunSegment():
                self._segments[command.key] = self._spawn(self._segment(command))
            case r.AbortSegment():
                task = self._segments.pop(command.key, None)
                if task is not None:
                    task.cancel()
            case r.Deliver():
                self._spawn(self._deliver(command.outcome), "deliver")
            case r.Exit():
                self._done.set()

    async def _deliver(self, outcome: Outcome) -> None:
        await self._link.deliver(outcome)

    def _paths(self, launch_id: str) -> PlanPaths:
        run_dir = self._config.state_dir / "launches" / launch_id
        logs = self._config.out_dir / "logs"
        for folder in (run_dir, logs, self._config.cache_dir):
            folder.mkdir(parents=True, exist_ok=True)
        return PlanPaths(run_dir=run_dir, log_path=logs / f"{launch_id}.log", cache_dir=self._config.cache_dir)

    async def _start(self, command: r.StartEngine) -> None:
        try:
            self._report("starting", "preparing", 0.0)
            paths = self._paths(command.launch_id)
            with reserve_port() as lease:
                plan = self._adapter.plan(command.model, command.config, paths, lease.port)
            engine = await self._adapter.start(plan, paths, command.launch_id, command.timeout, self._report)
        except EngineDeath as death:
            self._failed(command.key, death.fault, death.launch)
        except EnvironmentFault as error:
            self._failed(command.key, EngineFault(outcome=OutcomeClass.INFRASTRUCTURE, message=str(error)), None)
        except OSError as error:
            fault = EngineFault(outcome=OutcomeClass.INFRASTRUCTURE, message=f"cannot prepare the launch: {error}")
            self._failed(command.key, fault, None)
        else:
            self._engines[command.key] = engine
            self._spawn(self._watch(command.key, engine))
            self._post(r.EngineStarted(key=command.key, launch=engine.launch, hot_capable=engine.hot_capable))
        finally:
            self._starts.pop(command.key, None)

    def _failed(self, key: str, fault: EngineFault, launch: Launch | None) -> None:
        self._post(
            r.EngineFailed(
                key=key,
                outcome=fault.outcome,
                message=fault.message,
                evidence=fault.evidence,
                hint=fault.hint,
                launch=launch,
            )
        )

    async def _watch(self, key: str, engine: Engine) -> None:
        fault = await engine.died()
        if self._engines.get(key) is engine:
            await self._bury(key, fault)

    async def _bury(self, key: str, fault: EngineFault) -> None:
        """Clear away an engine that ended or is unusable, then say so."""
        engine = self._engines.pop(key, None)
        if engine is None:
            return
        segment = self._segments.pop(key, None)
        if segment is not None and segment is not asyncio.current_task():
            segment.cancel()
        self._dying[key] = engine
        try:
            await engine.stop()
        finally:
            del self._dying[key]
        self._post(r.EngineDied(key=key, outcome=fault.outcome, message=fault.message, evidence=fault.evidence))

    async def _stop(self, key: str) -> None:
        start = self._starts.pop(key, None)
        if start is not None:
            start.cancel()
            await asyncio.gather(start, return_exceptions=True)
        segment = self._segments.pop(key, None)
        if segment is not None:
            segment.cancel()
            await asyncio.gather(segment, return_exceptions=True)
        engine = self._engines.pop(key, None) or self._dying.get(key)
        if engine is not None:
            await engine.stop()
        self._post(r.EngineStopped(key=key))

    async def _segment(self, command: r.RunSegment) -> None:
        engine = self._engines.get(command.key)
        if engine is None:
            return  # it died in this very moment; its watcher says so
        try:
            segment = self._segment_of(command.assignment, engine)
            measurement = await measure(engine, self._load, segment, command.hot, self._report)
        except SegmentFault as error:
            await self._segment_fault(command.key, engine, error.fault)
        except EngineDeath as death:
            await self._bury(command.key, death.fault)
        except (OSError, EnvironmentFault) as error:
            fault = EngineFault(outcome=OutcomeClass.INFRASTRUCTURE, message=f"the measurement failed: {error}")
            await self._segment_fault(command.key, engine, fault)
        else:
            relative = segment.records_path.relative_to(self._config.out_dir)
            self._segments.pop(command.key, None)
            self._post(r.SegmentDone(key=command.key, measurement=replace(measurement, records=str(relative))))

    async def _segment_fault(self, key: str, engine: Engine, fault: EngineFault) -> None:
        """Report a failed segment, unless the engine turns out to have died: then that is the reason."""
        if fault.outcome is not OutcomeClass.VOID:
            with contextlib.suppress(TimeoutError):
                found = await asyncio.wait_for(engine.died(), DEATH_GRACE)
                await self._bury(key, found)
                return
        self._segments.pop(key, None)
        self._post(r.SegmentFailed(key=key, outcome=fault.outcome, message=fault.message, evidence=fault.evidence))

    def _segment_of(self, given: Assignment, engine: Engine) -> Segment:
        records = self._config.out_dir / "records"
        records.mkdir(parents=True, exist_ok=True)
        return Segment(
            base_url=engine.base_url,
            model_name=engine.model_name,
            workload=given.workload,
            measure=given.measure,
            limits=given.limits,
            seed=given.seed,
            salt=given.trial_id * 16 + given.attempt % 16,
            vocabulary=self._vocabulary,
            records_path=records / f"{given.study_id}-{given.trial_id:04d}-{given.attempt}.npz",
        )
