"""The exported schema and the reference are those of the models."""

from __future__ import annotations

from pathlib import Path

from autotuner.settings.schema import render_reference, render_schema, study_schema

ROOT = Path(__file__).parents[2]


def test_the_exported_schema_is_current() -> None:
    assert (ROOT / "configs" / "study.schema.json").read_text() == render_schema(), (
        "write it again: python -m autotuner.settings.schema"
    )


def test_the_reference_is_current() -> None:
    assert render_reference() in (ROOT / "docs" / "study-file.md").read_text(), (
        "write it again: python -m autotuner.settings.schema"
    )


def test_schema_knows_the_short_forms() -> None:
    schema = study_schema()

    assert schema["additionalProperties"] is False
    assert schema["required"] == ["name"]
    workload = schema["$defs"]["WorkloadSection"]["properties"]
    assert {"type": "number"} in workload["input_tokens"]["anyOf"]
    assert {"const": "auto"} in schema["$defs"]["SearchSection"]["properties"]["space"]["anyOf"]


def test_every_key_is_explained() -> None:
    schema = study_schema()
    sections = {"StudyFile": schema, **schema["$defs"]}

    missing = [
        f"{title}.{name}"
        for title, section in sections.items()
        for name, entry in section.get("properties", {}).items()
        if title.endswith(("Section", "File")) and not entry.keys() & {"description", "$ref"}
    ]
    assert missing == []
