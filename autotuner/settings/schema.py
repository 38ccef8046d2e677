"""The JSON schema of study files, for editors, and the reference for people; both come from the models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from autotuner.settings.study_file import Section, StudyFile

__all__ = ["render_reference", "render_schema", "study_schema"]


def study_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a study file."""
    schema = StudyFile.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def render_schema() -> str:
    """Return the schema as the text of ``configs/study.schema.json``."""
    return json.dumps(study_schema(), indent=2, ensure_ascii=False) + "\n"


def render_reference() -> str:
    """Return the tables of keys in Markdown, one table per section."""
    return "\n".join(_table("(top level)", StudyFile) + _sections(StudyFile, ""))


def _sections(model: type[Section], prefix: str) -> list[str]:
    lines: list[str] = []
    for name, field in model.model_fields.items():
        inner = _inner(field)
        if inner is not None:
            title = f"{prefix}{name}"
            lines += ["", *_table(f"`{title}`", inner), *_sections(inner, f"{title}.")]
    return lines


def _inner(field: FieldInfo) -> type[Section] | None:
    candidates = [field.annotation, *getattr(field.annotation, "__args__", ())]
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, Section)), None)


def _table(title: str, model: type[Section]) -> list[str]:
    lines = [
        f"### {title}",
        "",
        _sentence(model.__doc__ or ""),
        "",
        "| key | default | meaning |",
        "| --- | --- | --- |",
    ]
    for name, field in model.model_fields.items():
        lines.append(f"| `{name}` | {_default(field)} | {_sentence(field.description or '')} |")
    return lines


def _sentence(text: str) -> str:
    return " ".join(text.split())


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or value in ((), [], {}, "") or isinstance(value, Section):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    text = getattr(value, "value", value)
    unit = " s" if isinstance(value, float) and _is_duration(field) else ""
    return f"`{text:g}{unit}`" if isinstance(text, float) else f"`{text}`"


def _is_duration(field: FieldInfo) -> bool:
    return any("80 ms" in str(part) for part in field.metadata)


def _write(root: Path) -> None:
    """Write the schema and the tables of the reference below *root*."""
    (root / "configs" / "study.schema.json").write_text(render_schema(), encoding="utf-8")
    page = root / "docs" / "study-file.md"
    head, _, _ = page.read_text(encoding="utf-8").partition(_MARK)
    page.write_text(f"{head}{_MARK}\n\n{render_reference()}\n", encoding="utf-8")


_MARK = "<!-- The rest is written by: python -m autotuner.settings.schema -->"

if __name__ == "__main__":
    _write(Path(__file__).parents[2])
