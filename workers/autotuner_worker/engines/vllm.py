"""The adapter for vLLM's OpenAI-compatible server, started by command from whatever environment it is installed in.

The worker never imports vLLM: it reads the installation's metadata, runs a script in the engine's interpreter to ask
about flags, and starts the server with a configuration file of its own.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotuner.core.space import Config, EngineDescription
from autotuner.errors import EngineUnavailable
from autotuner_worker.engines.classify import Evidence, LogRecords, Stage, classify
from autotuner_worker.engines.http import HttpEngine, LiveState
from autotuner_worker.engines.http_launch import LaunchRequest, launch_engine, write_files
from autotuner_worker.engines.vllm_describe import MODEL_MAKER, SCRIPT, DescriptionCache, cache_key
from autotuner_worker.engines.vllm_effective import effective_values, ignored_flags
from autotuner_worker.engines.vllm_install import (
    Install,
    find_python,
    inspect_install,
    is_path,
    local_model,
    missing_model_message,
)
from autotuner_worker.engines.vllm_plan import PlanRequest, plan_launch
from autotuner_worker.ports import LaunchPlan, PlanPaths, ProgressSink
from autotuner_worker.process import BoundedLog, ExitStatus, spawn

__all__ = ["VllmAdapter"]

HOST = "127.0.0.1"
DESCRIBE_TIMEOUT = 240.0
"""Seconds for the engine's interpreter to import vLLM and answer; minutes when its files are not yet cached."""


class VllmAdapter:
    """Knows how to ask, plan and start vLLM; implements :class:`autotuner_worker.ports.EngineAdapter`."""

    def __init__(
        self,
        engine_command: Sequence[str],
        env: Mapping[str, str],
        state_dir: Path,
        *,
        engine_python: str | None = None,
        parent_env: Mapping[str, str] | None = None,
        cores: int | None = None,
        description_dir: Path | None = None,
    ) -> None:
        """Look at the installation behind *engine_command*; nothing is started.

        Args:
            engine_command: Such as ``("/opt/vllm/bin/vllm", "serve")``, or a wrapper that ends in it.
            env: Variables that the user sets for the engine.
            state_dir: For kept descriptions and process records.
            engine_python: The engine's interpreter where the command does not show it (a wrapper's, for example).
            parent_env: Environment to filter and hand on; this process's by default.
            cores: Cores that the engine may use; those of this process by default.
            description_dir: For kept descriptions; below *state_dir* by default.
        """
        if not engine_command:
            raise EngineUnavailable("the engine command is empty: give one such as 'vllm serve'")
        self._command = tuple(engine_command)
        self._env = dict(env)
        self._parent_env = dict(os.environ if parent_env is None else parent_env)
        self._state_dir = state_dir.absolute()
        self._cores = cores if cores is not None else len(os.sched_getaffinity(0))
        search_path = self._env.get("PATH", self._parent_env.get("PATH"))
        self._install = inspect_install(engine_python or find_python(self._command, search_path))
        self._cache = DescriptionCache(description_dir or self._state_dir / "descriptions")
        self._description: EngineDescription | None = None

    @property
    def install(self) -> Install:
        """What is installed, as far as it can be seen."""
        return self._install

    async def describe(self, model: str | None) -> EngineDescription:
        """Ask the installed engine about itself, once per installation and model.

        Raises ``EngineUnavailable`` when it cannot be asked or *model* is a path that does not exist.
        """
        name, _ = _resolved(model) if model is not None else (None, False)
        key = cache_key(self._install, name, self._env.get("VLLM_TARGET_DEVICE", ""))
        found = self._cache.load(key)
        if found is None:
            await self._ask(name, self._cache.path(key))
            found = self._cache.load(key)
        if found is None:
            raise EngineUnavailable(
                "the engine's answer about itself cannot be read: remove the state directory and try again"
            )
        self._description = found
        return found

    async def make_model(self, out: Path) -> None:
        """Make the small model in *out* with the engine's own Python; a no-op when it is there.

        Raises ``EngineUnavailable`` when that fails.
        """
        if (out / "config.json").is_file():
            return
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = out.with_name(f"{out.name}.{uuid.uuid4().hex}")
        try:
            await self._run_script([str(MODEL_MAKER), "--out", str(partial)], partial / "config.json", "make a model")
            partial.rename(out)
        except OSError as error:
            if not (out / "config.json").is_file():  # another process was quicker
                raise EngineUnavailable(f"cannot put the small model into {out}: {error}") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    async def _ask(self, model: str | None, out: Path) -> None:
        out.parent.mkdir(parents=True, exist_ok=True)
        arguments = [str(SCRIPT), str(out), *([model] if model is not None else [])]
        await self._run_script(arguments, out, "describe itself", model)

    async def _run_script(self, arguments: list[str], out: Path, task: str, model: str | None = None) -> None:
        """Run a script of ours in the engine's interpreter; it must leave the file *out*."""
        if not self._install.python:
            raise EngineUnavailable(
                f"cannot tell which interpreter runs '{self._command[0]}': check that the program exists and is on PATH, "
                "or name the interpreter of the engine's environment"
            )
        run_dir = self._state_dir / "scripts" / uuid.uuid4().hex
        run_dir.mkdir(parents=True)
        records, log_path = LogRecords(), run_dir / "script.log"
        argv = [self._install.python, *arguments]
        paths = PlanPaths(run_dir=run_dir, log_path=log_path, cache_dir=run_dir)
        plan = plan_launch(
            self._request(model or "", {}, paths, 0, local=model is not None and is_path(model), plugin=False)
        )
        write_files(plan)
        log = BoundedLog(log_path)
        process = await spawn(argv, plan.env, run_dir, log, self._record("script-" + run_dir.name), lines=records.feed)
        try:
            status = await asyncio.wait_for(process.wait(), DESCRIBE_TIMEOUT)
        except TimeoutError:
            raise EngineUnavailable(
                f"the engine did not {task} within {DESCRIBE_TIMEOUT:g} s; see {log_path}"
            ) from None
        finally:
            await asyncio.shield(process.stop(0.0))
        if not out.is_file():
            raise EngineUnavailable(f"{_why(task, status, records, log)}; see {log_path}")
        shutil.rmtree(run_dir, ignore_errors=True)

    def plan(self, model: str, config: Config, paths: PlanPaths, port: int) -> LaunchPlan:
        """Return what ``start`` would do; raise ``EngineUnavailable`` when *model* is a path that does not exist."""
        name, local = _resolved(model)
        return plan_launch(self._request(name, config, paths, port, local=local))

    async def start(
        self, plan: LaunchPlan, paths: PlanPaths, launch_id: str, timeout: float, progress: ProgressSink
    ) -> HttpEngine:
        """Carry out *plan* and wait for the first real answer; raise ``EngineDeath`` when it does not come."""
        _resolved(plan.model)

        def inspect(state: LiveState) -> tuple[Mapping[str, str], tuple[str, ...]]:
            effective = effective_values(plan.config, state.effective)
            return effective, ignored_flags(plan.config, effective, self._description)

        return await launch_engine(
            LaunchRequest(
                plan=plan,
                paths=paths,
                launch_id=launch_id,
                timeout=timeout,
                progress=progress,
                version=self._install.version or (self._description.version if self._description else ""),
                record=self._record(launch_id),
                inspect=inspect,
            )
        )

    def _request(
        self, model: str, config: Config, paths: PlanPaths, port: int, *, local: bool, plugin: bool = True
    ) -> PlanRequest:
        return PlanRequest(
            command=self._command,
            model=model,
            model_is_local=local,
            config=config,
            host=HOST,
            port=port,
            paths=paths,
            install=self._install,
            parent_env=self._parent_env,
            engine_env=self._env,
            cores=self._cores,
            description=self._description,
            plugin=plugin,
        )

    def _record(self, name: str) -> Path:
        return self._state_dir / "processes" / f"{name}.json"


def _resolved(model: str) -> tuple[str, bool]:
    """Return the name to give to the engine and whether it is on this machine; raise when it is a path to nowhere."""
    folder = local_model(model)
    if folder is None:
        if is_path(model):
            raise EngineUnavailable(missing_model_message(model))
        return model, False
    if folder.is_dir() and not any((folder / name).is_file() for name in ("config.json", "params.json")):
        raise EngineUnavailable(f"{folder} holds no model: it has no config.json")
    return str(folder), True


def _why(task: str, status: ExitStatus, records: LogRecords, log: BoundedLog) -> str:
    code = -status.signal if status.signal is not None else status.code
    fault = classify(Evidence(stage=Stage.START, exit_code=code, records=records.all()))
    last = next((line for line in reversed(log.recent) if line.strip()), "")
    return f"the engine cannot {task}: {fault.message}" + (f" ({last.strip()[:200]})" if last else "")
