"""What the simulator knows about models and devices: sizes and speeds, no weights."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["DEFAULT_MODEL", "DEVICES", "MODELS", "Device", "ModelFacts", "resolve_model"]

DEFAULT_MODEL = "sim-7b"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Sizes of a decoder-only transformer."""

    name: str
    parameters: float
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    max_len: int
    architecture: str = "SimulatedForCausalLM"

    def kv_token_bytes(self, bytes_per_value: float) -> float:
        """Return the bytes of KV cache that one token needs over all layers."""
        return 2.0 * self.layers * self.kv_heads * self.head_dim * bytes_per_value


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One simulated accelerator; ``arithmetic`` is relative to the reference device."""

    name: str
    memory_bytes: int
    bandwidth: float
    """Bytes per second."""
    arithmetic: float
    reserved_bytes: int = 600 * 1024**2
    """Taken by the driver's own context before the engine starts."""


_GIB = 1024**3

DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        Device(name="sim-40g", memory_bytes=40 * _GIB, bandwidth=1.555e12, arithmetic=1.0),
        Device(name="sim-80g", memory_bytes=80 * _GIB, bandwidth=3.35e12, arithmetic=3.0),
    )
}

MODELS: dict[str, ModelFacts] = {
    model.name: model
    for model in (
        ModelFacts(
            name="sim-tiny", parameters=0.1e9, layers=12, hidden=768, heads=12, kv_heads=12, head_dim=64,
            vocabulary=32000, max_len=4096,
        ),
        ModelFacts(
            name="sim-7b", parameters=7.0e9, layers=32, hidden=4096, heads=32, kv_heads=16, head_dim=128,
            vocabulary=32000, max_len=32768,
        ),
        ModelFacts(
            name="sim-70b", parameters=70.0e9, layers=80, hidden=8192, heads=64, kv_heads=8, head_dim=128,
            vocabulary=128000, max_len=131072,
        ),
    )
}  # fmt: skip

_SIZE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)b(?![a-z0-9])", re.IGNORECASE)


def resolve_model(name: str) -> ModelFacts | None:
    """Return the facts of *name*: a model of the table, a folder with ``config.json``, or a size in the name (``…-7B``).

    ``None`` when nothing is known about it.  Reads at most that one file.
    """
    if name in MODELS:
        return MODELS[name]
    config = Path(name) / "config.json"
    if config.is_file():
        return _from_config(name, json.loads(config.read_text(encoding="utf-8")))
    size = _SIZE.search(name.replace("_", "-"))
    return _from_size(name, float(size.group(1)) * 1e9) if size else None


def _from_config(name: str, raw: dict[str, object]) -> ModelFacts:
    """Translate a model's own configuration file."""

    def number(key: str, default: int) -> int:
        value = raw.get(key)
        return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else default

    hidden, layers, heads = (
        number("hidden_size", 4096),
        number("num_hidden_layers", 32),
        number("num_attention_heads", 32),
    )
    vocabulary, inner = number("vocab_size", 32000), number("intermediate_size", 4 * hidden)
    architectures = raw.get("architectures")
    return ModelFacts(
        name=name,
        parameters=float(2 * vocabulary * hidden + layers * (4 * hidden * hidden + 3 * hidden * inner)),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=number("num_key_value_heads", heads),
        head_dim=number("head_dim", max(1, hidden // heads)),
        vocabulary=vocabulary,
        max_len=number("max_position_embeddings", 4096),
        architecture=str(architectures[0]) if isinstance(architectures, list) and architectures else "Simulated",
    )


def _from_size(name: str, parameters: float) -> ModelFacts:
    """Guess the shape of a model from its number of parameters: the reference shape, scaled."""
    reference = MODELS[DEFAULT_MODEL]
    layers = max(4, round(reference.layers * (parameters / reference.parameters) ** (1 / 3)))
    return ModelFacts(
        name=name,
        parameters=parameters,
        layers=layers,
        hidden=reference.hidden,
        heads=reference.heads,
        kv_heads=reference.kv_heads,
        head_dim=reference.head_dim,
        vocabulary=reference.vocabulary,
        max_len=reference.max_len,
    )
