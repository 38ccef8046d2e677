"""A worker as a child process of the embedded tuner: asked about its host, started, watched and ended.

The worker's session is its own, so that Ctrl-C reaches only the tuner; a pipe tells it when the tuner is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotuner.core.workers import HostReport
from autotuner.errors import AutotunerError, EngineUnavailable, EnvironmentFault, InputError, Problem
from autotuner.wire.codec import Codec

__all__ = ["Lives", "WorkerProcess", "describe_host", "make_small_model", "write_worker_config"]

_PROGRAM = (sys.executable, "-m", "autotuner_worker.agent.main")
_LAST_LINES = 5
_END_SECONDS = 8.0
"""For a short command that is not wanted any more to end what it started."""


def write_worker_config(path: Path, settings: Mapping[str, Any]) -> None:
    """Write the worker's configuration (JSON is YAML), readable by this user only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({key: value for key, value in settings.items() if value is not None}, indent=2)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text + "\n")


async def describe_host(config: Path, model: str | None) -> HostReport:
    """Ask the worker's program about engine and host; raise ``EngineUnavailable`` with its own last words."""
    out = await _ask_worker("describe", "--config", str(config), *(["--model", model] if model is not None else []))
    return Codec[HostReport](HostReport).loads(out)


async def make_small_model(config: Path, folder: Path) -> None:
    """Let the engine's environment make the small model in *folder*; raise ``EngineUnavailable`` when it cannot."""
    await _ask_worker("model", "--config", str(config), "--out", str(folder))


async def _ask_worker(*arguments: str) -> bytes:
    """Run one of the worker program's short commands and return what it prints."""
    reader, pipe = os.pipe()
    try:
        child = await asyncio.create_subprocess_exec(
            *_PROGRAM,
            *arguments,
            "--parent-fd",
            str(reader),
            pass_fds=(reader,),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except BaseException:
        os.close(pipe)
        raise
    finally:
        os.close(reader)
    try:
        out, err = await child.communicate()
    except asyncio.CancelledError:
        os.close(pipe)  # it ends now, and what it started with it
        pipe = -1
        await _ended(child, _END_SECONDS)
        raise
    finally:
        if pipe >= 0:
            os.close(pipe)
    if child.returncode != 0:
        raise _failure(child.returncode or 1, err.decode(errors="replace"))
    return out


async def _ended(child: asyncio.subprocess.Process, patience: float) -> None:
    """Wait for the end of *child*; kill it after *patience* seconds."""
    try:
        await asyncio.wait_for(child.wait(), patience)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()


def _failure(code: int, text: str) -> AutotunerError:
    lines = [line for line in text.strip().splitlines() if line.startswith("autotuner-worker: ")]
    message = lines[-1].removeprefix("autotuner-worker: ") if lines else "\n".join(text.splitlines()[-_LAST_LINES:])
    if code == InputError.exit_code:
        return InputError(
            [Problem(field="engine", value="", message=message, remedy="correct the study's engine section")]
        )
    return EngineUnavailable(message or f"the worker's program ended with exit code {code}")


class Lives:
    """Counts how often in a row the worker was lost without any measurement in between."""

    def __init__(self) -> None:
        self._deaths = 0
        self._measured = -1

    def lost(self, measured: int) -> int:
        """Note a loss when *measured* trials have been measured in all; return how many losses it makes in a row."""
        self._deaths = self._deaths + 1 if measured == self._measured else 1
        self._measured = measured
        return self._deaths


class WorkerProcess:
    """One worker under this process."""

    def __init__(self, argv: Sequence[str], log: Path) -> None:
        self._argv = tuple(argv)
        self._log = log
        self._child: asyncio.subprocess.Process | None = None
        self._pipe = -1

    @classmethod
    def for_config(cls, config: Path, log: Path) -> WorkerProcess:
        """Return the worker that *config* describes; its own log goes to *log*."""
        return cls([*_PROGRAM, "run", "--config", str(config)], log)

    async def start(self) -> None:
        """Start the worker."""
        reader, self._pipe = os.pipe()
        try:
            with self._log.open("ab") as log:
                self._child = await asyncio.create_subprocess_exec(
                    *self._argv,
                    "--parent-fd",
                    str(reader),
                    pass_fds=(reader,),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            raise EnvironmentFault(f"cannot start the worker: {error}") from error
        finally:
            os.close(reader)

    @property
    def ended(self) -> bool:
        """Whether the process is gone."""
        return self._child is not None and self._child.returncode is not None

    def last_words(self) -> str:
        """Return the end of the worker's log, for an error message."""
        return "\n".join(self._text().splitlines()[-_LAST_LINES:])

    def failure(self) -> AutotunerError | None:
        """Return the error that the worker ended with, ``None`` when it was killed or failed by a defect."""
        code = self._child.returncode if self._child is not None else None
        if code not in (InputError.exit_code, EnvironmentFault.exit_code):
            return None
        return _failure(code, self._text())

    def _text(self) -> str:
        with contextlib.suppress(OSError):
            return self._log.read_text(encoding="utf-8", errors="replace")
        return ""

    def kill(self) -> None:
        """End the process at once; its engines' supervisors end the engines. May be called at any time."""
        if self._child is not None and self._child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._child.kill()

    async def end(self, patience: float) -> None:
        """Close the pipe, wait *patience* seconds for the worker's own clean-up, then kill it.

        A killed worker leaves no engine either: the engine's supervisor ends it.
        """
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        if self._child is None:
            return
        await _ended(self._child, patience)
