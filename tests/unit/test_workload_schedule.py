"""The schedule: fixed by its seed, endless, with the distributions that it is asked for."""

from __future__ import annotations

import numpy as np
import pytest

from autotuner.core.workload import Arrival, LengthKind, Lengths, LoadMode, SharedPrefix, TraceSource, Workload
from autotuner_worker.workloads.schedule import BLOCK, Schedule, draw_lengths
from autotuner_worker.workloads.traces import TraceRow

OPEN = Workload(mode=LoadMode.OPEN, rate=50.0)
TRACE = tuple(
    TraceRow(offset=float(i), prompt_tokens=100 * (i + 1), output_tokens=i + 1, blocks=(i,)) for i in range(4)
)
TRACED = Workload(
    mode=LoadMode.OPEN,
    arrival=Arrival.TRACE,
    input_tokens=Lengths(kind=LengthKind.TRACE),
    output_tokens=Lengths(kind=LengthKind.TRACE),
    trace=TraceSource(path="x", speed_up=2.0),
)


def offsets(workload: Workload, count: int, seed: int = 1) -> np.ndarray:
    """Return the first arrivals."""
    schedule = Schedule(workload, seed)
    return np.array([schedule.request(index).offset for index in range(count)])


def test_the_seed_decides_everything() -> None:
    """Two schedules of one seed are equal wherever they are looked at; another seed gives another one."""
    lengths = Lengths(kind=LengthKind.NORMAL, mean=100.0, spread=20.0)
    workload = Workload(
        mode=LoadMode.OPEN, rate=10.0, input_tokens=lengths, shared_prefix=SharedPrefix(tokens=4, groups=8)
    )
    whole = Schedule(workload, 5)
    listed = [whole.request(index) for index in range(3 * BLOCK)]
    assert Schedule(workload, 5).request(2 * BLOCK + 7) == listed[2 * BLOCK + 7]
    assert Schedule(workload, 6).request(3) != listed[3]
    assert {item.group for item in listed} == set(range(8))


@pytest.mark.parametrize(
    ("arrival", "burstiness", "variation"),
    [(Arrival.POISSON, 1.0, 1.0), (Arrival.GAMMA, 0.25, 2.0), (Arrival.GAMMA, 4.0, 0.5), (Arrival.CONSTANT, 1.0, 0.0)],
)
def test_arrivals_have_the_rate_and_the_burstiness(arrival: Arrival, burstiness: float, variation: float) -> None:
    """Shape k of the gamma distribution gives a coefficient of variation of 1/sqrt(k); offsets never fall."""
    workload = Workload(mode=LoadMode.OPEN, rate=50.0, arrival=arrival, burstiness=burstiness)
    gaps = np.diff(offsets(workload, 6000))
    assert gaps.min() >= 0.0
    assert gaps.mean() == pytest.approx(0.02, rel=0.08)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.1, abs=1e-6)


def test_closed_loop_has_no_arrivals() -> None:
    """Only the order of the lengths is fixed."""
    assert not offsets(Workload(), 10).any()


@pytest.mark.parametrize("kind", [LengthKind.FIXED, LengthKind.UNIFORM, LengthKind.NORMAL, LengthKind.LOGNORMAL])
def test_lengths_have_the_mean_and_the_spread(kind: LengthKind) -> None:
    """Mean and spread are those of the counts themselves."""
    lengths = Lengths(kind=kind, mean=200.0, spread=50.0)
    values = draw_lengths(lengths, 20_000, np.random.default_rng(3))
    assert values.mean() == pytest.approx(200.0, rel=0.01)
    deviation = {LengthKind.FIXED: 0.0, LengthKind.UNIFORM: 50.0 / np.sqrt(3.0)}.get(kind, 50.0)
    assert values.std() == pytest.approx(deviation, rel=0.05)
    if kind is LengthKind.UNIFORM:
        assert (values.min(), values.max()) == (150, 250)


def test_lengths_are_clipped_and_never_below_one() -> None:
    """A wide normal distribution would go below."""
    wide = Lengths(kind=LengthKind.NORMAL, mean=10.0, spread=100.0, low=0, high=50)
    values = draw_lengths(wide, 1000, np.random.default_rng(4))
    assert (values.min(), values.max()) == (1, 50)


def test_a_trace_keeps_its_times_and_lengths_and_begins_again() -> None:
    """Speed-up 2 halves the times; the second round comes one mean gap later, with other prompt blocks."""
    schedule = Schedule(TRACED, 1, TRACE)
    listed = [schedule.request(index) for index in range(8)]
    assert [item.offset for item in listed] == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5]
    assert [item.prompt_tokens for item in listed[:4]] == [100, 200, 300, 400]
    assert [item.output_tokens for item in listed[4:]] == [1, 2, 3, 4]
    assert listed[1].blocks != listed[5].blocks


def test_a_trace_is_clamped_to_the_context_and_says_so() -> None:
    """Prompt and answer together fit."""
    schedule = Schedule(TRACED, 1, TRACE, context=250)
    listed = [schedule.request(index) for index in range(4)]
    assert [item.clamped for item in listed] == [False, False, True, True]
    assert all(item.prompt_tokens + item.output_tokens <= 250 for item in listed)


def test_trace_lengths_in_a_closed_loop() -> None:
    """Arrival is then meaningless."""
    workload = Workload(input_tokens=Lengths(kind=LengthKind.TRACE), trace=TraceSource(path="x"))
    assert [Schedule(workload, 1, TRACE).request(index).prompt_tokens for index in range(5)] == [
        100,
        200,
        300,
        400,
        100,
    ]


def test_what_cannot_be_scheduled_is_refused() -> None:
    """No rate, no trace."""
    with pytest.raises(ValueError, match="positive rate"):
        Schedule(Workload(mode=LoadMode.OPEN), 1)
    with pytest.raises(ValueError, match="rows of a trace"):
        Schedule(TRACED, 1)


def test_a_trace_of_one_row_repeats_every_second() -> None:
    """There is no mean gap."""
    schedule = Schedule(TRACED, 1, TRACE[:1])
    assert [schedule.request(index).offset for index in range(3)] == [0.0, 0.5, 1.0]
