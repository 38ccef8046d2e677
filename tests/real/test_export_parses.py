"""The engine's own parser reads the exported command and file as they were meant."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from autotuner.core.space import Config
from autotuner.report.export import config_yaml, serve_argv, serve_command
from tests.real.helpers import parse

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


@pytest.fixture(scope="module")
def parsed(engine_command: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what the engine makes of the argument list, the shell command and the file, in one start of Python."""
    folder = tmp_path_factory.mktemp("export")
    file = folder / "engine.yaml"
    file.write_text(config_yaml(CONFIG), encoding="utf-8")
    shell = shlex.split(serve_command(CONFIG, MODEL).replace("\\\n", " "))
    lines = [list(serve_argv(CONFIG, MODEL))[1:], shell[1:], ["serve", MODEL, "--config", str(file)]]
    return parse(engine_command, lines, folder)


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
