"""The journal: the conformance suite on each adapter, and what can go wrong with a database file."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from autotuner.core.events import ControllerStarted
from autotuner.errors import StorageFault
from autotuner.storage import journal_read
from autotuner.storage.journal_memory import MemoryJournal
from autotuner.storage.journal_read import holds_journal, read_journal
from autotuner.storage.journal_sql import SqlJournal
from tests.conformance.journal import EVENTS, DurableJournalConformance, JournalConformance, Opener


class TestMemoryJournal(JournalConformance):
    @pytest.fixture
    def opener(self) -> Opener:
        return MemoryJournal


class TestSqliteJournal(DurableJournalConformance):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return lambda: SqlJournal(f"sqlite:///{tmp_path}/study.db")


def _filled(path: Path) -> str:
    url = f"sqlite:///{path}"
    with SqlJournal(url) as journal:
        journal.append(EVENTS, 1.0)
    return url


def _change(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement)
    connection.close()


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("DELETE FROM autotuner_journal WHERE seq = 2", "entry 2 is missing"),
        ("UPDATE autotuner_journal SET format = 99 WHERE seq = 3", r"format 99.*use the version"),
        (
            "UPDATE autotuner_journal SET body = replace(body, 'epoch\":1', 'epoch\":2') WHERE seq = 1",
            "entry 1.*damaged",
        ),
        ("UPDATE autotuner_journal SET stamp = 2.0 WHERE seq = 4", "entry 4.*damaged"),
    ],
)
def test_a_changed_table_is_noticed(tmp_path: Path, statement: str, reason: str) -> None:
    url = _filled(tmp_path / "j.db")
    _change(tmp_path / "j.db", statement)
    with SqlJournal(url) as journal, pytest.raises(StorageFault, match=reason):
        list(journal.read())


def test_an_event_of_a_newer_program_is_a_fault_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autotuner.storage import records

    class Newer:
        def dumps(self, event: object) -> str:
            return '{"$":"PhaseOfTheMoon"}'

    with monkeypatch.context() as patched:
        patched.setattr(records, "EVENTS", Newer())
        url = _filled(tmp_path / "j.db")
    with SqlJournal(url) as journal, pytest.raises(StorageFault, match=r"PhaseOfTheMoon.*newer"):
        list(journal.read())


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "j.db").write_text("hello " * 1000)
    with pytest.raises(StorageFault, match=r"j\.db.*not a database"):
        SqlJournal(f"sqlite:///{tmp_path}/j.db")


def test_a_damaged_database_is_noticed_when_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    url = f"sqlite:///{path}"
    with SqlJournal(url) as journal:
        journal.append([ControllerStarted(epoch=epoch) for epoch in range(2000)], 1.0)
    data = bytearray(path.read_bytes())
    data[4096 * 3 : 4096 * 5] = b"\xa5" * 8192
    path.write_bytes(data)
    with pytest.raises(StorageFault, match="damaged"):
        SqlJournal(url)


def test_a_full_disk_is_a_fault_and_the_journal_goes_on_when_there_is_space(tmp_path: Path) -> None:
    with SqlJournal(f"sqlite:///{tmp_path}/j.db") as journal:
        journal.append(EVENTS[:1], 1.0)
        _limit_pages(journal, 10)
        with pytest.raises(StorageFault, match="disk is full: free some space"):
            journal.append([ControllerStarted(epoch=epoch) for epoch in range(5000)], 2.0)
        _limit_pages(journal, 1_000_000)
        journal.append(EVENTS[1:2], 3.0)
        assert [(seq, stamp) for seq, stamp, _ in journal.read()] == [(1, 1.0), (2, 3.0)]


def _limit_pages(journal: SqlJournal, pages: int) -> None:
    journal._connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")
    journal._connection.commit()


def test_commits_are_durable(tmp_path: Path) -> None:
    with SqlJournal(f"sqlite:///{tmp_path}/j.db") as journal:
        values = [
            journal._connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous")
        ]
        journal._connection.commit()
    assert values == ["wal", 2]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("nonsense", "not a database URL"),
        ("mysql://host/db", "mysql is not supported"),
        ("sqlite://", "in memory"),
        ("sqlite:////nowhere/at/all/j.db", "give a folder"),
        ("postgresql+nodriver://host/db", "no driver"),
    ],
)
def test_an_unusable_url_gets_a_remedy(url: str, reason: str) -> None:
    with pytest.raises(StorageFault, match=reason):
        SqlJournal(url)


def test_the_lock_names_its_holder_and_ends_with_its_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/j.db"
    program = "import sys; from autotuner.storage.lock import FileLock; from pathlib import Path\n"
    program += "lock = FileLock(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program, f"{tmp_path}/j.db.lock"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StorageFault, match=f"process {holder.pid}"):
            SqlJournal(url)
        holder.kill()
        holder.wait()
    SqlJournal(url).close()


def test_another_name_of_the_same_file_does_not_get_around_the_lock(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with SqlJournal(f"sqlite:///{tmp_path}/j.db"), pytest.raises(StorageFault, match="another controller"):
        SqlJournal(f"sqlite:///{tmp_path}/link/j.db")


def test_a_password_is_never_shown() -> None:
    with pytest.raises(StorageFault) as caught:
        SqlJournal("postgresql+nodriver://me:secret@host/db")
    assert "secret" not in str(caught.value)


def test_it_may_be_used_from_another_thread(tmp_path: Path) -> None:
    with SqlJournal(f"sqlite:///{tmp_path}/j.db") as journal:
        threads = [threading.Thread(target=journal.append, args=(EVENTS[:1], 1.0)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [seq for seq, _, _ in journal.read()] == list(range(1, 9))


def test_a_journal_is_read_beside_its_writer(tmp_path: Path) -> None:
    with SqlJournal(f"sqlite:///{tmp_path}/j.db") as journal:
        assert read_journal(f"sqlite:///{tmp_path}/j.db") == []
        journal.append(EVENTS, 1.0)
        assert read_journal(f"sqlite:///{tmp_path}/j.db") == list(journal.read())
        journal.append(EVENTS[:1], 2.0)
        assert len(read_journal(f"sqlite:///{tmp_path}/j.db")) == len(EVENTS) + 1


def test_a_journal_that_cannot_be_opened_in_place_is_read_with_its_latest_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "j.db"

    def refuse(place: Path) -> sqlite3.Connection:
        if place == path:
            error = sqlite3.OperationalError("unable to open database file")
            error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
            raise error
        return connect(place)

    connect = journal_read._connect
    monkeypatch.setattr(journal_read, "_connect", refuse)
    with SqlJournal(f"sqlite:///{path}") as journal:
        journal.append(EVENTS, 1.0)
        assert (tmp_path / "j.db-wal").stat().st_size > 0
        assert [event for _, _, event in read_journal(f"sqlite:///{path}")] == list(EVENTS)


def test_reading_finds_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    url = _filled(path)
    assert len(read_journal(url)) == len(EVENTS)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["j.db", "j.db.lock"], "nothing is written"
    assert holds_journal(path)
    _change(path, "DELETE FROM autotuner_journal WHERE seq = 2")
    with pytest.raises(StorageFault, match="entry 2 is missing"):
        read_journal(url)
    _change(path, "DROP TABLE autotuner_journal")
    assert read_journal(url) == []
    assert not holds_journal(path)
    path.write_text("hello " * 1000)
    assert not holds_journal(path)
    with pytest.raises(StorageFault, match=r"j\.db.*not a database"):
        read_journal(url)
    path.unlink()
    with pytest.raises(StorageFault, match="there is no journal"):
        read_journal(url)
    assert not holds_journal(path)
    assert not path.exists()
