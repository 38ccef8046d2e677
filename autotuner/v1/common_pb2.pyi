from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Value(_message.Message):
    __slots__ = ("flag", "integer", "number", "text")
    FLAG_FIELD_NUMBER: _ClassVar[int]
    INTEGER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    flag: bool
    integer: int
    number: float
    text: str
    def __init__(self, flag: bool = ..., integer: _Optional[int] = ..., number: _Optional[float] = ..., text: _Optional[str] = ...) -> None: ...

class Config(_message.Message):
    __slots__ = ("values",)
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.MessageMap[str, Value]
    def __init__(self, values: _Optional[_Mapping[str, Value]] = ...) -> None: ...

class Lengths(_message.Message):
    __slots__ = ("kind", "mean", "spread", "low", "high")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    SPREAD_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    kind: str
    mean: float
    spread: float
    low: int
    high: int
    def __init__(self, kind: _Optional[str] = ..., mean: _Optional[float] = ..., spread: _Optional[float] = ..., low: _Optional[int] = ..., high: _Optional[int] = ...) -> None: ...

class SharedPrefix(_message.Message):
    __slots__ = ("tokens", "groups")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    tokens: int
    groups: int
    def __init__(self, tokens: _Optional[int] = ..., groups: _Optional[int] = ...) -> None: ...

class TraceSource(_message.Message):
    __slots__ = ("path", "format", "speed_up")
    PATH_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    SPEED_UP_FIELD_NUMBER: _ClassVar[int]
    path: str
    format: str
    speed_up: float
    def __init__(self, path: _Optional[str] = ..., format: _Optional[str] = ..., speed_up: _Optional[float] = ...) -> None: ...

class Workload(_message.Message):
    __slots__ = ("mode", "concurrency", "rate", "arrival", "burstiness", "input_tokens", "output_tokens", "shared_prefix", "trace", "prompt_format", "temperature", "ignore_eos", "request_timeout")
    MODE_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    ARRIVAL_FIELD_NUMBER: _ClassVar[int]
    BURSTINESS_FIELD_NUMBER: _ClassVar[int]
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SHARED_PREFIX_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FORMAT_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    mode: str
    concurrency: int
    rate: float
    arrival: str
    burstiness: float
    input_tokens: Lengths
    output_tokens: Lengths
    shared_prefix: SharedPrefix
    trace: TraceSource
    prompt_format: str
    temperature: float
    ignore_eos: bool
    request_timeout: float
    def __init__(self, mode: _Optional[str] = ..., concurrency: _Optional[int] = ..., rate: _Optional[float] = ..., arrival: _Optional[str] = ..., burstiness: _Optional[float] = ..., input_tokens: _Optional[_Union[Lengths, _Mapping]] = ..., output_tokens: _Optional[_Union[Lengths, _Mapping]] = ..., shared_prefix: _Optional[_Union[SharedPrefix, _Mapping]] = ..., trace: _Optional[_Union[TraceSource, _Mapping]] = ..., prompt_format: _Optional[str] = ..., temperature: _Optional[float] = ..., ignore_eos: bool = ..., request_timeout: _Optional[float] = ...) -> None: ...

class MeasurePlan(_message.Message):
    __slots__ = ("warmup_min", "warmup_max", "window", "tolerance", "duration", "min_requests", "duration_max", "start_timeout", "stall_timeout")
    WARMUP_MIN_FIELD_NUMBER: _ClassVar[int]
    WARMUP_MAX_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    TOLERANCE_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    MIN_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    DURATION_MAX_FIELD_NUMBER: _ClassVar[int]
    START_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    STALL_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    warmup_min: float
    warmup_max: float
    window: float
    tolerance: float
    duration: float
    min_requests: int
    duration_max: float
    start_timeout: float
    stall_timeout: float
    def __init__(self, warmup_min: _Optional[float] = ..., warmup_max: _Optional[float] = ..., window: _Optional[float] = ..., tolerance: _Optional[float] = ..., duration: _Optional[float] = ..., min_requests: _Optional[int] = ..., duration_max: _Optional[float] = ..., start_timeout: _Optional[float] = ..., stall_timeout: _Optional[float] = ...) -> None: ...

class Interval(_message.Message):
    __slots__ = ("value", "low", "high")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    value: float
    low: float
    high: float
    def __init__(self, value: _Optional[float] = ..., low: _Optional[float] = ..., high: _Optional[float] = ...) -> None: ...
