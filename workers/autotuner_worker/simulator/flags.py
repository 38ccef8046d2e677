"""The simulated engine's flags: one table, the parser made from it, and the settings that come out.

The names, kinds and defaults are those of vLLM for the flags that the simulator knows.  ``SIMULATOR_ONLY`` flags steer the
simulation itself and are never part of a search space.  Unknown flags and values end like argparse ends: exit code 2.
Combinations that the engine refuses raise ``Rejected`` with the message of a real engine.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from autotuner_worker.simulator.faults import FaultPlan, parse_faults
from autotuner_worker.simulator.models import DEFAULT_MODEL, DEVICES, Device, ModelFacts, resolve_model
from autotuner_worker.simulator.surface import QUANTIZATION, SPECULATION, Speculation, SurfaceSettings

__all__ = [
    "FLAGS",
    "NO_OPS",
    "SIMULATOR_ONLY",
    "Flag",
    "Rejected",
    "ServerSettings",
    "context_defaults",
    "parse",
    "settings_from",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One row of the table."""

    name: str
    kind: str
    """``int``, ``float``, ``str``, ``bool`` or ``json``."""
    default: bool | int | float | str | None = None
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    help: str = ""

    @property
    def negatable(self) -> bool:
        """Whether a ``--no-`` form exists."""
        return self.kind == "bool" and self.name not in _SWITCHES


_KV_DTYPES = ("auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2", "int8_per_token_head")
_EIGHT_BIT = frozenset(_KV_DTYPES[3:])
_DTYPES = ("auto", "bfloat16", "float16", "float32", "half", "float")
_SWITCHES = frozenset({"disable_log_stats"})

FLAGS: tuple[Flag, ...] = (
    Flag(name="model", kind="str", default=DEFAULT_MODEL, help="Model name, folder with config.json, or a size (…-7B)."),
    Flag(name="served_model_name", kind="str", help="Name in the API."),
    Flag(name="tokenizer", kind="str", help="Accepted; the simulator has its own tokenizer."),
    Flag(name="max_model_len", kind="int", help="Longest prompt and answer together."),
    Flag(name="dtype", kind="str", default="auto", choices=_DTYPES, help="Number format of weights."),
    Flag(name="quantization", kind="str", choices=tuple(QUANTIZATION), aliases=("q",), help="Weight format."),
    Flag(name="seed", kind="int", default=0, help="Seed of the generated tokens."),
    Flag(name="enforce_eager", kind="bool", default=False, help="No compilation and no graphs."),
    Flag(name="max_num_seqs", kind="int", help="Most sequences in a step."),
    Flag(name="max_num_batched_tokens", kind="int", help="Most tokens in a step."),
    Flag(name="long_prefill_token_threshold", kind="int", default=0, help="Largest chunk of one prompt; 0 = no limit."),
    Flag(name="scheduling_policy", kind="str", default="fcfs", choices=("fcfs", "priority"), help="Order of admission."),
    Flag(name="enable_chunked_prefill", kind="bool", help="Split prompts over steps."),
    Flag(name="async_scheduling", kind="bool", help="Schedule while the device works."),
    Flag(name="scheduler_reserve_full_isl", kind="bool", default=True, help="Admit a prompt only when all of it fits."),
    Flag(name="watermark", kind="float", default=0.0, help="Share of KV blocks kept free at admission."),
    Flag(name="block_size", kind="int", help="Tokens per KV block; a multiple of 16."),
    Flag(name="gpu_memory_utilization", kind="float", default=0.92, aliases=("device_memory_utilization",),
         help="Share of the device's memory that the engine may use."),
    Flag(name="kv_cache_memory_bytes", kind="int", help="Size of the KV cache; replaces the computed one."),
    Flag(name="kv_cache_dtype", kind="str", default="auto", choices=_KV_DTYPES, help="Number format of the KV cache."),
    Flag(name="num_gpu_blocks_override", kind="int", help="Number of KV blocks; replaces the computed one."),
    Flag(name="enable_prefix_caching", kind="bool", help="Reuse the KV blocks of equal prompt beginnings."),
    Flag(name="tensor_parallel_size", kind="int", default=1, aliases=("tp",), help="Devices that share each layer."),
    Flag(name="speculative_config", kind="json", aliases=("sc",), help="Speculative decoding: method, num_speculative_tokens."),
    Flag(name="performance_mode", kind="str", default="balanced", choices=("balanced", "interactivity", "throughput"),
         help="throughput doubles the default limits."),
    Flag(name="disable_log_stats", kind="bool", default=False, help="No metrics of requests."),
    Flag(name="shutdown_timeout", kind="int", default=0, help="Seconds to let requests end on SIGTERM."),
    Flag(name="cpu_offload_gb", kind="float", default=0.0, help="Accepted, no effect."),
    Flag(name="disable_cascade_attn", kind="bool", help="Accepted, no effect."),
    Flag(name="api_server_count", kind="int", aliases=("asc",), help="Accepted, no effect."),
)  # fmt: skip

NO_OPS: dict[str, str] = {
    "cpu_offload_gb": "the simulated device has no host memory to offload to",
    "disable_cascade_attn": "the simulated engine has no cascade attention",
    "api_server_count": "the simulated engine always has one API server",
}
"""Flags that are accepted and ignored → the reason."""

SIMULATOR_ONLY: tuple[Flag, ...] = (
    Flag(name="host", kind="str", default="127.0.0.1", help="Address to listen on."),
    Flag(name="port", kind="int", default=8000, help="Port to listen on; 0 lets the system choose (printed)."),
    Flag(name="sim_device", kind="str", default="sim-40g", choices=tuple(DEVICES), help="Simulated device."),
    Flag(name="sim_device_count", kind="int", default=4, help="Simulated devices in this host."),
    Flag(name="sim_seed", kind="int", default=0, help="Seed of noise, acceptance and memory failures."),
    Flag(name="sim_noise", kind="float", default=0.0, help="Standard deviation of the logarithm of a step's time."),
    Flag(name="sim_oom_kv_usage", kind="float", default=0.5, help="KV usage from which R7's failures may strike."),
    Flag(name="time_scale", kind="float", default=1.0, help="Wall seconds per simulated second of serving."),
    Flag(name="startup_scale", kind="float", default=0.02, help="Wall seconds per simulated second of starting."),
    Flag(name="sim_cache_dir", kind="str", help="Folder that remembers what was compiled."),
)
"""Flags of the simulation itself."""

_ENVIRONMENT = {
    "AUTOTUNER_SIM_TIME_SCALE": "time_scale",
    "AUTOTUNER_SIM_STARTUP_SCALE": "startup_scale",
    "AUTOTUNER_SIM_SEED": "sim_seed",
    "AUTOTUNER_SIM_NOISE": "sim_noise",
}


class Rejected(Exception):
    """A combination that the engine refuses at start; ``section`` names the part of the configuration."""

    def __init__(self, section: str, message: str) -> None:
        self.section, self.message = section, message
        super().__init__(message)

    def lines(self) -> list[str]:
        """Return the last lines of the log."""
        if not self.section:
            return [self.message]
        return [
            f"pydantic_core._pydantic_core.ValidationError: 1 validation error for {self.section}",
            f"  Value error, {self.message} [type=value_error, input_value=ArgsKwargs((), {{...}}), input_type=ArgsKwargs]",
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Everything the server runs with; defaults resolved, combinations checked."""

    surface: SurfaceSettings
    served_name: str
    host: str
    port: int
    seed: int
    long_prefill_token_threshold: int
    chunked_prefill: bool
    prefix_caching: bool
    priority: bool
    reserve_full_prompt: bool
    watermark: float
    shutdown_timeout: float
    log_stats: bool
    kv_cache_dtype: str
    dtype: str
    sim_seed: int
    noise: float
    oom_kv_usage: float
    time_scale: float
    startup_scale: float
    cache_dir: str
    faults: FaultPlan
    launch_key: str
    """The configuration as text: what decides whether this launch runs out of memory under load."""
    ignored: tuple[str, ...] = ()
    raw: Mapping[str, Any] = field(default_factory=dict)


def context_defaults(device: Device, performance_mode: str = "balanced") -> dict[str, bool | int | float | str]:
    """Return the defaults that depend on the device."""
    large = device.memory_bytes >= 70 * 1024**3
    factor = 2 if performance_mode == "throughput" else 1
    return {
        "max_num_seqs": (1024 if large else 256) * factor,
        "max_num_batched_tokens": (8192 if large else 2048) * factor,
        "block_size": 16,
        "enable_chunked_prefill": True,
        "enable_prefix_caching": True,
        "async_scheduling": True,
    }


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return flag → value from *argv* laid over ``--config FILE`` laid over *environ*; exit 2 like argparse on errors."""
    parser = _parser()
    pre = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    pre.add_argument("--config")
    found, rest = pre.parse_known_args(list(argv))
    from_environ = [
        part for name, flag in _ENVIRONMENT.items() if name in environ for part in (_option(flag), environ[name])
    ]
    from_file = _file_arguments(parser, found.config) if found.config else []
    values = vars(parser.parse_args([*from_environ, *from_file, *rest]))
    positional = values.pop("model_tag")
    if positional:
        values["model"] = positional
    values["fault"] = [*environ.get("AUTOTUNER_SIM_FAULT", "").split(","), *values["fault"]]
    return values


def settings_from(values: Mapping[str, Any]) -> ServerSettings:
    """Resolve the defaults of *values* and check the combinations; raise ``Rejected``."""
    model = resolve_model(str(values["model"]))
    if model is None:
        raise Rejected(
            "",
            f"huggingface_hub.errors.LocalEntryNotFoundError: the simulated engine knows no model {values['model']!r}: "
            "give a folder with a config.json, a name with a size such as my-7B, or sim-tiny, sim-7b, sim-70b",
        )
    device = DEVICES[str(values["sim_device"])]
    surface = _surface(values, model, device)
    _check(values, surface)
    return _server_settings(values, surface)


def _server_settings(values: Mapping[str, Any], surface: SurfaceSettings) -> ServerSettings:
    tunable = {flag.name for flag in FLAGS} - {"shutdown_timeout", "disable_log_stats"}
    key = ";".join(f"{name}={values[name]}" for name in sorted(tunable) if values.get(name) is not None)
    return ServerSettings(
        surface=surface,
        served_name=str(values["served_model_name"] or values["model"]),
        host=str(values["host"]),
        port=int(values["port"]),
        seed=int(values["seed"]),
        long_prefill_token_threshold=int(values["long_prefill_token_threshold"]),
        chunked_prefill=values["enable_chunked_prefill"] is not False,
        prefix_caching=values["enable_prefix_caching"] is not False,
        priority=values["scheduling_policy"] == "priority",
        reserve_full_prompt=bool(values["scheduler_reserve_full_isl"]),
        watermark=float(values["watermark"]),
        shutdown_timeout=float(values["shutdown_timeout"]),
        log_stats=not values["disable_log_stats"],
        kv_cache_dtype=str(values["kv_cache_dtype"]),
        dtype="float32" if surface.float32 else ("float16" if values["dtype"] in ("float16", "half") else "bfloat16"),
        sim_seed=int(values["sim_seed"]),
        noise=float(values["sim_noise"]),
        oom_kv_usage=float(values["sim_oom_kv_usage"]),
        time_scale=float(values["time_scale"]),
        startup_scale=float(values["startup_scale"]),
        cache_dir=str(values["sim_cache_dir"] or ""),
        faults=parse_faults(values["fault"]),
        launch_key=key,
        ignored=tuple(sorted(name for name in NO_OPS if values.get(name))),
        raw=dict(values),
    )


def _surface(values: Mapping[str, Any], model: ModelFacts, device: Device) -> SurfaceSettings:
    """Resolve the defaults of what the surface depends on."""
    defaults = context_defaults(device, str(values["performance_mode"]))
    max_len = int(values["max_model_len"] or model.max_len)
    seqs, tokens = values["max_num_seqs"], values["max_num_batched_tokens"]
    if tokens is None:
        tokens = min(int(defaults["max_num_batched_tokens"]), (seqs or int(defaults["max_num_seqs"])) * max_len)
        tokens = max(tokens, seqs or 0)
        if values["enable_chunked_prefill"] is False:
            tokens = max(tokens, max_len)
    if seqs is None:
        seqs = min(int(defaults["max_num_seqs"]), int(tokens))
    speculation = _speculation(values["speculative_config"])
    host_drafts = speculation is not None and speculation.method in ("ngram", "suffix")
    if host_drafts and values["async_scheduling"] is True:
        raise Rejected("VllmConfig", "async scheduling is not supported with this speculative method.")
    return SurfaceSettings(
        model=model,
        device=device,
        max_num_seqs=int(seqs),
        max_num_batched_tokens=int(tokens),
        max_model_len=max_len,
        block_size=int(values["block_size"] if values["block_size"] is not None else defaults["block_size"]),
        gpu_memory_utilization=float(values["gpu_memory_utilization"]),
        kv_cache_memory_bytes=values["kv_cache_memory_bytes"],
        num_gpu_blocks_override=values["num_gpu_blocks_override"],
        float32=values["dtype"] in ("float32", "float"),
        kv_bytes_per_value=1.0 if values["kv_cache_dtype"] in _EIGHT_BIT else _kv_bytes(values),
        quantization=values["quantization"],
        enforce_eager=bool(values["enforce_eager"]),
        async_scheduling=values["async_scheduling"] is not False and not host_drafts,
        tensor_parallel_size=int(values["tensor_parallel_size"]),
        speculation=speculation,
    )


def _kv_bytes(values: Mapping[str, Any]) -> float:
    return 4.0 if values["kv_cache_dtype"] == "auto" and values["dtype"] in ("float32", "float") else 2.0


def _speculation(config: Mapping[str, Any] | None) -> Speculation | None:
    """Read the JSON flag."""
    if not config:
        return None
    method = str(config.get("method", "draft_model" if config.get("model") else "ngram"))
    if method not in SPECULATION:
        raise Rejected("SpeculativeConfig", f"Unsupported speculative method: {method!r}")
    drafts = config.get("num_speculative_tokens", 3)
    if isinstance(drafts, bool) or not isinstance(drafts, int) or not 1 <= drafts <= 32:
        raise Rejected("SpeculativeConfig", f"num_speculative_tokens must be in 1..32, got {drafts!r}.")
    return Speculation(method=method, drafts=drafts)


def _check(values: Mapping[str, Any], surface: SurfaceSettings) -> None:
    """Raise ``Rejected`` for the first combination that the engine refuses."""
    seqs, tokens, length = surface.max_num_seqs, surface.max_num_batched_tokens, surface.max_model_len
    memory = surface.gpu_memory_utilization
    heads, ways = surface.model.heads, surface.tensor_parallel_size
    rules: tuple[tuple[bool, str, str], ...] = (
        (seqs < 1, "SchedulerConfig", f"max_num_seqs ({seqs}) must be greater than or equal to 1."),
        (tokens < seqs, "SchedulerConfig",
         f"max_num_batched_tokens ({tokens}) must be greater than or equal to max_num_seqs ({seqs})."),
        (values["enable_chunked_prefill"] is False and tokens < length, "SchedulerConfig",
         (f"max_num_batched_tokens ({tokens}) is smaller than max_model_len ({length}). This effectively limits the maximum "
         "sequence length to max_num_batched_tokens and makes the engine reject longer sequences. Please increase "
         "max_num_batched_tokens or decrease max_model_len.")),
        (not 0 <= int(values["long_prefill_token_threshold"]) <= length, "SchedulerConfig",
         (f"long_prefill_token_threshold ({values['long_prefill_token_threshold']}) cannot be greater than the "
         f"max_model_len ({length}).")),
        (not 0 < memory <= 1, "CacheConfig", f"gpu_memory_utilization ({memory}) must be in (0, 1]."),
        (not 0 <= float(values["watermark"]) < 1, "SchedulerConfig", "watermark must be in [0, 1)."),
        (length < 1 or length > surface.model.max_len, "ModelConfig",
         (f"User-specified max_model_len ({length}) is greater than the derived max_model_len "
         f"(max_position_embeddings={surface.model.max_len}).")),
        (ways < 1 or heads % max(1, ways) != 0, "VllmConfig",
         f"Total number of attention heads ({heads}) must be divisible by tensor parallel size ({ways})."),
        (ways > int(values["sim_device_count"]), "ParallelConfig",
         f"World size ({ways}) is larger than the number of available GPUs ({values['sim_device_count']}) in this node."),
        (surface.block_size < 16 or surface.block_size % 16 != 0, "",
         f"ValueError: No common block size for {surface.block_size} (SIMULATED: [MultipleOf(16)])"),
    )  # fmt: skip
    for broken, section, message in rules:
        if broken:
            raise Rejected(section, message)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


class _UnderscoreParser(argparse.ArgumentParser):
    """Takes ``--max_num_seqs`` as well as ``--max-num-seqs``, as the real engine does."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Normalise the option names, then parse."""
        fixed = []
        for argument in args or []:
            head, equals, tail = argument.partition("=")
            fixed.append(head.replace("_", "-") + equals + tail if head.startswith("--") else argument)
        return super().parse_known_args(fixed, namespace)


def _parser() -> argparse.ArgumentParser:
    parser = _UnderscoreParser(
        prog="simulated", allow_abbrev=False, description="Simulated inference engine: no model is computed."
    )
    parser.add_argument("model_tag", nargs="?", default=None)
    for flag in (*FLAGS, *SIMULATOR_ONLY):
        _add(parser, flag)
    parser.add_argument("--fault", action="append", default=[], metavar="NAME[=ARG]", help="Inject a fault.")
    return parser


def _add(parser: argparse.ArgumentParser, flag: Flag) -> None:
    names = [_option(flag.name)]
    names += [f"-{alias}" if len(alias) <= 3 else _option(alias) for alias in flag.aliases]
    common: dict[str, Any] = {"dest": flag.name, "default": flag.default, "help": flag.help.replace("%", "%%")}
    if flag.kind == "bool":
        action: Any = argparse.BooleanOptionalAction if flag.negatable else "store_true"
        parser.add_argument(*names, action=action, **common)
        return
    kinds: dict[str, Any] = {"int": _human_int, "float": float, "str": str, "json": _json}
    if flag.choices:
        common["choices"] = flag.choices
    parser.add_argument(*names, type=kinds[flag.kind], **common)


def _human_int(text: str) -> int:
    """Read ``2048``, ``2k`` (thousand) or ``2K`` (1024), and the same with m and g."""
    units = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
    if text and text[-1] in units:
        return int(float(text[:-1]) * units[text[-1]])
    return int(text)


def _json(text: str) -> Any:
    value = json.loads(text)
    if value is not None and not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def _file_arguments(parser: argparse.ArgumentParser, path: str) -> list[str]:
    """Translate a YAML file into arguments."""
    try:
        document = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    except (OSError, yaml.YAMLError) as error:
        parser.error(f"argument --config: {error}")
    if not isinstance(document, dict):
        parser.error(f"argument --config: {path} does not hold a mapping")
    arguments: list[str] = []
    for key, value in document.items():
        name = str(key).replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            arguments.append(f"--{name}" if value else f"--no-{name}")
        elif isinstance(value, dict):
            arguments += [f"--{name}", json.dumps(value)]
        elif isinstance(value, list):
            for item in value:
                arguments += [f"--{name}", str(item)]
        else:
            arguments += [f"--{name}", str(value)]
    return arguments
