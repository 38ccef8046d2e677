"""The plug-in inside the engine: bounds, effects, and silence when vLLM is not what it expects."""

from __future__ import annotations

import dataclasses
import enum
import sys
import types
from typing import Any

import pytest

from autotuner_worker.in_engine import live


class Mode(enum.IntEnum):
    """An enumeration with plain values."""

    COMPILE = 3


class Backend(enum.Enum):
    """An enumeration whose values are places in the code."""

    FLASH = "vllm.attention.flash"


@dataclasses.dataclass
class Offload:
    """A nested section."""

    gigabytes: float = 1.5


@dataclasses.dataclass
class SchedulerConfig:
    """The part of vLLM's configuration that the scheduler reads at every step."""

    max_num_seqs: int = 32
    long_prefill_token_threshold: int = 0
    sizes: tuple[int, ...] = (1, 2, 4)
    offload: Offload = dataclasses.field(default_factory=Offload)
    mode: Mode = Mode.COMPILE
    backend: Backend = Backend.FLASH
    nothing: None = None
    strange: object = dataclasses.field(default_factory=object)


@dataclasses.dataclass
class Config:
    """The whole configuration."""

    scheduler_config: SchedulerConfig = dataclasses.field(default_factory=SchedulerConfig)
    level: int = 2


class Scheduler:
    """What the plug-in needs of vLLM's scheduler."""

    def __init__(self, config: Config) -> None:
        self.scheduler_config = config.scheduler_config
        self.max_num_running_reqs = 32
        self.max_num_active_reqs = 32
        self.max_num_scheduled_tokens = 1024
        self.max_model_len = 512

    def get_request_counts(self) -> tuple[int, int]:
        """Return running and waiting."""
        return 3, 1


class Core:
    """What the plug-in needs of vLLM's engine core."""

    def __init__(self) -> None:
        self.vllm_config = Config()
        self.scheduler: Any = Scheduler(self.vllm_config)


def test_the_state_of_a_fresh_engine() -> None:
    state = live.core_state(Core())
    assert state["hot"] is True
    assert state["limits"] == {"max_num_seqs": 32, "max_num_batched_tokens": 1024, "long_prefill_token_threshold": 0}
    assert state["bounds"] == {"max_num_seqs": 32, "max_num_batched_tokens": 1024, "long_prefill_token_threshold": 512}
    assert (state["running"], state["waiting"]) == (3, 1)
    assert state["effective"] == {
        "level": 2,
        "scheduler_config.backend": "FLASH",
        "scheduler_config.long_prefill_token_threshold": 0,
        "scheduler_config.max_num_seqs": 32,
        "scheduler_config.mode": 3,
        "scheduler_config.offload.gigabytes": 1.5,
        "scheduler_config.sizes": "1,2,4",
    }


def test_limits_move_down_and_up_again_but_never_above_the_start() -> None:
    core = Core()
    low = live.core_limits(core, {"max_num_seqs": 2, "max_num_batched_tokens": 64, "long_prefill_token_threshold": 16})
    assert low["limits"] == {"max_num_seqs": 2, "max_num_batched_tokens": 64, "long_prefill_token_threshold": 16}
    assert core.scheduler.max_num_active_reqs == 2
    assert core.scheduler.max_num_running_reqs == 32
    high = live.core_limits(
        core, {"max_num_seqs": 99, "max_num_batched_tokens": 9999, "long_prefill_token_threshold": 9999}
    )
    assert high["limits"] == low["bounds"] == high["bounds"]
    assert live.core_limits(core, {"max_num_seqs": -5})["limits"]["max_num_seqs"] == 1


def test_a_lower_admission_limit_of_the_launch_is_the_bound() -> None:
    core = Core()
    core.scheduler.max_num_active_reqs = 8
    assert live.core_limits(core, {"max_num_seqs": 16})["limits"]["max_num_seqs"] == 8


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"block_size": 1}, "unknown limits: block_size"), ({"max_num_seqs": "x"}, "ValueError"), (None, "TypeError")],
)
def test_wrong_requests_change_nothing(changes: Any, reason: str) -> None:
    core = Core()
    answer = live.core_limits(core, changes)
    assert answer["hot"] is False
    assert reason in answer["reason"]
    assert core.scheduler.max_num_active_reqs == 32


def test_an_unknown_scheduler_is_left_alone() -> None:
    core = Core()
    del core.scheduler.max_num_active_reqs
    assert live.core_state(core)["reason"] == "this scheduler has no max_num_active_reqs"
    assert live.core_limits(core, {"max_num_seqs": 1})["hot"] is False
    core.scheduler = None
    assert live.core_state(core)["hot"] is False
    assert live.core_state(object())["hot"] is False


def test_registering_adds_the_methods_once_and_never_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    live.register()  # without vLLM
    module = types.ModuleType("vllm.v1.engine.core")
    monkeypatch.setitem(sys.modules, "vllm.v1.engine.core", module)
    live.register()  # without the class
    module.EngineCore = type("EngineCore", (Core,), {})  # type: ignore[attr-defined]
    live.register()
    live.register()
    assert module.EngineCore().autotuner_state()["hot"] is True
    assert module.EngineCore().autotuner_limits({"max_num_seqs": 4})["limits"]["max_num_seqs"] == 4


class Client:
    """An engine client of as many cores as there are answers."""

    def __init__(self, answers: list[dict[str, Any]]) -> None:
        self.engine_core = self
        self.answers = answers

    async def call_utility_all_async(self, method: str, *arguments: Any) -> list[dict[str, Any]]:
        """Return the answers."""
        return self.answers


async def ask(client: object) -> dict[str, Any]:
    """Return what the endpoint makes of a client's answers."""
    endpoint = live.LiveEndpoint()
    await endpoint.init_state(client, None, None)
    return await endpoint._ask("autotuner_state")


async def test_several_cores_answer_as_one() -> None:
    state = live.core_state(Core())
    both = await ask(Client([state, dict(state)]))
    assert (both["hot"], both["running"], both["waiting"], both["engines"]) == (True, 6, 2, 2)
    other = await ask(Client([state, {**state, "limits": {"max_num_seqs": 1}}]))
    assert other["hot"] is False
    assert "disagree" in other["reason"]


async def test_an_engine_client_without_the_calls_is_an_answer_too() -> None:
    assert (await ask(None))["hot"] is False
    assert "AttributeError" in (await ask(object()))["reason"]


def test_an_application_that_takes_no_routes_is_left_alone() -> None:
    live.LiveEndpoint().attach_router(object())
