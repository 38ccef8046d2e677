"""What the load generator costs and how exact it is, beside vLLM's own client, against the same fake server.

Every request has 32 paced tokens.  CPU time is sampled over the middle of the load, so that start-up costs nothing; the fake server's own record (when a request was received, when its first token was written) is the truth
that send times and TTFT are compared with.

    python benchmarks/loadgen.py [--tokenizer MODEL] [--client-command "…/vllm"] [--repeats 3]
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import urllib.request
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from clients import CpuWatch, Load, OurClient, Run, VllmClient, descendants, server_ttft
from common import Report, engine_venv, fake_server, figure, small_model

RATE = 40.0
REQUESTS = 400


def fetch(base_url: str, path: str, method: str = "GET") -> list[dict[str, float]]:
    request = urllib.request.Request(base_url + path, method=method)  # noqa: S310 (our own loopback server)
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        value: list[dict[str, float]] = json.load(answer)
    return value


def exactness(run: Run, rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Compare the client's record with the server's, in milliseconds."""
    records = run.records
    assert records is not None
    origin = float(records.meta.labels["monotonic_origin"])
    truth = {int(str(row["id"]).rpartition("-")[2]): row for row in rows}
    received = np.array([truth[index]["received"] for index in records.index])
    ttft = np.array([truth[index]["first"] - truth[index]["received"] for index in records.index])
    late = (received - (records.scheduled + origin)) * 1e3
    bias = (records.first - records.sent - ttft) * 1e3
    return {
        "late_p50": float(np.median(late)),
        "late_p99": float(np.quantile(late, 0.99)),
        "own_late_p99": float(np.quantile(records.sent - records.scheduled, 0.99)) * 1e3,
        "bias_p50": float(np.median(bias)),
        "bias_p99": float(np.quantile(bias, 0.99)),
        "bias_of_median": (float(np.median(records.first - records.sent)) - float(np.median(ttft))) * 1e3,
    }


def watched(client: OurClient | VllmClient, load: Load) -> tuple[Run, list[dict[str, float]], float]:
    """Return the run, the server's record of it, and CPU milliseconds per request."""
    fetch(load.base_url, "/reset", "POST")
    with CpuWatch(descendants(os.getpid())) as watch:
        run = client.run(load)
    rows = fetch(load.base_url, "/records")
    return run, rows, watch.per_request([row["received"] for row in rows]) * 1e3


def measure_ours(report: Report, runs: Sequence[tuple[Run, list[dict[str, float]], float]]) -> None:
    exact = [exactness(run, rows) for run, rows, _ in runs]
    columns = {key: [row[key] for row in exact] for key in exact[0]}
    report.add("cpu_ms_per_request", figure([cost for *_, cost in runs], "ms", at_most=2.0))
    report.add("send_error_p99_ms", figure(columns["late_p99"], "ms", at_most=5.0))
    report.add("send_error_p50_ms", figure(columns["late_p50"], "ms"))
    report.add("send_error_own_record_p99_ms", figure(columns["own_late_p99"], "ms"))
    report.add("ttft_bias_ms", figure([abs(value) for value in columns["bias_of_median"]], "ms", at_most=2.0))
    report.add("ttft_bias_per_request_p50_ms", figure(columns["bias_p50"], "ms"))
    report.add("ttft_bias_per_request_p99_ms", figure(columns["bias_p99"], "ms"))


def others(options: argparse.Namespace) -> list[VllmClient]:
    """Return vLLM's clients that are installed, the Python one first."""
    found: list[VllmClient] = []
    command = shlex.split(options.client_command) if options.client_command else [str(engine_venv() / "bin" / "vllm")]
    if Path(command[0]).exists():
        found.append(VllmClient("vllm_python", command, options.env))
        site = Path(command[0]).resolve().parent.parent / "lib"
        found += [
            VllmClient("vllm_rust", [str(path)], options.env)
            for path in site.glob("python*/site-packages/vllm/vllm-rs")
        ]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", default=str(small_model()), help="model folder for vLLM's client")
    parser.add_argument("--client-command", default="", help="vLLM's program (default: of the engine's environment)")
    parser.add_argument("--env", action="append", default=[], metavar="KEY=VALUE", help="for vLLM's client")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    report = Report("loadgen")
    clients = others(options)
    with fake_server() as base_url:
        load = Load(base_url=base_url, model="fake", tokenizer=options.tokenizer, rate=RATE, requests=REQUESTS)
        ours, theirs = [], defaultdict(list)
        # Interleaved, so that a change of the machine's load meets every client.
        for repeat in range(options.repeats):
            ours.append(watched(OurClient(), replace(load, seed=repeat)))
            for client in clients:
                theirs[client.name].append(watched(client, replace(load, seed=repeat)))
    measure_ours(report, ours)
    for name, runs in theirs.items():
        report.add(f"{name}_cpu_ms_per_request", figure([cost for *_, cost in runs], "ms"))
        biases = [abs(run.ttft_p50 - server_ttft(rows)) * 1e3 for run, rows, _ in runs]
        report.add(f"{name}_ttft_bias_ms", figure(biases, "ms"))
        limit = 0.5 if name == "vllm_python" else None
        shares = [mine / cost for (*_, mine), (*_, cost) in zip(ours, runs, strict=True)]
        report.add(f"cpu_share_of_{name}", figure(shares, "", at_most=limit))
    if not any(client.name == "vllm_python" for client in clients):
        report.note("vLLM's Python client is not installed here: nothing to compare with")
    if not any(client.name == "vllm_rust" for client in clients):
        report.note("vLLM's Rust client is not installed here")
    report.write()
    return 0 if report.holds else 1


if __name__ == "__main__":
    sys.exit(main())
