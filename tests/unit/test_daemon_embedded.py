"""The embedded tuner's preparations: folders, choices of the command line, engines beside each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotuner.core.study import Hardware
from autotuner.core.workers import HostReport
from autotuner.daemon import embedded
from autotuner.daemon.embedded import TuneRequest, load_request, resident_engines
from autotuner.errors import EnvironmentFault, StorageFault
from autotuner.storage.journal_sql import SqlJournal, sqlite_url
from autotuner.storage.lock import FileLock
from tests.fakes import studies

GIB = 1024**3


@pytest.mark.parametrize("name", ["plain", "with blank", "a%20b", "é#1", "a&b=c", "a@b:c", "what?"])
def test_a_journal_lies_where_its_folder_is(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    SqlJournal(sqlite_url(folder / "study.db")).close()
    assert (folder / "study.db").is_file()
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_fresh_start_removes_its_own_files_alone(tmp_path: Path) -> None:
    own = [
        "study.db",
        "study.db-wal",
        "result.json",
        ".result.json.123.tmp",
        "winner.sh",
        "records/a.npz",
        "logs/b.log",
    ]
    others = ["notes.txt", "records.txt", ".hidden"]
    for name in (*own, *others):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    embedded._clear(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*others, "study.db.lock"])


def test_a_folder_in_use_is_neither_begun_nor_cleared(tmp_path: Path) -> None:
    (tmp_path / "study.db").touch()
    held = FileLock(tmp_path / "study.db.lock")
    for attempt in (embedded._begin, embedded._clear):
        with pytest.raises(StorageFault, match="another controller"):
            attempt(tmp_path)
    held.release()
    assert (tmp_path / "study.db").exists()
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentFault, match="cannot use the output folder"):
        embedded._begin(tmp_path / "file")


def test_the_command_line_has_the_last_word(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text("name: a\nmodel: my-7b\nengine: {kind: vllm, command: [from-file, serve]}\n", encoding="utf-8")
    study = load_request(TuneRequest(study=path, out=tmp_path))
    assert (study.model, study.engine.kind, study.engine.command) == ("my-7b", "vllm", ("from-file", "serve"))
    study = load_request(TuneRequest(study=path, out=tmp_path, model="other-8b", engine_command=("/opt/vllm", "serve")))
    assert (study.model, study.engine.command) == ("other-8b", ("/opt/vllm", "serve"))
    path.write_text("name: a\n", encoding="utf-8")
    assert load_request(TuneRequest(study=path, out=tmp_path)).engine.command == ("vllm", "serve")
    simulated = load_request(TuneRequest(study=path, out=tmp_path, engine_kind="simulated"))
    assert simulated.model == embedded.SIMULATED_MODEL


@pytest.mark.parametrize(
    ("device", "cache", "memory", "expected"),
    [
        ("cpu", GIB, 100 * GIB, 2),  # as many as the race has members
        ("cpu", GIB, 5 * GIB, 1),
        ("cpu", GIB, 0, 1),
        ("cpu", None, 100 * GIB, 1),  # a share of the memory: nobody can tell
        ("cuda", GIB, 100 * GIB, 1),
    ],
)
def test_engines_stand_beside_each_other_where_their_memory_is_known(
    device: str, cache: int | None, memory: int, expected: int
) -> None:
    spec = studies.spec()
    fixed = {} if cache is None else {"kv_cache_memory_bytes": cache}
    real = replace(
        spec,
        engine=replace(spec.engine, kind="vllm", model={"weight_bytes": GIB // 2}),
        space=replace(spec.space, fixed=fixed),
        hardware=Hardware(device=device),
    )
    host = HostReport(engine=real.engine, hardware=real.hardware, memory_available=memory)
    assert resident_engines(real, host) == expected
    assert resident_engines(spec, host) == 1 + spec.search.finalists, "simulated engines weigh nothing"
