"""``result.json``: the study's result for programs.  The fields are described in ``docs/result-schema.md``.

The file is plain JSON: no NaN and no infinity.  A figure that was not measured is ``null``, never a number.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autotuner.core.results import StudyResult, Summary, TrialRecord
from autotuner.core.trial import Interval, Measurement
from autotuner.errors import EnvironmentFault
from autotuner.report.export import engine_environment, serve_argv
from autotuner.report.figures import finite, headline, is_simulated, limit_checks, status, unit

__all__ = ["SCHEMA_VERSION", "to_json", "write_atomic", "write_result"]

SCHEMA_VERSION = 1
"""Raised when a field changes its meaning or goes away; new fields do not raise it."""


def to_json(result: StudyResult) -> dict[str, Any]:
    """Return *result* as JSON-able data: only finite numbers, text, booleans, ``None``, lists and objects."""
    spec = result.spec
    data = {
        "schema_version": SCHEMA_VERSION,
        "study": {"id": result.study_id, "name": spec.name, "model": spec.model, "labels": dict(spec.labels)},
        "engine": {"kind": spec.engine.kind, "version": spec.engine.version, "platform": spec.engine.platform},
        "simulated": is_simulated(spec),
        "objective": {"name": spec.objective.value, "unit": unit(spec)},
        "verdict": {
            "kind": result.verdict.kind.value,
            "gain": result.verdict.gain,
            "gain_low": result.verdict.gain_low,
            "gain_high": result.verdict.gain_high,
            "confidence": result.verdict.confidence,
            "binding": list(result.verdict.binding),
            "reason": result.verdict.reason,
            "headline": headline(result),
            "pairs": result.verdict.pairs,
        },
        "baseline": _summary(result, result.baseline),
        "winner": _winner(result),
        "noise_floor": result.noise_floor,
        "launches": result.launches,
        "points": result.points,
        "wall_seconds": result.wall_seconds,
        "engine_seconds": result.engine_seconds,
        "started": _stamp(result.started_utc),
        "ended": _stamp(result.ended_utc),
        "complete": result.complete,
        "stopped": result.stopped,
        "notes": list(result.notes),
        "workload": _plain(spec.workload),
        "budget": {
            "parts": dict(spec.budget.parts),
            "limits": [
                {"metric": x.metric.value, "percentile": x.percentile, "seconds": x.seconds, "key": x.key}
                for x in spec.budget.limits
            ],
            "max_error_ratio": spec.budget.max_error_ratio,
        },
        "effort": _plain(spec.effort),
        "measure": _plain(spec.measure),
        "search": _plain(spec.search),
        "hardware": _plain(spec.hardware),
        "trials": [_trial(trial) for trial in result.trials],
    }
    cleaned = _clean(data)
    assert isinstance(cleaned, dict)
    return cleaned


def write_result(result: StudyResult, path: Path) -> None:
    """Write ``result.json`` to *path*, whole or not at all.

    Raises:
        EnvironmentFault: The file cannot be written.
    """
    write_atomic(path, json.dumps(to_json(result), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_atomic(path: Path, text: str) -> None:
    """Write *text* (UTF-8) to *path* by way of a file beside it, so that readers see the old or the new text.

    Raises:
        EnvironmentFault: The file cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise EnvironmentFault(f"{path} cannot be written: {error.strerror or error}") from error


def _summary(result: StudyResult, summary: Summary | None) -> dict[str, Any] | None:
    if summary is None:
        return None
    return {
        "throughput": summary.throughput.value,
        "throughput_low": summary.throughput.low,
        "throughput_high": summary.throughput.high,
        "config": dict(summary.config),
        **_latencies(summary.latency),
        "limits": [
            {
                "key": check.limit.key,
                "seconds": check.limit.seconds,
                "observed": None if check.observed is None else check.observed.value,
                "kept": check.kept,
            }
            for check in limit_checks(summary, result.spec.budget.limits)
        ],
        "trials": list(summary.trial_ids),
    }


def _winner(result: StudyResult) -> dict[str, Any] | None:
    summary = _summary(result, result.winner)
    if summary is None or result.winner is None:
        return None
    argv = serve_argv(result.winner.config, result.spec.model, result.spec.engine)
    return {"argv": list(argv), "env": engine_environment(result), **summary}


def _trial(trial: TrialRecord) -> dict[str, Any]:
    outcome = trial.outcome
    measurement = outcome.measurement if outcome is not None else None
    launch = outcome.launch if outcome is not None else None
    return {
        "id": trial.trial_id,
        "kind": trial.kind.value,
        "source": trial.source,
        "launch": trial.launch,
        "launch_id": launch.launch_id if launch is not None else None,
        "launch_reused": launch.reused if launch is not None else None,
        "start_seconds": launch.ready_seconds if launch is not None else None,
        "config": dict(trial.config),
        "outcome": status(trial).value,
        "class": outcome.outcome.value if outcome is not None else None,
        "message": trial.refused or (outcome.message if outcome is not None else ""),
        "evidence": list(outcome.evidence) if outcome is not None else [],
        "attempts": trial.attempts,
        "throughput": trial.value if measurement is not None else None,
        "feasible": trial.feasible,
        "constraints": dict(trial.constraints),
        **_latencies(measurement.latency if measurement is not None else {}),
        "measurement": _measurement(measurement) if measurement is not None else None,
        "engine_seconds": outcome.engine_seconds if outcome is not None else 0.0,
    }


def _latencies(latency: Mapping[str, Interval]) -> dict[str, Any]:
    return {
        "latency": {key: interval.value for key, interval in latency.items()},
        "latency_interval": {key: [interval.low, interval.high] for key, interval in latency.items()},
    }


def _measurement(measurement: Measurement) -> dict[str, Any]:
    return {
        "total_tokens": measurement.total_tokens,
        "warmup_tokens": measurement.warmup_tokens,
        "prompt_tokens": measurement.prompt_tokens,
        "warmup_end": measurement.warmup_end,
        "end_time": measurement.end_time,
        "steady": measurement.steady,
        "requests": measurement.requests,
        "ok": measurement.ok,
        "errors": measurement.errors,
        "aborted": measurement.aborted,
        "empty": measurement.empty,
        "good": measurement.good,
        "windows": list(measurement.windows),
        "engine": dict(measurement.engine),
        "host": dict(measurement.host),
        "load_check": _plain(measurement.check),
        "records": measurement.records,
    }


def _plain(value: Any) -> Any:
    """Return a value of the core as JSON-able data."""
    return asdict(value)


def _stamp(seconds: float) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if finite(seconds) is not None else None


def _clean(value: Any) -> Any:
    """Return *value* without numbers that JSON does not know: they become ``None``."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return value
