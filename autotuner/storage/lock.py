"""A lock file: one process at a time, released by the kernel however its holder ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from autotuner.errors import StorageFault

__all__ = ["FileLock"]


class FileLock:
    """Holds an exclusive lock on *path*, which stays in place when it is released.

    Raises:
        StorageFault: another process (or another lock in this one) holds it, or the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageFault(
                f"cannot open the lock {path}: {error.strerror}; give a folder that you may write"
            ) from error
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = self._holder()
            os.close(self._handle)
            raise StorageFault(
                f"{path} is held by {holder}: another controller uses this journal; stop it or give another journal"
            ) from error
        with contextlib.suppress(OSError):  # the number is for people only, and a full disk must not stop a restart
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let go; safe to call twice."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _holder(self) -> str:
        with contextlib.suppress(OSError):
            text = os.pread(self._handle, 32, 0).decode(errors="replace").strip()
            if text.isdigit():
                return f"process {text}"
        return "another process"
