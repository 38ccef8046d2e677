"""The guardian: a tiny supervisor between the worker and one engine.  Run as ``python -I -S guardian.py WORKER LOG_FD``.

It outlives what it supervises and nothing else.  Invariants:

* The guardian is a child subreaper: every process that descends from the engine stays its descendant, whatever
  session or group it moved to.  "No children left" therefore proves "nothing left".
* It runs in its own session and ignores the polite signals; when the worker ends in any way (end of file on the control
  socket, or the worker's pidfd), it kills every descendant, reaps and exits.
* The engine gets the parent-death signal SIGKILL, so that even the death of the guardian ends the leader.
* The engine does not run before its record is on disk.

Control socket (fd 0), one JSON object a line.  In: the specification, then ``{"op": "terminate" | "kill"}``.
Out: ``started`` or ``failed``, ``exited``, ``survivors`` (only when something cannot be killed), ``gone``.

Only the standard library, and little of it: this process has to stay small.
"""

# pathlib would add much to what this process loads:
# ruff: noqa: PTH105, PTH108, PTH123, PTH208

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
from typing import Any, NamedTuple, NoReturn

__all__ = ["KILL_TIMEOUT", "Stat", "descendants", "kill_exactly", "main", "read_stat", "snapshot"]

KILL_TIMEOUT = 10.0
"""Seconds after the first SIGKILL until processes that are still there are reported as survivors."""
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
CONTROL = 0
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE)


class Stat(NamedTuple):
    """The fields of ``/proc/PID/stat`` that identify and weigh a process."""

    pid: int
    name: str
    """At most 15 characters; for people only."""
    state: str
    ppid: int
    pgid: int
    sid: int
    cpu_ticks: int
    """User and system time of the process and of its reaped children."""
    start: int
    """Start time in ticks since boot: with the boot id and the pid it names a process for ever."""
    rss_pages: int

    @property
    def alive(self) -> bool:
        """It holds resources: neither a zombie nor dead."""
        return self.state not in "ZXx"

    @property
    def label(self) -> str:
        """``PID NAME``."""
        return f"{self.pid} {self.name}"


def read_stat(pid: int) -> Stat | None:
    """Return the stat of *pid*, ``None`` when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            raw = file.read(4096)
    except OSError:
        return None
    left, right = raw.find(b"("), raw.rfind(b")")
    rest = raw[right + 2 :].split()
    if left < 0 or len(rest) < 22:
        return None
    ticks = sum(int(value) for value in rest[11:15])
    name = raw[left + 1 : right].decode(errors="replace")
    numbers = (int(rest[1]), int(rest[2]), int(rest[3]), ticks, int(rest[19]), int(rest[21]))
    return Stat(pid, name, rest[0].decode(), *numbers)


def snapshot() -> list[Stat]:
    """Return the stat of every process that can be seen."""
    stats = (read_stat(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())
    return [stat for stat in stats if stat is not None]


def descendants(root: int, stats: list[Stat]) -> list[Stat]:
    """Return all processes below *root*, parents before their children."""
    children: dict[int, list[Stat]] = {}
    for stat in stats:
        children.setdefault(stat.ppid, []).append(stat)
    found: list[Stat] = []
    queue = list(children.get(root, ()))
    while queue:
        stat = queue.pop(0)
        found.append(stat)
        queue.extend(children.get(stat.pid, ()))
    return found


def kill_exactly(pid: int, start: int, number: int = signal.SIGKILL) -> bool:
    """Send a signal to the process with this pid *and* start time; return whether it was sent to a live one."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        stat = read_stat(pid)  # after opening: the pidfd cannot mean a later process of that number
        if stat is None or stat.start != start or not stat.alive:
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _write_record(path: str, record: dict[str, Any]) -> None:
    draft = f"{path}.draft"
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump(record, file)
    os.replace(draft, path)


class Guardian:
    """One engine's supervisor; ``run`` returns when nothing of the engine is left."""

    def __init__(self, worker: int, log_fd: int) -> None:
        self._log_fd = log_fd
        self._poll = select.poll()
        self._buffer = b""
        self._spec: dict[str, Any] = {}
        self._leader = 0
        self._exec_fd = -1
        self._exec_answer = b""
        self._exited = False
        self._deadline: float | None = None
        """When lingering ends, or when survivors are to be reported."""
        self._striking = False
        self._pause = 0.02
        self._killed: dict[tuple[int, int], str] = {}
        self._wake, wake_write = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        self._worker_fd = os.pidfd_open(worker)
        for fd in (CONTROL, self._wake, self._worker_fd):
            self._poll.register(fd, select.POLLIN)

    def run(self) -> None:
        """Start the engine and supervise it to the end."""
        while not self._spec:
            self._wait(None)
            if self._striking:
                return
        self._start()
        while self._reap():
            self._wait(self._timeout())
            self._check_deadline()
            if self._striking:
                self._strike()
        with contextlib.suppress(OSError):
            os.unlink(self._spec["record"])
        self._send({"event": "gone", "killed": list(self._killed.values())})

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the worker is gone: nobody to tell
            os.write(CONTROL, json.dumps(message).encode() + b"\n")

    # -- waiting ----------------------------------------------------------------------------------------------------

    def _timeout(self) -> float | None:
        waits = [max(0.0, self._deadline - time.monotonic())] if self._deadline is not None else []
        if self._striking:
            waits.append(self._pause)
            self._pause = min(self._pause * 2, 1.0)
        return min(waits, default=None)

    def _wait(self, timeout: float | None) -> None:
        for fd, _event in self._poll.poll(None if timeout is None else timeout * 1000):
            if fd == self._wake:
                os.read(fd, 4096)
            elif fd == self._exec_fd:
                self._on_exec()
            elif fd == self._worker_fd:
                self._on_worker_gone()
            else:
                self._on_control()

    def _on_worker_gone(self) -> None:
        self._poll.unregister(self._worker_fd)
        self._begin_strike()

    def _on_control(self) -> None:
        try:
            data = os.read(CONTROL, 65536)
        except OSError:
            data = b""
        if not data:
            self._poll.unregister(CONTROL)
            self._begin_strike()
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if not self._spec:
                self._spec = message
            elif message["op"] == "kill":
                self._begin_strike()
            elif message["op"] == "terminate" and not self._exited:
                os.kill(self._leader, signal.SIGTERM)  # ours and not reaped: the number cannot have moved on

    # -- the engine -------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        go_read, go_write = os.pipe()
        self._exec_fd, answer = os.pipe()
        guardian = os.getpid()
        self._leader = os.fork()
        if self._leader == 0:
            os.close(go_write)
            self._become_engine(guardian, go_read, answer)
        os.close(go_read)
        os.close(answer)
        os.close(self._log_fd)
        own, leader = read_stat(guardian), read_stat(self._leader)
        record = dict(self._spec["identity"], pid=self._leader, pgid=self._leader, sid=self._leader)
        record["start"] = leader.start if leader else 0
        record["guardian"] = {"pid": guardian, "start": own.start if own else 0}
        try:
            _write_record(self._spec["record"], record)
            os.write(go_write, b"g")
        except OSError as error:  # without the word the child reads the end of the file and exits
            self._exec_answer = json.dumps(
                {"errno": error.errno, "error": f"cannot write the record: {error}"}
            ).encode()
        os.close(go_write)
        self._poll.register(self._exec_fd, select.POLLIN)

    def _become_engine(self, guardian: int, go: int, answer: int) -> NoReturn:
        try:
            _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            os.setsid()
            signal.set_wakeup_fd(-1)
            for number in (*IGNORED, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.dup2(self._log_fd, 1)
            os.dup2(self._log_fd, 2)
            os.close(self._log_fd)
            if os.read(go, 1) != b"g" or os.getppid() != guardian:
                os._exit(125)
            os.chdir(self._spec["cwd"])
            argv = self._spec["argv"]
            os.execvpe(argv[0], argv, self._spec["env"])  # noqa: S606 - no shell is the point
        except BaseException as error:  # noqa: BLE001 - between fork and exec nothing may escape
            cause = error.errno if isinstance(error, OSError) else 0
            os.write(answer, json.dumps({"errno": cause, "error": str(error)}).encode())
        finally:
            os._exit(127)

    def _on_exec(self) -> None:
        data = os.read(self._exec_fd, 4096)
        self._exec_answer += data
        if data:
            return
        self._poll.unregister(self._exec_fd)
        os.close(self._exec_fd)
        self._exec_fd = -1
        failure = json.loads(self._exec_answer) if self._exec_answer else None
        self._send({"event": "failed", **failure} if failure else {"event": "started", "pid": self._leader})

    def _reap(self) -> bool:
        """Collect the dead; return whether any child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._leader:
                self._on_leader_exit(status)

    def _on_leader_exit(self, status: int) -> None:
        self._exited = True
        while self._exec_fd >= 0:  # its end is closed now: tell the answer before the exit
            self._on_exec()
        code = os.waitstatus_to_exitcode(status)
        self._send({"event": "exited", "code": code if code >= 0 else None, "signal": -code if code < 0 else None})
        if not self._striking:
            self._deadline = time.monotonic() + self._spec["linger"]

    # -- the end ----------------------------------------------------------------------------------------------------

    def _begin_strike(self) -> None:
        if not self._striking:
            self._striking = True
            self._deadline = time.monotonic() + KILL_TIMEOUT

    def _check_deadline(self) -> None:
        if self._deadline is None or time.monotonic() < self._deadline:
            return
        if not self._striking:
            self._begin_strike()
            return
        self._deadline = None
        left = [stat.label for stat in descendants(os.getpid(), snapshot()) if stat.alive]
        self._send({"event": "survivors", "killed": list(self._killed.values()), "survivors": left})

    def _strike(self) -> None:
        for stat in descendants(os.getpid(), snapshot()):
            if stat.alive and kill_exactly(stat.pid, stat.start):
                self._killed.setdefault((stat.pid, stat.start), stat.label)


def main(argv: list[str]) -> int:
    """Supervise one engine; *argv* is the worker's pid and the descriptor that becomes the engine's output."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    worker = int(argv[0])
    guardian = Guardian(worker, int(argv[1]))
    if os.getppid() != worker:
        return 0
    guardian.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
