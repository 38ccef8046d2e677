"""Folders that say whether they are whole, and programs run one at a time: what the set-up is built from.

Standard library only.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

GIB = 1 << 30
STAMP = ".setup-stamp"
"""Digest of everything that the folder was made from; there only when it is whole."""
OWNED = ".setup-owned"
"""Says that the set-up made the folder, so that it may remove it."""
EXIT_INPUT, EXIT_ENVIRONMENT, EXIT_INTERRUPTED = 2, 3, 130


class SetupError(Exception):
    """What is wrong, in one line, and what to do about it."""

    def __init__(self, message: str, remedy: str, output: Sequence[str] = (), code: int = EXIT_ENVIRONMENT) -> None:
        super().__init__(message)
        self.remedy = remedy
        self.output = tuple(output)
        self.code = code


class Stopped(BaseException):
    """The user or the system asked this program to end."""


class Progress:
    """Lines with the seconds since the start."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = clock()

    def seconds(self) -> float:
        """Return the seconds since the start."""
        return self._clock() - self._start

    def say(self, text: str) -> None:
        """Print *text* with the time."""
        print(f"[setup {self.seconds():6.1f} s] {text}", flush=True)


# ------------------------------------------------------------------------------------------------- stamps and folders


def digest(*parts: str | bytes | Path) -> str:
    """Return one digest of texts and of files' contents."""
    total = hashlib.sha256()
    for part in parts:
        data = part.read_bytes() if isinstance(part, Path) else part.encode() if isinstance(part, str) else part
        total.update(hashlib.sha256(data).digest())
    return total.hexdigest()


def is_whole(folder: Path, stamp: str, *programs: str) -> bool:
    """Return whether *folder* carries *stamp* and its *programs* can be run."""
    try:
        found = (folder / STAMP).read_text(encoding="ascii").strip()
    except OSError:
        return False
    return found == stamp and all(os.access(folder / name, os.X_OK) for name in programs)


def write_stamp(folder: Path, stamp: str) -> None:
    """Mark *folder* as whole; the last thing that is done to it."""
    fresh = folder / f"{STAMP}.new"
    fresh.write_text(stamp + "\n", encoding="ascii")
    fresh.replace(folder / STAMP)


def begin_folder(folder: Path, progress: Progress, name: str) -> None:
    """Make *folder* empty and ours; raise ``SetupError`` when somebody else's files are in it."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / OWNED).exists():
            raise SetupError(
                f"{folder} exists and was not made by this set-up",
                "move it away or name another folder",
                code=EXIT_INPUT,
            )
        unfinished = not (folder / STAMP).exists()
        progress.say(f"{name}: {'unfinished installation' if unfinished else 'its lock changed'}: making it anew")
        # The stamp goes first and the mark last, so that an interrupted removal is seen as ours and unfinished.
        (folder / STAMP).unlink(missing_ok=True)
        for entry in folder.iterdir():
            if entry.name == OWNED:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / OWNED).write_text("Made by scripts/setup.py, which may remove it.\n", encoding="ascii")


def need_space(folder: Path, wanted: int, name: str) -> None:
    """Raise ``SetupError`` when the disk that will hold *folder* has less than *wanted* bytes free."""
    place = folder
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < wanted:
        raise SetupError(
            f"{name}: no disk space: {free / GIB:.1f} GiB free at {place}, {wanted / GIB:.1f} GiB needed",
            "free some space, or for the engine set AUTOTUNER_ENGINE_VENV to a folder on a larger disk",
        )


@contextlib.contextmanager
def only_one(folder: Path, progress: Progress) -> Iterator[int]:
    """Hold the lock of this checkout's set-up; the programs started inherit it, so that an orphaned one keeps it."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say("another set-up works in this checkout: waiting for its end")
            fcntl.flock(handle, fcntl.LOCK_EX)
        os.set_inheritable(handle, True)
        yield handle
    finally:
        os.close(handle)


# ------------------------------------------------------------------------------------------------------------ programs


class Runner:
    """Runs one program at a time; its output goes to a log, its last lines into the error."""

    def __init__(self, log: Path, progress: Progress, lock: int) -> None:
        self._log = log
        self._progress = progress
        self._lock = lock

    def run(self, argv: Sequence[str], failure: str, remedy: str, watch: Callable[[str], None] | None = None) -> str:
        """Run *argv* to its end and return its output; raise ``SetupError`` when it fails."""
        last: collections.deque[str] = collections.deque(maxlen=400)
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"$ {shlex.join(argv)}\n")
            with subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=clean_environment(os.environ),
                pass_fds=(self._lock,),
            ) as process:
                try:
                    assert process.stdout is not None
                    for line in process.stdout:
                        log.write(line)
                        last.append(line.rstrip())
                        if watch is not None:
                            watch(line)
                    code = process.wait()
                finally:
                    end(process)
        if code != 0:
            lines = [line for line in last if line.strip()]
            if any("No space left on device" in line for line in lines):
                remedy = "free some disk space and run it again"
            raise SetupError(f"{failure} (exit {code}; log: {self._log})", remedy, lines[-12:])
        return "\n".join(last)


def end(process: subprocess.Popen[str]) -> None:
    """End *process* if it still runs, and wait for it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return *environ* without what would lead another interpreter astray."""
    drop = {
        "PYTHONPATH",
        "PYTHONHOME",
        "PYTHONDONTWRITEBYTECODE",
        "VIRTUAL_ENV",
        "PIP_TARGET",
        "PIP_PREFIX",
        "PIP_USER",
    }
    kept = {key: value for key, value in environ.items() if key not in drop}
    kept["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    kept["PIP_NO_INPUT"] = "1"
    kept["PYTHONUNBUFFERED"] = "1"
    return kept


def count_pins(lock: Path) -> int:
    """Return how many packages *lock* lists."""
    lines = lock.read_text(encoding="utf-8").splitlines()
    return sum(1 for line in lines if line.strip() and not line.startswith("#"))


def watch_pip(progress: Progress, name: str, total: int, every: float = 10.0) -> Callable[[str], None]:
    """Return a reader of pip's output that reports every *every* seconds how far it is."""
    fetched = 0
    reported = progress.seconds()

    def watch(line: str) -> None:
        nonlocal fetched, reported
        if line.startswith(("Collecting ", "Processing ", "Requirement already ")):
            fetched += 1
            if progress.seconds() - reported >= every:
                reported = progress.seconds()
                progress.say(f"{name}: {min(fetched, total)} of {total} packages fetched")
        elif line.startswith("Installing collected packages"):
            progress.say(f"{name}: all packages fetched, unpacking")

    return watch


def make_environment(
    folder: Path, lock: Path, runner: Runner, progress: Progress, name: str, extra: Sequence[str]
) -> None:
    """Make a virtual environment in *folder* with exactly what *lock* lists."""
    if not (folder / "pyvenv.cfg").exists():
        runner.run(
            [sys.executable, "-m", "venv", str(folder)],
            f"{name}: cannot make a virtual environment with {sys.executable}",
            "install Python's venv module (Debian, Ubuntu: python3-venv) or name another Python: make PYTHON=…",
        )
    total = count_pins(lock)
    progress.say(f"{name}: installing {total} pinned packages of {lock.name} into {folder}")
    runner.run(
        [
            str(folder / "bin" / "python"),
            "-m",
            "pip",
            "install",
            "--no-deps",
            "--progress-bar",
            "off",
            *extra,
            "-r",
            str(lock),
        ],
        f"{name}: pip could not install {lock.name}",
        "see the lines above: usually the package index cannot be reached or has no build for this Python; then run it again",
        watch_pip(progress, name, total),
    )
