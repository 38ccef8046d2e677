"""When the warm-up is over, when the measured part ends, and when the load cannot go on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autotuner.core.study import MeasurePlan
from autotuner.core.trial import OutcomeClass
from autotuner_worker.workloads.selfcheck import Thresholds, live_fault
from autotuner_worker.workloads.timeline import Timeline, end_of_part, end_of_warmup, steady

PLAN = MeasurePlan(
    warmup_min=2.0, warmup_max=20.0, window=1.0, tolerance=0.1, duration=5.0, min_requests=10, duration_max=8.0
)


def report(at: float, chunks: float, sent: float = 0.0, **more: Any) -> dict[str, Any]:
    """Return a report of one process."""
    return {"at": at, "chunks": chunks, "sent": sent, "cpu": 0.0, "stall": 0.05, **more}


def play(counts: list[float], sent: float = 2.0, start: float = 100.0) -> Timeline:
    """Return the timeline of one process with so many chunks in each second, and *sent* requests per second."""
    timeline = Timeline(start, 1)
    for second, chunks in enumerate(np.cumsum(counts), start=1):
        timeline.add(0, report(start + second, float(chunks), sent * second))
    return timeline


def test_three_equal_windows_are_steady() -> None:
    """Within the tolerance of their mean."""
    assert steady([10.0, 100.0, 104.0, 97.0], 0.1)
    assert not steady([100.0, 104.0], 0.1)
    assert not steady([100.0, 120.0, 80.0], 0.1)
    assert not steady([0.0, 0.0, 0.0], 0.1)


def test_a_growing_load_is_not_steady_and_a_noisy_one_becomes_so() -> None:
    """Noise averages out over longer windows, growth does not."""
    assert not steady([10.0 * 1.3**step for step in range(24)], 0.1)
    noisy = [100.0 + (40.0 if step % 2 else -40.0) for step in range(6)]
    assert steady(noisy, 0.1)


def test_the_warm_up_ends_at_the_edge_of_a_window() -> None:
    """Not before its least length."""
    assert end_of_warmup(play([5, 50, 100, 100]), PLAN) is None
    assert end_of_warmup(play([5, 50, 100, 100, 100]), PLAN) == (105.0, True)
    patient = MeasurePlan(warmup_min=6.0)
    assert end_of_warmup(play([100] * 5), patient) is None
    assert end_of_warmup(play([100] * 6), patient) == (106.0, True)


def test_an_unsteady_warm_up_ends_at_its_limit() -> None:
    """And is marked so."""
    assert end_of_warmup(play([2.0**second for second in range(20)]), PLAN) == (120.0, False)


def test_every_process_counts_and_the_slowest_reporter_decides() -> None:
    """Two processes, one of them a second behind."""
    timeline = Timeline(0.0, 2)
    for second in range(1, 6):
        timeline.add(0, report(float(second), 10.0 * second))
    for second in range(1, 5):
        timeline.add(1, report(float(second), 30.0 * second, cpu=0.5 * second, stall=0.1 * second))
    timeline.add(1, report(4.0, 999.0))
    assert timeline.known == 4.0
    assert timeline.rates(1.0) == [40.0] * 4
    assert timeline.rate(2.0) == pytest.approx(40.0)
    assert timeline.cpu_share(1.0, 4.0) == pytest.approx(0.5)
    assert timeline.longest_stall(3.0) == pytest.approx(0.4)


def test_the_part_lasts_as_planned_when_enough_was_sent() -> None:
    """Exactly, though the report came later."""
    assert end_of_part(play([10.0] * 4, sent=3.0), PLAN, 100.5) is None
    assert end_of_part(play([10.0] * 6, sent=3.0), PLAN, 100.5) == 105.5


def test_the_part_is_prolonged_for_more_requests_up_to_its_limit() -> None:
    """One request per second: ten are never reached within eight seconds, nor are twelve within five."""
    assert end_of_part(play([10.0] * 7, sent=1.0), PLAN, 100.0) is None
    assert end_of_part(play([10.0] * 8, sent=1.0), PLAN, 100.0) == 108.0
    assert end_of_part(play([10.0] * 7, sent=1.5), PLAN, 100.0) == 107.0


QUIET = {
    "running": 0,
    "waiting_since": 0.0,
    "failing_since": 0.0,
    "failing": 0,
    "ended": 0,
    "ok": 0,
    "failed": 0,
    "refused": 0,
}


def judged(now: float = 200.0, **latest: Any) -> OutcomeClass | None:
    """Return the class of the fault with this latest report."""
    timeline = Timeline(100.0, 2)
    timeline.add(0, report(101.0, 5.0, **{**QUIET, **latest}))
    fault = live_fault(timeline, now, 60.0, Thresholds())
    return None if fault is None else fault.outcome


def test_silence_under_load_is_a_hang() -> None:
    """Only with requests in flight, and only after the time-out."""
    assert judged(running=3, waiting_since=139.0) is OutcomeClass.HUNG
    assert judged(running=3, waiting_since=141.0) is None
    assert judged() is None


def test_a_token_anywhere_is_no_hang() -> None:
    """Another process got one."""
    timeline = Timeline(100.0, 2)
    timeline.add(0, report(101.0, 5.0, **{**QUIET, "running": 1, "waiting_since": 110.0}))
    timeline.add(1, report(101.0, 5.0, **{**QUIET, "running": 1, "waiting_since": 190.0}))
    assert live_fault(timeline, 200.0, 60.0, Thresholds()) is None


def test_answers_that_are_mostly_garbage_end_the_load() -> None:
    """After enough of them."""
    assert judged(ended=20, garbage=11) is OutcomeClass.GARBAGE
    assert judged(ended=20, garbage=10) is None
    assert judged(ended=19, garbage=19) is None


def test_nothing_but_failures_end_the_load() -> None:
    """After two seconds; refusals by the engine are no crash."""
    assert judged(failing=3, failing_since=197.0, failed=3, ended=3) is OutcomeClass.CRASHED
    assert judged(failing=3, failing_since=197.0, failed=3, ended=3, refused=3) is OutcomeClass.GARBAGE
    assert judged(failing=3, failing_since=199.0, failed=3, ended=3) is None
    assert judged(failing=3, failing_since=197.0, failed=3, ended=9, ok=6) is None
    assert judged(failing=20, failing_since=197.0, failed=20, ended=30, ok=10) is OutcomeClass.CRASHED


def test_the_server_s_own_words_are_the_evidence() -> None:
    """So that a person sees at once what is wrong."""
    timeline = Timeline(100.0, 2)
    for shard in range(2):
        timeline.add(shard, {**report(101.0, 0.0), **QUIET, "ended": 20, "garbage": 20, "message": "too long"})
    fault = live_fault(timeline, 102.0, 60.0, Thresholds())
    assert fault is not None
    assert fault.evidence == ("too long",)
