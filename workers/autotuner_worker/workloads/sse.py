"""The answer to one streamed completion, read from raw event-stream bytes as they arrive.

The hot path looks at two byte patterns per event and decodes no JSON: inside a JSON string every quotation mark is
escaped, so ``"choices":[{`` cannot be part of generated text.  Every event that does not match (the last token, the
counts, an error, another server's spelling) is decoded, so the result does not depend on spelling, only the speed does.
"""

from __future__ import annotations

import json
from array import array

__all__ = ["Answer"]

_CHOICE = b'"choices":[{'
_OPEN = b'"finish_reason":null'


class Answer:
    """What has arrived of one answer. Mutable: the protocol feeds it."""

    __slots__ = ("_rest", "completion_tokens", "done", "error", "finish", "offsets", "prompt_tokens", "unreadable")

    def __init__(self) -> None:
        self.offsets = array("f")
        """Arrival of each content chunk in seconds after sending."""
        self.prompt_tokens = -1
        self.completion_tokens = -1
        self.finish = ""
        """Finish reason, empty until told."""
        self.error = ""
        """Message of an error event."""
        self.done = False
        """The end mark arrived."""
        self.unreadable = ""
        """The first event that made no sense, shortened."""
        self._rest = b""

    def feed(self, data: bytes, offset: float) -> int:
        """Read *data*, arrived *offset* seconds after sending; return the number of content chunks in it."""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        elif _OPEN in data and data.find(b"\n\n") == len(data) - 2 and _CHOICE in data:
            self.offsets.append(offset)
            return 1
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        events = data.split(b"\n\n")
        self._rest = events.pop()
        before = len(self.offsets)
        for event in events:
            if (_CHOICE in event and _OPEN in event) or self._decode(event):
                self.offsets.append(offset)
        return len(self.offsets) - before

    def close(self, offset: float) -> None:
        """Read an event that the server left unfinished when the body ended."""
        rest, self._rest = self._rest.strip(), b""
        if rest and self._decode(rest):
            self.offsets.append(offset)

    def _decode(self, event: bytes) -> bool:
        """Take in an uncommon event; return whether it is a content chunk."""
        payload = b"\n".join(line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))
        if not payload:
            # Comments and other fields are allowed between events; anything else is not an event stream.
            if any(line and not line.startswith((b":", b"event:", b"id:", b"retry:")) for line in event.split(b"\n")):
                self._refuse(event)
            return False
        if payload == b"[DONE]":
            self.done = True
            return False
        try:
            value = json.loads(payload)
        except ValueError:
            self._refuse(payload)
            return False
        if not isinstance(value, dict):
            self._refuse(payload)
            return False
        if value.get("error"):
            error = value["error"]
            self.error = str(error.get("message", error) if isinstance(error, dict) else error)[:500]
            return False
        self._count(value.get("usage"))
        return self._choice(value.get("choices"), payload)

    def _count(self, usage: object) -> None:
        if isinstance(usage, dict):
            prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
            if isinstance(prompt, int) and isinstance(completion, int):
                self.prompt_tokens, self.completion_tokens = prompt, completion

    def _choice(self, choices: object, payload: bytes) -> bool:
        if choices is None or choices == []:
            return False
        if not isinstance(choices, list) or not isinstance(choices[0], dict):
            self._refuse(payload)
            return False
        self.finish = str(choices[0].get("finish_reason") or self.finish)
        return True

    def _refuse(self, event: bytes) -> None:
        self.unreadable = self.unreadable or event[:200].decode("utf-8", "replace")
