"""The engine loop: runs the scheduler in scaled time and hands tokens to the requests' mailboxes.

Steps end at absolute deadlines, so that timer granularity does not add up; when the host cannot keep up by more than
``MAX_LAG`` seconds the simulated clock slips instead of running after it for ever.
"""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import dataclass

from autotuner_worker.simulator.blocks import BlockPool
from autotuner_worker.simulator.flags import ServerSettings
from autotuner_worker.simulator.metrics import EngineMetrics
from autotuner_worker.simulator.scheduler import Emission, Limits, Request, Scheduler, StepPlan
from autotuner_worker.simulator.surface import (
    MemoryPlan,
    cost_profile,
    oom_strikes,
    step_cost,
)

__all__ = ["DEAD_MESSAGE", "EngineCore", "Mailbox"]

MAX_LAG = 0.1
DEAD_MESSAGE = "EngineCore encountered an issue. See stack trace (above) for the root cause."


class Mailbox:
    """New tokens for one request; one reader."""

    __slots__ = ("_waiter", "error", "finished", "pending")

    def __init__(self) -> None:
        self.pending = 0
        self.finished = False
        self.error = ""
        self._waiter: asyncio.Future[None] | None = None

    def push(self, tokens: int, *, finished: bool = False, error: str = "") -> None:
        """Add news and wake the reader."""
        self.pending += tokens
        self.finished = self.finished or finished
        self.error = self.error or error
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> int:
        """Wait for news and return the number of new tokens (0 with ``finished`` or ``error``)."""
        if not (self.pending or self.finished or self.error):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        taken, self.pending = self.pending, 0
        return taken


@dataclass(slots=True, kw_only=True)
class _Track:
    """Clock stamps and mailbox of one request."""

    mailbox: Mailbox
    reason: str
    acceptance: float
    arrived: float
    admitted: float = 0.0
    first: float = 0.0
    last: float = 0.0


class EngineCore:
    """One engine: scheduler, KV cache, clock and metrics."""

    def __init__(self, settings: ServerSettings, memory: MemoryPlan, metrics: EngineMetrics) -> None:
        surface = settings.surface
        self.settings = settings
        self.memory = memory
        self.metrics = metrics
        self.pool = BlockPool(memory.num_blocks, caching=settings.prefix_caching)
        drafts = surface.speculation.drafts if surface.speculation else 0
        self.limits = Limits(
            max_num_seqs=surface.max_num_seqs,
            max_num_batched_tokens=surface.max_num_batched_tokens,
            long_prefill_token_threshold=settings.long_prefill_token_threshold,
            chunked_prefill=settings.chunked_prefill,
            reserve_full_prompt=settings.reserve_full_prompt,
            watermark=settings.watermark,
            drafts=drafts,
            priority=settings.priority,
        )
        self.scheduler = Scheduler(self.limits, self.pool, memory.block_size)
        self.dead = asyncio.Event()
        self.hung = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()
        self.cause: tuple[str, ...] = ()
        self._profile = cost_profile(surface)
        self._random = random.Random(f"{settings.sim_seed}")
        self._tracks: dict[Request, _Track] = {}
        self._wake = asyncio.Event()
        self._received = 0
        self._oom = oom_strikes(settings.sim_seed, settings.launch_key, memory.utilisation)
        self._hang_after = settings.faults.number("hang_under_load")
        self._crash_after = settings.faults.number("crash_after_n_requests")

    @property
    def running(self) -> int:
        """Requests being computed."""
        return sum(1 for request in self.scheduler.running if not request.aborted)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return sum(1 for request in self.scheduler.waiting if not request.aborted)

    def submit(self, request: Request, *, reason: str, temperature: float) -> Mailbox:
        """Queue *request* and return where its tokens arrive."""
        mailbox = Mailbox()
        speculation = self.settings.surface.speculation
        self._tracks[request] = _Track(
            mailbox=mailbox,
            reason=reason,
            acceptance=speculation.acceptance(temperature) if speculation else 0.0,
            arrived=asyncio.get_running_loop().time(),
        )
        self._received += 1
        self.idle.clear()
        self.scheduler.add(request)
        self._wake.set()
        if self.dead.is_set():
            mailbox.push(0, error=DEAD_MESSAGE)
        return mailbox

    def abort(self, request: Request) -> None:
        """Forget *request* when its client is gone; harmless after its end."""
        if self._tracks.pop(request, None) is not None:
            request.aborted = True
            self.metrics.finished["abort"] += 1
            self._wake.set()
            self._note_idle()

    async def run(self) -> None:
        """Run steps until the engine dies or the task is cancelled."""
        loop = asyncio.get_running_loop()
        deadline = loop.time()
        while not self.dead.is_set():
            if self._hang_after is not None and self._received >= self._hang_after:
                self.hung.set()
                await asyncio.Event().wait()
            if not self.scheduler.busy:
                self._wake.clear()
                await self._wake.wait()
                deadline = loop.time()
                continue
            plan = self._next_step(loop.time())
            if self._must_die():
                break
            if not plan.chunks:
                await asyncio.sleep(0.001)
                continue
            now = loop.time()
            deadline = max(deadline, now - MAX_LAG) + self._step_seconds(plan)
            await asyncio.sleep(max(0.0, deadline - now))
            self._deliver(plan, loop.time())

    def kill(self, *cause: str) -> None:
        """End the engine: every request gets an error."""
        self.cause = cause
        self.dead.set()
        for track in self._tracks.values():
            track.mailbox.push(0, error=DEAD_MESSAGE)

    def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache; ``False`` while requests run."""
        return self.pool.reset()

    def _note_idle(self) -> None:
        if not self._tracks:
            self.idle.set()

    def _next_step(self, now: float) -> StepPlan:
        plan = self.scheduler.schedule()
        self.metrics.add("vllm:num_preemptions", len(plan.preempted))
        for request in plan.admitted:
            track = self._tracks.get(request)
            if track is not None and not track.admitted:
                track.admitted = now
                self.metrics.observe("vllm:request_queue_time_seconds", now - track.arrived)
        self.metrics.counters["vllm:prefix_cache_queries"] = float(self.scheduler.prefix_queries)
        self.metrics.counters["vllm:prefix_cache_hits"] = float(self.scheduler.prefix_hits)
        return plan

    def _must_die(self) -> bool:
        """Let the faults and R7's memory failure strike."""
        if self._crash_after is not None and self._received >= self._crash_after:
            self.kill("RuntimeError: simulated fault: crash_after_n_requests")
        elif self._oom and self.pool.usage >= self.settings.oom_kv_usage:
            total = self.settings.surface.device.memory_bytes / 2**30
            self.kill(
                f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.17 GiB. GPU 0 has a total capacity of "
                f"{total:.2f} GiB of which 301.25 MiB is free."
            )
        return self.dead.is_set()

    def _step_seconds(self, plan: StepPlan) -> float:
        seconds = step_cost(self._profile, plan.load).total * self.settings.time_scale
        if self.settings.noise > 0:
            seconds *= math.exp(self._random.gauss(0.0, self.settings.noise))
        return seconds

    def _accept(self, request: Request, drafts: int) -> int:
        track = self._tracks.get(request)
        accepted = 0
        if track is not None:
            while accepted < drafts and self._random.random() < track.acceptance:
                accepted += 1
        self.metrics.draft(drafts, accepted)
        return accepted

    def _deliver(self, plan: StepPlan, now: float) -> None:
        self.metrics.observe("vllm:iteration_tokens_total", sum(chunk.tokens for chunk in plan.chunks))
        for emission in self.scheduler.complete(plan, self._accept):
            track = self._tracks.get(emission.request)
            if track is not None:
                self._account(emission, track, now)
                track.mailbox.push(emission.tokens, finished=emission.finished)

    def _account(self, emission: Emission, track: _Track, now: float) -> None:
        metrics, request = self.metrics, emission.request
        metrics.add("vllm:generation_tokens", emission.tokens)
        if not track.first:
            track.first = now
            metrics.add("vllm:prompt_tokens", request.prompt_tokens)
            metrics.add("vllm:prompt_tokens_cached", request.cached_tokens)
            metrics.observe("vllm:time_to_first_token_seconds", now - track.arrived)
            metrics.observe("vllm:request_prefill_time_seconds", now - track.admitted)
        else:
            metrics.observe("vllm:inter_token_latency_seconds", now - track.last)
        track.last = now
        if emission.finished:
            del self._tracks[request]
            self._note_idle()
            metrics.finished[track.reason] += 1
            metrics.observe("vllm:e2e_request_latency_seconds", now - track.arrived)
            metrics.observe("vllm:request_inference_time_seconds", now - track.admitted)
            metrics.observe("vllm:request_decode_time_seconds", now - track.first)
            metrics.observe("vllm:request_prompt_tokens", request.prompt_tokens)
            metrics.observe("vllm:request_generation_tokens", request.generated)
            if request.generated > 1:
                each = (now - track.first) / (request.generated - 1)
                metrics.observe("vllm:request_time_per_output_token_seconds", each)
