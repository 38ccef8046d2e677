"""``autotuner-worker``: serves a controller, or tells what this host's engine and hardware are."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from autotuner import __version__
from autotuner.core.workers import HostReport
from autotuner.errors import AutotunerError

__all__ = ["main"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="autotuner-worker", description=__doc__)
    parser.add_argument("--version", action="version", version=f"autotuner-worker {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="dial the controller and run trials until dismissed")
    run.add_argument("--config", type=Path, required=True, help="the worker's configuration (YAML)")
    describe = commands.add_parser("describe", help="print what the engine and the host are, as JSON")
    describe.add_argument("--config", type=Path, required=True, help="the worker's configuration (YAML)")
    describe.add_argument("--model", help="a model path or name to ask the engine about")
    model = commands.add_parser("model", help="make a small model with random weights, once")
    model.add_argument("--config", type=Path, required=True, help="the worker's configuration (YAML)")
    model.add_argument("--out", type=Path, required=True, help="the model's folder")
    for command in (run, describe, model):
        command.add_argument("--parent-fd", type=int, help="end when this inherited pipe ends")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run the program; end with the exit code of the error's class."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        sys.exit(_run(arguments))
    except AutotunerError as error:
        print(f"autotuner-worker: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


def _run(arguments: argparse.Namespace) -> int:
    # Imported here so that --help and --version answer at once.
    from autotuner.wire.codec import Codec
    from autotuner_worker.agent.bootstrap import make_model, report_host, serve, while_wanted
    from autotuner_worker.agent.config import load_config

    config = load_config(arguments.config)
    if arguments.command == "describe":
        report = asyncio.run(while_wanted(report_host(config, arguments.model), arguments.parent_fd))
        print(Codec[HostReport](HostReport).dumps(report))
        return 0
    if arguments.command == "model":
        asyncio.run(while_wanted(make_model(config, arguments.out), arguments.parent_fd))
        return 0
    os.environ.pop("NOTIFY_SOCKET", None)
    asyncio.run(serve(config, arguments.parent_fd))
    return 0


if __name__ == "__main__":
    main()
