"""From ended calls to records: how each request ended, and the columns that they make."""

from __future__ import annotations

import json
from array import array
from collections import Counter

import numpy as np

from autotuner.observe.records import Records, Status
from autotuner_worker.workloads.http1 import Call
from autotuner_worker.workloads.schedule import Planned

__all__ = ["RowBuffer", "judge"]

_MOST_MESSAGES = 50


def judge(call: Call, planned: Planned, exact_length: bool) -> tuple[Status, str]:
    """Return how an ended call went and, unless well, why, in one sentence.

    *exact_length* says that the server was told to give exactly the planned number of tokens.
    """
    answer = call.answer
    if call.http_status >= 400:
        return Status.ERROR, f"HTTP {call.http_status}: {_message(call.error_body)}"
    if call.failure:
        return Status.ERROR, call.failure
    if not call.is_stream:
        kind = call.content_type or "no content type"
        return Status.GARBAGE, f"HTTP {call.http_status} with {kind} instead of an event stream"
    if answer.error:
        return Status.ERROR, f"error inside the stream: {answer.error}"
    if answer.unreadable:
        return Status.GARBAGE, f"unreadable event {answer.unreadable[:80]!r}"
    if answer.finish == "abort":
        return Status.ABORTED, "the server aborted the answer"
    if not answer.offsets or answer.completion_tokens == 0:
        return Status.EMPTY, "the answer had no token"
    if not answer.done and not answer.finish:
        return Status.ABORTED, "the stream stopped without its end mark"
    if answer.completion_tokens < 0:
        return Status.GARBAGE, "the answer had no token counts (usage)"
    if exact_length and answer.completion_tokens < planned.output_tokens:
        return Status.GARBAGE, "the answer was shorter than min_tokens asks"
    return Status.OK, ""


def _message(body: bytes) -> str:
    text = body.decode("utf-8", "replace").strip()
    try:
        value = json.loads(text)
        error = value.get("error", value)
        text = str(error.get("message", error) if isinstance(error, dict) else error)
    except (ValueError, AttributeError):
        pass
    return " ".join(text.split())[:300] or "no message"


class RowBuffer:
    """Collects one row per request; cheap to append to."""

    def __init__(self) -> None:
        self._rows: list[tuple[float, ...]] = []
        self._offsets = array("f")
        self._lengths: list[int] = []
        self.messages: Counter[str] = Counter()
        """Why requests failed, and how often; a bounded number of different messages."""
        self.clamped = 0

    def add(
        self, planned: Planned, call: Call, scheduled: float, ready: float, status: Status, message: str = ""
    ) -> None:
        """Append the row of one call; times on the monotonic clock."""
        answer = call.answer
        self._rows.append(
            (
                planned.index,
                scheduled,
                ready,
                call.sent,
                call.ended,
                planned.prompt_tokens,
                planned.output_tokens,
                answer.prompt_tokens,
                answer.completion_tokens,
                status,
                call.http_status,
            )
        )
        self._offsets.extend(answer.offsets)
        self._lengths.append(len(answer.offsets))
        self.clamped += planned.clamped
        if message and (message in self.messages or len(self.messages) < _MOST_MESSAGES):
            self.messages[message] += 1

    def records(self) -> Records:
        """Return the rows as columns, times still on the monotonic clock."""
        table = np.array(self._rows, dtype="f8").reshape(-1, 11).T
        return Records(
            index=table[0].astype("i8"),
            scheduled=table[1],
            ready=table[2],
            sent=table[3],
            ended=table[4],
            asked_prompt=table[5].astype("i4"),
            asked_output=table[6].astype("i4"),
            prompt_tokens=table[7].astype("i4"),
            output_tokens=table[8].astype("i4"),
            status=table[9].astype("i1"),
            http_status=table[10].astype("i2"),
            chunk_index=np.concatenate([[0], np.cumsum(self._lengths)]).astype("i8"),
            chunk_offsets=np.array(self._offsets, dtype="f4"),
        )
