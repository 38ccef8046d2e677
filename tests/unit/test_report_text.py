"""The terminal summary and the progress line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotuner.core.results import VerdictKind
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
    assert "TTFT p95 ≤ 350 ms: kept" in text
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
    assert "TTFT p95 ≤ 350 ms: broken" in text
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
