"""No orphan ever: whoever is killed, the engine and all that descends from it end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autotuner_worker.process import Known, reap_leftovers
from tests.integration.process_helpers import Deaths, alive, launch, worker

pytestmark = pytest.mark.process


def test_killed_worker_leaves_nothing(tmp_path: Path) -> None:
    with worker(tmp_path, "family") as pids:
        deaths = Deaths(pids.values())
        os.kill(pids["worker"], signal.SIGKILL)
        deaths.wait()
    assert list((tmp_path / "records").iterdir()) == []


def test_signals_to_the_guardian_do_not_end_it(tmp_path: Path) -> None:
    with worker(tmp_path, "polite") as pids:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            os.kill(pids["guardian"], number)
        assert os.getsid(pids["guardian"]) == pids["guardian"]
        assert os.getsid(pids["leader"]) == pids["leader"]
        deaths = Deaths(pids.values())
        os.kill(pids["worker"], signal.SIGKILL)
        deaths.wait()


async def test_killed_guardian_ends_the_launch(tmp_path: Path) -> None:
    launched = await launch(tmp_path, "family")
    pids = await launched.ready
    os.kill(pids["ghost"], signal.SIGKILL)  # has shed all evidence: only the guardian could have found it
    guardian = json.loads(launched.record.read_text())["guardian"]["pid"]
    deaths = Deaths(pid for name, pid in pids.items() if name != "ghost")
    os.kill(guardian, signal.SIGKILL)
    status = await launched.process.wait()
    assert (status.known, status.code, status.signal) == (Known.LOST, None, None)
    assert "lost" in status.text
    await deaths.wait_async()
    report = await launched.process.stop(5.0)
    assert report.survivors == ()
    assert not launched.record.exists()


async def test_next_worker_ends_what_two_kills_left(tmp_path: Path) -> None:
    with worker(tmp_path, "family") as pids:
        os.kill(pids["ghost"], signal.SIGKILL)
        members = Deaths(pids[name] for name in ("deaf", "daemon", "bare"))
        first = Deaths(pids[name] for name in ("worker", "guardian", "leader"))
        os.kill(pids["worker"], signal.SIGSTOP)  # so that it cannot clean up
        os.kill(pids["guardian"], signal.SIGKILL)
        os.kill(pids["worker"], signal.SIGKILL)
        await first.wait_async()
    assert all(alive(pids[name]) for name in ("deaf", "daemon", "bare"))
    told = await reap_leftovers(tmp_path / "records")
    await members.wait_async()
    assert len(told) == 3
    assert all(line.startswith("launch: killed ") for line in told)
    assert list((tmp_path / "records").iterdir()) == []


async def test_records_of_a_living_worker_are_left_alone(tmp_path: Path) -> None:
    with worker(tmp_path, "polite") as pids:
        assert await reap_leftovers(tmp_path / "records") == []
        assert alive(pids["leader"])
        deaths = Deaths(pids.values())
        os.kill(pids["worker"], signal.SIGKILL)
        await deaths.wait_async()


async def test_stuck_guardian_of_a_dead_worker_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotuner_worker.leftovers.GUARDIAN_PATIENCE", 0.1)
    with worker(tmp_path, "polite") as pids:
        deaths = Deaths(pids.values())
        os.kill(pids["guardian"], signal.SIGSTOP)
        os.kill(pids["worker"], signal.SIGKILL)
        dead = Deaths([pids["worker"]])
        await dead.wait_async()
    told = await reap_leftovers(tmp_path / "records")
    await deaths.wait_async()
    assert f"killed stuck supervisor {pids['guardian']}" in told[0]


def _record(directory: Path, **changes: object) -> Path:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    record: dict[str, object] = {
        "token": "0" * 32, "pipe": 1, "boot_id": boot, "argv0": "vllm", "pid": 1, "pgid": 1, "sid": 1, "start": 1,
        "worker": {"pid": 1, "start": 1 << 60, "instance": "x"}, "guardian": {"pid": 1, "start": 1 << 60},
    }  # fmt: skip
    path = directory / "launch.json"
    path.write_text(json.dumps({**record, **changes}))
    return path


_WAIT = "import signal,os;print('up',flush=True);signal.pause()"
_LEAVE = f"import os,sys\nif os.fork():\n os._exit(0)\nprint(os.getpid(),flush=True)\n{_WAIT}"


async def test_reused_pid_is_not_killed(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", _WAIT]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True) as innocent:
        assert innocent.stdout is not None
        innocent.stdout.readline()
        number = innocent.pid
        ours = {"pid": number, "start": 1}
        path = _record(tmp_path, pid=number, sid=number, pgid=number, guardian=ours, worker={**ours, "instance": "x"})
        assert await reap_leftovers(tmp_path) == []
        assert innocent.poll() is None
        assert not path.exists()
        innocent.kill()


async def test_reused_session_without_leader_is_not_killed(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", _LEAVE]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True) as leader:
        assert leader.stdout is not None
        innocent = int(leader.stdout.readline())
        leader.wait()
        deaths = Deaths([innocent])
        assert os.getsid(innocent) == leader.pid
        _record(tmp_path, pid=leader.pid, sid=leader.pid, pgid=leader.pid)
        assert await reap_leftovers(tmp_path) == []
        assert alive(innocent)
        os.kill(innocent, signal.SIGKILL)
        await deaths.wait_async()


async def test_record_of_an_earlier_boot_is_removed(tmp_path: Path) -> None:
    path = _record(tmp_path, boot_id="another", pid=os.getpid())
    assert await reap_leftovers(tmp_path) == []
    assert not path.exists()


async def test_broken_record_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "launch.json").write_text("{")
    told = await reap_leftovers(tmp_path)
    assert "set aside" in told[0]
    assert [path.name for path in tmp_path.iterdir()] == ["launch.unreadable"]
    assert await reap_leftovers(tmp_path / "missing") == []
