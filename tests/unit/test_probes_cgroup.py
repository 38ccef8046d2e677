"""Control groups of both versions, on trees made for the purpose."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from autotuner_worker.probes.cgroup import CgroupReader, OomWatch, oom_kills


def _tree(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def unified(tmp_path: Path) -> Path:
    """Version 2 in a container: the mount shows the subtree of the container alone."""
    mount = tmp_path / "cg"
    _tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/docker/abc/engine.scope\n",
            "proc/7/cgroup": "0::/docker/abc/engine.scope\n",
            "proc/self/mountinfo": f"31 1 0:29 /docker/abc {mount} rw - cgroup2 cgroup2 rw\nbroken\n",
            "proc/vmstat": "nr_free_pages 1\noom_kill 5\n",
            "cg/engine.scope/memory.events": "low 0\noom 1\noom_kill 2\n",
            "cg/engine.scope/memory.max": "max\n",
            "cg/engine.scope/cpu.max": "max 100000\n",
            "cg/memory.events": "oom_kill 3\n",
            "cg/memory.max": "1000\n",
            "cg/memory.current": "700\n",
            "cg/memory.stat": "anon 1\ninactive_file 200\n",
            "cg/cpu.max": "150000 100000\n",
        },
    )
    return tmp_path


def test_unified_hierarchy(unified: Path) -> None:
    reader = CgroupReader(unified / "proc")
    mount = unified / "cg"
    assert reader.chain("memory", 7) == (mount / "engine.scope", mount)
    assert reader.memory_limit() == 1000
    assert reader.memory_headroom() == 500
    assert reader.cpu_quota() == 1.5
    assert oom_kills(reader.chain("memory")) == 2
    assert reader.chain("memory", 8) == ()


def test_watch_counts_from_its_start(unified: Path) -> None:
    watch = OomWatch(7, proc=unified / "proc")
    assert watch.kills() == 0
    _tree(unified, {"cg/engine.scope/memory.events": "oom_kill 4\n"})
    assert watch.kills() == 2
    (unified / "cg/engine.scope/memory.events").unlink()
    _tree(unified, {"cg/memory.events": "oom_kill 6\n"})
    assert watch.kills() == 3
    (unified / "cg/memory.events").unlink()
    _tree(unified, {"proc/vmstat": "oom_kill 6\n"})
    assert watch.kills() == 1
    (unified / "proc/vmstat").unlink()
    assert watch.kills() is None


def test_version_one(tmp_path: Path) -> None:
    memory, cpu = tmp_path / "memory", tmp_path / "cpu"
    _tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/a/b\n2:cpu,cpuacct:/a\n0::/\n",
            "proc/self/mountinfo": (
                f"35 31 0:32 / {memory} rw - cgroup cgroup rw,memory\n36 31 0:33 / {cpu} rw - cgroup cgroup rw,cpu,cpuacct\n"
            ),
            "memory/a/b/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
            "memory/a/b/memory.limit_in_bytes": "9223372036854771712\n",
            "memory/a/memory.limit_in_bytes": "4096\n",
            "memory/a/memory.usage_in_bytes": "1024\n",
            "memory/a/memory.stat": "inactive_file 7\ntotal_inactive_file 24\n",
            "cpu/a/cpu.cfs_quota_us": "50000\n",
            "cpu/a/cpu.cfs_period_us": "100000\n",
            "cpu/cpu.cfs_quota_us": "-1\n",
        },
    )
    reader = CgroupReader(tmp_path / "proc")
    assert reader.chain("memory") == (memory / "a/b", memory / "a", memory)
    assert oom_kills(reader.chain("memory")) == 1
    assert reader.memory_limit() == 4096
    assert reader.memory_headroom() == 4096 - 1000
    assert reader.cpu_quota() == 0.5


def test_nothing_known(tmp_path: Path) -> None:
    reader = CgroupReader(tmp_path)
    assert reader.chain("memory") == ()
    assert reader.memory_limit() is reader.memory_headroom() is reader.cpu_quota() is None
    assert oom_kills([tmp_path]) is None
    _tree(tmp_path, {"self/cgroup": "0::/\n"})
    assert reader.chain("memory") == ()


def test_this_host_answers() -> None:
    assert OomWatch(os.getpid()).kills() in (0, None)
    count = oom_kills(os.getpid())
    assert count is None or count >= 0
