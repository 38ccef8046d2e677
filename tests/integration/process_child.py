"""A badly behaved engine: run as ``python process_child.py MODE [ARGUMENT]``; prints ``ready {name: pid}`` once set up."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path


def _forever() -> None:
    while True:
        signal.pause()


def _child(action: Callable[[], None]) -> int:
    """Fork a process that does *action* and stays; return its pid once it is set up."""
    ready_read, ready_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        action()
        os.write(ready_write, b"%d" % os.getpid())
        os.close(ready_write)
        _forever()
    os.close(ready_write)
    told = os.read(ready_read, 16)
    os.close(ready_read)
    return int(told)


def _deaf() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _daemon() -> None:
    """Leave session, group and output; keep the environment."""
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    _deaf()


def _exec_without_environment(ready: int, *, hide: bool) -> None:
    if hide:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)
        os.dup2(null, 2)
    os.set_inheritable(ready, True)
    program = (
        f"import os,signal;signal.signal(15,1);os.write({ready},b'%d'%os.getpid());os.close({ready});signal.pause()"
    )
    os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", program], {})


def _bare(*, hide: bool) -> int:
    """Start a process without the launch's environment; with *hide* outside its session and output as well."""
    ready_read, ready_write = os.pipe()
    if os.fork() == 0:
        os.close(ready_read)
        _exec_without_environment(ready_write, hide=hide)
    os.close(ready_write)
    told = os.read(ready_read, 16)
    os.close(ready_read)
    return int(told)


def _family() -> dict[str, int]:
    return {
        "deaf": _child(_deaf),
        "daemon": _child(_daemon),
        "bare": _bare(hide=False),
        "ghost": _bare(hide=True),
        "leader": os.getpid(),
    }


def _flood(megabytes: int) -> None:
    block = b"".join(b"%07d %s\n" % (number, b"x" * 91) for number in range(10_000))
    for _ in range(megabytes):
        view = memoryview(block)
        while view:
            view = view[os.write(1, view) :]
    os.write(1, b"the last words\n")


def _say(*words: str) -> None:
    sys.stdout.write(" ".join(words) + "\n")
    sys.stdout.flush()


def main(mode: str, argument: str) -> None:
    """Behave as *mode* says."""
    match mode:
        case "family":
            _say("ready", json.dumps(_family()))
            _forever()
        case "deserter":  # the leader ends at once and leaves its family
            _say("ready", json.dumps(_family()))
            os._exit(int(argument))
        case "deaf":
            _deaf()
            _say("ready", json.dumps({"leader": os.getpid()}))
            _forever()
        case "polite":
            _say("ready", json.dumps({"leader": os.getpid()}))
            _forever()
        case "flood":
            _flood(int(argument))
        case "say":
            _say(argument)
        case "environment":
            _say(json.dumps({"env": dict(os.environ), "cwd": str(Path.cwd()), "ignored": _ignored()}))
        case "abort":
            os.abort()
        case _:
            raise SystemExit(f"no mode {mode}")


def _ignored() -> list[int]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
    return [int(number) for number in numbers if signal.getsignal(number) == signal.SIG_IGN]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "")
