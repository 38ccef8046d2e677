"""The search space and the study, built from the engine's description of itself."""

from __future__ import annotations

import dataclasses
import re

import pytest

from autotuner.core.budget import LatencyMetric, Limit
from autotuner.core.space import Condition, EngineDescription, Lever, ParameterKind, Value
from autotuner.core.study import Hardware
from autotuner.errors import SpaceError
from autotuner.settings.build import BuiltStudy, build_spec, build_study, explain_space
from autotuner.settings.init import render_init
from autotuner.settings.loader import load_study, parse_study
from autotuner_worker.engines.simulated import describe_simulated
from tests.unit.settings_samples import (
    A100,
    CPU,
    DEEPSEEK,
    H200,
    H200X8,
    MODEL_7B,
    STUDIES,
    T4,
    build,
    cpu_description,
    cuda_description,
    space_problems,
)

LLAMA = {**MODEL_7B, "num_attention_heads": 32, "num_key_value_heads": 8, "weight_bytes": 16_060_000_000}
MACHINES = {
    "quickstart": (cpu_description(), CPU),
    "llama-8b": (cuda_description(LLAMA), H200),
    "deepseek-r1-distill-7b": (cuda_description(large=False), A100),
    "long-context": (cuda_description({**MODEL_7B, "max_position_embeddings": 1_010_000}), H200),
    "deepseek-v3": (cuda_description(DEEPSEEK), H200X8),
}


def reasons(built: BuiltStudy) -> dict[str, str]:
    return {item.name: item.reason for item in built.explanations if not item.searched}


def names(built: BuiltStudy) -> set[str]:
    return {parameter.name for parameter in built.spec.space}


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_ready_studies_build(name: str) -> None:
    description, hardware = MACHINES[name]

    spec = build_spec(load_study(STUDIES / f"{name}.yaml"), description, hardware)

    assert {"max_num_seqs", "max_num_batched_tokens"} <= spec.space.hot_names()
    assert 2 <= len(spec.seeds) <= max(2, min(8, spec.effort.trials // 2))
    for seed in spec.seeds:
        assert spec.space.violations(seed) == {}


def test_every_ready_study_has_a_machine() -> None:
    assert {path.stem for path in STUDIES.glob("*.yaml")} == set(MACHINES)


def test_quickstart_runs_on_a_gpu_as_well() -> None:
    small_model = dict(cpu_description().model)

    spec = build_spec(load_study(STUDIES / "quickstart.yaml"), cuda_description(small_model), H200)

    assert spec.space.fixed == {"enforce_eager": True, "max_model_len": 1024, "kv_cache_memory_bytes": 536_870_912}


def test_deepseek_uses_what_the_model_has() -> None:
    description, hardware = MACHINES["deepseek-v3"]

    built = build_study(load_study(STUDIES / "deepseek-v3.yaml"), description, hardware)

    space = built.spec.space
    assert "MLA" in reasons(built)["block_size"]
    assert "quantised already" in reasons(built)["quantization"]
    base = {"max_num_batched_tokens": 8192, "max_num_seqs": 64}
    attention = {**base, "tensor_parallel_size": 1, "data_parallel_size": 8}
    assert space.violations({**attention, "enable_expert_parallel": True}) == {}
    assert "without expert parallelism each replica needs at least 6 GPUs" in space.violations(
        {**attention, "enable_expert_parallel": False}
    )
    assert space.violations({**base, "tensor_parallel_size": 8, "data_parallel_size": 8}) != {}
    named = {built.spec.labels[f"seed.{index}"] for index in range(len(built.spec.seeds))}
    assert {"speculation by mtp", "experts spread over all GPUs", "attention replicated, experts spread"} <= named


def test_budget_parts_become_a_limit() -> None:
    spec = build("latency: {total: 500 ms, parts: {network: 80 ms, preprocessing: 70 ms}, percentile: 99}").spec

    assert spec.budget.parts == pytest.approx({"network": 0.08, "preprocessing": 0.07, "inference": 0.35})
    assert {limit.key: limit.seconds for limit in spec.budget.limits} == pytest.approx({"e2e_p99": 0.35})


def test_the_stricter_of_two_limits_counts() -> None:
    spec = build("latency: {parts: {inference: 1 s}, limits: {e2e_p95: 2 s, ttft_p50: 1 s}}").spec

    assert spec.budget.limits == (
        Limit(metric=LatencyMetric.E2E, percentile=95.0, seconds=1.0),
        Limit(metric=LatencyMetric.TTFT, percentile=50.0, seconds=1.0),
    )


@pytest.mark.parametrize(
    ("text", "field", "message", "remedy"),
    [
        ("engine: {args: {max_num_sqs: 4}}", "engine.args.max_num_sqs", "no flag", "did you mean max_num_seqs?"),
        ("engine: {args: {swap-space: 4}}", "engine.args.swap-space", "no flag", "removed"),
        ("engine: {args: {num_scheduler_steps: 8}}", "engine.args.num_scheduler_steps", "no flag", "async_scheduling"),
        ("baseline: {guided_decoding_backend: x}", "baseline.guided_decoding_backend", "", "structured_outputs_config"),
        ("seeds: [{cuda_graph_sizes: 4}]", "seeds[0].cuda_graph_sizes", "no flag", "cudagraph_capture_sizes"),
        ("search: {space: {rope_scaling: [a]}}", "search.space.rope_scaling", "no flag", "hf_overrides"),
        ("search: {space: {include: [nonsense]}}", "search.space.include[0]", "no flag", "--help"),
        ("search: {space: {include: [seed]}}", "search.space.include", "no automatic domain", "give low and high"),
        ("engine: {args: {port: 80}}", "engine.args.port", "not yours", "remove"),
        ("engine: {args: {api_key: x}}", "engine.args.api_key", "not yours", "remove"),
        ("engine: {args: {max_num_seqs: many}}", "engine.args.max_num_seqs", "whole number", ""),
        ("engine: {args: {max_num_seqs: 1.5}}", "engine.args.max_num_seqs", "whole number", "write 2"),
        ("engine: {args: {max_num_seqs: [1]}}", "engine.args.max_num_seqs", "not a single value", ""),
        ("engine: {args: {max_num_seqs: {a: 1}}}", "engine.args.max_num_seqs", "single value", ""),
        ("engine: {args: {max_num_seqs.a: 1}}", "engine.args.max_num_seqs.a", "no parts", ""),
        ("engine: {args: {max_num_seqs: 0}}", "engine.args.max_num_seqs", "below 1", ""),
        ("engine: {args: {enforce_eager: 1}}", "engine.args.enforce_eager", "a switch", "true or false"),
        ("engine: {args: {max_num_seqs: true}}", "engine.args.max_num_seqs", "not a switch", ""),
        ("engine: {args: {kv_cache_dtype: fp9}}", "engine.args.kv_cache_dtype", "does not offer", "did you mean fp8"),
        ("engine: {args: {quantization: bitsandbytes}}", "engine.args.quantization", "any more", "int8"),
        ("engine: {args: {gpu_memory_utilization: 1.5}}", "engine.args.gpu_memory_utilization", "not a share", ""),
        ("engine: {args: {gpu_memory_utilization: much}}", "engine.args.gpu_memory_utilization", "a number", ""),
        ("engine: {args: {block_size: 16}}", "engine.args.block_size", "multiples of 32", ""),
        ("engine: {args: {tensor_parallel_size: 3}}", "engine.args.tensor_parallel_size", "does not divide", ""),
        ("engine: {args: {max_model_len: 4096}}", "engine.args.max_model_len", "2048 positions", "at most 2048"),
        ("engine: {args: {speculative_config: x}}", "engine.args.speculative_config", "takes a mapping", ""),
        (
            "engine: {args: {speculative_config: {method: ngrm}}}",
            "engine.args.speculative_config",
            "does not offer",
            "ngram",
        ),
        ("engine: {args: {max_num_seqs: 4}}\nbaseline: {max_num_seqs: 8}", "baseline.max_num_seqs", "fixes 4", "agree"),
        ("engine: {args: {max_num_seqs: 4, max-num-seqs: 8}}", "engine.args.max-num-seqs", "set twice", ""),
        (
            "engine: {args: {max_num_seqs: 4}}\nsearch: {space: {max_num_seqs: [1, 2]}}",
            "search.space.max_num_seqs",
            "fixed at 4",
            "",
        ),
        ("search: {space: {block_size: [16, 32]}}", "search.space.block_size", "multiples of 32", ""),
        ("search: {space: {kv_cache_dtype: [auto, fp9]}}", "search.space.kv_cache_dtype", "does not offer", "fp8"),
        ("search: {space: {dtype: {low: 1, high: 2}}}", "search.space.dtype", "no range", "choices"),
        ("search: {space: {max_num_seqs: {low: 1.5}}}", "search.space.max_num_seqs", "whole numbers", ""),
        ("search: {space: {max_num_seqs: {low: 900}}}", "search.space.max_num_seqs", "above high", "both ends"),
        ("search: {space: {seed: {low: 3}}}", "search.space.seed", "no automatic end", "low and high"),
        ("search: {space: {max_num_seqs: {low: 0}}}", "search.space.max_num_seqs", "begins above 0", "log: false"),
        ("search: {space: {auto: false}}", "search.space", "nothing is left", ""),
        ("search: {space: {block_size: 16}}", "search.space.block_size", "multiples of 32", ""),
        ("seeds: [{max_num_seqs: 4000}]", "seeds[0].max_num_seqs", "outside", ""),
        ("seeds: [{block_size: 64}]", "seeds[0].block_size", "not searched", ""),
        ("workload: {input_tokens: 2000}", "workload.input_tokens", "exceed", "max_model_len"),
    ],
)
def test_what_the_engine_refuses(text: str, field: str, message: str, remedy: str) -> None:
    problems = space_problems(text)

    assert list(problems) == [field]
    assert message in problems[field].message
    assert remedy in problems[field].remedy
    assert problems[field].line or field == "search.space"


def test_all_problems_of_all_sections_at_once() -> None:
    problems = space_problems(
        "engine: {args: {swap_space: 4}}\nbaseline: {nope: 1}\nseeds: [{max_num_seqs: x}]\n"
        "search: {space: {block_size: [16], exclude: [zzz]}}"
    )

    assert set(problems) == {
        "engine.args.swap_space",
        "baseline.nope",
        "seeds[0].max_num_seqs",
        "search.space.block_size",
        "search.space.exclude[0]",
    }


def test_seed_that_breaks_a_rule() -> None:
    text = "engine: {args: {max_num_batched_tokens: 4}}\nseeds: [{max_num_seqs: 16}]"

    assert "max_num_batched_tokens" in space_problems(text)["seeds[0]"].message


def test_weights_that_do_not_fit() -> None:
    problems = space_problems("", cuda_description(DEEPSEEK), H200)

    assert "do not fit" in problems["hardware"].message
    assert "6 GPUs" in problems["hardware"].remedy


def test_flags_may_be_nested_short_or_negated() -> None:
    built = build(
        "engine: {args: {no-enable-prefix-caching: true, spec-method: ngram, kv-cache-memory-bytes: 512 MiB,"
        " compilation-config: '{\"mode\": 0}', speculative_config: {num_speculative_tokens: 3}}}"
    )

    assert built.spec.space.fixed == {
        "enable_prefix_caching": False,
        "speculative_config.method": "ngram",
        "speculative_config.num_speculative_tokens": 3,
        "kv_cache_memory_bytes": 2**29,
        "compilation_config.mode": 0,
    }


def test_ignored_flags_are_dropped_and_said() -> None:
    built = build(
        "engine: {args: {cpu_offload_gb: 4}}\n"
        "search: {space: {async_scheduling: [true, false], kv_cache_dtype: [auto, turboquant_4bit_nc]}}"
    )

    assert "async_scheduling" not in names(built)
    assert built.spec.space.parameter("kv_cache_dtype").choices == ("auto",)  # type: ignore[union-attr]
    notes = "\n".join(built.notes)
    assert "async_scheduling is not searched: no effect on cpu" in notes
    assert "kv_cache_dtype=turboquant_4bit_nc is not searched" in notes
    assert "engine.args.cpu_offload_gb: no effect on cpu" in notes
    assert built.spec.labels["notes"] == notes


def test_hot_and_cold() -> None:
    space = build("search: {space: {max_num_seqs: [4, 8], seed: {low: 0, high: 3}}}").spec.space

    levers = {parameter.name: parameter.lever for parameter in space}
    assert levers["max_num_seqs"] is levers["max_num_batched_tokens"] is Lever.HOT
    assert levers["seed"] is levers["enforce_eager"] is Lever.COLD


def test_automatic_space_follows_the_platform() -> None:
    every = "search: {space: {include: [block_size, quantization, kv_cache_dtype, dtype, gpu_memory_utilization]}}"

    def choices(description: EngineDescription, hardware: Hardware, name: str) -> tuple[object, ...]:
        parameter = build(every, description, hardware).spec.space.parameter(name)
        return parameter.choices if parameter is not None else ()

    cpu, cuda = cpu_description(), cuda_description()
    assert choices(cpu, CPU, "block_size") == (32, 64, 128, 256)
    assert choices(cuda, H200, "block_size") == (16, 32, 64, 128)
    assert choices(cpu, CPU, "quantization") == ("none", "int8_per_channel_weight_only")
    assert "fp8_per_tensor" in choices(cuda, H200, "quantization")
    assert "fp8_per_tensor" not in choices(cuda, A100, "quantization")
    assert choices(cuda, T4, "quantization") == ()
    assert choices(cuda, T4, "dtype") == ("auto", "float16")
    assert choices(cuda, A100, "kv_cache_dtype") == ()
    assert choices(cuda, H200, "kv_cache_dtype") == ("auto", "fp8")
    assert "gpu_memory_utilization" in names(build("", cuda, H200))
    assert "gpu_memory_utilization" not in names(build("", cpu, CPU))


def test_device_gates_leave_values_out_with_a_note() -> None:
    built = build(
        "search: {space: {tensor_parallel_size: [1, 2], quantization: [none, fp8_per_tensor], kv_cache_dtype: [fp8],"
        " dtype: [auto, bfloat16]}}",
        cuda_description({**LLAMA, "weight_bytes": 2**30}),
        T4,
    )

    text = "\n".join(built.notes)
    for part in ("needs 2 GPUs, there is 1", "compute capability 8.9, this is 7.5", "no fast fp8", "no bfloat16"):
        assert part in text
    assert "kv_cache_dtype" not in names(built)


def test_choices_are_those_that_the_engine_lists() -> None:
    full = cuda_description()
    flags = tuple(
        dataclasses.replace(flag, choices=("auto",)) if flag.name == "kv_cache_dtype" else flag
        for flag in full.flags
        if flag.name != "async_scheduling"
    )
    built = build("search: {space: {include: [kv_cache_dtype]}}", dataclasses.replace(full, flags=flags), H200)

    assert built.spec.space.parameter("kv_cache_dtype").choices == ("auto",)  # type: ignore[union-attr]
    assert reasons(built)["async_scheduling"] == "this engine has no such flag"


def test_speculation_is_conditional() -> None:
    space = build("workload: {concurrency: 4}", cuda_description(), H200).spec.space

    tokens = space.parameter("speculative_config.num_speculative_tokens")
    assert tokens is not None
    assert tokens.condition == Condition(parameter="speculative_config.method", values=("ngram",))
    assert tokens.neutral is not None
    assert tokens.contains(tokens.neutral)
    asynchronous = space.parameter("async_scheduling")
    assert asynchronous is not None
    assert asynchronous.condition == Condition(parameter="speculative_config.method", values=("none",))
    off: dict[str, Value] = {
        "speculative_config.method": "none",
        "speculative_config.num_speculative_tokens": 1,
        "max_num_seqs": 4,
    }
    assert space.full(off) == {"max_num_seqs": 4}
    on = {**off, "speculative_config.method": "ngram", "async_scheduling": True}
    assert space.full(on) == {
        "speculative_config.method": "ngram",
        "speculative_config.num_speculative_tokens": 1,
        "max_num_seqs": 4,
    }


def test_a_draft_model_comes_with_its_method() -> None:
    text = "engine: {draft: {model: org/head, method: eagle3}}"

    space = build(text, cuda_description(), H200).spec.space

    drafted = space.parameter("speculative_config.model")
    assert drafted is not None
    assert drafted.choices == ("org/head",)
    assert drafted.condition == Condition(parameter="speculative_config.method", values=("eagle3",))


def test_fixed_method_frees_its_parameters() -> None:
    built = build(
        "engine: {args: {speculative_config: {method: ngram}}}\n"
        "search: {space: {include: [speculative_config.prompt_lookup_max]}}",
        cuda_description(),
        H200,
    )

    for name in ("speculative_config.num_speculative_tokens", "speculative_config.prompt_lookup_max"):
        parameter = built.spec.space.parameter(name)
        assert parameter is not None
        assert parameter.condition is None
    assert "synchronous" in reasons(built)["async_scheduling"]


def test_compilation_depends_on_eager_mode() -> None:
    text = "search: {space: {include: [compilation_config.mode, optimization_level]}}"

    space = build(text, cuda_description(), H200).spec.space

    mode = space.parameter("compilation_config.mode")
    assert mode is not None
    assert mode.condition == Condition(parameter="enforce_eager", values=(False,))
    eager = build(f"engine: {{args: {{enforce_eager: true}}}}\n{text}", cuda_description(), H200)
    assert "compilation_config.mode" not in names(eager)


def test_rules_of_the_engine() -> None:
    text = "search: {space: {include: [max_model_len, enable_chunked_prefill, long_prefill_token_threshold]}}"

    space = build(text).spec.space

    good = {"max_num_seqs": 8, "max_num_batched_tokens": 1024, "max_model_len": 1024, "long_prefill_token_threshold": 0}
    assert space.violations(good) == {}
    assert space.violations({**good, "max_num_batched_tokens": 4}) != {}
    assert space.violations({**good, "long_prefill_token_threshold": 1280}) != {}
    assert space.violations({**good, "max_model_len": 2048, "enable_chunked_prefill": False}) != {}
    assert space.violations({**good, "max_model_len": 4096}) != {}


def test_tensor_parallel_divides_heads_and_fits_devices() -> None:
    four = dataclasses.replace(H200, count=4)

    assert build("", cuda_description(), four).spec.space.parameter("tensor_parallel_size").choices == (1, 2, 4)  # type: ignore[union-attr]
    assert build("", cuda_description(DEEPSEEK), H200X8).spec.space.parameter("tensor_parallel_size").choices == (8,)  # type: ignore[union-attr]


def test_chunked_prefill_off_raises_the_token_budget() -> None:
    text = "engine: {args: {enable_chunked_prefill: false, max_model_len: 1024}}"

    tokens = build(text).spec.space.parameter("max_num_batched_tokens")

    assert tokens is not None
    assert tokens.low == 1024


def test_partial_domains_take_the_rest_from_the_automatic_one() -> None:
    space = build(
        "search: {space: {max_num_seqs: {low: 2}, gpu_memory_utilization: {high: 0.9}}}", cuda_description(), H200
    )

    seqs = space.spec.space.parameter("max_num_seqs")
    share = space.spec.space.parameter("gpu_memory_utilization")
    assert seqs is not None
    assert share is not None
    assert (seqs.low, seqs.high, seqs.log, seqs.kind) == (2, 16, True, ParameterKind.INT)
    assert (share.low, share.high, share.step, share.kind) == (0.80, 0.9, 0.01, ParameterKind.FLOAT)


def test_unsearched_baseline_flags_are_kept() -> None:
    built = build("baseline: {max_num_seqs: 8, enable_prefix_caching: false}\nsearch: {space: {auto: true}}")

    assert built.spec.space.fixed == {"enable_prefix_caching": False}
    assert built.spec.baseline == {"max_num_seqs": 8, "enable_prefix_caching": False}
    assert any("kept in every launch" in note for note in built.notes)


def test_exclude_and_fixed_values() -> None:
    built = build("search: {space: {exclude: [enforce_eager], dtype: bfloat16}}")

    assert "enforce_eager" not in names(built)
    assert reasons(built)["enforce_eager"] == "excluded by the study"
    assert built.spec.space.fixed == {"dtype": "bfloat16"}
    assert reasons(built)["dtype"] == "fixed at bfloat16 by the study"


def test_every_catalogued_parameter_is_explained() -> None:
    explained = explain_space(parse_study("name: a"), cpu_description(), CPU)

    assert len({name for name, _, _ in explained}) == len(explained) >= 27
    assert all(reason for _, _, reason in explained)
    assert ("max_num_seqs", True) in {(name, searched) for name, searched, _ in explained}


def test_open_lengths_are_clipped_to_the_model() -> None:
    built = build("workload: {input_tokens: {kind: lognormal, mean: 1000, spread: 900}}")

    assert built.spec.workload.input_tokens.high + built.spec.workload.output_tokens.high == 2048
    assert any("clipped" in note for note in built.notes)


def test_stated_hardware_wins() -> None:
    spec = build("hardware: {device: cuda, count: 2, memory: 80 GiB}", cuda_description(), H200).spec

    assert (spec.hardware.count, spec.hardware.memory_bytes) == (2, 80 * 2**30)


def test_measure_and_effort_are_carried_over() -> None:
    spec = build(
        "measure: {duration: 2 min}\nbudget: {trials: 7, wall_time: 1 h, gpu_hours: 2}\nsearch: {seed: 9}"
    ).spec

    assert (spec.measure.duration, spec.measure.duration_max) == (120.0, 120.0)
    assert (spec.effort.trials, spec.effort.wall_seconds, spec.effort.gpu_hours) == (7, 3600.0, 2)
    assert spec.search.seed == 9


@pytest.mark.parametrize(
    ("description", "hardware", "model"),
    [
        (cpu_description(), CPU, "auto"),
        (cpu_description(), Hardware(), "/models/with space & 'quotes'"),
        (cuda_description(DEEPSEEK), H200X8, "deepseek-ai/DeepSeek-V3"),
        (cuda_description(large=False), T4, "org/ünïcode"),
        (dataclasses.replace(cpu_description(), kind="simulated", platform="simulated", model={}), CPU, "auto"),
    ],
)
def test_init_writes_a_study_that_works(description: EngineDescription, hardware: Hardware, model: str) -> None:
    text = render_init(description, hardware, model)
    study = parse_study(text)

    assert study.model == model
    assert study.engine.kind == description.kind
    if hardware is not T4:
        assert "max_num_seqs" in build_spec(study, description, hardware).space.hot_names()
    assert all(line == line.rstrip() for line in text.splitlines())


def test_init_keeps_the_command_that_was_given() -> None:
    command = ("/opt/my vllm/bin/vllm", "serve")
    text = render_init(cpu_description(), CPU, "auto", command)
    assert parse_study(text).engine.command == command
    assert parse_study(render_init(cpu_description(), CPU, "auto")).engine.command == ()
    assert "$schema" not in text


def test_error_carries_the_file_and_exit_code() -> None:
    study = parse_study("name: a\nbaseline: {nope: 1}", source="my.yaml")

    with pytest.raises(SpaceError, match=r"^my\.yaml:2: baseline\.nope: vLLM 0\.32\.0 has no flag nope; ") as caught:
        build_spec(study, cpu_description(), CPU)

    assert caught.value.exit_code == 2


def test_an_open_loop_cannot_show_more_than_is_offered() -> None:
    def said(text: str) -> bool:
        return any("cannot exceed the offered load" in note for note in build(text).notes)

    assert said("workload: {mode: open, rate: 4}")
    assert not said("workload: {mode: open, rate: 4}\nobjective: goodput")
    assert not said("workload: {mode: closed}")


@pytest.mark.parametrize(
    ("limit", "measure", "needed"),
    [
        ("e2e_p99_9", "{}", "10000"),
        ("ttft_p99", "{}", "1000"),
        ("ttft_p95", "{min_requests: 5}", "20"),
        ("ttft_p95", "{}", ""),
        ("ttft_p99", "{min_requests: 1000}", ""),
        ("itl_p99", "{}", ""),
    ],
)
def test_percentiles_of_few_requests_are_noted(limit: str, measure: str, needed: str) -> None:
    built = build(f"latency: {{limits: {{{limit}: 2 s}}}}\nmeasure: {measure}")

    notes = [note for note in built.notes if note.startswith(f"{limit} is judged")]
    assert [f"measure.min_requests to {needed} or more" in note for note in notes] == ([True] if needed else [])
    assert all("about the largest value seen" in note for note in notes)


def test_explanations_cite_no_rows() -> None:
    for description, hardware in MACHINES.values():
        built = build("", description, hardware)
        text = "\n".join([*built.notes, *(item.reason for item in built.explanations)])
        assert re.search(r"\bR\d+\b(?!-)", text) is None


@pytest.mark.parametrize("name", ["quickstart", "llama-8b", "deepseek-r1-distill-7b"])
def test_ready_studies_build_for_the_simulated_engine(name: str) -> None:
    study = load_study(STUDIES / f"{name}.yaml")
    model = "sim-7b" if study.model == "auto" else study.model

    built = build_study(study, describe_simulated(model), A100)

    assert {"max_num_seqs", "max_num_batched_tokens"} <= names(built)
    assert not any("judged" in note or "offered load" in note for note in built.notes)
