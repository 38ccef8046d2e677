"""What a running study looks like on a terminal or in a log, and how its result is shown."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TextIO

import click

from autotuner.core.lifecycle import TrialState
from autotuner.core.race import rounds_wanted
from autotuner.core.results import StudyResult
from autotuner.core.state import Study, Trial
from autotuner.core.trial import TrialKind
from autotuner.daemon.embedded import WORKER_ID, Running
from autotuner.daemon.publish import published_files
from autotuner.report.figures import is_simulated, number, setting_text, unit
from autotuner.report.progress import ProgressView, format_progress
from autotuner.report.summary import render_summary

__all__ = ["Screen", "show"]

LOG_EVERY = 15.0
"""Seconds between two progress lines where there is no terminal."""


class Screen:
    """Writes one live line on a terminal; lines now and then elsewhere; a lasting line for each ended trial."""

    def __init__(self, stream: TextIO) -> None:
        self._stream: TextIO | None = stream
        self._live = stream.isatty()
        self._shown = False
        self._told: set[int] = set()
        self._last: tuple[float, str] = (-LOG_EVERY, "")
        self._first = True

    def notify(self, text: str) -> None:
        """Write a lasting line."""
        self._clear()
        self._write(f"{text}\n")

    def tick(self, running: Running) -> None:
        """Show where the study is."""
        study = running.controller.machine.studies[running.study_id]
        if self._first:  # what an earlier run did was told by it
            self._told.update(t.trial_id for t in study.trials.values() if not t.live)
            self._first = False
        for trial in study.trials.values():
            if not trial.live and trial.trial_id not in self._told:
                self._told.add(trial.trial_id)
                self.notify(_trial_line(study, trial))
        view = _view(running, study)
        if self._live:
            width = shutil.get_terminal_size().columns
            self._write("\r\x1b[K" + format_progress(view, width))
            self._shown = True
        elif view.elapsed - self._last[0] >= LOG_EVERY or view.phase != self._last[1]:
            self._last = (view.elapsed, view.phase)
            self.notify(format_progress(view))

    def close(self) -> None:
        """Leave the terminal clean."""
        self._clear()

    def _clear(self) -> None:
        if self._live and self._shown:
            self._write("\r\x1b[K")
            self._shown = False

    def _write(self, text: str) -> None:
        """Write *text*, unless nobody reads any more: a study goes on without its audience."""
        if self._stream is None:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._stream = None


def _planned(study: Study) -> int:
    search = study.spec.search
    race = study.of_kind(TrialKind.RACE)
    members = len({t.key for t in race}) if race else 1 + search.finalists
    return study.spec.effort.trials + search.baseline_repeats - 1 + rounds_wanted(study) * members


def _view(running: Running, study: Study) -> ProgressView:
    machine = running.controller.machine
    elapsed = machine.elapsed(study, running.now)
    done = [t for t in study.trials.values() if not t.live and t.state is not TrialState.REFUSED]
    planned = max(_planned(study), len(study.trials))
    left = elapsed / len(done) * (planned - len(done)) if done else None
    limit = study.spec.effort.wall_seconds
    if limit is not None:
        left = min(left, max(0.0, limit - elapsed)) if left is not None else max(0.0, limit - elapsed)
    feasible = [t.value for t in study.trials.values() if t.feasible and t.value is not None]
    base = [t.value for t in study.of_kind(TrialKind.BASELINE) if t.value is not None]
    report = running.controller.progress.get(WORKER_ID)
    phase, detail = (report[0].phase, report[0].detail) if report is not None else ("waiting for the worker", "")
    return ProgressView(
        trial=len(study.trials),
        trials=planned,
        phase=phase,
        detail=detail,
        best=max(feasible, default=None),
        baseline=sum(base) / len(base) if base else None,
        unit=unit(study.spec),
        elapsed=elapsed,
        left=left,
        simulated=is_simulated(study.spec),
    )


def _trial_line(study: Study, trial: Trial) -> str:
    names = [p.name for p in study.spec.space if p.name in (trial.config or {})]
    shown = " ".join(setting_text(name, (trial.config or {})[name]) for name in names) or "as the baseline"
    head = f"trial {trial.trial_id:>3} {trial.kind.value:<8}"
    if trial.state is TrialState.MEASURED:
        broken = [name for name, amount in trial.amounts if amount > 0]
        kept = "within budget" if not broken else f"over {', '.join(broken)}"
        return f"{head} {number(trial.value):>8} {unit(study.spec)}  {kept}  {shown}"
    why = trial.outcome.message if trial.outcome is not None else "; ".join(name for name, _ in trial.amounts)
    kind = trial.outcome.outcome.value if trial.outcome is not None else trial.state.value
    return f"{head} {kind}: {why}  {shown}" if why else f"{head} {kind}  {shown}"


def show(result: StudyResult, out: Path) -> None:
    """Print the summary of *result* and where its files are."""
    width = min(shutil.get_terminal_size().columns, 120)
    click.echo(render_summary(result, width=width, colour=sys.stdout.isatty(), files=published_files(out, result)))
