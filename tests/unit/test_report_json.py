"""result.json: key figures, the schema, no number where nothing was measured, whole-file writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotuner.core.results import StudyResult
from autotuner.errors import EnvironmentFault
from autotuner.report.result_json import to_json, write_atomic, write_result
from tests.fakes.results import infeasible_result, simulated_result, study_result, unmeasured_result

SCHEMA = json.loads((Path(__file__).parents[2] / "configs" / "result.schema.json").read_text(encoding="utf-8"))
RESULTS = [study_result, simulated_result, infeasible_result, unmeasured_result]
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "number": (int, float),
    "integer": (int,),
    "null": (type(None),),
}


def _is(value: object, name: str) -> bool:
    return isinstance(value, _TYPES[name]) and not (isinstance(value, bool) and name in ("number", "integer"))


def _problems(schema: dict[str, Any], value: Any, path: str = "$") -> list[str]:
    """Check the part of JSON Schema that our schema uses."""
    found: list[str] = []
    if "$ref" in schema:
        found += _problems(SCHEMA["$defs"][schema["$ref"].rsplit("/", 1)[1]], value, path)
    for part in schema.get("allOf", []):
        found += _problems(part, value, path)
    if "anyOf" in schema and all(_problems(part, value, path) for part in schema["anyOf"]):
        found.append(f"{path}: fits none of the alternatives")
    types = schema.get("type", [])
    if types and not any(_is(value, name) for name in ([types] if isinstance(types, str) else types)):
        return [*found, f"{path}: {value!r} is not {types}"]
    if "const" in schema and value != schema["const"]:
        found.append(f"{path}: is not {schema['const']}")
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{path}: {value!r} is not listed")
    if isinstance(value, dict):
        found += [f"{path}.{name}: missing" for name in schema.get("required", []) if name not in value]
        for name, item in value.items():
            inner = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
            if isinstance(inner, dict):
                found += _problems(inner, item, f"{path}.{name}")
    if isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            found += _problems(schema["items"], item, f"{path}[{index}]")
    return found


@pytest.mark.parametrize("make", RESULTS)
def test_every_result_fits_the_schema(make: Callable[[], StudyResult]) -> None:
    data = json.loads(json.dumps(to_json(make()), allow_nan=False))
    assert _problems(SCHEMA, data) == []


def test_the_checker_finds_what_is_wrong() -> None:
    data = to_json(study_result())
    del data["points"]
    data["verdict"]["kind"] = "great"
    data["trials"][0]["throughput"] = "fast"
    data["winner"]["argv"] = [1]
    assert len(_problems(SCHEMA, data)) >= 4


def test_every_written_field_is_in_the_schema() -> None:
    data = to_json(study_result())
    assert set(data) == set(SCHEMA["properties"])
    assert set(data["trials"][0]) == set(SCHEMA["$defs"]["trial"]["properties"])
    assert set(data["baseline"]) == set(SCHEMA["$defs"]["summary"]["properties"])


def test_key_figures() -> None:
    data = to_json(study_result())
    assert data["engine"] == {"kind": "vllm", "version": "0.32.0", "platform": "cuda"}
    assert (data["launches"], data["points"], data["wall_seconds"], data["engine_seconds"]) == (12, 13, 1543.0, 1180.0)
    assert data["baseline"]["throughput"] == 1790.0
    assert data["winner"]["throughput"] == 2148.5
    assert data["winner"]["argv"][:3] == ["vllm", "serve", "meta-llama/Llama-3.1-8B-Instruct"]
    assert data["winner"]["config"]["max_num_seqs"] == 96
    assert data["winner"]["latency"]["ttft_p95"] == 0.3225
    assert data["winner"]["env"] == {"OMP_NUM_THREADS": "8"}
    assert [limit["kept"] for limit in data["winner"]["limits"]] == [True, True]
    verdict = data["verdict"]
    assert (verdict["kind"], verdict["gain"], verdict["confidence"]) == ("better", 0.2003, 0.95)
    assert verdict["binding"] == ["ttft_p95"]
    assert data["noise_floor"] == 0.014
    outcomes = {trial["id"]: (trial["outcome"], trial["class"], trial["launch"]) for trial in data["trials"]}
    assert outcomes[1] == ("feasible", "complete", 1)
    assert outcomes[5] == ("failed", "oom_under_load", 3)
    assert outcomes[6] == ("infeasible", "complete", 4)
    assert outcomes[9] == ("refused", None, None)
    assert outcomes[12] == ("void", "void", 8)
    assert data["started"] == "2026-11-30T00:53:20+00:00"


def test_what_was_not_measured_is_null() -> None:
    data = to_json(unmeasured_result())
    assert (data["winner"], data["baseline"], data["noise_floor"]) == (None, None, None)
    assert (data["verdict"]["gain"], data["verdict"]["gain_low"]) == (None, None)
    assert all(trial["throughput"] is None and trial["latency"] == {} for trial in data["trials"])


def test_a_value_without_measurement_is_not_a_throughput() -> None:
    result = study_result()
    failed = replace(result.trials[4], value=123.0)
    assert to_json(replace(result, trials=(failed,)))["trials"][0]["throughput"] is None


def test_the_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "out" / "result.json"
    write_result(study_result(), path)
    write_result(simulated_result(), path)
    assert json.loads(path.read_text(encoding="utf-8"))["simulated"] is True
    assert [p.name for p in path.parent.iterdir()] == ["result.json"]


def test_a_file_that_cannot_be_written_is_a_fault_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(EnvironmentFault, match="cannot be written"):
        write_atomic(tmp_path / "file" / "result.json", "x")
    (tmp_path / "taken").mkdir()
    with pytest.raises(EnvironmentFault):
        write_atomic(tmp_path / "taken", "x")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "taken"]
