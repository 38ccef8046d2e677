"""Database errors as ``StorageFault`` with what to do about them, decided by the driver's codes and classes."""

from __future__ import annotations

import sqlite3
from typing import Final

from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from autotuner.errors import StorageFault

__all__ = ["storage_fault"]

_SQLITE_REMEDIES: Final = {
    sqlite3.SQLITE_FULL: "the disk is full: free some space",
    sqlite3.SQLITE_IOERR: "the disk failed or is full: free some space and look into the kernel's log",
    sqlite3.SQLITE_CORRUPT: "the database is damaged: restore it from a backup, or move it away to begin anew",
    sqlite3.SQLITE_NOTADB: "the file is not a database: give another path, or move it away to begin anew",
    sqlite3.SQLITE_BUSY: "another program locks the database: end it",
    sqlite3.SQLITE_LOCKED: "another program locks the database: end it",
    sqlite3.SQLITE_READONLY: "the database cannot be written: correct its owner and permissions",
    sqlite3.SQLITE_PERM: "the database cannot be used: correct its owner and permissions",
    sqlite3.SQLITE_CANTOPEN: "the database cannot be opened: create its folder and correct its permissions",
}
"""Primary result code → what the operator does."""

_SQLSTATE_REMEDIES: Final = {
    "53100": "the database server's disk is full: free some space",
    "28P01": "the password is wrong: correct the URL",
    "28000": "the server refuses this user: correct the URL or the server's access rules",
    "3D000": "the database does not exist: create it",
    "42501": "the user lacks a permission: grant CREATE on the schema",
}
"""PostgreSQL's SQLSTATE → what the operator does."""


def storage_fault(action: str, place: str, error: SQLAlchemyError) -> StorageFault:
    """Return the fault for *error*, which happened when *action* was done to the journal at *place*."""
    cause: object = getattr(error, "orig", None) or error
    detail = str(cause).strip().partition("\n")[0] or type(cause).__name__
    return StorageFault(f"cannot {action} the journal {place} ({detail}); {_remedy(error, cause)}")


def _remedy(error: SQLAlchemyError, cause: object) -> str:
    if isinstance(error, IntegrityError):
        return "another controller writes to it: stop one of them"
    code = getattr(cause, "sqlite_errorcode", None)
    if isinstance(code, int):
        return _SQLITE_REMEDIES.get(code & 0xFF, "look into the database's own messages")
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    if isinstance(state, str):
        return _SQLSTATE_REMEDIES.get(state, f"look into the database server's log (SQLSTATE {state})")
    return "check that the database server runs and can be reached, then start again"
