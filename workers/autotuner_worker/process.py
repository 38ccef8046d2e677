"""Starting, watching and ending engines: the only way to a process group in this program.

Every engine runs under its own guardian (:mod:`autotuner_worker.guardian`), which ends the engine and all that descends
from it when this worker ends in any way.  Should the guardian itself be killed, the parent-death signal ends the leader
and this module ends the rest by evidence.  What even that leaves, because both were killed at once, the next worker ends
by the record (:mod:`autotuner_worker.leftovers`).

Needs Linux 5.4 or later (pidfds).  One event loop; nothing here blocks it for longer than a look through ``/proc``.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import signal as signals
import socket
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from autotuner.errors import EngineUnavailable, EnvironmentFault
from autotuner_worker import guardian
from autotuner_worker.boundedlog import BoundedLog
from autotuner_worker.guardian import KILL_TIMEOUT, descendants, read_stat, snapshot
from autotuner_worker.leftovers import reap_leftovers
from autotuner_worker.portlease import PortLease, port_is_free, reserve_port
from autotuner_worker.procfs import TOKEN_NAME, LaunchIdentity, boot_id, end_members, find_members, wait_gone

__all__ = [
    "BoundedLog",
    "ExitStatus",
    "Known",
    "LineSink",
    "ManagedProcess",
    "PortLease",
    "StopReport",
    "port_is_free",
    "reap_leftovers",
    "reserve_port",
    "spawn",
]

LineSink = Callable[[str], None]
"""Called with each finished line of output, redacted, without its line end."""

INSTANCE = uuid.uuid4().hex
"""Names this life of the worker in records."""
LINGER = 10.0
"""Seconds that processes may outlive their leader before the guardian ends them unasked."""
SETTLE = 3.0
"""Seconds that processes may outlive a leader that followed a polite request to end."""
STUCK_AFTER = KILL_TIMEOUT + 2.0
"""Seconds after which a guardian that was told to kill, and has not reported, is taken for stuck."""
_READ_SIZE = 256 * 1024
_LOG = logging.getLogger(__name__)


class Known(StrEnum):
    """How much is known about an exit."""

    OBSERVED = "observed"
    """The guardian reaped the leader: code or signal are exact."""
    LOST = "lost"
    """The guardian was killed or the leader cannot be killed: neither code nor signal is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitStatus:
    """How the leader ended: an exit code, or a signal, or neither when that is not known."""

    code: int | None
    signal: int | None
    known: Known

    @property
    def text(self) -> str:
        """Words for a person."""
        if self.signal is not None:
            return f"signal {self.signal} ({signals.Signals(self.signal).name})"
        return f"exit code {self.code}" if self.code is not None else "unknown (its supervisor was lost)"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReport:
    """What it took to end a launch."""

    exit: ExitStatus
    killed: tuple[str, ...]
    """``PID NAME`` of the processes that had to be killed; empty after a polite end."""
    survivors: tuple[str, ...]
    """``PID NAME`` of processes that are still there (stuck in the kernel); should be empty always."""
    seconds: float
    """From asking to the verified end."""


class _Output:
    """Reads the engine's output pipe for as long as anybody can write to it."""

    def __init__(self, log: BoundedLog, lines: LineSink | None) -> None:
        self._log = log
        self.lines = lines
        self._fd, self.write_fd = os.pipe()
        os.set_blocking(self._fd, False)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, 1024 * 1024)
        self.inode = os.fstat(self._fd).st_ino
        self._ended = asyncio.Event()

    def begin(self) -> None:
        """Give up the writing end and read from now on."""
        os.close(self.write_fd)
        self.write_fd = -1
        asyncio.get_running_loop().add_reader(self._fd, self._read)

    def _read(self) -> bool:
        try:
            data = os.read(self._fd, _READ_SIZE)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        self._deliver(self._log.feed(data))
        return True

    def _deliver(self, finished: list[str]) -> None:
        if self.lines is None:
            return
        for line in finished:
            try:
                self.lines(line)
            except Exception:  # noqa: BLE001 - whatever a listener does, the output must be read
                _LOG.exception("a listener failed on a line of engine output; it is not called any more")
                self.lines = None
                return

    def read_available(self) -> None:
        """Read what lies in the pipe now (bounded: somebody may be writing without end)."""
        for _ in range(16):
            if self._ended.is_set() or not self._read():
                return

    async def finish(self, timeout: float) -> None:
        """Wait for the end of the output for at most *timeout* seconds, then close it and the log."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), timeout)
        self.read_available()
        self.close()
        self._deliver(self._log.close())

    def close(self) -> None:
        """Stop reading; may be called twice."""
        if not self._ended.is_set():
            self._ended.set()
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1


class _Link:
    """The conversation with one guardian."""

    def __init__(
        self, child: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.child = child
        stat = read_stat(child.pid)
        self._start = stat.start if stat else 0
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, log_fd: int) -> Self:
        """Start a guardian whose engine will print to *log_fd*."""
        ours, theirs = socket.socketpair()
        try:  # everything that can be cancelled comes before the process exists
            reader, writer = await asyncio.open_unix_connection(sock=ours, limit=4 * 1024 * 1024)
        except BaseException:
            ours.close()
            theirs.close()
            raise
        argv = [sys.executable, "-I", "-S", guardian.__file__, str(os.getpid()), str(log_fd)]
        library_path = os.environ.get("LD_LIBRARY_PATH")
        try:
            child = subprocess.Popen(  # noqa: ASYNC220 - a vfork: about a millisecond
                argv,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(log_fd,),
                start_new_session=True,  # a signal to the worker's group must not end both
                cwd="/",
                env={"LD_LIBRARY_PATH": library_path} if library_path else {},
            )
        except OSError as error:
            writer.close()
            raise EnvironmentFault(f"cannot start a supervisor process: {error}") from error
        finally:
            theirs.close()
        return cls(child, reader, writer)

    def send(self, message: Mapping[str, object]) -> None:
        """Send one message; a guardian that is gone is noticed by ``events``."""
        if not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the guardian's messages until it ends."""
        with contextlib.suppress(ConnectionError):
            async for line in self._reader:
                if line.endswith(b"\n"):
                    yield json.loads(line)

    async def close(self, timeout: float) -> None:
        """Close the conversation, upon which a guardian ends everything and itself, and reap it."""
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
        await wait_gone(self.child.pid, self._start, timeout)
        if self.child.poll() is None:
            _ABANDONED.append(self.child)


_ABANDONED: list[subprocess.Popen[bytes]] = []
"""Guardians that still wait for processes that cannot be killed."""


class ManagedProcess:
    """A running engine with everything that descends from it."""

    def __init__(self, link: _Link, output: _Output, identity: LaunchIdentity, record: Path) -> None:
        self._link, self._output, self._identity, self._record = link, output, identity, record
        loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[ExitStatus] = loop.create_future()
        self._killed: tuple[str, ...] = ()
        self._survivors: tuple[str, ...] = ()
        self._hurry = asyncio.Event()
        self._stopping: asyncio.Task[StopReport] | None = None
        self._watcher = loop.create_task(self._watch())

    @property
    def pid(self) -> int:
        """The engine's leader."""
        return self._identity.pid

    @property
    def pgid(self) -> int:
        """Process group, and session, of the leader: the same number."""
        return self._identity.pid

    @property
    def token(self) -> str:
        """Value of ``AUTOTUNER_LAUNCH`` in the engine's environment."""
        return self._identity.token

    @property
    def lines(self) -> LineSink | None:
        """Who is called with each line of output; may be set and cleared at any time."""
        return self._output.lines

    @lines.setter
    def lines(self, sink: LineSink | None) -> None:
        self._output.lines = sink

    def pids(self) -> list[int]:
        """Return all live processes of the launch, those that left the group included."""
        if self._link.child.returncode is None and not self._watcher.done():
            return [stat.pid for stat in descendants(self._link.child.pid, snapshot()) if stat.alive]
        return [stat.pid for stat in find_members(self._identity)]

    async def wait(self) -> ExitStatus:
        """Wait for the end of the leader; what it printed is in the log by then.  Others may still be running."""
        status = await asyncio.shield(self._exit)
        self._output.read_available()
        return status

    async def stop(self, grace: float) -> StopReport:
        """End the launch and verify it: ask the leader, wait up to *grace* seconds, kill everything that is left.

        May be called again, also while it works: the earliest deadline counts.  Cancelling the call does not stop the
        stopping.
        """
        timer = asyncio.get_running_loop().call_later(max(0.0, grace), self._hurry.set)
        if grace <= 0:
            self._hurry.set()
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._stop())
        try:
            return await asyncio.shield(self._stopping)
        finally:
            if self._stopping.done():
                timer.cancel()

    async def _stop(self) -> StopReport:
        loop = asyncio.get_running_loop()
        began = loop.time()
        if not self._hurry.is_set():
            self._link.send({"op": "terminate"})
            await _first(self._exit, self._hurry.wait())
        if self._exit.done():
            await _first(self._watcher, self._hurry.wait(), timeout=SETTLE)
        if not self._watcher.done():
            self._link.send({"op": "kill"})
            await _first(self._watcher, timeout=STUCK_AFTER)
        if not self._watcher.done():  # the guardian is stuck or stopped: without it, the watcher ends everything itself
            self._link.child.kill()
        await asyncio.shield(self._watcher)
        left = {stat.label for stat in find_members(self._identity)}.union(self._survivors)
        return StopReport(
            exit=self._exit.result(),
            killed=self._killed,
            survivors=tuple(sorted(left)),
            seconds=loop.time() - began,
        )

    async def _watch(self) -> None:
        ended = False
        async for event in self._link.events():
            if event["event"] == "exited":
                self._set_exit(ExitStatus(code=event["code"], signal=event["signal"], known=Known.OBSERVED))
            elif event["event"] in ("gone", "survivors"):
                self._killed, self._survivors = tuple(event["killed"]), tuple(event.get("survivors", ()))
                ended = True
                break
        if not ended:
            await self._take_over()
        self._set_exit(ExitStatus(code=None, signal=None, known=Known.LOST))
        await self._output.finish(1.0)
        await self._link.close(0.2 if self._survivors else 5.0)

    async def _take_over(self) -> None:
        """The guardian is lost: the leader has had its parent-death signal, the others are ended here."""
        _LOG.warning("the supervisor of process group %d was killed; ending the group", self.pgid)
        # No new process can appear behind a dead leader's back for long: whatever descends carries the evidence.
        killed, left = await end_members(self._identity, KILL_TIMEOUT)
        self._killed = tuple(stat.label for stat in killed)
        self._survivors = tuple(stat.label for stat in left)
        if not left:
            self._record.unlink(missing_ok=True)

    def _set_exit(self, status: ExitStatus) -> None:
        if not self._exit.done():
            self._exit.set_result(status)


async def _first(*things: Awaitable[object], timeout: float | None = None) -> None:
    """Wait until one of *things* is done; cancel only what was started here."""
    tasks = [asyncio.ensure_future(thing) for thing in things]
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task, thing in zip(tasks, things, strict=True):
            if task is not thing:
                task.cancel()


def _identity(token: str, pipe: int, argv0: str) -> dict[str, object]:
    own = read_stat(os.getpid())
    return {
        "token": token,
        "pipe": pipe,
        "boot_id": boot_id(),
        "argv0": argv0,
        "worker": {"pid": os.getpid(), "start": own.start if own else 0, "instance": INSTANCE},
    }


async def spawn(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
    log: BoundedLog,
    record: Path,
    *,
    lines: LineSink | None = None,
    linger: float = LINGER,
) -> ManagedProcess:
    """Start *argv* as the leader of its own session under a guardian and return once it was executed.

    *env* is the complete environment (the launch token is added), *log* gets standard output and error and is closed at the
    end, *record* is written before the engine runs and removed after its verified end.  *linger* is how many seconds other
    processes may outlive the leader when nobody calls ``stop``.

    Raises ``EngineUnavailable`` when the program cannot be executed and ``EnvironmentFault`` when the machine does not allow
    it; nothing is left running in either case, nor when this call is cancelled.
    """
    token = uuid.uuid4().hex
    output = _Output(log, lines)
    link: _Link | None = None
    try:
        record.parent.mkdir(parents=True, exist_ok=True)
        link = await _Link.open(output.write_fd)
        output.begin()
        identity = _identity(token, output.inode, argv[0])
        spec = {"argv": list(argv), "env": {**env, TOKEN_NAME: token}, "cwd": str(cwd), "linger": linger}
        link.send({**spec, "record": str(record.absolute()), "identity": identity})
        pid = await _started(link, argv[0])
    except BaseException as error:
        await asyncio.shield(_abandon(link, output))
        if isinstance(error, OSError):
            raise EnvironmentFault(f"cannot start {argv[0]}: {error}") from error
        raise
    stat = read_stat(pid)
    started = LaunchIdentity(pid=pid, start=stat.start if stat else 0, token=token, pipe=output.inode)
    return ManagedProcess(link, output, started, record)


async def _started(link: _Link, argv0: str) -> int:
    async for event in link.events():
        if event["event"] == "started":
            return int(event["pid"])
        if event["event"] == "failed":
            raise EngineUnavailable(f"cannot execute {argv0}: {event['error']}")
    raise EnvironmentFault(f"the supervisor of {argv0} ended before it started anything")


async def _abandon(link: _Link | None, output: _Output) -> None:
    if link is not None:
        await link.close(KILL_TIMEOUT)
    await output.finish(0.2)
