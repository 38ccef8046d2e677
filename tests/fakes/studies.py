"""Small studies and outcomes for tests: a space with one cold and two hot parameters and a known surface."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autotuner.core.budget import LatencyBudget, LatencyMetric, Limit
from autotuner.core.space import (
    CrossRule,
    EngineDescription,
    EngineFlag,
    Lever,
    Parameter,
    ParameterKind,
    Space,
    Value,
)
from autotuner.core.study import Effort, SearchPlan, StudySpec
from autotuner.core.trial import Assignment, Interval, Launch, Measurement, Outcome, OutcomeClass

__all__ = ["complete", "failed", "measurement", "spec", "surface"]

Surface = Callable[[Mapping[str, Value]], tuple[float, float]]
"""Configuration → (tokens per second, seconds of ttft_p95)."""

DESCRIPTION = EngineDescription(
    kind="simulated",
    version="1",
    platform="simulated",
    flags=(
        EngineFlag(name="max_num_seqs", kind="int"),
        EngineFlag(name="max_num_batched_tokens", kind="int"),
        EngineFlag(name="block_size", kind="int", default=32),
    ),
    context_defaults={"max_num_seqs": 128, "max_num_batched_tokens": 2048},
)

SPACE = Space(
    parameters=(
        Parameter(name="block_size", kind=ParameterKind.CHOICE, choices=(16, 32, 64)),
        Parameter(name="max_num_seqs", kind=ParameterKind.INT, low=1, high=128, log=True, lever=Lever.HOT),
        Parameter(name="max_num_batched_tokens", kind=ParameterKind.INT, low=64, high=4096, log=True, lever=Lever.HOT),
    ),
    fixed={"max_model_len": 1024},
    rules=(
        CrossRule(
            left="max_num_batched_tokens",
            relation=">=",
            right="max_num_seqs",
            reason="max_num_batched_tokens must be at least max_num_seqs",
        ),
    ),
)


def spec(
    *,
    trials: int = 12,
    limit: float | None = 1.0,
    wall_seconds: float | None = None,
    search: SearchPlan | None = None,
    space: Space = SPACE,
) -> StudySpec:
    """Return a small study; *limit* bounds ttft_p95 in seconds."""
    limits = () if limit is None else (Limit(metric=LatencyMetric.TTFT, percentile=95, seconds=limit),)
    return StudySpec(
        name="small",
        model="model",
        engine=DESCRIPTION,
        space=space,
        budget=LatencyBudget(limits=limits),
        effort=Effort(trials=trials, wall_seconds=wall_seconds),
        search=search or SearchPlan(race_pairs=4, finalists=1),
    )


def surface(config: Mapping[str, Value]) -> tuple[float, float]:
    """Return a smooth surface with its optimum inside: more sequences are faster, and later to answer."""
    seqs = float(config.get("max_num_seqs", 128))
    tokens = float(config.get("max_num_batched_tokens", 2048))
    speed = 1000.0 * seqs / (seqs + 16.0) * (1.0 - abs(tokens - 1024.0) / 8192.0)
    return speed, 0.01 * seqs


def measurement(throughput: float, ttft: float = 0.1, requests: int = 100) -> Measurement:
    """Return a measurement of ten seconds with this throughput (tokens per second) and TTFT (seconds)."""
    return Measurement(
        total_tokens=throughput * 10 + 50,
        warmup_tokens=50,
        warmup_end=2.0,
        end_time=12.0,
        prompt_tokens=1000,
        steady=True,
        requests=requests,
        ok=requests,
        errors=0,
        aborted=0,
        empty=0,
        latency={
            key: Interval(value=ttft, low=ttft * 0.9, high=ttft * 1.1)
            for key in ("ttft_p50", "ttft_p95", "itl_p95", "e2e_p95")
        },
    )


def complete(given: Assignment, throughput: float, ttft: float = 0.1, launch_id: str = "L1") -> Outcome:
    """Return the outcome of an assignment that was measured."""
    return Outcome(
        study_id=given.study_id,
        trial_id=given.trial_id,
        attempt=given.attempt,
        epoch=given.epoch,
        outcome=OutcomeClass.COMPLETE,
        launch=Launch(launch_id=launch_id, ready_seconds=20.0),
        measurement=measurement(throughput, ttft),
        engine_seconds=30.0,
    )


def failed(given: Assignment, kind: OutcomeClass, message: str = "it failed") -> Outcome:
    """Return the outcome of an assignment that failed as *kind*."""
    return Outcome(
        study_id=given.study_id,
        trial_id=given.trial_id,
        attempt=given.attempt,
        epoch=given.epoch,
        outcome=kind,
        message=message,
        evidence=("planted",),
        launch=Launch(launch_id=f"F{given.trial_id}"),
        engine_seconds=5.0,
    )
