"""The winner as command, file, drop-in and args: golden texts, traps, refusals."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest
import yaml

from autotuner.core.results import VerdictKind
from autotuner.core.space import EngineDescription, EngineFlag, Value
from autotuner.errors import Refused
from autotuner.report.export import (
    ExportFormat,
    config_yaml,
    export,
    kubernetes_args,
    labelled,
    serve_argv,
    serve_command,
    systemd_dropin,
)
from tests.fakes.results import infeasible_result, simulated_result, study_result, unmeasured_result

ENGINE = EngineDescription(
    kind="vllm",
    version="0.32.0",
    platform="cpu",
    flags=(
        EngineFlag(name="enable_prefix_caching", kind="bool", negatable=True),
        EngineFlag(name="enforce_eager", kind="bool", negatable=True),
        EngineFlag(name="disable_log_stats", kind="bool"),
    ),
)


def test_golden_command() -> None:
    assert export(study_result(), ExportFormat.ARGV) == (
        "# chat on an 8B model, measured with vllm 0.32.0. Change to the winner: "
        "+20.0 % (95% interval +17.1 % to +22.9 %) output throughput.\n"
        "OMP_NUM_THREADS=8 vllm serve meta-llama/Llama-3.1-8B-Instruct \\\n"
        "  --no-enable-prefix-caching \\\n"
        "  --gpu-memory-utilization 0.9 \\\n"
        "  --max-model-len 2048 \\\n"
        "  --max-num-batched-tokens 4096 \\\n"
        "  --max-num-seqs 96 \\\n"
        "  --seed 0 \\\n"
        '  --speculative-config \'{"method":"ngram","num_speculative_tokens":3}\'\n'
    )


def test_golden_yaml() -> None:
    assert export(study_result(), ExportFormat.YAML).split("\n", 2)[2] == (
        "no-enable-prefix-caching: true\n"
        "gpu-memory-utilization: 0.9\n"
        "max-model-len: 2048\n"
        "max-num-batched-tokens: 4096\n"
        "max-num-seqs: 96\n"
        "seed: 0\n"
        "speculative-config:\n"
        "  method: ngram\n"
        "  num_speculative_tokens: 3\n"
    )


def test_golden_systemd() -> None:
    assert export(study_result(), ExportFormat.SYSTEMD, executable="/opt/vllm/bin/vllm").split("\n", 2)[2] == (
        "[Service]\n"
        "Environment=OMP_NUM_THREADS=8\n"
        "ExecStart=\n"
        "ExecStart=/opt/vllm/bin/vllm serve meta-llama/Llama-3.1-8B-Instruct \\\n"
        "    --no-enable-prefix-caching \\\n"
        "    --gpu-memory-utilization 0.9 \\\n"
        "    --max-model-len 2048 \\\n"
        "    --max-num-batched-tokens 4096 \\\n"
        "    --max-num-seqs 96 \\\n"
        "    --seed 0 \\\n"
        '    --speculative-config "{\\"method\\":\\"ngram\\",\\"num_speculative_tokens\\":3}"\n'
    )


def test_golden_kubernetes() -> None:
    document = yaml.safe_load(export(study_result(), ExportFormat.KUBERNETES))
    assert document["env"] == [{"name": "OMP_NUM_THREADS", "value": "8"}]
    assert document["args"] == list(serve_argv(study_result().winner.config, "meta-llama/Llama-3.1-8B-Instruct"))[2:]  # type: ignore[union-attr]
    assert all(isinstance(word, str) for word in document["args"])


def test_booleans_lists_json_and_signs() -> None:
    config: dict[str, Value] = {
        "enable_prefix_caching": False,
        "enforce_eager": True,
        "disable_log_stats": False,
        "cudagraph_capture_sizes": "1, 2,4",
        "hf_overrides": '{"a": [1, 2]}',
        "kv_offset": -1,
        "compilation_config.mode": 3,
        "compilation_config.pass_config.fuse": True,
    }
    assert serve_argv(config, "m", ENGINE)[3:] == (
        "--compilation-config",
        '{"mode":3,"pass_config":{"fuse":true}}',
        "--cudagraph-capture-sizes",
        "1",
        "2",
        "4",
        "--no-enable-prefix-caching",
        "--enforce-eager",
        "--hf-overrides",
        '{"a":[1,2]}',
        "--kv-offset=-1",
    )
    document = yaml.safe_load(config_yaml(config, ENGINE))
    assert document["no-enable-prefix-caching"] is True
    assert document["enforce-eager"] is True
    assert not {"enable-prefix-caching", "disable-log-stats", "no-disable-log-stats"} & document.keys()
    assert document["compilation-config"] == {"mode": 3, "pass_config": {"fuse": True}}
    assert document["cudagraph-capture-sizes"] == ["1", "2", "4"]


def test_options_that_are_off_leave_nothing_behind() -> None:
    config: dict[str, Value] = {
        "speculative_config.method": "none",
        "speculative_config.num_speculative_tokens": 3,
        "quantization": "none",
    }
    assert serve_argv(config, "m", ENGINE) == ("vllm", "serve", "m")
    assert config_yaml(config, ENGINE) == "{}\n"


def test_the_shell_reads_back_what_was_meant() -> None:
    model = '/models/it\'s "mine" $HOME %i'
    words = shlex.split(serve_command({"max_num_seqs": 4}, model, ENGINE, {"A": "b c"}).replace("\\\n", " "))
    assert words == ["A=b c", "vllm", "serve", model, "--max-num-seqs", "4"]


def test_systemd_expands_nothing() -> None:
    text = systemd_dropin(("/opt/v%1/vllm", "serve", 'a "b" $HOME %i\\x'), {"NAME": "50%  $x"})
    assert 'ExecStart=/opt/v%%1/vllm serve "a \\"b\\" $$HOME %%i\\\\x"' in text
    assert 'Environment="NAME=50%%  $x"' in text


def test_kubernetes_expands_nothing() -> None:
    document = yaml.safe_load(kubernetes_args(("vllm", "serve", "$(HOME)/m", "--seed", "0")))
    assert document == {"args": ["$$(HOME)/m", "--seed", "0"]}


@pytest.mark.parametrize("form", list(ExportFormat))
def test_a_simulated_result_is_never_exported(form: ExportFormat) -> None:
    with pytest.raises(Refused, match="simulated"):
        export(simulated_result(), form)
    shown = labelled(simulated_result(), form)
    assert all(line.startswith("SIMULATED| ") for line in shown.splitlines())


def test_nothing_or_a_point_over_its_limits_is_not_exported() -> None:
    for result in (unmeasured_result(), infeasible_result()):
        with pytest.raises(Refused):
            export(result, ExportFormat.ARGV)
    with pytest.raises(Refused):
        labelled(unmeasured_result(), ExportFormat.ARGV)


@pytest.mark.parametrize("form", list(ExportFormat))
def test_what_is_written_in_any_case(form: ExportFormat) -> None:
    assert labelled(study_result(), form) == export(study_result(), form)
    over = labelled(infeasible_result(), form)
    assert all(line.startswith("OVER BUDGET| ") for line in over.splitlines())


def test_keeping_the_baseline_exports_the_baseline() -> None:
    result = study_result()
    verdict = replace(result.verdict, kind=VerdictKind.NO_DIFFERENCE)
    text = export(replace(result, winner=result.baseline, verdict=verdict), ExportFormat.ARGV)
    assert "Keep what you have" in text
    assert "--max-num-seqs" not in text


def test_json_flags_are_json() -> None:
    argv = serve_argv({"speculative_config.method": "ngram", "speculative_config.x": 1.5}, "m")
    assert json.loads(argv[-1]) == {"method": "ngram", "x": 1.5}


@pytest.mark.parametrize("form", list(ExportFormat))
def test_an_undecided_candidate_is_refused_and_labelled(form: ExportFormat) -> None:
    result = study_result()
    undecided = replace(result, verdict=replace(result.verdict, kind=VerdictKind.INCONCLUSIVE))
    with pytest.raises(Refused, match="nothing was decided"):
        export(undecided, form)
    assert all(line.startswith("UNPROVEN| ") for line in labelled(undecided, form).splitlines())
    kept = replace(undecided, winner=result.baseline)
    assert labelled(kept, form) == export(kept, form)
