"""Writes what a study found: one folder, every file complete or absent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from autotuner.core.results import StudyResult
from autotuner.report.export import ExportFormat, labelled
from autotuner.report.html import render_html
from autotuner.report.result_json import write_atomic, write_result

__all__ = ["publish", "published_files"]

_WINNER = {
    ExportFormat.ARGV: "winner.sh",
    ExportFormat.YAML: "winner.yaml",
    ExportFormat.SYSTEMD: "winner.systemd.conf",
    ExportFormat.KUBERNETES: "winner.kubernetes.yaml",
}


def published_files(out: Path, result: StudyResult) -> Mapping[str, str]:
    """Return what ``publish`` writes: purpose → path."""
    files = {"result": out / "result.json", "report": out / "report.html"}
    if result.winner is not None:
        files |= {f"winner ({form.value})": out / name for form, name in _WINNER.items()}
    return {purpose: str(path) for purpose, path in files.items()}


def publish(result: StudyResult, out: Path) -> None:
    """Write the results into *out*; winner files of an earlier publication that no longer hold are removed."""
    write_result(result, out / "result.json")
    write_atomic(out / "report.html", render_html(result))
    for form, name in _WINNER.items():
        if result.winner is not None:
            write_atomic(out / name, labelled(result, form))
        else:
            (out / name).unlink(missing_ok=True)
