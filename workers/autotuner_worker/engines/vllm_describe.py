"""What an installed vLLM says about itself, as a value, kept so that it is asked once.

The answer comes from ``in_engine/describe.py``, run by the engine's own interpreter.  It is kept as JSON under the state
directory, named by everything that could change it: interpreter, package, version, time of installation, the script
and the model's own configuration.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotuner.core.space import EngineDescription, EngineFlag, Value
from autotuner_worker.engines.vllm_effective import static_no_ops
from autotuner_worker.engines.vllm_install import Install

__all__ = ["MODEL_MAKER", "SCRIPT", "DescriptionCache", "cache_key", "parse_description"]

SCRIPT = Path(__file__).parent.parent / "in_engine" / "describe.py"
MODEL_MAKER = SCRIPT.with_name("make_model.py")
_KINDS = frozenset({"int", "float", "str", "bool", "json"})


def parse_description(answer: Mapping[str, Any]) -> EngineDescription:
    """Return the description in the script's answer; raise ``ValueError`` when it is not one."""
    try:
        platform = str(answer["platform"])
        return EngineDescription(
            kind="vllm",
            version=str(answer["version"]),
            platform=platform,
            flags=tuple(_flag(record) for record in answer.get("flags", ())),
            context_defaults=_scalars(answer.get("context_defaults", {})),
            model=_scalars(answer.get("model", {})),
            no_ops=static_no_ops(platform),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a description of an engine: {error!r}") from error


def _flag(record: Mapping[str, Any]) -> EngineFlag:
    kind = str(record["kind"])
    default = record.get("default")
    return EngineFlag(
        name=str(record["name"]),
        kind=kind if kind in _KINDS else "str",
        choices=tuple(str(choice) for choice in record.get("choices", ())),
        default=default if isinstance(default, bool | int | float | str) else None,
        negatable=bool(record.get("negatable")),
        aliases=tuple(str(alias) for alias in record.get("aliases", ())),
        help=str(record.get("help", "")),
    )


def _scalars(found: Mapping[str, Any]) -> dict[str, Value]:
    return {str(name): value for name, value in found.items() if isinstance(value, bool | int | float | str)}


def cache_key(install: Install, model: str | None, device: str = "") -> str:
    """Return a name for the answer that changes whenever the answer could."""
    parts = [install.python, install.package, install.version, str(install.stamp), device, _digest(SCRIPT)]
    if model is not None:
        parts += [model, *_model_parts(Path(model))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _model_parts(folder: Path) -> list[str]:
    config = folder / "config.json"
    if not config.is_file():
        return []
    weights = sorted(file for file in folder.iterdir() if file.suffix in (".safetensors", ".bin", ".pt", ".gguf"))
    return [_digest(config), *(f"{file.name}:{file.stat().st_size}" for file in weights)]


class DescriptionCache:
    """Answers on disk, one file each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, key: str) -> Path:
        """Return where the answer of *key* is kept."""
        return self._folder / f"{key}.json"

    def load(self, key: str) -> EngineDescription | None:
        """Return the kept description, ``None`` when there is none that can be read."""
        try:
            return parse_description(json.loads(self.path(key).read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return None
