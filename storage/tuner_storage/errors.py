"""Errors of databases and drivers, translated in one place into the tuner's own."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import URL
from sqlalchemy.exc import DBAPIError, OperationalError, PendingRollbackError, SQLAlchemyError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from tuner.errors import StorageError, StorageUnreachableError
from tuner_storage.urls import BUSY_TIMEOUT_S, hidden, is_sqlite

_SQLITE_HINTS = {
    "SQLITE_BUSY": f"another program held the database for more than {BUSY_TIMEOUT_S} s; stop it, or use PostgreSQL",
    "SQLITE_CANTOPEN": "check that the folder exists and that you may write to it",
    "SQLITE_CORRUPT": "restore the file from a copy, or give another --storage",
    "SQLITE_FULL": "free some disk space and run the same command again",
    "SQLITE_IOERR": "check the disk; SQLite needs a local one, use PostgreSQL on network shares",
    "SQLITE_NOTADB": "the file is something else; give another --storage",
    "SQLITE_READONLY": "check that you may write to the file and to its folder",
}
_POSTGRESQL_HINTS = {
    "28P01": "check user and password",
    "3D000": "create the database first: createdb NAME",
    "42501": "grant the user CREATE on the schema, or name a database that it owns",
    "53100": "free some disk space on the server and run the same command again",
    "53300": "close other clients, or raise max_connections",
}
_UNREACHABLE = "check host, port, user and password, and that the server runs"


_SERVER_IS_AWAY = ("08", "57P01", "57P02", "57P03")
"""SQLSTATEs, by their beginning: connection exceptions; shut down, crashed and cannot connect now."""


_USED_AFTER_LOSS = "8s2b"
"""SQLAlchemy's code for a session that is used again although its connection was lost, as Optuna does."""


class ConnectionLostError(StorageUnreachableError):
    """The server closed the connection; nothing of the transaction was kept, and it may be tried again."""


@contextmanager
def translated(url: URL) -> Iterator[None]:
    """Raise errors of SQLAlchemy and of drivers as ``StorageError``, chained, without the address's password.

    Raises:
        ConnectionLostError: The connection was cut.
        StorageUnreachableError: The server does not answer.
        StorageError: Anything else.
    """
    try:
        yield
    except SQLAlchemyError as error:
        kind = _kind(error)
        raise kind(f"database {hidden(url)}: {_without_password(_cause(error), url)}", _hint(error, url)) from error


def is_unreachable(error: BaseException) -> bool:
    """Whether the error, or one that it was raised from, means that the server cannot be reached now."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, SQLAlchemyError):
            return issubclass(_kind(cause), StorageUnreachableError)
        if isinstance(cause, StorageUnreachableError):
            return True
        cause = cause.__cause__
    return False


def _kind(error: SQLAlchemyError) -> type[StorageError]:
    if isinstance(error, PendingRollbackError) and error.code == _USED_AFTER_LOSS:
        return ConnectionLostError
    if not isinstance(error, DBAPIError) or isinstance(error.orig, sqlite3.Error):
        return StorageError
    if error.connection_invalidated:
        return ConnectionLostError
    state: str | None = getattr(error.orig, "sqlstate", None)
    # libpq gives no SQLSTATE to what goes wrong before a connection is made.
    never_connected = state is None and isinstance(error, OperationalError)
    is_away = state is not None and state.startswith(_SERVER_IS_AWAY)
    return StorageUnreachableError if never_connected or is_away else StorageError


def _cause(error: SQLAlchemyError) -> str:
    """What the driver said, without the statement and its parameters."""
    cause = error.orig if isinstance(error, StatementError) and error.orig is not None else error
    return str(cause).strip() or type(cause).__name__


def _without_password(text: str, url: URL) -> str:
    return text.replace(str(url.password), "***") if url.password else text


def _hint(error: SQLAlchemyError, url: URL) -> str:
    if isinstance(error, PoolTimeoutError):
        return "every connection is in use; run fewer threads on one store"
    if not isinstance(error, DBAPIError):
        return ""
    if is_sqlite(url):
        name: str = getattr(error.orig, "sqlite_errorname", "")
        return next((hint for prefix, hint in _SQLITE_HINTS.items() if name.startswith(prefix)), "")
    state: str | None = getattr(error.orig, "sqlstate", None)
    return _UNREACHABLE if state is None else _POSTGRESQL_HINTS.get(state, "")
