"""The line that shows a running study.  Pure: the caller reads the clock and owns the terminal."""

from __future__ import annotations

from dataclasses import dataclass

from autotuner.report.figures import duration, number, percent

__all__ = ["ProgressView", "format_progress"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressView:
    """What is known about a running study at one moment."""

    trial: int
    """Trials that have begun."""
    trials: int
    """Trials that are planned; 0 when unknown."""
    phase: str
    """What is being done, in a word or two: ``starting``, ``warm-up``, ``measuring``."""
    detail: str = ""
    """Where inside the phase: ``loading weights``, ``6 of 10 s``."""
    best: float | None = None
    """Best feasible objective so far."""
    baseline: float | None = None
    """The baseline's objective."""
    unit: str = "tok/s"
    elapsed: float = 0.0
    """Seconds since the study began."""
    left: float | None = None
    """Seconds until the study is expected to end; ``None`` when unknown."""
    simulated: bool = False


def format_progress(view: ProgressView, width: int = 0) -> str:
    """Return one line without line break, cut to *width* columns when that is positive."""
    of = f"/{view.trials}" if view.trials else ""
    doing = f"{view.phase} ({view.detail})" if view.detail else view.phase
    parts = [f"[{duration(view.elapsed)}] trial {view.trial}{of}", doing, _best(view)]
    if view.left is not None:
        parts.append(f"about {duration(view.left)} left")
    line = " · ".join(part for part in parts if part)
    if view.simulated:
        line = f"SIMULATED {line}"
    return line[: width - 1] + "…" if 0 < width < len(line) else line


def _best(view: ProgressView) -> str:
    if view.best is None:
        return "nothing feasible yet" if view.trial > 1 else ""
    text = f"best {number(view.best)} {view.unit}"
    if view.baseline is not None and view.baseline > 0:
        text += f" ({percent(view.best / view.baseline - 1, signed=True)})"
    return text
