"""The controller's loop: events go through the machine into the journal, commands out to their adapters.

One asyncio loop; the machine runs on it, blocking adapters (sampler, publisher) on one thread beside it.  An event is
acknowledged only after the journal has it, so a controller that dies at any point loses nothing that it promised.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from autotuner.core import events as ev
from autotuner.core import workers as w
from autotuner.core.commands import Command, Propose, Publish, Tell
from autotuner.core.lifecycle import StudyState
from autotuner.core.machine import Machine
from autotuner.core.results import StudyResult
from autotuner.core.trial import Outcome
from autotuner.errors import AutotunerError, Refused, SessionUnknown, StaleLease
from autotuner.ports import Clock, Journal, Sampler

__all__ = ["Controller", "Publisher"]

log = logging.getLogger(__name__)

Publisher = Callable[[StudyResult], None]
"""Writes the results of a study; may block; raises on failure."""

HEARTBEAT_SECONDS = 2.0


class Controller:
    """Owns the machine; implements the host that the worker service talks to."""

    def __init__(
        self, *, machine: Machine, journal: Journal, sampler: Sampler, clock: Clock, publish: Publisher
    ) -> None:
        self.machine = machine
        self.progress: dict[str, tuple[w.ProgressReport, float]] = {}
        """Worker → its last report and the monotonic time it came."""
        self._journal = journal
        self._sampler = sampler
        self._clock = clock
        self._publish = publish
        self._sessions: dict[str, str] = {}
        self._introduced: dict[str, w.WorkerInfo] = {}
        self._replaced: set[str] = set()
        self._in_flight: set[tuple[str, str, int]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="effects")
        self._changed = asyncio.Event()
        self._fatal: asyncio.Future[Any] | None = None
        self._shutdown = False

    # --- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Fold the journal, begin a new epoch and reopen the samplers of the studies that go on."""
        self._fatal = asyncio.get_running_loop().create_future()
        for _, stamp, event in self._journal.read():
            self.machine.apply(event, stamp)
        for study in self.machine.studies.values():
            if study.state is not StudyState.ENDED:
                await self._in_thread(self._sampler.open, study.study_id, study.spec)
        self.post(ev.ControllerStarted(epoch=self.machine.epoch + 1))

    async def run_until(self, done: Callable[[], bool]) -> None:
        """Let time pass for the machine until *done*; raise what made going on impossible."""
        assert self._fatal is not None
        while not done():
            self.post(None)
            changed: asyncio.Future[Any] = asyncio.ensure_future(self._changed.wait())
            try:
                await asyncio.wait({changed, self._fatal}, timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
            if self._fatal.done():
                self._fatal.result()

    async def close(self) -> None:
        """Stop the effects and release the journal."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._journal.close()

    def dismiss_workers(self) -> None:
        """Tell every worker at its next Sync to stop its engines and end."""
        self._shutdown = True
        self._wake()

    async def submit(self, event: ev.StudySubmitted) -> None:
        """Accept a study."""
        await self._in_thread(self._sampler.open, event.study_id, event.spec)
        self.post(event)

    async def resume(self, event: ev.StudyResumed) -> None:
        """Let a stopped study go on."""
        await self._in_thread(self._sampler.open, event.study_id, self.machine.studies[event.study_id].spec)
        self.post(event)

    # --- events and commands -----------------------------------------------------------------------------------------

    def post(self, event: ev.Event | None) -> None:
        """Handle one event, make it durable and start the effects that it leads to.

        ``Refused`` errors pass to the caller; any other failure leaves memory and journal apart and ends the run.
        """
        now = self._clock.utc()
        try:
            recorded, commands = self.machine.handle(event, now)
            if recorded:
                self._journal.append(recorded, now)
        except Refused:
            raise
        except Exception as error:
            self.fail(error)
            raise
        for command in commands:
            key = _identity(command)
            if key not in self._in_flight:
                self._in_flight.add(key)
                task = asyncio.get_running_loop().create_task(self._carry_out(command))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        if recorded:
            self._wake()

    def _wake(self) -> None:
        """Wake everyone who waits for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    def fail(self, error: BaseException) -> None:
        """End ``run_until`` with *error*."""
        if self._fatal is not None and not self._fatal.done():
            self._fatal.set_exception(error)

    async def _in_thread(self, function: Callable[..., object], *arguments: object) -> object:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    async def _carry_out(self, command: Command) -> None:
        try:
            event = await self._effect(command)
            self._in_flight.discard(_identity(command))
            self.post(event)
        except AutotunerError as error:
            self.fail(error)
        except Exception as error:
            log.exception("%s failed", type(command).__name__)
            self.fail(error)

    async def _effect(self, command: Command) -> ev.Event:
        match command:
            case Propose():
                answer = await self._in_thread(self._sampler.propose, command)
                assert isinstance(answer, ev.PointProposed | ev.NothingProposed)
                return answer
            case Tell():
                await self._in_thread(self._sampler.tell, command)
                return ev.TrialTold(study_id=command.study_id, trial_id=command.trial_id)
            case Publish():
                result = self.machine.result(command.study_id, self._clock.utc())
                trials = self.machine.studies[command.study_id].trials.values()
                unknown = [t.trial_id for t in trials if not t.live and not t.told]
                await self._in_thread(self._sampler.abandon, command.study_id, unknown)
                await self._in_thread(self._publish, result)
                return ev.StudyEnded(study_id=command.study_id)

    # --- the workers' side ---------------------------------------------------------------------------------------------

    async def register(self, info: w.WorkerInfo) -> w.Session:
        """Admit a worker; its first Sync says what it still holds, and only then does it count as ready."""
        session = uuid.uuid4().hex
        if info.worker_id in self._sessions:
            self._replaced.add(self._sessions[info.worker_id])
        self._sessions[info.worker_id] = session
        self._introduced[info.worker_id] = info
        return w.Session(
            session_id=session,
            epoch=self.machine.epoch,
            lease_seconds=self.machine.lease_seconds,
            heartbeat_seconds=HEARTBEAT_SECONDS,
        )

    async def sync(self, state: w.WorkerState) -> w.Desired:
        """Take a worker's state and return the one it should be in; waits while there is nothing to do."""
        self._check_session(state.session_id, state.worker_id)
        held = tuple((h.study_id, h.trial_id, h.attempt) for h in state.held)
        self._introduce(state.worker_id, held)
        if state.progress is not None:
            self.progress[state.worker_id] = (state.progress, self._clock.monotonic())
        deadline = self._clock.monotonic() + min(state.wait_seconds, HEARTBEAT_SECONDS)
        while True:
            self.machine.contact(state.worker_id, self._clock.utc(), draining=state.draining)
            desired = self._desired(state, held)
            left = deadline - self._clock.monotonic()
            if left <= 0 or desired.shutdown or desired.cancel or self._is_news(desired, held):
                return desired
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                continue

    def _introduce(self, worker_id: str, held: tuple[tuple[str, int, int], ...]) -> None:
        """Record a newly registered worker; what an earlier life of it held and it does not name is given back."""
        info = self._introduced.pop(worker_id, None)
        if info is not None:
            self.post(
                ev.WorkerReady(
                    worker_id=worker_id,
                    instance_id=info.instance_id,
                    hot_capable=info.engine.hot_capable,
                    resident_engines=info.resident_engines,
                    held=held,
                )
            )

    def _desired(self, state: w.WorkerState, held: tuple[tuple[str, int, int], ...]) -> w.Desired:
        assignment, cancel = self.machine.desired(state.worker_id, held)
        epochs = {(h.study_id, h.trial_id, h.attempt): h.epoch for h in state.held}
        return w.Desired(
            assignment=assignment,
            cancel=tuple(w.Held(study_id=s, trial_id=t, attempt=a, epoch=epochs[s, t, a]) for s, t, a in cancel),
            shutdown=self._shutdown and assignment is None,
            lease_seconds=self.machine.lease_seconds,
        )

    @staticmethod
    def _is_news(desired: w.Desired, held: tuple[tuple[str, int, int], ...]) -> bool:
        given = desired.assignment
        return given is not None and (given.study_id, given.trial_id, given.attempt) not in held

    async def complete(self, session_id: str, worker_id: str, outcome: Outcome) -> bool:
        """Accept an outcome; return False for a replay; raise ``StaleLease`` for one that is out of date."""
        if self.machine.is_replay(outcome):
            return False
        self.post(ev.TrialCompleted(outcome=outcome))
        return True

    def _check_session(self, session_id: str, worker_id: str) -> None:
        if session_id in self._replaced:
            raise StaleLease(f"another process took the place of worker {worker_id}; end this one")
        if self._sessions.get(worker_id) != session_id:
            raise SessionUnknown(f"worker {worker_id} has no session {session_id!r} here: register first")


def _identity(command: Command) -> tuple[str, str, int]:
    """Return what makes two commands the same one: the machine names it until it is done."""
    return type(command).__name__, command.study_id, getattr(command, "trial_id", 0)
