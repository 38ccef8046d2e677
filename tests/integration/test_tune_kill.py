"""Whatever is killed, whenever: the same command continues, no trial is lost or measured twice, and nothing runs on."""

from __future__ import annotations

import os
import signal
import stat
import sys
from pathlib import Path

import pytest

from autotuner.core import events as ev
from autotuner.core.lifecycle import TrialState
from autotuner.core.trial import OutcomeClass
from tests.integration.tune_helpers import (
    NO_RACE,
    Tuner,
    accounted,
    engines,
    generators,
    journal,
    no_traceback,
    nothing_left,
    result_of,
    workers,
    write_study,
)

pytestmark = pytest.mark.process

SLOW = {"AUTOTUNER_SIM_FAULT": "slow_start=60"}


def test_a_tuner_killed_at_every_stage_loses_nothing(tmp_path: Path) -> None:
    study, out = write_study(tmp_path / "study.yaml", {**NO_RACE, "measure.duration": "1.5 s"}), tmp_path / "out"
    command = ("tune", study, "--out", out)

    with Tuner(*command, folder=tmp_path) as tuner:
        tuner.wait_line("asking the engine")
        tuner.kill()
    assert not journal(out)

    with Tuner(*command, folder=tmp_path, env=SLOW) as tuner:
        tuner.wait_for(lambda: engines(tmp_path), "the engine starts")
        tuner.kill()
    assert any(isinstance(event, ev.TrialLeased) for event in journal(out))

    with Tuner(*command, folder=tmp_path) as tuner:
        tuner.wait_line("continuing with 0 of its trials done")
        tuner.wait_for(lambda: generators(tmp_path), "the load")
        tuner.wait_line("warming (")
        tuner.kill()

    with Tuner(*command, folder=tmp_path) as tuner:
        tuner.wait_line("measuring (")
        tuner.kill()

    with Tuner(*command, folder=tmp_path) as tuner:
        # The publisher opens this pipe to write, and waits for a reader that never comes.
        os.mkfifo(out / f".result.json.{tuner.pid}.tmp")
        tuner.wait_for(lambda: any(isinstance(e, ev.StudyFinished) for e in journal(out)), "the end of the plan")
        tuner.kill()
    assert not (out / "result.json").exists()

    with Tuner(*command, folder=tmp_path) as tuner:
        ended = tuner.end()
    assert ended.code == 0, ended.said
    no_traceback(ended)
    nothing_left(tmp_path)
    study_now = accounted(out)
    assert len(study_now.trials) == 3
    assert result_of(out)["complete"] is True
    assert not [path for path in out.glob(".*.tmp") if not stat.S_ISFIFO(path.stat().st_mode)]


def test_a_killed_tuner_leaves_no_engine_being_asked(tmp_path: Path) -> None:
    # An interpreter that never answers: the engine's description waits for it.
    hanging, marker = tmp_path / "bin" / "python", tmp_path / "asked"
    hanging.parent.mkdir()
    hanging.write_text(
        f"#!{sys.executable}\nimport pathlib, signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"pathlib.Path({str(marker)!r}).touch()\nwhile True:\n    signal.pause()\n",
        encoding="utf-8",
    )
    hanging.chmod(0o755)
    package = tmp_path / "lib" / "python3.11" / "site-packages" / "vllm-0.99.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.99.0\n", encoding="utf-8")
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\n", encoding="utf-8")
    program = hanging.with_name("vllm")
    program.write_text(f"#!{hanging}\n", encoding="utf-8")
    program.chmod(0o755)
    study = write_study(tmp_path / "study.yaml", {"engine.kind": "vllm", "engine.command": [str(program), "serve"]})
    for number, code in ((signal.SIGKILL, -9), (signal.SIGTERM, 130), (signal.SIGINT, 130)):
        with Tuner("tune", study, "--out", tmp_path / "out", folder=tmp_path) as tuner:
            tuner.wait_for(marker.exists, "the engine's interpreter")
            marker.unlink()
            if number is signal.SIGKILL:
                tuner.kill()
            else:
                tuner.signal(number)
            ended = tuner.end(10.0)
        assert ended.code == code, ended.said
        no_traceback(ended)
        nothing_left(tmp_path)


def test_a_study_survives_the_death_of_each_of_its_processes(tmp_path: Path) -> None:
    study, out = write_study(tmp_path / "study.yaml", {**NO_RACE, "budget.trials": 2}), tmp_path / "out"
    with Tuner("tune", study, "--out", out, folder=tmp_path) as tuner:
        (generator, *_) = tuner.wait_for(lambda: generators(tmp_path), "the load")
        os.kill(generator, signal.SIGKILL)
        tuner.wait_for(lambda: _outcome(out, OutcomeClass.INFRASTRUCTURE), "the load's failure")

        tuner.wait_for(lambda: generators(tmp_path), "the next load")
        (engine, *_) = engines(tmp_path)
        os.kill(engine, signal.SIGKILL)
        tuner.wait_for(lambda: _outcome(out, OutcomeClass.CRASHED), "the engine's death")

        tuner.wait_for(lambda: generators(tmp_path), "the next load")
        (worker,) = workers(tmp_path)
        os.kill(worker, signal.SIGKILL)
        tuner.wait_line("starting another")
        ended = tuner.end()
    assert ended.code == 0, ended.said
    no_traceback(ended)
    nothing_left(tmp_path)
    study_now = accounted(out)
    assert all(trial.state is TrialState.MEASURED for trial in study_now.trials.values())
    assert max(trial.attempt for trial in study_now.trials.values()) >= 2
    assert any(isinstance(event, ev.WorkerLost) for event in journal(out))
    failed = [e.outcome for e in journal(out) if isinstance(e, ev.TrialCompleted) and e.outcome.measurement is None]
    crash = next(outcome for outcome in failed if outcome.outcome is OutcomeClass.CRASHED)
    assert any("SIGKILL" in line or "-9" in line or "signal 9" in line for line in (crash.message, *crash.evidence))


def _outcome(out: Path, kind: OutcomeClass) -> bool:
    return any(isinstance(e, ev.TrialCompleted) and e.outcome.outcome is kind for e in journal(out))


def test_a_worker_that_keeps_dying_ends_the_run(tmp_path: Path) -> None:
    study, out = write_study(tmp_path / "study.yaml"), tmp_path / "out"
    with Tuner("tune", study, "--out", out, folder=tmp_path, env=SLOW) as tuner:
        for life in (1, 2, 3):
            tuner.wait_for(lambda: engines(tmp_path), "the engine starts")
            (worker,) = workers(tmp_path)
            os.kill(worker, signal.SIGKILL)
            if life < 3:
                tuner.wait_line("starting another", life)
        ended = tuner.end()
    assert ended.code == 3, ended.said
    assert "the worker ended 3 times" in ended.err
    no_traceback(ended)
    nothing_left(tmp_path)
