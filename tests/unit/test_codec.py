"""The codec of the journal and the spool."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotuner.core.events import ControllerStarted, Event, StudyEnded, StudySubmitted
from autotuner.core.results import StudyResult
from autotuner.core.space import EngineDescription, Value
from autotuner.core.study import StudySpec
from autotuner.core.trial import Assignment, Outcome
from autotuner.errors import InputError, InternalError
from autotuner.wire.codec import Codec
from autotuner.wire.shape import union_members
from tests.unit.wire_strategies import values_of

EVENTS: Codec[Event] = Codec(Event)
SLOW = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    number: float = 0.0
    side: str | float = "left"
    choice: bool | int | float | str = 1
    colour: Colour | None = None
    pairs: tuple[tuple[str, float], ...] = ()
    by_name: Mapping[str, int] = field(default_factory=dict)


SAMPLES: Codec[Sample] = Codec(Sample)


@pytest.mark.parametrize(
    "kind", [*union_members(Event), Assignment, Outcome, StudySpec, StudyResult], ids=lambda kind: kind.__name__
)
def test_every_class_survives_the_round_trip(kind: Any) -> None:
    codec: Codec[Any] = Codec(Event if kind in union_members(Event) else kind)

    @SLOW
    @given(values_of(kind))
    def round_trip(value: Any) -> None:
        text = codec.dumps(value)
        assert text.isascii()
        assert codec.loads(text) == value

    round_trip()


@pytest.mark.parametrize("choice", [True, 1, 1.0, "1", -(2**70)])
def test_the_type_of_a_scalar_is_kept(choice: Value) -> None:
    back = SAMPLES.loads(SAMPLES.dumps(Sample(choice=choice)))
    assert (type(back.choice), back.choice) == (type(choice), choice)


def test_a_whole_number_in_a_float_field_becomes_a_float() -> None:
    back = SAMPLES.loads(SAMPLES.dumps(Sample(number=3, side=4)))
    assert (back.number, type(back.number), back.side, type(back.side)) == (3.0, float, 4.0, float)


@pytest.mark.parametrize("number", [math.inf, -math.inf])
def test_infinities_survive(number: float) -> None:
    assert SAMPLES.loads(SAMPLES.dumps(Sample(number=number))).number == number


def test_nan_survives_and_stays_legal_json() -> None:
    text = SAMPLES.dumps(Sample(number=math.nan))
    assert "NaN" not in text
    assert math.isnan(SAMPLES.loads(text).number)


def test_undecodable_bytes_in_a_text_survive() -> None:
    value = StudyEnded(study_id=b"\xff\x00".decode(errors="surrogateescape"))
    assert EVENTS.loads(EVENTS.dumps(value)) == value


def test_text_of_an_older_program_reads_with_defaults() -> None:
    assert SAMPLES.loads('{"$":"Sample"}') == Sample()


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "value"),
        ("[" * 100_000, "value"),
        ("[]", "value"),
        ('{"$":"Path","args":["/etc"]}', "value"),
        ('{"$":"StudySubmitted","study_id":"a"}', "value.spec"),
        ('{"$":"ControllerStarted"}', "value.epoch"),
        ('{"$":"ControllerStarted","epoch":"1"}', "value.epoch"),
        ('{"$":"ControllerStarted","epoch":true}', "value.epoch"),
        ('{"$":"ControllerStarted","epoch":1,"new":2}', "value.new"),
        ('{"$":"StopRequested","study_id":"a","reason":"rain"}', "value.reason"),
        ('{"$":["x"]}', "value"),
    ],
)
def test_text_that_does_not_fit_is_refused_with_its_place(text: str, place: str) -> None:
    with pytest.raises(InputError) as caught:
        EVENTS.loads(text)
    assert caught.value.problems[0].field == place
    assert caught.value.problems[0].remedy


def test_a_value_of_another_class_is_not_written() -> None:
    with pytest.raises(InternalError, match="value"):
        EVENTS.dumps(Sample())  # type: ignore[arg-type]
    wrong = ControllerStarted(epoch="one")  # type: ignore[arg-type]
    with pytest.raises(InternalError, match=r"value\.epoch"):
        EVENTS.dumps(wrong)


def test_a_submitted_study_names_its_classes() -> None:
    spec = StudySpec(name="n", model="m", engine=EngineDescription(kind="simulated", version="1", platform="cpu"))
    data = EVENTS.encode(StudySubmitted(study_id="s", spec=spec))
    assert (data["$"], data["spec"]["$"], data["spec"]["objective"]) == (
        "StudySubmitted",
        "StudySpec",
        "output_throughput",
    )


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.sampled_from(["$", "epoch", "study_id", "outcome", "$float"]) | st.text(), inner)
        ),
    )
)
def test_any_data_gives_a_value_or_an_input_error(data: object) -> None:
    try:
        EVENTS.decode(data)
    except InputError:
        return
