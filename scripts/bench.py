#!/usr/bin/env python3
"""Runs the benchmarks, one after another: ``python3 scripts/bench.py [NAME…]``.

A benchmark is a program ``benchmarks/NAME.py`` that writes ``benchmarks/results/NAME.json``; modules without a main part,
and the programs listed in ``HELPERS``, are what benchmarks are built from.  All run even when one fails; the exit code says whether every one ended well and wrote its
result.  Standard library only.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parent.parent
HELPERS = frozenset({"fake_server"})
"""Programs that benchmarks start."""


def find(folder: Path) -> list[str]:
    """Return the names of the benchmarks in *folder*, sorted."""
    programs = {path.stem for path in folder.glob("*.py") if 'if __name__ == "__main__"' in path.read_text("utf-8")}
    return sorted(programs - HELPERS)


def run(root: Path, name: str) -> bool:
    """Run one benchmark; return whether it ended well and wrote its result."""
    result = root / "benchmarks" / "results" / f"{name}.json"
    before = result.stat().st_mtime_ns if result.exists() else 0
    start = time.monotonic()
    print(f"[bench] {name}", flush=True)
    python = root / ".venv" / "bin" / "python"
    environ = {**os.environ, "PYTHONPATH": str(root)}
    code = subprocess.run([python, root / "benchmarks" / f"{name}.py"], cwd=root, env=environ, check=False).returncode
    written = result.exists() and result.stat().st_mtime_ns > before
    note = "" if written else ", no result written"
    print(f"[bench] {name}: exit {code}{note}, {time.monotonic() - start:.1f} s", flush=True)
    return code == 0 and written


def main(argv: Sequence[str]) -> int:
    """Run the benchmarks named, or all; return 0 when all ended well, 1 when not, 2 for an unknown name."""
    known = find(ROOT / "benchmarks")
    unknown = [name for name in argv if name not in known]
    if unknown:
        print(f"bench: error: no benchmark {unknown[0]!r}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    failed = [name for name in argv or known if not run(ROOT, name)]
    if failed:
        print(f"[bench] failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
