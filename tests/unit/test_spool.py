"""Outcomes on disk."""

from __future__ import annotations

import dataclasses
import logging
import os
from pathlib import Path

import pytest

from autotuner.core.trial import Outcome, OutcomeClass
from autotuner.core.workers import held
from autotuner.errors import StorageFault
from autotuner_worker.spool import Spool


def outcome(trial_id: int, **changes: object) -> Outcome:
    plain = Outcome(
        study_id="s/../ü", trial_id=trial_id, attempt=1, epoch=1, outcome=OutcomeClass.CRASHED, evidence=("\udcff",)
    )
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


def test_outcomes_survive_a_restart_oldest_first(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "deep" / "spool")
    for trial_id in (3, 1, 2):
        spool.put(outcome(trial_id))
        newest = max((tmp_path / "deep" / "spool").iterdir(), key=lambda path: path.stat().st_mtime_ns)
        os.utime(newest, ns=(trial_id, trial_id))
    assert [each.trial_id for each in spool.pending()] == [3, 1, 2]
    again = Spool(tmp_path / "deep" / "spool")
    assert again.pending() == (outcome(1), outcome(2), outcome(3))


def test_a_removed_outcome_is_gone_for_good(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.put(outcome(1))
    spool.remove(held(outcome(1)))
    spool.remove(held(outcome(1)))
    assert spool.pending() == Spool(tmp_path).pending() == ()
    assert list(tmp_path.iterdir()) == []


def test_the_same_attempt_is_stored_once(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.put(outcome(1))
    spool.put(outcome(1, message="better"))
    assert Spool(tmp_path).pending() == (outcome(1, message="better"),)


def test_a_study_name_never_becomes_a_path(tmp_path: Path) -> None:
    Spool(tmp_path / "spool").put(outcome(1, study_id="../../x" * 100))
    assert [path.parent for path in tmp_path.rglob("*.json")] == [tmp_path / "spool"]


def test_the_folder_is_private(tmp_path: Path) -> None:
    Spool(tmp_path / "spool")
    assert (tmp_path / "spool").stat().st_mode & 0o077 == 0


def test_a_half_written_file_is_swept(tmp_path: Path) -> None:
    (tmp_path / "x.outcome.json.part").write_text("{")
    assert Spool(tmp_path).pending() == ()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"1\n{}", b"99\n{}", b"1\n" + b"[" * 100_000])
def test_a_damaged_file_is_kept_aside_and_named(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    Spool(tmp_path).put(outcome(1))
    (tmp_path / "bad.outcome.json").write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert Spool(tmp_path).pending() == (outcome(1),)
    assert "bad.outcome.json.damaged" in caplog.text
    assert (tmp_path / "bad.outcome.json.damaged").read_bytes() == content


def test_an_outcome_that_cannot_be_stored_stays_pending_in_this_life(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    (tmp_path / "spool").rmdir()
    with pytest.raises(StorageFault, match="free some space"):
        spool.put(outcome(1))
    assert spool.pending() == (outcome(1),)
    spool.remove(held(outcome(1)))
    assert spool.pending() == ()


def test_a_folder_that_cannot_be_made_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageFault, match="cannot use the folder"):
        Spool(tmp_path / "file" / "spool")
