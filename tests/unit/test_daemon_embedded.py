"""The embedded tuner's preparations: folders, choices of the command line, engines beside each other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from autotuner.core.study import Hardware
from autotuner.core.workers import HostReport
from autotuner.daemon import embedded, outfolder
from autotuner.daemon.embedded import TuneRequest, load_request, resident_engines
from autotuner.daemon.workerprocess import Lives
from autotuner.errors import EnvironmentFault, InputError, StorageFault
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


OWN = (
    "study.db", "study.db-wal", "study.db-shm", "result.json", ".result.json.123.tmp", "report.html", "winner.sh",
    "records/s-0001-1.npz", "records/s-0001-2.npz.partial", "logs/0123abcd-1.log", "rejudged/result.json",
    "worker/worker.json", "worker/worker.log", "worker/worker.lock", "worker/launches/0123abcd-1/python/a.py",
    "worker/spool/x.outcome.json", "worker/processes/0123abcd-1.json",
)  # fmt: skip
FOREIGN = (
    "notes.txt", "study.db.bak", "study.dbx", "result.json.old", "records.txt", ".hidden", "records/mine.npz",
    "logs/nginx.log", "worker/launches/mine/a", "worker/mine.json", "rejudged/mine.csv",
)  # fmt: skip


def _fill(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_fresh_start_removes_its_own_files_alone(tmp_path: Path) -> None:
    _fill(tmp_path, (*OWN, *FOREIGN))
    outfolder.clear(tmp_path)
    assert _files(tmp_path) == {*FOREIGN, "study.db.lock"}


def test_a_fresh_start_leaves_no_empty_folder(tmp_path: Path) -> None:
    _fill(tmp_path, OWN)
    outfolder.clear(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["study.db.lock"]


def test_a_fresh_start_follows_no_link(tmp_path: Path) -> None:
    _fill(tmp_path, ["other/a/b", "out/study.db", "out/worker/launches/x"])
    (tmp_path / "out/worker/launches/0123abcd-1").symlink_to(tmp_path / "other")
    (tmp_path / "out/result.json").symlink_to(tmp_path / "other/a/b")
    outfolder.clear(tmp_path / "out")
    assert (tmp_path / "other/a/b").is_file()
    assert not (tmp_path / "out/result.json").is_symlink()


@pytest.mark.parametrize("name", ["result.json", "report.html", "records/a.npz", "logs/b.log", "worker", "study.db"])
def test_a_folder_with_files_of_others_is_refused(tmp_path: Path, name: str) -> None:
    _fill(tmp_path, [name, "notes.txt"])
    with pytest.raises(InputError, match=rf"{name.partition('/')[0]}.*would be overwritten; .*--out"):
        outfolder.begin(tmp_path)
    assert _files(tmp_path) == {name, "notes.txt"}


def test_a_study_may_begin_beside_other_names_and_go_on(tmp_path: Path) -> None:
    _fill(tmp_path, ["notes.txt"])
    (tmp_path / "records").mkdir()
    outfolder.begin(tmp_path)
    outfolder.begin(tmp_path)
    SqlJournal(sqlite_url(tmp_path / "study.db")).close()
    _fill(tmp_path, OWN)
    outfolder.begin(tmp_path)
    (tmp_path / "study.db.lock").unlink()  # copied without it
    outfolder.begin(tmp_path)


def test_a_folder_in_use_is_neither_begun_nor_cleared(tmp_path: Path) -> None:
    (tmp_path / "study.db").touch()
    held = FileLock(tmp_path / "study.db.lock")
    for attempt in (outfolder.begin, outfolder.clear):
        with pytest.raises(StorageFault, match="another controller"):
            attempt(tmp_path)
    held.release()
    assert (tmp_path / "study.db").exists()
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentFault, match="cannot use the output folder"):
        outfolder.begin(tmp_path / "file")


def test_only_deaths_in_a_row_are_counted() -> None:
    lives = Lives()
    assert [lives.lost(measured) for measured in (0, 0, 3, 3, 4, 4, 4)] == [1, 2, 1, 2, 1, 2, 3]


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def home() -> Path:
        raise RuntimeError("no home")

    monkeypatch.delenv("AUTOTUNER_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", home)
    with pytest.raises(EnvironmentFault, match="AUTOTUNER_CACHE_DIR"):
        embedded.cache_folder()
    monkeypatch.setenv("AUTOTUNER_CACHE_DIR", str(tmp_path))
    assert embedded.cache_folder() == tmp_path


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
