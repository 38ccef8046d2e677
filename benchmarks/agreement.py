"""Do this project's load generator and vLLM's own client measure the same?  Side by side on one real vLLM.

Pairs of runs, interleaved (the order alternates), send the same number of requests with the same lengths at the same
concurrency to the same server.  The difference of the two clients is compared with what each differs from itself from
run to run: they agree when the interval of the mean paired difference contains zero, or when the difference is smaller
than the run-to-run noise (the larger of the two clients' standard deviations).

    python benchmarks/agreement.py [--model MODEL] [--engine-command "…/vllm serve"] [--base-url URL --served-name NAME]
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from clients import Load, OurClient, Run, VllmClient
from common import Report, engine_venv, figure, small_model, vllm_environment

START_TIMEOUT = 600.0
# A small, quick start: the clients are compared, not the engine.
ENGINE_ARGS = "--max-model-len 1024 --enforce-eager --no-enable-prefix-caching --kv-cache-memory-bytes 268435456"
# Two-sided 95 % points of Student's t by degrees of freedom.
STUDENT = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def engine(command: Sequence[str], model: str, flags: Sequence[str], extra: Sequence[str]) -> Iterator[str]:
    """Start vLLM in a process group of its own, yield its address when it answers, and end the whole group."""
    port = free_port()
    argv = [*command, model, *flags, "--host", "127.0.0.1", "--port", str(port)]
    base_url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "engine.log")
        with log.open("wb") as output:
            process = subprocess.Popen(
                argv,
                env=vllm_environment(extra),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            wait_until_ready(process, base_url, log)
            yield base_url
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_until_ready(process: subprocess.Popen[bytes], base_url: str, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        with contextlib.suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(f"{base_url}/health", timeout=5).close()  # noqa: S310 (our own server)
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
            break
    lines = log.read_text("utf-8", errors="replace").splitlines()
    causes = [line for line in lines if "Error" in line]
    raise SystemExit("\n".join(["vLLM did not start:", *(causes or lines)[-10:]]))


def compare(report: Report, key: str, unit: str, ours: Sequence[float], theirs: Sequence[float]) -> None:
    """Report both clients' figures, their paired difference with its interval, and whether it is within the noise."""
    report.add(f"{key}_ours", figure(ours, unit))
    report.add(f"{key}_vllm", figure(theirs, unit))
    middle = statistics.fmean(theirs)
    differences = [(mine - other) / middle for mine, other in zip(ours, theirs, strict=True)]
    mean = statistics.fmean(differences)
    half = STUDENT.get(len(differences) - 1, 2.0) * statistics.stdev(differences) / math.sqrt(len(differences))
    noise = max(statistics.stdev(ours), statistics.stdev(theirs)) / middle
    agrees = abs(mean) <= max(half, noise)
    shown = figure(differences, "of vLLM's", f"mean {mean:+.3f} within ±{half:.3f} (95 %) or the noise {noise:.3f}")
    report.add(f"{key}_difference", replace(shown, value=mean, holds=agrees))
    report.add(f"{key}_run_to_run_noise", figure([noise], "of vLLM's"))


def run_pairs(options: argparse.Namespace, base_url: str, served: str) -> tuple[list[Run], list[Run]]:
    command = shlex.split(options.client_command) if options.client_command else [str(engine_venv() / "bin" / "vllm")]
    theirs_client, ours_client = VllmClient("vllm_python", command, options.env), OurClient()
    load = Load(
        base_url=base_url,
        model=served,
        tokenizer=options.model,
        requests=options.requests,
        concurrency=options.concurrency,
        input_tokens=128,
        output_tokens=64,
    )
    ours_client.run(replace(load, seed=10_000))  # The first requests of a server are slower: they belong to nobody.
    ours: list[Run] = []
    theirs: list[Run] = []
    for pair in range(options.pairs):
        present = replace(load, seed=pair + 1)
        turns: list[tuple[OurClient | VllmClient, list[Run]]] = [(ours_client, ours), (theirs_client, theirs)]
        for client, found in turns if pair % 2 == 0 else turns[::-1]:
            found.append(client.run(present))
            latest = found[-1]
            print(
                f"pair {pair + 1} {client.name}: {latest.throughput:.1f} tok/s, TTFT p50 {latest.ttft_p50 * 1e3:.1f} ms, "
                f"p99 {latest.ttft_p99 * 1e3:.1f} ms, {latest.completed} answers",
                flush=True,
            )
    return ours, theirs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(small_model()), help="model to serve, and tokenizer of vLLM's client")
    parser.add_argument("--engine-command", default="", help="how to start vLLM (default: of the engine's environment)")
    parser.add_argument("--engine-args", default=ENGINE_ARGS, help="flags for it (default: %(default)s)")
    parser.add_argument("--base-url", default="", help="a server that runs already, instead of starting one")
    parser.add_argument("--served-name", default="", help="the model's name at that server (default: --model)")
    parser.add_argument("--client-command", default="", help="vLLM's program (default: of the engine's environment)")
    parser.add_argument("--env", action="append", default=[], metavar="KEY=VALUE", help="for vLLM's programs")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--requests", type=int, default=160)
    parser.add_argument("--concurrency", type=int, default=16)
    options = parser.parse_args()
    report = Report("agreement")
    command = shlex.split(options.engine_command) or [str(engine_venv() / "bin" / "vllm"), "serve"]
    flags = shlex.split(options.engine_args)
    with contextlib.ExitStack() as stack:
        base_url = options.base_url or stack.enter_context(engine(command, options.model, flags, options.env))
        ours, theirs = run_pairs(options, base_url, options.served_name or options.model)
    compare(report, "throughput", "tok/s", [run.throughput for run in ours], [run.throughput for run in theirs])
    for key in ("ttft_p50", "ttft_p99"):
        mine = [float(getattr(run, key)) * 1e3 for run in ours]
        compare(report, f"{key}_ms", "ms", mine, [float(getattr(run, key)) * 1e3 for run in theirs])
    report.note(
        f"{options.pairs} interleaved pairs of {options.requests} requests at concurrency {options.concurrency}"
    )
    report.write()
    return 0 if report.holds else 1


if __name__ == "__main__":
    sys.exit(main())
