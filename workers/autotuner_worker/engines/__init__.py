"""Engine adapters, chosen by name and loaded when asked for."""

from __future__ import annotations

import importlib
from typing import cast

from autotuner.errors import EngineUnavailable
from autotuner_worker.ports import EngineAdapter

__all__ = ["ADAPTERS", "adapter_class"]

ADAPTERS: dict[str, str] = {
    "vllm": "autotuner_worker.engines.vllm:VllmAdapter",
    "simulated": "autotuner_worker.engines.simulated:SimulatedAdapter",
}
"""Engine kind → ``module:class``."""


def adapter_class(kind: str) -> type[EngineAdapter]:
    """Return the adapter class for *kind*; raise ``EngineUnavailable`` when there is none."""
    place = ADAPTERS.get(kind)
    if place is None:
        raise EngineUnavailable(f"there is no engine adapter called {kind}; known are {', '.join(sorted(ADAPTERS))}")
    module, _, name = place.partition(":")
    return cast("type[EngineAdapter]", getattr(importlib.import_module(module), name))
