"""A study as values: what is tuned, under which budget, and how it is measured.  Built by ``autotuner.settings``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from autotuner.core.budget import LatencyBudget
from autotuner.core.space import Config, EngineDescription, Space
from autotuner.core.workload import Workload

__all__ = ["Effort", "Hardware", "MeasurePlan", "Objective", "SearchPlan", "StudySpec"]


class Objective(StrEnum):
    """What is maximised."""

    OUTPUT_THROUGHPUT = "output_throughput"
    """Generated tokens per second (R23 with generated tokens)."""
    TOTAL_THROUGHPUT = "total_throughput"
    """Prompt and generated tokens per second (R23 with both)."""
    GOODPUT = "goodput"
    """Requests per second that keep every limit of the budget themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The device as far as seeds and gates need it."""

    device: str = "cpu"
    """``cpu`` or ``cuda``."""
    name: str = ""
    count: int = 1
    """GPUs (or 1 for a CPU)."""
    compute_units: int = 0
    """Streaming multiprocessors of one GPU, or cores."""
    memory_bytes: int = 0
    """Memory of one device, or of the host for a CPU."""
    compute_capability: float = 0.0
    nvlink: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurePlan:
    """How one segment is measured; times in seconds."""

    warmup_min: float = 2.0
    """Shortest warm-up before steadiness is looked for."""
    warmup_max: float = 60.0
    """Longest warm-up; a load that is still unsteady is measured and marked so."""
    window: float = 1.0
    """Length of the windows whose throughput is compared."""
    tolerance: float = 0.10
    """Steady when the last windows differ by less than this share from their mean."""
    duration: float = 10.0
    """Length of the measured part."""
    min_requests: int = 20
    """Measured requests below which the part is prolonged, up to ``duration_max``."""
    duration_max: float = 60.0
    start_timeout: float = 600.0
    """From starting the engine to its first real answer."""
    stall_timeout: float = 60.0
    """Without any token under load for this long, the engine counts as hung."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """When a study ends."""

    trials: int = 20
    """Explored points, the baseline's first measurement among them; repeats and races come on top."""
    wall_seconds: float | None = None
    gpu_hours: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPlan:
    """How the points are chosen and the winner is decided."""

    sampler: str = "tpe"
    """``tpe``, ``gp``, ``random`` or ``grid``."""
    seed: int = 0
    hot_points_per_launch: int = 4
    """Points measured inside one launch when the engine can change hot parameters."""
    baseline_repeats: int = 3
    """Measurements of the baseline against itself: the noise floor."""
    finalists: int = 2
    """Configurations that enter the race against the baseline."""
    race_pairs: int = 5
    """Largest number of interleaved pairs per finalist."""
    confidence: float = 0.95
    min_gain: float = 0.01
    """Smallest relative gain worth a change."""
    max_attempts: int = 2
    """Attempts at one trial when the fault was not the configuration's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySpec:
    """One study, complete: enough to run it again."""

    name: str
    model: str
    """Path or hub name, as the engine is given it."""
    engine: EngineDescription
    hardware: Hardware = Hardware()
    workload: Workload = Workload()
    budget: LatencyBudget = LatencyBudget()
    objective: Objective = Objective.OUTPUT_THROUGHPUT
    effort: Effort = Effort()
    measure: MeasurePlan = MeasurePlan()
    search: SearchPlan = SearchPlan()
    space: Space = Space(parameters=())
    baseline: Config = field(default_factory=dict)
    """Flags in production now; empty means the engine's defaults."""
    seeds: tuple[Config, ...] = ()
    """Configurations to try first: the user's, then the experts'."""
    labels: Mapping[str, str] = field(default_factory=dict)
