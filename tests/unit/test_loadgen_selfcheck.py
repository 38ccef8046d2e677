"""The load generator's judgement of itself and of a complete segment."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotuner.core.trial import LoadCheck, OutcomeClass
from autotuner.observe.evaluate import evaluate
from autotuner.observe.records import Records, Status
from autotuner_worker.workloads.selfcheck import Thresholds, check_load, measured_fault, void_fault
from tests.unit.test_records import Row, make

ROWS: list[Row] = [(float(second), [0.2, 0.5], 2, Status.OK) for second in range(100)]
GOOD = make(ROWS, warmup_end=0.0, end_time=100.0)


def check(records: Records, closed: bool = False, cpu_share: float = 0.1, stall: float = 0.05) -> LoadCheck:
    """Return the check with the default thresholds."""
    return check_load(records, closed=closed, cpu_share=cpu_share, stall=stall, processes=2, thresholds=Thresholds())


def late(seconds: float, count: int = 100) -> Records:
    """Return records whose last *count* requests were sent late."""
    ready = GOOD.sent.copy()
    ready[-count:] -= seconds
    return replace(GOOD, ready=ready)


def test_a_segment_on_time_is_trusted() -> None:
    """Its figures are kept."""
    result = check(GOOD)
    assert result == LoadCheck(late_p99=0.0, cpu_share=0.1, longest_stall=0.05, processes=2)


@pytest.mark.parametrize(
    ("seconds", "count", "void"), [(0.009, 100, False), (0.011, 100, True), (0.5, 1, False), (0.5, 5, True)]
)
def test_late_sends_of_an_open_loop(seconds: float, count: int, void: bool) -> None:
    """Five per cent of a median TTFT of 200 ms are 10 ms; one late request in a hundred is not the rule."""
    assert bool(check(late(seconds, count)).void_reasons) is void


def test_waiting_for_a_free_place_is_not_late() -> None:
    """The bound of requests in flight held it back, not the generator."""
    held = replace(GOOD, scheduled=GOOD.sent - 5.0)
    assert check(held).void_reasons == ()


def test_a_closed_loop_is_judged_by_the_time_that_is_lost() -> None:
    """Answers take 500 ms: 25 ms between two of a client are five per cent."""
    assert check(late(0.020), closed=True).void_reasons == ()
    assert "for itself" in check(late(0.040), closed=True).void_reasons[0]


def test_saturation_and_stalls_are_void() -> None:
    """Each with its reason; the fault carries the figures."""
    result = check(GOOD, cpu_share=0.95, stall=0.3)
    assert len(result.void_reasons) == 2
    fault = void_fault(result)
    assert fault.outcome is OutcomeClass.VOID
    assert "95%" in fault.message
    assert "300 ms" in fault.message
    assert "cpu_share=0.950" in fault.evidence


def test_nothing_sent_has_no_lateness() -> None:
    """It is told by the other judgement."""
    assert check(Records(), cpu_share=0.2).late_p99 == 0.0


def with_status(*kinds: Status, http_status: int = 200) -> Records:
    """Return records with these ends."""
    records = make([(1.0, [0.1], 1, kind) for kind in kinds], end_time=2.0)
    return replace(records, http_status=np.full(len(kinds), http_status, dtype="i2"))


@pytest.mark.parametrize(
    ("records", "outcome"),
    [
        (with_status(Status.OK, Status.GARBAGE), None),
        (with_status(Status.OK, Status.GARBAGE, Status.EMPTY), OutcomeClass.GARBAGE),
        (with_status(Status.ERROR, Status.ERROR, http_status=400), OutcomeClass.GARBAGE),
        (with_status(Status.ERROR, Status.ERROR, http_status=500), OutcomeClass.CRASHED),
        (with_status(Status.ERROR, Status.OK), None),
        (with_status(Status.CUT), OutcomeClass.VOID),
    ],
)
def test_a_segment_without_good_answers_is_no_measurement(records: Records, outcome: OutcomeClass | None) -> None:
    """The commonest messages are the evidence."""
    fault = measured_fault(evaluate(records), records, {"seldom": 1, "often": 9})
    assert (None if fault is None else fault.outcome) is outcome
    if fault is not None:
        assert fault.evidence[0] == "9x often"
