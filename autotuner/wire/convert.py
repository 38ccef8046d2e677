"""The messages of the worker protocol to and from the core's values: the only place where the two meet.

Total both ways: every valid value has a message, every message is a value or an ``InputError`` that names the field.
"""

from __future__ import annotations

from autotuner.core.trial import Assignment, Outcome, OutcomeClass
from autotuner.core.workers import Delivery, Desired, Receipt, Session, WorkerInfo, WorkerState
from autotuner.v1 import worker_pb2 as pb
from autotuner.wire.mapping import build, fill
from autotuner.wire.shape import problem

__all__ = [
    "assignment_from_message",
    "assignment_to_message",
    "delivery_from_message",
    "delivery_to_message",
    "desired_from_message",
    "desired_to_message",
    "info_from_message",
    "info_to_message",
    "outcome_from_message",
    "outcome_to_message",
    "receipt_from_message",
    "receipt_to_message",
    "session_from_message",
    "session_to_message",
    "state_from_message",
    "state_to_message",
]


def info_to_message(info: WorkerInfo) -> pb.RegisterRequest:
    """Return the introduction as a message."""
    message = pb.RegisterRequest()
    fill(message, info, "worker")
    return message


def info_from_message(message: pb.RegisterRequest) -> WorkerInfo:
    """Return the introduction in *message*."""
    return build(WorkerInfo, message, "worker")


def session_to_message(session: Session) -> pb.RegisterResponse:
    """Return the session as a message."""
    message = pb.RegisterResponse()
    fill(message, session, "session")
    return message


def session_from_message(message: pb.RegisterResponse) -> Session:
    """Return the session in *message*."""
    return build(Session, message, "session")


def state_to_message(state: WorkerState) -> pb.SyncRequest:
    """Return a worker's state as a message."""
    message = pb.SyncRequest()
    fill(message, state, "state")
    return message


def state_from_message(message: pb.SyncRequest) -> WorkerState:
    """Return the worker's state in *message*."""
    return build(WorkerState, message, "state")


def desired_to_message(desired: Desired) -> pb.SyncResponse:
    """Return a desired state as a message."""
    message = pb.SyncResponse()
    fill(message, desired, "desired")
    return message


def desired_from_message(message: pb.SyncResponse) -> Desired:
    """Return the desired state in *message*."""
    return build(Desired, message, "desired")


def assignment_to_message(assignment: Assignment) -> pb.Assignment:
    """Return an assignment as a message."""
    message = pb.Assignment()
    fill(message, assignment, "assignment")
    return message


def assignment_from_message(message: pb.Assignment) -> Assignment:
    """Return the assignment in *message*."""
    return build(Assignment, message, "assignment")


def outcome_to_message(outcome: Outcome) -> pb.Outcome:
    """Return an outcome as a message."""
    _check_outcome(outcome, "outcome")
    message = pb.Outcome()
    fill(message, outcome, "outcome")
    return message


def outcome_from_message(message: pb.Outcome) -> Outcome:
    """Return the outcome in *message*."""
    outcome = build(Outcome, message, "outcome")
    _check_outcome(outcome, "outcome")
    return outcome


def delivery_to_message(delivery: Delivery) -> pb.CompleteRequest:
    """Return a delivery as a message."""
    _check_outcome(delivery.outcome, "delivery.outcome")
    message = pb.CompleteRequest()
    fill(message, delivery, "delivery")
    return message


def delivery_from_message(message: pb.CompleteRequest) -> Delivery:
    """Return the delivery in *message*."""
    delivery = build(Delivery, message, "delivery")
    _check_outcome(delivery.outcome, "delivery.outcome")
    return delivery


def receipt_to_message(receipt: Receipt) -> pb.CompleteResponse:
    """Return a receipt as a message."""
    message = pb.CompleteResponse()
    fill(message, receipt, "receipt")
    return message


def receipt_from_message(message: pb.CompleteResponse) -> Receipt:
    """Return the receipt in *message*."""
    return build(Receipt, message, "receipt")


def _check_outcome(outcome: Outcome, path: str) -> None:
    """Hold the rule that exactly a COMPLETE outcome has a measurement."""
    if (outcome.outcome is OutcomeClass.COMPLETE) != (outcome.measurement is not None):
        state = "is missing" if outcome.measurement is None else f"is given with {outcome.outcome}"
        raise problem(f"{path}.measurement", "", state, "send a measurement exactly with a complete outcome")
