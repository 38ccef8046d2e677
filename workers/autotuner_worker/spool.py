"""Outcomes on disk between measuring and the controller's receipt: one file each, whole or not there."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from pathlib import Path

from autotuner.core.trial import Outcome
from autotuner.core.workers import Held, held
from autotuner.errors import InputError, StorageFault
from autotuner.wire.codec import FORMAT, Codec

__all__ = ["Spool"]

_LOG = logging.getLogger(__name__)
_OUTCOMES: Codec[Outcome] = Codec(Outcome)
_SUFFIX = ".outcome.json"
_PART = ".part"
_DAMAGED = ".damaged"


class Spool:
    """A folder of undelivered outcomes, kept across lives of the worker.

    Raises:
        StorageFault: the folder cannot be made or listed.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            for leftover in directory.glob(f"*{_PART}"):
                leftover.unlink(missing_ok=True)
            self._waiting = self._load()
        except OSError as error:
            raise _fault("use the folder", directory, error) from error

    def pending(self) -> tuple[Outcome, ...]:
        """Return the outcomes that wait, oldest first."""
        return tuple(self._waiting.values())

    def put(self, outcome: Outcome) -> None:
        """Store *outcome* durably; storing the same attempt again replaces it.

        Raises:
            StorageFault: it is not on disk. It is still pending in this life.
        """
        self._waiting[held(outcome)] = outcome
        path = self._path(held(outcome))
        part = path.with_name(path.name + _PART)
        try:
            with part.open("wb") as file:
                file.write(f"{FORMAT}\n{_OUTCOMES.dumps(outcome)}\n".encode())
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
            self._sync_directory()
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise _fault("write", path, error) from error

    def remove(self, attempt: Held) -> None:
        """Forget the outcome of *attempt*; one that is not there is fine."""
        self._waiting.pop(attempt, None)
        try:
            self._path(attempt).unlink(missing_ok=True)
            self._sync_directory()
        except OSError as error:  # it is delivered once more in the next life, which is harmless
            _LOG.warning("cannot remove %s: %s", self._path(attempt), error)

    def _load(self) -> dict[Held, Outcome]:
        found: dict[Held, Outcome] = {}
        paths = sorted(self._directory.glob(f"*{_SUFFIX}"), key=lambda path: (path.stat().st_mtime_ns, path.name))
        for path in paths:
            try:
                outcome = _parse(path.read_bytes())
            except InputError as error:
                kept = path.with_name(path.name + _DAMAGED)
                path.replace(kept)
                _LOG.warning("an undelivered outcome cannot be read, it is kept as %s: %s", kept, error)
                continue
            found[held(outcome)] = outcome
        return found

    def _path(self, attempt: Held) -> Path:
        study = hashlib.sha256(attempt.study_id.encode(errors="backslashreplace")).hexdigest()[:16]
        return self._directory / f"{study}-{attempt.trial_id}-{attempt.attempt}-{attempt.epoch}{_SUFFIX}"

    def _sync_directory(self) -> None:
        handle = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _parse(data: bytes) -> Outcome:
    version, _, text = data.partition(b"\n")
    if version != str(FORMAT).encode():
        text = b""
    return _OUTCOMES.loads(text)


def _fault(action: str, path: Path, error: OSError) -> StorageFault:
    return StorageFault(
        f"cannot {action} {path} ({error.strerror}); free some space and see that the worker may write there"
    )
