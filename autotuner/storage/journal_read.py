"""Reading a journal without its lock: beside a running controller, and in folders that may only be read."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import NoSuchModuleError, OperationalError, SQLAlchemyError

from autotuner.errors import StorageFault
from autotuner.ports import JournalEntry
from autotuner.storage.faults import storage_fault
from autotuner.storage.journal_sql import TABLE, parse_url
from autotuner.storage.records import Row

__all__ = ["holds_journal", "read_journal"]

_BUSY_SECONDS = 10.0


def read_journal(url: str) -> list[JournalEntry]:
    """Return every entry of the journal at *url* in order, as of one moment; nothing is written or locked.

    A database in which no journal was begun yet has no entries.  Raises ``StorageFault`` when it cannot be read, and
    at an entry that is missing or damaged.
    """
    parsed = parse_url(url)
    place = parsed.render_as_string(hide_password=True)
    try:
        if parsed.get_backend_name() == "sqlite":
            return _from_sqlite(Path(str(parsed.database)))
        return _entries(sa.create_engine(parsed))
    except (NoSuchModuleError, ImportError) as error:
        raise StorageFault(f"no driver for {parsed.drivername} is installed ({error}); install psycopg") from error
    except SQLAlchemyError as error:
        raise storage_fault("read", place, error) from error


def holds_journal(path: Path) -> bool:
    """Return whether the file at *path* is a SQLite database with a journal in it."""
    query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
    try:
        with contextlib.closing(_connect(path)) as connection:
            return connection.execute(query, [TABLE.name]).fetchone() is not None
    except sqlite3.Error:
        return False


def _from_sqlite(path: Path) -> list[JournalEntry]:
    if not path.is_file():
        raise StorageFault(f"there is no journal {path}; give the folder of a tuning run")
    if path.with_name(f"{path.name}-wal").exists():
        try:
            return _entries(_engine(path))
        except OperationalError as error:
            code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
            if code not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
                raise
    # Without a writer even a reader would make a log beside the database; where nothing may be written it could not.
    with _copied(path) as copy:
        return _entries(_engine(copy))


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY_SECONDS)


def _engine(path: Path) -> sa.Engine:
    return sa.create_engine("sqlite://", creator=lambda: _connect(path), poolclass=sa.NullPool)


@contextlib.contextmanager
def _copied(path: Path) -> Iterator[Path]:
    """Copy the database with its log, which holds the latest commits."""
    with tempfile.TemporaryDirectory(prefix="autotuner-") as folder:
        copy = Path(folder, path.name)
        try:
            for suffix in ("", "-wal"):
                source = path.with_name(path.name + suffix)
                if source.exists():
                    shutil.copyfile(source, copy.with_name(copy.name + suffix))
        except OSError as error:
            raise StorageFault(f"cannot read the journal {path}: {error.strerror or error}") from error
        yield copy


def _entries(engine: sa.Engine) -> list[JournalEntry]:
    try:
        with engine.connect() as connection, connection.begin():
            return _read(connection)
    finally:
        engine.dispose()


def _read(connection: Connection) -> list[JournalEntry]:
    if not sa.inspect(connection).has_table(TABLE.name):
        return []
    found = connection.execute(sa.select(TABLE).order_by(TABLE.c.seq)).mappings()
    return [Row(**row).entry(number) for number, row in enumerate(found, start=1)]
