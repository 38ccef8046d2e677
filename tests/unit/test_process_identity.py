"""Naming processes beyond doubt."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from autotuner_worker.guardian import Stat, descendants, kill_exactly, read_stat, snapshot
from autotuner_worker.process import ExitStatus, Known
from autotuner_worker.procfs import TOKEN_NAME, LaunchIdentity, end_members, find_members, has_token, wait_gone

_WAIT = "import signal;print('up',flush=True);signal.pause()"


def _stat(pid: int, ppid: int) -> Stat:
    return Stat(pid, "x", "S", ppid, pid, pid, 0, 0, 0)


def test_stat_of_this_process() -> None:
    stat = read_stat(os.getpid())
    assert stat is not None
    assert (stat.pid, stat.ppid, stat.pgid, stat.sid) == (os.getpid(), os.getppid(), os.getpgid(0), os.getsid(0))
    assert stat.alive
    assert stat.rss_pages > 100
    assert stat in [
        entry._replace(state=stat.state, cpu_ticks=stat.cpu_ticks, rss_pages=stat.rss_pages) for entry in snapshot()
    ]
    assert read_stat(2**22 + 1) is None


def test_descendants_in_order() -> None:
    stats = [_stat(5, 4), _stat(2, 1), _stat(4, 2), _stat(9, 8), _stat(3, 2)]
    assert [stat.pid for stat in descendants(2, stats)] == [4, 3, 5]
    assert descendants(7, stats) == []


async def test_only_the_very_process_is_killed() -> None:
    env = {TOKEN_NAME: "right"}
    with subprocess.Popen([sys.executable, "-c", _WAIT], stdout=subprocess.PIPE, env=env) as child:
        assert child.stdout is not None
        child.stdout.readline()
        stat = read_stat(child.pid)
        assert stat is not None
        assert not kill_exactly(child.pid, stat.start + 1)
        assert not await wait_gone(child.pid, stat.start, 0.0)
        assert await wait_gone(child.pid, stat.start + 1, 10.0)
        assert has_token(child.pid, "right")
        assert not has_token(child.pid, "righ")
        later = LaunchIdentity(pid=0, start=stat.start + 1, token="right", pipe=0)
        assert find_members(later) == []
        identity = LaunchIdentity(pid=0, start=stat.start, token="right", pipe=0)
        assert [member.pid for member in find_members(identity)] == [child.pid]
        killed, left = await end_members(identity, 10.0)
        assert [member.pid for member in killed] == [child.pid]
        assert left == []
        assert child.wait() == -signal.SIGKILL
    assert not kill_exactly(child.pid, stat.start)
    assert not has_token(child.pid, "right")


def test_this_process_and_its_ancestors_are_spared() -> None:
    stat = read_stat(os.getpid())
    assert stat is not None
    own = LaunchIdentity(pid=stat.pid, start=stat.start, token="", pipe=0)
    assert find_members(own) == []


def test_exit_status_in_words() -> None:
    assert ExitStatus(code=2, signal=None, known=Known.OBSERVED).text == "exit code 2"
    assert ExitStatus(code=None, signal=9, known=Known.OBSERVED).text == "signal 9 (SIGKILL)"
    assert "lost" in ExitStatus(code=None, signal=None, known=Known.LOST).text
