"""Failure classes from evidence; the logs are excerpts of real runs of vLLM 0.32 on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotuner.core.trial import OutcomeClass
from autotuner_worker.engines.classify import RULES, Evidence, LogRecords, Record, RecordKind, Stage, classify

LOGS = Path(__file__).parent / "golden" / "logs"
START, SERVING = Stage.START, Stage.SERVING
C = OutcomeClass


def records(text: str) -> tuple[Record, ...]:
    """Return the records of a log."""
    found = LogRecords()
    for line in text.splitlines():
        found.feed(line)
    return found.all()


def from_log(name: str, stage: Stage = START, exit_code: int | None = 1, memory_kills: int = 0) -> Evidence:
    """Return the evidence of a kept log."""
    text = (LOGS / f"{name}.txt").read_text(encoding="utf-8")
    return Evidence(stage=stage, exit_code=exit_code, memory_kills=memory_kills, records=records(text))


@pytest.mark.parametrize(
    ("log", "exit_code", "outcome", "words"),
    [
        ("unknown_flag", 2, C.INFEASIBLE_CONFIG, "unrecognized arguments: --num-scheduler-steps"),
        ("bad_choice", 2, C.INFEASIBLE_CONFIG, "argument --kv-cache-dtype: invalid choice: 'nonsense'"),
        (
            "tokens_below_seqs",
            1,
            C.INFEASIBLE_CONFIG,
            "max_num_batched_tokens (64) must be greater than or equal to max_num_seqs (128).",
        ),
        (
            "bad_block_size",
            1,
            C.INFEASIBLE_CONFIG,
            "block_size 16 is not accepted by the attention backend, which takes CPU_ATTN",
        ),
        ("missing_package", 1, C.INFEASIBLE_CONFIG, "arctic-inference"),
        ("kv_too_small", 1, C.OOM_AT_START, "lower max_model_len to 384"),
        ("kv_none", 1, C.OOM_AT_START, "no memory is left for the KV cache"),
        ("kv_above_memory", 1, C.OOM_AT_START, "lower kv_cache_memory_bytes"),
        ("utilization_too_low", 1, C.OOM_AT_START, "raise it"),
        ("utilization_too_high", 1, C.OOM_AT_START, "lower it"),
        ("allocator_limit", 1, C.OOM_AT_START, "the host ran out of memory"),
        ("kernel_error", 1, C.CRASHED, "static_scaled_fp8_quant"),
        ("missing_model", 1, C.INFRASTRUCTURE, "the model cannot be found"),
        ("port_in_use", 1, C.INFRASTRUCTURE, "port is already in use"),
    ],
)
def test_failures_at_start(log: str, exit_code: int, outcome: OutcomeClass, words: str) -> None:
    fault = classify(from_log(log, exit_code=exit_code))
    assert (fault.outcome, words in fault.message) == (outcome, True), fault
    assert "\n" not in fault.message
    assert f"exit code: {exit_code}" in fault.evidence


def test_the_length_that_would_fit_is_a_hint() -> None:
    assert classify(from_log("kv_too_small")).hint == {"max_model_len": 384.0}


@pytest.mark.parametrize("log", ["core_killed", "worker_killed"])
def test_a_killed_process_is_a_crash_unless_the_kernel_counted_it(log: str) -> None:
    assert classify(from_log(log, SERVING, exit_code=0)).outcome is C.CRASHED
    assert classify(from_log(log, SERVING, exit_code=0, memory_kills=1)).outcome is C.OOM_UNDER_LOAD
    assert classify(from_log(log, START, exit_code=1, memory_kills=1)).outcome is C.OOM_AT_START


def test_the_signal_is_named() -> None:
    line = "(EngineCore pid=9) ERROR 12-01 10:00:00 [multiproc_executor.py:315] Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor."
    fault = classify(Evidence(stage=START, exit_code=1, records=records(line)))
    assert fault.outcome is C.CRASHED
    assert "signal 9" in fault.message


def test_a_cause_outweighs_the_memory_counter_of_another_process() -> None:
    fault = classify(from_log("tokens_below_seqs", memory_kills=1))
    assert fault.outcome is C.INFEASIBLE_CONFIG


@pytest.mark.parametrize(
    ("line", "outcome"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 39.39 GiB", C.OOM_AT_START),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", C.OOM_AT_START),
        ("RuntimeError: CUDA error: out of memory", C.OOM_AT_START),
        ("ValueError: Free memory on device cuda:0 (3.1/39.39 GiB) on startup is less than desired GPU memory utilization (0.92, 36.2 GiB).", C.OOM_AT_START),
        ("MemoryError", C.OOM_AT_START),
        ("OSError: [Errno 28] No space left on device: '/cache/x'", C.INFRASTRUCTURE),
        ("ModuleNotFoundError: No module named 'flashinfer'", C.INFEASIBLE_CONFIG),
        ("NotImplementedError: FP8 KV cache is not supported on this device", C.INFEASIBLE_CONFIG),
        ("RuntimeError: the disk mentions CUDA out of memory. somewhere inside", C.CRASHED),
        ("SomethingNewError: never seen before", C.CRASHED),
    ],
)  # fmt: skip
def test_types_and_beginnings_decide(line: str, outcome: OutcomeClass) -> None:
    prefixed = f"(Worker_TP0 pid=77) ERROR 12-01 10:00:00 [multiproc_executor.py:1063] {line}"
    for text in (line, prefixed):
        assert classify(Evidence(stage=START, exit_code=1, records=records(text))).outcome is outcome


def test_out_of_memory_while_serving() -> None:
    line = "(EngineCore pid=8) ERROR 12-01 10:00:00 [core.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB."
    assert classify(Evidence(stage=SERVING, exit_code=0, records=records(line))).outcome is C.OOM_UNDER_LOAD


def test_a_clients_mistake_does_not_explain_a_death_while_serving() -> None:
    log = (
        "(APIServer pid=1) ERROR 12-01 10:00:00 [serving.py:1] ValueError: This model's maximum context length is 512 tokens.\n"
        "(APIServer pid=1) WARNING 12-01 10:00:09 [core_client.py:817] [shutdown] MPClient: engine core exited unexpectedly; starting cleanup\n"
    )
    fault = classify(Evidence(stage=SERVING, exit_code=0, records=records(log)))
    assert fault.outcome is C.CRASHED
    assert "killed" in fault.message


def test_no_evidence_is_a_crash_that_says_so() -> None:
    fault = classify(Evidence(stage=START, exit_code=0, phase="kv_cache"))
    assert fault.outcome is C.CRASHED
    assert "without saying why in start-up phase kv_cache (exit code 0): look at the end of its log" in fault.message
    assert "(exit code 3)" in classify(Evidence(stage=START, exit_code=3)).message
    assert "(signal 15)" in classify(Evidence(stage=START, exit_code=-15)).message
    assert "(exit code unknown)" in classify(Evidence(stage=START)).message


def test_words_inside_a_line_are_no_records() -> None:
    assert records("INFO 12-01 10:00:00 [a.py:1] we handle ValueError: gracefully\nwarning: vllm: error: x") == ()


def test_the_last_rule_matches_everything() -> None:
    assert RULES[-1].types == ".*"
    assert RULES[-1].message == ""


def test_many_records_stay_bounded() -> None:
    found = LogRecords()
    for number in range(10_000):
        found.feed(f"ValueError: number {number}")
    kept = found.all()
    assert len(kept) <= 80
    assert kept[0].message == "number 0"
    assert kept[-1].message == "number 9999"


@given(st.lists(st.text(max_size=200), max_size=20), st.sampled_from(Stage), st.integers(-20, 3), st.integers(0, 2))
def test_any_output_gives_an_answer(lines: list[str], stage: Stage, exit_code: int, kills: int) -> None:
    found = LogRecords()
    for line in lines:
        found.feed(line)
    fault = classify(Evidence(stage=stage, exit_code=exit_code, memory_kills=kills, records=found.all()))
    assert fault.message


@given(st.text(max_size=300), st.from_regex(r"[A-Z][a-z]{1,9}(Error|Exception)", fullmatch=True))
def test_any_exception_gives_a_sentence(message: str, name: str) -> None:
    record = Record(kind=RecordKind.EXCEPTION, name=name, message=message, process="Worker")
    for stage in Stage:
        assert classify(Evidence(stage=stage, exit_code=1, records=(record,))).message
