"""The start-up phases of vLLM, followed from its log lines.

Each marker ends one phase and begins the next; markers are met in order, so that a line which several workers print
counts once.  Times come from the caller: the tracker reads no clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ["MARKERS", "LogLine", "PhaseTracker", "parse_line"]

_LINE = re.compile(
    r"^(?:\((?P<process>[A-Za-z][\w-]*?)(?:[_-](?:DP|TP|PP|EP|DCP|PCP)?\d[\w-]*)? pid=\d+\) ?)?"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d (?:\[[^\]]*\] ?)?)?(?P<text>.*)$"
)
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line without its prefixes."""

    process: str = ""
    """``APIServer``, ``EngineCore``, ``Worker``, ``VllmWorker``; empty when the line names none."""
    level: str = ""
    text: str = ""


def parse_line(raw: str) -> LogLine:
    """Split a line of output into process, level and text; any text parses."""
    match = _LINE.match(_ESCAPES.sub("", raw.rstrip("\r\n").rsplit("\r", 1)[-1]))
    if match is None:
        return LogLine(text=raw)
    return LogLine(process=match["process"] or "", level=match["level"] or "", text=match["text"] or "")


MARKERS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("config", re.compile(r"non-default args: ")),
    ("engine_start", re.compile(r"Using max model len \d+")),
    ("worker_start", re.compile(r"Initializing a V1 LLM engine ")),
    ("load_weights", re.compile(r"Starting to load model ")),
    ("profile", re.compile(r"(Loading weights took|Model loading took) ")),
    (
        "compile",
        re.compile(
            r"(Warming up model for the compilation|Using cache directory: .* torch\.compile|Dynamo bytecode transform time|"
            r"Compiling a graph for |Directly load |Start compiling )"
        ),
    ),
    (
        "kv_cache",
        re.compile(r"(Available KV cache memory: |Explicitly set .* for KV cache|\w+ KV cache size: |Warming up done)"),
    ),
    ("graph_capture", re.compile(r"(Capturing CUDA graphs|Capturing cudagraphs)")),
    ("server_start", re.compile(r"init engine \(profile, create kv cache, warmup model\) took ")),
    ("first_answer", re.compile(r"(INFO: +)?Application startup complete")),
)
"""The phase that begins with a line → how the line's text begins.  Before the first marker the phase is ``import``."""


@dataclass(slots=True)
class PhaseTracker:
    """Follows one start; *began* is the time of the exec in seconds of any steady clock."""

    began: float
    phase: str = "import"
    _since: float = field(init=False)
    _done: dict[str, float] = field(init=False, default_factory=dict)
    _next: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._since = self.began

    def observe(self, line: LogLine, now: float) -> str | None:
        """Take in one line; return the phase that it begins, or ``None``."""
        for place in range(self._next, len(MARKERS)):
            name, pattern = MARKERS[place]
            if pattern.match(line.text):
                self._close(now)
                self.phase, self._next = name, place + 1
                return name
        return None

    def finish(self, now: float) -> dict[str, float]:
        """Close the current phase and return phase → seconds, in order."""
        self._close(now)
        return dict(self._done)

    def _close(self, now: float) -> None:
        self._done[self.phase] = self._done.get(self.phase, 0.0) + max(0.0, now - self._since)
        self._since = now
