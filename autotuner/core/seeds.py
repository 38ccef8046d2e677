"""Expert seeds: configurations worth trying before any sampler has learnt something.

Each idea changes a few parameters of the baseline (R4, R5, R16, R21 and the engine's own profiles).  An idea is fitted
into the space: values move to the nearest allowed one, unknown parameters drop out, ideas that break a rule or say
nothing new vanish.  So the same ideas serve every space.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from autotuner.core.budget import LatencyMetric
from autotuner.core.space import Config, Parameter, ParameterKind, Space, Value, config_key
from autotuner.core.study import StudySpec

__all__ = ["complete", "effective_baseline", "expert_seeds", "seed_limit"]

METHOD = "speculative_config.method"
_METHODS = ("mtp", "eagle3", "eagle", "draft_model", "suffix", "ngram", "medusa")
"""Speculative methods, the most promising first."""
SEQS, TOKENS = "max_num_seqs", "max_num_batched_tokens"

Idea = tuple[str, dict[str, Value]]


def effective_baseline(spec: StudySpec) -> dict[str, Value]:
    """Return the flags that the baseline runs with, as far as they are known.

    The study's baseline over the fixed flags over the engine's defaults for this platform; searched parameters
    without any of these get the flag's own default, or the choice that stands for leaving them out.
    """
    known: dict[str, Value] = {}
    for parameter in spec.space:
        flag = spec.engine.flag(parameter.name) if "." not in parameter.name else None
        if parameter.absent is not None:
            known[parameter.name] = parameter.absent
        elif flag is not None and flag.default is not None:
            known[parameter.name] = flag.default
    explicit = {**spec.space.fixed, **spec.baseline}
    known.update(spec.engine.context_defaults)
    known.update(explicit)
    _clamp_defaults(known, explicit, spec)
    return known


def _clamp_defaults(known: dict[str, Value], explicit: Config, spec: StudySpec) -> None:
    """Apply what the engine does to its own defaults: the two limits never contradict each other."""
    length = known.get("max_model_len", spec.engine.model.get("max_position_embeddings"))
    seqs, tokens = known.get(SEQS), known.get(TOKENS)
    if not isinstance(seqs, int) or not isinstance(tokens, int):
        return
    if TOKENS not in explicit and isinstance(length, int) and not isinstance(length, bool):
        tokens = known[TOKENS] = min(tokens, seqs * length)
    if SEQS not in explicit:
        known[SEQS] = min(seqs, tokens)


def complete(space: Space, config: Config, defaults: Config) -> dict[str, Value]:
    """Return *config* with a value for every active parameter: its own, the default, or the nearest allowed one."""
    full: dict[str, Value] = {}
    for parameter in space:
        wanted = config.get(parameter.name, defaults.get(parameter.name))
        fitted = _nearest(parameter, wanted) if wanted is not None else None
        full[parameter.name] = fitted if fitted is not None else _ordinary(parameter)
    return space.active(full)


def seed_limit(trials: int) -> int:
    """Return how many seeds leave room for the search among *trials* points: half of them, at most 8."""
    return max(2, min(8, trials // 2))


def expert_seeds(spec: StudySpec, limit: int | None = None) -> tuple[tuple[str, dict[str, Value]], ...]:
    """Return up to *limit* seeds as (name, configuration over the searched parameters), the most promising first.

    Every configuration is complete, inside the space and breaks none of its rules; none repeats another or the
    baseline.
    """
    baseline = effective_baseline(spec)
    start = complete(spec.space, spec.baseline, baseline)
    seen = {config_key({name: baseline[name] for name in start if name in baseline})}
    seeds: list[tuple[str, dict[str, Value]]] = []
    for name, wishes in _ideas(spec, baseline):
        fitted = _fit(spec.space, wishes)
        if not fitted:
            continue
        config = _repair(spec.space, complete(spec.space, {**start, **fitted}, baseline))
        if config is None or config_key(config) in seen:
            continue
        seen.add(config_key(config))
        seeds.append((name, config))
    return tuple(seeds if limit is None else seeds[:limit])


def _ideas(spec: StudySpec, baseline: Config) -> Iterator[Idea]:
    clients = spec.workload.concurrency
    latency_bound = {limit.metric for limit in spec.budget.limits} & {LatencyMetric.ITL, LatencyMetric.TPOT}
    few = min(clients or 256, 256)
    if clients > 0:
        yield "as many sequences as clients", {SEQS: clients}
    if latency_bound:
        yield "small token budget", {TOKENS: 512, SEQS: few}
    yield from _speculative(spec)
    if spec.hardware.device != "cpu" and spec.hardware.compute_units > 0:
        yield "compute units × 1.5", {SEQS: round(1.5 * spec.hardware.compute_units)}
    yield from _parallel(spec)
    yield from _profiles(baseline, clients)
    yield from _lengths(spec)
    if clients > 1:
        yield "half as many sequences as clients", {SEQS: max(1, clients // 2)}
        yield "twice as many sequences as clients", {SEQS: 2 * clients}
    if not latency_bound:
        yield "small token budget", {TOKENS: 512, SEQS: few}
    yield "large token budget", {TOKENS: 8192}


def _speculative(spec: StudySpec) -> Iterator[Idea]:
    method = spec.space.parameter(METHOD)
    offered = method.choices if method is not None else ()
    chosen = next((name for name in _METHODS if name in offered), None)
    few = 0 < spec.workload.concurrency <= 16
    if chosen is not None and (few or chosen in {"mtp", "eagle3", "eagle"}):
        tokens = 1 if chosen == "mtp" else 3
        yield f"speculation by {chosen}", {METHOD: chosen, "speculative_config.num_speculative_tokens": tokens}


def _parallel(spec: StudySpec) -> Iterator[Idea]:
    count = spec.hardware.count
    if count > 1:
        yield "all GPUs for one replica", {"tensor_parallel_size": count, "data_parallel_size": 1}
        yield "experts spread over all GPUs", {"tensor_parallel_size": count, "enable_expert_parallel": True}
        yield (
            "attention replicated, experts spread",
            {"tensor_parallel_size": 1, "data_parallel_size": count, "enable_expert_parallel": True},
        )


def _profiles(baseline: Config, clients: int) -> Iterator[Idea]:
    """The engine's own throughput and latency profiles."""
    seqs, tokens = baseline.get(SEQS), baseline.get(TOKENS)
    if isinstance(seqs, int) and isinstance(tokens, int):
        profile: dict[str, Value] = {SEQS: 2 * seqs, TOKENS: 2 * tokens, "performance_mode": "throughput"}
        yield "throughput profile", profile
    few = max(1, clients // 2) if clients > 0 else 16
    yield "latency profile", {SEQS: few, TOKENS: 1024, "enforce_eager": False, "performance_mode": "interactivity"}


def _lengths(spec: StudySpec) -> Iterator[Idea]:
    """Ideas from the lengths of the traffic and of the context."""
    if spec.workload.shared_prefix.tokens > 0:
        yield "prefix caching in small blocks", {"enable_prefix_caching": True, "block_size": 32}
    longest = spec.space.fixed.get("max_model_len", spec.engine.model.get("max_position_embeddings", 0))
    context = int(longest) if isinstance(longest, int) and not isinstance(longest, bool) else 0
    if context >= 32768:
        yield "block size for long contexts", {"block_size": 128 if context > 65536 else 64}
    prompt = spec.workload.input_tokens.mean
    if prompt >= 1024:
        threshold = spec.space.parameter("long_prefill_token_threshold")
        smallest = int(threshold.step or 0) if threshold is not None else 0
        chunk = max(256, context // 25, smallest)
        yield "long prompts in bounded chunks", {"long_prefill_token_threshold": chunk, TOKENS: 4096}


def _fit(space: Space, wishes: Mapping[str, Value]) -> dict[str, Value]:
    """Return the wishes that the space can express, moved to the nearest allowed value."""
    fitted: dict[str, Value] = {}
    for name, wanted in wishes.items():
        parameter = space.parameter(name)
        value = _nearest(parameter, wanted) if parameter is not None else None
        if value is not None:
            fitted[name] = value
    return fitted


def _nearest(parameter: Parameter, wanted: Value) -> Value | None:
    """Return the member of the domain nearest to *wanted*, or ``None`` where nearness means nothing."""
    if parameter.contains(wanted):
        return wanted
    if isinstance(wanted, bool | str):
        return None
    if parameter.kind is not ParameterKind.CHOICE:
        return parameter.clip(wanted)
    numbers = [c for c in parameter.choices if isinstance(c, int | float) and not isinstance(c, bool)]
    return min(numbers, key=lambda choice: abs(choice - wanted)) if numbers else None


def _ordinary(parameter: Parameter) -> Value:
    """Return a harmless member of the domain."""
    if parameter.absent is not None:
        return parameter.absent
    if parameter.neutral is not None and parameter.contains(parameter.neutral):
        return parameter.neutral
    if parameter.kind is ParameterKind.CHOICE:
        return parameter.choices[0]
    low, high = parameter.low or 0.0, parameter.high or 0.0
    return parameter.clip((low * high) ** 0.5 if parameter.log else (low + high) / 2)


def _repair(space: Space, config: dict[str, Value]) -> dict[str, Value] | None:
    """Return *config* changed so that no rule is broken, or ``None``."""
    if not space.violations(config):
        return config
    for name in (TOKENS, "tensor_parallel_size", "data_parallel_size"):
        parameter = space.parameter(name)
        if parameter is None:
            continue
        for value in _candidates(parameter, space.full(config).get(SEQS)):
            changed = {**config, name: value}
            if not space.violations(changed):
                return changed
    return None


def _candidates(parameter: Parameter, seqs: Value | None) -> tuple[Value, ...]:
    if parameter.kind is ParameterKind.CHOICE:
        return parameter.choices
    ends = [end for end in (seqs, parameter.high) if isinstance(end, int | float)]
    return tuple(parameter.clip(end) for end in ends)
