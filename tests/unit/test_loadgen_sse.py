"""Reading streamed answers from raw bytes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotuner_worker.workloads.sse import Answer
from tests.fakes.completion_server import DONE, chunk, usage

WHOLE = (
    chunk()
    + chunk(' "choices":[{ data: \n\n {"error": 1}')
    + chunk("", usage=None)
    + chunk(finish="length")
    + usage(9, 4)
    + DONE
)


def read(*parts: bytes) -> Answer:
    """Return the answer of these reads, one second apart."""
    answer = Answer()
    for second, part in enumerate(parts, start=1):
        answer.feed(part, float(second))
    answer.close(float(len(parts) + 1))
    return answer


@given(st.lists(st.integers(0, len(WHOLE)), max_size=8))
def test_it_does_not_matter_where_reads_are_cut(cuts: list[int]) -> None:
    """Text that looks like the protocol stays text."""
    edges = [0, *sorted(cuts), len(WHOLE)]
    answer = read(*(WHOLE[a:b] for a, b in itertools.pairwise(edges)))
    assert len(answer.offsets) == 4
    assert (answer.prompt_tokens, answer.completion_tokens, answer.finish, answer.done) == (9, 4, "length", True)
    assert (answer.error, answer.unreadable) == ("", "")


@pytest.mark.parametrize(
    "spelling",
    [
        WHOLE.replace(b"\n\n", b"\r\n\r\n"),
        WHOLE.replace(b"data: ", b"data:"),
        WHOLE.replace(b'"choices":[{', b'"choices": [ {'),
        b": keep-alive\n\n" + WHOLE + b"event: end\nid: 3\n\n",
    ],
)
def test_other_servers_spell_otherwise(spelling: bytes) -> None:
    """Line ends, blanks and comments."""
    answer = read(spelling)
    assert (len(answer.offsets), answer.completion_tokens, answer.done, answer.unreadable) == (4, 4, True, "")


def test_chunks_carry_the_time_of_their_read() -> None:
    """Two in one read share it."""
    answer = read(chunk(), chunk() + chunk(), usage(1, 3))
    assert list(answer.offsets) == [1.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (b'data: {"error": {"message": "died"}}\n\n', "died"),
        (b'data: {"error": "plain"}\n\n', "plain"),
        (b'data: {"error": {"code": 5}}\n\n', "{'code': 5}"),
    ],
)
def test_errors_inside_the_stream_are_found(event: bytes, message: str) -> None:
    """Even when a regular end mark follows."""
    answer = read(chunk() + event + DONE)
    assert (answer.error, answer.done, len(answer.offsets)) == (message, True, 1)


@pytest.mark.parametrize(
    "event",
    [b"hello\n\n", b"data: {]\n\n", b"data: [1]\n\n", b'data: {"choices": "x"}\n\n', b'data: {"choices": [3]}\n\n'],
)
def test_what_makes_no_sense_is_kept_for_the_message(event: bytes) -> None:
    """And counted as nothing."""
    answer = read(event)
    assert answer.unreadable
    assert len(answer.offsets) == 0


def test_an_unfinished_last_event_is_read_at_the_end() -> None:
    """Some servers leave out the last empty line."""
    answer = read(chunk() + usage(2, 1).rstrip())
    assert answer.completion_tokens == 1
    assert list(read(chunk(finish="stop").rstrip()).offsets) == [2.0]
