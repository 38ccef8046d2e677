"""The worker's own configuration: which engine it may start, where it may write, whom it dials.

Only the operator of the host writes this file.  Nothing that comes over the wire can change the engine's command.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from autotuner.errors import InputError, Problem

__all__ = ["ENGINE_KINDS", "WorkerConfig", "load_config", "resolve_env"]

ENGINE_KINDS = ("vllm", "simulated")
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_KNOWN = {
    "worker_id": str,
    "controller": str,
    "engine_kind": str,
    "engine_command": list,
    "engine_python": str,
    "engine_env": dict,
    "model": str,
    "out_dir": str,
    "state_dir": str,
    "cache_dir": str,
    "resident_engines": int,
}
_REQUIRED = ("worker_id", "controller", "engine_kind", "out_dir", "state_dir", "cache_dir")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Everything that a worker is told by its operator."""

    worker_id: str
    controller: str
    """gRPC address: ``unix:/path`` or ``host:port``."""
    engine_kind: str
    engine_command: tuple[str, ...] = ()
    engine_python: str | None = None
    """Python of the engine's environment; found from the command when not given."""
    engine_env: Mapping[str, str] = field(default_factory=dict)
    """Variables for the engine; ``${NAME}`` takes the value of the worker's own environment."""
    model: str | None = None
    """The model whose facts are asked for at the start; others are asked for when they come."""
    out_dir: Path
    """Records and engine logs."""
    state_dir: Path
    """Spool, records of running engines, the engine's description."""
    cache_dir: Path
    """Compile caches."""
    resident_engines: int = 0
    """Engines beside each other; 0 asks the host's memory."""


def load_config(path: Path) -> WorkerConfig:
    """Read *path* (YAML or JSON); raise ``InputError`` with every problem found."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise InputError(
            [_problem("file", str(path), f"cannot be read: {error}", "give a readable YAML file")]
        ) from error
    if not isinstance(data, dict):
        raise InputError([_problem("file", str(path), "is not a mapping", "write one 'name: value' per line")])
    problems = _problems(data)
    if problems:
        raise InputError(problems, str(path))
    return WorkerConfig(
        worker_id=data["worker_id"],
        controller=data["controller"],
        engine_kind=data["engine_kind"],
        engine_command=tuple(data.get("engine_command", ())),
        engine_python=data.get("engine_python"),
        engine_env=data.get("engine_env", {}),
        model=data.get("model"),
        out_dir=Path(data["out_dir"]),
        state_dir=Path(data["state_dir"]),
        cache_dir=Path(data["cache_dir"]),
        resident_engines=data.get("resident_engines", 0),
    )


def _problem(name: str, value: str, message: str, remedy: str) -> Problem:
    return Problem(field=name, value=value, message=message, remedy=remedy)


def _problems(data: Mapping[str, Any]) -> list[Problem]:
    found = [
        _problem(name, repr(value)[:60], "is not a known setting", f"use one of {', '.join(_KNOWN)}")
        for name, value in data.items()
        if name not in _KNOWN
    ]
    found += [_problem(name, "", "is missing", "set it") for name in _REQUIRED if name not in data]
    for name, wanted in _KNOWN.items():
        value = data.get(name)
        if value is not None and (not isinstance(value, wanted) or isinstance(value, bool)):
            found.append(_problem(name, repr(value)[:60], f"must be {wanted.__name__}", "correct its type"))
    kind = data.get("engine_kind")
    if isinstance(kind, str) and kind not in ENGINE_KINDS:
        found.append(_problem("engine_kind", kind, "is unknown", f"use one of {', '.join(ENGINE_KINDS)}"))
    command = data.get("engine_command", [])
    if isinstance(command, list) and not all(isinstance(part, str) and part for part in command):
        found.append(_problem("engine_command", repr(command)[:60], "must list strings", "quote every part"))
    if kind == "vllm" and not command:
        found.append(_problem("engine_command", "", "is missing", "give the command, such as [/path/vllm, serve]"))
    return found


def resolve_env(env: Mapping[str, str], source: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return *env* with ``${NAME}`` replaced; raise ``InputError`` naming every variable that is not set."""
    missing = sorted({name for value in env.values() for name in _REFERENCE.findall(value) if name not in source})
    if missing:
        raise InputError(
            [
                _problem(f"engine.env ${{{name}}}", "", "refers to a variable that is not set", f"export {name}")
                for name in missing
            ]
        )
    return {key: _REFERENCE.sub(lambda m: source[m.group(1)], value) for key, value in env.items()}
