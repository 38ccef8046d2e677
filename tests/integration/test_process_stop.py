"""Stopping launches: whatever the engine does, nothing is left and the report says what it took."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from autotuner.errors import EngineUnavailable, EnvironmentFault
from autotuner_worker import process as module
from autotuner_worker.guardian import descendants, snapshot
from autotuner_worker.process import BoundedLog, Known, spawn
from tests.integration.process_helpers import Deaths, alive, launch

pytestmark = pytest.mark.process


async def test_polite_engine_ends_on_request(tmp_path: Path) -> None:
    launched = await launch(tmp_path, "polite")
    pids = await launched.ready
    assert launched.process.pid == pids["leader"] == launched.process.pgid == os.getpgid(pids["leader"])
    assert launched.process.pids() == [pids["leader"]]
    assert launched.record.exists()
    report = await launched.process.stop(10.0)
    assert (report.exit.signal, report.exit.code, report.exit.known) == (signal.SIGTERM, None, Known.OBSERVED)
    assert report.killed == report.survivors == ()
    assert not alive(pids["leader"])
    assert not launched.record.exists()
    assert launched.process.pids() == []


async def test_deaf_engine_is_killed_after_grace(tmp_path: Path) -> None:
    launched = await launch(tmp_path, "deaf")
    pids = await launched.ready
    report = await launched.process.stop(0.05)
    assert report.exit.signal == signal.SIGKILL
    assert [text.split()[0] for text in report.killed] == [str(pids["leader"])]


async def test_every_descendant_is_ended(tmp_path: Path) -> None:
    launched = await launch(tmp_path, "family")
    pids = await launched.ready
    assert set(launched.process.pids()) == set(pids.values())
    deaths = Deaths(pids.values())
    report = await launched.process.stop(0.0)
    assert {int(text.split()[0]) for text in report.killed} == set(pids.values())
    assert report.survivors == ()
    await deaths.wait_async()


async def test_second_stop_shortens_the_first(tmp_path: Path) -> None:
    launched = await launch(tmp_path, "deaf")
    await launched.ready
    slow = asyncio.create_task(launched.process.stop(3600.0))
    report = await launched.process.stop(0.0)
    assert await slow is report


async def test_cancelled_stop_goes_on(tmp_path: Path) -> None:
    launched = await launch(tmp_path, "deaf")
    pids = await launched.ready
    deaths = Deaths(pids.values())
    task = asyncio.create_task(launched.process.stop(0.05))
    await asyncio.sleep(0)
    task.cancel()
    await deaths.wait_async()
    assert (await launched.process.stop(0.0)).exit.signal == signal.SIGKILL


async def test_exit_code_and_last_words(tmp_path: Path) -> None:
    launched = await launch(tmp_path, "say", "farewell")
    status = await launched.process.wait()
    assert (status.code, status.signal, status.text) == (0, None, "exit code 0")
    assert launched.said == ["farewell"]
    report = await launched.process.stop(5.0)
    assert report.killed == ()
    assert launched.log.path.read_text() == "farewell\n"
    assert not launched.record.exists()


async def test_crash_is_told_by_signal(tmp_path: Path) -> None:
    launched = await launch(tmp_path, "abort")
    status = await launched.process.wait()
    assert (status.signal, status.text) == (signal.SIGABRT, "signal 6 (SIGABRT)")
    await launched.process.stop(0.0)


async def test_leader_killed_from_outside(tmp_path: Path) -> None:
    launched = await launch(tmp_path, "family")
    pids = await launched.ready
    os.kill(pids["leader"], signal.SIGKILL)
    assert (await launched.process.wait()).signal == signal.SIGKILL
    report = await launched.process.stop(0.0)
    assert {int(text.split()[0]) for text in report.killed} == set(pids.values()) - {pids["leader"]}
    assert not any(map(alive, pids.values()))


async def test_deserted_family_is_ended_unasked(tmp_path: Path) -> None:
    launched = await launch(tmp_path, "deserter", "7", linger=0.1)
    pids = await launched.ready
    assert (await launched.process.wait()).code == 7
    report = await launched.process.stop(60.0)
    assert report.exit.code == 7
    assert len(report.killed) == 4
    assert not any(map(alive, pids.values()))


async def test_flood_is_drained_and_bounded(tmp_path: Path) -> None:
    launched = await launch(tmp_path, "flood", "100")
    assert (await launched.process.wait()).code == 0
    await launched.process.stop(5.0)
    assert len(launched.said) == 1_000_001
    assert launched.said[-1] == launched.log.recent[-1] == "the last words"
    size = launched.log.path.stat().st_size
    assert 2 * 1024 * 1024 < size <= (512 + 2048) * 1024 + 100
    kept = launched.log.path.read_text()
    assert kept.startswith("0000000 ")
    assert kept.endswith("the last words\n")
    assert f"[... {launched.log.dropped} bytes dropped ...]" in kept
    assert size + launched.log.dropped == 100_000_015 + len(f"[... {launched.log.dropped} bytes dropped ...]\n")


async def test_child_gets_what_was_asked_for(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "log")
    script = str(Path(__file__).with_name("process_child.py"))
    argv, env = [sys.executable, script, "environment"], {"ONLY": "this", "AUTOTUNER_LAUNCH": "older"}
    process = await spawn(argv, env, tmp_path, log, tmp_path / "record.json")
    await process.wait()
    await process.stop(0.0)
    said = json.loads(log.recent[0])
    assert said["env"]["ONLY"] == "this"
    assert said["env"]["AUTOTUNER_LAUNCH"] == process.token
    assert set(said["env"]) <= {"ONLY", "AUTOTUNER_LAUNCH", "LC_CTYPE"}
    assert said["cwd"] == str(tmp_path)
    assert said["ignored"] == []


async def test_missing_program_is_told(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    with pytest.raises(EngineUnavailable, match="/nowhere/vllm"):
        await spawn(["/nowhere/vllm"], {}, tmp_path, BoundedLog(tmp_path / "log"), record)
    assert not record.exists()


async def test_unwritable_record_starts_nothing(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    record.mkdir()
    log = BoundedLog(tmp_path / "log")
    with pytest.raises(EnvironmentFault, match="record"):
        await spawn([sys.executable, "-c", "print('ran')"], {}, tmp_path, log, record)
    assert log.recent == ()


async def test_missing_directory_is_told(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "log")
    with pytest.raises(EngineUnavailable, match="gone"):
        await spawn([sys.executable], {}, tmp_path / "gone", log, tmp_path / "record.json")


async def test_failing_listener_does_not_stop_the_reading(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail(line: str) -> None:
        raise ValueError(line)

    log = BoundedLog(tmp_path / "log")
    program = "print('first', flush=True); print('second', flush=True)"
    process = await spawn([sys.executable, "-c", program], {}, tmp_path, log, tmp_path / "record.json", lines=fail)
    assert (await process.wait()).code == 0
    await process.stop(0.0)
    assert log.recent == ("first", "second")
    assert process.lines is None
    assert [record.exc_text is not None for record in caplog.records] == [True]


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 5, 8])
async def test_cancelled_spawn_leaves_nothing(tmp_path: Path, steps: int) -> None:
    task = asyncio.create_task(launch(tmp_path, "polite"))
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [stat.label for stat in descendants(os.getpid(), snapshot()) if stat.alive] == []
    assert list((tmp_path / "records").glob("*")) == []


async def test_unusable_supervisor_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = BoundedLog(tmp_path / "log")
    argv, record = [sys.executable, "-V"], tmp_path / "record.json"
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(EnvironmentFault, match="supervisor"):
        await spawn(argv, {}, tmp_path, log, record)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(EnvironmentFault, match="before it started anything"):
        await spawn(argv, {}, tmp_path, BoundedLog(tmp_path / "log"), record)


async def test_stuck_guardian_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched = await launch(tmp_path, "family")
    pids = await launched.ready
    guardian = json.loads(launched.record.read_text())["guardian"]["pid"]
    monkeypatch.setattr(module, "STUCK_AFTER", 0.1)
    os.kill(guardian, signal.SIGSTOP)
    os.kill(pids["ghost"], signal.SIGKILL)  # has shed all evidence: only the guardian could have found it
    report = await launched.process.stop(0.0)
    assert report.exit.known is Known.LOST
    assert not any(map(alive, (*pids.values(), guardian)))
    assert not launched.record.exists()
