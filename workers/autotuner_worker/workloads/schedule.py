"""The schedule of a load: which request is sent when, with which lengths.  Pure: the same seed gives the same schedule.

A schedule has no end: requests are drawn in blocks of 1,024, each from its own generator seeded by (seed, purpose,
block), so that any process can compute any part of it and a load can go on for as long as it must.  A trace that ends
begins again, one mean gap after its last request.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autotuner.core.workload import Arrival, LengthKind, Lengths, LoadMode, Workload
from autotuner_worker.workloads.traces import TraceRow

__all__ = ["BLOCK", "Planned", "Schedule", "draw_gaps", "draw_lengths"]

BLOCK = 1024
"""Requests drawn at a time."""

_GAPS, _PROMPTS, _OUTPUTS, _GROUPS = range(4)

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One request of the schedule."""

    index: int
    offset: float
    """Seconds after the start of the load; 0 in a closed loop."""
    prompt_tokens: int
    """The shared prefix included."""
    output_tokens: int
    group: int
    """Number of its shared prefix."""
    blocks: tuple[int, ...] = ()
    """Identifiers of its prompt's blocks, from a trace."""
    clamped: bool = False
    """The trace asked for more tokens than the model's context holds."""


def draw_lengths(lengths: Lengths, count: int, rng: np.random.Generator) -> Ints:
    """Return *count* token counts of a distribution other than TRACE, clipped to its bounds and to at least 1."""
    mean, spread = lengths.mean, lengths.spread
    match lengths.kind:
        case LengthKind.UNIFORM:
            values = rng.uniform(mean - spread - 0.5, mean + spread + 0.5, count)
        case LengthKind.NORMAL:
            values = rng.normal(mean, spread, count)
        case LengthKind.LOGNORMAL:
            variance = math.log1p((spread / mean) ** 2)
            values = rng.lognormal(math.log(mean) - variance / 2.0, math.sqrt(variance), count)
        case _:
            values = np.full(count, mean)
    return np.clip(np.rint(values), max(1, lengths.low), lengths.high).astype(np.int64)


def draw_gaps(workload: Workload, count: int, rng: np.random.Generator) -> Floats:
    """Return *count* gaps between arrivals in seconds, of a mean of ``1 / rate``."""
    mean = 1.0 / workload.rate
    match workload.arrival:
        case Arrival.GAMMA:
            return rng.gamma(workload.burstiness, mean / workload.burstiness, count)
        case Arrival.POISSON:
            return rng.exponential(mean, count)
        case _:
            return np.full(count, mean)


@dataclass(frozen=True, slots=True)
class _Block:
    offsets: Floats
    prompts: Ints
    outputs: Ints
    groups: Ints
    after: float
    """Offset at which the next block begins."""


class Schedule:
    """The endless list of requests of one seed; only the last two blocks are kept."""

    def __init__(
        self, workload: Workload, seed: int, trace: Sequence[TraceRow] = (), context: int | None = None
    ) -> None:
        """Take the rows of the workload's trace (empty without one) and the model's context in tokens, if known."""
        if workload.mode is LoadMode.OPEN and workload.arrival is not Arrival.TRACE and not workload.rate > 0.0:
            raise ValueError("an open loop needs a positive rate")
        kinds = (workload.input_tokens.kind, workload.output_tokens.kind)
        if (
            LengthKind.TRACE in kinds or (workload.arrival is Arrival.TRACE and workload.mode is LoadMode.OPEN)
        ) and not trace:
            raise ValueError("the workload needs the rows of a trace")
        self._workload, self._seed, self._trace, self._context = workload, seed, trace, context
        self._blocks: dict[int, _Block] = {}

    def request(self, index: int) -> Planned:
        """Return request *index* (from 0)."""
        number, place = divmod(index, BLOCK)
        block = self._block(number)
        prompt, output = int(block.prompts[place]), int(block.outputs[place])
        blocks: tuple[int, ...] = ()
        clamped = False
        if self._workload.input_tokens.kind is LengthKind.TRACE:
            cycle, row = divmod(index, len(self._trace))
            # A trace that begins again must not find its own prompts in the engine's cache.
            blocks = tuple(cycle * 1_000_003 + name for name in self._trace[row].blocks)
            prompt, output, clamped = self._clamp(prompt, output)
        return Planned(
            index=index,
            offset=float(block.offsets[place]),
            prompt_tokens=prompt,
            output_tokens=output,
            group=int(block.groups[place]),
            blocks=blocks,
            clamped=clamped,
        )

    def _clamp(self, prompt: int, output: int) -> tuple[int, int, bool]:
        if self._context is None or prompt + output <= self._context:
            return prompt, output, False
        kept_output = min(output, max(1, self._context // 2))
        return max(1, min(prompt, self._context - kept_output)), kept_output, True

    def _block(self, number: int) -> _Block:
        if number not in self._blocks:
            open_loop = self._workload.mode is LoadMode.OPEN and self._workload.arrival is not Arrival.TRACE
            begin = self._block(number - 1).after if number and open_loop else 0.0
            self._blocks[number] = self._draw(number, begin)
            if number > 1:
                self._blocks.pop(number - 2, None)
        return self._blocks[number]

    def _rng(self, purpose: int, number: int) -> np.random.Generator:
        return np.random.default_rng([self._seed & 0xFFFFFFFFFFFFFFFF, purpose, number])

    def _draw(self, number: int, begin: float) -> _Block:
        workload = self._workload
        offsets, after = self._offsets(number, begin)
        return _Block(
            offsets,
            self._lengths(workload.input_tokens, _PROMPTS, number),
            self._lengths(workload.output_tokens, _OUTPUTS, number),
            self._rng(_GROUPS, number).integers(0, max(1, workload.shared_prefix.groups), BLOCK),
            after,
        )

    def _lengths(self, lengths: Lengths, purpose: int, number: int) -> Ints:
        if lengths.kind is not LengthKind.TRACE:
            return draw_lengths(lengths, BLOCK, self._rng(purpose, number))
        rows = [self._trace[index % len(self._trace)] for index in range(number * BLOCK, (number + 1) * BLOCK)]
        values = np.array([row.prompt_tokens if purpose == _PROMPTS else row.output_tokens for row in rows])
        clipped: Ints = np.clip(values, max(1, lengths.low), lengths.high).astype(np.int64)
        return clipped

    def _offsets(self, number: int, begin: float) -> tuple[Floats, float]:
        workload = self._workload
        if workload.mode is LoadMode.CLOSED:
            return np.zeros(BLOCK), 0.0
        if workload.arrival is not Arrival.TRACE:
            edges = begin + np.concatenate([[0.0], np.cumsum(draw_gaps(workload, BLOCK, self._rng(_GAPS, number)))])
            return edges[:-1], float(edges[-1])
        count = len(self._trace)
        recorded = np.array([row.offset for row in self._trace])
        period = recorded[-1] + (recorded[-1] / (count - 1) if count > 1 and recorded[-1] > 0 else 1.0)
        cycles, rows = np.divmod(np.arange(number * BLOCK, (number + 1) * BLOCK), count)
        speed = workload.trace.speed_up if workload.trace is not None else 1.0
        return (cycles * period + recorded[rows]) / speed, 0.0
