"""Turns a study file, the engine's description of itself and the hardware into a complete study."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from autotuner.core.budget import LatencyBudget, LatencyMetric, Limit
from autotuner.core.seeds import complete, effective_baseline, expert_seeds, seed_limit
from autotuner.core.space import Config, EngineDescription, Value, config_key
from autotuner.core.study import Effort, Hardware, MeasurePlan, Objective, SearchPlan, StudySpec
from autotuner.core.workload import Arrival, LengthKind, Lengths, LoadMode, SharedPrefix, TraceSource, Workload
from autotuner.errors import SpaceError
from autotuner.settings.catalog import METHOD
from autotuner.settings.context import SpaceContext
from autotuner.settings.flags import Findings, flatten_flags
from autotuner.settings.gates import impossible, unfit_here
from autotuner.settings.quantities import parse_limit_key, stricter
from autotuner.settings.space import BuiltSpace, Explanation, build_space
from autotuner.settings.study_file import HardwareSection, LengthsSection, StudyFile, WorkloadSection

__all__ = [
    "BuiltStudy",
    "build_spec",
    "build_study",
    "build_workload",
    "effective_baseline",
    "explain_space",
    "merge_hardware",
]

_UNBOUNDED = 1_000_000
_EXTREME = 99.0
"""Percentile from which on a few samples beyond it are wanted."""
_TAIL = 10
"""So many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltStudy:
    """A study ready to run, and what its user should know about it."""

    spec: StudySpec
    notes: tuple[str, ...]
    """What was left out, kept or clipped, one sentence each."""
    explanations: tuple[Explanation, ...]
    """Every parameter: searched or not, and why."""


def build_spec(study: StudyFile, description: EngineDescription, hardware: Hardware) -> StudySpec:
    """Return the complete study.

    Raises:
        SpaceError: the engine, model or device cannot do what the file asks for; all problems are listed.
    """
    return build_study(study, description, hardware).spec


def explain_space(
    study: StudyFile, description: EngineDescription, hardware: Hardware
) -> tuple[tuple[str, bool, str], ...]:
    """Return (parameter, searched, reason) for every parameter; raise like :func:`build_spec`."""
    built = build_study(study, description, hardware)
    return tuple((item.name, item.searched, item.reason) for item in built.explanations)


def build_study(study: StudyFile, description: EngineDescription, hardware: Hardware) -> BuiltStudy:
    """Return the complete study with notes and explanations; raise like :func:`build_spec`."""
    found = Findings(study)
    device = merge_hardware(study.hardware, hardware)
    context = SpaceContext(
        engine=description, hardware=device, workload=build_workload(study.workload), draft=study.engine.draft
    )
    args = _checked(study.engine.args, context, found, ("engine", "args"))
    context = dataclasses.replace(context, fixed=args)
    baseline = _checked(study.baseline, context, found, ("baseline",))
    for name in sorted(baseline.keys() & args.keys()):
        if baseline[name] != args[name]:
            found.problem(("baseline", name), baseline[name], f"engine.args fixes {args[name]}", "make them agree")
    built = build_space(context, study.search.space, baseline, found)
    context = dataclasses.replace(context, fixed=built.space.fixed)
    workload = _fit_lengths(study.workload, context, found)
    _check_memory(context, found)
    spec = _assemble(study, description, device, workload, built, baseline)
    _note_offered_load(spec, found)
    _note_few_requests(spec, found)
    seeds = _user_seeds(study, spec, context, found)
    if found.problems:
        raise SpaceError(sorted(found.problems, key=lambda p: (p.line or 0, p.field)), study.source)
    spec = _with_seeds(spec, seeds, found)
    return BuiltStudy(spec=spec, notes=tuple(found.notes), explanations=built.explanations)


def merge_hardware(section: HardwareSection | None, detected: Hardware) -> Hardware:
    """Return the hardware that the file states, else what was detected."""
    if section is None:
        return detected
    return Hardware(
        device=section.device,
        name=section.name,
        count=section.count,
        compute_units=section.compute_units,
        memory_bytes=section.memory,
        compute_capability=section.compute_capability,
        nvlink=section.nvlink,
    )


def build_workload(section: WorkloadSection) -> Workload:
    """Return the traffic; lengths without an upper end stay unbounded where their distribution is."""
    default_clients = 16 if section.mode.value == "closed" else 0
    trace = section.trace
    return Workload(
        mode=section.mode,
        concurrency=section.concurrency if section.concurrency is not None else default_clients,
        rate=section.rate,
        arrival=section.arrival,
        burstiness=section.burstiness,
        input_tokens=_lengths(section.input_tokens),
        output_tokens=_lengths(section.output_tokens),
        shared_prefix=SharedPrefix(tokens=section.shared_prefix.tokens, groups=section.shared_prefix.groups),
        trace=TraceSource(path=trace.path, format=trace.format, speed_up=trace.speed_up) if trace else None,
        prompt_format=section.prompt_format,
        temperature=section.temperature,
        ignore_eos=section.ignore_eos,
        request_timeout=section.request_timeout,
    )


def _lengths(section: LengthsSection) -> Lengths:
    tails = {LengthKind.FIXED: 0.0, LengthKind.UNIFORM: 1.0, LengthKind.NORMAL: 4.0, LengthKind.LOGNORMAL: 8.0}
    high = section.high
    if high is None and section.kind in tails:
        high = max(section.low, round(section.mean + tails[section.kind] * section.spread))
    return Lengths(
        kind=section.kind, mean=section.mean, spread=section.spread, low=section.low, high=high or _UNBOUNDED
    )


def _fit_lengths(section: WorkloadSection, context: SpaceContext, found: Findings) -> Workload:
    """Clip open upper ends so that prompt and answer fit the model's length together; report what cannot fit."""
    workload = context.workload
    prompt, answer, longest = workload.input_tokens, workload.output_tokens, context.max_model_len
    if not longest or prompt.high + answer.high <= longest:
        return workload
    place = ("workload", "input_tokens")
    remedy = f"shorten them, or raise max_model_len (now {longest})"
    if section.output_tokens.high is None and answer.kind is not LengthKind.FIXED:
        answer = dataclasses.replace(answer, high=max(answer.low, min(answer.high, longest // 2)))
    room = longest - answer.high
    open_end = section.input_tokens.high is None and prompt.kind is not LengthKind.FIXED
    traced = prompt.kind is LengthKind.TRACE or answer.kind is LengthKind.TRACE
    if prompt.low > room or (not open_end and prompt.high > room) or (not traced and prompt.mean > room):
        text = f"{prompt.high if not open_end else prompt.mean:g} + {answer.high}"
        found.problem(place, text, f"prompt and answer exceed the model's {longest} tokens", remedy)
        return workload
    prompt = dataclasses.replace(prompt, high=min(prompt.high, room))
    found.note(f"prompts are clipped at {prompt.high} and answers at {answer.high} tokens to fit {longest}")
    return dataclasses.replace(workload, input_tokens=prompt, output_tokens=answer)


def _note_offered_load(spec: StudySpec, found: Findings) -> None:
    """Say that the throughput of an open loop is what is offered, until the engine is saturated."""
    if spec.workload.mode is not LoadMode.OPEN or spec.objective is Objective.GOODPUT:
        return
    found.note(
        f"{spec.objective.value} under an open loop cannot exceed the offered load: gains show only where the baseline "
        "is saturated; write objective: goodput, or mode: closed, to compare what the engine can do"
    )


def _note_few_requests(spec: StudySpec, found: Findings) -> None:
    """Say which limits are judged on too few samples for their percentile."""
    load, measure = spec.workload, spec.measure
    requests = measure.min_requests
    if load.mode is LoadMode.OPEN and load.arrival is not Arrival.TRACE:
        requests = max(requests, int(load.rate * measure.duration))
    short: list[tuple[int, str, bool]] = []
    for limit in spec.budget.limits:
        per_request = max(1.0, load.output_tokens.mean - 1) if limit.metric is LatencyMetric.ITL else 1.0
        beyond = 100 - limit.percentile
        share = (_TAIL if limit.percentile >= _EXTREME else 1) * 100 / beyond
        needed = math.ceil(round(share / per_request, 6))
        if requests < needed:
            short.append((needed, limit.key, requests * per_request * beyond / 100 < 2))
    if not short:
        return
    needed, key, largest = max(short)
    meaning = "about the largest value seen" if largest else "set by a handful of the slowest"
    found.note(
        f"{key} is judged on as few as {requests} requests: the percentile is then {meaning}; "
        f"set measure.min_requests to {needed} or more (and duration_max so that they fit), or limit a lower percentile"
    )


def _check_memory(context: SpaceContext, found: Findings) -> None:
    ranks, count = context.memory_ranks(), context.hardware.count
    eased = {"quantization", "cpu_offload_gb", "offload_backend", "nnodes"} & context.fixed.keys()
    if ranks > count and "quantization" not in context.searched and not eased:
        weights, memory = context.fact("weight_bytes") / 2**30, context.hardware.memory_bytes / 2**30
        found.problem(
            ("hardware",),
            f"{count} × {memory:.0f} GiB",
            f"the weights ({weights:.0f} GiB) do not fit",
            f"use {ranks} GPUs or more, or a quantised model",
        )


def _checked(
    flags: dict[str, object], context: SpaceContext, found: Findings, place: tuple[str | int, ...]
) -> dict[str, Value]:
    config = flatten_flags(flags, context.engine, found, place)
    if config.get(METHOD) == "none":
        del config[METHOD]
    for name, value in config.items():
        refusal = impossible(name, value, context)
        unfit = unfit_here(name, value, context)
        if refusal is not None:
            found.problem((*place, *_written(name, flags)), value, *refusal)
        elif unfit is not None:
            found.problem((*place, *_written(name, flags)), value, unfit, "choose another value for this device")
    return config


def _written(name: str, flags: dict[str, object]) -> tuple[str, ...]:
    head = name.split(".", 1)[0]
    spelled = next((key for key in flags if key.replace("-", "_") in {name, head}), name)
    return (spelled,)


def _assemble(
    study: StudyFile,
    description: EngineDescription,
    hardware: Hardware,
    workload: Workload,
    built: BuiltSpace,
    baseline: Config,
) -> StudySpec:
    measure, search, effort = study.measure, study.search, study.budget
    return StudySpec(
        name=study.name,
        model=study.model,
        engine=description,
        hardware=hardware,
        workload=workload,
        budget=_budget(study),
        objective=study.objective,
        effort=Effort(trials=effort.trials, wall_seconds=effort.wall_time, gpu_hours=effort.gpu_hours),
        measure=MeasurePlan(
            **measure.model_dump(exclude={"duration_max"}),
            duration_max=measure.duration_max if measure.duration_max is not None else max(60.0, measure.duration),
        ),
        search=SearchPlan(**search.model_dump(exclude={"space"})),
        space=built.space,
        baseline=baseline,
        labels=dict(study.labels),
    )


def _budget(study: StudyFile) -> LatencyBudget:
    """Return the limits; the inference part becomes an end-to-end limit (R19)."""
    latency = study.latency
    parts = dict(latency.parts)
    if "inference" not in parts and latency.total is not None:
        parts["inference"] = latency.total - sum(parts.values())
    limits = []
    for key, seconds in latency.limits.items():
        metric, percentile = parse_limit_key(key)
        limits.append(Limit(metric=metric, percentile=percentile, seconds=seconds))
    if "inference" in parts:
        limits.append(Limit(metric=LatencyMetric.E2E, percentile=latency.percentile, seconds=parts["inference"]))
    return LatencyBudget(parts=parts, limits=stricter(limits), max_error_ratio=latency.max_error_ratio)


def _user_seeds(study: StudyFile, spec: StudySpec, context: SpaceContext, found: Findings) -> list[Config]:
    seeds: list[Config] = []
    defaults = effective_baseline(spec)
    for index, flags in enumerate(study.seeds):
        place = ("seeds", index)
        config = _checked(flags, context, found, place)
        for name, value in config.items():
            parameter = spec.space.parameter(name)
            if parameter is None and spec.space.fixed.get(name) != value:
                found.problem((*place, name), value, f"{name} is not searched", "add it to search.space, or remove it")
            elif parameter is not None and not parameter.contains(value):
                found.problem((*place, name), value, "outside the searched values", "change it, or widen search.space")
        searched = {name: value for name, value in config.items() if spec.space.parameter(name) is not None}
        full = complete(spec.space, searched, defaults)
        for reason in spec.space.violations(full):
            found.problem(place, None, reason, "change the values so that the rule holds")
        seeds.append(full)
    return seeds


def _with_seeds(spec: StudySpec, user: list[Config], found: Findings) -> StudySpec:
    named = [(f"user {index}", config) for index, config in enumerate(user, start=1)]
    room = max(0, seed_limit(spec.effort.trials) - len(user))
    known = {config_key(config) for config in user}
    experts = [(name, config) for name, config in expert_seeds(spec) if config_key(config) not in known]
    named += experts[:room]
    labels = dict(spec.labels)
    labels |= {f"seed.{index}": name for index, (name, _) in enumerate(named)}
    if found.notes:
        labels["notes"] = "\n".join(found.notes)
    return dataclasses.replace(spec, seeds=tuple(config for _, config in named), labels=labels)
