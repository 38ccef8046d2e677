"""One trial: what a worker is asked to measure, and what it answers.

A trial is one measured point: a configuration, the launch of the engine that it ran in and one segment of load.
Times are seconds; points in time of a segment are relative to its first send.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from autotuner.core.budget import Limit
from autotuner.core.space import Config
from autotuner.core.study import MeasurePlan
from autotuner.core.workload import Workload

__all__ = [
    "Assignment",
    "Interval",
    "Launch",
    "LoadCheck",
    "Measurement",
    "Outcome",
    "OutcomeClass",
    "TrialKind",
]


class TrialKind(StrEnum):
    """Why a trial is run."""

    BASELINE = "baseline"
    """The configuration in production, measured against itself for the noise floor."""
    EXPLORE = "explore"
    """A point proposed by a seed or the sampler."""
    RACE = "race"
    """A fresh measurement of the baseline or a finalist, interleaved, for the verdict."""


class OutcomeClass(StrEnum):
    """What became of an attempt. ``policy.TREATMENT`` says what each means for the study."""

    COMPLETE = "complete"
    INFEASIBLE_CONFIG = "infeasible_config"
    """The engine refuses the configuration."""
    OOM_AT_START = "oom_at_start"
    """Memory does not suffice to start (KV cache included)."""
    OOM_UNDER_LOAD = "oom_under_load"
    CRASHED = "crashed"
    """The engine ended by itself under load or at start, not for memory."""
    HUNG = "hung"
    """The engine stopped answering."""
    TIMED_OUT = "timed_out"
    """The engine did not become ready in time."""
    GARBAGE = "garbage"
    """The engine answers, but not with what was asked for."""
    VOID = "void"
    """The load generator could not keep its own schedule: nothing is known about the configuration."""
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    """The worker was drained or lost before the trial ended."""
    INFRASTRUCTURE = "infrastructure"
    """The worker's host failed: disk, port, memory of another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One attempt at one trial, leased to one worker."""

    study_id: str
    trial_id: int
    attempt: int
    epoch: int
    """Fencing epoch; results of an older one are refused."""
    lease_seconds: float
    """Time from the last contact after which the worker must have fenced itself."""
    kind: TrialKind
    model: str
    config: Config
    """Full flags of this point, fixed ones included."""
    launch_config: Config
    """Flags to start the engine with.  Equal to ``config`` but for hot parameters, which may be higher."""
    hot: Config
    """Hot parameters to set in the running engine: name → value; empty in a cold launch."""
    workload: Workload
    measure: MeasurePlan
    seed: int
    limits: tuple[Limit, ...] = ()
    """The budget's limits, for counting the requests that keep them (goodput)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate with its confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The engine start that a trial ran in."""

    launch_id: str
    reused: bool = False
    """The engine was already running for an earlier trial."""
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """The variables that the plan set, secrets excluded."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Start-up phase → seconds, in order."""
    ready_seconds: float | None = None
    """From exec to the first real answer; ``None`` when it never came."""
    engine_version: str = ""
    effective: Mapping[str, str] = field(default_factory=dict)
    """Values that the running engine reports for the flags asked for."""
    no_ops: tuple[str, ...] = ()
    """Flags asked for whose effective value differs: the platform ignored them."""
    log_path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCheck:
    """The load generator's judgement of itself."""

    late_p99: float = 0.0
    """99th percentile of actual minus scheduled send time."""
    cpu_share: float = 0.0
    """Busiest generator process: CPU seconds per second."""
    longest_stall: float = 0.0
    """Longest gap between two beats of its event loop."""
    processes: int = 1
    void_reasons: tuple[str, ...] = ()
    """Empty when the segment may be trusted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One measured segment (R23)."""

    total_tokens: float
    """Tokens generated from the first send to ``end_time``."""
    warmup_tokens: float
    """Those of them until ``warmup_end``."""
    warmup_end: float
    end_time: float
    prompt_tokens: float
    """Prompt tokens of the requests that got their first token in the measured part."""
    steady: bool
    """The warm-up ended because throughput was steady."""
    requests: int
    """Requests sent in the measured part; all of them were awaited."""
    ok: int
    errors: int
    aborted: int
    empty: int
    good: int | None = None
    """Requests that kept every limit themselves; ``None`` without limits."""
    latency: Mapping[str, Interval] = field(default_factory=dict)
    """``ttft_p50`` … ``e2e_p99_9`` in seconds, from the time of sending, with 95 % intervals."""
    latency_scheduled: Mapping[str, float] = field(default_factory=dict)
    """TTFT and E2E percentiles from the *scheduled* time: queueing in the client included."""
    windows: tuple[float, ...] = ()
    """Generated tokens per second of each window, warm-up included."""
    check: LoadCheck = LoadCheck()
    engine: Mapping[str, float] = field(default_factory=dict)
    """Figures from the engine's own metrics over the segment: ``preemptions``, ``kv_cache_usage_max``,
    ``queue_seconds_mean``, ``prefix_cache_hit_ratio``, ``spec_acceptance_ratio`` …"""
    host: Mapping[str, float] = field(default_factory=dict)
    """``engine_cpu_seconds``, ``engine_rss_bytes``, ``host_cpu_share``, and NVML's figures where there is a GPU."""
    records: str = ""
    """Path of the raw per-request records, relative to the output directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The answer to an assignment."""

    study_id: str
    trial_id: int
    attempt: int
    epoch: int
    outcome: OutcomeClass
    message: str = ""
    """One sentence for a person; empty for COMPLETE."""
    evidence: tuple[str, ...] = ()
    """What the class was decided by: exit status, counters, log lines."""
    hint: Mapping[str, float] = field(default_factory=dict)
    """What the engine's own message suggests, such as ``max_model_len`` → 384."""
    launch: Launch | None = None
    measurement: Measurement | None = None
    """Present exactly when ``outcome`` is COMPLETE."""
    engine_seconds: float = 0.0
    """Time that this attempt held the engine, its start included."""
