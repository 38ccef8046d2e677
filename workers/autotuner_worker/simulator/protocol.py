"""The OpenAI protocol's shapes: what a request asks for and the bytes of the answers.  Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotuner_worker.simulator.tokens import decode, encode

__all__ = ["Ask", "BadRequest", "Shape", "error_body", "parse_ask"]


class BadRequest(Exception):
    """The client asked for something that cannot be answered; carries the HTTP status."""

    def __init__(self, message: str, status: int = 400) -> None:
        self.message, self.status = message, status
        super().__init__(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request for a completion."""

    prompt: Sequence[int]
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    temperature: float
    stream: bool
    include_usage: bool
    continuous_usage: bool
    token_ids: bool
    priority: int


def parse_ask(body: Any, *, chat: bool, model: str, vocabulary: int, max_model_len: int) -> Ask:
    """Read the JSON *body*; raise ``BadRequest`` with the reason."""
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    if body.get("model", model) != model:
        raise BadRequest(f"The model `{body['model']}` does not exist.", 404)
    if _integer(body, "n", 1) != 1:
        raise BadRequest("n: only 1 is supported by the simulated engine")
    prompt = _chat_prompt(body, vocabulary) if chat else _prompt(body.get("prompt"), vocabulary)
    if not prompt:
        raise BadRequest("The decoder prompt cannot be empty")
    room = max_model_len - len(prompt)
    default = room if chat else 16
    max_tokens = _integer(body, "max_completion_tokens", _integer(body, "max_tokens", default))
    if max_tokens < 1:
        raise BadRequest(f"max_tokens must be at least 1, got {max_tokens}.")
    if max_tokens > room:
        raise BadRequest(
            f"This model's maximum context length is {max_model_len} tokens. However, you requested {max_tokens} output "
            f"tokens and your prompt contains {len(prompt)} input tokens."
        )
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise BadRequest("stream_options must be an object")
    return Ask(
        prompt=prompt,
        max_tokens=max_tokens,
        min_tokens=_integer(body, "min_tokens", 0),
        ignore_eos=bool(body.get("ignore_eos", False)),
        temperature=_number(body, "temperature", 1.0),
        stream=bool(body.get("stream", False)),
        include_usage=bool(options.get("include_usage", False)),
        continuous_usage=bool(options.get("continuous_usage_stats", False)),
        token_ids=bool(body.get("return_token_ids", False)),
        priority=_integer(body, "priority", 0),
    )


def _number(body: Mapping[str, Any], name: str, default: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRequest(f"{name} must be a number, got {value!r}")
    return float(value)


def _integer(body: Mapping[str, Any], name: str, default: int) -> int:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadRequest(f"{name} must be a whole number, got {value!r}")
    return value


def _prompt(value: Any, vocabulary: int) -> list[int]:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str):
        return encode(value, vocabulary)
    if isinstance(value, list) and all(isinstance(token, int) and not isinstance(token, bool) for token in value):
        worst = max(value, default=0)
        if worst >= vocabulary or min(value, default=0) < 0:
            raise BadRequest(f"Token id {worst} is out of vocabulary")
        return value
    raise BadRequest("prompt must be a text or a list of token ids; one prompt per request")


def _chat_prompt(body: Mapping[str, Any], vocabulary: int) -> list[int]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise BadRequest("messages must be a list of objects")
    return encode(" ".join(f"{m.get('role', '')} {m.get('content', '')}" for m in messages), vocabulary)


def error_body(message: str, status: int) -> dict[str, Any]:
    """Return the protocol's error object."""
    kind = {400: "BadRequestError", 404: "NotFoundError"}.get(status, "InternalServerError")
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


class Shape:
    """The bytes of one answer, as a text or a chat completion."""

    def __init__(
        self, *, chat: bool, ident: str, created: int, model: str, prompt_tokens: int, cached: int = 0
    ) -> None:
        self._chat = chat
        self._prompt_tokens = prompt_tokens
        self.cached = cached
        kind = ("chat.completion" if chat else "text_completion") + (".chunk" if chat else "")
        self._base = {"id": ident, "object": "chat.completion" if chat else kind, "created": created, "model": model}
        head = json.dumps({**self._base, "object": kind}, separators=(",", ":"))[:-1]
        self._head = f'data: {head},"choices":[{{"index":0,'

    def usage(self, generated: int) -> dict[str, Any]:
        """Return the usage object."""
        return {
            "prompt_tokens": self._prompt_tokens,
            "total_tokens": self._prompt_tokens + generated,
            "completion_tokens": generated,
            "prompt_tokens_details": {"cached_tokens": self.cached} if self.cached else None,
        }

    def chunk(self, tokens: Sequence[int], *, finish: str, usage: int | None, token_ids: bool) -> bytes:
        """Return one event; *usage* is the number of tokens so far where the client wants it in every chunk."""
        text = decode(tokens)
        body = f'"delta":{{"content":"{text}"}}' if self._chat else f'"text":"{text}"'
        ids = f',"token_ids":{json.dumps(list(tokens))}' if token_ids else ""
        reason = f'"{finish}"' if finish else "null"
        tail = "null" if usage is None else json.dumps(self.usage(usage))
        event = f'{self._head}{body}{ids},"logprobs":null,"finish_reason":{reason},"stop_reason":null}}],"usage":{tail}}}\n\n'
        return event.encode()

    def last(self, generated: int) -> bytes:
        """Return the event that carries the usage alone."""
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return f"data: {json.dumps({**self._base, 'object': kind, 'choices': [], 'usage': self.usage(generated)})}\n\n".encode()

    def whole(self, tokens: Sequence[int], finish: str, *, token_ids: bool) -> dict[str, Any]:
        """Return the answer of a request without streaming."""
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish, "stop_reason": None}
        text = decode(tokens)
        choice |= {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        if token_ids:
            choice["token_ids"] = list(tokens)
        return {**self._base, "choices": [choice], "usage": self.usage(len(tokens))}
