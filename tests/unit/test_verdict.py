"""The verdict against a known truth: how often it is wrong, and what it may never say."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from autotuner.core.results import StudyResult, VerdictKind
from autotuner.core.study import SearchPlan
from autotuner.core.trial import Assignment, Outcome, TrialKind
from tests.fakes import studies
from tests.fakes.world import Answer, World

Truth = Callable[[Assignment], tuple[float, float]]
"""Assignment → true throughput (tokens per second) and TTFT (seconds)."""


def study(answer: Answer, seed: int, *, limit: float | None = None, pairs: int = 4, finalists: int = 2) -> StudyResult:
    """Run one small study."""
    world = World(answer=answer, seed=seed)
    plan = SearchPlan(race_pairs=pairs, finalists=finalists)
    world.submit(studies.spec(trials=6, limit=limit, search=plan))
    world.worker()
    world.run()
    return world.results["s"]


def noisy(truth: Truth, seed: int, noise: float = 0.05, drift: float = 0.0) -> Answer:
    """Return answers around the truth with log-normal noise, and a host that gets slower by *drift* per trial."""
    rng = random.Random(seed)

    def answer(given: Assignment) -> Outcome:
        speed, ttft = truth(given)
        speed *= math.exp(rng.gauss(0, noise) - drift * given.trial_id)
        return studies.complete(given, speed, ttft * math.exp(rng.gauss(0, noise)))

    return answer


def is_base(given: Assignment) -> bool:
    """Return whether the assignment is the baseline's configuration."""
    return given.config == {"max_model_len": 1024}


def test_equal_configurations_are_called_better_in_less_than_one_of_twenty_studies() -> None:
    results = [study(noisy(lambda _: (1000.0, 0.1), seed), seed) for seed in range(120)]
    assert sum(r.verdict.kind is VerdictKind.BETTER for r in results) <= 6


def test_a_clear_gain_is_found_and_its_interval_covers_the_truth() -> None:
    results = [study(noisy(lambda g: (1000.0 if is_base(g) else 1400.0, 0.1), s), s, pairs=5) for s in range(40)]
    better = [r for r in results if r.verdict.kind is VerdictKind.BETTER]
    assert len(better) >= 36
    covered = [r for r in better if (r.verdict.gain_low or 0) <= 0.4 <= (r.verdict.gain_high or 0)]
    assert len(covered) >= 0.85 * len(better)


def test_a_host_that_gets_slower_makes_no_winner() -> None:
    results = [study(noisy(lambda _: (1000.0, 0.1), s, noise=0.02, drift=0.03), s) for s in range(40)]
    assert sum(r.verdict.kind is VerdictKind.BETTER for r in results) <= 4


@pytest.mark.parametrize("seed", range(20))
def test_a_baseline_near_its_limit_is_not_said_to_break_it_without_evidence(seed: int) -> None:
    def truth(given: Assignment) -> tuple[float, float]:
        return (1000.0, 0.096) if is_base(given) else (700.0, 0.05)

    result = study(noisy(truth, seed, noise=0.03), seed, limit=0.1)
    assert result.verdict.kind is not VerdictKind.BETTER
    assert "breaks" not in result.verdict.reason


def test_a_baseline_that_breaks_its_limit_loses_and_the_price_is_said() -> None:
    def truth(given: Assignment) -> tuple[float, float]:
        return (1000.0, 0.2) if is_base(given) else (700.0, 0.05)

    result = study(noisy(truth, 1, noise=0.02), 1, limit=0.1)
    assert result.verdict.kind is VerdictKind.BETTER
    assert "the baseline breaks ttft_p95" in result.verdict.reason
    assert "slower" in result.verdict.reason


def test_a_substitute_is_compared_only_with_the_baseline_of_its_own_heat() -> None:
    raced: list[str] = []

    def answer(given: Assignment) -> Outcome:
        speed = 1000.0 if is_base(given) else 1100.0 - given.trial_id
        first = given.kind is TrialKind.RACE and not is_base(given)
        if first and (key := repr(sorted(given.config.items()))) not in raced:
            raced.append(key)
        breaks = first and repr(sorted(given.config.items())) == raced[0]
        slower = 1.0 if len(raced) < 2 else 0.8  # the host slows down when the second heat begins
        return studies.complete(given, speed * slower, 5.0 if breaks else 0.05)

    result = study(answer, 3, limit=0.1, finalists=1)
    assert len(raced) == 2
    assert result.verdict.gain is not None
    assert abs(result.verdict.gain) < 0.2
    assert result.verdict.pairs >= 3
