"""Start-up phases from real logs of vLLM 0.32."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotuner_worker.engines.vllm_phases import MARKERS, PhaseTracker, parse_line

LOGS = Path(__file__).parent / "golden" / "logs"


def test_a_compiled_start_passes_through_every_cpu_phase_in_order() -> None:
    tracker = PhaseTracker(100.0)
    begun = [
        phase
        for number, line in enumerate((LOGS / "startup_compiled.txt").read_text(encoding="utf-8").splitlines())
        if (phase := tracker.observe(parse_line(line), 101.0 + number))
    ]
    assert begun == [
        "config",
        "engine_start",
        "worker_start",
        "load_weights",
        "profile",
        "compile",
        "kv_cache",
        "server_start",
        "first_answer",
    ]
    phases = tracker.finish(500.0)
    assert list(phases) == ["import", *begun]
    assert sum(phases.values()) == pytest.approx(400.0)
    assert all(seconds >= 0 for seconds in phases.values())


def test_a_failed_start_stops_where_it_failed() -> None:
    tracker = PhaseTracker(0.0)
    for line in (LOGS / "bad_block_size.txt").read_text(encoding="utf-8").splitlines():
        tracker.observe(parse_line(line), 1.0)
    assert tracker.phase == "kv_cache"


@pytest.mark.parametrize(
    ("raw", "process", "level", "text"),
    [
        ("(APIServer pid=9660) INFO 12-01 09:07:41 [model.py:733] Resolved", "APIServer", "INFO", "Resolved"),
        ("(Worker_TP1 pid=4) ERROR 12-01 09:07:41 [a.py:1] ValueError: x", "Worker", "ERROR", "ValueError: x"),
        ("(VllmWorker-0 pid=4) WARNING 12-01 09:07:56 [vllm.py:725] y", "VllmWorker", "WARNING", "y"),
        ("(EngineCore_DP0 pid=4) INFO 12-01 09:07:56 [core.py:1] z", "EngineCore", "INFO", "z"),
        ("\x1b[0;36m(EngineCore pid=4)\x1b[0;0m INFO 12-01 09:07:56 [core.py:1] z", "EngineCore", "INFO", "z"),
        ("Loading:   0%\rLoading: 100%", "", "", "Loading: 100%"),
        ("INFO:     Application startup complete.", "", "", "INFO:     Application startup complete."),
        ("", "", "", ""),
    ],
)
def test_prefixes_are_split_off(raw: str, process: str, level: str, text: str) -> None:
    line = parse_line(raw)
    assert (line.process, line.level, line.text) == (process, level, text)


@given(st.text(max_size=300))
def test_any_text_parses(raw: str) -> None:
    assert isinstance(parse_line(raw).text, str)


def test_names_of_phases_are_unique() -> None:
    names = [name for name, _ in MARKERS]
    assert len(names) == len(set(names))


def test_a_marker_seen_twice_counts_once() -> None:
    tracker = PhaseTracker(0.0)
    line = parse_line("(Worker_TP0 pid=1) INFO 12-01 09:07:56 [r.py:1] Starting to load model /m...")
    assert tracker.observe(line, 1.0) == "load_weights"
    assert tracker.observe(line, 2.0) is None
