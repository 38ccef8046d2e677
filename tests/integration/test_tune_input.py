"""What a user can get wrong: one clear error with the remedy, the right exit code, nothing left behind."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from autotuner.core.lifecycle import StudyState
from tests.integration.tune_helpers import (
    NO_RACE,
    Ended,
    Tuner,
    accounted,
    autotuner,
    disk,
    folded,
    no_traceback,
    nothing_left,
    write_study,
)

pytestmark = pytest.mark.process


def refused(ended: Ended, code: int, *words: str) -> None:
    """See a clear end: the code, these words, and nothing of the program's inside."""
    assert ended.code == code, ended.said
    no_traceback(ended)
    assert all(word in ended.err for word in words), ended.said
    assert ended.out == ""


WRONG: Mapping[str, Any] = {
    "name": "../escape",
    "budget.trials": 0,
    "latency.limits": {"ttft_p99": "-5 ms", "ttft_p101": "5 ms"},
    "measure.durations": "6 s",
    "workload.concurrency": -1,
}


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        (
            WRONG,
            2,
            ("study.yaml:", "name = ../escape", "budget.trials = 0", "-5 ms", "ttft_p101", "measure.durations", "-1"),
        ),
        (
            {"engine.args": {"max_modle_len": 512}, "baseline": {"max_num_seqs": "many"}},
            2,
            ("max_modle_len", "max_model_len", "baseline.max_num_seqs", "many"),
        ),
        ({"model": "no-such-model"}, 3, ("no-such-model",)),
    ],
)
def test_everything_that_is_wrong_with_a_study_is_told(
    tmp_path: Path, changes: Mapping[str, Any], code: int, words: tuple[str, ...]
) -> None:
    study = write_study(tmp_path / "study.yaml", changes)
    ended = autotuner("tune", study, "--out", tmp_path / "out", folder=tmp_path)
    refused(ended, code, *words)
    nothing_left(tmp_path)
    assert not [path for path in tmp_path.glob("out/*") if path.name != "study.db.lock"]


def test_a_study_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    refused(autotuner("tune", tmp_path / "none.yaml", folder=tmp_path), 2, "none.yaml")
    (tmp_path / "bad.yaml").write_text("name: [unclosed\nmodel: x\n", encoding="utf-8")
    refused(autotuner("tune", tmp_path / "bad.yaml", folder=tmp_path), 2, "bad.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00name")
    refused(autotuner("tune", tmp_path / "bytes.yaml", folder=tmp_path), 2, "bytes.yaml")
    refused(autotuner("tune", tmp_path, folder=tmp_path), 2, str(tmp_path))
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study.yaml")
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/autotuner")):
        refused(autotuner("tune", study, "--out", out, folder=tmp_path), 3, str(out))
    for command in ("report", "export", "story"):
        refused(autotuner(command, tmp_path / "nothing", folder=tmp_path), 2, "holds no study")


def test_an_engine_that_is_not_there_is_named(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study.yaml")
    command = ("--engine", "vllm", "--engine-command", "/nowhere/vllm serve")
    refused(autotuner("tune", study, "--out", tmp_path / "out", *command, folder=tmp_path), 3, "/nowhere/vllm")
    refused(autotuner("validate", study, *command, folder=tmp_path), 3, "/nowhere/vllm")
    refused(autotuner("init", tmp_path / "new.yaml", *command[2:], folder=tmp_path), 3, "/nowhere/vllm")
    assert not (tmp_path / "new.yaml").exists()
    nothing_left(tmp_path)


def test_a_disk_that_is_full_from_the_start_is_told_at_once(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study.yaml")
    with disk(tmp_path / "small", "8m") as problem:
        if problem:
            pytest.skip(problem)
        ended = autotuner("tune", study, "--out", tmp_path / "small" / "out", folder=tmp_path)
        refused(ended, 3, "MiB free", "free some space")
        nothing_left(tmp_path)
        assert "starting another" not in ended.err


def fill(path: Path) -> None:
    """Write *path* until not even a page is left."""
    with path.open("wb", buffering=0) as file:
        for size in (2**20, 4096):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass


def test_a_study_survives_a_disk_that_fills_up(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study.yaml", {**NO_RACE, "search.max_attempts": 2})
    with disk(tmp_path / "small", "300m") as problem:
        if problem:
            pytest.skip(problem)
        out, ballast = tmp_path / "small" / "out", tmp_path / "small" / "ballast"
        with Tuner("tune", study, "--out", out, folder=tmp_path) as tuner:
            tuner.wait_line("trial   1")
            fill(ballast)
            ended = tuner.end()
        assert ended.code == 3, ended.said
        no_traceback(ended)
        assert "space" in ended.err.lower(), ended.said
        nothing_left(tmp_path)
        ballast.unlink()
        assert folded(out).state is not StudyState.ENDED
        ended = autotuner("tune", study, "--out", out, folder=tmp_path)
        assert ended.code == 0, ended.said
        accounted(out)
        nothing_left(tmp_path)
