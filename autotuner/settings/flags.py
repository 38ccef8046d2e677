"""Checks flags that a user wrote against what the installed engine says about itself.

Names are written with dashes or underscores; JSON flags as nested mappings, dotted names or JSON text.  The result is
a flat configuration: canonical flag name (dotted for parts of JSON flags) → scalar.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from autotuner.core.space import EngineDescription, EngineFlag, Value
from autotuner.errors import Problem
from autotuner.settings.quantities import Malformed, parse_size
from autotuner.settings.study_file import StudyFile
from autotuner.settings.yaml_tree import dotted

__all__ = ["Findings", "check_value", "flatten_flags", "no_op", "resolve_name"]

_GONE: dict[str, str] = {
    "swap_space": "removed: preempted requests are recomputed; leave it out",
    "num_scheduler_steps": "removed: use async_scheduling",
    "preemption_mode": "removed: preempted requests are always recomputed; leave it out",
    "max_num_partial_prefills": "removed: use long_prefill_token_threshold",
    "max_long_partial_prefills": "removed: use long_prefill_token_threshold",
    "cuda_graph_sizes": "renamed: use cudagraph_capture_sizes or max_cudagraph_capture_size",
    "guided_decoding_backend": "renamed: use structured_outputs_config",
    "max_seq_len_to_capture": "removed: use max_cudagraph_capture_size",
    "calculate_kv_scales": "removed: scales come from the checkpoint; leave it out",
    "num_lookahead_slots": "removed: use speculative_config.num_speculative_tokens",
    "disable_log_requests": "turned around: logging is off unless enable_log_requests is given",
    "use_v2_block_manager": "removed: there is one block manager; leave it out",
    "disable_async_output_proc": "removed: use async_scheduling",
    "rope_scaling": "moved: use hf_overrides",
    "device": "removed: the installed build decides the device; leave it out",
    "kv_cache_memory": "renamed: use kv_cache_memory_bytes",
    "disable_frontend_multiprocessing": "removed: leave it out",
    "speculative_model": "moved: use speculative_config.model",
    "num_speculative_tokens": "moved: use speculative_config.num_speculative_tokens",
    "enable_reasoning": "removed: reasoning_parser alone decides",
    "context_memory_ratio": "not an engine flag: the admission limit is derived from the lengths of the traffic",
}
"""Flags of earlier vLLM versions → what replaced them; consulted only when the engine does not know the name."""

_GONE_VALUES: dict[str, str] = {
    "quantization=bitsandbytes": "use fp8_per_tensor or int8_per_channel_weight_only, or a quantised checkpoint",
    "quantization=marlin": "leave it out: fast kernels are chosen by themselves",
    "quantization=deepspeedfp": "use fp8_per_tensor",
}
"""Values of earlier versions; consulted only where the engine does not list its choices."""

_OWNED: dict[str, str] = {
    "port": "the autotuner chooses the port",
    "host": "engines under test listen on loopback only",
    "uds": "the autotuner chooses the socket",
    "config": "the autotuner writes the configuration file",
    "model": "the study's own key model: names it",
    "served_model_name": "the autotuner chooses the name",
    "api_key": "engines under test listen on loopback only, and keys do not belong into files",
    "headless": "the autotuner needs the HTTP server",
    "grpc": "the autotuner needs the HTTP server",
    "root_path": "the autotuner calls the plain paths",
    "ssl_keyfile": "engines under test listen on loopback only",
    "ssl_certfile": "engines under test listen on loopback only",
    "scheduler_cls": "the autotuner uses it to change limits in a running engine",
    "worker_extension_cls": "the autotuner uses it to look inside",
}

_SHORT: dict[str, str] = {
    "spec_method": "speculative_config.method",
    "spec_model": "speculative_config.model",
    "spec_tokens": "speculative_config.num_speculative_tokens",
}


@dataclass(slots=True)
class Findings:
    """Collects the problems and notes of one study."""

    study: StudyFile
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def problem(self, place: tuple[str | int, ...], value: object, message: str, remedy: str) -> None:
        """Add a problem at *place* of the study file."""
        shown = "" if value is None else str(value)[:60]
        line = self.study.line(*place)
        self.problems.append(Problem(field=dotted(place), value=shown, message=message, remedy=remedy, line=line))

    def note(self, text: str) -> None:
        """Add something that the user should know, once."""
        if text not in self.notes:
            self.notes.append(text)


def resolve_name(name: str, engine: EngineDescription, found: Findings, place: tuple[str | int, ...]) -> str | None:
    """Return the canonical name of a flag or of a part of a JSON flag, or ``None`` after reporting why there is none."""
    plain = name.strip().lstrip("-").replace("-", "_")
    plain = _SHORT.get(plain, plain) if engine.flag("speculative_config") else plain
    head, dot, rest = plain.partition(".")
    if head in _OWNED:
        found.problem(place, None, f"not yours to set: {_OWNED[head]}", "remove it")
        return None
    flag = engine.flag(head)
    if flag is None:
        found.problem(place, None, f"{_who(engine)} has no flag {head}", _replacement(head, engine))
        return None
    if dot and flag.kind != "json":
        found.problem(place, None, f"{flag.name} has no parts", f"write {flag.name} alone")
        return None
    return flag.name + dot + rest


def _who(engine: EngineDescription) -> str:
    return f"the simulated engine {engine.version}" if engine.kind == "simulated" else f"vLLM {engine.version}"


def _replacement(name: str, engine: EngineDescription) -> str:
    if name in _GONE:
        return _GONE[name]
    names = [known for flag in engine.flags for known in (flag.name, *flag.aliases)]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else "see the engine's own --help for its flags"


def flatten_flags(
    flags: Mapping[str, object], engine: EngineDescription, found: Findings, place: tuple[str | int, ...]
) -> dict[str, Value]:
    """Return *flags* as a flat configuration; what is wrong goes to *found*, the rest is still returned."""
    config: dict[str, Value] = {}
    for written, raw in flags.items():
        where = (*place, written)
        name, value = _negated(written, raw, engine)
        canonical = resolve_name(name, engine, found, where)
        if canonical is None:
            continue
        for part, scalar in _leaves(canonical, value, engine, found, where):
            checked = check_value(part, scalar, engine, found, where)
            if checked is None:
                continue
            if part in config and config[part] != checked:
                found.problem(where, checked, f"{part} is set twice", "keep one of the two")
            config[part] = checked
            idle = no_op(engine, part, checked)
            if idle is not None:
                found.note(f"{'.'.join(map(str, where))}: no effect on {engine.platform}: {idle}")
    return config


def no_op(engine: EngineDescription, name: str, value: Value | None = None) -> str | None:
    """Return why the platform ignores the flag (or this value of it), else ``None``."""
    for key in (name, name.split(".", 1)[0], f"{name}={value}"):
        if key in engine.no_ops:
            return engine.no_ops[key]
    return None


def _negated(name: str, value: object, engine: EngineDescription) -> tuple[str, object]:
    """Turn ``no_enable_x: true`` into ``enable_x: false``."""
    plain = name.strip().lstrip("-").replace("-", "_")
    if plain.startswith("no_") and engine.flag(plain) is None and isinstance(value, bool):
        flag = engine.flag(plain[3:])
        if flag is not None and flag.kind == "bool":
            return flag.name, not value
    return name, value


def _leaves(
    name: str, value: object, engine: EngineDescription, found: Findings, place: tuple[str | int, ...]
) -> Iterator[tuple[str, object]]:
    flag = engine.flag(name)
    if isinstance(value, str) and flag is not None and flag.kind == "json" and "." not in name:
        try:
            value = json.loads(value)
        except ValueError:
            found.problem(place, value, f"{name} takes a mapping", "write its parts as nested keys")
            return
    if isinstance(value, Mapping):
        if flag is None or flag.kind != "json":
            found.problem(place, None, f"{name} takes a single value", "write it without nested keys")
            return
        for key, inner in value.items():
            yield from _leaves(f"{name}.{key}", inner, engine, found, (*place, key))
    else:
        yield name, value


def check_value(
    name: str, value: object, engine: EngineDescription, found: Findings, place: tuple[str | int, ...]
) -> Value | None:
    """Return *value* in the flag's own type, or ``None`` after reporting why the engine would refuse it."""
    if value is None or not isinstance(value, bool | int | float | str):
        found.problem(place, value, "not a single value", "give a number, text, true or false; or leave it out")
        return None
    flag = engine.flag(name)
    if flag is None or "." in name or flag.kind == "json":
        return _spec_method(name, value, engine, found, place)
    try:
        typed = _coerce(flag, value)
    except Malformed as error:
        found.problem(place, value, error.message, error.remedy)
        return None
    if not flag.choices and f"{flag.name}={typed}" in _GONE_VALUES:
        found.problem(place, value, f"{_who(engine)} does not offer it any more", _GONE_VALUES[f"{flag.name}={typed}"])
        return None
    if flag.choices and str(typed) not in flag.choices and str(typed).lower() not in flag.choices:
        near = difflib.get_close_matches(str(typed), flag.choices, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}? " if near else ""
        found.problem(place, value, f"{_who(engine)} does not offer it", f"{hint}choices: {', '.join(flag.choices)}")
        return None
    return typed


def _spec_method(
    name: str, value: Value, engine: EngineDescription, found: Findings, place: tuple[str | int, ...]
) -> Value | None:
    """Check the speculative method against the short flag that lists the methods."""
    listed = engine.flag("spec_method")
    if (
        name != "speculative_config.method"
        or listed is None
        or not listed.choices
        or value in (*listed.choices, "none")
    ):
        return value
    near = difflib.get_close_matches(str(value), listed.choices, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? " if near else ""
    found.problem(place, value, f"{_who(engine)} does not offer it", f"{hint}choices: {', '.join(listed.choices)}")
    return None


def _coerce(flag: EngineFlag, value: bool | float | str) -> Value:
    if flag.kind == "bool":
        if not isinstance(value, bool):
            raise Malformed(f"{flag.name} is a switch", "write true or false")
        return value
    if isinstance(value, bool):
        raise Malformed(f"{flag.name} is not a switch", f"give a value ({flag.kind})")
    if flag.kind == "float":
        if isinstance(value, str):
            raise Malformed(f"{flag.name} takes a number", "write a number such as 0.9")
        return float(value)
    if flag.kind == "int":
        return _whole(flag, value)
    return str(value)


def _whole(flag: EngineFlag, value: float | str) -> Value:
    if isinstance(value, str):
        if value == "auto" and flag.name == "max_model_len":
            return value
        try:
            return parse_size(value)
        except Malformed:
            raise Malformed(f"{flag.name} takes a whole number", "write digits, or a number with a unit") from None
    if value != int(value):
        raise Malformed(f"{flag.name} takes a whole number", f"write {round(value)}")
    return int(value)
