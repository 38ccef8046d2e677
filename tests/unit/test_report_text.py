"""The terminal summary and the progress line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotuner.core.results import StudyResult, VerdictKind
from autotuner.report.figures import best_so_far, duration, headline, limit_checks, number, percent
from autotuner.report.progress import ProgressView, format_progress
from autotuner.report.summary import render_summary
from tests.fakes.results import infeasible_result, simulated_result, study_result, unmeasured_result


def test_the_answer_comes_first_and_the_command_is_whole() -> None:
    text = render_summary(study_result(), files={"report": "out/report.html"})
    assert text.splitlines()[0] == (
        "Change to the winner: +20.0 % (95% interval +17.1 % to +22.9 %) output throughput."
    )
    assert "  OMP_NUM_THREADS=8 vllm serve meta-llama/Llama-3.1-8B-Instruct \\\n    --no-enable-prefix-caching" in text
    assert "≤ 350 ms  kept" in text
    assert "Noise floor (baseline against itself): ±1.4 %." in text
    assert "Note: the engine accepted swap_space and ignored it" in text
    assert "  report: out/report.html" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_lines_keep_the_width(width: int) -> None:
    text = render_summary(study_result(), width=width)
    command = {line for line in text.splitlines() if line.startswith(("  OMP", "    --"))}
    longest = max(len(line) for line in text.splitlines() if line not in command)
    assert longest <= max(width, 100)


@pytest.mark.parametrize("result", [study_result(), infeasible_result(), unmeasured_result()])
def test_nothing_is_cut_at_80_columns(result: StudyResult) -> None:
    text = render_summary(result, width=80)
    assert "…" not in text
    tables = text[max(text.find("\nBaseline and"), text.find("\nTrials")) :]
    assert max(map(len, tables.splitlines())) <= 80


def test_trials_show_the_latencies_that_are_limited() -> None:
    result = study_result()
    trials = render_summary(result, width=80).split("\nTrials\n")[1]
    assert "E2E" not in trials
    assert trials.split("\n")[0].split() == ["id", "launch", "parameters", "outcome", "tok/s", "TTFT", "ITL"]
    assert "\n              prefix=off gpu_mem=0.9\n              spec=ngram spec_tokens=3\n" in trials
    spec = replace(result.spec, budget=replace(result.spec.budget, limits=()))
    free = render_summary(replace(result, spec=spec), width=80).split("\nTrials\n")[1]
    assert "TTFT" in free
    assert "ITL" not in free


def test_the_interval_gets_its_own_line_where_width_lacks() -> None:
    text = render_summary(study_result(), width=60)
    assert "  output tok/s            1,790           2,148\n" in text
    assert "[1,762, 1,818]  [2,119, 2,178]" in text


def test_nothing_measured_says_why() -> None:
    result = unmeasured_result()
    verdict = replace(result.verdict, reason="nothing could be measured: the disk is full")
    stopped = replace(result, verdict=verdict)
    assert headline(stopped) == "Nothing could be measured: the disk is full."
    assert render_summary(stopped).count("the disk is full") == 1
    assert headline(replace(result, verdict=replace(verdict, reason=""), trials=())) == "Nothing could be measured."


def test_an_undecided_candidate_is_no_winner() -> None:
    result = study_result()
    undecided = replace(result, verdict=replace(result.verdict, kind=VerdictKind.INCONCLUSIVE))
    text = render_summary(undecided)
    assert "Baseline and candidate (unproven)" in text
    assert "winner" not in text
    assert "\n  OMP_NUM_THREADS" not in text
    assert "UNPROVEN| OMP_NUM_THREADS=8 vllm serve" in text
    kept = render_summary(replace(undecided, winner=result.baseline))
    assert "winner" not in kept
    assert "Keep running" in kept
    assert "UNPROVEN" not in kept


def test_colour_only_when_asked_for() -> None:
    assert "\x1b[32m" in render_summary(study_result(), colour=True)


def test_simulated_results_say_so_and_give_no_usable_command() -> None:
    text = render_summary(simulated_result())
    assert "SIMULATED: these figures come from a simulated engine" in text.splitlines()[1]
    assert "SIMULATED| OMP_NUM_THREADS=8 vllm serve" in text
    assert "\n  vllm serve" not in text


def test_infeasible_partial_and_unmeasured() -> None:
    text = render_summary(infeasible_result())
    assert text.startswith("Nothing measured keeps the latency budget: TTFT p95 binds.")
    assert "Partial result: the study was stopped (wall_time)." in text
    assert "Baseline and closest" in text
    assert "≤ 350 ms  broken" in text
    nothing = render_summary(unmeasured_result())
    assert "nan" not in nothing
    assert "vllm serve" not in nothing
    assert "oom under load" in nothing
    assert "refused" in nothing


def test_headlines() -> None:
    result = study_result()
    for kind, start in (
        (VerdictKind.NO_DIFFERENCE, "Keep what you have"),
        (VerdictKind.INCONCLUSIVE, "Not decided"),
    ):
        verdict = replace(result.verdict, kind=kind)
        assert headline(replace(result, verdict=verdict)).startswith(start)
        assert "Best finalist: +20.0 %" in render_summary(replace(result, verdict=verdict))
    verdict = replace(result.verdict, gain=None, gain_low=None, gain_high=None)
    assert headline(replace(result, verdict=verdict)) == "Change to the winner."


def test_best_so_far_counts_only_what_keeps_the_budget() -> None:
    assert best_so_far(study_result().trials)[:10] == (
        1784.0, 1812.0, 1955.0, 1955.0, 1955.0, 1955.0, 2065.0, 2168.0, 2168.0, 2168.0,
    )  # fmt: skip


def test_a_limit_that_was_not_measured_is_broken() -> None:
    result = study_result()
    assert result.winner is not None
    checks = limit_checks(replace(result.winner, latency={}), result.spec.budget.limits)
    assert [check.kept for check in checks] == [False, False]


def test_numbers_as_text() -> None:
    assert [number(x) for x in (None, float("nan"), 0.01234, 3.14159, 123.45, 12345.6)] == [
        "–",
        "–",
        "0.0123",
        "3.14",
        "123.5",
        "12,346",
    ]
    assert [duration(x) for x in (5, 65, 3661, None)] == ["5 s", "1 min 05 s", "1 h 01 min", "–"]
    assert (percent(0.123, signed=True), percent(None)) == ("+12.3 %", "–")


def test_progress_line() -> None:
    view = ProgressView(
        trial=5,
        trials=14,
        phase="measuring",
        detail="6 of 10 s",
        best=2168.0,
        baseline=1790.0,
        elapsed=312.0,
        left=500.0,
    )
    line = format_progress(view)
    assert line == (
        "[5 min 12 s] trial 5/14 · measuring (6 of 10 s) · best 2,168 tok/s (+21.1 %) · about 8 min 20 s left"
    )
    assert len(format_progress(view, width=40)) == 40
    early = ProgressView(trial=1, trials=0, phase="starting", simulated=True)
    assert format_progress(early) == "SIMULATED [0 s] trial 1 · starting"
    assert "nothing feasible yet" in format_progress(replace(view, best=None))
