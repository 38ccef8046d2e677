"""Ctrl-C and SIGTERM: what was measured is kept and told, nothing runs on, and the same command continues."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from autotuner.core.lifecycle import StudyState
from autotuner.core.trial import TrialKind
from tests.integration.tune_helpers import (
    NO_RACE,
    PROGRAM,
    STOP_DEADLINE,
    Ended,
    Tuner,
    accounted,
    engines,
    folded,
    no_traceback,
    nothing_left,
    result_of,
    write_study,
)

pytestmark = pytest.mark.process


def stopped(ended: Ended, folder: Path) -> None:
    """See that a run ended by its user's wish, with results."""
    assert ended.code == 130, ended.said
    no_traceback(ended)
    nothing_left(folder)
    out = folder / "out"
    assert folded(out).state is StudyState.ENDED
    result = result_of(out)
    assert result["complete"] is False
    assert result["stopped"] == "user"
    assert (out / "report.html").is_file()
    assert "the same command continues" in ended.err


def test_a_study_is_stopped_at_any_time_and_continued(tmp_path: Path) -> None:
    study, out = write_study(tmp_path / "study.yaml", {**NO_RACE, "measure.duration": "1.5 s"}), tmp_path / "out"
    command = ("tune", study, "--out", out)

    # While the engine starts, and would for a long time; it does not even follow SIGTERM.
    stubborn = {"AUTOTUNER_SIM_FAULT": "slow_start=300,ignore_sigterm"}
    with Tuner(*command, folder=tmp_path, env=stubborn) as tuner:
        tuner.wait_for(lambda: engines(tmp_path), "the engine starts")
        tuner.signal(signal.SIGINT)
        ended = tuner.end(STOP_DEADLINE)
    stopped(ended, tmp_path)
    assert result_of(out)["points"] == 0

    with Tuner(*command, folder=tmp_path) as tuner:
        tuner.wait_line("measuring (")
        tuner.signal(signal.SIGTERM)
        ended = tuner.end(STOP_DEADLINE)
    stopped(ended, tmp_path)

    with Tuner(*command, folder=tmp_path) as tuner:
        ended = tuner.end()
    assert ended.code == 0, ended.said
    nothing_left(tmp_path)
    study_now = accounted(out)
    assert result_of(out)["complete"] is True
    assert len(study_now.of_kind(TrialKind.EXPLORE)) == 2


def test_a_second_interrupt_ends_the_engine_at_once(tmp_path: Path) -> None:
    study, out = write_study(tmp_path / "study.yaml", NO_RACE), tmp_path / "out"
    stubborn = {"AUTOTUNER_SIM_FAULT": "ignore_sigterm,spawn_orphan=session"}
    with Tuner("tune", study, "--out", out, folder=tmp_path, env=stubborn) as tuner:
        tuner.wait_line("trial   1")
        tuner.signal(signal.SIGINT)
        tuner.wait_line("stopping")
        tuner.signal(signal.SIGINT)
        ended = tuner.end(STOP_DEADLINE)
    stopped(ended, tmp_path)
    assert result_of(out)["points"] >= 1
    accounted(out)


def test_a_study_goes_on_when_nobody_reads_its_progress(tmp_path: Path) -> None:
    study, out = write_study(tmp_path / "study.yaml", {**NO_RACE, "budget.trials": 1}), tmp_path / "out"
    reader, writer = os.pipe()
    os.close(reader)
    try:
        env = {**os.environ, "AUTOTUNER_CACHE_DIR": str(tmp_path / "cache")}
        argv = [*PROGRAM, "tune", str(study), "--out", str(out)]
        ended = subprocess.run(argv, stderr=writer, stdout=subprocess.PIPE, env=env, check=False, timeout=60)
    finally:
        os.close(writer)
    assert ended.returncode == 0
    assert b"SIMULATED" in ended.stdout
    accounted(out)
    nothing_left(tmp_path)
