"""Engines behind an OpenAI-compatible HTTP server: the client, the state they report and the running handle.

What is specific to one engine (its command line, its log) stays outside: a handle is given the process and a function
that explains a death.  Hot parameters go through the routes under ``/autotuner``; an engine without them works all the
same, only without hot parameters.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import aiohttp

from autotuner.core.space import Config, Value
from autotuner.core.trial import Launch, OutcomeClass
from autotuner.errors import EnvironmentFault
from autotuner_worker.guardian import read_stat
from autotuner_worker.ports import EngineDeath, EngineFault
from autotuner_worker.process import ExitStatus, ManagedProcess, port_is_free

__all__ = ["Answer", "EngineClient", "Explain", "HttpEngine", "LiveState", "parse_metrics", "process_usage"]

STOP_GRACE = 4.0
"""Seconds between the polite and the hard end; vLLM never follows the polite one while an answer streams."""
HEALTH_INTERVAL = 1.0
EXIT_GRACE = 8.0
"""Seconds that an engine which reports its own death may take to end; then it is ended."""
PORT_GRACE = 5.0
RESET_TRIES = 20
"""Attempts at emptying the prefix cache, 0.1 s apart: blocks of requests that have just ended may still be held."""
_CALL_TIMEOUT = aiohttp.ClientTimeout(total=40.0, sock_connect=5.0)
_HEALTH_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
_PROBE_TOKENS = (5, 6, 7)
"""Token ids that every vocabulary has."""
_WAITING = ("vllm:num_requests_running", "vllm:num_requests_waiting")

Explain = Callable[[ExitStatus | None], EngineFault]
"""Says why the engine died while serving, from its exit (``None`` while it runs on) and what it printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """What ``GET /autotuner/state`` says."""

    hot: bool = False
    """Limits can be set."""
    reason: str = ""
    """Why not, when they cannot."""
    limits: Mapping[str, int] = field(default_factory=dict)
    bounds: Mapping[str, int] = field(default_factory=dict)
    """The largest value that each limit may take in this process."""
    running: int = -1
    waiting: int = -1
    effective: Mapping[str, Value] = field(default_factory=dict)
    """``section.field`` → value of the engine's own configuration."""

    @classmethod
    def parse(cls, answer: Mapping[str, Any]) -> LiveState:
        """Return the state in a JSON answer; missing parts get their defaults."""
        return cls(
            hot=bool(answer.get("hot")),
            reason=str(answer.get("reason", "")),
            limits={str(name): int(value) for name, value in dict(answer.get("limits") or {}).items()},
            bounds={str(name): int(value) for name, value in dict(answer.get("bounds") or {}).items()},
            running=int(answer.get("running", -1)),
            waiting=int(answer.get("waiting", -1)),
            effective=dict(answer.get("effective") or {}),
        )


class Answer(StrEnum):
    """What a probing completion came to."""

    SILENT = "silent"
    """Nobody listens yet, or the server says that it is not ready."""
    GOOD = "good"
    """Tokens came back."""
    GARBAGE = "garbage"
    """Something came back that is not a completion."""


class EngineClient:
    """Talks to one engine.  Methods raise ``aiohttp.ClientError`` or ``TimeoutError`` unless they say otherwise."""

    def __init__(self, base_url: str, model: str) -> None:
        self.base_url, self.model = base_url, model
        self._session = aiohttp.ClientSession(timeout=_CALL_TIMEOUT)

    async def close(self) -> None:
        """Close the connections; may be called twice."""
        await self._session.close()

    async def complete(self, tokens: int = 2, timeout: float = 60.0) -> tuple[Answer, str]:
        """Ask for a real completion of token ids; return what came and, unless it was good, a word about it.  Never raises."""
        body = {
            "model": self.model,
            "prompt": list(_PROBE_TOKENS),
            "max_tokens": tokens,
            "temperature": 0.0,
            "ignore_eos": True,
        }
        limit = aiohttp.ClientTimeout(total=timeout)
        try:
            async with self._session.post(f"{self.base_url}/v1/completions", json=body, timeout=limit) as response:
                text = await response.text(errors="replace")
                if response.status in (502, 503, 504):
                    return Answer.SILENT, f"HTTP {response.status}"
                if response.status != 200:
                    return Answer.GARBAGE, f"HTTP {response.status}: {text[:200]}"
                return _judge(await response.json(content_type=None), tokens)
        except (aiohttp.ClientConnectionError, TimeoutError) as error:
            return Answer.SILENT, f"{type(error).__name__}: {error}"
        except (aiohttp.ClientError, ValueError) as error:
            return Answer.GARBAGE, f"{type(error).__name__}: {error}"[:300]

    async def health(self) -> int:
        """Return the status of ``/health``; 0 when nobody answers.  Never raises."""
        try:
            async with self._session.get(f"{self.base_url}/health", timeout=_HEALTH_TIMEOUT) as response:
                await response.read()
                return response.status
        except (aiohttp.ClientError, TimeoutError):
            return 0

    async def metrics(self) -> dict[str, float]:
        """Return the engine's figures, see :func:`parse_metrics`."""
        async with self._session.get(f"{self.base_url}/metrics") as response:
            response.raise_for_status()
            return parse_metrics(await response.text(errors="replace"))

    async def state(self) -> LiveState:
        """Return the live state; one without ``hot`` where the engine offers no such route.  Never raises."""
        answer = await self._json("GET", "/autotuner/state")
        return (
            LiveState.parse(answer) if answer is not None else LiveState(reason="the engine has no /autotuner routes")
        )

    async def limits(self, changes: Mapping[str, int]) -> LiveState:
        """Set limits and return the state after it.  Never raises."""
        answer = await self._json("POST", "/autotuner/limits", dict(changes))
        return LiveState.parse(answer) if answer is not None else LiveState(reason="the engine does not answer")

    async def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache; ``False`` while blocks are in use or without such a route.  Never raises."""
        answer = await self._json("POST", "/autotuner/reset_prefix_cache")
        return bool(answer and answer.get("success"))

    async def _json(self, method: str, route: str, body: Any = None) -> dict[str, Any] | None:
        try:
            async with self._session.request(method, self.base_url + route, json=body) as response:
                answer = await response.json(content_type=None) if response.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return None
        return answer if isinstance(answer, dict) else None


def _judge(answer: Any, tokens: int) -> tuple[Answer, str]:
    """Return whether a parsed body is a completion with tokens in it."""
    try:
        choice = answer["choices"][0]
        count = int(answer["usage"]["completion_tokens"])
    except (KeyError, IndexError, TypeError, ValueError):
        return Answer.GARBAGE, f"not a completion: {str(answer)[:200]}"
    if not isinstance(choice.get("text"), str) or not 1 <= count <= tokens:
        return Answer.GARBAGE, f"a completion without the tokens asked for: {str(answer)[:200]}"
    return Answer.GOOD, ""


def parse_metrics(text: str) -> dict[str, float]:
    """Return metric name → value of a Prometheus text: labels summed, histograms as ``_sum`` and ``_count``."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        name, brace, rest = line.partition("{")
        if brace:
            value = rest.rpartition("}")[2].split()
        else:
            name, *value = line.split()
        if not value or name.endswith(("_bucket", "_created")):
            continue
        with contextlib.suppress(ValueError):
            found[name] = found.get(name, 0.0) + float(value[0])
    return found


def process_usage(pids: list[int]) -> dict[str, float]:
    """Return ``cpu_seconds`` and ``rss_bytes`` summed over processes; those that are gone count nothing."""
    stats = [stat for stat in map(read_stat, pids) if stat is not None]
    return {
        "cpu_seconds": sum(stat.cpu_ticks for stat in stats) / os.sysconf("SC_CLK_TCK"),
        "rss_bytes": float(sum(stat.rss_pages for stat in stats) * os.sysconf("SC_PAGE_SIZE")),
    }


class HttpEngine:
    """A running engine; implements :class:`autotuner_worker.ports.Engine`."""

    def __init__(
        self,
        *,
        client: EngineClient,
        process: ManagedProcess,
        port: int,
        launch: Launch,
        state: LiveState,
        explain: Explain,
    ) -> None:
        self._client, self._process, self._port = client, process, port
        self._launch, self._state, self._explain = launch, state, explain
        self._death: asyncio.Future[EngineFault] = asyncio.get_running_loop().create_future()
        self._watcher = asyncio.create_task(self._watch())
        self._stopping: asyncio.Task[None] | None = None

    @property
    def launch(self) -> Launch:
        """The record of this start."""
        return self._launch

    @property
    def base_url(self) -> str:
        """``http://127.0.0.1:PORT``."""
        return self._client.base_url

    @property
    def model_name(self) -> str:
        """The name to send in requests."""
        return self._client.model

    @property
    def hot_capable(self) -> bool:
        """The engine answered that its limits can be set."""
        return self._state.hot

    async def state(self) -> LiveState:
        """Return limits, bounds, request counts and effective values as they are now."""
        return await self._client.state()

    async def apply_hot(self, hot: Config) -> Mapping[str, Value]:
        """Set hot parameters, read them back and return them; raise ``EngineDeath`` when they did not take.

        Limits that are not named return to what the engine was started with: nothing of an earlier point stays.
        """
        if not hot and not self.hot_capable:
            return {}
        wrong = [name for name, value in hot.items() if isinstance(value, bool) or not isinstance(value, int)]
        if wrong:
            raise self._refusal(f"hot parameters take whole numbers: {', '.join(sorted(wrong))}")
        wanted = {**self._state.limits, **{name: int(value) for name, value in hot.items()}}
        state = await self._client.state()
        if state.limits != wanted:
            await self._client.limits(wanted)
            state = await self._client.state()
        self._raise_if_dead()
        differing = [
            f"{name}={value} (is {state.limits.get(name)})"
            for name, value in wanted.items()
            if state.limits.get(name) != value
        ]
        if not state.hot or differing:
            raise self._refusal(f"hot parameters did not take: {', '.join(differing) or state.reason}")
        return {name: state.limits[name] for name in hot}

    async def settle(self, timeout: float) -> None:
        """Wait until no request runs or waits; raise ``EngineDeath`` (HUNG) after *timeout* seconds."""
        try:
            async with asyncio.timeout(timeout):
                while await self._requests() > 0:
                    self._raise_if_dead()
                    await asyncio.sleep(0.05)
        except TimeoutError:
            self._raise_if_dead()
            message = f"requests were still running or waiting {timeout:g} s after the load had ended"
            raise EngineDeath(EngineFault(outcome=OutcomeClass.HUNG, message=message), self._launch) from None
        self._raise_if_dead()

    async def _requests(self) -> float:
        if self.hot_capable:
            state = await self._client.state()
            if state.running >= 0:
                return float(state.running + state.waiting)
        try:
            figures = await self._client.metrics()
        except (aiohttp.ClientError, TimeoutError):
            return 1.0  # unknown: ask again
        return sum(figures.get(name, 0.0) for name in _WAITING)

    async def reset_caches(self) -> None:
        """Empty the prefix cache; without effect on an engine that does not offer it (prompts are fresh anyway)."""
        if not self.hot_capable:
            return
        for _ in range(RESET_TRIES):
            if await self._client.reset_prefix_cache():
                return
            self._raise_if_dead()
            await asyncio.sleep(0.1)

    async def metrics(self) -> Mapping[str, float]:
        """Return the engine's own figures; raise ``EngineDeath`` when it does not answer."""
        try:
            return await self._client.metrics()
        except (aiohttp.ClientError, TimeoutError) as error:
            self._raise_if_dead()
            fault = EngineFault(outcome=OutcomeClass.HUNG, message=f"the engine's metrics cannot be read: {error!r}")
            raise EngineDeath(fault, self._launch) from error

    async def host_usage(self) -> Mapping[str, float]:
        """Return ``cpu_seconds`` and ``rss_bytes`` summed over the engine's processes."""
        return process_usage(self._process.pids())

    def process_ids(self) -> list[int]:
        """Return the engine's live processes, the leader first."""
        pids = self._process.pids()
        return sorted(pids, key=lambda pid: (pid != self._process.pid, pid))

    async def died(self) -> EngineFault:
        """Return when the engine ends by itself, with the reason; never after ``stop`` was called."""
        return await asyncio.shield(self._death)

    async def stop(self) -> None:
        """Stop gracefully, then hard; return when every process and the port are gone.

        Raises ``EnvironmentFault`` when something cannot be ended.  May be called again; cancelling does not stop it.
        """
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        await _cancel(self._watcher)
        report = await self._process.stop(STOP_GRACE)
        await self._client.close()
        if report.survivors:
            raise EnvironmentFault(f"these processes of the engine cannot be ended: {', '.join(report.survivors)}")
        deadline = asyncio.get_running_loop().time() + PORT_GRACE
        while not port_is_free("127.0.0.1", self._port):
            if asyncio.get_running_loop().time() > deadline:
                raise EnvironmentFault(f"port {self._port} is still in use after the engine has ended")
            await asyncio.sleep(0.05)

    async def _watch(self) -> None:
        """Notice the engine's death by its exit or by its own word, end what is left of it, and explain."""
        exited = asyncio.create_task(self._process.wait())
        try:
            status = await self._first_sign(exited)
            report = await self._process.stop(0.0 if status is not None else STOP_GRACE)
            self._death.set_result(self._explain(status or report.exit))
        finally:
            await _cancel(exited)

    async def _first_sign(self, exited: asyncio.Task[ExitStatus]) -> ExitStatus | None:
        while True:
            done, _ = await asyncio.wait({exited}, timeout=HEALTH_INTERVAL)
            if done:
                return exited.result()
            if await self._client.health() == 503:
                done, _ = await asyncio.wait({exited}, timeout=EXIT_GRACE)
                return exited.result() if done else None

    def _raise_if_dead(self) -> None:
        if self._death.done():
            raise EngineDeath(self._death.result(), self._launch)

    def _refusal(self, message: str) -> EngineDeath:
        return EngineDeath(EngineFault(outcome=OutcomeClass.INFRASTRUCTURE, message=message), self._launch)


async def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
