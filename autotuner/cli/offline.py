"""Commands that run no trial: check, write, judge again, export, tell."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from autotuner.core import objective
from autotuner.core.budget import LatencyBudget, Limit
from autotuner.core.lifecycle import TrialState
from autotuner.core.machine import Machine
from autotuner.core.results import StudyResult
from autotuner.core.state import Study, Trial
from autotuner.daemon.embedded import TuneRequest, ask_host, load_request, prepare_worker
from autotuner.daemon.publish import publish
from autotuner.daemon.workerprocess import describe_host
from autotuner.errors import EnvironmentFault, InputError, Problem, StorageFault
from autotuner.observe.evaluate import evaluate
from autotuner.observe.records import Records
from autotuner.report.export import ExportFormat
from autotuner.report.export import export as export_winner
from autotuner.settings.build import build_study
from autotuner.settings.init import render_init
from autotuner.settings.quantities import parse_duration, parse_limit_key
from autotuner.settings.study_file import StudyFile
from autotuner.storage.journal_read import read_journal
from autotuner.storage.journal_sql import sqlite_url

__all__ = ["explain", "exported", "rejudge", "told", "write_study"]


async def explain(request: TuneRequest) -> list[str]:
    """Check a study against the engine; return what its space is, a line per parameter."""
    notes: list[str] = []
    study, host = await ask_host(load_request(request), notes.append)
    built = build_study(study, host.engine, host.hardware)
    engine = f"{host.engine.kind} {host.engine.version} on {host.engine.platform}"
    lines = [f"{request.study}: valid for {engine}; {len(built.spec.seeds)} seeds", ""]
    width = max((len(item.name) for item in built.explanations), default=0)
    lines += [
        f"  {'search' if item.searched else '   -  '}  {item.name:<{width}}  {item.reason}"
        for item in sorted(built.explanations, key=lambda item: (not item.searched, item.name))
    ]
    return [*lines, "", *(f"note: {note}" for note in (*notes, *built.notes))] if notes or built.notes else lines


async def write_study(path: Path, model: str | None, kind: str, command: Sequence[str], force: bool) -> None:
    """Ask engine and hardware and write a study file for them; without *command* ``vllm serve`` is asked."""
    if path.exists() and not force:
        raise InputError(
            [Problem(field="PATH", value=str(path), message="exists already", remedy="give another path, or --force")]
        )
    study = StudyFile(name="study", model=model or "auto")
    command = tuple(command) if kind == "vllm" else ()
    asked = command or (("vllm", "serve") if kind == "vllm" else ())
    engine = study.engine.model_copy(update={"kind": kind, "command": asked})
    study = study.model_copy(update={"engine": engine})
    with tempfile.TemporaryDirectory(prefix="autotuner-") as folder:
        host = await describe_host(prepare_worker(study, Path(folder), "unix:/none", 1), model)
    text = render_init(host.engine, host.hardware, model or "auto", command)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentFault(f"cannot write {path}: {error.strerror or error}") from error


def _load(out: Path, watch: Callable[[Study], None] | None = None) -> tuple[Study, float]:
    """Return the study in *out* as its journal has it, and the stamp of its last event; it may be running.

    *watch* sees the study after every event.
    """
    database = out / "study.db"
    if not database.is_file():
        raise InputError(
            [Problem(field="OUT", value=str(out), message="holds no study", remedy="give the folder of a tuning run")]
        )
    machine, last = Machine(), 0.0
    for _, stamp, event in read_journal(sqlite_url(database.absolute())):
        machine.apply(event, stamp)
        last = stamp
        if watch is not None and machine.studies:
            watch(next(iter(machine.studies.values())))
    if not machine.studies:
        raise InputError(
            [Problem(field="OUT", value=str(out), message="holds no study yet", remedy="run 'autotuner tune' first")]
        )
    return next(iter(machine.studies.values())), last


def _parse_limit(text: str) -> Limit:
    name, _, value = text.partition("=")
    try:
        metric, percentile = parse_limit_key(name.strip())
        seconds = parse_duration(value.strip())
    except ValueError as error:
        remedy = "write METRIC_pPERCENTILE=TIME, such as ttft_p95=300ms"
        raise InputError([Problem(field="--limit", value=text, message=str(error), remedy=remedy)]) from error
    return Limit(metric=metric, percentile=percentile, seconds=seconds)


def rejudge(out: Path, limits: Sequence[str], only: bool = False) -> tuple[StudyResult, Path]:
    """Judge what was measured in *out* again and write the results; return them and where they are.

    With *limits* those limits of the budget are replaced or added (with *only* the others are dropped), every figure is
    computed anew from the raw records, and the results go to ``out/rejudged``.  A trial whose records cannot be read is
    left out, which a note says.
    """
    from autotuner.core.verdict import conclude

    study, last = _load(out)
    folder, unread = out, dict[int, str]()
    if limits:
        study.spec = replace(study.spec, budget=_with_limits(study.spec.budget, limits, only))
        unread = _judge_all(study, out)
        folder = out / "rejudged"
    result = _without(conclude(study, last), unread)
    publish(result, folder)
    return result, folder


def _with_limits(budget: LatencyBudget, limits: Sequence[str], only: bool) -> LatencyBudget:
    given = {limit.key: limit for limit in map(_parse_limit, limits)}
    kept = {} if only else {limit.key: limit for limit in budget.limits}
    return replace(budget, limits=tuple({**kept, **given}.values()))


def _judge_all(study: Study, out: Path) -> dict[int, str]:
    """Judge every measured trial anew; return the trials whose records cannot be read, and why.

    Those keep their place, so that pairs of a race stay together, but count as points without a value.
    """
    unread: dict[int, str] = {}
    for trial in study.trials.values():
        if trial.state is not TrialState.MEASURED:
            continue
        try:
            _judge(trial, study, out)
        except StorageFault as error:
            unread[trial.trial_id] = str(error)
            trial.value, trial.amounts = None, (("records", math.inf),)
    return unread


def _without(result: StudyResult, unread: Mapping[int, str]) -> StudyResult:
    """Return *result* without the trials that could not be judged, with a note for each."""
    notes = tuple(f"trial {number} is left out: its records cannot be read ({why})" for number, why in unread.items())
    return replace(
        result,
        trials=tuple(trial for trial in result.trials if trial.trial_id not in unread),
        points=result.points - len(unread),
        notes=(*notes, *result.notes),
    )


def _judge(trial: Trial, study: Study, out: Path) -> None:
    """Compute a trial's measurement anew from its raw records under the study's present budget."""
    old = trial.measurement
    assert old is not None and trial.outcome is not None
    fresh = evaluate(Records.read(out / old.records), limits=study.spec.budget.limits, name=old.records)
    new = replace(fresh, engine=old.engine, host=old.host)
    trial.outcome = replace(trial.outcome, measurement=new)
    trial.value = objective.objective_value(new, study.spec.objective)
    trial.amounts = objective.constraints(new, study.spec.budget)


def exported(out: Path, form: str) -> str:
    """Return the winner in *out* in the given format; refuse when there is none, or when it is simulated."""
    from autotuner.core.verdict import conclude

    study, last = _load(out)
    return export_winner(conclude(study, last), ExportFormat(form))


def told(out: Path, trial_id: int | None) -> list[str]:
    """Return the story of a trial, or of the study and all its trials in the journal's order; times are UTC."""
    lines: list[tuple[int, str]] = []
    seen: dict[int, int] = {}

    def watch(study: Study) -> None:
        for number, story in ((0, study.story), *((t.trial_id, t.story) for t in study.trials.values())):
            lines.extend((number, line) for line in story[seen.get(number, 0) :])
            seen[number] = len(story)

    study, _ = _load(out, watch)
    if trial_id is None:
        return _dated((line, f"trial {number}: " if number else "") for number, line in lines)
    chosen = study.trials.get(trial_id)
    if chosen is None:
        remedy = f"give one of 1 to {len(study.trials)}" if study.trials else "wait for the first one"
        raise InputError([Problem(field="TRIAL", value=str(trial_id), message="there is no such trial", remedy=remedy)])
    return _dated((line, "") for line in chosen.story)


def _dated(lines: Iterable[tuple[str, str]]) -> list[str]:
    """Return lines (``EPOCH.mmm text``, and who it is about) for people: the time of the day, and a line per date."""
    told, today = list[str](), ""
    for line, subject in lines:
        stamp, _, text = line.partition(" ")
        when = datetime.fromtimestamp(float(stamp), UTC)
        if (date := f"{when:%Y-%m-%d} UTC") != today:
            told.append(date)
            today = date
        told.append(f"{when:%H:%M:%S} {subject}{text}")
    return told
