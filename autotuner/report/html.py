"""``report.html``: one self-contained page that opens offline, in light and dark, on paper and on a phone.

Pure.  Every text that comes from outside (names, messages, paths) is escaped where it enters the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from autotuner.core.results import StudyResult, Summary, TrialRecord, VerdictKind
from autotuner.core.trial import TrialKind
from autotuner.core.workload import Lengths, LoadMode, Workload
from autotuner.report.charts import (
    Mark,
    Series,
    gain_chart,
    history_chart,
    marker,
    parts_chart,
    scatter_chart,
    windows_chart,
)
from autotuner.report.export import ExportFormat, export, labelled
from autotuner.report.figures import (
    Status,
    because,
    best_so_far,
    changes,
    duration,
    finite,
    headline,
    is_simulated,
    keeps_baseline,
    latency_text,
    limit_checks,
    limit_text,
    milliseconds,
    number,
    objective_name,
    parameter_text,
    percent,
    shown_latencies,
    status,
    unit,
    unproven,
    value_text,
    winner_name,
)
from autotuner.report.html_style import SCRIPT, STYLE

__all__ = ["render_html"]

_PERCENTILES = ("p50", "p75", "p90", "p95", "p99", "p99_9")
_FORMS = {
    ExportFormat.ARGV: "Command",
    ExportFormat.YAML: "File for vllm serve --config",
    ExportFormat.SYSTEMD: "systemd drop-in",
    ExportFormat.KUBERNETES: "Kubernetes container args",
}


def render_html(result: StudyResult) -> str:
    """Return the page for *result*."""
    blocks = [
        _header(result),
        _answer(result),
        _command(result),
        _history(result),
        _latency_pictures(result),
        _windows(result),
        _latency_table(result),
        _trial_table(result),
        _budget(result),
        _notes(result),
        _environment(result),
    ]
    title = f"{'SIMULATED – ' if is_simulated(result.spec) else ''}{result.spec.name}: tuning report"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(block for block in blocks if block)
        + f"\n</main>\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def _header(result: StudyResult) -> str:
    spec = result.spec
    started = datetime.fromtimestamp(result.started_utc, UTC).strftime("%Y-%m-%d %H:%M UTC")
    engine = f"{spec.engine.kind} {spec.engine.version}"
    device = spec.hardware.name or spec.hardware.device
    text = f"<header><h1>{escape(spec.name)}</h1><p>{escape(spec.model)} · {escape(engine)} · {escape(device)} · {started}</p></header>"
    if is_simulated(spec):
        text += '<div class="banner" role="note">SIMULATED: these figures come from a simulated engine and say nothing about a real one.</div>'
    if not result.complete:
        why = escape(result.stopped or "before its end")
        text += f'<div class="banner" role="note">Partial result: the study was stopped ({why}).</div>'
    return text


def _answer(result: StudyResult) -> str:
    verdict = result.verdict
    parts = [f'<p class="headline">{escape(headline(result))}</p>']
    reason = because(result)
    if reason:
        pairs = f" Based on {verdict.pairs} fresh, interleaved pairs." if verdict.pairs else ""
        parts.append(f'<p class="soft">{escape(reason)}{pairs}</p>')
    gain, low, high = finite(verdict.gain), finite(verdict.gain_low), finite(verdict.gain_high)
    floor = finite(result.noise_floor)
    if gain is not None and low is not None and high is not None:
        shade = f"; shaded: noise floor ±{percent(floor)}" if floor is not None else ""
        parts.append(gain_chart(gain, low, high, floor))
        parts.append(f'<p class="soft">Gain over the baseline with its {verdict.confidence:.0%} interval{shade}.</p>')
    parts.append(_tiles(result))
    return f'<section class="answer {verdict.kind.value}" aria-label="Answer">{"".join(parts)}</section>'


def _tiles(result: StudyResult) -> str:
    winner, base, spec = result.winner, result.baseline, result.spec
    tiles = []
    if winner is not None:
        was = f"baseline {number(base.throughput.value)}" if base is not None else "no baseline"
        value = f"{number(winner.throughput.value)} {unit(spec)}"
        tiles.append(_tile(objective_name(spec).capitalize(), value, escape(was)))
        for check in limit_checks(winner, spec.budget.limits):
            observed = milliseconds(check.observed.value if check.observed is not None else None)
            badge = '<span class="badge kept">kept</span>' if check.kept else '<span class="badge broken">broken</span>'
            tiles.append(
                _tile(latency_text(check.limit.key), f"{observed} ms", f"{escape(limit_text(check.limit))} {badge}")
            )
    floor = finite(result.noise_floor)
    tiles.append(
        _tile("Noise floor", "not measured" if floor is None else f"±{percent(floor)}", "baseline against itself")
    )
    effort = f"{result.launches} launches, {duration(result.engine_seconds)} of engine time"
    tiles.append(_tile("Measured points", str(result.points), escape(effort)))
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _tile(name: str, value: str, below: str) -> str:
    return f'<div class="tile"><div class="name">{escape(name)}</div><div class="value">{escape(value)}</div><div class="was">{below}</div></div>'


def _command(result: StudyResult) -> str:
    if result.winner is None:
        return ""
    if is_simulated(result.spec):
        return _section("What would be run", _code(labelled(result, ExportFormat.ARGV)) + _changes(result))
    if result.verdict.kind is VerdictKind.INFEASIBLE:
        return _section("The closest point (it breaks the latency budget)", _changes(result))
    if unproven(result):
        body = _code(labelled(result, ExportFormat.ARGV)) + _changes(result)
        return _section("The candidate (unproven: keep what you have)", body)
    command = export(result, ExportFormat.ARGV)
    parts = [_code(command.split("\n", 1)[1])]  # the comment says what the page says
    for form, name in _FORMS.items():
        if form is not ExportFormat.ARGV:
            parts.append(f"<details><summary>{escape(name)}</summary>{_code(export(result, form))}</details>")
    title = "Keep this" if keeps_baseline(result) else "Run this"
    return _section(title, "".join(parts) + _changes(result))


def _changes(result: StudyResult) -> str:
    rows = [
        [f"<code>{escape(n)}</code>", escape(value_text(old)), escape(value_text(new))]
        for n, old, new in changes(result)
    ]
    if not rows:
        return '<p class="soft">The configuration is the baseline.</p>'
    return "<h3>Changed from the baseline</h3>" + _table(
        ["Parameter", "Baseline", winner_name(result).capitalize()], rows
    )


def _history(result: StudyResult) -> str:
    if not result.trials:
        return ""
    marks = [_mark(trial, float(trial.trial_id), finite(trial.value), result) for trial in result.trials]
    legend = _legend(["feasible", "infeasible", "failed", "void", "winner", "baseline", "best"], result)
    return _section("History", history_chart(marks, best_so_far(result.trials), unit(result.spec)) + legend)


def _latency_pictures(result: StudyResult) -> str:
    spec = result.spec
    limits = {limit.key: limit for limit in spec.budget.limits}
    keys = list(limits) or ["ttft_p95", "itl_p95"]
    pictures = []
    for key in keys[:4]:
        marks = []
        for trial in result.trials:
            latency = _latency_of(trial, key)
            if latency is not None and finite(trial.value) is not None:
                marks.append(_mark(trial, latency * 1000, trial.value, result))
        if marks:
            limit = limits.get(key)
            chart = scatter_chart(
                marks,
                f"{latency_text(key)} (ms)",
                unit(spec),
                limit.seconds * 1000 if limit is not None else None,
                limit_text(limit) if limit is not None else "",
            )
            pictures.append(f"<div>{chart}</div>")
    if not pictures:
        return ""
    legend = _legend(["feasible", "infeasible", "winner", "baseline", *(["limit"] if limits else [])], result)
    return _section("Throughput and latency", f'<div class="two">{"".join(pictures)}</div>{legend}')


def _windows(result: StudyResult) -> str:
    series = []
    for style, name, summary in (
        ("baseline", "baseline", result.baseline),
        ("winner", winner_name(result), result.winner),
    ):
        trial = _first_measured(result, summary)
        measurement = trial.outcome.measurement if trial is not None and trial.outcome is not None else None
        if trial is not None and measurement is not None and measurement.windows:
            series.append(
                Series(
                    name=f"{name} (trial {trial.trial_id})",
                    style=style,
                    values=measurement.windows,
                    step=result.spec.measure.window,
                    warmup=measurement.warmup_end,
                )
            )
    if not series:
        return ""
    legend = _legend(["line-winner", "line-baseline"], result)
    return _section("Warm-up and steady state", windows_chart(series, "generated tok/s") + legend)


def _latency_table(result: StudyResult) -> str:
    base, winner = result.baseline, result.winner
    if base is None and winner is None:
        return ""
    rows = []
    for metric in ("ttft", "itl", "tpot", "e2e"):
        for style, name, summary in (("baseline", "baseline", base), ("winner", winner_name(result), winner)):
            cells = [_interval_cell(summary, f"{metric}_{p}") for p in _PERCENTILES]
            if any(cell != "–" for cell in cells):
                rows.append([metric.upper(), f'<span class="badge {style}">{name}</span>', *cells])
    if not rows:
        return ""
    head = ["ms", "", *(p.replace("_", ".") for p in _PERCENTILES)]
    return _section("Latency", _table(head, rows, numeric=range(2, 8)))


def _interval_cell(summary: Summary | None, key: str) -> str:
    interval = summary.latency.get(key) if summary is not None else None
    if interval is None:
        return "–"
    title = f"{milliseconds(interval.low)} to {milliseconds(interval.high)} ms"
    return f'<span title="{escape(title)}">{milliseconds(interval.value)}</span>'


def _trial_table(result: StudyResult) -> str:
    if not result.trials:
        return ""
    keys = shown_latencies(result.spec)
    winners = set(result.winner.trial_ids) if result.winner is not None else set()
    head = [
        "Trial",
        "Launch",
        "Source",
        "Differs from the baseline",
        "Outcome",
        unit(result.spec),
        *(f"{latency_text(k)} ms" for k in keys),
    ]
    rows, classes = [], []
    for trial in result.trials:
        latencies = [_latency_of(trial, key) for key in keys]
        rows.append(
            [
                str(trial.trial_id),
                str(trial.launch) if trial.launch is not None else "–",
                escape(trial.source),
                f"<code>{escape(parameter_text(trial, result))}</code>",
                _outcome(trial),
                number(trial.value),
                *(milliseconds(latency) for latency in latencies),
            ]
        )
        classes.append("winner" if trial.trial_id in winners else "")
    return _section("Trials", _table(head, rows, numeric=[0, 1, *range(5, 6 + len(keys))], classes=classes))


def _outcome(trial: TrialRecord) -> str:
    found = status(trial)
    text = found.value
    if trial.outcome is not None and found in (Status.FAILED, Status.VOID):
        text = trial.outcome.outcome.value.replace("_", " ")
    why = trial.refused or (trial.outcome.message if trial.outcome is not None else "")
    if trial.outcome is not None and trial.outcome.evidence:
        why = f"{why} ({'; '.join(trial.outcome.evidence)})"
    badge = f'<span class="badge {found.value}">{escape(text)}</span>'
    return f'{badge}<br><span class="soft">{escape(why[:240])}</span>' if why else badge


def _budget(result: StudyResult) -> str:
    budget = result.spec.budget
    if not budget.parts and not budget.limits:
        return ""
    body = parts_chart(list(budget.parts.items())) if budget.parts else ""
    limits = ", ".join(escape(limit_text(limit)) for limit in budget.limits) or "none"
    body += f"<p>Limits: {limits}. At most {percent(budget.max_error_ratio)} of the requests may fail.</p>"
    if result.verdict.binding:
        body += (
            f'<p class="soft">Closest to its limit: {escape(", ".join(map(latency_text, result.verdict.binding)))}.</p>'
        )
    return _section("Latency budget", body)


def _notes(result: StudyResult) -> str:
    if not result.notes:
        return ""
    items = "".join(f"<li>{escape(note)}</li>" for note in result.notes)
    return _section("Notes", f'<ul class="notes">{items}</ul>')


def _environment(result: StudyResult) -> str:
    spec = result.spec
    hardware = spec.hardware
    memory = f", {hardware.memory_bytes / 2**30:.0f} GiB" if hardware.memory_bytes else ""
    starts = [
        t.outcome.launch.ready_seconds
        for t in result.trials
        if t.outcome is not None and t.outcome.launch is not None and not t.outcome.launch.reused
    ]
    known = sorted(seconds for seconds in starts if seconds is not None)
    rows = {
        "Model": spec.model,
        "Engine": f"{spec.engine.kind} {spec.engine.version} on {spec.engine.platform}",
        "Hardware": f"{hardware.count} × {hardware.name or hardware.device}{memory}",
        "Workload": _workload(spec.workload),
        "Search": f"{spec.search.sampler}, seed {spec.search.seed}, {len(spec.seeds)} expert seeds",
        "Measured part": f"{spec.measure.duration:g} s after a steady warm-up, at least {spec.measure.min_requests} requests",
        "Engine start": f"{duration(known[len(known) // 2])} (median of {len(known)})" if known else "–",
        "Time": f"{duration(result.wall_seconds)} wall, {duration(result.engine_seconds)} of engine time",
        "Study": result.study_id,
    }
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in rows.items())
    return _section("How it was measured", f"<dl>{items}</dl>")


def _workload(workload: Workload) -> str:
    if workload.mode is LoadMode.CLOSED:
        load = f"closed loop, {workload.concurrency} clients"
    else:
        load = f"open loop, {workload.rate:g} requests/s, {workload.arrival.value}"
    return f"{load}; prompts {_lengths(workload.input_tokens)}, answers {_lengths(workload.output_tokens)} tokens"


def _lengths(lengths: Lengths) -> str:
    return (
        f"{lengths.mean:g}" if not lengths.spread else f"{lengths.mean:g} ± {lengths.spread:g} ({lengths.kind.value})"
    )


def _mark(trial: TrialRecord, x: float, y: float | None, result: StudyResult) -> Mark:
    role = ""
    if result.winner is not None and trial.config == result.winner.config:
        role = "winner"
    if trial.kind is TrialKind.BASELINE or (result.baseline is not None and trial.config == result.baseline.config):
        role = "baseline"
    found = status(trial)
    value = f"{number(y)} {unit(result.spec)}" if y is not None else "not measured"
    text = f"trial {trial.trial_id}: {value}, {found.value}\n{parameter_text(trial, result)}"
    if trial.outcome is not None and trial.outcome.message:
        text += f"\n{trial.outcome.message}"
    return Mark(x=x, y=y, status=found, title=text, role=role)


def _latency_of(trial: TrialRecord, key: str) -> float | None:
    measurement = trial.outcome.measurement if trial.outcome is not None else None
    interval = measurement.latency.get(key) if measurement is not None else None
    return finite(interval.value) if interval is not None else None


def _first_measured(result: StudyResult, summary: Summary | None) -> TrialRecord | None:
    if summary is None:
        return None
    return next((t for t in result.trials if t.trial_id in summary.trial_ids and t.outcome is not None), None)


_LEGENDS = {
    "feasible": ("keeps the budget", marker(Status.FEASIBLE, 9, 7)),
    "infeasible": ("over a limit", marker(Status.INFEASIBLE, 9, 7)),
    "failed": ("failed or refused", marker(Status.FAILED, 9, 7)),
    "void": ("void", marker(Status.VOID, 9, 7)),
    "winner": ("winner", '<circle class="m-winner" cx="9" cy="7" r="5.5"/>'),
    "baseline": ("baseline", '<circle class="m-baseline" cx="9" cy="7" r="5.5"/>'),
    "best": ("best so far", '<path class="line-best" d="M1,7H17"/>'),
    "limit": ("limit", '<path class="limit" d="M1,7H17"/>'),
    "line-winner": ("winner", '<path class="line-winner" d="M1,7H17"/>'),
    "line-baseline": ("baseline", '<path class="line-baseline" d="M1,7H17"/>'),
}


def _legend(names: Iterable[str], result: StudyResult) -> str:
    items = "".join(
        f'<li><svg viewBox="0 0 18 14" aria-hidden="true">{_LEGENDS[name][1]}</svg>{_LEGENDS[name][0].replace("winner", winner_name(result))}</li>'
        for name in names
    )
    return f'<ul class="legend">{items}</ul>'


def _code(text: str) -> str:
    return f'<div class="code"><pre tabindex="0">{escape(text.rstrip())}</pre></div>'


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def _table(
    head: Sequence[str], rows: Sequence[Sequence[str]], numeric: Iterable[int] = (), classes: Sequence[str] = ()
) -> str:
    """Return a table; cells are HTML already, heads are text."""
    right = set(numeric)

    def cell(tag: str, index: int, text: str) -> str:
        return f'<{tag} class="n">{text}</{tag}>' if index in right else f"<{tag}>{text}</{tag}>"

    top = "".join(cell("th", i, escape(text)) for i, text in enumerate(head))
    body = ""
    for number_, row in enumerate(rows):
        name = classes[number_] if classes else ""
        opening = f'<tr class="{name}">' if name else "<tr>"
        body += opening + "".join(cell("td", i, text) for i, text in enumerate(row)) + "</tr>"
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
