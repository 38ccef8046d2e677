"""The journal in a SQL database: SQLite by default, PostgreSQL by URL.

One connection both holds the writer's lock and writes, so that a writer whose lock is gone cannot write: on SQLite the
lock is a file beside the database (the sampler's study may live in the same database and is not locked out), on
PostgreSQL an advisory lock of the session.  A commit is on disk before ``append`` returns (write-ahead log with
``synchronous=FULL``).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from autotuner.core.events import Event
from autotuner.errors import StorageFault
from autotuner.ports import JournalEntry
from autotuner.storage.faults import storage_fault
from autotuner.storage.lock import FileLock
from autotuner.storage.records import Row, row_of

__all__ = ["TABLE", "SqlJournal", "parse_url", "sqlite_url"]

TABLE = sa.Table(
    "autotuner_journal",
    sa.MetaData(),
    sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=False),
    sa.Column("stamp", sa.Double(), nullable=False),
    sa.Column("kind", sa.Text(), nullable=False),
    sa.Column("format", sa.Integer(), nullable=False),
    sa.Column("body", sa.Text(), nullable=False),
    sa.Column("crc", sa.BigInteger(), nullable=False),
)

_ADVISORY_KEY = 0x6175746F74756E65
"""Key of the advisory lock: one journal per PostgreSQL database."""
_PAGE = 500
"""Rows fetched at once while reading."""
_BUSY_SECONDS = 10.0
"""Patience with another connection's transaction (the sampler's) in the same SQLite database."""


def sqlite_url(path: Path) -> str:
    """Return the URL of the SQLite database at *path*, whatever characters its name has.

    Raises:
        StorageFault: The installed SQLAlchemy has no way to write such a path.
    """
    text = URL.create("sqlite", database=str(path)).render_as_string()
    if sa.make_url(text).database != str(path):
        raise StorageFault(f"the path {path} cannot be written as a URL; give a folder without '?' in its name")
    return text


class SqlJournal:
    """Implements the Journal port at *url*, such as ``sqlite:////var/lib/autotuner/study.db``; closes on ``with``.

    May be used from any thread, by one at a time; further callers wait.

    Raises:
        StorageFault: the database cannot be opened, is damaged or belongs to another controller.
    """

    def __init__(self, url: str) -> None:
        parsed = parse_url(url)
        self._place = parsed.render_as_string(hide_password=True)
        self._guard = threading.Lock()
        self._lock: FileLock | None = None
        self._engine: Engine | None = None
        self._open_connection: Connection | None = None
        try:
            self._open(parsed)
            self._last = self._begin()
        except SQLAlchemyError as error:
            self._dispose()
            raise storage_fault("open", self._place, error) from error
        except BaseException:
            self._dispose()
            raise

    def append(self, events: Sequence[Event], stamp: float) -> None:
        """Store *events* durably and in order, all or none. Raise ``StorageFault`` when that fails."""
        with self._guard:
            connection = self._connection
            rows = [row_of(self._last + 1 + index, stamp, event) for index, event in enumerate(events)]
            if not rows:
                return
            try:
                with connection.begin():
                    connection.execute(sa.insert(TABLE), [_columns(row) for row in rows])
            except SQLAlchemyError as error:
                raise storage_fault("write to", self._place, error) from error
            self._last = rows[-1].seq

    def read(self) -> Iterator[JournalEntry]:
        """Yield every entry in order; raise ``StorageFault`` at the first one that is missing or damaged."""
        last = 0
        while page := self._page(last):
            for row in page:
                yield row.entry(last + 1)
                last += 1

    def close(self) -> None:
        """Release the database and its lock; safe to call twice."""
        with self._guard:
            self._dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _page(self, last: int) -> list[Row]:
        query = sa.select(TABLE).where(TABLE.c.seq > last).order_by(TABLE.c.seq).limit(_PAGE)
        with self._guard:
            connection = self._connection
            try:
                with connection.begin():
                    return [Row(**found) for found in connection.execute(query).mappings()]
            except SQLAlchemyError as error:
                raise storage_fault("read", self._place, error) from error

    @property
    def _connection(self) -> Connection:
        if self._open_connection is None:
            raise StorageFault("the journal is closed")
        if self._open_connection.invalidated:
            raise StorageFault(f"the connection to {self._place} was lost, and the lock with it; start again")
        return self._open_connection

    def _open(self, url: URL) -> None:
        if url.get_backend_name() == "sqlite":
            self._lock = FileLock(Path(f"{Path(str(url.database)).resolve()}.lock"))
            self._engine = sa.create_engine(url, connect_args={"timeout": _BUSY_SECONDS})
            self._open_connection = self._engine.connect()
            _set_up_sqlite(self._open_connection)
            return
        try:
            self._engine = sa.create_engine(url)
        except (NoSuchModuleError, ImportError) as error:
            raise StorageFault(f"no driver for {url.drivername} is installed ({error}); install psycopg") from error
        self._open_connection = self._engine.connect()
        if not self._open_connection.scalar(sa.select(sa.func.pg_try_advisory_lock(_ADVISORY_KEY))):
            raise StorageFault(f"another controller uses the journal {self._place}; stop it or give another database")
        self._open_connection.commit()

    def _begin(self) -> int:
        """Create the table where it is missing; return the last sequence number."""
        with self._connection.begin():
            TABLE.create(self._connection, checkfirst=True)
            return int(self._connection.scalar(sa.select(sa.func.coalesce(sa.func.max(TABLE.c.seq), 0))) or 0)

    def _dispose(self) -> None:
        if self._open_connection is not None:
            self._open_connection.close()
            self._open_connection = None
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def parse_url(url: str) -> URL:
    """Return *url* in its parts; raise ``StorageFault`` for one that no journal can have."""
    remedy = "write sqlite:////absolute/path.db or postgresql+psycopg://user@host/database"
    try:
        parsed = sa.make_url(url)
    except ArgumentError as error:
        raise StorageFault(f"{url!r} is not a database URL; {remedy}") from error
    backend = parsed.get_backend_name()
    if backend not in ("sqlite", "postgresql"):
        raise StorageFault(f"{backend} is not supported; {remedy}")
    if backend == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise StorageFault(f"a journal in memory would not outlive the process; {remedy}")
    return parsed


def _set_up_sqlite(connection: Connection) -> None:
    """Make commits durable, and look whether the file is whole."""
    connection.exec_driver_sql("PRAGMA journal_mode=WAL")
    connection.exec_driver_sql("PRAGMA synchronous=FULL")
    found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
    connection.commit()
    if found != "ok":
        raise StorageFault(
            f"the database {connection.engine.url.database} is damaged ({found}); restore it from a backup"
        )


def _columns(row: Row) -> dict[str, Any]:
    return {column.name: getattr(row, column.name) for column in TABLE.columns}
