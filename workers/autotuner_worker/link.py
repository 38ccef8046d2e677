"""The worker's side of the protocol: keeps the session alive and gets every outcome delivered exactly once.

An outcome is on disk before it is sent and leaves the disk when the controller has it, so neither side's restart loses
it.  Contact is counted from the moment a call that succeeded was *sent*: the controller saw it later, so the worker's
idea of its lease always ends first.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeVar

import grpc

from autotuner.core.trial import Outcome, OutcomeClass
from autotuner.core.workers import Delivery, Desired, Session, WorkerInfo, WorkerState, held
from autotuner.errors import (
    AutotunerError,
    EnvironmentFault,
    InputError,
    Problem,
    ProtocolMismatch,
    Refused,
    SessionUnknown,
    StorageFault,
)
from autotuner.v1 import worker_pb2 as pb
from autotuner.v1.worker_pb2_grpc import WorkerServiceStub
from autotuner.wire import convert
from autotuner.wire.channel import DEFAULT_KEEPALIVE, MAX_MESSAGE_BYTES, Keepalive, client_options
from autotuner.wire.status import error_of_call, is_transient
from autotuner_worker.spool import Spool

__all__ = ["Clock", "Delivered", "Link", "Patience"]

_LOG = logging.getLogger(__name__)

T = TypeVar("T")


class Clock(Protocol):
    """Time, in one place."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        ...


class Delivered(StrEnum):
    """What became of an outcome."""

    FIRST = "first"
    """The controller has it."""
    REPLAY = "replay"
    """The controller had it already."""
    STALE = "stale"
    """A newer attempt took its place: it is dropped."""
    REFUSED = "refused"
    """It breaks the protocol, and so does the report of that: it is dropped and the log says why."""
    SPOOLED = "spooled"
    """The controller is away: it is delivered at the next contact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long the link waits; seconds."""

    call: float = 10.0
    """Deadline of a call, on top of what the controller may hold it."""
    first_pause: float = 0.2
    """Before the first repetition; doubled each time."""
    longest_pause: float = 5.0
    lease: float = 600.0
    """Lease until the controller names one; also how long ``connect`` keeps trying."""


class Link:
    """Speaks for one worker; use it from one event loop.

    Args:
        address: ``unix:/path`` or ``HOST:PORT`` of the controller.
        info: the worker's introduction.
        spool: where outcomes wait.
        clock: monotonic time.
        patience: deadlines and pauses.
        keepalive: how soon a hung controller is noticed.
        sleep: stands in for ``asyncio.sleep``.
        chance: spreads the pauses of many workers.
    """

    def __init__(
        self,
        address: str,
        info: WorkerInfo,
        spool: Spool,
        clock: Clock,
        *,
        patience: Patience = Patience(),
        keepalive: Keepalive = DEFAULT_KEEPALIVE,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        chance: random.Random | None = None,
    ) -> None:
        self._address = address
        self._info = info
        self._spool = spool
        self._clock = clock
        self._patience = patience
        self._sleep = sleep
        self._chance = chance or random.Random()
        self._channel = grpc.aio.insecure_channel(address, options=client_options(keepalive))
        self._stub = WorkerServiceStub(self._channel)  # type: ignore[no-untyped-call]  # generated without types
        self._session: Session | None = None
        self._lease = patience.lease
        self._last_contact = clock.monotonic()
        self._delivering = asyncio.Lock()

    @property
    def session(self) -> Session | None:
        """The current session; ``None`` before ``connect`` and after the controller forgot it."""
        return self._session

    @property
    def lease_seconds(self) -> float:
        """Silence after which the worker must have fenced itself."""
        return self._lease

    def silence(self) -> float:
        """Return the seconds since the controller was last known to know about this worker."""
        return self._clock.monotonic() - self._last_contact

    def pending(self) -> tuple[Outcome, ...]:
        """Return the outcomes that were not delivered yet."""
        return self._spool.pending()

    async def connect(self) -> Session:
        """Register and deliver what an earlier life left; keep trying for a lease's time.

        Raises:
            EnvironmentFault: the controller did not answer in that time.
            ProtocolMismatch: the two sides share no protocol version.
            AutotunerError: whatever else the controller refuses for good.
        """
        session = await self._persist(self._register, self._clock.monotonic() + self._patience.lease)
        await self._flush()
        return session

    async def sync(self, state: WorkerState) -> Desired:
        """Exchange *state* for the desired one; identity and undelivered outcomes are filled in.

        Delivers waiting outcomes first and registers again when the controller was restarted. May be cancelled.

        Raises:
            EnvironmentFault: there was no contact until the end of the lease; the worker must have fenced itself.
            StaleLease: another process took this worker's place: stop everything and end.
        """
        return await self._persist(lambda: self._sync(state), self._last_contact + self._lease)

    async def deliver(self, outcome: Outcome) -> Delivered:
        """Store *outcome*, send it and forget it when the controller has it.

        Returns ``SPOOLED`` when the controller is away; ``connect`` and ``sync`` deliver it later.

        Raises:
            StorageFault: the outcome could neither be stored nor delivered; it stays pending while this process lives.
        """
        fault: StorageFault | None = None
        try:
            self._spool.put(outcome)
        except StorageFault as error:
            _LOG.warning("the outcome of trial %d is not on disk: %s", outcome.trial_id, error)
            fault = error
        async with self._delivering:
            delivered = await self._send(outcome)
        if delivered is Delivered.SPOOLED and fault is not None:
            raise fault
        return delivered

    async def close(self) -> None:
        """Close the connection; what is pending stays on disk."""
        await self._channel.close(grace=None)

    async def _register(self) -> Session:
        sent = self._clock.monotonic()
        request = convert.info_to_message(self._info)
        response: pb.RegisterResponse = await self._stub.Register(request, timeout=self._patience.call)
        session = convert.session_from_message(response)
        if session.protocol_version not in self._info.protocol_versions:
            raise ProtocolMismatch(f"the controller chose protocol {session.protocol_version}, which was not offered")
        self._session = session
        self._contact(sent, session.lease_seconds)
        return session

    async def _sync(self, state: WorkerState) -> Desired:
        session = self._session or await self._register()
        await self._flush()
        waiting = tuple(held(outcome) for outcome in self._spool.pending())
        full = dataclasses.replace(
            state,
            session_id=session.session_id,
            worker_id=self._info.worker_id,
            held=tuple(dict.fromkeys((*state.held, *waiting))),
        )
        sent = self._clock.monotonic()
        deadline = state.wait_seconds + self._patience.call
        response: pb.SyncResponse = await self._stub.Sync(convert.state_to_message(full), timeout=deadline)
        desired = convert.desired_from_message(response)
        self._contact(sent, desired.lease_seconds)
        return desired

    async def _flush(self) -> None:
        """Deliver what waits, until the first that does not get through."""
        async with self._delivering:
            for outcome in self._spool.pending():
                if await self._send(outcome) is Delivered.SPOOLED:
                    return

    async def _send(self, outcome: Outcome) -> Delivered:
        """Deliver *outcome*, or the report that it cannot travel, so that its trial ends instead of waiting for ever."""
        try:
            return await self._complete(outcome)
        except InputError as error:
            problem = error
        _LOG.error("the outcome of trial %d cannot be delivered as it is: %s", outcome.trial_id, problem)
        substitute = _substitute(outcome, problem)
        try:
            self._spool.put(substitute)
        except StorageFault as error:
            _LOG.warning("the report on trial %d is not on disk: %s", outcome.trial_id, error)
        try:
            return await self._complete(substitute)
        except InputError:
            _LOG.exception("the report on trial %d is refused as well and dropped", outcome.trial_id)
        self._spool.remove(held(outcome))
        return Delivered.REFUSED

    async def _complete(self, outcome: Outcome) -> Delivered:
        """Send *outcome* once; raise ``InputError`` when it breaks the protocol, in either side's judgement."""
        message = self._delivery(outcome)
        try:
            response: pb.CompleteResponse = await self._stub.Complete(message, timeout=self._patience.call)
        except grpc.aio.AioRpcError as error:
            problem = error_of_call(error)
            if isinstance(problem, InputError):
                raise problem from error
            if not isinstance(problem, Refused) or isinstance(problem, SessionUnknown | ProtocolMismatch):
                level = logging.INFO if is_transient(error.code()) else logging.ERROR
                _LOG.log(level, "the outcome of trial %d is delivered later: %s", outcome.trial_id, problem)
                return Delivered.SPOOLED
            _LOG.warning(
                "the outcome of trial %d, attempt %d is dropped: %s", outcome.trial_id, outcome.attempt, problem
            )
            delivered = Delivered.STALE
        else:
            delivered = Delivered.FIRST if convert.receipt_from_message(response).first else Delivered.REPLAY
        self._spool.remove(held(outcome))
        return delivered

    def _delivery(self, outcome: Outcome) -> pb.CompleteRequest:
        session_id = self._session.session_id if self._session is not None else "none"
        delivery = Delivery(session_id=session_id, worker_id=self._info.worker_id, outcome=outcome)
        message = convert.delivery_to_message(delivery)
        size = message.ByteSize()
        if size > MAX_MESSAGE_BYTES:
            remedy = f"keep it below {MAX_MESSAGE_BYTES} bytes: shorten its evidence and its records"
            raise InputError(
                [
                    Problem(
                        field="delivery.outcome", value=f"{size} bytes", message="is too large to send", remedy=remedy
                    )
                ]
            )
        return message

    def _contact(self, sent: float, lease_seconds: float) -> None:
        self._last_contact = max(self._last_contact, sent)
        self._lease = lease_seconds

    async def _persist(self, attempt: Callable[[], Awaitable[T]], until: float) -> T:
        """Repeat *attempt* while it fails for reasons that pass, at least once and until the time *until*."""
        failures = 0
        while True:
            try:
                return await attempt()
            except grpc.aio.AioRpcError as error:
                problem = error_of_call(error)
                if isinstance(problem, SessionUnknown):
                    self._session = None
                elif not is_transient(error.code()):
                    raise problem from error
                pause = self._pause(failures)
                failures += 1
                if self._clock.monotonic() + pause > until:
                    raise self._gave_up(problem) from error
                _LOG.info("the controller at %s does not answer, next try in %.1f s: %s", self._address, pause, problem)
            await self._sleep(pause)

    def _pause(self, failures: int) -> float:
        longest = min(self._patience.first_pause * 2.0 ** min(failures, 30), self._patience.longest_pause)
        return longest * self._chance.uniform(0.5, 1.0)

    def _gave_up(self, problem: AutotunerError) -> EnvironmentFault:
        return EnvironmentFault(
            f"no contact with the controller at {self._address} for {self.silence():.0f} s ({problem}); "
            "check that it runs and that this address is right"
        )


def _substitute(outcome: Outcome, problem: AutotunerError) -> Outcome:
    return Outcome(
        study_id=outcome.study_id,
        trial_id=outcome.trial_id,
        attempt=outcome.attempt,
        epoch=outcome.epoch,
        outcome=OutcomeClass.INFRASTRUCTURE,
        message=f"the {outcome.outcome} outcome could not be delivered",
        evidence=(str(problem)[:1000],),
    )
