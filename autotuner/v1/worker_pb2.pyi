from autotuner.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RegisterRequest(_message.Message):
    __slots__ = ("worker_id", "instance_id", "host", "boot_id", "protocol_versions", "engine", "resident_engines", "devices", "program_version")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_ENGINES_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_VERSION_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    instance_id: str
    host: str
    boot_id: str
    protocol_versions: _containers.RepeatedScalarFieldContainer[str]
    engine: EngineSummary
    resident_engines: int
    devices: _containers.RepeatedCompositeFieldContainer[Device]
    program_version: str
    def __init__(self, worker_id: _Optional[str] = ..., instance_id: _Optional[str] = ..., host: _Optional[str] = ..., boot_id: _Optional[str] = ..., protocol_versions: _Optional[_Iterable[str]] = ..., engine: _Optional[_Union[EngineSummary, _Mapping]] = ..., resident_engines: _Optional[int] = ..., devices: _Optional[_Iterable[_Union[Device, _Mapping]]] = ..., program_version: _Optional[str] = ...) -> None: ...

class EngineSummary(_message.Message):
    __slots__ = ("kind", "version", "platform", "hot_capable")
    KIND_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    HOT_CAPABLE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    version: str
    platform: str
    hot_capable: bool
    def __init__(self, kind: _Optional[str] = ..., version: _Optional[str] = ..., platform: _Optional[str] = ..., hot_capable: bool = ...) -> None: ...

class Device(_message.Message):
    __slots__ = ("kind", "name", "memory_bytes", "uuid")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    memory_bytes: int
    uuid: str
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., uuid: _Optional[str] = ...) -> None: ...

class RegisterResponse(_message.Message):
    __slots__ = ("session_id", "epoch", "lease_seconds", "heartbeat_seconds", "protocol_version")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    epoch: int
    lease_seconds: float
    heartbeat_seconds: float
    protocol_version: str
    def __init__(self, session_id: _Optional[str] = ..., epoch: _Optional[int] = ..., lease_seconds: _Optional[float] = ..., heartbeat_seconds: _Optional[float] = ..., protocol_version: _Optional[str] = ...) -> None: ...

class SyncRequest(_message.Message):
    __slots__ = ("session_id", "worker_id", "held", "progress", "draining", "wait_seconds")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    worker_id: str
    held: _containers.RepeatedCompositeFieldContainer[Held]
    progress: Progress
    draining: bool
    wait_seconds: float
    def __init__(self, session_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., held: _Optional[_Iterable[_Union[Held, _Mapping]]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., draining: bool = ..., wait_seconds: _Optional[float] = ...) -> None: ...

class Held(_message.Message):
    __slots__ = ("study_id", "trial_id", "attempt", "epoch")
    STUDY_ID_FIELD_NUMBER: _ClassVar[int]
    TRIAL_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    study_id: str
    trial_id: int
    attempt: int
    epoch: int
    def __init__(self, study_id: _Optional[str] = ..., trial_id: _Optional[int] = ..., attempt: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("trial_id", "phase", "detail", "seconds", "throughput", "study_id")
    TRIAL_ID_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    THROUGHPUT_FIELD_NUMBER: _ClassVar[int]
    STUDY_ID_FIELD_NUMBER: _ClassVar[int]
    trial_id: int
    phase: str
    detail: str
    seconds: float
    throughput: float
    study_id: str
    def __init__(self, trial_id: _Optional[int] = ..., phase: _Optional[str] = ..., detail: _Optional[str] = ..., seconds: _Optional[float] = ..., throughput: _Optional[float] = ..., study_id: _Optional[str] = ...) -> None: ...

class SyncResponse(_message.Message):
    __slots__ = ("assignment", "cancel", "shutdown", "lease_seconds")
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    SHUTDOWN_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    assignment: Assignment
    cancel: _containers.RepeatedCompositeFieldContainer[Held]
    shutdown: bool
    lease_seconds: float
    def __init__(self, assignment: _Optional[_Union[Assignment, _Mapping]] = ..., cancel: _Optional[_Iterable[_Union[Held, _Mapping]]] = ..., shutdown: bool = ..., lease_seconds: _Optional[float] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("study_id", "trial_id", "attempt", "epoch", "lease_seconds", "kind", "model", "config", "launch_config", "hot", "workload", "measure", "seed", "limits")
    STUDY_ID_FIELD_NUMBER: _ClassVar[int]
    TRIAL_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    LAUNCH_CONFIG_FIELD_NUMBER: _ClassVar[int]
    HOT_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    MEASURE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    study_id: str
    trial_id: int
    attempt: int
    epoch: int
    lease_seconds: float
    kind: str
    model: str
    config: _common_pb2.Config
    launch_config: _common_pb2.Config
    hot: _common_pb2.Config
    workload: _common_pb2.Workload
    measure: _common_pb2.MeasurePlan
    seed: int
    limits: _containers.RepeatedCompositeFieldContainer[Limit]
    def __init__(self, study_id: _Optional[str] = ..., trial_id: _Optional[int] = ..., attempt: _Optional[int] = ..., epoch: _Optional[int] = ..., lease_seconds: _Optional[float] = ..., kind: _Optional[str] = ..., model: _Optional[str] = ..., config: _Optional[_Union[_common_pb2.Config, _Mapping]] = ..., launch_config: _Optional[_Union[_common_pb2.Config, _Mapping]] = ..., hot: _Optional[_Union[_common_pb2.Config, _Mapping]] = ..., workload: _Optional[_Union[_common_pb2.Workload, _Mapping]] = ..., measure: _Optional[_Union[_common_pb2.MeasurePlan, _Mapping]] = ..., seed: _Optional[int] = ..., limits: _Optional[_Iterable[_Union[Limit, _Mapping]]] = ...) -> None: ...

class Limit(_message.Message):
    __slots__ = ("metric", "percentile", "seconds")
    METRIC_FIELD_NUMBER: _ClassVar[int]
    PERCENTILE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    metric: str
    percentile: float
    seconds: float
    def __init__(self, metric: _Optional[str] = ..., percentile: _Optional[float] = ..., seconds: _Optional[float] = ...) -> None: ...

class Outcome(_message.Message):
    __slots__ = ("study_id", "trial_id", "attempt", "epoch", "outcome", "message", "evidence", "hint", "launch", "measurement", "engine_seconds")
    class HintEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    STUDY_ID_FIELD_NUMBER: _ClassVar[int]
    TRIAL_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    LAUNCH_FIELD_NUMBER: _ClassVar[int]
    MEASUREMENT_FIELD_NUMBER: _ClassVar[int]
    ENGINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    study_id: str
    trial_id: int
    attempt: int
    epoch: int
    outcome: str
    message: str
    evidence: _containers.RepeatedScalarFieldContainer[str]
    hint: _containers.ScalarMap[str, float]
    launch: Launch
    measurement: Measurement
    engine_seconds: float
    def __init__(self, study_id: _Optional[str] = ..., trial_id: _Optional[int] = ..., attempt: _Optional[int] = ..., epoch: _Optional[int] = ..., outcome: _Optional[str] = ..., message: _Optional[str] = ..., evidence: _Optional[_Iterable[str]] = ..., hint: _Optional[_Mapping[str, float]] = ..., launch: _Optional[_Union[Launch, _Mapping]] = ..., measurement: _Optional[_Union[Measurement, _Mapping]] = ..., engine_seconds: _Optional[float] = ...) -> None: ...

class Launch(_message.Message):
    __slots__ = ("launch_id", "reused", "argv", "env", "phases", "ready_seconds", "engine_version", "effective", "no_ops", "log_path")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class EffectiveEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    LAUNCH_ID_FIELD_NUMBER: _ClassVar[int]
    REUSED_FIELD_NUMBER: _ClassVar[int]
    ARGV_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    READY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_VERSION_FIELD_NUMBER: _ClassVar[int]
    EFFECTIVE_FIELD_NUMBER: _ClassVar[int]
    NO_OPS_FIELD_NUMBER: _ClassVar[int]
    LOG_PATH_FIELD_NUMBER: _ClassVar[int]
    launch_id: str
    reused: bool
    argv: _containers.RepeatedScalarFieldContainer[str]
    env: _containers.ScalarMap[str, str]
    phases: _containers.RepeatedCompositeFieldContainer[Phase]
    ready_seconds: float
    engine_version: str
    effective: _containers.ScalarMap[str, str]
    no_ops: _containers.RepeatedScalarFieldContainer[str]
    log_path: str
    def __init__(self, launch_id: _Optional[str] = ..., reused: bool = ..., argv: _Optional[_Iterable[str]] = ..., env: _Optional[_Mapping[str, str]] = ..., phases: _Optional[_Iterable[_Union[Phase, _Mapping]]] = ..., ready_seconds: _Optional[float] = ..., engine_version: _Optional[str] = ..., effective: _Optional[_Mapping[str, str]] = ..., no_ops: _Optional[_Iterable[str]] = ..., log_path: _Optional[str] = ...) -> None: ...

class Phase(_message.Message):
    __slots__ = ("name", "seconds")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    seconds: float
    def __init__(self, name: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class Measurement(_message.Message):
    __slots__ = ("total_tokens", "warmup_tokens", "warmup_end", "end_time", "prompt_tokens", "steady", "requests", "ok", "errors", "aborted", "empty", "good", "latency", "latency_scheduled", "windows", "check", "engine", "host", "records")
    class LatencyEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _common_pb2.Interval
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_common_pb2.Interval, _Mapping]] = ...) -> None: ...
    class LatencyScheduledEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class EngineEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class HostEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WARMUP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WARMUP_END_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STEADY_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    OK_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    ABORTED_FIELD_NUMBER: _ClassVar[int]
    EMPTY_FIELD_NUMBER: _ClassVar[int]
    GOOD_FIELD_NUMBER: _ClassVar[int]
    LATENCY_FIELD_NUMBER: _ClassVar[int]
    LATENCY_SCHEDULED_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    total_tokens: float
    warmup_tokens: float
    warmup_end: float
    end_time: float
    prompt_tokens: float
    steady: bool
    requests: int
    ok: int
    errors: int
    aborted: int
    empty: int
    good: int
    latency: _containers.MessageMap[str, _common_pb2.Interval]
    latency_scheduled: _containers.ScalarMap[str, float]
    windows: _containers.RepeatedScalarFieldContainer[float]
    check: LoadCheck
    engine: _containers.ScalarMap[str, float]
    host: _containers.ScalarMap[str, float]
    records: str
    def __init__(self, total_tokens: _Optional[float] = ..., warmup_tokens: _Optional[float] = ..., warmup_end: _Optional[float] = ..., end_time: _Optional[float] = ..., prompt_tokens: _Optional[float] = ..., steady: bool = ..., requests: _Optional[int] = ..., ok: _Optional[int] = ..., errors: _Optional[int] = ..., aborted: _Optional[int] = ..., empty: _Optional[int] = ..., good: _Optional[int] = ..., latency: _Optional[_Mapping[str, _common_pb2.Interval]] = ..., latency_scheduled: _Optional[_Mapping[str, float]] = ..., windows: _Optional[_Iterable[float]] = ..., check: _Optional[_Union[LoadCheck, _Mapping]] = ..., engine: _Optional[_Mapping[str, float]] = ..., host: _Optional[_Mapping[str, float]] = ..., records: _Optional[str] = ...) -> None: ...

class LoadCheck(_message.Message):
    __slots__ = ("late_p99", "cpu_share", "longest_stall", "processes", "void_reasons")
    LATE_P99_FIELD_NUMBER: _ClassVar[int]
    CPU_SHARE_FIELD_NUMBER: _ClassVar[int]
    LONGEST_STALL_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    VOID_REASONS_FIELD_NUMBER: _ClassVar[int]
    late_p99: float
    cpu_share: float
    longest_stall: float
    processes: int
    void_reasons: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, late_p99: _Optional[float] = ..., cpu_share: _Optional[float] = ..., longest_stall: _Optional[float] = ..., processes: _Optional[int] = ..., void_reasons: _Optional[_Iterable[str]] = ...) -> None: ...

class CompleteRequest(_message.Message):
    __slots__ = ("session_id", "worker_id", "outcome")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    worker_id: str
    outcome: Outcome
    def __init__(self, session_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., outcome: _Optional[_Union[Outcome, _Mapping]] = ...) -> None: ...

class CompleteResponse(_message.Message):
    __slots__ = ("first",)
    FIRST_FIELD_NUMBER: _ClassVar[int]
    first: bool
    def __init__(self, first: bool = ...) -> None: ...
