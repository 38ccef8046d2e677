"""Control groups, version 1 and 2: limits, and the kernel's count of processes killed for memory.

The count is the only reliable evidence of an out-of-memory kill: the engine's own words do not mention memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

__all__ = ["CgroupReader", "OomWatch", "oom_kills"]

_UNLIMITED = 1 << 60
"""Limits of this size and above are version 1's way to say "none"."""


class CgroupReader:
    """Finds and reads the groups of a process; *proc* may be another root, for tests."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        """Read through *proc*."""
        self._proc = proc

    def chain(self, controller: str, pid: int | str = "self") -> tuple[Path, ...]:
        """Return the directories of the process's group and its ancestors, innermost first; empty when unknown."""
        try:
            entries = (self._proc / str(pid) / "cgroup").read_text(encoding="utf-8").splitlines()
        except OSError:
            return ()
        unified: tuple[Path, ...] = ()
        for entry in entries:
            _number, controllers, inner = entry.split(":", 2)
            if controller in controllers.split(","):
                return self._directories(controller, inner)
            if not controllers:
                unified = self._directories("", inner)
        return unified

    def _directories(self, controller: str, inner: str) -> tuple[Path, ...]:
        """Translate a path within the hierarchy into directories that exist here."""
        for root, mount in self._mounts(controller):
            within = (
                inner[len(root.rstrip("/")) :] if inner == root or inner.startswith(root.rstrip("/") + "/") else inner
            )
            innermost = mount / within.lstrip("/")
            found = [path for path in (innermost, *innermost.parents) if path == mount or mount in path.parents]
            return tuple(path for path in found if path.is_dir())
        return ()

    def _mounts(self, controller: str) -> Iterable[tuple[str, Path]]:
        try:
            lines = (self._proc / "self" / "mountinfo").read_text(encoding="utf-8").splitlines()
        except OSError:
            return
        for line in lines:
            before, _, after = line.partition(" - ")
            fields, kind = before.split(), after.split()
            if len(fields) < 5 or len(kind) < 3:
                continue
            if (not controller and kind[0] == "cgroup2") or (
                controller and kind[0] == "cgroup" and controller in kind[2].split(",")
            ):
                yield fields[3], Path(fields[4].replace("\\040", " "))

    def memory_limit(self, pid: int | str = "self") -> int | None:
        """Return the tightest memory limit in bytes that binds the process; ``None`` without one."""
        limits = [limit for path in self.chain("memory", pid) if (limit := _memory_limit(path)) is not None]
        return min(limits, default=None)

    def memory_headroom(self, pid: int | str = "self") -> int | None:
        """Return bytes that the process's groups may still take, page cache counted as free; ``None`` without limits."""
        rooms: list[int] = []
        for path in self.chain("memory", pid):
            limit = _memory_limit(path)
            used = _first_int(path, ("memory.current", "memory.usage_in_bytes"))
            if limit is not None and used is not None:
                stat = _keyed(path / "memory.stat")
                cache = stat.get("total_inactive_file", stat.get("inactive_file", 0))
                rooms.append(max(0, limit - max(0, used - cache)))
        return min(rooms, default=None)

    def cpu_quota(self, pid: int | str = "self") -> float | None:
        """Return the tightest CPU quota in CPUs; ``None`` without one."""
        return min((quota for path in self.chain("cpu", pid) if (quota := _cpu_quota(path)) is not None), default=None)


def oom_kills(where: int | Sequence[Path]) -> int | None:
    """Return how many processes the kernel has killed for memory in a group since the group was made.

    *where* is a pid (its memory group and ancestors) or the group's directories, innermost first; the innermost one that can
    be read counts.  ``None`` when none can.  Take it before and after; or use ``OomWatch``.
    """
    paths = CgroupReader().chain("memory", where) if isinstance(where, int) else where
    return next((count for path in paths if (count := _oom_count(path)) is not None), None)


class OomWatch:
    """Counts the kills for memory since it was made, also when the process and its own group are gone by then."""

    def __init__(self, where: int | Sequence[Path], *, proc: Path = Path("/proc")) -> None:
        """Note the counts of now; *where* as for ``oom_kills``."""
        paths = CgroupReader(proc).chain("memory", where) if isinstance(where, int) else tuple(where)
        counts = ((path, _oom_count(path)) for path in paths)
        self._before = {path: count for path, count in counts if count is not None}
        self._vmstat = proc / "vmstat"
        self._host_before = _keyed(self._vmstat).get("oom_kill")

    def kills(self) -> int | None:
        """Return the kills since then in the innermost group that can still be read, else on the whole host.

        ``None`` when neither tells.
        """
        for path, before in self._before.items():
            now = _oom_count(path)
            if now is not None:
                return max(0, now - before)
        host = _keyed(self._vmstat).get("oom_kill")
        return max(0, host - self._host_before) if host is not None and self._host_before is not None else None


def _oom_count(path: Path) -> int | None:
    for name in ("memory.events", "memory.oom_control"):
        count = _keyed(path / name).get("oom_kill")
        if count is not None:
            return count
    return None


def _keyed(path: Path) -> dict[str, int]:
    try:
        words = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return {}
    return {pair[0]: int(pair[1]) for pair in words if len(pair) == 2 and pair[1].isdigit()}


def _first_int(path: Path, names: Iterable[str]) -> int | None:
    for name in names:
        try:
            text = (path / name).read_text(encoding="utf-8").strip()
        except OSError:
            continue
        if text.isdigit():
            return int(text)
    return None


def _memory_limit(path: Path) -> int | None:
    limit = _first_int(path, ("memory.max", "memory.limit_in_bytes"))
    return limit if limit is not None and limit < _UNLIMITED else None


def _cpu_quota(path: Path) -> float | None:
    try:
        words = (path / "cpu.max").read_text(encoding="utf-8").split()
        quota, period = (math.inf if words[0] == "max" else float(words[0])), float(words[1])
    except (OSError, ValueError, IndexError):
        first = _first_int(path, ("cpu.cfs_quota_us",))
        quota = float(first) if first is not None else math.inf
        period = float(_first_int(path, ("cpu.cfs_period_us",)) or 0)
    return quota / period if period > 0 and math.isfinite(quota) and quota > 0 else None
