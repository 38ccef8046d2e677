"""The terminal summary: the answer first, then the command, then what it rests on.

Pure text, without colour codes unless asked for.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest

from autotuner.core.budget import Limit
from autotuner.core.results import StudyResult, Summary, TrialRecord, VerdictKind
from autotuner.report.export import engine_environment, serve_command
from autotuner.report.figures import (
    Status,
    because,
    changes,
    duration,
    finite,
    gain_text,
    headline,
    is_simulated,
    keeps_baseline,
    latency_text,
    limit_checks,
    milliseconds,
    number,
    objective_name,
    parameter_text,
    percent,
    status,
    unit,
    unproven,
    value_text,
    winner_name,
)

__all__ = ["render_summary"]

_MIN_WIDTH = 60
_MIN_FLEXIBLE = 16
_COLOURS = {"good": "\x1b[32m", "bad": "\x1b[31m", "strong": "\x1b[1m", "loud": "\x1b[1;33m"}
_MARKS = {
    Status.FEASIBLE: "ok",
    Status.INFEASIBLE: "over limit",
    Status.FAILED: "failed",
    Status.REFUSED: "refused",
    Status.VOID: "void",
    Status.UNFINISHED: "unfinished",
}


def render_summary(
    result: StudyResult, *, width: int = 100, colour: bool = False, files: Mapping[str, str] | None = None
) -> str:
    """Return the summary of *result* in lines of at most *width* columns, the command excepted.

    Args:
        result: What the study found.
        width: Columns of the terminal; at least 60 are used.
        colour: Use ANSI colours; give it only for a terminal.
        files: What was written → where, for the last block.
    """
    page = _Page(max(width, _MIN_WIDTH), colour)
    if is_simulated(result.spec):
        page.banner("SIMULATED: these figures come from a simulated engine and say nothing about a real one")
    page.paragraph(headline(result), "good" if result.verdict.kind is VerdictKind.BETTER else "strong")
    page.paragraph(_because(result))
    if not result.complete:
        page.paragraph(f"Partial result: the study was stopped ({result.stopped or 'before its end'}).", "bad")
    _command(page, result)
    _comparison(page, result)
    _trials(page, result)
    _foot(page, result, files or {})
    return page.text()


class _Page:
    """Lines of a fixed width."""

    def __init__(self, width: int, colour: bool) -> None:
        self.width = width
        self._colour = colour
        self._lines: list[str] = []

    def text(self) -> str:
        return "\n".join(self._lines).rstrip("\n") + "\n"

    def line(self, text: str = "", style: str = "") -> None:
        self._lines.append(f"{_COLOURS[style]}{text}\x1b[0m" if self._colour and style and text else text)

    def paragraph(self, text: str, style: str = "", indent: str = "") -> None:
        for line in textwrap.wrap(text, self.width, initial_indent=indent, subsequent_indent=indent) if text else ():
            self.line(line, style)

    def heading(self, text: str) -> None:
        self.line()
        self.line(text, "strong")

    def banner(self, text: str) -> None:
        self.line("=" * self.width, "loud")
        self.paragraph(text, "loud")
        self.line("=" * self.width, "loud")

    def table(self, head: Sequence[str], rows: Iterable[Sequence[str]], flexible: int = -1) -> None:
        """Add a table; the first column and *flexible* are left-aligned, *flexible* is wrapped where width lacks."""
        body = [list(head), *(list(row) for row in rows)]
        if flexible >= 0:
            spare = self.width - _width([[*row[:flexible], *row[flexible + 1 :]] for row in body]) - 2
            for row in body:
                row[flexible] = "\n".join(textwrap.wrap(row[flexible], max(spare, _MIN_FLEXIBLE)))
        widths = _widths(body)
        for row in body:
            for cells in zip_longest(*(cell.split("\n") for cell in row), fillvalue=""):
                shown = [
                    cell.ljust(widths[i]) if i in (0, flexible) else cell.rjust(widths[i])
                    for i, cell in enumerate(cells)
                ]
                self.line(("  " + "  ".join(shown)).rstrip())


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of every column; cells may hold several lines."""
    return [max(len(line) for cell in column for line in cell.split("\n")) for column in zip(*rows, strict=True)]


def _width(rows: Sequence[Sequence[str]]) -> int:
    """Return the columns that a table of *rows* takes."""
    return sum(_widths(rows)) + 2 * len(rows[0])


def _because(result: StudyResult) -> str:
    verdict = result.verdict
    text = because(result)
    if verdict.kind is not VerdictKind.BETTER and gain_text(result):
        text += f" Best finalist: {gain_text(result)}."
    if verdict.pairs:
        text += f" {verdict.pairs} interleaved pairs."
    return text


def _command(page: _Page, result: StudyResult) -> None:
    if result.winner is None:
        return
    spec = result.spec
    if is_simulated(spec):
        page.heading("What would be run (SIMULATED, not for use)")
        mark = "SIMULATED| "
    else:
        mark = "  "
        page.heading(_command_title(result))
        if unproven(result):
            mark = "UNPROVEN| "
    command = serve_command(result.winner.config, spec.model, spec.engine, engine_environment(result))
    for line in command.split("\n"):
        page.line(mark + line)
    different = changes(result)
    if different:
        page.heading("Changed from the baseline")
        rows = [[name, value_text(old), value_text(new)] for name, old, new in different]
        page.table(["parameter", "baseline", winner_name(result)], rows)


def _command_title(result: StudyResult) -> str:
    if result.verdict.kind is VerdictKind.INFEASIBLE:
        return "Closest point (breaks the budget)"
    if unproven(result):
        return "Candidate (unproven: keep what you have)"
    return "Keep running" if keeps_baseline(result) else "Run"


def _comparison(page: _Page, result: StudyResult) -> None:
    base, winner, spec = result.baseline, result.winner, result.spec
    if base is None and winner is None:
        return
    one = base is not None and keeps_baseline(result)
    columns = [("baseline", base)] if one else [("baseline", base), (winner_name(result), winner)]
    page.heading("Baseline" if one else f"Baseline and {winner_name(result)}")
    head = ["", *(name for name, _ in columns), "limit", ""]
    name = f"{objective_name(spec).split()[0]} {unit(spec)}"
    rows = [[name, *(_throughput(summary) for _, summary in columns), "", ""]]
    checks = {check.limit.key: check for check in limit_checks(winner, spec.budget.limits)} if winner else {}
    limits = {limit.key: limit for limit in spec.budget.limits}
    for key in dict.fromkeys([*limits, "ttft_p95", "itl_p95", "e2e_p95"]):
        cells = [_latency(summary, key) for _, summary in columns]
        kept = ("kept" if checks[key].kept else "broken") if key in checks else ""
        if key in limits or any(cell != "–" for cell in cells):
            rows.append([f"{latency_text(key)} (ms)", *cells, _bound(limits.get(key)), kept])
    if _width([head, *rows]) > page.width:  # the interval gets a line of its own
        rows[0] = [cell.replace(" [", "\n[") for cell in rows[0]]
    page.table(head, rows)


def _bound(limit: Limit | None) -> str:
    return f"≤ {limit.seconds * 1000:.6g} ms" if limit is not None else ""


def _throughput(summary: Summary | None) -> str:
    if summary is None:
        return "–"
    interval = summary.throughput
    return f"{number(interval.value)} [{number(interval.low)}, {number(interval.high)}]"


def _latency(summary: Summary | None, key: str) -> str:
    interval = summary.latency.get(key) if summary is not None else None
    return milliseconds(interval.value) if interval is not None else "–"


def _trials(page: _Page, result: StudyResult) -> None:
    if not result.trials:
        return
    page.heading("Trials")
    columns = [limit.key for limit in result.spec.budget.limits] or ["ttft_p95"]
    latencies = [latency_text(key).replace(" ", "\n", 1) + " ms" for key in columns]
    head = ["id", "launch", "parameters", "outcome", unit(result.spec), *latencies]
    rows = []
    for trial in result.trials:
        measurement = trial.outcome.measurement if trial.outcome is not None else None
        latency = measurement.latency if measurement is not None else {}
        rows.append(
            [
                str(trial.trial_id),
                str(trial.launch) if trial.launch is not None else "–",
                parameter_text(trial, result),
                _outcome(trial),
                number(trial.value) if measurement is not None else "–",
                *(milliseconds(latency[key].value) if key in latency else "–" for key in columns),
            ]
        )
    page.table(head, rows, flexible=2)


def _outcome(trial: TrialRecord) -> str:
    found = status(trial)
    if found is Status.FAILED and trial.outcome is not None:
        return trial.outcome.outcome.value.replace("_", " ")
    return _MARKS[found]


def _foot(page: _Page, result: StudyResult, files: Mapping[str, str]) -> None:
    page.line()
    floor = "not measured" if finite(result.noise_floor) is None else f"±{percent(result.noise_floor)}"
    page.paragraph(f"Noise floor (baseline against itself): {floor}.")
    page.paragraph(
        f"{result.points} points measured in {result.launches} engine launches; {duration(result.wall_seconds)} wall, "
        f"{duration(result.engine_seconds)} of engine time; "
        f"{result.spec.engine.kind} {result.spec.engine.version} on {result.spec.engine.platform}."
    )
    for note in result.notes:
        page.paragraph(f"Note: {note}")
    if files:
        page.heading("Files")
        for name, path in files.items():
            page.line(f"  {name}: {path}")
