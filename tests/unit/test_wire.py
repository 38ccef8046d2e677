"""Messages to values and back, and the table of errors and statuses."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotuner import errors
from autotuner.core.budget import LatencyMetric, Limit
from autotuner.core.study import MeasurePlan
from autotuner.core.trial import Assignment, Interval, Launch, Measurement, Outcome, OutcomeClass, TrialKind
from autotuner.core.workers import Delivery, Desired, EngineSummary, Held, Receipt, Session, WorkerInfo, WorkerState
from autotuner.core.workload import Workload
from autotuner.errors import AutotunerError, InputError, Problem, SessionUnknown, StaleLease
from autotuner.v1 import worker_pb2 as pb
from autotuner.wire import convert
from autotuner.wire.shape import is_value_class, item_hint, mapping_hints, shape_of, split_optional
from autotuner.wire.status import is_transient, restore, status_of
from tests.unit.wire_strategies import values_of

Pair = tuple[type, type[Message], Callable[[Any], Any], Callable[[Any], Any]]

PAIRS: list[Pair] = [
    (WorkerInfo, pb.RegisterRequest, convert.info_to_message, convert.info_from_message),
    (Session, pb.RegisterResponse, convert.session_to_message, convert.session_from_message),
    (WorkerState, pb.SyncRequest, convert.state_to_message, convert.state_from_message),
    (Desired, pb.SyncResponse, convert.desired_to_message, convert.desired_from_message),
    (Assignment, pb.Assignment, convert.assignment_to_message, convert.assignment_from_message),
    (Outcome, pb.Outcome, convert.outcome_to_message, convert.outcome_from_message),
    (Delivery, pb.CompleteRequest, convert.delivery_to_message, convert.delivery_from_message),
    (Receipt, pb.CompleteResponse, convert.receipt_to_message, convert.receipt_from_message),
]
NAMES = [pair[0].__name__ for pair in PAIRS]

ASSIGNMENT = Assignment(
    study_id="s",
    trial_id=1,
    attempt=1,
    epoch=1,
    lease_seconds=600.0,
    kind=TrialKind.EXPLORE,
    model="m",
    config={"flag": True, "whole": 1, "real": 1.0, "text": "1"},
    launch_config={},
    hot={},
    workload=Workload(),
    measure=MeasurePlan(),
    seed=0,
    limits=(Limit(metric=LatencyMetric.TTFT, percentile=99.0, seconds=0.5),),
)
MEASUREMENT = Measurement(
    total_tokens=10.0,
    warmup_tokens=1.0,
    warmup_end=1.0,
    end_time=2.0,
    prompt_tokens=5.0,
    steady=True,
    requests=4,
    ok=4,
    errors=0,
    aborted=0,
    empty=0,
)
OUTCOME = Outcome(study_id="s", trial_id=1, attempt=1, epoch=1, outcome=OutcomeClass.COMPLETE, measurement=MEASUREMENT)


@pytest.mark.parametrize("pair", PAIRS, ids=NAMES)
def test_every_valid_value_survives_the_wire(pair: Pair) -> None:
    kind, message_kind, to_message, from_message = pair

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(values_of(kind))
    def round_trip(value: Any) -> None:
        sent = to_message(value).SerializeToString()
        assert from_message(message_kind.FromString(sent)) == value

    round_trip()


@pytest.mark.parametrize("pair", PAIRS, ids=NAMES)
def test_any_bytes_give_a_value_or_an_input_error(pair: Pair) -> None:
    kind, message_kind, to_message, from_message = pair

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def mutate(data: st.DataObject) -> None:
        sent = bytearray(to_message(data.draw(values_of(kind))).SerializeToString())
        for _ in range(data.draw(st.integers(1, 4)) if sent else 0):
            sent[data.draw(st.integers(0, len(sent) - 1))] = data.draw(st.integers(0, 255))
        try:
            message = message_kind.FromString(bytes(sent))
        except DecodeError:
            return
        with contextlib.suppress(InputError):
            from_message(message)

    mutate()


def _differences(kind: type, message: Any) -> list[str]:
    found = [
        f"{message.name}: {name}" for name in {field.name for field in shape_of(kind)} ^ set(message.fields_by_name)
    ]
    for field in shape_of(kind):
        descriptor = message.fields_by_name.get(field.name)
        members, optional = split_optional(field.hint)
        pair = mapping_hints(members[0])
        inner = item_hint(members[0]) or (pair[1] if pair else members[0])
        if descriptor is None:
            continue
        if optional and not descriptor.has_presence:
            found.append(f"{message.name}.{field.name} must be optional")
        if is_value_class(inner):
            target = descriptor.message_type
            found += _differences(inner, target.fields_by_name["value"].message_type if pair else target)
    return found


@pytest.mark.parametrize("pair", PAIRS, ids=NAMES)
def test_values_and_messages_have_the_same_fields(pair: Pair) -> None:
    assert _differences(pair[0], pair[1].DESCRIPTOR) == []


def test_the_types_of_a_configuration_are_kept() -> None:
    back = convert.assignment_from_message(convert.assignment_to_message(ASSIGNMENT))
    assert {name: type(value) for name, value in back.config.items()} == {
        "flag": bool,
        "whole": int,
        "real": float,
        "text": str,
    }


def test_phases_keep_their_order() -> None:
    phases = {"weights": 3.0, "compile": 2.0, "a": 1.0}
    outcome = dataclasses.replace(OUTCOME, launch=Launch(launch_id="l", phases=phases))
    back = convert.outcome_from_message(convert.outcome_to_message(outcome))
    assert back.launch is not None
    assert list(back.launch.phases) == list(phases)


def test_an_open_interval_survives_and_nan_does_not() -> None:
    def with_high(high: float) -> Outcome:
        latency = {"ttft_p99": Interval(value=1.0, low=0.5, high=high)}
        return dataclasses.replace(OUTCOME, measurement=dataclasses.replace(MEASUREMENT, latency=latency))

    assert convert.outcome_from_message(convert.outcome_to_message(with_high(math.inf))) == with_high(math.inf)
    with pytest.raises(InputError) as caught:
        convert.outcome_to_message(with_high(math.nan))
    assert caught.value.problems[0].field == "outcome.measurement.latency[ttft_p99].high"


def test_undecodable_output_in_a_text_is_spelled_out() -> None:
    outcome = Outcome(
        study_id="s", trial_id=1, attempt=1, epoch=1, outcome=OutcomeClass.CRASHED, evidence=("bad \udcff byte",)
    )
    assert convert.outcome_from_message(convert.outcome_to_message(outcome)).evidence == ("bad \\udcff byte",)


def _held(**changes: Any) -> pb.SyncRequest:
    entry = {"study_id": "s", "trial_id": 1, "attempt": 1, "epoch": 1, **changes}
    return pb.SyncRequest(session_id="x", worker_id="w", held=[pb.Held(**entry)])


def _assignment(change: Callable[[pb.Assignment], object]) -> pb.Assignment:
    message = convert.assignment_to_message(ASSIGNMENT)
    change(message)
    return message


@pytest.mark.parametrize(
    ("read", "message", "field"),
    [
        (convert.state_from_message, pb.SyncRequest(worker_id="w"), "state.session_id"),
        (convert.state_from_message, pb.SyncRequest(session_id="x", worker_id="a\nb"), "state.worker_id"),
        (convert.state_from_message, pb.SyncRequest(session_id="x", worker_id="w" * 201), "state.worker_id"),
        (
            convert.state_from_message,
            pb.SyncRequest(session_id="x", worker_id="w", wait_seconds=math.nan),
            "state.wait_seconds",
        ),
        (
            convert.state_from_message,
            pb.SyncRequest(session_id="x", worker_id="w", wait_seconds=-1),
            "state.wait_seconds",
        ),
        (convert.state_from_message, _held(trial_id=-1), "state.held[0].trial_id"),
        (convert.state_from_message, _held(study_id=""), "state.held[0].study_id"),
        (convert.info_from_message, pb.RegisterRequest(worker_id="w", instance_id="i"), "worker.engine"),
        (convert.assignment_from_message, _assignment(lambda m: setattr(m, "kind", "holiday")), "assignment.kind"),
        (
            convert.assignment_from_message,
            _assignment(lambda m: setattr(m.workload, "mode", "")),
            "assignment.workload.mode",
        ),
        (convert.assignment_from_message, _assignment(lambda m: m.ClearField("workload")), "assignment.workload"),
        (
            convert.assignment_from_message,
            _assignment(lambda m: setattr(m.limits[0], "percentile", 101)),
            "assignment.limits[0].percentile",
        ),
        (
            convert.assignment_from_message,
            _assignment(lambda m: m.config.values["x"].SetInParent()),
            "assignment.config[x]",
        ),
        (
            convert.assignment_from_message,
            _assignment(lambda m: setattr(m.hot.values["x"], "number", math.inf)),
            "assignment.hot[x]",
        ),
        (
            convert.outcome_from_message,
            pb.Outcome(study_id="s", trial_id=1, attempt=1, epoch=1, outcome="complete"),
            "outcome.measurement",
        ),
    ],
)
def test_a_message_that_breaks_the_protocol_is_refused_with_its_field(
    read: Callable[[Any], object], message: Message, field: str
) -> None:
    with pytest.raises(InputError) as caught:
        read(message)
    assert [problem.field for problem in caught.value.problems] == [field]


def test_a_number_outside_64_bits_is_refused_before_it_is_sent() -> None:
    with pytest.raises(InputError, match=r"config\[big\]"):
        convert.assignment_to_message(dataclasses.replace(ASSIGNMENT, config={"big": 2**63}))


def test_only_a_complete_outcome_has_a_measurement() -> None:
    with pytest.raises(InputError, match="measurement"):
        convert.outcome_to_message(dataclasses.replace(OUTCOME, outcome=OutcomeClass.VOID))


def test_defaults_of_a_worker_survive() -> None:
    info = WorkerInfo(worker_id="w", instance_id="i", engine=EngineSummary(kind="simulated"))
    assert convert.info_from_message(convert.info_to_message(info)) == info
    assert Held(study_id="s", trial_id=1, attempt=1, epoch=1) == convert.state_from_message(_held()).held[0]


def _all_errors(root: type[AutotunerError] = AutotunerError) -> list[type[AutotunerError]]:
    return [
        root,
        *(
            kind
            for child in root.__subclasses__()
            if child.__module__ == errors.__name__
            for kind in _all_errors(child)
        ),
    ]


@pytest.mark.parametrize(
    "kind", [kind for kind in _all_errors() if kind is not errors.IllegalTransition], ids=lambda kind: kind.__name__
)
def test_every_error_comes_back_as_itself(kind: type[AutotunerError]) -> None:
    problem = Problem(field="a.b", value="1", message="is wrong", remedy="do right", line=7)
    error = kind([problem]) if issubclass(kind, InputError) else kind("the reason ü")
    status = status_of(error)
    back = restore(status.code, status.details, status.metadata)
    assert type(back) is kind
    assert str(back) == str(error)
    assert status.code is not grpc.StatusCode.OK


def test_an_illegal_transition_comes_back_as_a_refusal_with_its_story() -> None:
    status = status_of(errors.IllegalTransition("trial", "done", "Start", ("line",)))
    assert "line" in str(restore(status.code, status.details, status.metadata))


def test_a_foreign_error_keeps_its_text_to_itself() -> None:
    status = status_of(ValueError("secret"))
    assert (status.code, "secret" in status.details) == (grpc.StatusCode.INTERNAL, False)


def test_a_status_of_grpc_itself_says_what_to_do() -> None:
    assert type(restore(grpc.StatusCode.UNAVAILABLE, "gone")) is errors.EnvironmentFault
    assert type(restore(grpc.StatusCode.UNIMPLEMENTED, "")) is errors.ProtocolMismatch
    assert type(restore(grpc.StatusCode.DATA_LOSS, "")) is errors.InternalError
    assert isinstance(restore(grpc.StatusCode.INVALID_ARGUMENT, "bad"), InputError)
    assert is_transient(grpc.StatusCode.UNAVAILABLE)
    assert not is_transient(status_of(StaleLease("x")).code)
    assert not is_transient(status_of(SessionUnknown("x")).code)


def test_long_and_broken_texts_fit_into_a_header() -> None:
    status = status_of(StaleLease("é" * 100_000 + "\udcff"))
    assert len(status.details) <= 1000
    many = InputError([Problem(field="f", value="", message="m" * 500, remedy="r")] * 50)
    assert sum(len(value) for _, value in status_of(many).metadata) < 8000
    broken = restore(
        grpc.StatusCode.INVALID_ARGUMENT,
        "text",
        [("autotuner-error", "InputError"), ("autotuner-problems-bin", b"\xff")],
    )
    assert "text" in str(broken)
