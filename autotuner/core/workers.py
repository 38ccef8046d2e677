"""What a worker and the controller say to each other, as values: the protocol without its wire format.

The exchange is level-triggered: a worker reports the state that it is in (``WorkerState``) and learns the state that it
should be in (``Desired``).  A lost message repairs itself at the next exchange.  Durations are seconds; no wall clock
ever crosses the wire.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotuner.core.space import EngineDescription
from autotuner.core.study import Hardware
from autotuner.core.trial import Assignment, Outcome

__all__ = [
    "PROTOCOL_VERSIONS",
    "Delivery",
    "Desired",
    "Device",
    "EngineSummary",
    "Held",
    "HostReport",
    "ProgressReport",
    "Receipt",
    "Session",
    "WorkerInfo",
    "WorkerState",
    "held",
]

PROTOCOL_VERSIONS: tuple[str, ...] = ("1",)
"""Protocol versions that this program speaks, best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSummary:
    """The engine that a worker starts."""

    kind: str
    """``vllm`` or ``simulated``."""
    version: str = ""
    platform: str = ""
    """``cpu``, ``cuda``, ``rocm``, …"""
    hot_capable: bool = False
    """Hot parameters can be changed while the engine runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator, or the CPU."""

    kind: str
    """``cpu`` or ``cuda``."""
    name: str = ""
    memory_bytes: int = 0
    uuid: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """A worker's introduction."""

    worker_id: str
    """Stable across restarts of the worker in the same place."""
    instance_id: str
    """Unique per process life."""
    host: str = ""
    boot_id: str = ""
    protocol_versions: tuple[str, ...] = PROTOCOL_VERSIONS
    """Protocol versions that the worker speaks, best first."""
    engine: EngineSummary
    resident_engines: int = 1
    """Engines that fit in memory beside each other."""
    devices: tuple[Device, ...] = ()
    program_version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What a worker gets for its introduction."""

    session_id: str
    epoch: int
    """Fencing epoch of this controller life."""
    lease_seconds: float
    """Time from the last contact after which the worker must have fenced itself."""
    heartbeat_seconds: float
    """Longest time between two exchanges."""
    protocol_version: str = PROTOCOL_VERSIONS[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """An attempt in a worker's hands, running or waiting to be delivered."""

    study_id: str
    trial_id: int
    attempt: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressReport:
    """Live progress, for people; never for decisions."""

    study_id: str
    trial_id: int
    phase: str
    """``idle``, ``starting``, ``warming``, ``measuring``, ``stopping``; shown as it is, so a new word harms nobody."""
    detail: str = ""
    """The engine's own start-up phase, or the latest figure."""
    seconds: float = 0.0
    """Time in this phase."""
    throughput: float = 0.0
    """Generated tokens per second of the last window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """What a worker is doing."""

    session_id: str = ""
    """Filled in by the worker's link."""
    worker_id: str = ""
    """Filled in by the worker's link."""
    held: tuple[Held, ...] = ()
    """Every attempt in the worker's hands."""
    progress: ProgressReport | None = None
    draining: bool = False
    """The worker wants no new work."""
    wait_seconds: float = 0.0
    """Time that the controller may hold the call when nothing changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """What a worker should do."""

    assignment: Assignment | None = None
    """The attempt to work on; ``None`` when there is none."""
    cancel: tuple[Held, ...] = ()
    """Attempts to drop."""
    shutdown: bool = False
    """Nothing more will come: stop the engines and end."""
    lease_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """An outcome on its way to the controller."""

    session_id: str
    worker_id: str
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The controller has the outcome."""

    first: bool
    """False for a replay of what was accepted before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """What a host can tell before a study is built: its engine, its hardware and its free memory."""

    engine: EngineDescription
    hardware: Hardware
    memory_available: int
    """Bytes that new processes may take."""


def held(work: Assignment | Outcome) -> Held:
    """Return the identity of the attempt that *work* belongs to."""
    return Held(study_id=work.study_id, trial_id=work.trial_id, attempt=work.attempt, epoch=work.epoch)
