"""Reading ``/proc``: which processes belong to a launch, decided by evidence and never by a name.

Evidence, strongest first: the launch token in the process's environment; the launch's output pipe as its standard
output or error (programs that rewrite their title lose the environment, the pipe stays); membership in a session that
is proven to be the launch's.  A session is proven while its leader lives with the recorded start time, or while one of
its members shows one of the first two: the kernel does not reuse a number that is still somebody's session.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from autotuner_worker.guardian import Stat, descendants, kill_exactly, read_stat, snapshot

__all__ = ["TOKEN_NAME", "LaunchIdentity", "boot_id", "end_members", "find_members", "has_token", "wait_gone"]

TOKEN_NAME = "AUTOTUNER_LAUNCH"  # noqa: S105 - a name, not a secret
"""Environment variable that carries the launch token into every process of a launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchIdentity:
    """What names the processes of one launch beyond doubt, on one boot of one host."""

    pid: int
    """The leader: process id, group id and session id at once."""
    start: int
    """The leader's start time in ticks since boot; 0 when it was gone before it could be read."""
    token: str
    pipe: int
    """Inode of the output pipe; 0 when unknown."""


def boot_id() -> str:
    """Return the identifier of this boot of the host."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def has_token(pid: int, token: str) -> bool:
    """Return whether the environment of *pid* shows the launch token."""
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return f"{TOKEN_NAME}={token}".encode() in environ.split(b"\0")


def _writes_to(pid: int, pipe: int) -> bool:
    for fd in (1, 2):
        try:
            if str(Path(f"/proc/{pid}/fd/{fd}").readlink()) == f"pipe:[{pipe}]":
                return True
        except OSError:
            continue
    return False


def _ancestors(stats: dict[int, Stat]) -> set[int]:
    found: set[int] = {1}
    pid = os.getpid()
    while pid in stats and pid not in found:
        found.add(pid)
        pid = stats[pid].ppid
    return found


def find_members(identity: LaunchIdentity) -> list[Stat]:
    """Return the live processes of a launch: those with evidence, their proven session and their descendants."""
    stats = snapshot()
    spared = _ancestors({stat.pid: stat for stat in stats})
    eligible = [stat for stat in stats if stat.start >= identity.start and stat.pid not in spared]
    proven: dict[int, Stat] = {}
    session_proven = False
    for stat in eligible:
        leader = stat.pid == identity.pid and stat.start == identity.start
        piped = identity.pipe != 0 and _writes_to(stat.pid, identity.pipe)
        if leader or piped or has_token(stat.pid, identity.token):
            proven[stat.pid] = stat
            session_proven = session_proven or stat.sid == identity.pid
    if session_proven:
        proven.update({stat.pid: stat for stat in eligible if stat.sid == identity.pid})
    for root in tuple(proven):
        proven.update({stat.pid: stat for stat in descendants(root, eligible)})
    return [stat for stat in proven.values() if stat.alive]


async def wait_gone(pid: int, start: int, timeout: float) -> bool:
    """Wait until the process with this pid and start time has ended; return whether it did within *timeout* seconds."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return True
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    loop.add_reader(handle, gone.set)
    try:
        stat = read_stat(pid)
        if stat is None or stat.start != start or not stat.alive:
            return True
        await asyncio.wait_for(gone.wait(), timeout)
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(handle)
        os.close(handle)
    return True


async def end_members(identity: LaunchIdentity, timeout: float) -> tuple[list[Stat], list[Stat]]:
    """Kill every process of a launch and wait for it; return those killed and those still there after *timeout* s."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    killed: dict[tuple[int, int], Stat] = {}
    left = find_members(identity)
    while left and loop.time() < deadline:
        for stat in left:
            if kill_exactly(stat.pid, stat.start):
                killed.setdefault((stat.pid, stat.start), stat)
        await _all_gone(left, max(0.0, deadline - loop.time()))
        # A descendant outside the session may have lost its parent meanwhile: keep what was found once.
        known = [
            now for stat in killed.values() if (now := read_stat(stat.pid)) and now.start == stat.start and now.alive
        ]
        left = list({stat.pid: stat for stat in (*known, *find_members(identity))}.values())
    return list(killed.values()), left


async def _all_gone(stats: Iterable[Stat], timeout: float) -> None:
    await asyncio.gather(*(wait_gone(stat.pid, stat.start, timeout) for stat in stats))
