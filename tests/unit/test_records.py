"""The file of raw records and what is computed from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autotuner.core.budget import LatencyMetric, Limit
from autotuner.core.trial import LoadCheck
from autotuner.errors import StorageFault
from autotuner.observe.evaluate import evaluate, throughput, token_weights
from autotuner.observe.records import Records, SegmentMeta, Status, merge

Row = tuple[float, list[float], int, Status]
"""Send time, arrival of the chunks after it, tokens by the server, status."""


def make(rows: list[Row], **meta: object) -> Records:
    """Return records of these rows, scheduled 0.1 s before they were sent, prompts of 10 tokens."""
    count = len(rows)
    sent = np.array([row[0] for row in rows], dtype="f8")
    last = np.array([row[1][-1] if row[1] else 0.0 for row in rows], dtype="f8")
    return Records(
        index=np.arange(count),
        scheduled=sent - 0.1,
        ready=sent,
        sent=sent,
        ended=sent + last,
        asked_prompt=np.full(count, 10, dtype="i4"),
        asked_output=np.array([row[2] for row in rows], dtype="i4"),
        prompt_tokens=np.full(count, 10, dtype="i4"),
        output_tokens=np.array([row[2] for row in rows], dtype="i4"),
        status=np.array([row[3] for row in rows], dtype="i1"),
        http_status=np.full(count, 200, dtype="i2"),
        chunk_index=np.concatenate([[0], np.cumsum([len(row[1]) for row in rows])]).astype("i8"),
        chunk_offsets=np.array([offset for row in rows for offset in row[1]], dtype="f4"),
        meta=SegmentMeta(**meta),  # type: ignore[arg-type]
    )


TWO = make(
    [
        (0.0, [0.5, 1.5, 2.5, 3.5], 8, Status.OK),
        (2.0, [0.25, 0.75], 2, Status.OK),
        (2.5, [1.0], -1, Status.CUT),
    ],
    warmup_end=1.0,
    end_time=3.0,
    steady=True,
)


def test_throughput_is_the_tokens_of_the_measured_part_over_its_length() -> None:
    """The first answer has two tokens per chunk: 2 arrive in the warm-up, 4 in the measured part, 2 afterwards."""
    result = evaluate(TWO)
    assert result.warmup_tokens == 2.0
    assert result.total_tokens == 2.0 + 4.0 + 2.0
    assert throughput(result) == (8.0 - 2.0) / (3.0 - 1.0)
    assert result.windows == (2.0, 2.0, 4.0)


def test_an_answer_without_counts_takes_the_mean_of_the_others() -> None:
    """Ten tokens in six chunks are known."""
    assert token_weights(TWO)[-1] == pytest.approx(10 / 6)
    alone = make([(0.0, [1.0, 2.0], -1, Status.CUT)])
    assert list(token_weights(alone)) == [1.0, 1.0]


def test_only_requests_sent_in_the_measured_part_count() -> None:
    """The first was sent before, the third was cut off."""
    result = evaluate(TWO)
    assert (result.requests, result.ok) == (1, 1)
    assert result.latency["ttft_p50"].value == pytest.approx(0.25)
    assert result.latency["e2e_p99_9"].value == pytest.approx(0.75)
    assert result.latency["itl_p50"].value == pytest.approx(0.5)
    assert result.latency["tpot_p50"].value == pytest.approx(0.5)
    assert result.latency_scheduled["ttft_p50"] == pytest.approx(0.35)
    assert result.prompt_tokens == 10.0


def test_ends_are_counted_apart() -> None:
    """Garbage is an error; nothing but good answers has latencies."""
    kinds = [Status.OK, Status.ERROR, Status.GARBAGE, Status.ABORTED, Status.EMPTY, Status.CUT]
    result = evaluate(make([(1.0, [0.5], 1, kind) for kind in kinds], warmup_end=0.0, end_time=2.0))
    counts = (result.requests, result.ok, result.errors, result.aborted, result.empty)
    assert counts == (5, 1, 2, 1, 1)
    assert result.good is None


def test_nothing_recorded_is_an_empty_measurement() -> None:
    """No division by zero, no invented latency."""
    result = evaluate(Records())
    assert (result.requests, throughput(result), result.latency, result.windows) == (0, 0.0, {}, ())


def limit(metric: LatencyMetric, seconds: float, percentile: float = 99.0) -> Limit:
    """Return a limit."""
    return Limit(metric=metric, percentile=percentile, seconds=seconds)


@pytest.mark.parametrize(
    ("limits", "good"),
    [
        ((limit(LatencyMetric.TTFT, 0.15),), 2),
        ((limit(LatencyMetric.E2E, 0.95),), 2),
        ((limit(LatencyMetric.TPOT, 0.25),), 2),
        ((limit(LatencyMetric.ITL, 0.35, 99.0),), 1),
        ((limit(LatencyMetric.ITL, 0.35, 50.0),), 2),
        ((limit(LatencyMetric.TTFT, 0.15), limit(LatencyMetric.ITL, 0.35)), 1),
        ((limit(LatencyMetric.TTFT, 0.01),), 0),
    ],
)
def test_a_good_request_keeps_every_limit_itself(limits: tuple[Limit, ...], good: int) -> None:
    """ITL is judged by the request's own percentile."""
    rows: list[Row] = [
        (1.0, [0.1, 0.2, 0.3, 0.4], 4, Status.OK),
        (1.0, [0.1, 0.2, 0.3, 0.8], 4, Status.OK),
        (1.0, [0.9, 1.9], 2, Status.OK),
        (1.0, [0.1], 1, Status.ERROR),
    ]
    assert evaluate(make(rows, end_time=2.0), limits=limits).good == good


def test_the_file_gives_everything_back(tmp_path: Path) -> None:
    """So that every figure can be recomputed, and a limit changed afterwards."""
    check = LoadCheck(late_p99=0.001, cpu_share=0.2, longest_stall=0.05, processes=2, void_reasons=("late",))
    records = replace(TWO, meta=replace(TWO.meta, check=check, notes=("one note",), labels={"model": "m"}))
    path = tmp_path / "deep" / "records.npz"
    records.write(path)
    again = Records.read(path)
    assert again.meta == records.meta
    assert evaluate(again) == evaluate(records)
    assert evaluate(again, limits=(limit(LatencyMetric.TTFT, 0.3),)).good == 1
    assert evaluate(again, limits=(limit(LatencyMetric.TTFT, 0.2),)).good == 0
    assert evaluate(again, warmup_end=0.0).requests == 2
    assert [item.name for item in path.parent.iterdir()] == ["records.npz"]


def test_an_unreadable_file_is_one_clear_error(tmp_path: Path) -> None:
    """Missing, cut, foreign or of another version."""
    path = tmp_path / "records.npz"
    with pytest.raises(StorageFault, match="not a readable file"):
        Records.read(path)
    TWO.write(path)
    whole = path.read_bytes()
    for damaged in (b"", b"not a zip file", whole[: len(whole) // 2], whole[:-30]):
        path.write_bytes(damaged)
        with pytest.raises(StorageFault, match=r"records\.npz"):
            Records.read(path)
    np.savez(path, header=np.array('{"schema_version": 99}'))
    with pytest.raises(StorageFault, match="another schema version"):
        Records.read(path)


def test_columns_that_do_not_fit_are_damage(tmp_path: Path) -> None:
    """A file that another program wrote."""
    path = tmp_path / "records.npz"
    for broken, words in (
        (replace(TWO, status=TWO.status[:1]), "column status"),
        (replace(TWO, chunk_index=TWO.chunk_index[::-1]), "index does not fit"),
        (replace(TWO, chunk_offsets=TWO.chunk_offsets[:2]), "chunk times are missing"),
    ):
        broken.write(path)
        with pytest.raises(StorageFault, match=words):
            Records.read(path)


def test_a_file_that_cannot_be_written_is_a_storage_fault(tmp_path: Path) -> None:
    """The parent is a file."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageFault, match="cannot write"):
        TWO.write(tmp_path / "file" / "records.npz")


def test_shards_are_merged_in_the_order_of_sending() -> None:
    """Chunks follow their rows; the first send becomes zero."""
    left = make([(10.0, [0.1, 0.2], 2, Status.OK), (12.0, [0.3], 1, Status.OK)])
    right = make([(11.0, [0.4, 0.5, 0.6], 3, Status.OK), (13.0, [], 0, Status.EMPTY)])
    merged = merge([left, right], SegmentMeta(end_time=9.0))
    assert list(merged.sent) == [0.0, 1.0, 2.0, 3.0]
    assert list(merged.output_tokens) == [2, 3, 1, 0]
    assert np.allclose(merged.chunk_offsets, [0.1, 0.2, 0.4, 0.5, 0.6, 0.3])
    assert merged.problem() == ""
    assert merged.meta.end_time == 9.0
    assert np.isnan(merged.first[3])
    assert len(merge([Records(), Records()], SegmentMeta())) == 0
