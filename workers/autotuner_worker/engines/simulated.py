"""The adapter of the simulated engine: same ports, same files and same failures as a real one, labelled ``simulated``.

The engine is the program ``autotuner_worker.simulator.server`` in a process of its own.  Its flags come from its own
table; nothing has to be installed or asked.  Results carry the kind and a version that begins with ``simulated``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import autotuner_worker
from autotuner.core.space import Config, EngineDescription, EngineFlag, Value
from autotuner.core.trial import OutcomeClass
from autotuner.errors import EngineUnavailable
from autotuner_worker.engines.http import HttpEngine, LiveState
from autotuner_worker.engines.http_launch import LaunchRequest, launch_engine
from autotuner_worker.engines.vllm_effective import effective_values, ignored_flags
from autotuner_worker.engines.vllm_install import local_model
from autotuner_worker.engines.vllm_plan import child_environment, config_file
from autotuner_worker.ports import EngineDeath, EngineFault, LaunchPlan, PlanPaths, ProgressSink
from autotuner_worker.simulator import SIMULATOR_VERSION
from autotuner_worker.simulator.flags import FLAGS, NO_OPS, context_defaults
from autotuner_worker.simulator.models import DEFAULT_MODEL, DEVICES, ModelFacts, resolve_model

__all__ = ["SimulatedAdapter", "SimulatorOptions", "describe_simulated"]

KIND = "simulated"
_ENVIRONMENT_PREFIX = "AUTOTUNER_SIM_"
_USAGE = "simulated: error: "


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorOptions:
    """What the simulation itself is told; ``None`` leaves the simulator's default (or its environment variable)."""

    time_scale: float | None = None
    """Wall seconds per simulated second of serving."""
    startup_scale: float | None = None
    """Wall seconds per simulated second of starting; 0 starts at once."""
    sim_seed: int | None = None
    sim_noise: float | None = None
    sim_device: str | None = None
    sim_device_count: int | None = None
    sim_oom_kv_usage: float | None = None
    faults: tuple[str, ...] = ()
    """``NAME`` or ``NAME=ARG``, see :mod:`autotuner_worker.simulator`."""

    def arguments(self) -> tuple[str, ...]:
        """Return the command-line arguments."""
        pairs = {
            "--time-scale": self.time_scale,
            "--startup-scale": self.startup_scale,
            "--sim-seed": self.sim_seed,
            "--sim-noise": self.sim_noise,
            "--sim-device": self.sim_device,
            "--sim-device-count": self.sim_device_count,
            "--sim-oom-kv-usage": self.sim_oom_kv_usage,
        }
        given = [part for flag, value in pairs.items() if value is not None for part in (flag, str(value))]
        return (*given, *(part for fault in self.faults for part in ("--fault", fault)))


def describe_simulated(model: str | None, device: str = "sim-40g") -> EngineDescription:
    """Return the simulated engine's description, with the facts of *model* when one is named.

    Raises ``EngineUnavailable`` for a model that the simulator knows nothing about.
    """
    facts: dict[str, Value] = {}
    if model is not None:
        resolved = resolve_model(model)
        if resolved is None:
            raise EngineUnavailable(
                f"the simulated engine knows no model {model!r}: give a folder with a config.json, a name with a size such "
                f"as my-7B, or {DEFAULT_MODEL}"
            )
        facts = _model_facts(resolved)
    return EngineDescription(
        kind=KIND,
        version=SIMULATOR_VERSION,
        platform=KIND,
        flags=tuple(
            EngineFlag(
                name=flag.name,
                kind=flag.kind,
                choices=flag.choices,
                default=flag.default,
                negatable=flag.negatable,
                aliases=flag.aliases,
                help=flag.help,
            )
            for flag in FLAGS
        ),
        context_defaults=context_defaults(DEVICES[device]),
        model=facts,
        no_ops=dict(NO_OPS),
    )


def _model_facts(model: ModelFacts) -> dict[str, Value]:
    return {
        "architecture": model.architecture,
        "max_position_embeddings": model.max_len,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "num_hidden_layers": model.layers,
        "hidden_size": model.hidden,
        "vocab_size": model.vocabulary,
        "is_moe": False,
        "has_mtp": False,
        "uses_mla": False,
        "weight_bytes": int(model.parameters * 2),
    }


class SimulatedAdapter:
    """Implements :class:`autotuner_worker.ports.EngineAdapter`."""

    def __init__(
        self,
        engine_command: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        state_dir: Path | None = None,
        *,
        options: SimulatorOptions | None = None,
        parent_env: Mapping[str, str] | None = None,
    ) -> None:
        """Make an adapter.

        Args:
            engine_command: Taken and not used, so that adapters are made alike: the simulator is always our own program.
            env: Variables to set for the engine; ``AUTOTUNER_SIM_…`` among them.
            state_dir: For the process supervisor's records; beside the launch's folder when not given.
            options: What the simulation is told.
            parent_env: Environment to filter and hand on (``AUTOTUNER_SIM_…`` is kept); this process's by default.
        """
        self._command = (sys.executable, "-m", "autotuner_worker.simulator.server")
        self._options = options or SimulatorOptions()
        self._engine_env = dict(env or {})
        self._parent_env = dict(os.environ if parent_env is None else parent_env)
        self._state_dir = state_dir.absolute() if state_dir is not None else None

    async def describe(self, model: str | None) -> EngineDescription:
        """Return the description from the simulator's own table; raise ``EngineUnavailable`` for an unknown model."""
        return describe_simulated(model, self._options.sim_device or "sim-40g")

    def plan(self, model: str, config: Config, paths: PlanPaths, port: int) -> LaunchPlan:
        """Return what ``start`` would do. Pure."""
        local = local_model(model)
        model = str(local) if local is not None else model
        path = str(paths.run_dir / "engine.yaml")
        added = self._added_environment()
        host = "127.0.0.1"
        argv = (
            *self._command, model, "--config", path, "--host", host,
            "--port", str(port), "--sim-cache-dir", str(paths.cache_dir), *self._options.arguments(),
        )  # fmt: skip
        name = str(config.get("served_model_name", "")).split(",")[0].strip()
        return LaunchPlan(
            argv=argv,
            env=child_environment(self._parent_env, added),
            added_env=added,
            files={path: config_file(config, describe_simulated(None))},
            host=host,
            port=port,
            model=model,
            config=dict(config),
            served_name=name or model,
        )

    async def start(
        self, plan: LaunchPlan, paths: PlanPaths, launch_id: str, timeout: float, progress: ProgressSink
    ) -> HttpEngine:
        """Carry out *plan*; raise ``EngineDeath`` when the first real answer does not come."""
        folder = self._state_dir or paths.run_dir.parent

        def inspect(state: LiveState) -> tuple[Mapping[str, str], tuple[str, ...]]:
            effective = effective_values(plan.config, state.effective)
            return effective, ignored_flags(plan.config, effective, describe_simulated(None))

        request = LaunchRequest(
            plan=plan,
            paths=paths,
            launch_id=launch_id,
            timeout=timeout,
            progress=progress,
            version=SIMULATOR_VERSION,
            record=folder / "processes" / f"{launch_id}.json",
            inspect=inspect,
        )
        try:
            return await launch_engine(request)
        except EngineDeath as death:
            usage = _usage_error(paths.log_path)
            if usage is None:
                raise
            fault = EngineFault(
                outcome=OutcomeClass.INFEASIBLE_CONFIG,
                message=f"the simulated engine refuses the command line: {usage}",
                evidence=death.fault.evidence,
            )
            raise EngineDeath(fault, death.launch) from death

    def _added_environment(self) -> dict[str, str]:
        simulation = {name: value for name, value in self._parent_env.items() if name.startswith(_ENVIRONMENT_PREFIX)}
        home = str(Path(autotuner_worker.__file__).parent.parent)
        added = {**simulation, "PYTHONUNBUFFERED": "1", "PYTHONPATH": home, **self._engine_env}
        return dict(sorted(added.items()))


def _usage_error(log: Path) -> str | None:
    """Return what the argument parser said, ``None`` when it did not complain."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return next((line.removeprefix(_USAGE) for line in lines if line.startswith(_USAGE)), None)
