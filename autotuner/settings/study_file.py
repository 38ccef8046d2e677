"""The study file as pydantic models: one class per section, a sentence per field.

The models check single values; what depends on several fields is in ``consistency``.  Unknown keys are errors.  The
descriptions here are the source of the JSON schema and of the reference in ``docs/study-file.md``.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, WithJsonSchema
from pydantic_core import PydanticCustomError

from autotuner.core.budget import LatencyMetric, metric_key
from autotuner.core.study import Objective
from autotuner.core.workload import Arrival, LengthKind, LoadMode, PromptFormat
from autotuner.settings.quantities import Malformed, parse_duration, parse_limit_key, parse_size

__all__ = [
    "AUTO",
    "BudgetSection",
    "DomainSection",
    "DraftSection",
    "EngineSection",
    "HardwareSection",
    "LatencySection",
    "LengthsSection",
    "MeasureSection",
    "PrefixSection",
    "SearchSection",
    "SpaceSection",
    "StudyFile",
    "TraceSection",
    "WorkloadSection",
]

AUTO = "auto"
_DURATION = {"type": "string", "pattern": r"^\s*[0-9.]+\s*(us|ms|s|sec|min|m|h|d)\s*$", "examples": ["80 ms", "1.5 s"]}
_SIZE = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}], "examples": ["512 MiB"]}
_SCALAR = {"type": ["boolean", "integer", "number", "string"]}
_FLAGS = {"type": "object", "additionalProperties": {"anyOf": [_SCALAR, {"type": "object"}]}}


def refuse(message: str, remedy: str) -> PydanticCustomError:
    """Return the error that the loader turns into a problem with this remedy."""
    return PydanticCustomError("refused", "{message}; {remedy}", {"message": message, "remedy": remedy})


def _duration(value: object) -> float:
    try:
        return parse_duration(value)
    except Malformed as error:
        raise refuse(error.message, error.remedy) from error


def _size(value: object) -> int:
    try:
        return parse_size(value)
    except Malformed as error:
        raise refuse(error.message, error.remedy) from error


def _limit_key(value: str) -> str:
    try:
        return metric_key(*parse_limit_key(value))
    except Malformed as error:
        raise refuse(error.message, error.remedy) from error


def _parts_or_text(value: object) -> object:
    return tuple(shlex.split(value)) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


def _lengths(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"kind": LengthKind.FIXED.value, "mean": value}
    return value


def _auto_hardware(value: object) -> object:
    return None if value == AUTO else value


def _limit_names(schema: dict[str, Any]) -> None:
    metrics = "|".join(metric.value for metric in LatencyMetric)
    schema["propertyNames"] = {"pattern": f"^({metrics})_p(50|75|90|95|99|99[._]9)$"}


def _space(value: object) -> object:
    if value == AUTO or value is None:
        return {}
    if not isinstance(value, Mapping):
        raise refuse("neither auto nor a mapping of parameters", "write auto, or parameters with their domains")
    reserved = {key: value[key] for key in ("auto", "include", "exclude") if key in value}
    return {**reserved, "parameters": {key: item for key, item in value.items() if key not in reserved}}


def _domain(value: object) -> object:
    if isinstance(value, list):
        return {"choices": value}
    if isinstance(value, bool | int | float | str):
        return {"fixed": value}
    return value


def _number_text(value: object) -> object:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _flags(value: dict[str, object]) -> dict[str, object]:
    for name, item in value.items():
        if isinstance(item, float) and not math.isfinite(item):
            raise refuse(f"{name} is not a finite number", "give a finite number, or leave it out")
        if isinstance(item, dict):
            _flags(item)
    return value


def _env_value(value: str) -> str:
    if value.count("${") != len(re.findall(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}", value)):
        raise refuse("not a reference to an environment variable", "write ${NAME}")
    return value


def _env_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
        raise refuse("not the name of an environment variable", "use letters, digits and underscores")
    if value == "CUDA_LAUNCH_BLOCKING":
        raise refuse("it serialises kernels and spoils every measurement", "remove it")
    return value


Duration = Annotated[float, BeforeValidator(_duration), WithJsonSchema(_DURATION)]
Size = Annotated[int, BeforeValidator(_size), WithJsonSchema(_SIZE)]
Scalar = Annotated[bool | int | float | str, WithJsonSchema(_SCALAR)]
Flags = Annotated[dict[str, object], AfterValidator(_flags), WithJsonSchema(_FLAGS)]
Command = Annotated[
    tuple[str, ...],
    BeforeValidator(_parts_or_text),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
EnvName = Annotated[str, AfterValidator(_env_name)]
EnvValue = Annotated[str, BeforeValidator(_number_text), AfterValidator(_env_value)]
LimitKey = Annotated[str, AfterValidator(_limit_key)]


class Section(BaseModel):
    """Common settings: unknown keys are errors, types are strict, values are frozen."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class DraftSection(Section):
    """A second model that proposes tokens (speculative decoding)."""

    model: str = Field(min_length=1)
    """Path or hub name of the draft model or of the trained head."""
    method: Literal["draft_model", "eagle", "eagle3", "medusa", "mlp_speculator"] = "draft_model"
    """How the engine uses it."""


class EngineSection(Section):
    """The engine: which one, how it is started, and the flags that never change."""

    kind: Literal["vllm", "simulated"] = "vllm"
    """`vllm`, or `simulated` (a small HTTP server with a known response surface; never a real result)."""
    command: Command = ()
    """Command that starts the engine in place of the one found on this machine, such as `/opt/vllm/bin/vllm serve`."""
    python: str = ""
    """Python interpreter of the environment that the engine lives in; asked for flags and defaults."""
    env: dict[EnvName, EnvValue] = Field(default_factory=dict)
    """Environment variables of the engine. `${NAME}` is replaced by the worker when it starts the engine, and never
    stored."""
    args: Flags = Field(default_factory=dict)
    """Engine flags that every launch gets; JSON flags as nested mappings."""
    draft: DraftSection | None = None
    """Draft model for speculative decoding."""


class HardwareSection(Section):
    """The device, where it is not the machine that the study is read on."""

    device: Literal["cpu", "cuda"]
    """`cpu` or `cuda`."""
    name: str = ""
    """Name as the driver reports it, such as `NVIDIA H200`."""
    count: int = Field(default=1, ge=1, le=65_536)
    """Number of GPUs (1 for a CPU)."""
    compute_units: int = Field(default=0, ge=0, le=1_000_000)
    """Streaming multiprocessors of one GPU, or cores."""
    memory: Size = 0
    """Memory of one GPU, or of the host."""
    compute_capability: float = Field(default=0.0, ge=0, le=1000)
    """CUDA compute capability, such as 9.0; decides which precisions exist."""
    nvlink: bool = False
    """The GPUs are linked by NVLink."""


class LengthsSection(Section):
    """Token counts of prompts or of answers. A plain number means that fixed length."""

    kind: Annotated[LengthKind, Field(strict=False)] = LengthKind.FIXED
    """Distribution."""
    mean: float = Field(default=128.0, ge=1, le=10_000_000)
    """The value of `fixed`, the middle of `uniform`, the mean of `normal` and `lognormal`."""
    spread: float = Field(default=0.0, ge=0, le=10_000_000)
    """Half width of `uniform`, standard deviation of `normal` and `lognormal`."""
    low: int = Field(default=1, ge=1, le=10_000_000)
    """Smallest count; smaller draws are clipped."""
    high: int | None = Field(default=None, ge=1, le=10_000_000)
    """Largest count; larger draws are clipped. Left out: what the distribution needs and the model's length allows."""


class PrefixSection(Section):
    """Prompts that begin alike."""

    tokens: int = Field(default=0, ge=0, le=10_000_000)
    """Length of the shared part; 0 makes every prompt fresh."""
    groups: int = Field(default=1, ge=1, le=1_000_000)
    """Number of different prefixes."""


class TraceSection(Section):
    """A recorded trace."""

    path: str = Field(min_length=1)
    """File, relative to the study file."""
    format: Literal["auto", "azure", "mooncake"] = "auto"
    """`azure` (CSV), `mooncake` (JSONL), or by the header."""
    speed_up: float = Field(default=1.0, gt=0, le=1_000_000)
    """Arrival times are divided by this."""


Tokens = Annotated[
    LengthsSection,
    BeforeValidator(_lengths, json_schema_input_type=LengthsSection | float),
]


class WorkloadSection(Section):
    """The traffic that each measurement offers."""

    mode: Annotated[LoadMode, Field(strict=False)] = LoadMode.CLOSED
    """`closed`: a fixed number of clients. `open`: requests arrive by a schedule, whatever the engine does."""
    concurrency: int | None = Field(default=None, ge=0, le=100_000)
    """Clients of a closed loop (16 when left out); the bound of requests in flight of an open loop (0: none)."""
    rate: float = Field(default=0.0, ge=0, le=100_000)
    """Requests per second of an open loop."""
    arrival: Annotated[Arrival, Field(strict=False)] = Arrival.POISSON
    """Arrival process of an open loop."""
    burstiness: float = Field(default=1.0, gt=0, le=1_000_000)
    """Shape of `gamma` arrivals: 1 is Poisson, below 1 is burstier."""
    input_tokens: Tokens = LengthsSection()
    """Prompt lengths."""
    output_tokens: Tokens = LengthsSection(mean=64.0)
    """Answer lengths."""
    shared_prefix: PrefixSection = PrefixSection()
    """Prompts that begin alike, as with a common system prompt."""
    trace: TraceSection | None = None
    """Recorded arrivals and lengths."""
    prompt_format: Annotated[PromptFormat, Field(strict=False)] = PromptFormat.TOKENS
    """`tokens` for exact lengths, `text` for the way real clients send prompts."""
    temperature: float | None = Field(default=None, ge=0, le=100)
    """Sampling temperature; left out, the server's own default."""
    ignore_eos: bool = True
    """Every answer has exactly the drawn length."""
    request_timeout: Duration = 120.0
    """After this long a request counts as failed."""


class LatencySection(Section):
    """The latency budget: named parts, and limits on percentiles of what is measured."""

    total: Duration | None = None
    """The whole budget of a request, seen by its user."""
    parts: dict[str, Duration] = Field(default_factory=dict)
    """Named parts of it, such as `network`, `preprocessing` and `inference`. `inference` becomes an end-to-end limit of
    the engine; left out, it is what the other parts leave of `total`."""
    percentile: float = Field(default=95.0, gt=0, lt=100)
    """Percentile at which the inference part is judged."""
    limits: dict[LimitKey, Duration] = Field(default_factory=dict, json_schema_extra=_limit_names)
    """Limits by name: `ttft`, `itl`, `tpot` or `e2e` with `_p50`, `_p75`, `_p90`, `_p95`, `_p99` or `_p99_9`."""
    max_error_ratio: float = Field(default=0.01, ge=0, lt=1)
    """Largest share of requests that may fail, abort or come back empty."""


class BudgetSection(Section):
    """When the study ends."""

    trials: int = Field(default=20, ge=1, le=1_000_000)
    """Explored points, the baseline's first measurement among them; repeats and races come on top."""
    wall_time: Duration | None = None
    """Time for everything, races included."""
    gpu_hours: float | None = Field(default=None, gt=0, le=100_000_000)
    """Hours times devices that engines may hold."""


class MeasureSection(Section):
    """How one point is measured."""

    warmup_min: Duration = 2.0
    """Shortest warm-up before steadiness is looked for."""
    warmup_max: Duration = 60.0
    """Longest warm-up; a load that is still unsteady is measured and marked so."""
    window: Duration = 1.0
    """Length of the windows whose throughput is compared."""
    tolerance: float = Field(default=0.10, gt=0, lt=1)
    """Steady when the last windows differ by less than this share from their mean."""
    duration: Duration = 10.0
    """Length of the measured part."""
    min_requests: int = Field(default=20, ge=1, le=10_000_000)
    """Measured requests below which the part is prolonged."""
    duration_max: Duration | None = None
    """Longest measured part; left out, 60 s or `duration` where that is longer."""
    start_timeout: Duration = 600.0
    """From starting the engine to its first real answer."""
    stall_timeout: Duration = 60.0
    """Without any token under load for this long, the engine counts as hung."""


class DomainSection(Section):
    """The values of one parameter: a range, choices (a plain list), or one fixed value (a plain value)."""

    low: float | int | None = None
    """Smallest value; left out, the automatic one."""
    high: float | int | None = None
    """Largest value; left out, the automatic one."""
    log: bool | None = None
    """Search on a logarithmic scale."""
    step: float | int | None = Field(default=None, gt=0)
    """Grid of the values."""
    choices: list[Scalar] | None = Field(default=None, min_length=1)
    """The values, in order."""
    fixed: Scalar | None = None
    """The only value."""


class SpaceSection(Section):
    """What is searched: parameter names with domains, beside the three keys here."""

    auto: bool = True
    """Begin with the parameters that the autotuner would choose for this engine, model and traffic."""
    include: list[str] = Field(default_factory=list)
    """Further parameters with their automatic domains."""
    exclude: list[str] = Field(default_factory=list)
    """Parameters that are not searched."""
    parameters: dict[str, Annotated[DomainSection, BeforeValidator(_domain)]] = Field(default_factory=dict)
    """Written beside the keys above: parameter → domain."""


def _space_schema() -> dict[str, object]:
    domain = {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "low": {"type": "number"},
            "high": {"type": "number"},
            "log": {"type": "boolean"},
            "step": {"type": "number", "exclusiveMinimum": 0},
            "choices": {"type": "array", "items": _SCALAR, "minItems": 1},
            "fixed": _SCALAR,
        },
    }
    names = {"type": "array", "items": {"type": "string"}}
    return {
        "anyOf": [
            {"const": AUTO},
            {
                "type": "object",
                "properties": {"auto": {"type": "boolean"}, "include": names, "exclude": names},
                "additionalProperties": {"anyOf": [domain, {"type": "array", "items": _SCALAR}, _SCALAR]},
            },
        ]
    }


class SearchSection(Section):
    """How points are chosen and the winner is decided."""

    sampler: Literal["tpe", "gp", "random", "grid"] = "tpe"
    """Who proposes the points after the seeds."""
    seed: int = Field(default=0, ge=0, le=4_294_967_295)
    """Seed of everything random."""
    hot_points_per_launch: int = Field(default=4, ge=1, le=1000)
    """Points measured inside one launch where the engine can change hot parameters."""
    baseline_repeats: int = Field(default=3, ge=1, le=1000)
    """Measurements of the baseline against itself: the noise floor."""
    finalists: int = Field(default=2, ge=1, le=1000)
    """Configurations that enter the race against the baseline."""
    race_pairs: int = Field(default=5, ge=1, le=1000)
    """Largest number of interleaved pairs per finalist."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Confidence of the verdict."""
    min_gain: float = Field(default=0.01, ge=0, le=100)
    """Smallest relative gain worth a change."""
    max_attempts: int = Field(default=2, ge=1, le=100)
    """Attempts at one point when the fault was not the configuration's."""
    space: Annotated[SpaceSection, BeforeValidator(_space), WithJsonSchema(_space_schema())] = SpaceSection()
    """What is searched: `auto`, or parameters with their domains."""


class StudyFile(Section):
    """A study: what is tuned, under which traffic and latency budget, and with how much effort."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    """Name of the study; letters, digits, dot, dash and underscore."""
    model: str = Field(default=AUTO, min_length=1)
    """Path or hub name of the model; `auto` is a small generated one."""
    engine: EngineSection = EngineSection()
    """The engine and its fixed flags."""
    hardware: Annotated[
        HardwareSection | None,
        BeforeValidator(_auto_hardware, json_schema_input_type=HardwareSection | Literal["auto"]),
    ] = None
    """The device: `auto` asks the machine."""
    workload: WorkloadSection = WorkloadSection()
    """The traffic."""
    latency: LatencySection = LatencySection()
    """The latency budget."""
    objective: Annotated[Objective, Field(strict=False)] = Objective.OUTPUT_THROUGHPUT
    """What is maximised: generated tokens per second, all tokens per second, or requests per second within limits."""
    budget: BudgetSection = BudgetSection()
    """When the study ends."""
    measure: MeasureSection = MeasureSection()
    """How one point is measured."""
    search: SearchSection = SearchSection()
    """What is searched, and how."""
    baseline: Flags = Field(default_factory=dict)
    """Flags in production now; empty means the engine's defaults."""
    seeds: list[Flags] = Field(default_factory=list)
    """Configurations to try first."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Free notes that travel with the study."""

    _source: str = PrivateAttr(default="")
    _lines: dict[tuple[str | int, ...], int] = PrivateAttr(default_factory=dict)

    @property
    def source(self) -> str:
        """Path of the file, or empty."""
        return self._source

    def remember(self, source: str, lines: Mapping[tuple[str | int, ...], int]) -> StudyFile:
        """Note where this came from, for messages; return the study file itself."""
        self._source, self._lines = source, dict(lines)
        return self

    def line(self, *path: str | int) -> int | None:
        """Return the line of the deepest written part of *path*."""
        found: int | None = None
        kept: tuple[str | int, ...] = ()
        for part in path:
            if (*kept, part) in self._lines:
                kept = (*kept, part)
                found = self._lines[kept]
        return found
