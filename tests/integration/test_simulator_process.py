"""The simulated engine as a real process, through its adapter: start, load, hot limits, faults, and nothing left."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from autotuner.core.space import Config
from autotuner.core.trial import OutcomeClass
from autotuner.errors import EngineUnavailable
from autotuner_worker.engines.http import HttpEngine
from autotuner_worker.engines.simulated import SimulatedAdapter, SimulatorOptions
from autotuner_worker.ports import EngineDeath, PlanPaths
from autotuner_worker.process import port_is_free, reserve_port

pytestmark = pytest.mark.process

MODEL = "sim-tiny"
OPTIONS = SimulatorOptions(time_scale=0.05, startup_scale=0.0)


def quiet(phase: str, detail: str, throughput: float) -> None:
    """Take progress and drop it."""


def paths_in(folder: Path) -> PlanPaths:
    return PlanPaths(run_dir=folder / "run", log_path=folder / "engine.log", cache_dir=folder / "cache")


async def started(
    folder: Path, config: Config | None = None, options: SimulatorOptions = OPTIONS, timeout: float = 30.0
) -> HttpEngine:
    adapter = SimulatedAdapter(options=options, parent_env=dict(os.environ))
    paths = paths_in(folder)
    with reserve_port("127.0.0.1") as lease:
        plan = adapter.plan(MODEL, config or {}, paths, lease.port)
    return await adapter.start(plan, paths, "launch-1", timeout, quiet)


@asynccontextmanager
async def running(
    folder: Path, config: Config | None = None, *faults: str, **options: Any
) -> AsyncIterator[HttpEngine]:
    merged = {"time_scale": 0.05, "startup_scale": 0.0, "faults": faults, **options}
    engine = await started(folder, config, SimulatorOptions(**merged))
    try:
        yield engine
    finally:
        await engine.stop()
        port = int(engine.base_url.rsplit(":", 1)[1])
        assert port_is_free("127.0.0.1", port)


async def ask(engine: HttpEngine, **body: Any) -> dict[str, Any]:
    full = {"model": engine.model_name, "prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True, **body}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{engine.base_url}/v1/completions", json=full) as response,
    ):
        return dict(await response.json())


async def test_starts_answers_takes_hot_limits_and_leaves_nothing(tmp_path: Path) -> None:
    config: Config = {
        "max_num_seqs": 16,
        "gpu_memory_utilization": 0.8,
        "enable_prefix_caching": False,
        "cpu_offload_gb": 1.0,
        "speculative_config.method": "ngram",
        "speculative_config.num_speculative_tokens": 2,
    }
    async with running(tmp_path, config) as engine:
        launch = engine.launch
        assert launch.engine_version.startswith("simulated-")
        assert launch.ready_seconds is not None
        assert "load_weights" in launch.phases
        assert launch.no_ops == ("cpu_offload_gb",)
        assert launch.effective["max_num_seqs"] == "16"
        assert launch.effective["enable_prefix_caching"] == "False"
        assert launch.effective["speculative_config.num_speculative_tokens"] == "2"
        assert engine.hot_capable
        assert await engine.apply_hot({"max_num_seqs": 4}) == {"max_num_seqs": 4}
        answer = await ask(engine)
        assert answer["usage"]["completion_tokens"] == 4
        await engine.settle(5)
        await engine.reset_caches()
        assert (await engine.metrics())["vllm:generation_tokens_total"] >= 4
        assert (await engine.host_usage())["rss_bytes"] > 0
        with pytest.raises(EngineDeath, match="did not take"):
            await engine.apply_hot({"max_num_seqs": 99})
    assert "SIMULATED ENGINE" in (tmp_path / "engine.log").read_text()


async def test_plan_is_pure_and_complete(tmp_path: Path) -> None:
    adapter = SimulatedAdapter(
        options=OPTIONS, parent_env={"PATH": "/bin", "AUTOTUNER_SIM_SEED": "3", "AUTOTUNER_X": "1"}
    )
    config: Config = {"max_num_seqs": 8, "enable_prefix_caching": False, "speculative_config.method": "none"}
    first = adapter.plan("sim-7b", config, paths_in(tmp_path), 1234)
    assert first == adapter.plan("sim-7b", config, paths_in(tmp_path), 1234)
    assert not (tmp_path / "run").exists()
    assert list(first.files.values()) == ["max-num-seqs: 8\nno-enable-prefix-caching: true\n"]
    assert first.argv[first.argv.index("--time-scale") + 1] == "0.05"
    assert first.env["AUTOTUNER_SIM_SEED"] == "3"
    assert "AUTOTUNER_X" not in first.env
    assert "PATH" not in first.added_env


async def test_description_comes_from_the_table() -> None:
    found = await SimulatedAdapter().describe("sim-7b")
    assert (found.kind, found.platform) == ("simulated", "simulated")
    assert found.version.startswith("simulated-")
    assert found.context_defaults["max_num_seqs"] == 256
    assert found.model["num_attention_heads"] == 32
    assert found.flag("max_num_seqs") is not None
    assert found.flag("speculative_config.method") is not None
    assert found.flag("time_scale") is None
    assert "cpu_offload_gb" in found.no_ops
    with pytest.raises(EngineUnavailable, match="knows no model"):
        await SimulatedAdapter().describe("nobody/knows")


@pytest.mark.parametrize(
    ("config", "options", "outcome", "word"),
    [
        ({"num_scheduler_steps": 8}, OPTIONS, OutcomeClass.INFEASIBLE_CONFIG, "unrecognized arguments"),
        ({"max_num_seqs": 64, "max_num_batched_tokens": 8}, OPTIONS, OutcomeClass.INFEASIBLE_CONFIG, "max_num_seqs"),
        ({"block_size": 20}, OPTIONS, OutcomeClass.INFEASIBLE_CONFIG, "block_size 20"),
        ({"gpu_memory_utilization": 0.01}, OPTIONS, OutcomeClass.OOM_AT_START, "gpu_memory_utilization"),
        ({"gpu_memory_utilization": 0.99}, OPTIONS, OutcomeClass.OOM_AT_START, "less memory is free"),
        ({"num_gpu_blocks_override": 4}, OPTIONS, OutcomeClass.OOM_AT_START, "lower max_model_len to 64"),
        ({}, SimulatorOptions(startup_scale=0.0, faults=("exit_at_start",)), OutcomeClass.CRASHED, "exit_at_start"),
        ({}, SimulatorOptions(startup_scale=0.0, faults=("garbage",)), OutcomeClass.GARBAGE, "not with a completion"),
    ],
)
async def test_failed_starts_are_classified(
    tmp_path: Path, config: Config, options: SimulatorOptions, outcome: OutcomeClass, word: str
) -> None:
    with pytest.raises(EngineDeath, match=word) as caught:
        await started(tmp_path, config, options)
    assert caught.value.fault.outcome is outcome
    assert not list((tmp_path / "processes").glob("*.json"))


@pytest.mark.parametrize("fault", ["never_ready", "slow_start=60"])
async def test_an_engine_that_is_never_ready_times_out(tmp_path: Path, fault: str) -> None:
    options = SimulatorOptions(startup_scale=0.0, faults=(fault,))
    with pytest.raises(EngineDeath, match="not ready within") as caught:
        await started(tmp_path, options=options, timeout=1.5)
    assert caught.value.fault.outcome is OutcomeClass.TIMED_OUT


async def test_a_flood_of_output_is_bounded(tmp_path: Path) -> None:
    async with running(tmp_path, None, "print_100mb=20") as engine:
        assert (await ask(engine))["usage"]["completion_tokens"] == 4
        assert (tmp_path / "engine.log").stat().st_size < 8 * 2**20


async def test_a_crash_under_load_is_noticed_and_explained(tmp_path: Path) -> None:
    async with running(tmp_path, None, "crash_after_n_requests=2") as engine:
        assert "error" in await ask(engine)
        fault = await asyncio.wait_for(engine.died(), 20)
        assert fault.outcome is OutcomeClass.CRASHED
        assert "crash_after_n_requests" in fault.message


async def test_memory_failure_under_load_is_classified(tmp_path: Path) -> None:
    config: Config = {"gpu_memory_utilization": 0.95, "max_num_seqs": 256}
    async with running(tmp_path, config, sim_seed=_fatal_seed(config), sim_oom_kv_usage=0.0001) as engine:
        assert "error" in await ask(engine, prompt=[4] * 2000, max_tokens=500)
        fault = await asyncio.wait_for(engine.died(), 20)
        assert fault.outcome is OutcomeClass.OOM_UNDER_LOAD


def _fatal_seed(config: Config) -> int:
    from autotuner_worker.simulator.app import build_core
    from autotuner_worker.simulator.flags import parse, settings_from
    from autotuner_worker.simulator.surface import oom_strikes

    arguments = [part for name, value in config.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    core = build_core(settings_from(parse([MODEL, *arguments], {})))
    return next(seed for seed in range(100) if oom_strikes(seed, core.settings.launch_key, core.memory.utilisation))


async def test_a_hanging_engine_does_not_settle(tmp_path: Path) -> None:
    async with running(tmp_path, None, "hang_under_load=2") as engine:
        body = {"model": engine.model_name, "prompt": [5, 6, 7], "stream": True}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{engine.base_url}/v1/completions", json=body),
        ):
            with pytest.raises(EngineDeath) as caught:
                await engine.settle(0.3)
        assert caught.value.fault.outcome is OutcomeClass.HUNG


@pytest.mark.parametrize("faults", [("ignore_sigterm",), ("spawn_orphan",), ("spawn_orphan=session",)])
async def test_stubborn_processes_are_gone_after_stop(tmp_path: Path, faults: tuple[str, ...]) -> None:
    engine = await started(tmp_path, options=SimulatorOptions(time_scale=0.05, startup_scale=0.0, faults=faults))
    pids = engine._process.pids()
    assert len(pids) == (2 if "orphan" in faults[0] else 1)
    await engine.stop()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


async def test_many_streams_cost_little(tmp_path: Path) -> None:
    async with running(tmp_path, None, time_scale=1.0) as engine:
        before = await engine.host_usage()
        began = time.monotonic()
        answers = await asyncio.gather(*(ask(engine, max_tokens=64, prompt=[9] * 128) for _ in range(32)))
        took = time.monotonic() - began
        after = await engine.host_usage()
        assert sum(answer["usage"]["completion_tokens"] for answer in answers) == 32 * 64
        assert after["cpu_seconds"] - before["cpu_seconds"] < max(1.0, 2 * took)
