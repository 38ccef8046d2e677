"""The journal on a real PostgreSQL, started for the test where its programs and a driver are installed."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from autotuner.errors import StorageFault
from autotuner.storage.journal_sql import SqlJournal
from tests.conformance.journal import EVENTS, DurableJournalConformance, Opener

pytestmark = pytest.mark.process


def _program(name: str) -> str | None:
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(found[-1]) if found else shutil.which(name)


def _account() -> str | None:
    """PostgreSQL refuses to run as root: the account to run it with, or ``None`` for our own."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        return pwd.getpwnam("nobody").pw_name


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    initdb, control = _program("initdb"), _program("pg_ctl")
    if initdb is None or control is None or importlib.util.find_spec("psycopg") is None:
        pytest.skip("needs PostgreSQL's initdb and pg_ctl, and psycopg")
    with tempfile.TemporaryDirectory(prefix="autotuner-postgres-") as name:
        yield from _serve(Path(name), initdb, control)


def _serve(folder: Path, initdb: str, control: str) -> Iterator[str]:
    account = _account()
    if account is not None:
        shutil.chown(folder, account)

    def run(*command: str) -> None:
        subprocess.run(
            command, user=account, cwd=folder, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL
        )

    data = str(folder / "data")
    run(initdb, "-D", data, "-A", "trust", "-U", "tuner", "-N", "-E", "UTF8", "--locale=C")
    run(control, "-D", data, "-w", "-l", str(folder / "log"), "-o", f"-c listen_addresses='' -k {folder}", "start")
    try:
        yield f"postgresql+psycopg://tuner@/postgres?host={folder}"
    finally:
        run(control, "-D", data, "-w", "-m", "immediate", "stop")


@pytest.fixture
def url(server: str) -> str:
    engine = sa.create_engine(server)
    with engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE IF EXISTS autotuner_journal"))
    engine.dispose()
    return server


class TestPostgresJournal(DurableJournalConformance):
    @pytest.fixture
    def opener(self, url: str) -> Opener:
        return lambda: SqlJournal(url)


def test_a_lost_connection_takes_the_lock_with_it_and_writing_ends(url: str) -> None:
    first = SqlJournal(url)
    first.append(EVENTS[:1], 1.0)
    admin = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        holders = "SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE locktype = 'advisory'"
        assert connection.execute(sa.text(holders)).scalar()
    admin.dispose()
    with SqlJournal(url) as second:
        second.append(EVENTS[1:2], 2.0)
        for _ in range(2):
            with pytest.raises(StorageFault):
                first.append(EVENTS[:1], 3.0)
        assert [stamp for _, stamp, _ in second.read()] == [1.0, 2.0]
    first.close()


def test_a_database_that_does_not_exist_gets_a_remedy(url: str) -> None:
    with pytest.raises(StorageFault, match="nothing_here"):
        SqlJournal(url.replace("/postgres?", "/nothing_here?"))


def test_a_server_that_is_away_gets_a_remedy(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(StorageFault, match="check that the database server runs"):
        SqlJournal(f"postgresql+psycopg://tuner@/postgres?host={tmp_path}")
