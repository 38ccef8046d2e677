"""The service that workers dial: converts, asks the host and answers.

It decides nothing: the host (the daemon's loop) owns every decision.  Here are only the protocol's own rules: the
version is negotiated before the host sees a worker, and a long poll ends before the caller's deadline does.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol

from autotuner.core.trial import Outcome
from autotuner.core.workers import PROTOCOL_VERSIONS, Desired, Receipt, Session, WorkerInfo, WorkerState
from autotuner.errors import EnvironmentFault, ProtocolMismatch
from autotuner.rpc.unary import CallContext, Handler, unary
from autotuner.v1 import worker_pb2 as pb
from autotuner.wire import convert

__all__ = ["LONGEST_WAIT", "WorkerHost", "WorkerService", "negotiate"]

LONGEST_WAIT = 60.0
"""Seconds that a Sync may be held, whatever the worker asks for."""

_MARGIN = 0.5
"""Seconds of a caller's deadline that are kept for the answer's way back."""


class WorkerHost(Protocol):
    """What stands behind the service. Calls may come at the same time and may be cancelled wherever they wait."""

    async def register(self, info: WorkerInfo) -> Session:
        """Open a session, in place of any earlier one of this worker.

        The protocol version of the returned session is overwritten by the negotiated one.
        """
        ...

    async def sync(self, state: WorkerState) -> Desired:
        """Return what the worker should do, after at most ``state.wait_seconds``.

        Raises:
            SessionUnknown: the session is of an earlier controller life; the worker registers again and goes on.
            StaleLease: a newer process of the same worker took its place; the caller must fence itself and end.
        """
        ...

    async def complete(self, session_id: str, worker_id: str, outcome: Outcome) -> bool:
        """Accept *outcome* durably and return whether it is the first delivery of it.

        Attempt and epoch of the outcome decide, not the session: an outcome that was measured while the controller
        was away is as good as any.

        Raises:
            StaleLease: the attempt is not the current one; the outcome is dropped.
            StorageFault: it could not be stored; the worker keeps it and delivers it again.
        """
        ...


class WorkerService:
    """Serves ``autotuner.v1.WorkerService`` for *host*."""

    full_name = "autotuner.v1.WorkerService"

    def __init__(self, host: WorkerHost) -> None:
        self._host = host
        self._polls: set[asyncio.Task[Desired]] = set()
        self._closing = False

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handler of each method."""
        return {
            "Register": unary(pb.RegisterRequest, self._register),
            "Sync": unary(pb.SyncRequest, self._sync),
            "Complete": unary(pb.CompleteRequest, self._complete),
        }

    def close(self) -> None:
        """End the long polls with UNAVAILABLE and refuse new ones; deliveries are still accepted."""
        self._closing = True
        for poll in self._polls:
            poll.cancel()

    async def _register(self, request: pb.RegisterRequest, context: CallContext) -> pb.RegisterResponse:
        info = convert.info_from_message(request)
        version = negotiate(info.protocol_versions)
        session = await self._host.register(info)
        return convert.session_to_message(dataclasses.replace(session, protocol_version=version))

    async def _sync(self, request: pb.SyncRequest, context: CallContext) -> pb.SyncResponse:
        state = convert.state_from_message(request)
        remaining = context.time_remaining()
        limit = LONGEST_WAIT if remaining is None else min(LONGEST_WAIT, max(0.0, remaining - _MARGIN))
        bounded = dataclasses.replace(state, wait_seconds=min(state.wait_seconds, limit))
        return convert.desired_to_message(await self._poll(self._host.sync(bounded)))

    async def _complete(self, request: pb.CompleteRequest, context: CallContext) -> pb.CompleteResponse:
        delivery = convert.delivery_from_message(request)
        first = await self._host.complete(delivery.session_id, delivery.worker_id, delivery.outcome)
        return convert.receipt_to_message(Receipt(first=first))

    async def _poll(self, work: Coroutine[Any, Any, Desired]) -> Desired:
        if self._closing:
            work.close()
            raise EnvironmentFault("the controller is stopping")
        poll = asyncio.ensure_future(work)
        self._polls.add(poll)
        try:
            return await poll
        except asyncio.CancelledError:
            if self._closing and poll.cancelled():
                raise EnvironmentFault("the controller is stopping") from None
            raise
        finally:
            self._polls.discard(poll)


def negotiate(offered: tuple[str, ...]) -> str:
    """Return the best version that both sides speak, the worker's order first; raise ``ProtocolMismatch``."""
    for version in offered:
        if version in PROTOCOL_VERSIONS:
            return version
    theirs = ", ".join(offered) or "none"
    raise ProtocolMismatch(
        f"the worker speaks protocol {theirs}, the controller {', '.join(PROTOCOL_VERSIONS)}; "
        "install the same version of the program on both sides"
    )
