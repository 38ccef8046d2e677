"""A whole study by one command, and everything that can be asked of its folder afterwards."""

from __future__ import annotations

import json
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from autotuner.core import events as ev
from autotuner.core.trial import TrialKind
from tests.integration.tune_helpers import (
    Ended,
    Tuner,
    accounted,
    autotuner,
    folded,
    journal,
    no_traceback,
    nothing_left,
    result_of,
    write_study,
)

pytestmark = pytest.mark.process

WINNER_FILES = ("winner.sh", "winner.yaml", "winner.systemd.conf", "winner.kubernetes.yaml")
RESULT_KEYS = {
    "schema_version", "study", "engine", "simulated", "objective", "verdict", "baseline", "winner", "noise_floor", "launches",
    "points", "wall_seconds", "started", "ended", "complete", "stopped", "notes", "trials", "budget", "hardware",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A study that ran to its end, and a tuner that was started beside it."""

    folder: Path
    study: Path
    out: Path
    ended: Ended
    second: Ended


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Run a study to its end, once; tests change copies of it."""
    folder = tmp_path_factory.mktemp("tune")
    study, out = write_study(folder / "study.yaml"), folder / "out"
    with Tuner("tune", study, "--out", out, folder=folder) as tuner:
        tuner.wait_line("trial   1")
        second = autotuner("tune", study, "--out", out, folder=folder)
        ended = tuner.end()
    nothing_left(folder)
    return Finished(folder=folder, study=study, out=out, ended=ended, second=second)


@pytest.fixture
def copy(finished: Finished, tmp_path: Path) -> Path:
    """Return a copy of the finished study's folder."""
    return Path(shutil.copytree(finished.out, tmp_path / "out"))


def test_a_study_runs_to_its_end_and_says_everything(finished: Finished) -> None:
    ended, out = finished.ended, finished.out
    assert ended.code == 0, ended.said
    no_traceback(ended)
    result = result_of(out)
    assert result.keys() >= RESULT_KEYS
    assert result["complete"] is True
    assert result["stopped"] == ""
    assert result["simulated"] is True
    assert result["winner"]["config"]["max_num_seqs"] > 1
    assert result["points"] == len(result["trials"]) == 6
    study = accounted(out)
    assert len(study.of_kind(TrialKind.RACE)) == 4
    assert {"SIMULATED" in text for text in (ended.out, ended.err)} == {True}
    assert "SIMULATED" in (out / "report.html").read_text(encoding="utf-8")
    assert all("SIMULATED" in (out / name).read_text(encoding="utf-8") for name in WINNER_FILES)
    assert all(ended.err.count(f"trial {number:>3} ") == 1 for number in study.trials)
    assert all(name in ended.out for name in ("result.json", "report.html", *WINNER_FILES))


def test_a_second_tuner_in_the_same_folder_is_refused_and_harms_nothing(finished: Finished) -> None:
    assert finished.second.code == 3, finished.second.said
    assert "another controller uses this journal" in finished.second.err
    no_traceback(finished.second)
    assert "worker ended" not in finished.ended.err


def test_the_same_command_again_shows_the_results(finished: Finished, copy: Path, tmp_path: Path) -> None:
    before = result_of(copy)
    again = autotuner("tune", finished.study, "--out", copy, folder=tmp_path)
    assert again.code == 0, again.said
    assert "this study is complete" in again.err
    assert before["verdict"]["headline"].split()[0] in again.out
    assert result_of(copy) == before
    assert not any(isinstance(e, ev.StudyResumed) for e in journal(copy))


def test_a_raised_budget_continues(finished: Finished, copy: Path, tmp_path: Path) -> None:
    raised = write_study(tmp_path / "study.yaml", {"budget.trials": 3})
    more = autotuner("tune", raised, "--out", copy, folder=tmp_path)
    assert more.code == 0, more.said
    assert "continuing with 6 of its trials done" in more.err
    study = accounted(copy)
    assert study.spec.effort.trials == 3
    assert result_of(copy)["complete"] is True
    nothing_left(tmp_path)


def test_a_changed_study_is_refused(finished: Finished, copy: Path, tmp_path: Path) -> None:
    changed = write_study(tmp_path / "study.yaml", {"workload.concurrency": 2})
    ended = autotuner("tune", changed, "--out", copy, folder=tmp_path)
    assert ended.code == 2, ended.said
    assert "--fresh" in ended.err
    no_traceback(ended)
    assert result_of(copy) == result_of(finished.out)


def test_fresh_starts_anew_even_where_the_database_is_damaged(finished: Finished, copy: Path, tmp_path: Path) -> None:
    (copy / "study.db").write_bytes(b"not a database at all" * 1000)
    refused = autotuner("tune", finished.study, "--out", copy, folder=tmp_path)
    assert refused.code == 3, refused.said
    no_traceback(refused)
    with Tuner("tune", finished.study, "--out", copy, "--fresh", folder=tmp_path) as tuner:
        tuner.wait_line("trial   1")
        tuner.signal(signal.SIGINT)
        assert tuner.end().code == 130
    assert 1 <= len(folded(copy).of_kind(TrialKind.BASELINE) + folded(copy).of_kind(TrialKind.EXPLORE)) < 6
    assert len(result_of(copy)["trials"]) == len(folded(copy).trials)


def test_results_are_judged_again_from_the_raw_records(finished: Finished, copy: Path, tmp_path: Path) -> None:
    ended = autotuner("report", copy, "--limit", "ttft_p90=1us", "--limit", "e2e_p99_9=1min", "--only", folder=tmp_path)
    assert ended.code == 0, ended.said
    judged, before = result_of(copy / "rejudged"), result_of(finished.out)
    assert result_of(copy) == before
    assert judged["verdict"]["kind"] == "infeasible"
    assert [limit["key"] for limit in judged["budget"]["limits"]] == ["ttft_p90", "e2e_p99_9"]
    for new, old in zip(judged["trials"], before["trials"], strict=True):
        assert new["feasible"] is False
        assert old["feasible"] is True
        assert new["throughput"] == pytest.approx(old["throughput"])  # the same records, the same throughput
    assert (copy / "rejudged" / "report.html").is_file()
    assert not (copy / "rejudged" / "winner.sh").exists() or judged["winner"] is not None


def test_the_report_is_written_anew(copy: Path, tmp_path: Path) -> None:
    before = result_of(copy)
    (copy / "report.html").unlink()
    (copy / "winner.sh").unlink()
    ended = autotuner("report", copy, folder=tmp_path)
    assert ended.code == 0, ended.said
    assert (copy / "report.html").is_file()
    assert (copy / "winner.sh").is_file()
    assert _lasting(result_of(copy)) == _lasting(before)


def _lasting(result: dict[str, Any]) -> str:
    return json.dumps({key: value for key, value in result.items() if key not in ("ended", "wall_seconds")})


def test_missing_records_leave_their_trial_out(copy: Path, tmp_path: Path) -> None:
    gone = next((copy / "records").glob("*.npz"))
    gone.unlink()
    ended = autotuner("report", copy, "--limit", "ttft_p95=1s", folder=tmp_path)
    assert ended.code == 0, ended.said
    result = result_of(copy / "rejudged")
    assert [note for note in result["notes"] if gone.name in note]
    assert result["points"] == len(result["trials"]) == result_of(copy)["points"] - 1


def test_a_simulated_winner_is_not_exported(finished: Finished, tmp_path: Path) -> None:
    ended = autotuner("export", finished.out, folder=tmp_path)
    assert ended.code == 4, ended.said
    assert ended.out == ""
    assert "simulated" in ended.err.lower()


def test_stories_are_told(finished: Finished, tmp_path: Path) -> None:
    whole = autotuner("story", finished.out, folder=tmp_path)
    assert whole.code == 0, whole.said
    assert "submitted" in whole.out
    assert all(f"trial {number}: " in whole.out for number in range(1, 7))
    one = autotuner("story", finished.out, "2", folder=tmp_path)
    assert "created (explore)" in one.out
    assert "-> measured" in one.out
    none = autotuner("story", finished.out, "99", folder=tmp_path)
    assert none.code == 2
    assert "give one of 1 to 6" in none.err


def test_a_study_is_explained_and_written(tmp_path: Path) -> None:
    explained = autotuner("validate", write_study(tmp_path / "study.yaml"), folder=tmp_path)
    assert explained.code == 0, explained.said
    assert "valid for simulated" in explained.out
    assert "search  max_num_seqs" in explained.out
    path = tmp_path / "written.yaml"
    made = autotuner("init", path, "--engine", "simulated", "--model", "sim-tiny", folder=tmp_path)
    assert made.code == 0, made.said
    assert autotuner("validate", path, folder=tmp_path).code == 0
    again = autotuner("init", path, "--engine", "simulated", folder=tmp_path)
    assert again.code == 2
    assert "--force" in again.err


def test_the_schema_is_json(tmp_path: Path) -> None:
    ended = autotuner("schema", folder=tmp_path)
    assert ended.code == 0
    assert json.loads(ended.out)["properties"]["name"]
