"""A controller behind the worker service that keeps its promises and can be told to misbehave."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from autotuner.core.trial import Assignment, Outcome
from autotuner.core.workers import Desired, Held, Session, WorkerInfo, WorkerState, held
from autotuner.errors import SessionUnknown, StaleLease

__all__ = ["FakeHost"]


class FakeHost:
    """Implements ``WorkerHost`` in memory."""

    def __init__(self, *, epoch: int = 1, lease_seconds: float = 600.0) -> None:
        self.epoch = epoch
        self.lease_seconds = lease_seconds
        self.sessions: dict[str, str] = {}
        """Session → worker."""
        self.infos: list[WorkerInfo] = []
        self.states: list[WorkerState] = []
        self.outcomes: dict[Held, Outcome] = {}
        self.stale: set[Held] = set()
        """Attempts that a newer one replaced."""
        self.assignments: deque[Assignment] = deque()
        self.cancel: tuple[Held, ...] = ()
        self.failures: deque[BaseException] = deque()
        """Raised by the next calls, one each."""
        self.changed = asyncio.Event()
        """Ends the long polls."""
        self.polling = asyncio.Event()
        """A long poll waits."""

    async def register(self, info: WorkerInfo) -> Session:
        self._fail()
        self.infos.append(info)
        session_id = f"session-{self.epoch}-{len(self.infos)}"
        self.sessions[session_id] = info.worker_id
        return Session(session_id=session_id, epoch=self.epoch, lease_seconds=self.lease_seconds, heartbeat_seconds=5.0)

    async def sync(self, state: WorkerState) -> Desired:
        self.states.append(state)
        self._fail()
        if self.sessions.get(state.session_id) != state.worker_id:
            raise SessionUnknown(f"no session {state.session_id}")
        if not self.assignments and state.wait_seconds > 0:
            self.polling.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.changed.wait(), state.wait_seconds)
        assignment = self.assignments.popleft() if self.assignments else None
        return Desired(assignment=assignment, cancel=self.cancel, lease_seconds=self.lease_seconds)

    async def complete(self, session_id: str, worker_id: str, outcome: Outcome) -> bool:
        self._fail()
        if held(outcome) in self.stale:
            raise StaleLease(f"attempt {outcome.attempt} of trial {outcome.trial_id} was replaced")
        accepted = self.outcomes.setdefault(held(outcome), outcome)
        if accepted is not outcome and accepted != outcome:
            raise StaleLease("another outcome of this attempt was accepted")
        return accepted is outcome

    def _fail(self) -> None:
        if self.failures:
            raise self.failures.popleft()
