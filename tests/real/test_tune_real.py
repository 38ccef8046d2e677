"""The whole tuner against real vLLM, as a user runs it: one small study in which one engine core is killed.

The study's points: a baseline that admits two requests, a point whose large blocks leave no room for one request, and two
hot points of one launch, the first of which loses its engine core while it is measured.
"""

from __future__ import annotations

import math
import shlex
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import yaml

from autotuner.core import events as ev
from autotuner.core.results import VerdictKind
from autotuner.core.trial import Outcome, OutcomeClass
from autotuner.observe.evaluate import evaluate, throughput, token_weights
from autotuner.observe.records import Records
from autotuner_worker.engines.vllm_install import inspect_install
from autotuner_worker.guardian import Stat, descendants, kill_exactly, snapshot
from tests.integration.tune_helpers import (
    Ended,
    Tree,
    Tuner,
    accounted,
    autotuner,
    journal,
    no_traceback,
    nothing_left,
    result_of,
)
from tests.real.helpers import cache_bytes, parse

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

DEADLINE = 500.0
"""Reached only when a test fails: seconds for a study that takes three minutes on two idle cores."""
CLIENTS = 12
FEW = 4
SMALL_BLOCK, LARGE_BLOCK = 32, 128
LENGTH = 7 * LARGE_BLOCK + 10
"""Of the model: the last large block would be nearly empty, so that large blocks need much more memory than small ones."""
CACHED = LENGTH + 54
"""Tokens that fit into the KV cache: enough for ``LENGTH`` in small blocks, not in large ones."""
BASELINE = {"max_num_seqs": 2, "block_size": SMALL_BLOCK}
HOPELESS = {"max_num_seqs": CLIENTS, "block_size": LARGE_BLOCK}
GOOD = {"max_num_seqs": CLIENTS, "block_size": SMALL_BLOCK}
HOT = {"max_num_seqs": FEW, "block_size": SMALL_BLOCK}
HOPELESS_TRIAL, GOOD_TRIAL, HOT_TRIAL, TRIALS = 3, 4, 5, 9


def write_study(path: Path, model: Path, engine: dict[str, Any] | None = None) -> Path:
    """Write the study; *engine* adds to its engine section."""
    args = {
        "enforce_eager": True,
        "kv_cache_memory_bytes": cache_bytes(model, CACHED),
        "max_model_len": LENGTH,
        "max_num_batched_tokens": 512,
    }
    study = {
        "name": "real",
        "engine": {"args": args, **(engine or {})},
        "workload": {"concurrency": CLIENTS, "input_tokens": 16, "output_tokens": 24, "temperature": 0.0},
        "latency": {"limits": {"ttft_p95": "60 s"}},
        "budget": {"trials": 4},
        "measure": {
            "warmup_min": "1 s",
            "warmup_max": "2 s",
            "duration": "3 s",
            "duration_max": "6 s",
            "start_timeout": "4 min",
        },
        "search": {
            "baseline_repeats": 2,
            "finalists": 1,
            "race_pairs": 2,
            "hot_points_per_launch": 2,
            "max_attempts": 4,  # a busy machine may spoil a measurement or two
            "space": {
                "auto": False,
                "max_num_seqs": {"low": 2, "high": CLIENTS},
                "block_size": [SMALL_BLOCK, LARGE_BLOCK],
            },
        },
        "baseline": BASELINE,
        "seeds": [HOPELESS, GOOD, HOT],
    }
    path.write_text(yaml.safe_dump(study), encoding="utf-8")
    return path


@dataclass(frozen=True, kw_only=True)
class Run:
    """What the study came to."""

    ended: Ended
    folder: Path
    out: Path
    killed: Stat
    """The engine core that was killed."""

    @property
    def result(self) -> dict[str, Any]:
        return result_of(self.out)

    def trial(self, number: int) -> dict[str, Any]:
        """Return a trial as ``result.json`` has it."""
        (found,) = (trial for trial in self.result["trials"] if trial["id"] == number)
        assert isinstance(found, dict)
        return found

    def outcomes(self, number: int) -> list[Outcome]:
        """Return what the attempts at a trial came to, in order."""
        completed = (event.outcome for event in journal(self.out) if isinstance(event, ev.TrialCompleted))
        return [outcome for outcome in completed if outcome.trial_id == number]

    def measured(self) -> list[tuple[dict[str, Any], Outcome]]:
        """Return every measured trial with its outcome."""
        return [(t, self.outcomes(t["id"])[-1]) for t in self.result["trials"] if t["class"] == OutcomeClass.COMPLETE]


def newest_core(root: int) -> Stat:
    """Return the engine core below *root* that was started last."""
    cores = [stat for stat in descendants(root, snapshot()) if stat.name.startswith("VLLM::EngineCor")]
    return max(cores, key=lambda stat: stat.start)


@pytest.fixture(scope="module")
def run(engine_command: list[str], tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run the study to its end, kill one engine core on the way, and see that nothing stays."""
    folder = tmp_path_factory.mktemp("tune")
    study, out = write_study(folder / "study.yaml", tiny_model), folder / "out"
    command = ["--model", tiny_model, "--engine-command", shlex.join(engine_command), "--out", out]
    with Tuner("tune", study, *command, folder=folder) as tuner:
        tuner.wait_line(f"trial {GOOD_TRIAL}/{TRIALS} · measuring", deadline=DEADLINE)
        trees = [Tree(tuner.pid)]
        killed = newest_core(tuner.pid)
        assert kill_exactly(killed.pid, killed.start, signal.SIGKILL)
        tuner.wait_line(f"trial {TRIALS}/{TRIALS} · measuring", deadline=DEADLINE)
        trees.append(Tree(tuner.pid))
        ended = tuner.end(60.0)
    for tree in trees:
        tree.wait_gone()  # the engine's processes by their handles: some of them rewrite what names them
    return Run(ended=ended, folder=folder, out=out, killed=killed)


def test_the_study_ends_and_leaves_nothing(run: Run) -> None:
    assert run.ended.code == 0, run.ended.said
    no_traceback(run.ended)
    accounted(run.out)
    nothing_left(run.folder)


def test_the_engine_and_its_figures_are_real(run: Run, engine_command: list[str]) -> None:
    result = run.result
    version = inspect_install(str(Path(engine_command[0]).parent / "python")).version
    assert version
    assert result["engine"]["kind"] == "vllm"
    assert result["engine"]["version"].split("+")[0] == version.split("+")[0]
    assert not result["simulated"]
    assert result["complete"]
    assert result["launches"] >= 2
    assert result["noise_floor"] is not None
    baseline = result["baseline"]["throughput"]
    assert math.isfinite(baseline)
    assert baseline > 0
    repeats = [trial for trial, _ in run.measured() if trial["kind"] == "baseline"]
    assert len(repeats) == 2
    assert all(trial["measurement"]["ok"] >= 20 for trial in repeats)
    assert {trial["launch_id"] for trial in repeats} == {repeats[0]["launch_id"]}


def test_the_trial_whose_engine_core_was_killed_is_tried_again(run: Run) -> None:
    first, *_, last = run.outcomes(GOOD_TRIAL)
    assert first.outcome is OutcomeClass.CRASHED
    assert "killed" in first.message
    assert last.outcome is OutcomeClass.COMPLETE
    assert first.launch is not None
    assert last.launch is not None
    assert first.launch.launch_id != last.launch.launch_id
    assert f"pid={run.killed.pid}" in Path(first.launch.log_path).read_text(encoding="utf-8")
    assert run.trial(GOOD_TRIAL)["attempts"] == len(run.outcomes(GOOD_TRIAL)) >= 2
    told = autotuner("story", run.out, GOOD_TRIAL, folder=run.folder)
    assert "attempt 1: crashed" in told.out, told.said


def test_a_cache_that_holds_no_request_is_out_of_memory_at_the_start(run: Run) -> None:
    trial, outcomes = run.trial(HOPELESS_TRIAL), run.outcomes(HOPELESS_TRIAL)
    assert {"block_size": trial["config"]["block_size"], "class": trial["class"]} == {
        "block_size": LARGE_BLOCK,
        "class": OutcomeClass.OOM_AT_START,
    }
    assert trial["throughput"] is None
    assert "lower max_model_len to" in trial["message"]
    assert 0 < outcomes[0].hint["max_model_len"] < LENGTH
    assert len(outcomes) == 1  # the launch was no larger than the point


def test_hot_points_share_a_launch_and_each_has_its_own_limits(run: Run) -> None:
    good, hot = run.outcomes(GOOD_TRIAL)[-1].launch, run.outcomes(HOT_TRIAL)[-1].launch
    assert good is not None
    assert hot is not None
    assert (hot.launch_id, hot.reused) == (good.launch_id, True)
    differing = {name for name, value in good.effective.items() if hot.effective[name] != value}
    assert differing == {"max_num_seqs"}


def test_every_point_ran_with_the_limits_that_it_names(run: Run) -> None:
    for trial, outcome in run.measured():
        assert outcome.launch is not None
        asked = {name: str(trial["config"][name]) for name in ("max_num_seqs", "block_size", "max_model_len")}
        assert asked == {name: outcome.launch.effective[name] for name in asked}
        assert asked.keys().isdisjoint(outcome.launch.no_ops)
        seen = trial["measurement"]["engine"]
        limit = trial["config"]["max_num_seqs"]
        # As the scheduler itself counts: about as many as are admitted, never more, and the other clients wait.
        assert limit / 2 < seen["requests_running_max"] <= limit
        assert seen["requests_waiting_max"] > 0 or limit == CLIENTS


def test_the_tokens_that_we_count_are_those_that_the_server_counts(run: Run) -> None:
    assert len(run.measured()) == TRIALS - 1
    for trial, _ in run.measured():
        records = Records.read(run.out / trial["measurement"]["records"])
        counted = float(token_weights(records).sum())
        served = trial["measurement"]["engine"]["generation_tokens"]
        # An answer that is cut off loses what the engine made while the connection closed: a few steps, more of them
        # on a busy host; never more than one answer per client.
        assert served * 0.85 < counted <= served * 1.001
        assert trial["throughput"] == pytest.approx(throughput(evaluate(records)))
        span = trial["measurement"]["end_time"] - trial["measurement"]["warmup_end"]
        assert 2.99 < span < 6.5
        assert trial["throughput"] * span <= served


def test_the_verdict_rests_on_a_race_and_the_winner_can_be_started(
    run: Run, engine_command: list[str], tiny_model: Path
) -> None:
    result = run.result
    race = [trial for trial in result["trials"] if trial["kind"] == "race"]
    base = [t["throughput"] for t in race if t["config"]["max_num_seqs"] == BASELINE["max_num_seqs"]]
    best = [t["throughput"] for t in race if t["config"]["max_num_seqs"] == CLIENTS]
    assert (len(base), len(best)) == (2, 2)
    assert fmean(best) > 1.2 * fmean(base)
    verdict = result["verdict"]
    assert verdict["kind"] in set(VerdictKind)
    assert verdict["pairs"] == 2
    assert verdict["gain"] > 0.2
    assert verdict["gain_low"] <= verdict["gain"] <= verdict["gain_high"]
    better = verdict["kind"] == VerdictKind.BETTER
    winner = result["winner"]
    assert winner["config"]["max_num_seqs"] == (CLIENTS if better else BASELINE["max_num_seqs"])
    exported = autotuner("export", run.out, "--format", "argv", folder=run.folder)
    assert all(word in exported.out for word in winner["argv"])
    assert Path(winner["argv"][0]).name == "vllm"
    (args,) = parse(engine_command, [winner["argv"][1:]], run.folder)
    assert args["model_tag"] == str(tiny_model)
    assert {name: args[name] for name in winner["config"]} == winner["config"]


def spy(folder: Path, command: Sequence[str]) -> tuple[str, Path]:
    """Return an engine command that notes that it was started, and the note."""
    note, script = folder / "started", folder / "engine"
    script.write_text(f'#!/bin/sh\necho "$@" >> "{note}"\nexec "{command[0]}" "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return shlex.join([str(script), *command[1:]]), note


def test_unknown_flags_are_refused_with_the_nearest_names_before_any_start(
    engine_command: list[str], tiny_model: Path, tmp_path: Path
) -> None:
    path = write_study(tmp_path / "study.yaml", tiny_model, {"python": str(Path(engine_command[0]).parent / "python")})
    study = yaml.safe_load(path.read_text(encoding="utf-8"))
    study["engine"]["args"]["max_num_batched_tokenz"] = 64
    study["search"]["space"]["blok_size"] = [32]
    path.write_text(yaml.safe_dump(study), encoding="utf-8")
    command, note = spy(tmp_path, engine_command)
    ended = autotuner("validate", path, "--model", tiny_model, "--engine-command", command, folder=tmp_path)
    assert ended.code == 2, ended.said
    for wrong, nearest in (("max_num_batched_tokenz", "max_num_batched_tokens"), ("blok_size", "block_size")):
        told = [line for line in ended.err.splitlines() if wrong in line]
        assert told, ended.said
        assert any(nearest in line.replace(wrong, "") for line in told), ended.said
    assert not note.exists()
    assert not (tmp_path / "out").exists()
