"""Load clients to compare: this project's generator, vLLM's Python client, and its Rust client where it is installed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
from common import vllm_environment

from autotuner.core.study import MeasurePlan
from autotuner.core.trial import Measurement
from autotuner.core.workload import Lengths, LoadMode, Workload
from autotuner.observe.evaluate import throughput
from autotuner.observe.records import Records
from autotuner_worker.ports import Segment
from autotuner_worker.workloads.generator import HttpLoadGenerator
from autotuner_worker.workloads.selfcheck import Thresholds

__all__ = ["CpuWatch", "Load", "OurClient", "Run", "VllmClient", "descendants", "server_ttft"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The same load for every client: so many requests, by rate (open loop) or by concurrency (closed loop)."""

    base_url: str
    model: str
    """The name to send in requests."""
    tokenizer: str
    vocabulary: int = 4096
    requests: int = 200
    rate: float | None = None
    concurrency: int = 16
    input_tokens: int = 128
    output_tokens: int = 32
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one run of one client found; times in seconds."""

    completed: int
    throughput: float
    """Generated tokens per second."""
    ttft_p50: float
    ttft_p99: float
    measurement: Measurement | None = None
    records: Records | None = field(default=None, compare=False)


class CpuWatch:
    """Samples the CPU time of every process that this one starts while it is watched, and of this one.

    So the cost of a load can be told for the time of the load alone, without what start-up and results cost.
    """

    def __init__(self, ignored: frozenset[int]) -> None:
        """Leave out the processes *ignored*, such as the server's."""
        self._ignored = ignored
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.times: list[float] = []
        self.seconds: list[float] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        latest: dict[int, float] = {}
        own_thread = time.pthread_getcpuclockid(threading.get_ident())
        while not self._over.wait(0.05):
            latest[0] = time.process_time() - time.clock_gettime(own_thread)
            for pid in descendants(os.getpid()) - self._ignored:
                with contextlib.suppress(OSError):
                    # The CPU clock of another process, as the kernel numbers it.
                    latest[pid] = time.clock_gettime((~pid << 3) | 2)
            self.times.append(time.monotonic())
            self.seconds.append(sum(latest.values()))

    def per_request(self, received: Sequence[float]) -> float:
        """Return CPU seconds per request over the middle 80 % of these times at which the server received them."""
        ordered = sorted(received)
        first, last = len(ordered) // 10, len(ordered) * 9 // 10
        used = np.interp([ordered[first], ordered[last]], self.times, self.seconds)
        return float(used[1] - used[0]) / (last - first)


def descendants(pid: int) -> frozenset[int]:
    """Return the processes that come from *pid*."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text("utf-8").split():
                found |= {int(child), *descendants(int(child))}
    return frozenset(found)


class OurClient:
    """This project's load generator, its parent's share of CPU time included."""

    name = "ours"

    def run(self, load: Load) -> Run:
        open_loop = load.rate is not None
        workload = Workload(
            mode=LoadMode.OPEN if open_loop else LoadMode.CLOSED,
            rate=load.rate or 0.0,
            concurrency=0 if open_loop else load.concurrency,
            input_tokens=Lengths(mean=load.input_tokens),
            output_tokens=Lengths(mean=load.output_tokens),
            temperature=0.0,
        )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "records.npz")
            segment = Segment(
                base_url=load.base_url,
                model_name=load.model,
                workload=workload,
                measure=MeasurePlan(),
                limits=(),
                seed=load.seed,
                vocabulary=load.vocabulary,
                records_path=path,
            )
            # A benchmark reports how late sends were; it does not discard the run for it.
            generator = HttpLoadGenerator(1, Thresholds(late_floor=10.0, stall=10.0, late_share=10.0))
            measured = asyncio.run(generator.run_exact(segment, lambda *_: None, load.requests))
            records = Records.read(path)
        return Run(
            completed=measured.ok,
            throughput=throughput(measured),
            ttft_p50=measured.latency["ttft_p50"].value,
            ttft_p99=measured.latency["ttft_p99"].value,
            measurement=measured,
            records=records,
        )


class VllmClient:
    """``vllm bench serve`` of the engine's environment (``command`` = the program and its first arguments)."""

    def __init__(self, name: str, command: Sequence[str], extra_environment: Sequence[str] = ()) -> None:
        self.name, self._command = name, list(command)
        self._environment = vllm_environment(extra_environment)

    def run(self, load: Load) -> Run:
        with tempfile.TemporaryDirectory() as folder:
            argv = [*self._command, *self._arguments(load), "--result-dir", folder, "--result-filename", "result.json"]
            log = Path(folder, "log")
            with log.open("wb") as output:
                code = subprocess.run(
                    argv, env=self._environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False
                ).returncode
            if code != 0:
                tail = log.read_text("utf-8", errors="replace").splitlines()[-15:]
                raise SystemExit("\n".join([f"{' '.join(argv)} ended with {code}:", *tail]))
            result = json.loads(Path(folder, "result.json").read_text("utf-8"))
        return Run(
            completed=int(result["completed"]),
            throughput=float(result["output_throughput"]),
            ttft_p50=float(result["p50_ttft_ms"]) / 1e3,
            ttft_p99=float(result["p99_ttft_ms"]) / 1e3,
        )

    @staticmethod
    def _arguments(load: Load) -> list[str]:
        rate = "inf" if load.rate is None else f"{load.rate:g}"
        bound = [] if load.rate is not None else ["--max-concurrency", str(load.concurrency)]
        return [
            *("bench", "serve", "--backend", "openai", "--base-url", load.base_url, "--endpoint", "/v1/completions"),
            *("--model", load.model, "--tokenizer", load.tokenizer, "--dataset-name", "random"),
            *("--random-input-len", str(load.input_tokens), "--random-output-len", str(load.output_tokens)),
            *("--num-prompts", str(load.requests), "--request-rate", rate, *bound, "--seed", str(load.seed)),
            *("--ignore-eos", "--temperature", "0", "--percentile-metrics", "ttft,tpot,itl,e2el"),
            *("--metric-percentiles", "50,99", "--save-result", "--disable-tqdm"),
        ]


def server_ttft(rows: Sequence[dict[str, float]]) -> float:
    """Return the median time to first token by the server's own record, in seconds."""
    return float(np.median([row["first"] - row["received"] for row in rows if "first" in row]))
