"""The commands that run no trial, on journals written here: other limits, unreadable records, stories."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from autotuner.cli import main as program
from autotuner.cli import offline
from autotuner.core.budget import LatencyBudget, LatencyMetric, Limit
from autotuner.core.state import Study, Trial
from autotuner.daemon.publish import publish
from autotuner.errors import InputError, StorageFault
from autotuner.storage.journal_sql import SqlJournal, sqlite_url
from tests.fakes import studies
from tests.fakes.world import World

LIMITS = (
    Limit(metric=LatencyMetric.TTFT, percentile=95.0, seconds=9.0),
    Limit(metric=LatencyMetric.E2E, percentile=99.0, seconds=60.0),
)
DAY = 86400.0


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Path]:
    """Return the folder of a running study: its tuner holds the journal."""
    world = World()
    world.now = 2 * DAY - 2.5
    spec = studies.spec(trials=4)
    world.submit(replace(spec, budget=replace(spec.budget, limits=LIMITS)))
    world.worker("local")
    for _ in range(4):
        world.step("local", seconds=1.0)
    with SqlJournal(sqlite_url(tmp_path / "study.db")) as journal:
        for stamp, event in world.journal:
            journal.append([event], stamp)
        yield tmp_path


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Let trials keep their figures instead of reading records; those whose numbers are put in here have none."""
    missing: set[int] = set()

    def judge(trial: Trial, _study: Study, out: Path) -> None:
        if trial.trial_id in missing:
            raise StorageFault(f"{out}/records/{trial.trial_id}.npz is not a readable file of records")

    monkeypatch.setattr(offline, "_judge", judge)
    return missing


def test_a_limit_replaces_its_namesake_alone(out: Path, unread: set[int]) -> None:
    def limits(*given: str, only: bool = False) -> dict[str, float]:
        result, folder = offline.rejudge(out, given, only)
        assert folder == out / "rejudged"
        assert (folder / "result.json").is_file()
        return {limit.key: limit.seconds for limit in result.spec.budget.limits}

    assert limits("ttft_p95=2s") == {"ttft_p95": 2.0, "e2e_p99": 60.0}
    assert limits("itl_p50=1s") == {"ttft_p95": 9.0, "e2e_p99": 60.0, "itl_p50": 1.0}
    assert limits("itl_p50=1s", only=True) == {"itl_p50": 1.0}
    assert not unread


def test_budgets_keep_their_other_settings() -> None:
    budget = LatencyBudget(parts={"network": 0.1}, limits=LIMITS, max_error_ratio=0.5)
    assert replace(offline._with_limits(budget, ["ttft_p95=1s"], True), limits=LIMITS) == budget


def test_a_trial_without_records_is_left_out_with_a_note(out: Path, unread: set[int]) -> None:
    whole, _ = offline.rejudge(out, ["ttft_p95=2s"])
    unread.add(2)
    result, folder = offline.rejudge(out, ["ttft_p95=2s"])
    assert {trial.trial_id for trial in whole.trials} - {trial.trial_id for trial in result.trials} == {2}
    assert result.points == whole.points - 1
    assert [note for note in result.notes if "trial 2 is left out" in note and "2.npz" in note]
    assert result.winner is None or 2 not in result.winner.trial_ids
    unread.update(range(1, 20))
    assert offline.rejudge(out, ["ttft_p95=2s"])[0].points == 0
    publish(result, folder)


def test_only_needs_a_limit(out: Path) -> None:
    shown = CliRunner().invoke(program.cli, ["report", str(out), "--only"])
    assert shown.exit_code == 2
    assert "--limit" in shown.output


def test_a_story_keeps_the_order_of_events_and_tells_times(out: Path) -> None:
    lines = offline.told(out, None)
    assert lines[:2] == ["1970-01-02 UTC", "23:59:57 submitted"]
    assert "1970-01-03 UTC" in lines
    clock = [line.split(" ", 1) for line in lines if not line.endswith("UTC")]
    days = [line for line in lines if line.endswith("UTC")]
    assert len(days) == 2
    subjects = [text for _, text in clock]
    created = next(i for i, text in enumerate(subjects) if text.startswith("trial 1: created"))
    measured = next(i for i, text in enumerate(subjects) if text.startswith("trial 1: ") and text.endswith("measured"))
    second = next(i for i, text in enumerate(subjects) if text.startswith("trial 2: ") and "leased" in text)
    assert created < measured < second
    assert [text.removeprefix("trial 1: ") for text in subjects if text.startswith("trial 1: ")] == [
        line.split(" ", 1)[1] for line in offline.told(out, 1) if not line.endswith("UTC")
    ]
    with pytest.raises(InputError, match="give one of 1 to"):
        offline.told(out, 99)
