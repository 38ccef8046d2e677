"""A vLLM plug-in that shows what a running engine really uses and moves its scheduler's admission limits (R8).

Two entry points, both named ``autotuner_live``:

* ``register`` (``vllm.general_plugins``) runs in every process and adds two utility methods to ``EngineCore``, which
  vLLM finds by name when the API server calls them;
* ``LiveEndpoint`` (``vllm.endpoint_plugins``) adds ``GET /autotuner/state``, ``POST /autotuner/limits`` and
  ``POST /autotuner/reset_prefix_cache`` to the API server.

Only values that the scheduler reads afresh at every step are written, and never above what the engine was started
with: model runner, graphs and KV cache were sized for those.  When vLLM's inside differs from what is expected here
the answer is ``{"hot": false, "reason": ...}`` and the engine runs on as if this file did not exist.
"""

import asyncio
import dataclasses
import enum
import logging
import sys
from typing import Any

NAME = "autotuner_live"
CALL_TIMEOUT = 30.0
"""Seconds that an API call waits for the engine core; a step of a large model may take several."""

logger = logging.getLogger("vllm." + NAME)

_ATTRIBUTES = ("max_num_running_reqs", "max_num_active_reqs", "max_num_scheduled_tokens", "scheduler_config")
_SKIPPED_SECTIONS = ("target_model_config", "draft_model_config", "target_parallel_config", "draft_parallel_config")


def register() -> None:
    """Add the utility methods to ``EngineCore`` where that class is loaded; called by vLLM, never raises."""
    try:
        module = sys.modules.get("vllm.v1.engine.core")
        core = getattr(module, "EngineCore", None)
        if core is not None and not hasattr(core, "autotuner_state"):
            core.autotuner_state = core_state
            core.autotuner_limits = core_limits
    except Exception:
        logger.exception("live limits are not available")


def core_state(core: Any) -> dict[str, Any]:
    """Return limits, bounds, request counts and effective values of an ``EngineCore``; never raises."""
    answer: dict[str, Any] = {"hot": False, "reason": "", "running": -1, "waiting": -1}
    answer.update(limits={}, bounds={}, effective={})
    try:
        answer["effective"] = flatten(core.vllm_config)
        scheduler = core.scheduler
        answer["running"], answer["waiting"] = _counts(scheduler)
        answer["reason"] = _unfit(scheduler)
        if not answer["reason"]:
            answer["bounds"] = _bounds(scheduler)
            answer["limits"] = _limits(scheduler)
            answer["hot"] = True
    except Exception as error:
        answer["reason"] = f"{type(error).__name__}: {error}"
    return answer


def core_limits(core: Any, changes: dict[str, Any]) -> dict[str, Any]:
    """Set the scheduler limits named in *changes* within their bounds and return the new state; never raises.

    Args:
        core: The ``EngineCore``.
        changes: ``max_num_seqs``, ``max_num_batched_tokens`` or ``long_prefill_token_threshold`` → whole number.
    """
    try:
        scheduler = core.scheduler
        problem = _unfit(scheduler)
        bounds = {} if problem else _bounds(scheduler)
        unknown = sorted(set(changes) - set(bounds))
        if problem or unknown:
            return {**core_state(core), "hot": False, "reason": problem or "unknown limits: " + ", ".join(unknown)}
        wanted = {name: min(int(value), bounds[name]) for name, value in changes.items()}
        if "max_num_seqs" in wanted:
            scheduler.max_num_active_reqs = max(1, wanted["max_num_seqs"])
        if "max_num_batched_tokens" in wanted:
            scheduler.max_num_scheduled_tokens = max(1, wanted["max_num_batched_tokens"])
        if "long_prefill_token_threshold" in wanted:
            scheduler.scheduler_config.long_prefill_token_threshold = max(0, wanted["long_prefill_token_threshold"])
    except Exception as error:
        return {**core_state(core), "hot": False, "reason": f"{type(error).__name__}: {error}"}
    return core_state(core)


def _unfit(scheduler: Any) -> str:
    missing = [name for name in _ATTRIBUTES if not hasattr(scheduler, name)]
    if not missing and not hasattr(scheduler.scheduler_config, "long_prefill_token_threshold"):
        missing = ["scheduler_config.long_prefill_token_threshold"]
    return "this scheduler has no " + ", ".join(missing) if missing else ""


def _limits(scheduler: Any) -> dict[str, int]:
    return {
        "max_num_seqs": int(scheduler.max_num_active_reqs),
        "max_num_batched_tokens": int(scheduler.max_num_scheduled_tokens),
        "long_prefill_token_threshold": int(scheduler.scheduler_config.long_prefill_token_threshold),
    }


def _bounds(scheduler: Any) -> dict[str, int]:
    """Return the largest allowed limits: what the scheduler had when it was first looked at, before any change."""
    bounds: dict[str, int] | None = getattr(scheduler, "_autotuner_bounds", None)
    if bounds is None:
        bounds = _limits(scheduler)
        bounds["max_num_seqs"] = min(bounds["max_num_seqs"], int(scheduler.max_num_running_reqs))
        bounds["long_prefill_token_threshold"] = int(getattr(scheduler, "max_model_len", 1 << 30))
        scheduler._autotuner_bounds = bounds
    return bounds


def _counts(scheduler: Any) -> tuple[int, int]:
    if hasattr(scheduler, "get_request_counts"):
        running, waiting = scheduler.get_request_counts()
        return int(running), int(waiting)
    return len(scheduler.running), len(scheduler.waiting)


def flatten(config: Any, depth: int = 3, prefix: str = "") -> dict[str, Any]:
    """Return the scalar fields of nested configuration dataclasses as ``section.field`` → bool, int, float or str."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name, None)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            if depth > 1 and field.name not in _SKIPPED_SECTIONS:
                found.update(flatten(value, depth - 1, prefix + field.name + "."))
            continue
        scalar = _scalar(value)
        if scalar is not None:
            found[prefix + field.name] = scalar
    return found


def _scalar(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        plain = isinstance(value.value, bool | int | float) or (isinstance(value.value, str) and "." not in value.value)
        value = value.value if plain else value.name
    if isinstance(value, bool | int | float | str):
        return value if not isinstance(value, str) or len(value) <= 500 else None
    if isinstance(value, list | tuple) and value and all(isinstance(item, int | float | str) for item in value):
        return ",".join(str(item) for item in value)[:500]
    text = str(value)
    return text.removeprefix("torch.") if text.startswith("torch.") and text.count(".") == 1 else None


class LiveEndpoint:
    """The routes; vLLM makes one per API server."""

    name = NAME
    required_tasks = None

    def __init__(self) -> None:
        self._client: Any = None

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Keep the engine client that the routes ask."""
        self._client = engine_client

    def attach_router(self, app: Any) -> None:
        """Add the routes; never raises."""
        try:
            self._attach(app)
        except Exception:
            logger.exception("the /autotuner routes are not available")

    def _attach(self, app: Any) -> None:
        from fastapi import Request  # type: ignore[import-not-found]

        async def state() -> dict[str, Any]:
            return await self._ask("autotuner_state")

        async def limits(request: Request) -> dict[str, Any]:
            return await self._ask("autotuner_limits", await request.json())

        async def reset_prefix_cache() -> dict[str, Any]:
            try:
                return {"success": bool(await asyncio.wait_for(self._client.reset_prefix_cache(), CALL_TIMEOUT))}
            except Exception as error:
                return {"success": False, "reason": f"{type(error).__name__}: {error}"}

        app.add_api_route("/autotuner/state", state, methods=["GET"], include_in_schema=False)
        app.add_api_route("/autotuner/limits", limits, methods=["POST"], include_in_schema=False)
        app.add_api_route(
            "/autotuner/reset_prefix_cache", reset_prefix_cache, methods=["POST"], include_in_schema=False
        )

    async def _ask(self, method: str, *arguments: Any) -> dict[str, Any]:
        """Call every engine core (there are several with data parallelism) and return one answer for all."""
        try:
            core = self._client.engine_core
            call = getattr(core, "call_utility_all_async", None)
            if call is None:
                answers = [await asyncio.wait_for(core.call_utility_async(method, *arguments), CALL_TIMEOUT)]
            else:
                answers = await asyncio.wait_for(call(method, *arguments), CALL_TIMEOUT)
            return merge(answers)
        except Exception as error:
            return {"hot": False, "reason": f"{type(error).__name__}: {error}"}


def merge(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one state for several engine cores: counts added, hot only when all are and their limits agree."""
    first = dict(answers[0])
    for other in answers[1:]:
        first["running"] += other["running"]
        first["waiting"] += other["waiting"]
        if not other["hot"] or other["limits"] != first["limits"]:
            first["hot"] = False
            first["reason"] = other["reason"] or "the engine cores disagree about their limits"
    first["engines"] = len(answers)
    return first
