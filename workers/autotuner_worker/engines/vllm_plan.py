"""The pure plan of a vLLM launch: command line, configuration file, environment and the files beside it.

Same arguments, same plan; nothing is read but the text of the plug-in that travels with the launch.  Knows what vLLM
does with its inputs: booleans in a configuration file only count as ``no-…: true``, JSON flags are nested maps, an
absent model path is taken for a hub name, and naming one plug-in switches the others off.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from autotuner.core.space import Config, EngineDescription, Value
from autotuner_worker.engines.vllm_install import Install
from autotuner_worker.ports import LaunchPlan, PlanPaths

__all__ = ["PLUGIN", "PlanRequest", "child_environment", "config_file", "plan_launch", "plugin_files"]

PLUGIN = "autotuner_live"
"""Name of the plug-in and of its module."""
SMALL_HOST = 4
"""CPU engines on at most this many cores get one thread per helper pool: spinning pools starve each other there."""

_PLUGIN_SOURCE = Path(__file__).parent.parent / "in_engine" / "live.py"
_SERVER_MODULE = "vllm.entrypoints.openai.api_server"
_PLAN_FLAGS = frozenset({"host", "port", "config", "model", "uds"})
"""Decided by the plan itself; a configuration cannot move them."""
_NO_SPECULATION = frozenset({"", "none", "off"})
"""Values of ``speculative_config.method`` that mean no speculative decoding at all."""
_SWITCHES = frozenset({"disable_log_stats", "aggregate_engine_logging", "headless", "grpc"})
"""Flags without a ``--no-`` form, for an engine that was not asked."""
_LISTS = frozenset({"cudagraph_capture_sizes", "kv_cache_dtype_skip_layers", "middleware", "served_model_name"})
"""Flags that take several values; written as comma separated text in a configuration."""

_DROPPED = frozenset(
    {
        "CUDA_LAUNCH_BLOCKING",  # serialises kernels: a debugging aid, never in a scored run
        "DATABASE_URL",
        "INVOCATION_ID",
        "JOURNAL_STREAM",
        "LISTEN_FDNAMES",
        "LISTEN_FDS",
        "LISTEN_PID",
        "NOTIFY_SOCKET",  # the engine must not answer our service manager in our name
        "PGPASSWORD",
        "PYTHONDONTWRITEBYTECODE",  # every engine process would compile every module again
        "PYTHONHOME",
        "PYTHONPATH",  # ours, not the engine's
        "VIRTUAL_ENV",
        "VLLM_SERVER_DEV_MODE",  # changes the server's surface
        "VLLM_TRACE_FUNCTION",
        "WATCHDOG_PID",
        "WATCHDOG_USEC",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What a plan is made from."""

    command: Sequence[str]
    """The engine command, such as ``("/opt/vllm/bin/vllm", "serve")`` or a wrapper that ends in it."""
    model: str
    """Path (absolute when local) or hub name, as the engine shall be given it."""
    model_is_local: bool
    config: Config
    host: str
    port: int
    paths: PlanPaths
    install: Install
    parent_env: Mapping[str, str]
    """Environment of the worker; filtered."""
    engine_env: Mapping[str, str] = field(default_factory=dict)
    """What the user wants set for the engine; wins over everything but ``PYTHONPATH`` and ``VLLM_PLUGINS``, which are extended."""
    cores: int = 1
    """Cores that the engine may use."""
    description: EngineDescription | None = None
    """The engine's flags where they are known."""
    plugin: bool = True
    """Install the plug-in for live limits and effective values."""


def plan_launch(request: PlanRequest) -> LaunchPlan:
    """Return everything that starting the engine will do."""
    config_path = str(request.paths.run_dir / "engine.yaml")
    added = _added_environment(request)
    return LaunchPlan(
        argv=_argv(request, config_path),
        env=child_environment(request.parent_env, added),
        added_env=added,
        files={config_path: config_file(request.config, request.description), **plugin_files(request)},
        host=request.host,
        port=request.port,
        model=request.model,
        config=dict(request.config),
        served_name=_served_name(request),
    )


def _argv(request: PlanRequest, config_path: str) -> tuple[str, ...]:
    command = list(request.command)
    tail = ["--config", config_path, "--host", request.host, "--port", str(request.port)]
    if _SERVER_MODULE in command:
        return (*command, *tail, "--model", request.model)
    if Path(command[-1]).name == "vllm":
        command.append("serve")
    # vLLM merges the file only when the model comes directly after "serve"
    place = len(command) - command[::-1].index("serve") if "serve" in command else len(command)
    return (*command[:place], request.model, *command[place:], *tail)


def _served_name(request: PlanRequest) -> str:
    name = str(request.config.get("served_model_name", "")).split(",")[0].strip()
    return name or request.model


def config_file(config: Config, description: EngineDescription | None = None) -> str:
    """Return the YAML for ``--config``: dashes in names, ``no-…: true`` for false, nested maps for JSON flags."""
    document: dict[str, Any] = {}
    for name, value in sorted(_nested(config).items()):
        key = name.replace("_", "-")
        if isinstance(value, bool) and not value:
            if _negatable(name, description):
                document[f"no-{key}"] = True
        elif name in _LISTS and isinstance(value, str):
            document[key] = [part.strip() for part in value.split(",") if part.strip()]
        else:
            document[key] = value
    return yaml.safe_dump(document, sort_keys=True, default_flow_style=False, allow_unicode=True)


def _nested(config: Config) -> dict[str, Any]:
    """Return the flags with dotted parts gathered into maps; a speculation that is off leaves nothing behind."""
    flags: dict[str, Any] = {}
    for name, value in sorted(config.items()):
        head, *parts = name.split(".")
        if head in _PLAN_FLAGS:
            continue
        if not parts:
            flags[head] = _parsed(value)
            continue
        if not isinstance(flags.get(head), dict):
            flags[head] = {}
        _set(flags[head], parts, value)
    speculative = flags.get("speculative_config")
    if isinstance(speculative, dict) and str(speculative.get("method", "ngram")).lower() in _NO_SPECULATION:
        del flags["speculative_config"]
    return flags


def _parsed(value: Value) -> Any:
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _set(target: Any, parts: Sequence[str], value: Value) -> None:
    for part in parts[:-1]:
        target = target.setdefault(part, {})
    target[parts[-1]] = value


def _negatable(name: str, description: EngineDescription | None) -> bool:
    flag = description.flag(name) if description else None
    return flag.negatable if flag else name not in _SWITCHES


def child_environment(parent: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    """Return *parent* without what is ours alone (secrets, service manager, interpreter), with *added* laid over."""
    kept = {name: value for name, value in parent.items() if name not in _DROPPED and not name.startswith("AUTOTUNER_")}
    return {**kept, **added}


def _added_environment(request: PlanRequest) -> dict[str, str]:
    cache = request.paths.cache_dir
    added = {
        "DO_NOT_TRACK": "1",
        "NO_COLOR": "1",
        "PYTHONUNBUFFERED": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "VLLM_CACHE_ROOT": str(cache / "vllm"),
        "VLLM_LOGGING_COLOR": "0",
        "VLLM_LOGGING_LEVEL": "INFO",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if request.model_is_local and _models_are_local(request.config):
        added["HF_HUB_OFFLINE"] = "1"
    if _on_cpu(request) and request.cores <= SMALL_HOST:
        added["OMP_NUM_THREADS"] = "1"
        added["NUMBA_NUM_THREADS"] = "1"
    added.update(request.engine_env)
    if request.plugin or request.install.shim_version:
        added["PYTHONPATH"] = _joined(str(_plugin_folder(request)), request.engine_env.get("PYTHONPATH", ""))
    if request.plugin:
        added["VLLM_PLUGINS"] = _plugin_names(request)
    return dict(sorted(added.items()))


def _joined(first: str, rest: str) -> str:
    return f"{first}:{rest}" if rest else first


def _models_are_local(config: Config) -> bool:
    named = [config.get(name) for name in ("speculative_config.model", "spec_model", "tokenizer", "speculative_config")]
    return all(value is None or (isinstance(value, str) and value.startswith("/")) for value in named)


def _on_cpu(request: PlanRequest) -> bool:
    if request.description is not None:
        return request.description.platform == "cpu"
    return request.install.cpu or request.engine_env.get("VLLM_TARGET_DEVICE") == "cpu"


def _plugin_names(request: PlanRequest) -> str:
    wished = request.engine_env.get("VLLM_PLUGINS", request.parent_env.get("VLLM_PLUGINS"))
    names = request.install.plugins if wished is None else wished.split(",")
    return ",".join(dict.fromkeys([*(name for name in names if name), PLUGIN]))


def _plugin_folder(request: PlanRequest) -> Path:
    return request.paths.run_dir / "python"


def plugin_files(request: PlanRequest) -> dict[str, str]:
    """Return the files that the engine's interpreter shall find: the plug-in and, where needed, vLLM's own name."""
    folder = _plugin_folder(request)
    files: dict[str, str] = {}
    if request.plugin:
        metadata = folder / f"{PLUGIN}-1.dist-info"
        files[str(folder / f"{PLUGIN}.py")] = _PLUGIN_SOURCE.read_text(encoding="utf-8")
        files[str(metadata / "METADATA")] = f"Metadata-Version: 2.1\nName: {PLUGIN}\nVersion: 1\n"
        files[str(metadata / "entry_points.txt")] = (
            f"[vllm.general_plugins]\n{PLUGIN} = {PLUGIN}:register\n\n"
            f"[vllm.endpoint_plugins]\n{PLUGIN} = {PLUGIN}:LiveEndpoint\n"
        )
    version = request.install.shim_version
    if version:
        path = folder / f"vllm-{version}.dist-info" / "METADATA"
        files[str(path)] = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
    return files
