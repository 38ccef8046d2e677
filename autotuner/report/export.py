"""The winner in the forms that people deploy: command line, ``--config`` file, systemd drop-in, Kubernetes args.

Pure.  Three traps are kept away from the user:

- vLLM ignores ``enable-x: false`` in a configuration file; only ``no-enable-x: true`` counts.
- systemd expands ``%`` and ``$`` in ``ExecStart``, Kubernetes expands ``$(NAME)`` in args.
- Figures of a simulated engine say nothing about a real one: such a result is refused, and can only be shown as a
  text whose every line says SIMULATED.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import yaml

from autotuner.core.results import StudyResult, VerdictKind
from autotuner.core.space import Config, EngineDescription, Value
from autotuner.errors import Refused
from autotuner.report.figures import headline, is_simulated, unproven

__all__ = [
    "ExportFormat",
    "config_yaml",
    "engine_environment",
    "export",
    "kubernetes_args",
    "labelled",
    "serve_argv",
    "serve_command",
    "systemd_dropin",
]

_OFF = frozenset({"", "none", "off"})
_OFF_NAMES = frozenset({"quantization"})
"""Flags whose choice ``none`` means that the flag is not given."""
_LISTS = frozenset({"cudagraph_capture_sizes", "kv_cache_dtype_skip_layers", "middleware", "served_model_name"})
_SWITCHES = frozenset({"disable_log_stats", "aggregate_engine_logging", "headless", "grpc"})
_RUN_ONLY = frozenset(
    {
        "DO_NOT_TRACK",
        "HF_HUB_OFFLINE",
        "NO_COLOR",
        "PYTHONPATH",
        "PYTHONUNBUFFERED",
        "TORCHINDUCTOR_CACHE_DIR",
        "VLLM_CACHE_ROOT",
        "VLLM_LOGGING_COLOR",
        "VLLM_LOGGING_LEVEL",
        "VLLM_NO_USAGE_STATS",
        "VLLM_PLUGINS",
    }
)
"""Variables of the tuning run itself: they do not belong into production."""
_SAFE = re.compile(r"[A-Za-z0-9_@:,./=+%\-]+")


class ExportFormat(StrEnum):
    """How the winner is written."""

    ARGV = "argv"
    """A shell command."""
    YAML = "yaml"
    """A file for ``vllm serve MODEL --config FILE``."""
    SYSTEMD = "systemd"
    """A drop-in for a service unit."""
    KUBERNETES = "kubernetes"
    """``args`` and ``env`` of a container."""


@dataclass(frozen=True, slots=True)
class _Flags:
    """A configuration as nested flags with what the engine says about them."""

    values: Mapping[str, Any]
    engine: EngineDescription | None

    @classmethod
    def of(cls, config: Config, engine: EngineDescription | None) -> _Flags:
        flags: dict[str, Any] = {}
        for name, value in sorted(config.items()):
            head, *parts = name.split(".")
            if not parts:
                flags[head] = _parsed(value)
                continue
            inner = flags.get(head) if isinstance(flags.get(head), dict) else {}
            assert isinstance(inner, dict)
            flags[head] = inner
            for part in parts[:-1]:
                inner = inner.setdefault(part, {})
            inner[parts[-1]] = value
        speculative = flags.get("speculative_config")
        if isinstance(speculative, dict) and str(speculative.get("method", "-")).lower() in _OFF:
            del flags["speculative_config"]
        for name in _OFF_NAMES & flags.keys():
            if str(flags[name]).lower() in _OFF:
                del flags[name]
        return cls(flags, engine)

    def negatable(self, name: str) -> bool:
        flag = self.engine.flag(name) if self.engine is not None else None
        return flag.negatable if flag is not None else name not in _SWITCHES


def serve_argv(
    config: Config, model: str, engine: EngineDescription | None = None, executable: str = "vllm"
) -> tuple[str, ...]:
    """Return the argument list ``vllm serve MODEL --flag value …``, flags in order of their names."""
    flags = _Flags.of(config, engine)
    argv = [executable, "serve", model]
    for name, value in flags.values.items():
        argv.extend(_arguments(name, value, flags))
    return tuple(argv)


def serve_command(
    config: Config, model: str, engine: EngineDescription | None = None, env: Mapping[str, str] | None = None
) -> str:
    """Return the command for a POSIX shell, one flag per line."""
    words = serve_argv(config, model, engine)
    head = [f"{name}={shlex.quote(value)}" for name, value in (env or {}).items()]
    first = " ".join([*head, *map(shlex.quote, words[:3])])
    return " \\\n  ".join([first, *(" ".join(map(shlex.quote, group)) for group in _grouped(words[3:]))])


def config_yaml(config: Config, engine: EngineDescription | None = None) -> str:
    """Return the file for ``vllm serve MODEL --config FILE``."""
    flags = _Flags.of(config, engine)
    document: dict[str, Any] = {}
    for name, value in flags.values.items():
        key = name.replace("_", "-")
        if value is False:
            if flags.negatable(name):
                document[f"no-{key}"] = True
        elif name in _LISTS and isinstance(value, str):
            document[key] = _listed(value)
        else:
            document[key] = value
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True) if document else "{}\n"


def systemd_dropin(argv: tuple[str, ...], env: Mapping[str, str] | None = None) -> str:
    """Return the text of ``/etc/systemd/system/SERVICE.service.d/50-autotuner.conf``."""
    lines = ["[Service]"]
    lines += [f"Environment={_systemd_word(f'{name}={value}', dollar=False)}" for name, value in (env or {}).items()]
    lines.append("ExecStart=")
    head = " ".join([_systemd_word(argv[0], dollar=False), *map(_systemd_word, argv[1:3])])
    groups = [" ".join(map(_systemd_word, group)) for group in _grouped(argv[3:])]
    lines.append("ExecStart=" + " \\\n    ".join([head, *groups]))
    return "\n".join(lines) + "\n"


def kubernetes_args(argv: tuple[str, ...], env: Mapping[str, str] | None = None) -> str:
    """Return ``args`` (and ``env``) of a container whose entry point is ``vllm serve``."""
    document: dict[str, Any] = {"args": [word.replace("$(", "$$(") for word in argv[2:]]}
    if env:
        document["env"] = [{"name": name, "value": value.replace("$(", "$$(")} for name, value in env.items()]
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=10_000)


def engine_environment(result: StudyResult) -> dict[str, str]:
    """Return the variables that the winner was measured with and that matter for it."""
    if result.winner is None:
        return {}
    for trial in result.trials:
        launch = trial.outcome.launch if trial.outcome is not None else None
        if trial.trial_id in result.winner.trial_ids and launch is not None:
            kept = {name: value for name, value in sorted(launch.env.items()) if name not in _RUN_ONLY}
            return {name: value for name, value in kept.items() if not name.startswith("AUTOTUNER_")}
    return {}


def export(result: StudyResult, form: ExportFormat, executable: str = "vllm") -> str:
    """Return the winner of *result* as text in *form*, with the verdict in a comment.

    Raises:
        Refused: The result is simulated, names no configuration, or its configuration breaks the latency budget or is
            unproven.
    """
    if is_simulated(result.spec):
        raise Refused("this result comes from the simulated engine: it is never exported as a real configuration")
    if result.winner is None:
        raise Refused("the study found no configuration to export")
    if result.verdict.kind is VerdictKind.INFEASIBLE:
        raise Refused("the closest configuration breaks the latency budget: it is not exported")
    if unproven(result):
        raise Refused("nothing was decided about the candidate: it is not exported; keep what you have")
    engine = f"{result.spec.engine.kind} {result.spec.engine.version}".strip()
    comment = f"# {result.spec.name}, measured with {engine}. {headline(result)}\n"
    return comment + _HINTS[form] + _body(result, form, executable)


def labelled(result: StudyResult, form: ExportFormat) -> str:
    """Return what may be shown or written for *result* in any case, safe by its form.

    A real configuration that keeps its budget comes as ``export`` returns it.  A simulated one, one that breaks the
    budget, or one that nothing was decided about comes for reading only: every line begins with a label, so that no line of it can be used as it is.

    Raises:
        Refused: The study names no configuration.
    """
    if result.winner is None:
        raise Refused("the study found no configuration to show")
    if is_simulated(result.spec):
        label, why = "SIMULATED", "these figures come from a simulated engine; do not deploy"
    elif result.verdict.kind is VerdictKind.INFEASIBLE:
        label, why = "OVER BUDGET", "the closest configuration breaks the latency budget; do not deploy"
    elif unproven(result):
        label, why = "UNPROVEN", "nothing was decided about this candidate; keep what you have"
    else:
        return export(result, form)
    lines = [why, *_body(result, form, "vllm").rstrip("\n").split("\n")]
    return "".join(f"{label}| {line}\n" for line in lines)


_HINTS = {
    ExportFormat.ARGV: "",
    ExportFormat.YAML: "# vllm serve MODEL --config FILE\n",
    ExportFormat.SYSTEMD: "# /etc/systemd/system/SERVICE.service.d/50-autotuner.conf; give the program its full path\n",
    ExportFormat.KUBERNETES: "# for a container whose entry point is `vllm serve`\n",
}


def _body(result: StudyResult, form: ExportFormat, executable: str) -> str:
    assert result.winner is not None
    spec, env = result.spec, engine_environment(result)
    argv = serve_argv(result.winner.config, spec.model, spec.engine, executable)
    writers: dict[ExportFormat, Callable[[], str]] = {
        ExportFormat.ARGV: lambda: serve_command(result.winner.config, spec.model, spec.engine, env) + "\n",  # type: ignore[union-attr]
        ExportFormat.YAML: lambda: config_yaml(result.winner.config, spec.engine),  # type: ignore[union-attr]
        ExportFormat.SYSTEMD: lambda: systemd_dropin(argv, env),
        ExportFormat.KUBERNETES: lambda: kubernetes_args(argv, env),
    }
    return writers[form]()


def _arguments(name: str, value: Any, flags: _Flags) -> list[str]:
    option = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        if value:
            return [option]
        return [f"--no-{option[2:]}"] if flags.negatable(name) else []
    if isinstance(value, dict):
        return [option, json.dumps(value, separators=(",", ":"), ensure_ascii=False)]
    if name in _LISTS and isinstance(value, str):
        return [option, *_listed(value)]
    text = str(value)
    return [f"{option}={text}"] if text.startswith("-") else [option, text]


def _listed(value: str) -> list[str]:
    return [part.strip() for part in value.split(",") if part.strip()]


def _parsed(value: Value) -> Any:
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _grouped(words: tuple[str, ...]) -> list[list[str]]:
    """Return *words* split before every flag."""
    groups: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not groups:
            groups.append([word])
        else:
            groups[-1].append(word)
    return groups


def _systemd_word(word: str, *, dollar: bool = True) -> str:
    """Return *word* as one word of a unit file; ``$`` is only expanded in arguments."""
    text = word.replace("%", "%%")
    if dollar:
        text = text.replace("$", "$$")
    if _SAFE.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'
