"""A continuous-batching scheduler in discrete steps: chunked prefill, paged KV cache, preemption with recompute.

Pure: ``schedule`` decides what the next step processes, ``complete`` books its result.  No clock, no waiting; the
random numbers for accepted drafts come from the caller.  Running sequences are served before waiting ones are admitted;
when no block is free the last running sequence is preempted, loses its blocks and is computed again later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from autotuner_worker.simulator.blocks import BlockPool
from autotuner_worker.simulator.surface import StepLoad

__all__ = ["Chunk", "Emission", "Limits", "Request", "RequestState", "Scheduler", "StepPlan", "prefix_hashes"]


class RequestState(StrEnum):
    """Where a request is."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, kw_only=True)
class Limits:
    """The scheduler's limits; the hot ones may change between steps."""

    max_num_seqs: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int = 0
    """Largest chunk of one prompt per step; 0 = no limit of its own."""
    chunked_prefill: bool = True
    reserve_full_prompt: bool = True
    """Admit a prompt only when all of it fits the KV cache now."""
    watermark: float = 0.0
    """Share of the blocks kept free at admission."""
    drafts: int = 0
    priority: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """One request. ``target`` tokens will be generated, then it is finished."""

    ident: str
    prompt_tokens: int
    target: int
    hashes: Sequence[int] = ()
    """Chained hashes of the prompt's full blocks."""
    priority: int = 0
    order: int = 0
    drafts_allowed: bool = True
    state: RequestState = RequestState.WAITING
    computed: int = 0
    generated: int = 0
    blocks: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    preemptions: int = 0
    aborted: bool = False

    @property
    def known(self) -> int:
        """Tokens known so far: prompt and answer."""
        return self.prompt_tokens + self.generated


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """The part of one request in a step."""

    request: Request
    tokens: int
    """Known tokens computed in this step."""
    drafts: int
    """Speculative tokens verified on top."""
    prefill: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One step: its chunks, what it costs, and what was admitted or preempted on the way."""

    chunks: tuple[Chunk, ...]
    load: StepLoad
    admitted: tuple[Request, ...] = ()
    preempted: tuple[Request, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Emission:
    """Tokens that one request got in a step."""

    request: Request
    tokens: int
    drafted: int
    accepted: int
    finished: bool


def prefix_hashes(tokens: Sequence[int], block_size: int, salt: int = 0) -> tuple[int, ...]:
    """Return the chained hash of every full block of *tokens*."""
    found: list[int] = []
    parent = salt
    for start in range(0, len(tokens) - block_size + 1, block_size):
        parent = hash((parent, tuple(tokens[start : start + block_size])))
        found.append(parent)
    return tuple(found)


class Scheduler:
    """Decides the steps of one engine."""

    def __init__(self, limits: Limits, pool: BlockPool, block_size: int) -> None:
        self.limits = limits
        self.pool = pool
        self.block_size = block_size
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.prefix_queries = 0
        self.prefix_hits = 0
        self._order = 0

    @property
    def busy(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        """Queue a new request."""
        request.order = self._order
        self._order += 1
        self._enqueue(request, front=False)

    def schedule(self) -> StepPlan:
        """Return the next step; its chunks are empty when nothing can be done."""
        self._drop_aborted()
        budget = self.limits.max_num_batched_tokens
        chunks: list[Chunk] = []
        preempted: list[Request] = []
        index = 0
        while index < len(self.running) and budget > 0:
            chunk = self._chunk(self.running[index], budget)
            if not self._make_room(chunk, index, preempted):
                break  # the request itself was preempted: it was the last one
            chunks.append(chunk)
            budget -= chunk.tokens + chunk.drafts
            index += 1
        admitted = self._admit(chunks, budget) if not preempted else []
        return StepPlan(chunks=tuple(chunks), load=_load(chunks), admitted=tuple(admitted), preempted=tuple(preempted))

    def complete(self, plan: StepPlan, accept: Callable[[Request, int], int]) -> list[Emission]:
        """Book *plan*; ``accept(request, drafts)`` says how many drafts were right. Return the new tokens."""
        emissions: list[Emission] = []
        for chunk in plan.chunks:
            request = chunk.request
            if request.aborted:
                continue
            request.computed += chunk.tokens
            self._remember_prompt(request, chunk.tokens)
            if request.computed < request.known:
                continue
            accepted = min(accept(request, chunk.drafts), chunk.drafts) if chunk.drafts else 0
            request.generated += 1 + accepted
            request.computed += accepted
            finished = request.generated >= request.target
            if finished:
                self._finish(request)
            emissions.append(
                Emission(
                    request=request, tokens=1 + accepted, drafted=chunk.drafts, accepted=accepted, finished=finished
                )
            )
        return emissions

    def check(self) -> None:
        """Raise ``AssertionError`` when an invariant does not hold."""
        self.pool.check()
        for request in self.running:
            assert request.state is RequestState.RUNNING
            assert len(request.blocks) * self.block_size >= request.computed
            assert request.generated < request.target
        for request in self.waiting:
            assert request.state is RequestState.WAITING
            assert not request.blocks
            assert request.computed == 0

    def _chunk(self, request: Request, budget: int) -> Chunk:
        """Return what a running *request* may process within *budget*."""
        missing = request.known - request.computed
        if missing > 1:
            limit = self.limits.long_prefill_token_threshold or missing
            return Chunk(request=request, tokens=min(missing, limit, budget), drafts=0, prefill=True)
        drafts = min(self.limits.drafts, request.target - request.generated - 1, budget - 1)
        prefill = request.generated == 0
        return Chunk(
            request=request, tokens=1, drafts=max(0, drafts) if request.drafts_allowed and not prefill else 0,
            prefill=prefill,
        )  # fmt: skip

    def _make_room(self, chunk: Chunk, index: int, preempted: list[Request]) -> bool:
        """Give the chunk its blocks, preempting from the end; ``False`` when its own request had to go."""
        request = chunk.request
        needed = self._missing_blocks(request, request.computed + chunk.tokens + chunk.drafts)
        while needed > self.pool.available:
            victim = self._victim(index)
            self.running.remove(victim)
            self._preempt(victim)
            preempted.append(victim)
            if victim is request:
                return False
        request.blocks.extend(self.pool.allocate(needed))
        return True

    def _victim(self, index: int) -> Request:
        """Return who is preempted for the request at *index*: only those at or behind it are not yet in the step."""
        if not self.limits.priority:
            return self.running[-1]
        return max(self.running[index:], key=lambda request: (request.priority, request.order))

    def _admit(self, chunks: list[Chunk], budget: int) -> list[Request]:
        """Start waiting requests while sequences, tokens and blocks last."""
        admitted: list[Request] = []
        reserve = int(self.limits.watermark * self.pool.total)
        while self.waiting and budget > 0 and len(self.running) < self.limits.max_num_seqs:
            request = self.waiting[0]
            matched = self.pool.match(request.hashes[: (request.known - 1) // self.block_size])
            cached = len(matched) * self.block_size
            missing = request.known - cached
            limit = self.limits.long_prefill_token_threshold or missing
            tokens = min(missing, limit, budget)
            if not self.limits.chunked_prefill:
                if missing > budget:
                    break
                tokens = missing
            fresh = -(-(cached + tokens) // self.block_size) - len(matched)
            whole = -(-request.known // self.block_size) - len(matched)
            room = self.pool.available - self.pool.idle(matched)
            kept = reserve if self.running else 0
            if max(fresh, whole if self.limits.reserve_full_prompt else 0) + kept > room:
                break
            self.waiting.popleft()
            self.pool.take(matched)
            request.blocks = [*matched, *self.pool.allocate(fresh)]
            request.computed = cached
            request.state = RequestState.RUNNING
            self._count_prefix(request, cached)
            self.running.append(request)
            admitted.append(request)
            chunks.append(Chunk(request=request, tokens=tokens, drafts=0, prefill=True))
            budget -= tokens
        return admitted

    def _count_prefix(self, request: Request, cached: int) -> None:
        self.prefix_queries += request.known
        self.prefix_hits += cached
        if not request.preemptions:
            request.cached_tokens = cached

    def _missing_blocks(self, request: Request, tokens: int) -> int:
        return max(0, -(-tokens // self.block_size) - len(request.blocks))

    def _remember_prompt(self, request: Request, tokens: int) -> None:
        """Enter the prompt blocks that this step completed into the prefix cache."""
        first = (request.computed - tokens) // self.block_size
        last = min(request.computed // self.block_size, len(request.hashes))
        for position in range(first, last):
            self.pool.remember(request.blocks[position], request.hashes[position])

    def _preempt(self, request: Request) -> None:
        self._free(request)
        request.preemptions += 1
        request.computed = 0
        request.state = RequestState.WAITING
        self._enqueue(request, front=True)

    def _finish(self, request: Request) -> None:
        self.running.remove(request)
        self._free(request)
        request.state = RequestState.FINISHED

    def _free(self, request: Request) -> None:
        self.pool.release(request.blocks)
        request.blocks = []

    def _drop_aborted(self) -> None:
        for request in [request for request in self.running if request.aborted]:
            self._finish(request)
        if any(request.aborted for request in self.waiting):
            for request in self.waiting:
                if request.aborted:
                    request.state = RequestState.FINISHED
            self.waiting = deque(request for request in self.waiting if not request.aborted)

    def _enqueue(self, request: Request, *, front: bool) -> None:
        if not self.limits.priority:
            (self.waiting.appendleft if front else self.waiting.append)(request)
            return
        key = (request.priority, request.order)
        place = sum(1 for other in self.waiting if (other.priority, other.order) < key)
        self.waiting.insert(place, request)


def _load(chunks: Sequence[Chunk]) -> StepLoad:
    """Sum the chunks up for the surface."""
    decode = [chunk for chunk in chunks if not chunk.prefill]
    prefill = [chunk for chunk in chunks if chunk.prefill]
    return StepLoad(
        sequences=len(chunks),
        decode_sequences=len(decode),
        decode_tokens=sum(chunk.tokens + chunk.drafts for chunk in decode),
        prefill_tokens=sum(chunk.tokens for chunk in prefill),
        context_tokens=sum(chunk.request.computed for chunk in decode),
        prefill_attention=sum(chunk.tokens * (chunk.request.computed + chunk.tokens / 2) for chunk in prefill),
    )
