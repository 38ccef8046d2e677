"""Starting, driving and ending an engine's process, with a stand-in that behaves or misbehaves on demand."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from autotuner.core.space import Config
from autotuner.core.trial import OutcomeClass
from autotuner_worker.engines.http import HttpEngine
from autotuner_worker.engines.vllm import VllmAdapter
from autotuner_worker.ports import EngineDeath, PlanPaths, ProgressSink
from autotuner_worker.process import port_is_free, reserve_port

pytestmark = pytest.mark.process
PROGRAM = Path(__file__).with_name("vllm_stand_in.py")

Start = Callable[..., Coroutine[Any, Any, HttpEngine]]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Return a function that starts the stand-in in a mode."""

    async def begin(
        mode: str,
        config: Config | None = None,
        timeout: float = 30.0,
        port: int | None = None,
        progress: ProgressSink = lambda *_: None,
    ) -> HttpEngine:
        adapter = VllmAdapter(
            (sys.executable, str(PROGRAM), mode, "serve"), {"HF_TOKEN": "very-secret"}, tmp_path / "state"
        )
        paths = PlanPaths(run_dir=tmp_path / "run", log_path=tmp_path / "engine.log", cache_dir=tmp_path / "cache")
        with reserve_port() as lease:
            plan = adapter.plan("org/name", config or {}, paths, port or lease.port)
            return await adapter.start(plan, paths, "launch-1", timeout, progress)

    return begin


@asynccontextmanager
async def running(start: Start, mode: str, **options: Any) -> AsyncIterator[HttpEngine]:
    """Start an engine and stop it afterwards."""
    engine = await start(mode, **options)
    try:
        yield engine
    finally:
        await engine.stop()


async def tell(engine: HttpEngine, text: str) -> None:
    """Change the stand-in's mind."""
    request = urllib.request.Request(f"{engine.base_url}/tell", data=text.encode(), method="POST")
    await asyncio.to_thread(lambda: urllib.request.urlopen(request).close())


async def test_an_engine_from_start_to_stop(start: Start, tmp_path: Path) -> None:
    async with running(start, "good", config={"max_num_seqs": 32, "async_scheduling": True}) as engine:
        launch = engine.launch
        assert list(launch.phases) == ["import", "config", "worker_start", "first_answer"]
        assert launch.ready_seconds == pytest.approx(sum(launch.phases.values()))
        assert launch.effective == {"max_num_seqs": "32", "async_scheduling": "False"}
        assert launch.no_ops == ("async_scheduling",)
        assert launch.env["HF_TOKEN"] == "***"
        assert engine.model_name == "org/name"
        assert (await engine.host_usage())["rss_bytes"] > 1_000_000
        assert (await engine.metrics())["vllm:num_requests_running"] == 0.0
        assert (tmp_path / "state" / "processes" / "launch-1.json").exists()
        port = int(engine.base_url.rsplit(":", 1)[1])
    assert port_is_free("127.0.0.1", port)
    assert not (tmp_path / "state" / "processes" / "launch-1.json").exists()


async def test_hot_parameters_are_set_and_read_back(start: Start) -> None:
    async with running(start, "good") as engine:
        assert engine.hot_capable
        started = (await engine.state()).limits
        assert await engine.apply_hot({"max_num_seqs": 4, "max_num_batched_tokens": 64}) == {
            "max_num_seqs": 4,
            "max_num_batched_tokens": 64,
        }
        assert await engine.apply_hot({"max_num_batched_tokens": 64}) == {"max_num_batched_tokens": 64}
        assert (await engine.state()).limits == {**started, "max_num_batched_tokens": 64}  # nothing of the first stays
        assert await engine.apply_hot({}) == {}
        assert (await engine.state()).limits == started
        with pytest.raises(EngineDeath, match=r"max_num_seqs=64 \(is 32\)"):
            await engine.apply_hot({"max_num_seqs": 64})
        with pytest.raises(EngineDeath, match="whole numbers"):
            await engine.apply_hot({"max_num_seqs": 0.5})
        await engine.reset_caches()  # the first attempt is refused


async def test_settling_waits_for_the_last_request_and_not_for_ever(start: Start) -> None:
    async with running(start, "good") as engine:
        await tell(engine, '{"count": 2}')
        with pytest.raises(EngineDeath) as caught:
            await engine.settle(0.2)
        assert caught.value.fault.outcome is OutcomeClass.HUNG
        waiting = asyncio.create_task(engine.settle(20.0))
        await tell(engine, '{"count": 0}')
        await waiting


async def test_an_engine_without_live_routes_works_without_hot_parameters(start: Start) -> None:
    async with running(start, "plain") as engine:
        assert not engine.hot_capable
        assert engine.launch.effective == {}
        await engine.settle(5.0)
        await engine.reset_caches()
        with pytest.raises(EngineDeath):
            await engine.apply_hot({"max_num_seqs": 4})


async def test_a_killed_engine_is_noticed_and_explained(start: Start) -> None:
    async with running(start, "good") as engine:
        os.kill(engine.process_ids()[0], signal.SIGKILL)
        fault = await asyncio.wait_for(engine.died(), 20.0)
        assert fault.outcome is OutcomeClass.CRASHED
        assert "signal 9" in fault.message
        with pytest.raises(EngineDeath):
            await engine.settle(1.0)
        with pytest.raises(EngineDeath):
            await engine.metrics()


async def test_an_engine_that_says_it_is_dead_but_does_not_end_is_ended(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotuner_worker.engines.http.EXIT_GRACE", 0.1)
    monkeypatch.setattr("autotuner_worker.engines.http.STOP_GRACE", 0.1)
    async with running(start, "stubborn") as engine:
        await tell(engine, '{"healthy": false}')
        fault = await asyncio.wait_for(engine.died(), 20.0)
        assert fault.outcome is OutcomeClass.CRASHED
        assert engine.process_ids() == []


@pytest.mark.parametrize(
    ("mode", "outcome", "words"),
    [
        ("exits", OutcomeClass.OOM_AT_START, "no memory is left for the KV cache"),
        ("never", OutcomeClass.TIMED_OUT, "it was in start-up phase worker_start"),
        ("html", OutcomeClass.GARBAGE, "not with a completion"),
        ("empty", OutcomeClass.GARBAGE, "not with a completion"),
        ("error", OutcomeClass.GARBAGE, "not with a completion"),
    ],
)
async def test_starts_that_fail(start: Start, tmp_path: Path, mode: str, outcome: OutcomeClass, words: str) -> None:
    with pytest.raises(EngineDeath, match=words) as caught:
        await start(mode, timeout=2.0 if mode == "never" else 30.0)
    assert caught.value.fault.outcome is outcome
    assert caught.value.launch.argv[1] == str(PROGRAM)
    assert caught.value.launch.ready_seconds is None
    assert list((tmp_path / "state" / "processes").iterdir()) == []


async def test_a_port_in_use_is_refused_before_the_start(start: Start) -> None:
    with reserve_port() as lease:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", lease.port, reuse_port=True)
        async with server:
            with pytest.raises(EngineDeath, match="already in use") as caught:
                await start("good", port=lease.port)
    assert caught.value.fault.outcome is OutcomeClass.INFRASTRUCTURE


async def test_a_flood_of_output_neither_stops_the_engine_nor_fills_the_disk(start: Start, tmp_path: Path) -> None:
    async with running(start, "floods", timeout=60.0):
        pass
    assert (tmp_path / "engine.log").stat().st_size < 8 << 20


async def test_a_cancelled_start_leaves_nothing(start: Start, tmp_path: Path) -> None:
    printed = asyncio.Event()
    task = asyncio.create_task(
        start("never", progress=lambda phase, *_: printed.set() if phase == "worker_start" else None)
    )
    record = tmp_path / "state" / "processes" / "launch-1.json"
    await printed.wait()
    assert record.exists()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not record.exists()


async def test_a_program_that_cannot_be_executed(tmp_path: Path) -> None:
    adapter = VllmAdapter((str(tmp_path / "nothing"), "serve"), {}, tmp_path / "state")
    paths = PlanPaths(run_dir=tmp_path / "run", log_path=tmp_path / "engine.log", cache_dir=tmp_path / "cache")
    with reserve_port() as lease:
        plan = adapter.plan("org/name", {}, paths, lease.port)
        with pytest.raises(EngineDeath, match="cannot be started") as caught:
            await adapter.start(plan, paths, "launch-1", 10.0, lambda *_: None)
    assert caught.value.fault.outcome is OutcomeClass.INFRASTRUCTURE
