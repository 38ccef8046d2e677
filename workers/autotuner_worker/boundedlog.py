"""The bounded log: everything an engine prints is read, a bounded part of it is kept.

The file holds the first and the last part of the output with one marker line between them that says how much is missing.
It is current at any time (nothing waits in memory but an unfinished line), never larger than the first part plus twice
the last part, and a full disk stops the writing, never the reading.  Secrets are replaced and terminal escapes removed
before anything is kept, shown or written.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO, cast

__all__ = ["BoundedLog"]

_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_MASK = b"***"
_MIN_SECRET = 4
"""Shorter values are not secrets, and replacing them would make the log unreadable."""


class BoundedLog:
    """Keeps the head and the tail of a byte stream in a file, and its last lines in memory."""

    def __init__(
        self,
        path: Path,
        *,
        head: int = 512 * 1024,
        tail: int = 2 * 1024 * 1024,
        recent: int = 400,
        max_line: int = 16 * 1024,
        secrets: Iterable[str] = (),
    ) -> None:
        """Start an empty log at *path*; *head*, *tail* and *max_line* in bytes, *recent* in lines.

        Raises ``OSError`` when the file cannot be created.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.fault = ""
        """Why writing stopped; empty while all is well."""
        self._head, self._tail, self._max_line = head, tail, max_line
        parts = {part for value in secrets for part in value.encode().splitlines() if len(part) >= _MIN_SECRET}
        self._secrets = sorted(parts, key=len, reverse=True)
        self._margin = len(self._secrets[0]) if self._secrets else 0
        self._recent: deque[str] = deque(maxlen=recent)
        self._pending = b""
        self._return_held = False
        self._overflow = 0
        self._size = 0
        self._head_end = self._marker_end = 0
        self._dropped = 0
        self._file: BinaryIO | None = cast("BinaryIO", path.open("w+b", buffering=0))

    @property
    def dropped(self) -> int:
        """Bytes of finished lines that are no longer (or never were) in the file."""
        return self._dropped

    @property
    def recent(self) -> tuple[str, ...]:
        """The last lines, oldest first, without their line ends."""
        return tuple(self._recent)

    def redact(self, text: str) -> str:
        """Return *text* with every secret replaced by ``***``."""
        return self._mask(text.encode(errors="replace")).decode(errors="replace") if self._secrets else text

    def feed(self, data: bytes) -> list[str]:
        """Take output as it comes and return the lines that it finished."""
        if self._file is None:
            return []
        data = self._unify_line_ends(data)
        if self._overflow:
            end = data.find(b"\n")
            if end < 0:
                self._overflow += len(data)
                return []
            self._overflow += end
            data = data[end:]
        data = self._pending + (self._cut_note() if self._overflow else b"") + data
        self._overflow = 0
        end = data.rfind(b"\n") + 1
        self._pending = data[end:]
        self._bound_pending()
        return self._accept(data[:end]) if end else []

    def close(self) -> list[str]:
        """Finish the last line, bring the file to its final size and close it; return the line, if any."""
        if self._file is None:
            return []
        lines: list[str] = []
        if self._pending:
            lines = self._accept(self._pending + (self._cut_note() if self._overflow else b"") + b"\n")
            self._pending = b""
        if self._size > self._head + self._tail + (self._marker_end - self._head_end):
            self._guarded(self._compact)
        self._file.close()
        self._file = None
        return lines

    # -- lines ------------------------------------------------------------------------------------------------------

    def _unify_line_ends(self, data: bytes) -> bytes:
        """A carriage return ends a line too (progress bars); one at the end waits for its line feed."""
        if self._return_held:
            data = b"\r" + data
        self._return_held = data.endswith(b"\r")
        if self._return_held:
            data = data[:-1]
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in data else data

    def _bound_pending(self) -> None:
        if len(self._pending) > self._max_line + self._margin:
            end = self._safe_cut(self._pending)
            self._overflow = len(self._pending) - end
            self._pending = self._pending[:end]

    def _safe_cut(self, line: bytes) -> int:
        """Return where to cut *line*: at the bound, or after a secret that lies across it."""
        cut = self._max_line
        for secret in self._secrets:
            at = line.find(secret, max(0, cut - len(secret) + 1), cut + len(secret) - 1)
            if at >= 0:
                return at + len(secret)
        return cut

    def _cut_note(self) -> bytes:
        return f" [... {self._overflow} bytes of this line cut ...]".encode()

    def _mask(self, data: bytes) -> bytes:
        for secret in self._secrets:
            data = data.replace(secret, _MASK)
        return data

    def _accept(self, block: bytes) -> list[str]:
        if b"\x1b" in block:
            block = _ESCAPES.sub(b"", block)
        block = self._mask(block)
        raw = block[:-1].split(b"\n")
        if len(block) > self._max_line and max(map(len, raw)) > self._max_line + 64:
            raw = [self._shorten(line) for line in raw]
            block = b"\n".join(raw) + b"\n"
        self._write(block)
        lines = [line.decode(errors="replace") for line in raw]
        self._recent.extend(lines)
        return lines

    def _shorten(self, line: bytes) -> bytes:
        more = len(line) - self._max_line
        return line if more <= 64 else line[: self._max_line] + f" [... {more} bytes of this line cut ...]".encode()

    # -- the file ---------------------------------------------------------------------------------------------------

    def _write(self, block: bytes) -> None:
        if self.fault:
            self._dropped += len(block)
            return
        self._guarded(lambda: self._append(block))
        if self._size > self._head + 2 * self._tail:
            self._guarded(self._compact)

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as error:
            self.fault = f"{self.path}: {error.strerror or error}"

    def _append(self, block: bytes) -> None:
        assert self._file is not None
        view = memoryview(block)
        try:
            while view:
                count = os.pwrite(self._file.fileno(), view, self._size)
                self._size += count
                view = view[count:]
        except OSError:
            self._dropped += len(view)
            raise

    def _compact(self) -> None:
        """Keep the head, one marker line and the last lines within the tail's bound."""
        assert self._file is not None
        fd = self._file.fileno()
        if self._head_end == 0:
            self._head_end = os.pread(fd, self._head, 0).rfind(b"\n") + 1
            self._marker_end = self._head_end
        kept = os.pread(fd, self._tail, self._size - self._tail)
        kept = kept[kept.find(b"\n") + 1 :]
        self._dropped += self._size - self._marker_end - len(kept)
        marker = f"[... {self._dropped} bytes dropped ...]\n".encode()
        self._size = self._head_end
        self._append(marker)
        self._marker_end = self._size
        self._append(kept)
        os.ftruncate(fd, self._size)
