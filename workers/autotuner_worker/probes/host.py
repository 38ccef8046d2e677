"""The host as the worker sees it: CPU, memory, disk, and what a launch uses of them.

Functions read once and return values; nothing here is kept.  Sizes are bytes, times seconds.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from autotuner.errors import EnvironmentFault
from autotuner_worker.guardian import Stat, descendants, read_stat, snapshot
from autotuner_worker.probes.cgroup import CgroupReader, OomWatch, oom_kills
from autotuner_worker.procfs import boot_id, has_token

__all__ = [
    "CpuInfo",
    "CpuTimes",
    "HostMemory",
    "LaunchProbe",
    "OomWatch",
    "ProcessUsage",
    "boot_id",
    "busy_share",
    "cpu_available",
    "cpu_info",
    "cpu_times",
    "disk_free",
    "host_memory",
    "oom_kills",
    "proportional_memory",
    "require_disk",
    "usage",
]

_TICK = 1.0 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUsage:
    """What some processes use together."""

    cpu_seconds: float
    """User and system time of the live processes and of the children that they reaped."""
    rss_bytes: int
    """Resident memory; pages that processes share count for each of them."""
    processes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Memory that this worker could use."""

    total: int
    """Installed, or the control group's limit where that is lower."""
    available: int
    """Obtainable now without swapping, within the control group's limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTimes:
    """Seconds of all CPUs together since boot."""

    busy: float
    total: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuInfo:
    """The first processor; a host is taken to have one kind."""

    model: str
    flags: frozenset[str]

    @property
    def amx_bf16(self) -> bool:
        """Matrix units for bfloat16."""
        return "amx_bf16" in self.flags

    @property
    def avx512(self) -> bool:
        """512-bit vectors."""
        return "avx512f" in self.flags

    @property
    def avx512_bf16(self) -> bool:
        """512-bit vectors with bfloat16 dot products."""
        return "avx512_bf16" in self.flags


def usage(pids: Iterable[int]) -> ProcessUsage:
    """Return what these processes use; those that are gone count nothing."""
    return _weigh(stat for pid in pids if (stat := read_stat(pid)) is not None)


def _weigh(stats: Iterable[Stat]) -> ProcessUsage:
    alive = [stat for stat in stats if stat.alive]
    return ProcessUsage(
        cpu_seconds=sum(stat.cpu_ticks for stat in alive) * _TICK,
        rss_bytes=sum(stat.rss_pages for stat in alive) * _PAGE,
        processes=len(alive),
    )


class LaunchProbe:
    """Weighs a launch: its session, what carries its token, and their descendants.

    The environment of a process is looked at once in its life, so that sampling every second stays cheap.
    """

    def __init__(self, session: int, token: str) -> None:
        """*session* is the leader's pid, *token* the value of ``AUTOTUNER_LAUNCH`` (empty: go by the session alone)."""
        self._session, self._token = session, token
        self._strangers: set[tuple[int, int]] = set()
        self._known: set[tuple[int, int]] = set()

    def sample(self) -> ProcessUsage:
        """Return what the launch uses now."""
        stats = snapshot()
        members = {stat.pid: stat for stat in stats if self._belongs(stat)}
        for root in tuple(members):
            members.update({stat.pid: stat for stat in descendants(root, stats)})
        return _weigh(members.values())

    def _belongs(self, stat: Stat) -> bool:
        if stat.sid == self._session:
            return True
        key = (stat.pid, stat.start)
        if not self._token or key in self._strangers:
            return False
        if key not in self._known:
            (self._known if has_token(stat.pid, self._token) else self._strangers).add(key)
        return key in self._known


def proportional_memory(pids: Iterable[int]) -> int:
    """Return resident memory with shared pages divided among their users; milliseconds for each large process."""
    total = 0
    for pid in pids:
        try:
            lines = (_PROC / str(pid) / "smaps_rollup").read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def host_memory(proc: Path = _PROC) -> HostMemory:
    """Return the memory of the host as far as the control group allows it."""
    lines = (proc / "meminfo").read_text(encoding="ascii").splitlines()
    values = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if ":" in line}
    total, available = values["MemTotal"], values.get("MemAvailable", values["MemFree"])
    groups = CgroupReader(proc)
    limit, room = groups.memory_limit(), groups.memory_headroom()
    return HostMemory(
        total=min(total, limit) if limit is not None else total,
        available=min(available, room) if room is not None else available,
    )


def cpu_available(proc: Path = _PROC) -> float:
    """Return how many CPUs this process may keep busy: affinity and control-group quota; may be fractional."""
    quota = CgroupReader(proc).cpu_quota()
    affinity = float(len(os.sched_getaffinity(0)))
    return min(affinity, quota) if quota is not None else affinity


def cpu_times(proc: Path = _PROC) -> CpuTimes:
    """Return the host's CPU times; two samples give ``busy_share``."""
    with (proc / "stat").open(encoding="ascii") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]  # guest times are contained in user times
    idle = ticks[3] + ticks[4]
    return CpuTimes(busy=(sum(ticks) - idle) * _TICK, total=sum(ticks) * _TICK)


def busy_share(before: CpuTimes, after: CpuTimes) -> float:
    """Return the share of CPU time between two samples that was not idle, 0–1; stolen time counts as busy."""
    elapsed = after.total - before.total
    return min(1.0, max(0.0, (after.busy - before.busy) / elapsed)) if elapsed > 0 else 0.0


def cpu_info(proc: Path = _PROC) -> CpuInfo:
    """Return the processor's model and features; empty where the kernel does not say."""
    found: dict[str, str] = {}
    with (proc / "cpuinfo").open(encoding="utf-8", errors="replace") as file:
        for line in file:
            key, _, value = line.partition(":")
            if not line.strip():
                break
            found.setdefault(key.strip(), value.strip())
    flags = found.get("flags", found.get("Features", ""))
    return CpuInfo(model=found.get("model name", found.get("CPU part", "")), flags=frozenset(flags.split()))


def disk_free(path: Path) -> int:
    """Return bytes that an unprivileged process may still write where *path* is or will be."""
    place = path.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def require_disk(path: Path, needed: int, purpose: str) -> None:
    """Raise ``EnvironmentFault`` when less than *needed* bytes are free where *path* is or will be."""
    free = disk_free(path)
    if free < needed:
        raise EnvironmentFault(
            f"{path}: {free / 2**20:.0f} MiB free, {purpose} needs {needed / 2**20:.0f} MiB; free some space or choose another place"
        )
