"""Starting an engine that serves HTTP: files, process, phases, the first real answer, and why it did not come.

Used by every adapter of such an engine.  Readiness is a completion with tokens in it: a health route answers before
the engine can, and goes on answering when it no longer does.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from autotuner.core.trial import Launch, OutcomeClass
from autotuner.errors import EnvironmentFault
from autotuner_worker.engines.classify import Evidence, LogRecords, Stage, classify
from autotuner_worker.engines.http import STOP_GRACE, Answer, EngineClient, HttpEngine, LiveState
from autotuner_worker.engines.vllm_phases import PhaseTracker, parse_line
from autotuner_worker.ports import EngineDeath, EngineFault, LaunchPlan, PlanPaths, ProgressSink
from autotuner_worker.process import BoundedLog, ExitStatus, ManagedProcess, port_is_free, spawn

__all__ = ["Inspect", "LaunchRequest", "launch_engine", "memory_kills", "shown_environment", "write_files"]

POLL = 0.1
"""Seconds between two looks whether the engine answers."""
GARBAGE_TRIES = 5
"""Wrong answers in a row after which the engine is taken to be broken."""
_SECRET = re.compile(r"(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|CREDENTIAL)", re.IGNORECASE)

Inspect = Callable[[LiveState], tuple[Mapping[str, str], tuple[str, ...]]]
"""Returns the effective values of the flags asked for, and the names of those that were ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """What is started, and how it is looked at."""

    plan: LaunchPlan
    paths: PlanPaths
    launch_id: str
    timeout: float
    """Seconds until the first real answer must have come."""
    progress: ProgressSink
    version: str = ""
    record: Path
    """Where the process supervisor keeps its record while the engine runs."""
    inspect: Inspect | None = None


class _Follower:
    """Follows the engine's output: phases and progress until it is ready, records for an explanation always."""

    def __init__(self, request: LaunchRequest, began: float) -> None:
        self.tracker = PhaseTracker(began)
        self.records = LogRecords()
        self.ready = False
        self._progress = request.progress
        self._clock = asyncio.get_running_loop().time
        self._kills = memory_kills()

    def line(self, raw: str) -> None:
        """Take in one line of output."""
        self.records.feed(raw)
        if self.ready:
            return
        phase = self.tracker.observe(parse_line(raw), self._clock())
        if phase is not None:
            self._progress(phase, "", 0.0)

    def serve(self) -> None:
        """From here on the engine serves: what it printed at start explains nothing any more."""
        self.ready = True
        self.records = LogRecords()

    def explain(self, status: ExitStatus | None) -> EngineFault:
        """Return why the engine ended."""
        code = None
        if status is not None:
            code = -status.signal if status.signal is not None else status.code
        return classify(
            Evidence(
                stage=Stage.SERVING if self.ready else Stage.START,
                exit_code=code,
                memory_kills=max(0, memory_kills() - self._kills),
                records=self.records.all(),
                phase="" if self.ready else self.tracker.phase,
            )
        )


async def launch_engine(request: LaunchRequest) -> HttpEngine:
    """Carry out the plan and return the engine once it has really answered.

    Raises ``EngineDeath`` with the class of the failure and the launch record so far; nothing is left running then, nor
    when this call is cancelled.
    """
    plan, clock = request.plan, asyncio.get_running_loop().time
    launch = Launch(
        launch_id=request.launch_id,
        argv=plan.argv,
        env=shown_environment(plan.added_env),
        engine_version=request.version,
        log_path=str(request.paths.log_path),
    )
    began = clock()
    follower = _Follower(request, began)
    try:
        process = await _spawn(request, follower)
    except (OSError, EnvironmentFault) as error:
        refused = EngineFault(outcome=OutcomeClass.INFRASTRUCTURE, message=f"the engine cannot be started: {error}")
        raise EngineDeath(refused, launch) from error
    client = EngineClient(f"http://{plan.host}:{plan.port}", plan.served_name)
    try:
        fault = await _until_ready(request, client, process, follower)
    except BaseException:
        await asyncio.shield(_end(process, client))
        raise
    ready = clock()
    phases = follower.tracker.finish(ready)
    if fault is not None:
        await asyncio.shield(_end(process, client))
        raise EngineDeath(fault, replace(launch, phases=phases))
    state = await client.state()
    effective, ignored = request.inspect(state) if request.inspect else ({}, ())
    follower.serve()
    request.progress("ready", f"{ready - began:.1f} s", 0.0)
    return HttpEngine(
        client=client,
        process=process,
        port=plan.port,
        launch=replace(launch, phases=phases, ready_seconds=ready - began, effective=effective, no_ops=ignored),
        state=state,
        explain=follower.explain,
    )


async def _spawn(request: LaunchRequest, follower: _Follower) -> ManagedProcess:
    plan = request.plan
    if not port_is_free(plan.host, plan.port):
        raise EnvironmentFault(f"port {plan.port} is already in use")
    write_files(plan)
    request.paths.run_dir.mkdir(parents=True, exist_ok=True)
    request.paths.cache_dir.mkdir(parents=True, exist_ok=True)
    secrets = [value for name, value in plan.env.items() if _SECRET.search(name)]
    log = BoundedLog(request.paths.log_path, secrets=secrets)
    request.progress("import", "", 0.0)
    return await spawn(plan.argv, plan.env, request.paths.run_dir, log, request.record, lines=follower.line)


async def _until_ready(
    request: LaunchRequest, client: EngineClient, process: ManagedProcess, follower: _Follower
) -> EngineFault | None:
    """Wait for the first real answer; return ``None`` when it came and the fault when it did not."""
    exited = asyncio.create_task(process.wait())
    answered = asyncio.create_task(_first_answer(client))
    try:
        done, _ = await asyncio.wait({exited, answered}, timeout=request.timeout, return_when=asyncio.FIRST_COMPLETED)
        if exited in done:
            report = await process.stop(0.0)  # reads the rest of the output, the causes among it
            return follower.explain(report.exit)
        if answered in done:
            return answered.result()
    finally:
        exited.cancel()
        answered.cancel()
        await asyncio.gather(exited, answered, return_exceptions=True)
    return EngineFault(
        outcome=OutcomeClass.TIMED_OUT,
        message=f"the engine was not ready within {request.timeout:g} s; it was in start-up phase {follower.tracker.phase}",
        evidence=tuple(record.render() for record in follower.records.all()[:8]),
    )


async def _first_answer(client: EngineClient) -> EngineFault | None:
    wrong = 0
    while True:
        answer, detail = await client.complete()
        if answer is Answer.GOOD:
            return None
        wrong = wrong + 1 if answer is Answer.GARBAGE else 0
        if wrong >= GARBAGE_TRIES:
            message = "the engine's server answers, but not with a completion"
            return EngineFault(outcome=OutcomeClass.GARBAGE, message=message, evidence=(detail,))
        await asyncio.sleep(POLL)


async def _end(process: ManagedProcess, client: EngineClient) -> None:
    await process.stop(STOP_GRACE)
    await client.close()


def write_files(plan: LaunchPlan) -> None:
    """Write the plan's files; raise ``OSError`` when that fails."""
    for path, content in plan.files.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(content, encoding="utf-8")


def shown_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return *env* with the values of secrets replaced."""
    return {name: "***" if _SECRET.search(name) else value for name, value in env.items()}


def memory_kills() -> int:
    """Return how many processes the kernel has killed for memory in this process's control group (host-wide if unknown)."""
    for path in (*_control_group_files(), Path("/proc/vmstat")):
        try:
            text = path.read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError):
            continue
        match = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
        if match:
            return int(match[1])
    return 0


def _control_group_files() -> list[Path]:
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found: list[Path] = []
    root = Path("/sys/fs/cgroup")
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers == "":
            found += [root / group.lstrip("/") / "memory.events", root / "memory.events"]
        elif "memory" in controllers.split(","):
            found += [
                root / "memory" / group.lstrip("/") / "memory.oom_control",
                root / "memory" / "memory.oom_control",
            ]
    return found
