"""Study results as a real study leaves them, for tests of the reports.  Everything is fixed: no chance, no clock."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from autotuner.core.budget import LatencyBudget, LatencyMetric, Limit
from autotuner.core.results import StudyResult, Summary, TrialRecord, Verdict, VerdictKind
from autotuner.core.space import (
    Condition,
    Config,
    CrossRule,
    EngineDescription,
    EngineFlag,
    Lever,
    Parameter,
    ParameterKind,
    Space,
)
from autotuner.core.study import Effort, Hardware, SearchPlan, StudySpec
from autotuner.core.trial import Interval, Launch, LoadCheck, Measurement, Outcome, OutcomeClass, TrialKind
from autotuner.core.workload import LengthKind, Lengths, LoadMode, Workload

__all__ = ["STUDY_ID", "infeasible_result", "simulated_result", "study_result", "study_spec", "unmeasured_result"]

STUDY_ID = "chat-2026-12"
_FIXED: Config = {"max_model_len": 2048, "seed": 0}
_WINNER: Config = {
    "max_num_seqs": 96,
    "max_num_batched_tokens": 4096,
    "enable_prefix_caching": False,
    "gpu_memory_utilization": 0.9,
    "speculative_config.method": "ngram",
    "speculative_config.num_speculative_tokens": 3,
}


def study_spec(kind: str = "vllm") -> StudySpec:
    """Return a study with cold, hot and conditional parameters and two limits."""
    int_, choice, float_ = ParameterKind.INT, ParameterKind.CHOICE, ParameterKind.FLOAT
    method = "speculative_config.method"
    return StudySpec(
        name="chat on an 8B model",
        model="meta-llama/Llama-3.1-8B-Instruct",
        engine=EngineDescription(
            kind=kind,
            version="0.32.0",
            platform="cuda",
            flags=(
                EngineFlag(name="max_num_seqs", kind="int"),
                EngineFlag(name="max_num_batched_tokens", kind="int"),
                EngineFlag(name="enable_prefix_caching", kind="bool", negatable=True),
                EngineFlag(name="disable_log_stats", kind="bool"),
                EngineFlag(name="speculative_config", kind="json"),
            ),
            context_defaults={"max_num_seqs": 256, "max_num_batched_tokens": 2048},
        ),
        hardware=Hardware(device="cuda", name="NVIDIA A100-SXM4-40GB", compute_units=108, memory_bytes=42_949_672_960),
        workload=Workload(
            mode=LoadMode.CLOSED,
            concurrency=96,
            input_tokens=Lengths(kind=LengthKind.LOGNORMAL, mean=512, spread=256, high=1500),
            output_tokens=Lengths(mean=160),
        ),
        budget=LatencyBudget(
            parts={"network": 0.08, "preprocessing": 0.07, "inference": 0.35},
            limits=(
                Limit(metric=LatencyMetric.TTFT, percentile=95.0, seconds=0.35),
                Limit(metric=LatencyMetric.ITL, percentile=95.0, seconds=0.06),
            ),
        ),
        effort=Effort(trials=14, wall_seconds=3600),
        search=SearchPlan(seed=11),
        space=Space(
            parameters=(
                Parameter(name="max_num_seqs", kind=int_, low=8, high=256, log=True, lever=Lever.HOT),
                Parameter(name="max_num_batched_tokens", kind=int_, low=512, high=8192, step=512, lever=Lever.HOT),
                Parameter(name="enable_prefix_caching", kind=choice, choices=(True, False)),
                Parameter(name="gpu_memory_utilization", kind=float_, low=0.7, high=0.95, step=0.05),
                Parameter(name=method, kind=choice, choices=("none", "ngram"), neutral="none"),
                Parameter(
                    name="speculative_config.num_speculative_tokens",
                    kind=int_,
                    low=1,
                    high=6,
                    neutral=1,
                    condition=Condition(parameter=method, values=("ngram",)),
                ),
            ),
            fixed=_FIXED,
            rules=(
                CrossRule(
                    left="max_num_batched_tokens", relation=">=", right="max_num_seqs", reason="tokens below sequences"
                ),
            ),
        ),
        seeds=({"max_num_seqs": 162},),
    )


def _interval(value: float, share: float = 0.06) -> Interval:
    return Interval(value=value, low=value * (1 - share), high=value * (1 + share))


def _latency(ttft: float, itl: float) -> dict[str, Interval]:
    e2e = ttft + 159 * itl
    shape = {"p50": 0.55, "p75": 0.7, "p90": 0.9, "p95": 1.0, "p99": 1.35, "p99_9": 1.8}
    figures = {"ttft": ttft, "itl": itl, "tpot": itl * 0.96, "e2e": e2e}
    return {f"{m}_{p}": _interval(v * s) for m, v in figures.items() for p, s in shape.items()}


def _measurement(throughput: float, ttft: float, itl: float, trial_id: int, *, steady: bool = True) -> Measurement:
    warm = 6
    windows = tuple(
        throughput * (min(1.0, 0.25 + 0.16 * i) + 0.03 * math.sin(i * 1.7 + trial_id)) for i in range(warm + 20)
    )
    warmup_tokens = sum(windows[:warm])
    return Measurement(
        total_tokens=warmup_tokens + throughput * 20,
        warmup_tokens=warmup_tokens,
        warmup_end=float(warm),
        end_time=float(warm + 20),
        prompt_tokens=throughput * 64,
        steady=steady,
        requests=250,
        ok=250,
        errors=0,
        aborted=0,
        empty=0,
        good=241,
        latency=_latency(ttft, itl),
        latency_scheduled={"ttft_p95": ttft * 1.02},
        windows=windows,
        check=LoadCheck(late_p99=0.001, cpu_share=0.22, longest_stall=0.004),
        engine={"preemptions": 0.0, "kv_cache_usage_max": 0.71},
        host={"engine_rss_bytes": 3.1e9},
        records=f"records/{trial_id}.npz",
    )


def _trial(
    trial_id: int,
    config: Config,
    launch: int,
    figures: tuple[float, float, float] | None,
    *,
    source: str = "tpe",
    kind: TrialKind = TrialKind.EXPLORE,
    failure: OutcomeClass = OutcomeClass.COMPLETE,
    message: str = "",
) -> TrialRecord:
    measurement = _measurement(*figures, trial_id) if figures else None
    amounts: Mapping[str, float] = {}
    if figures:
        amounts = {"ttft_p95": figures[1] / 0.35 - 1, "itl_p95": figures[2] / 0.06 - 1, "error_ratio": -1.0}
    return TrialRecord(
        trial_id=trial_id,
        kind=kind,
        state="measured" if figures else "failed",
        source=source,
        config={**_FIXED, **config},
        attempts=1,
        outcome=Outcome(
            study_id=STUDY_ID,
            trial_id=trial_id,
            attempt=1,
            epoch=1,
            outcome=failure,
            message=message,
            evidence=("exit status 1", "torch.OutOfMemoryError") if message else (),
            launch=Launch(
                launch_id=f"launch-{launch}",
                reused=figures is not None and trial_id % 3 == 0,
                argv=("vllm", "serve"),
                env={"OMP_NUM_THREADS": "8", "VLLM_CACHE_ROOT": "/var/cache/vllm"},
                phases={"process": 8.0, "weights": 12.5, "capture": 9.0},
                ready_seconds=31.5 if figures else None,
                engine_version="0.32.0",
            ),
            measurement=measurement,
            engine_seconds=58.0,
        ),
        value=figures[0] if figures else None,
        feasible=all(amount <= 0 for amount in amounts.values()) if figures else None,
        constraints=tuple(amounts.items()),
        launch=launch,
    )


def _trials() -> tuple[TrialRecord, ...]:
    seqs, tokens, prefix, memory = (
        "max_num_seqs",
        "max_num_batched_tokens",
        "enable_prefix_caching",
        "gpu_memory_utilization",
    )
    method, guesses = "speculative_config.method", "speculative_config.num_speculative_tokens"
    base = TrialKind.BASELINE
    race = TrialKind.RACE
    refused = replace(
        _trial(9, {seqs: 256, tokens: 8192, memory: 0.95}, 0, None),
        outcome=None,
        launch=None,
        state="refused",
        refused="out-of-memory risk 0.41 exceeds 0.05",
        constraints=(("oom_risk", 0.36),),
    )
    return (
        _trial(1, {}, 1, (1784.0, 0.262, 0.041), source="baseline", kind=base),
        _trial(2, {}, 1, (1812.0, 0.258, 0.0405), source="baseline", kind=base),
        _trial(3, {seqs: 162}, 2, (1955.0, 0.311, 0.0512), source="seed:1"),
        _trial(4, {seqs: 64, tokens: 2048}, 2, (1690.0, 0.215, 0.036)),
        _trial(
            5,
            {seqs: 220, tokens: 8192, memory: 0.95},
            3,
            None,
            failure=OutcomeClass.OOM_UNDER_LOAD,
            message="CUDA out of memory under load",
        ),
        _trial(6, {seqs: 128, tokens: 6144, prefix: False}, 4, (2240.0, 0.402, 0.058)),
        _trial(7, {seqs: 96, tokens: 4096, prefix: False, memory: 0.9}, 5, (2065.0, 0.33, 0.052)),
        _trial(8, _WINNER, 6, (2168.0, 0.318, 0.0488)),
        refused,
        _trial(10, {**_WINNER, seqs: 128}, 6, (2291.0, 0.377, 0.0561)),
        _trial(11, {**_WINNER, guesses: 6, method: "ngram"}, 7, (2010.0, 0.322, 0.0522)),
        _trial(12, {seqs: 80, tokens: 3072}, 8, None, failure=OutcomeClass.VOID, message="late sends"),
        _trial(13, {}, 9, (1801.0, 0.266, 0.0412), source="race", kind=race),
        _trial(14, _WINNER, 10, (2142.0, 0.324, 0.0493), source="race", kind=race),
        _trial(15, {}, 11, (1779.0, 0.271, 0.0416), source="race", kind=race),
        _trial(16, _WINNER, 12, (2155.0, 0.321, 0.0491), source="race", kind=race),
    )


def study_result(kind: str = "vllm") -> StudyResult:
    """Return a finished study whose winner is better than the baseline."""
    trials = _trials()
    return StudyResult(
        study_id=STUDY_ID,
        spec=study_spec(kind),
        trials=trials,
        baseline=Summary(
            config=trials[0].config,
            throughput=Interval(value=1790.0, low=1762.0, high=1818.0),
            latency=_latency(0.2685, 0.0414),
            trial_ids=(13, 15),
        ),
        winner=Summary(
            config=trials[7].config,
            throughput=Interval(value=2148.5, low=2119.0, high=2178.0),
            latency=_latency(0.3225, 0.0492),
            trial_ids=(14, 16),
        ),
        verdict=Verdict(
            kind=VerdictKind.BETTER,
            gain=0.2003,
            gain_low=0.171,
            gain_high=0.229,
            confidence=0.95,
            binding=("ttft_p95",),
            reason="the gain exceeds the noise floor and its 95% interval excludes zero",
            pairs=5,
        ),
        noise_floor=0.014,
        launches=12,
        points=13,
        wall_seconds=1543.0,
        engine_seconds=1180.0,
        started_utc=1_796_000_000.0,
        ended_utc=1_796_001_543.0,
        complete=True,
        notes=("the engine accepted swap_space and ignored it",),
    )


def simulated_result() -> StudyResult:
    """Return the same study on the simulated engine."""
    return study_result("simulated")


def infeasible_result() -> StudyResult:
    """Return a stopped study in which no point keeps the budget."""
    result = study_result()
    assert result.winner is not None
    return replace(
        result,
        verdict=Verdict(
            kind=VerdictKind.INFEASIBLE,
            gain=None,
            gain_low=None,
            gain_high=None,
            confidence=0.95,
            binding=("ttft_p95",),
            reason="no measured point keeps the latency budget; the closest exceeds ttft_p95 by 8%",
        ),
        trials=tuple(replace(t, feasible=False) if t.feasible else t for t in result.trials),
        winner=replace(result.winner, latency=_latency(0.378, 0.05)),
        noise_floor=None,
        complete=False,
        stopped="wall_time",
    )


def unmeasured_result() -> StudyResult:
    """Return a study in which nothing could be measured; its odd figures must not reach any file as numbers."""
    result = study_result()
    failed = tuple(t for t in result.trials if t.value is None)
    return replace(
        result,
        trials=(*failed, replace(failed[0], trial_id=99, outcome=None, launch=None, state="proposed")),
        baseline=None,
        winner=None,
        verdict=replace(
            infeasible_result().verdict,
            binding=(),
            reason="nothing could be measured",
            gain=math.nan,
            gain_low=-math.inf,
        ),
        points=0,
        noise_floor=math.nan,
        notes=(),
    )
