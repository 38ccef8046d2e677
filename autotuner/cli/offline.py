"""Commands that run no trial: check, write, judge again, export, tell."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
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
from autotuner.errors import EnvironmentFault, InputError, Problem
from autotuner.observe.evaluate import evaluate
from autotuner.observe.records import Records
from autotuner.report.export import ExportFormat
from autotuner.report.export import export as export_winner
from autotuner.settings.build import build_study
from autotuner.settings.init import render_init
from autotuner.settings.quantities import parse_duration, parse_limit_key
from autotuner.settings.study_file import StudyFile
from autotuner.storage.journal_sql import SqlJournal, sqlite_url

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
    """Ask engine and hardware and write a study file for them."""
    if path.exists() and not force:
        raise InputError(
            [Problem(field="PATH", value=str(path), message="exists already", remedy="give another path, or --force")]
        )
    study = StudyFile(name="study", model=model or "auto")
    engine = study.engine.model_copy(update={"kind": kind, "command": tuple(command) if kind == "vllm" else ()})
    study = study.model_copy(update={"engine": engine})
    with tempfile.TemporaryDirectory(prefix="autotuner-") as folder:
        host = await describe_host(prepare_worker(study, Path(folder), "unix:/none", 1), model)
    try:
        path.write_text(render_init(host.engine, host.hardware, model or "auto"), encoding="utf-8")
    except OSError as error:
        raise EnvironmentFault(f"cannot write {path}: {error.strerror or error}") from error


def _load(out: Path) -> tuple[Study, float]:
    """Return the study in *out* as its journal has it, and the stamp of its last event."""
    database = out / "study.db"
    if not database.is_file():
        raise InputError(
            [Problem(field="OUT", value=str(out), message="holds no study", remedy="give the folder of a tuning run")]
        )
    machine, last = Machine(), 0.0
    with SqlJournal(sqlite_url(database.absolute())) as journal:
        for _, stamp, event in journal.read():
            machine.apply(event, stamp)
            last = stamp
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


def rejudge(out: Path, limits: Sequence[str]) -> tuple[StudyResult, Path]:
    """Judge what was measured in *out* again and write the results; return them and where they are.

    With *limits* the budget's limits are replaced, every figure is computed anew from the raw records, and the results
    go to ``out/rejudged``.
    """
    from autotuner.core.verdict import conclude

    study, last = _load(out)
    folder = out
    if limits:
        budget = LatencyBudget(
            parts=study.spec.budget.parts,
            limits=tuple(_parse_limit(text) for text in limits),
            max_error_ratio=study.spec.budget.max_error_ratio,
        )
        study.spec = replace(study.spec, budget=budget)
        for trial in study.trials.values():
            if trial.state is TrialState.MEASURED:
                _judge(trial, study, out)
        folder = out / "rejudged"
        folder.mkdir(exist_ok=True)
    result = conclude(study, last)
    publish(result, folder)
    return result, folder


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
    """Return the story of a trial, or of the study and all its trials."""
    study, _ = _load(out)
    if trial_id is None:
        lines = list(study.story)
        for trial in study.trials.values():
            lines += [f"trial {trial.trial_id}: {line}" for line in trial.story]
        return sorted(lines, key=lambda line: line.removeprefix("trial ").split(": ", 1)[-1])
    chosen = study.trials.get(trial_id)
    if chosen is None:
        remedy = f"give one of 1 to {len(study.trials)}"
        raise InputError([Problem(field="TRIAL", value=str(trial_id), message="there is no such trial", remedy=remedy)])
    return list(chosen.story)
