"""Why an engine failed, decided by evidence: the phase, the exit, the kernel's memory counter, parsed log records.

vLLM's exit status says little (0 also when the engine core was killed, 1 for every failure at start, 2 for the
command line), and the last line of its log only points upwards.  So the log is reduced to *records* while it streams
(exceptions, usage errors, deaths of child processes), the root among them is found, and one table decides.  Patterns
are matched from the start of an exception's message and bound to its type; nothing is searched for "anywhere".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from autotuner.core.trial import OutcomeClass
from autotuner_worker.engines.vllm_phases import LogLine, parse_line
from autotuner_worker.ports import EngineFault

__all__ = ["RULES", "Evidence", "LogRecords", "Record", "RecordKind", "Rule", "Stage", "classify"]


class Stage(StrEnum):
    """When the engine failed."""

    START = "start"
    """Before its first real answer."""
    SERVING = "serving"


class RecordKind(StrEnum):
    """What a line of the log reports."""

    EXCEPTION = "exception"
    """``name`` is the exception's type."""
    USAGE = "usage"
    """The command line was refused."""
    CHILD_DEATH = "child_death"
    """A process of the engine ended; ``name`` is its exit code (negative for a signal), empty when unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One parsed fact of the log."""

    kind: RecordKind
    name: str
    message: str
    process: str = ""

    def render(self) -> str:
        """Return the fact as one line of evidence."""
        place = f"{self.process}: " if self.process else ""
        text = f"{self.name}: {self.message}" if self.kind is RecordKind.EXCEPTION else self.message
        return (place + text)[:500]


_EXCEPTION = re.compile(
    r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|OutOfMemory\w*))(?:: (?P<text>.*))?$"
)
_USAGE = re.compile(r"^vllm(?: \w[\w-]*)?: error: (?P<text>.*)$")
_CHILD = re.compile(r"^(?P<text>Worker proc (?P<name>\S+) died unexpectedly \(exit code: (?P<code>-?\d+|None)\).*)$")
_CORE_CHILD = re.compile(
    r"^(?P<text>(Engine core proc \S+ died unexpectedly|\[shutdown\] MPClient: engine core exited unexpectedly).*)$"
)
_WRAPPED = re.compile(
    r"^Worker failed with error '(?P<text>.*)', please check the stack trace above for the root cause$"
)
_CONSEQUENCES: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "RuntimeError",
        re.compile(r"(Engine core initialization failed\.|cancelled$|Executor failed\.$|Worker failed with error )"),
    ),
    ("EngineDeadError", re.compile(r"")),
    ("CancelledError", re.compile(r"")),
    ("KeyboardInterrupt", re.compile(r"")),
    ("BrokenPipeError", re.compile(r"")),
    ("EOFError", re.compile(r"")),
    ("Exception", re.compile(r"WorkerProc initialization failed")),
)
"""Exceptions that only report that something else has failed."""
_KEEP = 40


class LogRecords:
    """Reduces a stream of lines to its records; keeps the first and the last ones, so its size is bounded."""

    def __init__(self) -> None:
        self._first: list[Record] = []
        self._last: list[Record] = []
        self._detail_for: tuple[str, str] | None = None

    def feed(self, raw: str) -> None:
        """Take in one line of output."""
        line = parse_line(raw)
        if self._detail_for is not None:
            name, process = self._detail_for
            self._detail_for = None
            detail = line.text.strip()
            if detail:
                self._add(Record(kind=RecordKind.EXCEPTION, name=name, message=_validation(detail), process=process))
                return
        record = _record(line)
        if record is None:
            return
        if record.name == "ValidationError" and re.match(r"\d+ validation errors? for ", record.message):
            self._detail_for = (record.name, line.process)
            return
        self._add(record)

    def all(self) -> tuple[Record, ...]:
        """Return the records in order, repetitions dropped."""
        return tuple(dict.fromkeys([*self._first, *self._last]))

    def _add(self, record: Record) -> None:
        if len(self._first) < _KEEP:
            self._first.append(record)
            return
        self._last.append(record)
        del self._last[:-_KEEP]


def _validation(detail: str) -> str:
    text = re.sub(r"\s*\[type=.*$", "", detail)
    return re.sub(r"^(Value error|Assertion failed), ", "", text)


def _record(line: LogLine) -> Record | None:
    text = line.text
    if match := _USAGE.match(text):
        return Record(kind=RecordKind.USAGE, name="usage", message=match["text"], process=line.process)
    if match := _CHILD.match(text):
        return Record(
            kind=RecordKind.CHILD_DEATH,
            name=match["code"].replace("None", ""),
            message=match["text"],
            process=line.process,
        )
    if match := _CORE_CHILD.match(text):
        return Record(kind=RecordKind.CHILD_DEATH, name="", message=match["text"], process=line.process)
    if match := _EXCEPTION.match(text):
        name = match["type"].rsplit(".", 1)[-1]
        return Record(kind=RecordKind.EXCEPTION, name=name, message=(match["text"] or "").strip(), process=line.process)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that a failure is decided by."""

    stage: Stage
    exit_code: int | None = None
    """Of the engine's first process: negative for a signal, ``None`` while it runs or when unknown."""
    memory_kills: int = 0
    """Increase of the kernel's counter of processes killed for memory since the start, in the engine's control group."""
    records: tuple[Record, ...] = ()
    phase: str = ""
    """Start-up phase in which it happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row: which exception means what."""

    types: str
    """Regular expression that the whole type name matches."""
    message: str
    """Regular expression for the beginning of the message."""
    start: OutcomeClass
    serving: OutcomeClass
    says: str
    """The sentence for a person, with the remedy; ``{text}`` is the engine's own message."""
    hint: Callable[[re.Match[str]], Mapping[str, float]] | None = None


_MEMORY = (OutcomeClass.OOM_AT_START, OutcomeClass.OOM_UNDER_LOAD)
_HOST = (OutcomeClass.INFRASTRUCTURE, OutcomeClass.INFRASTRUCTURE)
_REFUSED = (OutcomeClass.INFEASIBLE_CONFIG, OutcomeClass.CRASHED)


def _rule(
    types: str,
    message: str,
    outcomes: tuple[OutcomeClass, OutcomeClass],
    says: str,
    hint: Callable[[re.Match[str]], Mapping[str, float]] | None = None,
) -> Rule:
    return Rule(types=types, message=message, start=outcomes[0], serving=outcomes[1], says=says, hint=hint)


RULES: tuple[Rule, ...] = (
    # the host
    _rule(r"OSError", r"\[Errno 28\] ", _HOST, "the disk is full: free space for the engine's caches and logs"),
    _rule(r"OSError", r"\[Errno 98\] ", _HOST, "the engine's port is already in use: free it, or start again"),
    _rule(
        r"OSError", r"\[Errno 122\] ", _HOST, "the disk quota is used up: free space for the engine's caches and logs"
    ),
    _rule(r"OSError", r"\[Errno 24\] ", _HOST, "the engine ran out of file descriptors: raise the limit (ulimit -n)"),
    _rule(
        r"LocalEntryNotFoundError|RepositoryNotFoundError|GatedRepoError|HFValidationError",
        r"",
        _HOST,
        "the model cannot be found or fetched: check its path or hub name, the network and the access token ({text})",
    ),
    # memory
    _rule(
        r"ValueError",
        r"To serve at least one request with the model's max seq len \((?P<asked>\d+)\).*?estimated maximum model length is (?P<length>\d+)",
        _MEMORY,
        "the KV cache holds no request of the model's full length: lower max_model_len to {length} or give the cache more memory",
        lambda match: {"max_model_len": float(match["length"])},
    ),
    _rule(
        r"ValueError",
        r"To serve at least one request with the model's max seq len",
        _MEMORY,
        "the KV cache holds no request of the model's full length: lower max_model_len or give the cache more memory",
    ),
    _rule(
        r"ValueError",
        r"No available memory for the cache blocks",
        _MEMORY,
        "no memory is left for the KV cache: raise gpu_memory_utilization or kv_cache_memory_bytes",
    ),
    _rule(
        r"ValueError",
        r"Available memory on node .* is less than requested memory for kv \(-",
        _MEMORY,
        "gpu_memory_utilization leaves no memory for the KV cache: raise it, or set kv_cache_memory_bytes",
    ),
    _rule(
        r"ValueError",
        r"Available memory on node .* is less than requested memory for kv",
        _MEMORY,
        "the KV cache asked for does not fit into free memory: lower kv_cache_memory_bytes ({text})",
    ),
    _rule(
        r"ValueError",
        r"(Free|Available) memory on .* is less than desired \w+ memory utilization",
        _MEMORY,
        "less memory is free than gpu_memory_utilization asks for: lower it, or end what else uses the device ({text})",
    ),
    _rule(
        r"(AssertionError|ValueError|RuntimeError)",
        r"Error in memory profiling\.",
        _HOST,
        "memory use changed while the engine measured it: another program uses the device ({text})",
    ),
    _rule(
        r"(CUDA)?OutOfMemoryError|RuntimeError",
        r"(CUDA|HIP|XPU) out of memory\.",
        _MEMORY,
        "the device ran out of memory: lower gpu_memory_utilization, max_num_seqs or max_num_batched_tokens",
    ),
    _rule(
        r"RuntimeError|AcceleratorError",
        r"(CUDA error: out of memory|CUDA driver error: out of memory)",
        _MEMORY,
        "the device ran out of memory: lower gpu_memory_utilization, max_num_seqs or max_num_batched_tokens",
    ),
    _rule(
        r"RuntimeError",
        r"\[enforce fail at alloc_cpu\.cpp:\d+\].*DefaultCPUAllocator: ",
        _MEMORY,
        "the host ran out of memory: lower kv_cache_memory_bytes or max_num_batched_tokens ({text})",
    ),
    _rule(
        r"MemoryError",
        r"",
        _MEMORY,
        "the host ran out of memory: lower kv_cache_memory_bytes or max_num_batched_tokens",
    ),
    _rule(r"OSError", r"\[Errno 12\] ", _MEMORY, "the host ran out of memory: lower kv_cache_memory_bytes"),
    # the configuration
    _rule(
        r"ValueError",
        r"No common block size for (?P<size>\d+) \((?P<accepts>.*)\)",
        _REFUSED,
        "block_size {size} is not accepted by the attention backend, which takes {accepts}",
    ),
    _rule(r"ValidationError", r"", _REFUSED, "the engine refuses the configuration: {text}"),
    _rule(r"ArgumentTypeError|ArgumentError", r"", _REFUSED, "the engine refuses the command line: {text}"),
    _rule(
        r"ImportError|ModuleNotFoundError",
        r"",
        _REFUSED,
        "an option needs a package that the engine's environment lacks: {text}",
    ),
    _rule(r"NotImplementedError", r"", _REFUSED, "this engine or platform does not offer an option asked for: {text}"),
    _rule(
        r"(ValueError|AssertionError|TypeError|KeyError|AttributeError)",
        r"",
        _REFUSED,
        "the engine refuses the configuration: {name}: {text}",
    ),
    # whatever else
    _rule(r".*", r"", (OutcomeClass.CRASHED, OutcomeClass.CRASHED), "the engine ended with {name}: {text}"),
)
"""First match decides; types and messages are matched from their beginning."""


def classify(evidence: Evidence) -> EngineFault:
    """Return the fault; total: any evidence gives an answer."""
    usage = next((record for record in evidence.records if record.kind is RecordKind.USAGE), None)
    if usage is not None and evidence.stage is Stage.START:
        return _fault(evidence, OutcomeClass.INFEASIBLE_CONFIG, f"the engine refuses the command line: {usage.message}")
    root = _root(evidence.records, evidence.stage)
    killed = _killed(evidence)
    if evidence.memory_kills > 0 and (killed or root is None):
        outcome = _MEMORY[evidence.stage is Stage.SERVING]
        return _fault(
            evidence,
            outcome,
            "the kernel killed a process of the engine for lack of memory: lower the KV cache, max_num_batched_tokens or max_num_seqs",
        )
    if root is not None and not killed:
        return _by_table(evidence, root)
    if killed:
        return _fault(
            evidence, OutcomeClass.CRASHED, f"a process of the engine was killed by {killed}, and not for memory"
        )
    return _fault(evidence, OutcomeClass.CRASHED, _silent(evidence))


def _by_table(evidence: Evidence, root: Record) -> EngineFault:
    for rule in RULES:
        match = re.match(rule.message, root.message, re.DOTALL)
        if match is None or not re.fullmatch(rule.types, root.name):
            continue
        text = " ".join(root.message.split())[:300]
        named = {key: value or "" for key, value in match.groupdict().items()}
        return _fault(
            evidence,
            rule.start if evidence.stage is Stage.START else rule.serving,
            rule.says.format(**{"text": text, "name": root.name, **named}).rstrip(": "),
            rule.hint(match) if rule.hint else {},
        )
    raise AssertionError("the last rule matches everything")


def _root(records: tuple[Record, ...], stage: Stage) -> Record | None:
    """Return the first exception that is a cause, unwrapping what a worker told the engine core."""
    exceptions = [record for record in records if record.kind is RecordKind.EXCEPTION]
    if stage is Stage.SERVING:  # the API server also reports its clients' mistakes
        exceptions = [record for record in exceptions if record.process not in ("", "APIServer")]
    for record in exceptions:
        if not _is_consequence(record):
            return record
    for record in exceptions:
        wrapped = _WRAPPED.match(record.message)
        if wrapped:
            return Record(kind=record.kind, name="RuntimeError", message=wrapped["text"], process=record.process)
    return None


def _is_consequence(record: Record) -> bool:
    return any(record.name == name and pattern.match(record.message) for name, pattern in _CONSEQUENCES)


def _killed(evidence: Evidence) -> str:
    """Return the signal that ended a process of the engine, empty when none did."""
    codes = [evidence.exit_code or 0]
    codes += [int(record.name) for record in evidence.records if record.kind is RecordKind.CHILD_DEATH and record.name]
    signals = [-code for code in codes if code < 0 and code != -15]
    if signals:
        return f"signal {signals[0]}"
    silent = any(record.kind is RecordKind.CHILD_DEATH and not record.name for record in evidence.records)
    return "a signal" if silent and _root(evidence.records, evidence.stage) is None else ""


def _silent(evidence: Evidence) -> str:
    code = evidence.exit_code
    end = "exit code unknown" if code is None else f"signal {-code}" if code < 0 else f"exit code {code}"
    where = _when(evidence)
    return f"the engine ended by itself without saying why{where} ({end}): look at the end of its log"


def _when(evidence: Evidence) -> str:
    if evidence.stage is Stage.SERVING:
        return " while serving"
    return f" in start-up phase {evidence.phase}" if evidence.phase else " at start"


def _fault(
    evidence: Evidence, outcome: OutcomeClass, message: str, hint: Mapping[str, float] | None = None
) -> EngineFault:
    facts = [f"stage: {evidence.stage.value}" + (f", phase {evidence.phase}" if evidence.phase else "")]
    if evidence.exit_code is not None:
        facts.append(f"exit code: {evidence.exit_code}")
    facts.append(f"processes killed for memory: {evidence.memory_kills}")
    facts += [record.render() for record in evidence.records[:8]]
    return EngineFault(outcome=outcome, message=message, evidence=tuple(facts), hint=dict(hint or {}))
