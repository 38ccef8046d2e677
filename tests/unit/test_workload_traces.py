"""Readers of traces."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotuner.core.workload import TraceSource
from autotuner.errors import InputError
from autotuner_worker.workloads.traces import TraceRow, read_trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:47.6805900,12,0
"""
MOONCAKE = """{"timestamp": 3000, "input_length": 1000, "output_length": 5, "hash_ids": [0, 14]}
{"timestamp": 4500, "input_length": 700, "output_length": 9, "hash_ids": [0, 15]}

"""


def source(path: Path, text: str, form: str = "auto") -> TraceSource:
    """Return a trace with this content."""
    path.write_text(text, encoding="utf-8")
    return TraceSource(path=str(path), format=form)


@pytest.mark.parametrize("form", ["auto", "azure"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_azure(tmp_path: Path, form: str, newline: str) -> None:
    """Rows are put in order; times become relative; nothing is shorter than one token."""
    rows = read_trace(source(tmp_path / "t.csv", AZURE.replace("\n", newline), form))
    assert [row.prompt_tokens for row in rows] == [374, 12, 396]
    assert [row.output_tokens for row in rows] == [44, 1, 109]
    assert [row.offset for row in rows] == pytest.approx([0.0, 1.0, 4.314579], abs=1e-5)


def test_mooncake(tmp_path: Path) -> None:
    """Milliseconds become seconds, block identifiers are kept."""
    assert read_trace(source(tmp_path / "t.jsonl", MOONCAKE)) == (
        TraceRow(offset=0.0, prompt_tokens=1000, output_tokens=5, blocks=(0, 14)),
        TraceRow(offset=1.5, prompt_tokens=700, output_tokens=9, blocks=(0, 15)),
    )


@pytest.mark.parametrize(
    ("text", "form", "words"),
    [
        ("", "auto", "unknown header"),
        ("a,b,c\n1,2,3\n", "auto", "unknown header"),
        ("a,b,c\n", "parquet", "not a known trace format"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "auto", "holds no request"),
        (AZURE + "2023-11-16,1\n", "azure", "line 5"),
        (AZURE + "yesterday,1,2\n", "azure", "line 5"),
        (AZURE + "2023-11-16 18:15:46.6805900,-1,2\n", "azure", "negative length"),
        (MOONCAKE + '{"timestamp": 1}\n', "auto", "line 4"),
        (MOONCAKE + "[]\n", "auto", "line 4"),
        (MOONCAKE + "{\n", "auto", "line 4"),
    ],
)
def test_unreadable_traces_say_where(tmp_path: Path, text: str, form: str, words: str) -> None:
    """One clear error with the line."""
    with pytest.raises(InputError, match=words):
        read_trace(source(tmp_path / "trace", text, form))


def test_all_bad_rows_are_told_up_to_a_bound(tmp_path: Path) -> None:
    """Not only the first, and not a million."""
    text = AZURE + "bad,1,1\n" * 500
    with pytest.raises(InputError) as caught:
        read_trace(source(tmp_path / "t.csv", text))
    assert len(caught.value.problems) == 20


def test_a_missing_or_binary_trace(tmp_path: Path) -> None:
    """The remedy names what is wanted."""
    with pytest.raises(InputError, match="cannot be read"):
        read_trace(TraceSource(path=str(tmp_path / "none.csv")))
    (tmp_path / "b").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        read_trace(TraceSource(path=str(tmp_path / "b")))
