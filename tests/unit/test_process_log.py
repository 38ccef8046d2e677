"""The bounded log: bounded on disk and in memory, nothing secret, nothing lost that it promises to keep."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotuner_worker.boundedlog import BoundedLog


def test_lines_come_once_finished(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "deep" / "log")
    assert log.feed(b"one\ntw") == ["one"]
    assert log.feed(b"o\n\nthree") == ["two", ""]
    assert log.path.read_bytes() == b"one\ntwo\n\n"
    assert log.close() == ["three"]
    assert log.close() == []
    assert log.feed(b"late\n") == []
    assert log.path.read_bytes() == b"one\ntwo\n\nthree\n"
    assert log.recent == ("one", "two", "", "three")


def test_progress_bars_and_escapes(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "log")
    assert log.feed(b"10%\r20%\r") == ["10%"]
    assert log.feed(b"\n\x1b[1;32mgreen\x1b[0m \x1b]0;title\x07done\r\n") == ["20%", "green done"]
    log.close()


def test_undecodable_bytes_are_replaced(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "log")
    assert log.feed(b"a\xffb\n") == ["a\ufffdb"]
    log.close()


def test_memory_holds_the_last_lines(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "log", recent=3)
    log.feed(b"".join(b"%d\n" % number for number in range(10)))
    assert log.recent == ("7", "8", "9")
    assert log.redact("open") == "open"
    log.close()


def test_file_keeps_head_and_tail(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "log", head=100, tail=200)
    everything = [b"line %04d" % number for number in range(2000)]
    for line in everything:
        log.feed(line + b"\n")
        assert log.path.stat().st_size <= 100 + 2 * 200 + 10
    log.close()
    lines = log.path.read_bytes().splitlines()
    marker = next(index for index, line in enumerate(lines) if line.startswith(b"[..."))
    assert lines[marker] == b"[... %d bytes dropped ...]" % log.dropped
    assert lines[:marker] == everything[:10]
    assert lines[marker + 1 :] == everything[-19:]
    assert log.dropped == 10 * (2000 - 10 - 19)


def test_long_line_is_cut(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "log", max_line=100)
    for _ in range(1000):
        assert log.feed(b"x" * 1000) == []
    assert log.feed(b"\nnext\n") == ["x" * 100 + " [... 999900 bytes of this line cut ...]", "next"]
    assert log.feed(b"y" * 1000 + b"\n") == ["y" * 100 + " [... 900 bytes of this line cut ...]"]
    log.feed(b"z" * 1000)
    assert log.close() == ["z" * 100 + " [... 900 bytes of this line cut ...]"]


def test_secrets_are_replaced(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "log", secrets=["hf_secret", "hf_secret_longer", "", "ab", "two\nlines"])
    assert log.feed(b"a hf_sec") == []
    assert log.feed(b"ret and hf_secret_longer\n") == ["a *** and ***"]
    assert log.redact("two then lines, ab") == "two then ***, ab"
    log.close()
    assert b"secret" not in log.path.read_bytes()


@given(st.integers(80, 120), st.lists(st.integers(1, 50), min_size=1))
def test_secret_across_a_cut_or_a_chunk_does_not_leak(offset: int, sizes: list[int]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        log = BoundedLog(Path(directory) / "log", max_line=100, secrets=["SECRET-SECRET"])
        text = b"." * offset + b"SECRET-SECRET" * 3 + b"." * 500 + b"\n"
        lines: list[str] = []
        for size in sizes:
            piece, text = text[:size], text[size:]
            lines += log.feed(piece)
        lines += log.feed(text) + log.close()
        assert len(lines) == 1
        assert "S" not in lines[0]


def test_full_disk_stops_the_writing_only(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    path = tmp_path / "log"
    path.symlink_to(full)
    log = BoundedLog(path)
    assert log.feed(b"lost\n") == ["lost"]
    assert "No space" in log.fault
    assert log.feed(b"also\n") == ["also"]
    assert log.dropped == 10
    assert log.recent == ("lost", "also")
    log.close()
