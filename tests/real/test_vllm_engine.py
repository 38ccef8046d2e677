"""The adapter against real vLLM: describe, start, hot limits, stop, and the failures that it must tell apart."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from autotuner.core.space import Config
from autotuner.core.trial import OutcomeClass
from autotuner_worker.engines.http import HttpEngine, LiveState
from autotuner_worker.engines.vllm import VllmAdapter
from autotuner_worker.ports import EngineDeath, PlanPaths
from autotuner_worker.process import port_is_free, reserve_port
from tests.real.helpers import cache_bytes

pytestmark = [pytest.mark.real, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]

SMALL: Config = {
    "async_scheduling": True,
    "compilation_config.mode": 0,
    "enable_prefix_caching": False,
    "enforce_eager": True,
    "kv_cache_memory_bytes": 100_000_000,
    "max_model_len": 512,
    "max_num_batched_tokens": 512,
    "max_num_seqs": 16,
}
START_TIMEOUT = 240.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for everything that the module writes."""
    return tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="module")
def adapter(engine_command: list[str], folder: Path) -> VllmAdapter:
    """Return the adapter of the installed engine."""
    return VllmAdapter(engine_command, {}, folder / "state")


async def start(adapter: VllmAdapter, folder: Path, model: Path, name: str, config: Config) -> HttpEngine:
    """Start an engine."""
    cache = Path(os.environ.get("AUTOTUNER_TEST_CACHE") or folder / "cache")
    paths = PlanPaths(run_dir=folder / name, log_path=folder / f"{name}.log", cache_dir=cache)
    with reserve_port() as lease:
        plan = adapter.plan(str(model), config, paths, lease.port)
        return await adapter.start(plan, paths, name, START_TIMEOUT, lambda *_: None)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(adapter: VllmAdapter, folder: Path, tiny_model: Path) -> AsyncIterator[HttpEngine]:
    """Return the engine that most tests share; the last one stops it."""
    found = await start(adapter, folder, tiny_model, "shared", SMALL)
    yield found
    await found.stop()


@asynccontextmanager
async def load(engine: HttpEngine, clients: int) -> AsyncIterator[None]:
    """Keep *clients* completions in flight."""

    async def one(session: aiohttp.ClientSession, seed: int) -> None:
        body = {
            "model": engine.model_name,
            "prompt": [5 + seed] * 16,
            "max_tokens": 480,
            "ignore_eos": True,
            "stream": True,
        }
        while True:
            async with session.post(f"{engine.base_url}/v1/completions", json=body) as response:
                async for _ in response.content:
                    pass

    async with aiohttp.ClientSession() as session:
        tasks = [asyncio.create_task(one(session, seed)) for seed in range(clients)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def reach(engine: HttpEngine, wanted: Callable[[LiveState], bool]) -> None:
    """Ask the engine for its state until it is the one that is wanted."""
    async with asyncio.timeout(60):
        while True:
            if wanted(await engine.state()):
                return
            await asyncio.sleep(0.05)


async def test_the_engine_describes_itself_and_is_asked_once(adapter: VllmAdapter, tiny_model: Path) -> None:
    found = await adapter.describe(str(tiny_model))
    assert found.kind == "vllm"
    assert len(found.flags) > 200
    kinds = {
        name: flag.kind
        for name in ("max_num_seqs", "dtype", "gpu_memory_utilization", "enforce_eager", "speculative_config")
        if (flag := found.flag(name))
    }
    assert kinds == {
        "max_num_seqs": "int",
        "dtype": "str",
        "gpu_memory_utilization": "float",
        "enforce_eager": "bool",
        "speculative_config": "json",
    }
    caching = found.flag("enable_prefix_caching")
    assert caching is not None
    assert caching.negatable
    assert caching.help
    assert {"max_num_seqs", "max_num_batched_tokens"} <= set(found.context_defaults)
    assert found.model["architecture"] == "LlamaForCausalLM"
    began = asyncio.get_running_loop().time()
    assert await adapter.describe(str(tiny_model)) == found
    assert asyncio.get_running_loop().time() - began < 1.0


async def test_a_start_is_followed_and_its_effect_known(engine: HttpEngine) -> None:
    launch = engine.launch
    assert {"import", "config", "engine_start", "worker_start", "load_weights", "first_answer"} <= set(launch.phases)
    assert launch.ready_seconds == pytest.approx(sum(launch.phases.values()))
    assert launch.effective["max_num_seqs"] == "16"
    assert launch.effective["enable_prefix_caching"] == "False"
    assert launch.effective["compilation_config.mode"] == "0"
    if launch.effective["async_scheduling"] == "False":  # as on every CPU
        assert launch.no_ops == ("async_scheduling",)
    metrics = await engine.metrics()
    assert metrics["vllm:generation_tokens_total"] >= 2
    usage = await engine.host_usage()
    assert usage["cpu_seconds"] > 1
    assert usage["rss_bytes"] > 500e6


async def test_hot_limits_take_effect(engine: HttpEngine) -> None:
    assert engine.hot_capable
    assert await engine.apply_hot({"max_num_seqs": 2, "max_num_batched_tokens": 64, "long_prefill_token_threshold": 16})
    async with load(engine, 6):
        await reach(engine, lambda state: (state.running, state.waiting) == (2, 4))
        assert await engine.apply_hot(
            {"max_num_seqs": 16, "max_num_batched_tokens": 512, "long_prefill_token_threshold": 0}
        )
        await reach(engine, lambda state: (state.running, state.waiting) == (6, 0))
    await engine.settle(30.0)
    await engine.reset_caches()
    with pytest.raises(EngineDeath, match="is 16"):
        await engine.apply_hot({"max_num_seqs": 32})


async def test_stopping_under_load_leaves_nothing(engine: HttpEngine) -> None:
    port = int(engine.base_url.rsplit(":", 1)[1])
    async with load(engine, 4):
        await reach(engine, lambda state: state.running > 0)
        began = asyncio.get_running_loop().time()
        await engine.stop()
        assert asyncio.get_running_loop().time() - began < 15
    assert engine.process_ids() == []
    assert port_is_free("127.0.0.1", port)


async def test_an_engine_core_killed_while_serving_is_a_crash(
    adapter: VllmAdapter, folder: Path, tiny_model: Path
) -> None:
    engine = await start(adapter, folder, tiny_model, "killed", SMALL)
    try:
        async with load(engine, 2):
            await reach(engine, lambda state: state.running > 0)
            core = next(pid for pid in engine.process_ids() if "EngineCor" in Path(f"/proc/{pid}/comm").read_text())
            os.kill(core, signal.SIGKILL)
            fault = await asyncio.wait_for(engine.died(), 30.0)
        assert fault.outcome is OutcomeClass.CRASHED
        assert "killed" in fault.message
        assert engine.process_ids() == []
    finally:
        await engine.stop()


async def test_a_cache_too_small_for_one_request_is_out_of_memory(
    adapter: VllmAdapter, folder: Path, tiny_model: Path
) -> None:
    with pytest.raises(EngineDeath) as caught:
        await start(
            adapter, folder, tiny_model, "small", {**SMALL, "kv_cache_memory_bytes": cache_bytes(tiny_model, 400)}
        )
    assert caught.value.fault.outcome is OutcomeClass.OOM_AT_START, caught.value.fault
    assert 0 < caught.value.fault.hint["max_model_len"] < 512


async def test_an_unknown_flag_is_refused(adapter: VllmAdapter, folder: Path, tiny_model: Path) -> None:
    with pytest.raises(EngineDeath, match="unrecognized arguments: --num-scheduler-steps") as caught:
        await start(adapter, folder, tiny_model, "flag", {"num_scheduler_steps": 8})
    assert caught.value.fault.outcome is OutcomeClass.INFEASIBLE_CONFIG
