"""Study files: what is read, and that every problem is reported at once with its line and remedy."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotuner.core.workload import LengthKind
from autotuner.errors import StudyFileError
from autotuner.settings.loader import load_study, parse_study
from autotuner.settings.quantities import Malformed, parse_duration, parse_size
from tests.unit.settings_samples import STUDIES, file_problems

READY = sorted(path.name for path in STUDIES.glob("*.yaml"))


@pytest.mark.parametrize("name", READY)
def test_ready_studies_load(name: str) -> None:
    study = load_study(STUDIES / name)

    assert study.name == name.removesuffix(".yaml")
    assert (STUDIES / name).read_text().startswith("# yaml-language-server: $schema=../study.schema.json\n")


def test_the_promised_studies_are_there() -> None:
    promised = {"quickstart", "deepseek-v3", "deepseek-r1-distill-7b", "llama-8b", "long-context"}

    assert promised <= {name.removesuffix(".yaml") for name in READY}


def test_smallest_file_has_defaults() -> None:
    study = parse_study("name: a")

    assert study.model == "auto"
    assert study.hardware is None
    assert study.search.space.auto
    assert study.measure.duration == 10.0


def test_all_problems_at_once_with_lines(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(
        "nme: a\n"
        "model: ./nowhere\n"
        "workload:\n"
        "  mode: opn\n"
        "  input_tokens: {kind: fixed, mean: -1}\n"
        "latency:\n"
        "  total: 5\n"
        "  limits:\n"
        "    ttft_p101: 500 ms\n"
        "    itl_p99: -5 ms\n"
        "budget: {trials: 0}\n"
        "measure: {warmup_min: 5 s, warmup_max: 1 s}\n"
        "search:\n"
        "  space:\n"
        "    max_num_seqs: {lo: 4}\n"
    )

    with pytest.raises(StudyFileError) as caught:
        load_study(file)

    lines = {problem.field: problem.line for problem in caught.value.problems}
    assert lines == {
        "name": None,
        "nme": 1,
        "model": 2,
        "workload.mode": 4,
        "workload.input_tokens.mean": 5,
        "latency.total": 7,
        "latency.limits.ttft_p101": 9,
        "latency.limits.itl_p99": 10,
        "budget.trials": 11,
        "measure.warmup_min": 12,
        "search.space.max_num_seqs.lo": 15,
    }
    text = str(caught.value)
    assert f"{file}:1: nme: unknown key; did you mean name?" in text
    assert "percentile 101 is impossible" in text
    assert 'write "5 ms" or "5 s"' in text
    assert all(problem.remedy for problem in caught.value.problems)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "field", "words"),
    [
        ("", "(file)", "empty"),
        ("[1, 2]", "(file)", "not a mapping"),
        ("name: [", "(file)", "not readable as YAML"),
        ("name: a\nname: b", "name", "given twice"),
        ("name: &x [*x]", "name[0]", "contain themselves"),
        ("name: !!python/object:os.system x", "name", "not supported"),
        ("name: a\n---\nname: b", "(file)", "not readable as YAML"),
        ("name: a\x00b", "(file)", "not readable as YAML"),
        ("name: a b", "name", "not a valid name"),
        ("name: 5", "name", "wrong type"),
        ("name: a\nbudget: {wall_time: 7}", "budget.wall_time", "needs its unit"),
        ("name: a\nbudget: {wall_time: 0 s}", "budget.wall_time", "must be positive"),
        ("name: a\nbudget: {gpu_hours: .inf}", "budget.gpu_hours", "finite"),
        ("name: a\nbudget: 5", "budget", "wrong type"),
        ("name: a\nworkload: {mode: open}", "workload.rate", "needs a rate"),
        ("name: a\nworkload: {rate: 3}", "workload.rate", "closed loop"),
        ("name: a\nworkload: {concurrency: 0}", "workload.concurrency", "nobody"),
        ("name: a\nworkload: {mode: open, arrival: trace}", "workload.trace", "not given"),
        ("name: a\nworkload: {trace: {path: x}}", "workload.trace", "not used"),
        ("name: a\nworkload: {input_tokens: {mean: 9, high: 5}}", "workload.input_tokens.mean", "outside"),
        ("name: a\nworkload: {input_tokens: {low: 9, high: 5}}", "workload.input_tokens.high", "below low"),
        ("name: a\nworkload: {shared_prefix: {tokens: 500}}", "workload.shared_prefix.tokens", "not shorter"),
        ("name: a\nlatency: {limits: {ttft_p97: 1 s}}", "latency.limits.ttft_p97", "not measured"),
        ("name: a\nlatency: {limits: {speed_p99: 1 s}}", "latency.limits.speed_p99", "not a latency limit"),
        ("name: a\nlatency: {total: 1 s, parts: {a: 2 s}}", "latency.parts", "the parts take"),
        ("name: a\nlatency: {total: 1 s, parts: {a: 1 s}}", "latency.parts", "nothing of the total"),
        ("name: a\nlatency: {percentile: 101}", "latency.percentile", "out of range"),
        ("name: a\nengine: {env: {HF_TOKEN: abc}}", "engine.env.HF_TOKEN", "secret"),
        ('name: a\nengine: {env: {A: "${"}}', "engine.env.A", "not a reference"),
        ("name: a\nengine: {env: {CUDA_LAUNCH_BLOCKING: 1}}", "engine.env.CUDA_LAUNCH_BLOCKING", "serialises"),
        ("name: a\nengine: {kind: tgi}", "engine.kind", "not one of"),
        ("name: a\nsearch: {space: {block_size: [32, 32]}}", "search.space.block_size", "twice"),
        ("name: a\nsearch: {space: {a: {low: 1, choices: [2]}}}", "search.space.a", "mixes"),
        ("name: a\nsearch: {space: {a: {low: 3, high: 2}}}", "search.space.a.low", "above high"),
        ("name: a\nsearch: {space: {a: {low: 0, log: true}}}", "search.space.a.low", "begins above 0"),
        ("name: a\nsearch: {space: {exclude: [a], a: [1]}}", "search.space.exclude", "both wanted"),
        ("name: a\nsearch: {space: 7}", "search.space", "neither auto"),
    ],
)
def test_bad_input_gets_one_clear_problem(text: str, field: str, words: str) -> None:
    problems = file_problems(text)

    assert list(problems) == [field]
    assert words in problems[field].message
    assert problems[field].remedy


def test_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"name: \xff")
    (tmp_path / "huge").write_bytes(b"#" * 1_000_001)

    for name, words in (("none", "No such file"), (".", "directory"), ("latin", "UTF-8"), ("huge", "bytes")):
        with pytest.raises(StudyFileError, match=words):
            load_study(tmp_path / name)


def test_paths_are_relative_to_the_study_file(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "t.csv").write_text("x")
    (tmp_path / "s.yaml").write_text(
        "name: a\nmodel: ./model\nworkload: {mode: open, arrival: trace, trace: {path: t.csv}}\n"
    )

    study = load_study(tmp_path / "s.yaml")

    assert study.model == str(tmp_path / "model")
    assert study.workload.trace is not None
    assert study.workload.trace.path == str(tmp_path / "t.csv")
    assert study.line("workload", "trace", "path") == 3


@pytest.mark.parametrize(
    ("text", "field", "words"),
    [
        ("model: ./gone", "model", "no such directory"),
        ("model: /gone", "model", "no such directory"),
        ("model: a/b/c", "model", "no such directory"),
        ("model: .", "model", "no config.json"),
        ("engine: {draft: {model: ./gone}}", "engine.draft.model", "no such directory"),
        ("workload: {mode: open, arrival: trace, trace: {path: t}}", "workload.trace.path", "no such file"),
    ],
)
def test_missing_files(tmp_path: Path, text: str, field: str, words: str) -> None:
    problems = file_problems(f"name: a\n{text}", tmp_path)

    assert words in problems[field].message
    assert problems[field].line == 2


def test_hub_names_are_left_alone(tmp_path: Path) -> None:
    assert parse_study("name: a\nmodel: org/model", directory=tmp_path).model == "org/model"
    assert parse_study("name: a\nmodel: gpt2", directory=tmp_path).model == "gpt2"


def test_short_forms() -> None:
    study = parse_study(
        "name: a\nengine: {command: vllm serve, env: {OMP_NUM_THREADS: 1, HF_TOKEN: '${HF_TOKEN}'}}\n"
        "workload: {input_tokens: 100}\nlatency: {limits: {e2e_p99.9: 2 min}}\n"
        "search: {space: {block_size: [32], dtype: bfloat16}}\nhardware: {device: cuda, memory: 80 GiB}"
    )

    assert study.engine.command == ("vllm", "serve")
    assert study.engine.env == {"OMP_NUM_THREADS": "1", "HF_TOKEN": "${HF_TOKEN}"}
    assert (study.workload.input_tokens.kind, study.workload.input_tokens.mean) == (LengthKind.FIXED, 100)
    assert study.latency.limits == {"e2e_p99_9": 120.0}
    assert study.search.space.parameters["dtype"].fixed == "bfloat16"
    assert study.hardware is not None
    assert study.hardware.memory == 80 * 2**30


@given(
    st.floats(min_value=1e-3, max_value=8e4), st.sampled_from([("ms", 1e-3), ("s", 1.0), ("min", 60.0), ("h", 3600.0)])
)
def test_durations(number: float, unit: tuple[str, float]) -> None:
    assert parse_duration(f"{number!r} {unit[0]}") == pytest.approx(number * unit[1])


@given(
    st.one_of(st.integers(), st.floats(), st.booleans(), st.none(), st.text(alphabet="0123456789.msh- eE", max_size=8))
)
def test_a_duration_is_positive_or_refused(value: object) -> None:
    with contextlib.suppress(Malformed):
        assert parse_duration(value) > 0


def test_sizes() -> None:
    assert parse_size("512 MiB") == 2**29
    assert parse_size("80GB") == 80 * 10**9
    assert parse_size(7) == 7
    for value in ("0", "-1 GiB", True, "much", 1.5, None):
        with pytest.raises(Malformed):
            parse_size(value)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(StudyFileError):
        assert parse_study(text).name


def test_the_study_in_the_readme_is_valid() -> None:
    blocks = re.findall(
        r"^```yaml\n(.*?)^```", (STUDIES.parents[1] / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )

    studies = [parse_study(block, directory=STUDIES) for block in blocks]

    assert [study.model for study in studies] == ["meta-llama/Llama-3.1-8B-Instruct"]


@pytest.mark.parametrize("name", READY)
def test_ready_studies_need_no_variables(name: str) -> None:
    assert not any("${" in value for value in load_study(STUDIES / name).engine.env.values())


@pytest.mark.parametrize(
    ("text", "field", "most"),
    [
        ("workload: {concurrency: 100001}", "workload.concurrency", "100000"),
        ("workload: {mode: open, rate: 1.0e+9}", "workload.rate", "100000"),
        ("budget: {trials: 1000001}", "budget.trials", "1000000"),
        ("measure: {min_requests: 100000000000}", "measure.min_requests", "10000000"),
        ("search: {race_pairs: 100000}", "search.race_pairs", "1000"),
        ("search: {seed: 99999999999999999999}", "search.seed", "4294967295"),
        ("workload: {input_tokens: {mean: 1.0e+12}}", "workload.input_tokens.mean", "10000000"),
    ],
)
def test_what_is_too_large_is_told_the_bound(text: str, field: str, most: str) -> None:
    problem = file_problems(f"name: a\n{text}")[field]

    assert problem.message == "out of range"
    assert problem.remedy == f"give at most {most}"


@pytest.mark.parametrize("value", [".nan", ".inf", "0", "-5", "0.0", "0 ms"])
def test_no_remedy_repeats_an_impossible_time(value: str) -> None:
    problem = file_problems(f"name: a\nlatency: {{limits: {{ttft_p95: {value}}}}}")["latency.limits.ttft_p95"]

    assert problem.message == "a duration must be positive"
    assert problem.remedy == 'write a positive time, such as "500 ms"'


def test_times_and_sizes_end_somewhere() -> None:
    with pytest.raises(Malformed, match="ten years"):
        parse_duration("100000 h")
    with pytest.raises(Malformed, match="more than a machine"):
        parse_size("9999999 TB")


@pytest.mark.parametrize("value", [".nan", ".inf", "{deep: -.inf}"])
def test_flags_are_finite(value: str) -> None:
    problem = file_problems(f"name: a\nbaseline: {{max_num_seqs: {value}}}")["baseline"]

    assert "is not a finite number" in problem.message
