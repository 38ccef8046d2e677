"""The worker's ports: the engine, the load and the probes, as narrow protocols.

Adapters live in ``engines``, ``workloads`` and ``probes``.  All methods that wait are coroutines on one event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from autotuner.core.budget import Limit
from autotuner.core.space import Config, EngineDescription, Value
from autotuner.core.study import MeasurePlan
from autotuner.core.trial import Launch, Measurement, OutcomeClass
from autotuner.core.workload import Workload

__all__ = [
    "Engine",
    "EngineAdapter",
    "EngineDeath",
    "EngineFault",
    "LaunchPlan",
    "LoadGenerator",
    "PlanPaths",
    "ProgressSink",
    "Segment",
    "SegmentFault",
]

ProgressSink = Callable[[str, str, float], None]
"""Called with (phase, detail, throughput or 0.0); cheap, never raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPaths:
    """Where a launch may write."""

    run_dir: Path
    """Of this launch alone: configuration file, plug-in folder; removed afterwards."""
    log_path: Path
    """The engine's bounded output; kept."""
    cache_dir: Path
    """Compile caches, shared by all launches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """Everything that starting an engine will do, before it is done."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    """Complete environment of the child."""
    added_env: Mapping[str, str]
    """The part of ``env`` that the plan itself set; shown to users."""
    files: Mapping[str, str]
    """Path (absolute) → content, written before the start."""
    host: str
    port: int
    model: str
    config: Config
    served_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFault:
    """Why an engine did not start, died or misbehaved; decided by evidence."""

    outcome: OutcomeClass
    message: str
    evidence: tuple[str, ...] = ()
    hint: Mapping[str, float] = field(default_factory=dict)


class SegmentFault(Exception):
    """A segment ended without a measurement; carries the fault."""

    def __init__(self, fault: EngineFault) -> None:
        self.fault = fault
        super().__init__(fault.message)


class EngineDeath(Exception):
    """The engine could not be started or ended by itself; carries the fault and the launch record so far."""

    def __init__(self, fault: EngineFault, launch: Launch) -> None:
        self.fault, self.launch = fault, launch
        super().__init__(fault.message)


class Engine(Protocol):
    """A running engine."""

    @property
    def launch(self) -> Launch:
        """The record of this start; phases and effective values filled."""
        ...

    @property
    def base_url(self) -> str:
        """``http://127.0.0.1:PORT``."""
        ...

    @property
    def model_name(self) -> str:
        """The name to send in requests."""
        ...

    @property
    def hot_capable(self) -> bool:
        """``apply_hot`` works on this very process (probed after the start)."""
        ...

    async def apply_hot(self, hot: Config) -> Mapping[str, Value]:
        """Set hot parameters and return what the engine reports; raise ``EngineDeath`` when it cannot.

        Those that are not named return to what the engine was started with.
        """
        ...

    async def settle(self, timeout: float) -> None:
        """Wait until no request runs or waits; raise ``EngineDeath`` (HUNG) after *timeout* seconds."""
        ...

    async def reset_caches(self) -> None:
        """Empty the prefix cache, so that one segment does not help the next."""
        ...

    async def metrics(self) -> Mapping[str, float]:
        """Return the engine's own figures: metric name (labels summed, histograms as ``_sum``/``_count``) → value."""
        ...

    async def host_usage(self) -> Mapping[str, float]:
        """Return ``cpu_seconds`` and ``rss_bytes`` summed over the engine's processes."""
        ...

    async def died(self) -> EngineFault:
        """Return when the engine ends by itself, with the reason."""
        ...

    async def stop(self) -> None:
        """Stop gracefully, then hard; return when every process and the port are gone."""
        ...


class EngineAdapter(Protocol):
    """Knows one kind of engine."""

    async def describe(self, model: str | None) -> EngineDescription:
        """Ask the installed engine about itself; raise ``EngineUnavailable`` when it cannot be asked."""
        ...

    def plan(self, model: str, config: Config, paths: PlanPaths, port: int) -> LaunchPlan:
        """Return what ``start`` would do. Pure: same arguments, same plan."""
        ...

    async def start(
        self, plan: LaunchPlan, paths: PlanPaths, launch_id: str, timeout: float, progress: ProgressSink
    ) -> Engine:
        """Carry out *plan* and wait for the first real answer; raise ``EngineDeath`` when it does not come."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One measured stretch of load on one engine."""

    base_url: str
    model_name: str
    workload: Workload
    measure: MeasurePlan
    limits: tuple[Limit, ...]
    seed: int
    """Decides the schedule: equal seeds offer the same requests at the same times."""
    vocabulary: int
    """Token ids are drawn from ``0..vocabulary-1`` without the special ones at the bottom."""
    salt: int = 0
    """Decides the prompts' content: no prompt of one trial helps another through a cache."""
    records_path: Path
    """Where the raw records go (``.npz``)."""


class LoadGenerator(Protocol):
    """Offers load and measures it."""

    async def run(self, segment: Segment, progress: ProgressSink) -> Measurement:
        """Run one segment; raise ``SegmentFault`` when nothing valid was measured. Cancelling it stops the load."""
        ...
