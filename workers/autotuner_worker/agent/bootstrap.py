"""The worker's only wiring: from its configuration to a running agent, and what a host can tell about itself."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import platform
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from autotuner import __version__
from autotuner.core.study import Hardware
from autotuner.core.workers import Device, EngineSummary, HostReport, WorkerInfo
from autotuner.errors import EnvironmentFault, Interrupted
from autotuner_worker.agent.config import WorkerConfig, resolve_env
from autotuner_worker.agent.loop import Agent
from autotuner_worker.engines import adapter_class
from autotuner_worker.link import Link
from autotuner_worker.ports import EngineAdapter
from autotuner_worker.probes.host import cpu_available, cpu_info, host_memory, require_disk
from autotuner_worker.probes.nvml import Nvml
from autotuner_worker.process import INSTANCE, reap_leftovers
from autotuner_worker.procfs import boot_id
from autotuner_worker.runner import Runner
from autotuner_worker.spool import Spool
from autotuner_worker.workloads.generator import HttpLoadGenerator

__all__ = ["detect_hardware", "make_adapter", "make_model", "report_host", "serve", "while_wanted"]

DISK_NEEDED = 256 * 1024 * 1024
"""Bytes that a worker wants free for logs, records and its spool."""
LOCK_PATIENCE = 30.0
"""Seconds for an earlier life of this worker to finish its clean-up."""
DEFAULT_VOCABULARY = 1000

T = TypeVar("T")


@runtime_checkable
class ModelMaker(Protocol):
    """An adapter whose engine's environment can make a small model."""

    async def make_model(self, out: Path) -> None:
        """Make the model in *out*, unless it is there."""
        ...


class _Monotonic:
    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()


def make_adapter(config: WorkerConfig) -> EngineAdapter:
    """Return the adapter for the configured engine."""
    make: Callable[..., EngineAdapter] = adapter_class(config.engine_kind)
    extra: dict[str, object] = {}
    if config.engine_kind == "vllm":
        extra = {"engine_python": config.engine_python, "description_dir": config.cache_dir / "descriptions"}
    return make(config.engine_command, resolve_env(config.engine_env), config.state_dir, **extra)


def detect_hardware() -> Hardware:
    """Return the first GPU's kind and the number of GPUs, or the CPU when there is none."""
    with Nvml() as nvml:
        gpus = nvml.inventory()
    if not gpus:
        memory = host_memory()
        units = max(1, int(cpu_available()))
        return Hardware(device="cpu", name=cpu_info().model, compute_units=units, memory_bytes=memory.total)
    first = gpus[0]
    major, minor = first.compute_capability or (0, 0)
    return Hardware(
        device="cuda",
        name=first.name,
        count=len(gpus),
        compute_units=first.multiprocessors or 0,
        memory_bytes=first.memory_total,
        compute_capability=major + minor / 10,
        nvlink=any(gpu.nvlink for gpu in gpus),
    )


def _require_cache(folder: Path) -> None:
    """Make the folder of caches; raise ``EnvironmentFault`` when it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return
    except OSError as error:
        raise EnvironmentFault(
            f"cannot write to the cache folder {folder} ({error.strerror or error}): "
            "set AUTOTUNER_CACHE_DIR (a worker's cache_dir) to a folder that you may write"
        ) from error


async def report_host(config: WorkerConfig, model: str | None) -> HostReport:
    """Ask engine and host about themselves; raise ``EngineUnavailable`` when the engine cannot be asked."""
    if config.engine_kind == "vllm":
        _require_cache(config.cache_dir)
    config.state_dir.mkdir(parents=True, exist_ok=True)
    description = await make_adapter(config).describe(model)
    return HostReport(engine=description, hardware=detect_hardware(), memory_available=host_memory().available)


async def make_model(config: WorkerConfig, out: Path) -> None:
    """Make the small model in *out* with the engine's Python; raise ``EngineUnavailable`` when that fails."""
    _require_cache(config.cache_dir)
    adapter = make_adapter(config)
    if isinstance(adapter, ModelMaker):
        await adapter.make_model(out)


async def while_wanted(work: Coroutine[Any, Any, T], parent_fd: int | None) -> T:
    """Return the result of *work*; cancel it and raise ``Interrupted`` when the parent's pipe ends first."""
    task = asyncio.ensure_future(work)
    if parent_fd is not None:
        asyncio.get_running_loop().add_reader(parent_fd, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        raise Interrupted("the process that asked is gone") from None
    finally:
        if parent_fd is not None:
            asyncio.get_running_loop().remove_reader(parent_fd)


@contextlib.asynccontextmanager
async def _only_one(state_dir: Path) -> AsyncIterator[None]:
    """Hold the lock of *state_dir*; wait for an earlier life to finish its clean-up."""
    state_dir.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + LOCK_PATIENCE
    with (state_dir / "worker.lock").open("w", encoding="ascii") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise EnvironmentFault(
                        f"another worker uses {state_dir}; end it, or give this one a state directory of its own"
                    ) from None
                await asyncio.sleep(0.1)
        yield


async def serve(config: WorkerConfig, parent_fd: int | None) -> None:
    """Run the worker until the controller dismisses it, a signal arrives or the parent's pipe ends."""
    async with _only_one(config.state_dir):
        _require_cache(config.cache_dir)
        require_disk(config.out_dir, DISK_NEEDED, "records and engine logs")
        await reap_leftovers(config.state_dir / "processes")
        shutil.rmtree(config.state_dir / "launches", ignore_errors=True)
        adapter = make_adapter(config)
        description = await adapter.describe(config.model)
        hardware = detect_hardware()
        info = WorkerInfo(
            worker_id=config.worker_id,
            instance_id=INSTANCE,
            host=platform.node(),
            boot_id=boot_id(),
            engine=EngineSummary(
                kind=description.kind, version=description.version, platform=description.platform, hot_capable=True
            ),
            resident_engines=max(1, config.resident_engines),
            devices=(Device(kind=hardware.device, name=hardware.name, memory_bytes=hardware.memory_bytes),),
            program_version=__version__,
        )
        vocabulary = description.model.get("vocab_size", DEFAULT_VOCABULARY)
        agent = Agent(
            config=config,
            link=Link(config.controller, info, Spool(config.state_dir / "spool"), _Monotonic()),
            runner=Runner(instance_id=uuid.uuid4().hex[:8], resident=config.resident_engines),
            adapter=adapter,
            load=HttpLoadGenerator(),
            vocabulary=vocabulary if isinstance(vocabulary, int) else DEFAULT_VOCABULARY,
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, agent.leave, signal.Signals(number).name)
        if parent_fd is not None:
            loop.add_reader(parent_fd, _parent_gone, loop, parent_fd, agent)
        await agent.run()


def _parent_gone(loop: asyncio.AbstractEventLoop, parent_fd: int, agent: Agent) -> None:
    if not os.read(parent_fd, 1):
        loop.remove_reader(parent_fd)
        agent.leave("the process that started this worker is gone")
