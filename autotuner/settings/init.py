"""Writes a commented study file for an engine, a device and a model."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import PurePath

from autotuner.core.space import EngineDescription
from autotuner.core.study import Hardware
from autotuner.core.workload import Workload
from autotuner.settings.catalog import CATALOG, METHOD, propose
from autotuner.settings.context import Proposal, SpaceContext
from autotuner.settings.flags import Findings
from autotuner.settings.space import build_space, describe_domain
from autotuner.settings.study_file import AUTO, SpaceSection, StudyFile

__all__ = ["render_init"]


def render_init(description: EngineDescription, hardware: Hardware, model: str, command: Sequence[str] = ()) -> str:
    """Return a study file that loads as it is and says in comments what else could be searched.

    Args:
        description: What the installed engine says about itself (and about the model, where it was asked).
        hardware: What was detected.
        model: Path, hub name or ``auto``.
        command: The command that starts the engine, where the user named one.
    """
    args = _args(description, hardware)
    context = SpaceContext(engine=description, hardware=hardware, workload=Workload(), fixed=args)
    parts = [_head(description, hardware, model), _engine(description, args, command), _TRAFFIC, _effort(description)]
    return "\n".join([*parts, _space(context), _TAIL])


def _args(description: EngineDescription, hardware: Hardware) -> dict[str, int]:
    """Return flags that a first run needs: on a CPU the KV cache must be bounded, or it takes most of the memory."""
    if description.platform != "cpu" or description.flag("kv_cache_memory_bytes") is None:
        return {}
    share = hardware.memory_bytes // 8 if hardware.memory_bytes else 2**29
    return {"kv_cache_memory_bytes": max(2**28, min(share, 8 * 2**30) // 2**28 * 2**28)}


def _head(description: EngineDescription, hardware: Hardware, model: str) -> str:
    stem = PurePath(model).name if model != AUTO else "first"
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:48] or "study"
    memory = f", {hardware.memory_bytes / 2**30:.0f} GiB" if hardware.memory_bytes else ""
    units = (
        f", {hardware.compute_units} {'cores' if hardware.device == 'cpu' else 'SMs'}" if hardware.compute_units else ""
    )
    title = " ".join((hardware.name or hardware.device).split())
    lines = [
        f"# Written for {description.kind} {description.version} on {hardware.count} × {title}{units}{memory}.",
        "# Check it with: autotuner validate FILE.  Durations need their unit; sizes may have one.",
        "# For an editor's help write the schema beside it: autotuner schema > study.schema.json",
        f"name: {name}",
        f"model: {json.dumps(model, ensure_ascii=False)}",
        "hardware: auto                    # or state device, count, memory ... of another machine",
    ]
    return "\n".join(lines) + "\n"


def _engine(description: EngineDescription, args: dict[str, int], command: Sequence[str]) -> str:
    own = "  # command: /path/to/vllm serve   # an engine of your own"
    lines = [
        "engine:",
        f"  kind: {description.kind}",
        f"  command: {json.dumps(list(command), ensure_ascii=False)}" if command else own,
        "  args:",
    ]
    lines[-1] += "" if args else " {}"
    lines[-1] += "                             # flags of every launch"
    lines += [f"    {name}: {_bytes(value)}" for name, value in args.items()]
    longest = description.model.get("max_position_embeddings")
    if longest:
        comment = "" if args else "# under args: "
        lines.append(f"    # {comment}max_model_len: {longest}     # the model's own length")
    lines.append("  env: {}                           # NAME: ${NAME} takes a secret from the worker's environment")
    return "\n".join(lines) + "\n"


def _bytes(value: int) -> str:
    return f"{value // 2**20} MiB"


_TRAFFIC = """\
workload:
  mode: closed                      # open: requests arrive at a rate, whatever the engine does
  concurrency: 16
  # rate: 10                        # requests per second of an open loop
  input_tokens: {kind: lognormal, mean: 128, spread: 64, low: 16, high: 512}
  output_tokens: {kind: normal, mean: 64, spread: 8, low: 32, high: 96}
  # shared_prefix: {tokens: 64, groups: 4}
  # trace: {path: trace.csv}        # with arrival: trace and mode: open

latency:                            # without limits only throughput counts
  # total: 500 ms                   # named parts; inference becomes a limit on e2e_p95
  # parts: {network: 80 ms, preprocessing: 70 ms, inference: 350 ms}
  limits: {}                        # such as ttft_p95: 500 ms, itl_p99: 50 ms, e2e_p99_9: 20 s
  max_error_ratio: 0.01

objective: output_throughput        # total_throughput, goodput
"""

_TAIL = """\
baseline: {}                        # the flags in production now; empty means the engine's defaults
seeds: []                           # configurations to try first, such as - {max_num_seqs: 32}
"""


def _effort(description: EngineDescription) -> str:
    small = description.platform == "cpu" or description.kind == "simulated"
    trials, wall, duration = (16, "30 min", "10 s") if small else (30, "3 h", "60 s")
    return (
        f"budget:\n  trials: {trials}\n  wall_time: {wall}\n\n"
        f"measure:\n  duration: {duration}\n  duration_max: {'60 s' if small else '3 min'}\n"
    )


def _space(context: SpaceContext) -> str:
    section = SpaceSection()
    built = build_space(context, section, {}, Findings(StudyFile(name="init")))
    chosen = {parameter.name: parameter for parameter in built.space}
    lines = [
        "search:",
        "  sampler: tpe",
        "  space:",
        "    auto: true                      # searches, unless excluded:",
    ]
    reasons = {item.name: item.reason for item in built.explanations}
    lines += [f"    #   {name}: {describe_domain(chosen[name])} ({reasons[name]})" for name in chosen]
    lines += ["    # offered as well; move a name into include, or give it a domain here:"]
    for name in CATALOG:
        if name in chosen:
            continue
        proposal = _offer(name, context)
        if proposal.parameter is not None:
            lines.append(f"    #   {name}: {describe_domain(proposal.parameter)} ({proposal.reason})")
    lines += ["    include: []", "    exclude: []"]
    return "\n".join(lines) + "\n"


def _offer(name: str, context: SpaceContext) -> Proposal:
    """Return what could be searched on request; parts of speculation go with its method."""
    if name.startswith("speculative_config.") and name != METHOD:
        return Proposal(reason="comes with the method")
    return propose(name, context)
