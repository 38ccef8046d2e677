"""``python -m autotuner_worker.simulator.server [MODEL] --config FILE --port N``: the simulated engine as a program.

Ends like a real engine: 2 for arguments that cannot be parsed, 1 for a start that fails, 0 after SIGTERM and also when
the engine died while serving.  The port is bound at once and listens only when the engine is ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web

from autotuner_worker.simulator import SIMULATOR_VERSION
from autotuner_worker.simulator.app import build_app, build_core
from autotuner_worker.simulator.engine import EngineCore
from autotuner_worker.simulator.flags import (
    FLAGS,
    NO_OPS,
    SIMULATOR_ONLY,
    Rejected,
    ServerSettings,
    parse,
    settings_from,
)
from autotuner_worker.simulator.surface import NoMemory, startup_phases

__all__ = ["main"]

_CAUSE_ABOVE = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
_DEATH_GRACE = 0.2
"""Seconds between the engine's death and the end of the program: clients get their error chunks."""


def _log(text: str, *, process: str = "APIServer", level: str = "INFO") -> None:
    stamp = time.strftime("%m-%d %H:%M:%S")
    sys.stdout.write(f"({process} pid={os.getpid()}) {level} {stamp} [simulated] {text}\n")
    sys.stdout.flush()


def _complain(*lines: str) -> None:
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    sys.stderr.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    values = parse(sys.argv[1:] if argv is None else argv, os.environ)
    _log(f"SIMULATED ENGINE {SIMULATOR_VERSION}: no model is computed, figures come from a formula")
    try:
        settings = settings_from(values)
    except Rejected as error:
        _complain(*(f"(APIServer pid={os.getpid()}) {line}" for line in error.lines()))
        return 1
    except ValueError as error:
        _complain(f"simulated: error: {error}")
        return 2
    if settings.faults.has("ignore_sigterm"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return asyncio.run(_serve(settings))


async def _serve(settings: ServerSettings) -> int:
    """Start up, serve, and end."""
    listener = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        _complain(f"(APIServer pid={os.getpid()}) OSError: {error}")
        return 1
    code = await _early_faults(settings)
    if code is not None:
        return code
    try:
        core = await _start_core(settings)
    except NoMemory as error:
        _fail_core(error.lines)
        return 1
    runner = web.AppRunner(build_app(core), access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    if settings.faults.has("never_ready"):
        await asyncio.Event().wait()
    await web.SockSite(runner, listener, backlog=1024).start()
    _log(f"Application startup complete. Listening on http://{settings.host}:{listener.getsockname()[1]}")
    try:
        return await _until_end(settings, core)
    finally:
        await runner.cleanup()


async def _early_faults(settings: ServerSettings) -> int | None:
    """Carry out the faults of the start; return an exit code to end with."""
    faults = settings.faults
    if faults.has("spawn_orphan"):
        _spawn_orphan(detached=faults.arguments["spawn_orphan"] == "session")
    megabytes = faults.number("print_100mb")
    if megabytes is not None:
        line = ("(EngineCore) " + "x" * 1010 + "\n") * 1024
        for _ in range(int(megabytes)):
            sys.stdout.write(line)
        sys.stdout.flush()
    await asyncio.sleep(faults.number("slow_start") or 0.0)
    code = faults.number("exit_at_start")
    if code is None:
        return None
    _complain("Traceback (most recent call last):", "RuntimeError: simulated fault: exit_at_start")
    return int(code)


def _spawn_orphan(*, detached: bool) -> None:
    """Start a child that outlives the server: it ignores SIGTERM and holds no pipe of ours."""
    program = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: signal.pause()"
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=detached,
    )
    _log(f"simulated fault: orphan pid={child.pid}")
    child.returncode = 0  # it is meant to outlive us: nothing to warn about at exit


async def _start_core(settings: ServerSettings) -> EngineCore:
    """Go through the phases of a start, scaled, with the log lines of a real engine."""
    surface = settings.surface
    marker = _compile_marker(settings)
    compiled = marker is not None and marker.exists()
    phases = {name: seconds * settings.startup_scale for name, seconds in startup_phases(surface, compiled).items()}
    _log(f"non-default args: {_shown(settings)}")
    for name in settings.ignored:
        _log(f"{name} is ignored: {NO_OPS[name]}", level="WARNING")
    await asyncio.sleep(phases["import"])
    _log(f"Using max model len {surface.max_model_len}")
    _log(
        f"Initializing a V1 LLM engine ({SIMULATOR_VERSION}, simulated) with model {surface.model.name}",
        process="EngineCore",
    )
    _log(f"Starting to load model {surface.model.name}...", process="EngineCore")
    core = build_core(settings)
    await asyncio.sleep(phases["load_weights"])
    _log(f"Loading weights took {phases['load_weights']:.2f} seconds", process="EngineCore")
    if "compile" in phases:
        _log("Compiling a graph for dynamic shape (simulated)", process="EngineCore")
        await asyncio.sleep(phases["compile"])
        _log(f"torch.compile took {phases['compile']:.2f} s in total", process="EngineCore")
        if marker is not None:
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.touch()
    await asyncio.sleep(phases["profile"])
    memory = core.memory
    _log(f"Available KV cache memory: {memory.kv_cache / 2**30:.2f} GiB", process="EngineCore")
    _log(f"GPU KV cache size: {memory.kv_tokens:,} tokens", process="EngineCore")
    if "capture" in phases:
        _log("Capturing CUDA graphs (simulated)", process="EngineCore")
        await asyncio.sleep(phases["capture"])
        _log(f"Graph capturing finished in {phases['capture']:.2f} secs", process="EngineCore")
    await asyncio.sleep(phases["warmup"])
    took = sum(phases.values())
    _log(f"init engine (profile, create kv cache, warmup model) took {took:.2f} seconds", process="EngineCore")
    return core


def _shown(settings: ServerSettings) -> str:
    defaults = {flag.name: flag.default for flag in (*FLAGS, *SIMULATOR_ONLY)}
    changed = {name: value for name, value in settings.raw.items() if name in defaults and value != defaults[name]}
    return ", ".join(f"{name}={value!r}" for name, value in sorted(changed.items()))


def _compile_marker(settings: ServerSettings) -> Path | None:
    """Return the file that remembers this compilation; each value of the scheduler's limits compiles anew."""
    if not settings.cache_dir:
        return None
    surface = settings.surface
    key = (
        surface.model.name,
        surface.max_num_seqs,
        surface.max_num_batched_tokens,
        settings.dtype,
        surface.quantization,
    )
    return Path(settings.cache_dir) / "simulated" / hashlib.blake2b(repr(key).encode(), digest_size=8).hexdigest()


def _fail_core(lines: Sequence[str]) -> None:
    """Print the last lines of a start that failed inside the engine."""
    _log("EngineCore failed to start.", process="EngineCore", level="ERROR")
    _complain(
        *(f"(EngineCore pid={os.getpid()}) {line}" for line in lines), f"(APIServer pid={os.getpid()}) {_CAUSE_ABOVE}"
    )


async def _until_end(settings: ServerSettings, core: EngineCore) -> int:
    """Wait for SIGTERM, SIGINT or the engine's death."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    if not settings.faults.has("ignore_sigterm"):
        loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, stop.set)
    ends = [asyncio.create_task(stop.wait()), asyncio.create_task(core.dead.wait())]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for task in ends:
        task.cancel()
    if core.dead.is_set():
        for line in core.cause:
            _log(line, process="EngineCore", level="ERROR")
        _log("EngineDeadError: the engine core died, shutting down", level="ERROR")
        await asyncio.sleep(_DEATH_GRACE)
        return 0
    _log("Shutting down")
    if settings.shutdown_timeout > 0:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(core.idle.wait(), settings.shutdown_timeout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
