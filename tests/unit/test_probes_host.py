"""What the host says about itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotuner.errors import EnvironmentFault
from autotuner_worker.probes import host

_WAIT = "import sys;print('up',flush=True);sys.stdin.read()"


def test_usage_sums_over_processes() -> None:
    own = host.usage([os.getpid()])
    assert own.processes == 1
    assert own.cpu_seconds > 0
    assert own.rss_bytes > 10 * 2**20
    assert host.usage([os.getpid(), 2**22 + 1]).processes == 1
    assert host.usage([]) == host.ProcessUsage(cpu_seconds=0, rss_bytes=0, processes=0)
    assert 2**20 < host.proportional_memory([os.getpid(), 2**22 + 1]) <= own.rss_bytes * 1.2


def test_launch_is_found_by_session_token_and_descent() -> None:
    env = {"AUTOTUNER_LAUNCH": "t0"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with (
        subprocess.Popen([sys.executable, "-c", _WAIT], start_new_session=True, **pipes) as leader,  # type: ignore[call-overload]
        subprocess.Popen([sys.executable, "-c", _WAIT], env=env, **pipes) as stray,  # type: ignore[call-overload]
    ):
        for child in (leader, stray):
            child.stdout.readline()
        probe = host.LaunchProbe(leader.pid, "t0")
        assert probe.sample().processes == 2
        assert probe.sample().rss_bytes > host.usage([leader.pid]).rss_bytes
        assert host.LaunchProbe(leader.pid, "").sample().processes == 1
        for child in (leader, stray):
            child.stdin.close()
    assert probe.sample().processes == 0


def test_memory_and_cpus_of_this_host() -> None:
    memory = host.host_memory()
    assert 0 < memory.available <= memory.total
    assert 0 < host.cpu_available() <= (os.cpu_count() or 1)
    assert len(host.boot_id()) == 36
    host.cpu_info()


def test_memory_within_a_group(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "group").mkdir()
    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 900 kB\n")
    (tmp_path / "self" / "cgroup").write_text("0::/\n")
    (tmp_path / "self" / "mountinfo").write_text(f"1 1 0:1 / {tmp_path / 'group'} rw - cgroup2 none rw\n")
    assert host.host_memory(tmp_path) == host.HostMemory(total=1000 * 1024, available=900 * 1024)
    (tmp_path / "group" / "memory.max").write_text("102400\n")
    (tmp_path / "group" / "memory.current").write_text("2400\n")
    (tmp_path / "group" / "cpu.max").write_text("50000 100000\n")
    assert host.host_memory(tmp_path) == host.HostMemory(total=102400, available=100000)
    assert host.cpu_available(tmp_path) == 0.5


def test_busy_share() -> None:
    first = host.CpuTimes(busy=10.0, total=100.0)
    assert host.busy_share(first, host.CpuTimes(busy=13.0, total=104.0)) == 0.75
    assert host.busy_share(first, first) == 0.0
    now = host.cpu_times()
    assert 0 < now.busy < now.total


def test_cpu_features(tmp_path: Path) -> None:
    text = "processor\t: 0\nmodel name\t: Big CPU\nflags\t\t: fpu avx512f amx_bf16\n\nprocessor\t: 1\nflags\t: none\n"
    (tmp_path / "cpuinfo").write_text(text)
    info = host.cpu_info(tmp_path)
    assert info.model == "Big CPU"
    assert (info.amx_bf16, info.avx512, info.avx512_bf16) == (True, True, False)


def test_disk(tmp_path: Path) -> None:
    place = tmp_path / "not" / "yet" / "there"
    assert host.disk_free(place) > 0
    host.require_disk(place, 1, "the log")
    with pytest.raises(EnvironmentFault, match="the log needs"):
        host.require_disk(place, 1 << 62, "the log")
