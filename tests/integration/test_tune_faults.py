"""Engines that misbehave in every way: the study says what happened, ends by itself and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from autotuner.core.trial import OutcomeClass
from tests.integration.tune_helpers import accounted, autotuner, no_traceback, nothing_left, result_of, write_study

pytestmark = pytest.mark.process

BASELINE_ONLY: Mapping[str, Any] = {"budget.trials": 1, "search.max_attempts": 1}


@pytest.mark.parametrize(
    ("fault", "changes", "outcomes"),
    [
        ("never_ready", {"measure.start_timeout": "1.5 s"}, {OutcomeClass.TIMED_OUT}),
        ("garbage", {}, {OutcomeClass.GARBAGE}),
        ("empty_answers", {}, {OutcomeClass.GARBAGE}),
        ("hang_under_load=3", {"measure.stall_timeout": "1 s"}, {OutcomeClass.HUNG}),
        ("crash_after_n_requests=4", {}, {OutcomeClass.CRASHED}),
        ("error_chunk", {}, {OutcomeClass.CRASHED, OutcomeClass.GARBAGE}),
    ],
)
def test_a_fault_is_named_and_nothing_measured_is_a_failure(
    tmp_path: Path, fault: str, changes: Mapping[str, Any], outcomes: set[OutcomeClass]
) -> None:
    study, out = write_study(tmp_path / "study.yaml", {**BASELINE_ONLY, **changes}), tmp_path / "out"
    ended = autotuner("tune", study, "--out", out, folder=tmp_path, env={"AUTOTUNER_SIM_FAULT": fault})
    assert ended.code == 3, ended.said
    no_traceback(ended)
    nothing_left(tmp_path)
    (trial,) = accounted(out).trials.values()
    assert trial.outcome is not None
    assert trial.outcome.outcome in outcomes
    assert trial.outcome.message
    assert trial.outcome.message in ended.err.splitlines()[-1]
    assert "the same command goes on" in ended.err.splitlines()[-1]
    result = result_of(out)
    assert result["winner"] is None
    assert result["verdict"]["kind"] == "inconclusive"
    assert (out / "report.html").is_file()


def test_an_engine_that_floods_resists_and_leaves_children_is_measured_all_the_same(tmp_path: Path) -> None:
    study, out = write_study(tmp_path / "study.yaml", {"budget.trials": 1}), tmp_path / "o ut %20é#1"
    faults = "print_100mb,ignore_sigterm,spawn_orphan=session"
    deep = tmp_path / ("deep" * 30)  # too long for a socket
    deep.mkdir()
    ended = autotuner(
        "tune", study, "--out", out, folder=tmp_path, env={"AUTOTUNER_SIM_FAULT": faults, "TMPDIR": str(deep)}
    )
    assert ended.code == 0, ended.said
    nothing_left(tmp_path)
    accounted(out)
    assert result_of(out)["points"] == 1
    assert autotuner("story", out, folder=tmp_path).code == 0
    assert not list(deep.iterdir())
    assert sum(log.stat().st_size for log in (out / "logs").iterdir()) < 16 * 2**20


def test_a_study_in_which_nothing_starts_gives_up_and_the_same_command_tries_again(tmp_path: Path) -> None:
    study = write_study(
        tmp_path / "study.yaml", {"budget.trials": 20, "search.max_attempts": 1, "search.space": "auto"}
    )
    out = tmp_path / "out"
    for runs in (1, 2):
        ended = autotuner("tune", study, "--out", out, folder=tmp_path, env={"AUTOTUNER_SIM_FAULT": "exit_at_start"})
        assert ended.code == 3, ended.said
        no_traceback(ended)
        assert len(accounted(out).trials) == 4 * runs
        assert "the same command goes on" in ended.err.splitlines()[-1]
        result = result_of(out)
        assert (result["complete"], result["stopped"]) == (False, "nothing_starts")
    nothing_left(tmp_path)


def test_one_bad_point_costs_the_study_nothing_else(tmp_path: Path) -> None:
    # 64 sequences of 512 tokens do not fit into eight blocks: the engine cannot start, the other points can.
    changes = {
        "budget.trials": 3,
        "baseline": {"max_num_seqs": 16},
        "search.space": {"auto": False, "num_gpu_blocks_override": [8, 4096]},
        "search.hot_points_per_launch": 1,
        "search.max_attempts": 8,
    }
    study, out = write_study(tmp_path / "study.yaml", changes), tmp_path / "out"
    ended = autotuner("tune", study, "--out", out, folder=tmp_path)
    assert ended.code == 0, ended.said
    nothing_left(tmp_path)
    accounted(out)
    classes = {trial["config"].get("num_gpu_blocks_override"): trial["class"] for trial in result_of(out)["trials"]}
    assert classes[8] == "oom_at_start"
    assert classes[4096] == "complete"
