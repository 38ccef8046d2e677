"""A worker to be killed: starts one child under a guardian, prints what there is as JSON, and waits.

Run as ``python process_worker.py DIRECTORY MODE``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from autotuner_worker.process import BoundedLog, spawn

CHILD = Path(__file__).with_name("process_child.py")


async def main(directory: Path, mode: str) -> None:
    """Start, tell, wait for ever."""
    ready: asyncio.Future[dict[str, int]] = asyncio.get_running_loop().create_future()

    def listen(line: str) -> None:
        if line.startswith("ready "):
            ready.set_result(json.loads(line.removeprefix("ready ")))

    record = directory / "records" / "launch.json"
    log = BoundedLog(directory / "engine.log")
    argv = [sys.executable, str(CHILD), mode]
    process = await spawn(argv, dict(os.environ), directory, log, record, lines=listen)
    pids = await ready
    guardian = json.loads(record.read_text(encoding="utf-8"))["guardian"]["pid"]
    sys.stdout.write(json.dumps({**pids, "guardian": guardian, "worker": os.getpid()}) + "\n")
    sys.stdout.flush()
    await process.wait()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
