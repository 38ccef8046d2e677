"""A stand-in for the engine's program: ``vllm_stand_in.py MODE serve MODEL --config F --host H --port P``.

Prints what vLLM prints, answers like its server or misbehaves as the mode says, and offers the live routes.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LIMITS = {"max_num_seqs": 32, "max_num_batched_tokens": 1024, "long_prefill_token_threshold": 0}
BOUNDS = {**LIMITS, "long_prefill_token_threshold": 512}
MODE = sys.argv[1]
RUNNING = {"count": 0, "resets": 0, "healthy": True}
FOREVER = threading.Event()


def state() -> dict[str, Any]:
    """Return the live state."""
    effective = {"scheduler_config.max_num_seqs": 32, "scheduler_config.async_scheduling": False}
    return {
        "hot": True,
        "limits": LIMITS,
        "bounds": BOUNDS,
        "running": RUNNING["count"],
        "waiting": 0,
        "effective": effective,
    }


class Handler(BaseHTTPRequestHandler):
    """The routes."""

    def log_message(self, *_: object) -> None:
        """Stay silent."""

    def do_GET(self) -> None:
        """Serve health, metrics and state."""
        if self.path == "/health":
            self.reply(200 if RUNNING["healthy"] else 503, "")
        elif self.path == "/metrics":
            self.reply(
                200,
                f'# TYPE a gauge\nvllm:num_requests_running{{engine="0"}} {RUNNING["count"]}\nvllm:num_requests_waiting 0\n',
            )
        elif self.path == "/autotuner/state" and MODE != "plain":
            self.reply(200, state())
        else:
            self.reply(404, "")

    def do_POST(self) -> None:
        """Serve completions and changes."""
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.path == "/v1/completions":
            self.complete()
        elif self.path == "/autotuner/limits":
            for name, value in json.loads(body).items():
                LIMITS[name] = min(value, BOUNDS[name])
            self.reply(200, state())
        elif self.path == "/autotuner/reset_prefix_cache":
            RUNNING["resets"] += 1
            self.reply(200, {"success": RUNNING["resets"] > 1})
        elif self.path == "/tell":
            RUNNING.update(json.loads(body))
            self.reply(200, "")

    def complete(self) -> None:
        """Answer a completion as the mode says."""
        good = {"choices": [{"text": " a b"}], "usage": {"completion_tokens": 2}}
        answers: dict[str, tuple[int, Any]] = {
            "html": (200, "<html>"),
            "empty": (200, {"choices": [{"text": ""}], "usage": {"completion_tokens": 0}}),
            "error": (400, {"error": "no such model"}),
        }
        self.reply(*answers.get(MODE, (200, good)))

    def reply(self, status: int, body: Any) -> None:
        """Send a text or a JSON answer."""
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main() -> None:
    """Behave as the mode says."""
    host, port = sys.argv[sys.argv.index("--host") + 1], int(sys.argv[sys.argv.index("--port") + 1])
    print("(APIServer pid=1) INFO 12-01 09:07:41 [api_utils.py:286] non-default args: {}", flush=True)
    print(
        "(EngineCore pid=2) INFO 12-01 09:07:47 [core.py:133] Initializing a V1 LLM engine (v0) with config: x",
        flush=True,
    )
    if MODE == "exits":
        print(
            "(EngineCore pid=2) ERROR 12-01 09:07:47 [core.py:1] ValueError: No available memory for the cache blocks.",
            flush=True,
        )
        sys.exit(1)
    if MODE == "never":
        FOREVER.wait()
    if MODE == "floods":
        for _ in range(100):
            print("x" * (1 << 20))
    if MODE == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    server = ThreadingHTTPServer((host, port), Handler)
    print("INFO:     Application startup complete.", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
