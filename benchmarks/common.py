"""What benchmarks share: figures with their spread, the machine and the versions, the result file, free ports, servers.

Every benchmark writes ``benchmarks/results/NAME.json``::

    {"name", "utc", "figures": {KEY: {"value", "unit", "low", "high", "samples", "requirement", "holds"}}, "holds",
     "notes": [...], "machine": {...}, "versions": {...}}

``value`` is the median of the samples, ``low`` and ``high`` their extremes; ``holds`` says whether the requirement is
met and is null where there is none.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

__all__ = [
    "RESULTS",
    "ROOT",
    "Figure",
    "Report",
    "engine_venv",
    "fake_server",
    "figure",
    "small_model",
    "vllm_environment",
]

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured figure over its samples."""

    value: float
    unit: str
    low: float
    high: float
    samples: tuple[float, ...]
    requirement: str = ""
    holds: bool | None = None

    def line(self, key: str) -> str:
        verdict = "" if self.holds is None else ("  ok" if self.holds else "  NOT MET")
        wanted = f"  (required: {self.requirement})" if self.requirement else ""
        spread = f" [{self.low:.4g} .. {self.high:.4g}]" if len(self.samples) > 1 else ""
        return f"{key:<44} {self.value:>10.4g} {self.unit}{spread}{wanted}{verdict}"


def figure(samples: Sequence[float], unit: str, requirement: str = "", at_most: float | None = None) -> Figure:
    """Return the figure of *samples*; with *at_most* its median must not be larger."""
    middle = statistics.median(samples)
    holds = None if at_most is None else middle <= at_most
    return Figure(
        value=middle,
        unit=unit,
        low=min(samples),
        high=max(samples),
        samples=tuple(samples),
        requirement=requirement or ("" if at_most is None else f"at most {at_most:g} {unit}"),
        holds=holds,
    )


@dataclass(slots=True)
class Report:
    """Collects figures, prints them and writes the result file."""

    name: str
    figures: dict[str, Figure] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    def add(self, key: str, value: Figure) -> None:
        self.figures[key] = value
        print(value.line(key), flush=True)

    def note(self, text: str) -> None:
        self.notes.append(text)
        print(f"note: {text}", flush=True)

    @property
    def holds(self) -> bool:
        """Whether every requirement is met."""
        return all(item.holds is not False for item in self.figures.values())

    def write(self) -> Path:
        """Write the result file and return its path."""
        RESULTS.mkdir(parents=True, exist_ok=True)
        path = RESULTS / f"{self.name}.json"
        value = {
            "name": self.name,
            "utc": datetime.now(tz=UTC).isoformat(timespec="seconds"),
            "holds": self.holds,
            "figures": {key: asdict(item) for key, item in self.figures.items()},
            "notes": self.notes,
            "machine": machine(),
            "versions": {**versions(), **self.versions},
        }
        path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
        print(f"written: {path.relative_to(ROOT)}", flush=True)
        return path


def machine() -> dict[str, object]:
    """Return what the figures were measured on."""
    model = ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [line for line in cpuinfo.read_text("utf-8").splitlines() if line.startswith("model name")]
        model = lines[0].partition(":")[2].strip() if lines else ""
    return {
        "system": platform.platform(),
        "cpu": model or platform.machine(),
        "cores": os.cpu_count(),
        "load_average": [round(value, 2) for value in os.getloadavg()],
    }


def versions() -> dict[str, str]:
    """Return the versions of this project and what it measured with."""
    found = {"python": platform.python_version()}
    for name in ("vllm-autotuner", "aiohttp", "numpy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def engine_venv() -> Path:
    """Return the engine's environment, which may not exist."""
    return Path(os.environ.get("AUTOTUNER_ENGINE_VENV") or ROOT / ".venv-engine")


def small_model() -> Path:
    """Return the small model that the set-up makes, which may not exist."""
    return ROOT / ".cache" / "models" / "tiny-llama"


def vllm_environment(extra: Sequence[str] = ()) -> dict[str, str]:
    """Return an environment for vLLM's programs on one host: offline, one thread each, and *extra* (KEY=VALUE)."""
    chosen = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "NUMBA_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    given = dict(item.partition("=")[::2] for item in extra)
    return {**os.environ, **chosen, **given}


@contextmanager
def fake_server(first: float = 0.05, interval: float = 0.01) -> Iterator[str]:
    """Run the fake server in a process of its own and yield its address."""
    argv = [sys.executable, str(ROOT / "benchmarks" / "fake_server.py"), f"--first={first}", f"--interval={interval}"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            port = json.loads(process.stdout.readline())["port"]
            yield f"http://127.0.0.1:{port}"
        finally:
            process.stdin.close()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()


def positive(figures: Mapping[str, float], key: str) -> float:
    """Return ``figures[key]``; raise ``SystemExit`` when it is missing or 0, since a ratio to it says nothing."""
    value = figures.get(key, 0.0)
    if value <= 0.0:
        raise SystemExit(f"no usable figure {key!r} in {sorted(figures)}")
    return value
