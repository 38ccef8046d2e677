"""The embedded tuner as a user starts it: a process of its own, watched from outside.

Nothing here sleeps for a guessed time: what a test waits for is a line, a file or the end of a process, each with a
deadline that is reached only when a test fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import yaml

from autotuner.core import events as ev
from autotuner.core.lifecycle import StudyState, TrialState
from autotuner.core.machine import Machine
from autotuner.core.state import Study
from autotuner.core.trial import OutcomeClass
from autotuner.storage.records import EVENTS
from autotuner_worker.guardian import descendants, snapshot
from autotuner_worker.process import port_is_free

__all__ = [
    "NO_RACE",
    "PROGRAM",
    "STOP_DEADLINE",
    "Ended",
    "Tree",
    "Tuner",
    "accounted",
    "autotuner",
    "disk",
    "engines",
    "folded",
    "generators",
    "journal",
    "no_traceback",
    "nothing_left",
    "result_of",
    "until",
    "workers",
    "write_study",
]

DEADLINE = 60.0
"""Far more than anything here takes."""
STOP_DEADLINE = 10.0
"""Within which a tuner that was asked to stop must have ended."""
PROGRAM = (sys.executable, "-c", "from autotuner.cli.main import main; main()")
NO_RACE: Mapping[str, Any] = {
    "budget.trials": 3,
    "search.space": {"auto": False, "max_num_seqs": [1, 2]},
    "baseline": {"max_num_seqs": 16},
}
"""Changes to a study that make every other point worse than the baseline: nothing is raced."""
_TURN = threading.Event()
"""Never set: its ``wait`` is the pause between two looks at the file system."""

T = TypeVar("T")


def until(look: Callable[[], T], what: str, deadline: float = DEADLINE) -> T:
    """Look until something true is seen, and return it; fail after the deadline."""
    end = time.monotonic() + deadline
    while not (found := look()):
        assert time.monotonic() < end, f"waited {deadline:g} s for {what}"
        _TURN.wait(0.02)
    return found


# --- studies -----------------------------------------------------------------------------------------------------------


def write_study(path: Path, changes: Mapping[str, Any] | None = None) -> Path:
    """Write a study of the simulated engine that takes seconds; dotted names in *changes* replace single settings.

    Its baseline takes one request at a time, so that any other point is clearly better.
    """
    study: dict[str, Any] = {
        "name": "tiny",
        "model": "sim-tiny",
        "engine": {
            "kind": "simulated",
            "args": {"max_model_len": 512},
            "env": {"AUTOTUNER_SIM_TIME_SCALE": "5", "AUTOTUNER_SIM_STARTUP_SCALE": "0.001"},
        },
        "workload": {"concurrency": 4, "input_tokens": 32, "output_tokens": 8, "temperature": 0.0},
        "latency": {"limits": {"ttft_p95": "5 s"}},
        "budget": {"trials": 2},
        "measure": {
            "warmup_min": "0.2 s",
            "warmup_max": "1 s",
            "window": "0.2 s",
            "duration": "0.6 s",
            "min_requests": 4,
            "start_timeout": "30 s",
            "stall_timeout": "10 s",
        },
        "search": {
            "baseline_repeats": 1,
            "finalists": 1,
            "race_pairs": 2,
            "max_attempts": 8,  # a busy machine may spoil a measurement or two
            "space": {"auto": False, "max_num_seqs": [4, 8, 16]},
        },
        "baseline": {"max_num_seqs": 1},
    }
    for name, value in (changes or {}).items():
        *folders, last = name.split(".")
        section = study
        for folder in folders:
            section = section.setdefault(folder, {})
        section[last] = value
    path.write_text(yaml.safe_dump(study), encoding="utf-8")
    return path


# --- the program --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the program ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """Everything, for a message."""
        return f"exit {self.code}\n--- out\n{self.out}\n--- err\n{self.err}"


class Tuner:
    """One run of the command line in a session of its own, as a context: killed at its end if it still runs."""

    def __init__(self, *arguments: object, folder: Path, env: Mapping[str, str] | None = None) -> None:
        """Start ``autotuner ARGUMENTS``; *folder* is named in the environment of whatever it starts."""
        self._folder = folder
        self._out = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._lines: list[str] = []
        self._closed = False
        self._news = threading.Condition()
        self._process = subprocess.Popen(
            [*PROGRAM, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=subprocess.PIPE,
            env={**os.environ, "AUTOTUNER_CACHE_DIR": str(folder / "cache"), **(env or {})},
            start_new_session=True,
            cwd=folder,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            tree = Tree(self.pid)
            self._process.kill()
            self._process.wait()
            tree.wait_gone()
        self._reader.join(DEADLINE)
        assert self._process.stderr is not None
        self._process.stderr.close()
        self._out.close()

    @property
    def pid(self) -> int:
        """Of the tuner itself; also its process group."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._news:
                self._lines.append(line.decode(errors="replace"))
                self._news.notify_all()
        with self._news:
            self._closed = True
            self._news.notify_all()

    def wait_line(self, part: str, count: int = 1, deadline: float = DEADLINE) -> None:
        """Wait until *count* lines with *part* were written to standard error."""

        def seen() -> bool:
            return sum(part in line for line in self._lines) >= count

        with self._news:
            self._news.wait_for(lambda: seen() or self._closed, deadline)
            assert seen(), f"waited for {part!r}; it said:\n{''.join(self._lines)}"

    def wait_for(self, look: Callable[[], T], what: str) -> T:
        """Wait for something that can be seen while this runs."""
        return until(lambda: look() or self._gone(what), what)

    def _gone(self, what: str) -> Any:
        assert self.running, f"ended before {what}:\n{''.join(self._lines)}"
        return None

    def signal(self, number: int) -> None:
        """Send a signal to the process group, as a terminal does."""
        os.killpg(self.pid, number)

    def kill(self) -> None:
        """Kill the tuner alone, as the kernel does when memory is short, and wait until nothing of it is left."""
        tree = Tree(self.pid)
        os.kill(self.pid, signal.SIGKILL)
        self._process.wait()
        tree.wait_gone()
        nothing_left(self._folder)

    def end(self, deadline: float = DEADLINE) -> Ended:
        """Wait for its end."""
        try:
            self._process.wait(deadline)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not ended within {deadline:g} s; it said:\n{''.join(self._lines)}") from None
        self._reader.join(DEADLINE)
        self._out.seek(0)
        return Ended(
            code=self._process.returncode, out=self._out.read().decode(errors="replace"), err="".join(self._lines)
        )


def autotuner(*arguments: object, folder: Path, env: Mapping[str, str] | None = None) -> Ended:
    """Run the command line to its end."""
    with Tuner(*arguments, folder=folder, env=env) as tuner:
        return tuner.end()


def no_traceback(ended: Ended) -> None:
    """Fail when the user was shown the program's inside."""
    assert "Traceback" not in ended.err + ended.out, ended.said
    assert "internal error" not in ended.err, ended.said


# --- processes ----------------------------------------------------------------------------------------------------------


class Tree:
    """Handles on a process's descendants, opened while they live."""

    def __init__(self, root: int) -> None:
        self._handles: dict[int, str] = {}
        for stat in descendants(root, snapshot()):
            with contextlib.suppress(ProcessLookupError):
                self._handles[os.pidfd_open(stat.pid)] = stat.label

    def wait_gone(self) -> None:
        """Wait until all have ended; fail with their names after the deadline."""
        poll = select.poll()
        for handle in self._handles:
            poll.register(handle, select.POLLIN)
        end = time.monotonic() + DEADLINE
        while self._handles:
            ready = poll.poll(max(0.0, end - time.monotonic()) * 1000)
            assert ready, f"still alive: {sorted(self._handles.values())}"
            for handle, _event in ready:
                poll.unregister(handle)
                os.close(handle)
                del self._handles[handle]


def _members(folder: Path) -> Iterator[tuple[int, str]]:
    """Yield (pid, command line) of the live processes that name *folder* in their command or environment."""
    mark = os.fsencode(folder)
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command, environment = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
        except OSError:  # it ended
            continue
        if mark in command or mark in environment:
            yield int(entry.name), command.replace(b"\0", b" ").decode(errors="replace")


def nothing_left(folder: Path) -> None:
    """Wait until no process that belongs to *folder* is left, nor a port that one of its engines was given."""
    until(lambda: not list(_members(folder)), "the end of every process", deadline=20.0)
    for out in [path.parent for path in folder.glob("*/study.db")]:
        assert not list((out / "worker" / "processes").glob("*.json"))
        for port in _ports(out):
            assert port_is_free("127.0.0.1", port)


def _ports(out: Path) -> set[int]:
    found = set()
    for event in journal(out):
        if isinstance(event, ev.TrialCompleted) and event.outcome.launch is not None and event.outcome.launch.argv:
            argv = event.outcome.launch.argv
            found.add(int(argv[argv.index("--port") + 1]))
    return found


def _named(folder: Path, part: str) -> list[int]:
    return [pid for pid, command in _members(folder) if part in command]


def workers(folder: Path) -> list[int]:
    """Return the workers that run."""
    return _named(folder, "agent.main run ")


def engines(folder: Path) -> list[int]:
    """Return the simulated engines that run."""
    return _named(folder, "simulator.server")


def generators(folder: Path) -> list[int]:
    """Return the load generator processes that run."""
    return _named(folder, "workloads.client")


# --- results ------------------------------------------------------------------------------------------------------------


def journal(out: Path) -> list[ev.Event]:
    """Return the events in *out*'s journal, also while a tuner writes it."""
    return [event for _, event in _entries(out)]


def _entries(out: Path) -> list[tuple[float, ev.Event]]:
    try:
        with contextlib.closing(
            sqlite3.connect((out / "study.db").as_uri() + "?mode=ro", uri=True, timeout=5.0)
        ) as database:
            rows = database.execute("select stamp, body from autotuner_journal order by seq").fetchall()
    except sqlite3.OperationalError:  # not made yet
        return []
    return [(stamp, EVENTS.loads(body)) for stamp, body in rows]


def folded(out: Path) -> Study:
    """Return the one study that the journal in *out* tells of."""
    machine = Machine()
    for stamp, event in _entries(out):
        machine.apply(event, stamp)
    machine.check()
    (study,) = machine.studies.values()
    return study


def result_of(out: Path) -> dict[str, Any]:
    """Return ``result.json``."""
    found: dict[str, Any] = json.loads((out / "result.json").read_text(encoding="utf-8"))
    return found


def accounted(out: Path) -> Study:
    """See that an ended study lost no trial and measured none twice, in the journal, in Optuna and in the results."""
    study = folded(out)
    assert study.state is StudyState.ENDED
    assert list(study.trials) == list(range(1, len(study.trials) + 1))
    assert not study.live_trials()
    measured = Counter(
        event.outcome.trial_id
        for event in journal(out)
        if isinstance(event, ev.TrialCompleted) and event.outcome.outcome is OutcomeClass.COMPLETE
    )
    expected = [trial.trial_id for trial in study.trials.values() if trial.state is TrialState.MEASURED]
    assert measured == Counter(expected)
    for trial in study.trials.values():
        if trial.measurement is not None:
            assert (out / trial.measurement.records).is_file()
    assert [trial["id"] for trial in result_of(out)["trials"]] == list(study.trials)
    known = _optuna(out)
    assert "RUNNING" not in {state for _, state in known}
    assert max(Counter(trial for trial, _ in known).values(), default=1) == 1
    return study


def _optuna(out: Path) -> list[tuple[str, str]]:
    """Return (our number, state) of every trial in Optuna's storage."""
    query = (
        "select a.value_json, t.state from trials t join trial_user_attributes a on a.trial_id = t.trial_id"
        " where a.key = 'autotuner_trial_id'"
    )
    with contextlib.closing(sqlite3.connect((out / "study.db").as_uri() + "?mode=ro", uri=True)) as database:
        return list(database.execute(query))


# --- the machine --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def disk(folder: Path, size: str) -> Iterator[str]:
    """Mount a file system of *size* at *folder*; yields an empty text, or why that is not possible here."""
    mount = shutil.which("mount")
    folder.mkdir()
    argv = [mount or "mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if mount is None or os.geteuid() != 0:
        yield "only root may mount a small file system"
        return
    made = subprocess.run(argv, check=False, capture_output=True, text=True)
    if made.returncode != 0:
        yield f"no file system can be mounted here: {made.stderr.strip()}"
        return
    try:
        yield ""
    finally:
        subprocess.run(["umount", str(folder)], check=True)
