"""Engine descriptions and devices for the tests of the settings."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from autotuner.core.space import EngineDescription, EngineFlag, Value
from autotuner.core.study import Hardware
from autotuner.errors import Problem, SpaceError, StudyFileError
from autotuner.settings.build import BuiltStudy, build_study
from autotuner.settings.loader import parse_study

STUDIES = Path(__file__).parents[2] / "configs" / "studies"
_DATA = Path(__file__).parent / "data" / "vllm_cpu_description.json"

CPU = Hardware(device="cpu", name="two cores", compute_units=2, memory_bytes=24 * 2**30)
A100 = Hardware(
    device="cuda", name="NVIDIA A100-PCIE-40GB", compute_units=108, memory_bytes=40 * 2**30, compute_capability=8.0
)
T4 = Hardware(device="cuda", name="Tesla T4", compute_units=40, memory_bytes=16 * 2**30, compute_capability=7.5)
H200 = Hardware(device="cuda", name="NVIDIA H200", compute_units=132, memory_bytes=141 * 10**9, compute_capability=9.0)
H200X8 = dataclasses.replace(H200, count=8, nvlink=True)

MODEL_7B: dict[str, Value] = {
    "architecture": "Qwen2ForCausalLM",
    "max_position_embeddings": 131072,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "num_hidden_layers": 28,
    "hidden_size": 3584,
    "is_moe": False,
    "has_mtp": False,
    "uses_mla": False,
    "weight_bytes": 15_200_000_000,
}
DEEPSEEK: dict[str, Value] = {
    "architecture": "DeepseekV3ForCausalLM",
    "max_position_embeddings": 163840,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "is_moe": True,
    "has_mtp": True,
    "uses_mla": True,
    "quantization": "fp8",
    "weight_bytes": 688_000_000_000,
}


def cpu_description(**model: Value) -> EngineDescription:
    """Return what vLLM 0.32 for CPUs said about itself, for a small Llama."""
    data = json.loads(_DATA.read_text())
    flags = tuple(
        EngineFlag(
            **{**flag, "choices": tuple(flag["choices"]), "aliases": tuple(flag["aliases"])},
        )
        for flag in data.pop("flags")
    )
    return EngineDescription(**{**data, "flags": flags, "model": {**data["model"], **model}})


def cuda_description(model: dict[str, Value] | None = None, *, large: bool = True) -> EngineDescription:
    """Return the same flags on NVIDIA's platform, with its defaults for large or small GPUs."""
    defaults: dict[str, Value] = {
        "max_num_seqs": 1024 if large else 256,
        "max_num_batched_tokens": 8192 if large else 2048,
        "async_scheduling": True,
        "enable_prefix_caching": True,
        "enable_chunked_prefill": True,
    }
    no_ops = {"disable_cascade_attn": "accepted without effect"}
    return dataclasses.replace(
        cpu_description(), platform="cuda", context_defaults=defaults, no_ops=no_ops, model=model or MODEL_7B
    )


def build(
    text: str, description: EngineDescription | None = None, hardware: Hardware = CPU, *, name: str = "t"
) -> BuiltStudy:
    """Return the study in *text* (without a name) built against *description*."""
    return build_study(parse_study(f"name: {name}\n{text}"), description or cpu_description(), hardware)


def file_problems(text: str, directory: Path | None = None) -> dict[str, Problem]:
    """Return the problems of a study file by field; empty when it is accepted."""
    try:
        parse_study(text, directory=directory)
    except StudyFileError as error:
        return {problem.field: problem for problem in error.problems}
    return {}


def space_problems(
    text: str, description: EngineDescription | None = None, hardware: Hardware = CPU
) -> dict[str, Problem]:
    """Return the problems that the engine, model or device have with a study; empty when it is accepted."""
    try:
        build(text, description, hardware)
    except SpaceError as error:
        return {problem.field: problem for problem in error.problems}
    return {}
