"""The output folder: what in it is ours, so that nothing of anybody else is overwritten or removed."""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path

from autotuner.errors import EnvironmentFault, InputError, Problem
from autotuner.storage.journal_read import holds_journal
from autotuner.storage.lock import FileLock

__all__ = ["begin", "clear"]

_DATABASE = "study.db"
_LOCK = "study.db.lock"
"""The journal's lock: one tuner at a time works in a folder."""
_PUBLISHED = ("result.json", "report.html", "winner.sh", "winner.yaml", "winner.systemd.conf", "winner.kubernetes.yaml")
_FOLDERS = ("records", "logs", "worker", "rejudged")
_LAUNCH = r"[0-9a-f]{8}-\d+"
_RESULT = "|".join(rf"{re.escape(name)}|\.{re.escape(name)}\.\d+\.tmp" for name in _PUBLISHED)
_FILES: tuple[tuple[str, str], ...] = (
    ("records", r"[A-Za-z0-9._-]+-\d{4,}-\d+\.npz(\.partial)?"),
    ("logs", rf"{_LAUNCH}\.log"),
    ("rejudged", _RESULT),
    ("worker/spool", r".+\.outcome\.json(\.part|\.damaged)?"),
    ("worker/processes", r"[0-9a-z-]+\.(json|unreadable)"),
    ("worker/descriptions", r"[0-9a-f]{32}\.json"),
    ("worker", r"worker\.(json|log|lock)"),
    (".", _RESULT),
)
"""Folder → names of the files that are written there."""
_TREES: tuple[tuple[str, str], ...] = (("worker/launches", _LAUNCH), ("worker/scripts", r"[0-9a-f]{32}"))
"""Folder → names of the folders there that are ours with all that they hold."""


def begin(out: Path) -> None:
    """Make the output folder, or see that nobody else works in it and that nothing foreign would be overwritten.

    Raises ``InputError`` for a folder with files of others, ``EnvironmentFault`` for one that cannot be used.
    """
    try:
        foreign = _foreign(out)
        if not foreign:
            out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentFault(f"cannot use the output folder {out}: {error.strerror or error}") from error
    if foreign:
        raise InputError(
            [
                Problem(
                    field="--out",
                    value=str(out),
                    message=f"the folder holds no study, but {', '.join(foreign)}, which would be overwritten",
                    remedy="give another folder with --out (make tune OUT=folder), or move them away",
                )
            ]
        )
    FileLock(out / _LOCK).release()


def _foreign(out: Path) -> list[str]:
    """Return the names of the files and filled folders that a study would write and that no study has written."""
    database = out / _DATABASE
    if database.is_file() and ((out / _LOCK).is_file() or holds_journal(database)):
        return []
    found = [name for name in (_DATABASE, *_PUBLISHED) if (out / name).exists()]
    for name in _FOLDERS:
        path = out / name
        if path.is_dir() and any(path.iterdir()):
            found.append(f"{name}/")
        elif path.exists() and not path.is_dir():
            found.append(name)
    return found


def clear(out: Path) -> None:
    """Remove an earlier study, one with a damaged database included, and nothing else.

    Raises ``StorageFault`` while another process works on it.
    """
    lock = FileLock(out / _LOCK)
    try:
        for place, pattern in _TREES:
            for path in _matching(out / place, pattern):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
        for place, pattern in _FILES:
            for path in _matching(out / place, pattern):
                if path.is_symlink() or not path.is_dir():
                    path.unlink(missing_ok=True)
        for place in dict.fromkeys([*(place for place, _ in (*_TREES, *_FILES) if "/" in place), *_FOLDERS]):
            with contextlib.suppress(OSError):  # somebody else's files are in it
                (out / place).rmdir()
        for suffix in ("-wal", "-shm", "-journal", ""):  # the database last: until then the folder is known as ours
            (out / f"{_DATABASE}{suffix}").unlink(missing_ok=True)
    except OSError as error:
        raise EnvironmentFault(f"cannot clear the output folder {out}: {error.strerror or error}") from error
    finally:
        lock.release()


def _matching(folder: Path, pattern: str) -> list[Path]:
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if re.fullmatch(pattern, path.name)]
