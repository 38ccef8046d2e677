"""What an earlier life of the worker left: found by its records, ended by evidence."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from autotuner_worker.guardian import KILL_TIMEOUT, kill_exactly, read_stat
from autotuner_worker.procfs import LaunchIdentity, boot_id, end_members, wait_gone

__all__ = ["reap_leftovers"]

_LOG = logging.getLogger(__name__)
GUARDIAN_PATIENCE = 2.0
"""Seconds for a guardian that is at work already; it knows its descendants best."""


async def reap_leftovers(directory: Path) -> list[str]:
    """End what the records in *directory* name and an earlier worker left running; return a line for each process.

    Records of a worker that still lives are left alone, those of an earlier boot are only removed.  A process is ended only
    on evidence (see :mod:`autotuner_worker.procfs`); one that merely got a recorded number again is not touched.
    """
    told: list[str] = []
    for path in sorted(directory.glob("*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            told += await _reap(path, record)
        except FileNotFoundError:
            continue  # its guardian removed it meanwhile
        except (OSError, ValueError, KeyError, TypeError) as error:
            aside = path.with_suffix(".unreadable")
            path.replace(aside)
            told.append(f"{path.name}: not a launch record ({error!r}); set aside as {aside.name}")
    for line in told:
        _LOG.warning("left by an earlier worker: %s", line)
    return told


async def _reap(path: Path, record: dict[str, Any]) -> list[str]:
    if record["boot_id"] != boot_id():
        path.unlink(missing_ok=True)
        return []
    worker, guardian = record["worker"], record["guardian"]
    if _lives(worker["pid"], worker["start"]):
        return []
    identity = LaunchIdentity(
        pid=int(record["pid"]), start=int(record["start"]), token=str(record["token"]), pipe=int(record["pipe"])
    )
    told: list[str] = []
    if not await wait_gone(guardian["pid"], guardian["start"], GUARDIAN_PATIENCE):
        kill_exactly(guardian["pid"], guardian["start"])
        await wait_gone(guardian["pid"], guardian["start"], KILL_TIMEOUT)
        told.append(f"{path.stem}: killed stuck supervisor {guardian['pid']}")
    killed, left = await end_members(identity, KILL_TIMEOUT)
    told += [f"{path.stem}: killed {stat.label} of {record['argv0']}" for stat in killed]
    told += [f"{path.stem}: cannot kill {stat.label} of {record['argv0']}" for stat in left]
    if not left:
        path.unlink(missing_ok=True)
    return told


def _lives(pid: int, start: int) -> bool:
    stat = read_stat(pid)
    return stat is not None and stat.start == start and stat.alive
