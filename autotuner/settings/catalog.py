"""The parameters that the autotuner knows how to search, with their domains on each platform.

One function per parameter looks at engine, device, model and traffic and says: a domain (searched automatically or
only when asked for), or why it makes no sense here (R4-R9, R16, R18, R21).  Choices are always restricted to what the
engine itself lists.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from autotuner.core.space import Condition, Lever, Parameter, ParameterKind, Value
from autotuner.settings.context import Proposal, SpaceContext, powers_of_two
from autotuner.settings.flags import no_op

__all__ = ["BY_NAME", "CATALOG", "HOT", "METHOD", "METHOD_NEEDS", "PRECISIONS", "propose"]

HOT = frozenset({"max_num_seqs", "max_num_batched_tokens", "long_prefill_token_threshold"})
"""Parameters that can change in a running engine (R8)."""
METHOD = "speculative_config.method"
BY_NAME = "; include it by name"
"""Ends the reasons of parameters that are searched only on request."""
_SPEC_TOKENS = "speculative_config.num_speculative_tokens"
_DRAFTED = ("draft_model", "eagle", "eagle3", "medusa", "mlp_speculator")
_SYNC_ONLY = ("ngram", "suffix", "medusa")
"""Speculative methods that exclude asynchronous scheduling."""


def propose(name: str, context: SpaceContext) -> Proposal:
    """Return what the catalogue says about *name* here."""
    base = name.split(".", 1)[0]
    if context.engine.flag(base) is None:
        return Proposal(reason="this engine has no such flag")
    idle = no_op(context.engine, name)
    if idle is not None:
        return Proposal(reason=f"no effect on {context.engine.platform}: {idle}")
    if name in context.fixed:
        return Proposal(reason=f"fixed at {context.fixed[name]} in engine.args")
    maker = CATALOG.get(name)
    return maker(context) if maker else Proposal(reason="no automatic domain; give low and high, or choices")


def _int(name: str, low: int, high: int, *, log: bool = False, step: int | None = None) -> Parameter:
    lever = Lever.HOT if name in HOT else Lever.COLD
    high = max(low, high)
    return Parameter(name=name, kind=ParameterKind.INT, low=low, high=high, log=log, step=step, lever=lever)


def _choice(
    context: SpaceContext, name: str, values: Iterable[Value], *, absent: Value | None = None
) -> Parameter | None:
    flag = context.engine.flag(name)
    listed = flag.choices if flag is not None and "." not in name else ()
    kept = tuple(value for value in values if not listed or value == absent or str(value) in listed)
    if not [value for value in kept if value != absent]:
        return None
    return Parameter(name=name, kind=ParameterKind.CHOICE, choices=kept, absent=absent)


def _max_num_seqs(context: SpaceContext) -> Proposal:
    default = context.number("max_num_seqs", 128 if context.cpu else 256)
    ceiling = next((p for p in powers_of_two(1, 4096) if p >= context.clients), 4096) if context.clients else default
    high = max(8, min(ceiling, 4 * default))
    return Proposal(
        parameter=_int("max_num_seqs", max(1, high // 16), high, log=True),
        auto=True,
        reason="largest lever on throughput and latency; changes in a running engine",
    )


def _max_num_batched_tokens(context: SpaceContext) -> Proposal:
    default = context.number("max_num_batched_tokens", 2048)
    low = 128 if context.cpu else 512
    if context.fixed.get("enable_chunked_prefill") is False:
        low = max(low, context.max_model_len)
    high = max(2 * default, 4096 if context.cpu else 8192, low)
    high = min(high, 16384) if low < 16384 else low
    return Proposal(
        parameter=_int("max_num_batched_tokens", low, high, log=True),
        auto=True,
        reason="token budget of a step: trades prompt latency against token latency; changes in a running engine",
    )


def _long_prefill(context: SpaceContext) -> Proposal:
    longest = context.max_model_len or 32768
    reach = min(longest, 16384)
    step = max(128, reach // 8 // 128 * 128)
    high = max(step, reach // step * step)
    long_prompts = context.prompt_tokens >= 1024
    return Proposal(
        parameter=_int("long_prefill_token_threshold", 0, high, step=step),
        auto=long_prompts,
        reason="prompts are long: chunks of them can be bounded"
        if long_prompts
        else "prompts are short; matters from about 1024 tokens",
    )


def _block_size(context: SpaceContext) -> Proposal:
    if context.knows("uses_mla"):
        return Proposal(reason="the attention back-ends of this model (MLA) fix their own block size")
    values = {"cpu": (32, 64, 128, 256), "xpu": (64, 128)}.get(context.engine.platform, (16, 32, 64, 128))
    useful = (context.max_model_len >= 32768 and context.prompt_tokens >= 8192) or context.repeats_prompts
    unit = {"cpu": 32, "xpu": 64}.get(context.engine.platform, 16)
    return Proposal(
        parameter=_choice(context, "block_size", values),
        auto=useful,
        reason=f"multiples of {unit} on {context.engine.platform}; "
        + ("contexts are long or prompts repeat" if useful else "matters for long contexts or repeating prompts"),
    )


def _gpu_memory_utilization(context: SpaceContext) -> Proposal:
    if "kv_cache_memory_bytes" in context.fixed:
        return Proposal(reason="ignored while kv_cache_memory_bytes is set")
    low, high, step = (0.1, 0.8, 0.05) if context.cpu else (0.80, 0.95, 0.01)
    parameter = Parameter(
        name="gpu_memory_utilization", kind=ParameterKind.FLOAT, low=low, high=high, step=step, lever=Lever.COLD
    )
    if context.cpu:
        return Proposal(parameter=parameter, reason="a share of the host's memory on a CPU; include it by name")
    return Proposal(parameter=parameter, auto=True, reason="KV cache size against the risk of running out")


def _kv_cache_memory_bytes(context: SpaceContext) -> Proposal:
    memory = context.hardware.memory_bytes
    if not memory:
        return Proposal(reason="the device's memory is unknown; give low and high")
    high = max(2**28, int(memory * (0.4 if context.cpu else 0.8)) // 2**28 * 2**28)
    return Proposal(
        parameter=_int("kv_cache_memory_bytes", 2**28, high, log=True),
        reason="exact size of the KV cache; include it in place of gpu_memory_utilization",
    )


def _max_model_len(context: SpaceContext) -> Proposal:
    longest = context.fact("max_position_embeddings")
    if not longest:
        return Proposal(reason="the model's length is unknown; give choices")
    needed = int(context.prompt_tokens + context.answer_tokens)
    choices = tuple(sorted({*powers_of_two(max(needed, 256), longest), longest}))
    return Proposal(
        parameter=_choice(context, "max_model_len", choices),
        reason="decides which requests are accepted at all; include it by name",
    )


def _enforce_eager(context: SpaceContext) -> Proposal:
    graphs = "compiled kernels" if context.cpu else "CUDA graphs"
    return Proposal(
        parameter=_choice(context, "enforce_eager", (False, True)),
        auto=True,
        reason=f"{graphs} against start-up time and memory",
    )


def _compilation_mode(context: SpaceContext) -> Proposal:
    if context.cpu:
        return Proposal(reason="the CPU platform chooses its own compilation mode")
    return _unless_eager(context, "compilation_config.mode", (3, 0), "full compilation or none")


def _optimization_level(context: SpaceContext) -> Proposal:
    return _unless_eager(context, "optimization_level", ("2", "1", "3", "0"), "bundles of fusions and graph modes")


def _unless_eager(context: SpaceContext, name: str, values: tuple[Value, ...], reason: str) -> Proposal:
    eager = context.fixed.get("enforce_eager")
    if eager is True:
        return Proposal(reason="nothing is compiled while enforce_eager is on")
    parameter = _choice(context, name, values)
    if parameter is not None and "enforce_eager" in context.searched:
        condition = Condition(parameter="enforce_eager", values=(False,))
        parameter = dataclasses.replace(parameter, condition=condition, neutral=values[0])
    return Proposal(parameter=parameter, reason=f"{reason}; include it by name")


def _performance_mode(context: SpaceContext) -> Proposal:
    return Proposal(
        parameter=_choice(context, "performance_mode", ("balanced", "throughput", "interactivity")),
        reason="moves defaults that are searched directly; include it by name",
    )


def _prefix_caching(context: SpaceContext) -> Proposal:
    return Proposal(
        parameter=_choice(context, "enable_prefix_caching", (True, False)),
        auto=context.repeats_prompts,
        reason="prompts begin alike" if context.repeats_prompts else "every prompt is fresh: nothing to reuse",
    )


def _chunked_prefill(context: SpaceContext) -> Proposal:
    return Proposal(
        parameter=_choice(context, "enable_chunked_prefill", (True, False)),
        reason="off needs a token budget as large as max_model_len; include it by name",
    )


def _async_scheduling(context: SpaceContext) -> Proposal:
    method = context.fixed.get(METHOD)
    if context.cpu:
        return Proposal(reason="the CPU platform schedules synchronously")
    if method in _SYNC_ONLY:
        return Proposal(reason=f"speculation by {method} needs synchronous scheduling")
    parameter = _choice(context, "async_scheduling", (True, False))
    free = tuple(name for name in ("none", *_methods(context)) if name not in _SYNC_ONLY)
    if METHOD in context.searched and parameter is not None and len(free) <= len(_methods(context)):
        condition = Condition(parameter=METHOD, values=free)
        parameter = dataclasses.replace(parameter, condition=condition, neutral=False)
    return Proposal(parameter=parameter, auto=True, reason="hides scheduling behind the step")


def _scheduling_policy(context: SpaceContext) -> Proposal:
    return Proposal(
        parameter=_choice(context, "scheduling_policy", ("fcfs", "priority")),
        reason="matters only where requests carry priorities; include it by name",
    )


def _dtype(context: SpaceContext) -> Proposal:
    old = context.gpu_like_cuda and context.capability_below(8.0)
    values = ("auto", "float16") if old else ("auto", "bfloat16", "float16")
    gate = f"; no bfloat16 at compute capability {context.hardware.compute_capability:g}" if old else ""
    return Proposal(
        parameter=_choice(context, "dtype", values),
        reason=f"changes answers: needs evidence of quality; include it by name{gate}",
    )


PRECISIONS: dict[str, float] = {
    "int8_per_channel_weight_only": 8.0,
    "fp8_per_tensor": 8.9,
    "fp8_per_channel": 8.9,
    "fp8_per_block": 9.0,
    "mxfp8": 10.0,
    "nvfp4_per_token": 10.0,
}
"""Conversions that the engine does while loading → the compute capability that makes them worth it (R18)."""


def _quantization(context: SpaceContext) -> Proposal:
    stored = context.engine.model.get("quantization")
    if isinstance(stored, str) and stored:
        return Proposal(reason=f"the checkpoint is quantised already ({stored})")
    if context.cpu:
        methods: tuple[str, ...] = ("int8_per_channel_weight_only",)
        gate = "the CPU build converts to int8 only"
    else:
        methods = tuple(name for name, needed in PRECISIONS.items() if not context.capability_below(needed))
        refused = [name for name in PRECISIONS if name not in methods]
        capability = f"compute capability {context.hardware.compute_capability:g}"
        gate = f"not at {capability}: {', '.join(refused)}" if refused else "all precisions exist here"
    parameter = _choice(context, "quantization", ("none", *methods), absent="none")
    reason = f"changes answers: needs evidence of quality; include it by name; {gate}"
    return Proposal(parameter=parameter, reason=reason if parameter else f"no precision to convert to: {gate}")


def _kv_cache_dtype(context: SpaceContext) -> Proposal:
    if context.gpu_like_cuda and context.capability_below(8.9):
        capability = context.hardware.compute_capability
        return Proposal(reason=f"no fast fp8 at compute capability {capability:g}")
    return Proposal(
        parameter=_choice(context, "kv_cache_dtype", ("auto", "fp8")),
        reason="doubles the KV cache and changes answers: needs evidence of quality; include it by name",
    )


def _methods(context: SpaceContext) -> list[str]:
    methods = ["ngram"]
    if context.draft is not None:
        methods.append(context.draft.method)
    if context.knows("has_mtp"):
        methods.append("mtp")
    if context.knows("has_arctic_inference"):
        methods.append("suffix")
    listed = context.engine.flag("spec_method")
    return [name for name in methods if listed is None or not listed.choices or name in listed.choices]


def _spec_method(context: SpaceContext) -> Proposal:
    methods = _methods(context)
    parameter = _choice(context, METHOD, ("none", *methods), absent="none")
    own = context.knows("has_mtp") or context.draft is not None
    few = 0 < context.clients <= 8
    reason = f"guesses tokens ahead ({', '.join(methods)}); "
    reason += "the model or study brings a drafter" if own else "few requests at a time" if few else ""
    if not own and not few:
        reason += "pays at few requests at a time; include it by name"
    return Proposal(parameter=parameter, auto=own or few, reason=reason)


def _spec_tokens(context: SpaceContext) -> Proposal:
    high = 3 if context.knows("has_mtp") and context.draft is None else 6
    return _with_method(context, _int(_SPEC_TOKENS, 1, high), None, "tokens guessed ahead")


def _lookup_max(context: SpaceContext) -> Proposal:
    parameter = _int("speculative_config.prompt_lookup_max", 2, 8)
    return _with_method(context, parameter, ("ngram",), "longest n-gram looked up", auto=False)


def _draft(context: SpaceContext) -> Proposal:
    if context.draft is None:
        return Proposal(reason="no draft model is given (engine.draft)")
    parameter = _choice(context, "speculative_config.model", (context.draft.model,))
    assert parameter is not None
    return _with_method(context, parameter, _DRAFTED, "the draft model")


def _with_method(
    context: SpaceContext, parameter: Parameter, methods: tuple[str, ...] | None, reason: str, *, auto: bool = True
) -> Proposal:
    """Tie *parameter* to the speculative method: fixed, searched, or absent."""
    fixed = context.fixed.get(METHOD)
    if fixed is not None:
        fits = fixed != "none" and (methods is None or fixed in methods)
        return Proposal(parameter=parameter if fits else None, auto=auto and fits, reason=f"{reason} ({fixed})")
    wanted = METHOD in context.searched
    allowed = tuple(name for name in _methods(context) if methods is None or name in methods)
    if not wanted or not allowed:
        return Proposal(reason="no speculative method is searched that needs it")
    neutral = parameter.choices[0] if parameter.choices else int(parameter.low or 0)
    condition = Condition(parameter=METHOD, values=allowed)
    tied = dataclasses.replace(parameter, condition=condition, neutral=neutral)
    return Proposal(parameter=tied, auto=auto, reason=reason)


def _tensor_parallel(context: SpaceContext) -> Proposal:
    if context.cpu:
        return Proposal(reason="needs threads bound by hand on a CPU (VLLM_CPU_OMP_THREADS_BIND); give choices")
    count, heads = context.hardware.count, context.fact("num_attention_heads")
    if count < 2:
        return Proposal(reason="one GPU")
    choices = [size for size in powers_of_two(1, count) if not heads or heads % size == 0]
    alone = "data_parallel_size" not in context.searched and context.number("data_parallel_size", 1) == 1
    ranks = context.memory_ranks() // max(1, context.number("pipeline_parallel_size", 1))
    choices = [size for size in choices if not alone or size >= ranks] or choices[-1:]
    return Proposal(
        parameter=_choice(context, "tensor_parallel_size", choices),
        auto=True,
        reason=f"{count} GPUs; divides {heads or 'the'} attention heads"
        + (f"; the weights need {ranks} GPUs" if ranks > 1 else ""),
    )


def _pipeline_parallel(context: SpaceContext) -> Proposal:
    if context.cpu:
        return Proposal(reason="the CPU build ends at the first request with pipeline stages")
    if context.hardware.count < 2:
        return Proposal(reason="one GPU")
    choices = powers_of_two(1, min(context.hardware.count, context.fact("num_hidden_layers") or 64))
    return Proposal(
        parameter=_choice(context, "pipeline_parallel_size", choices),
        reason="helps between machines or without fast links; include it by name",
    )


def _data_parallel(context: SpaceContext) -> Proposal:
    if context.cpu:
        return Proposal(reason="replicas share the same cores and memory on a CPU; give choices")
    if context.hardware.count < 2:
        return Proposal(reason="one GPU")
    return Proposal(
        parameter=_choice(context, "data_parallel_size", powers_of_two(1, context.hardware.count)),
        reason="replicas, or attention replicas of a mixture of experts; include it by name",
    )


def _expert_parallel(context: SpaceContext) -> Proposal:
    if not context.knows("is_moe"):
        return Proposal(reason="the model is no mixture of experts")
    if context.hardware.count < 2:
        return Proposal(reason="one GPU")
    return Proposal(
        parameter=_choice(context, "enable_expert_parallel", (False, True)),
        auto=True,
        reason="spreads whole experts over the GPUs",
    )


def _api_servers(context: SpaceContext) -> Proposal:
    if context.cpu and context.hardware.compute_units < 8:
        return Proposal(reason="too few cores for a second HTTP server")
    return Proposal(
        parameter=_choice(context, "api_server_count", (1, 2, 4)),
        reason="helps where the HTTP server saturates a core; include it by name",
    )


CATALOG: dict[str, Callable[[SpaceContext], Proposal]] = {
    "max_num_seqs": _max_num_seqs,
    "max_num_batched_tokens": _max_num_batched_tokens,
    "long_prefill_token_threshold": _long_prefill,
    "block_size": _block_size,
    "gpu_memory_utilization": _gpu_memory_utilization,
    "kv_cache_memory_bytes": _kv_cache_memory_bytes,
    "max_model_len": _max_model_len,
    "enforce_eager": _enforce_eager,
    "compilation_config.mode": _compilation_mode,
    "optimization_level": _optimization_level,
    "performance_mode": _performance_mode,
    "enable_prefix_caching": _prefix_caching,
    "enable_chunked_prefill": _chunked_prefill,
    "async_scheduling": _async_scheduling,
    "scheduling_policy": _scheduling_policy,
    "dtype": _dtype,
    "quantization": _quantization,
    "kv_cache_dtype": _kv_cache_dtype,
    METHOD: _spec_method,
    _SPEC_TOKENS: _spec_tokens,
    "speculative_config.prompt_lookup_max": _lookup_max,
    "speculative_config.model": _draft,
    "tensor_parallel_size": _tensor_parallel,
    "pipeline_parallel_size": _pipeline_parallel,
    "data_parallel_size": _data_parallel,
    "enable_expert_parallel": _expert_parallel,
    "api_server_count": _api_servers,
}
"""Parameter → who proposes its domain, in the order that they are shown."""

METHOD_NEEDS = (_SPEC_TOKENS, "speculative_config.model")
"""Parameters without which a speculative method does not start; searched along with it."""
