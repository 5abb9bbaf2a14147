"""Opening a database: the settings that make SQLite and PostgreSQL lose nothing."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import URL, Connection, Engine, QueuePool, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor
from sqlalchemy.pool import ConnectionPoolEntry
from tenacity import retry, retry_if_exception, stop_after_delay, wait_random

from tuner.errors import StorageError
from tuner.patience import Patience
from tuner_storage.errors import is_unreachable, translated
from tuner_storage.migrate import require_current_schema
from tuner_storage.session import WRITES
from tuner_storage.store import SqlTrialStore
from tuner_storage.urls import (
    BUSY_TIMEOUT_S,
    NOTICES_LOSS,
    hidden,
    is_memory,
    is_sqlite,
    parse_storage_url,
    with_absolute_path,
)

logger = logging.getLogger(__name__)

NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "9p", "afs"})


def open_store(
    url: str,
    *,
    create: bool = True,
    patience_s: float = 0,
    on_wait: Callable[[str], None] | None = None,
) -> SqlTrialStore:
    """The store in the database at ``url``; a new or empty one gets its tables, and SQLite its folder.

    Args:
        url: See ``parse_storage_url``.
        create: False refuses a database that has no tables yet.
        patience_s: How long each call of the store waits for a server that was there and cannot be reached any more.
            Opening never waits: a wrong address is said at once.
        on_wait: Hears once that the server cannot be reached, and once that it is back; None logs it.

    Raises:
        StorageUnreachableError: The server does not answer.
        StorageError: The database cannot be opened, or has no tables and ``create`` is False.
        SchemaError: Its schema is older (the hint says how to upgrade), newer or unknown.
    """
    engine = open_engine(url, create=create)
    try:
        require_current_schema(engine, create=create)
    except StorageError:
        engine.dispose()
        raise
    return SqlTrialStore(engine, Patience(patience_s, is_unreachable, on_wait))


def open_engine(url: str, *, create: bool = True) -> Engine:
    """SQLAlchemy's engine for the database at ``url``, with our settings; nothing is connected yet.

    Raises:
        StorageError: The address is wrong, the driver is missing, or an SQLite file does not exist and ``create``
            is False, or its folder cannot be made.
    """
    parsed = with_absolute_path(parse_storage_url(url))
    if not is_sqlite(parsed):
        return _postgresql_engine(parsed)
    if not is_memory(parsed):
        _prepare_file(parsed, create=create)
    return _sqlite_engine(parsed)


def _prepare_file(url: URL, *, create: bool) -> None:
    path = Path(str(url.database))
    if not create and not path.exists():
        raise StorageError(f"there is no database at {hidden(url)}", "check --storage, or run `tuner search` first")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"cannot make the folder {path.parent}: {error.strerror}", "give another --storage"
        ) from error
    if (kind := _file_system(path.parent)) in NETWORK_FILE_SYSTEMS:
        logger.warning("%s is on a network file system (%s), where SQLite may lose data; use PostgreSQL", path, kind)


def _file_system(folder: Path) -> str:
    """Kind of the file system that holds the folder, as the operating system calls it."""
    resolved = folder.resolve()
    mounts = {Path(one.mountpoint): one.fstype for one in psutil.disk_partitions(all=True)}
    return next((mounts[parent] for parent in (resolved, *resolved.parents) if parent in mounts), "")


def _sqlite_engine(url: URL) -> Engine:
    # One connection for a database in memory: a second one would open another, empty database.
    pool = {"pool_size": 1, "max_overflow": 0} if is_memory(url) else {"pool_size": 2, "max_overflow": 8}
    engine = create_engine(
        url,
        poolclass=QueuePool,
        connect_args={"check_same_thread": False, "timeout": BUSY_TIMEOUT_S},
        hide_parameters=True,
        **pool,
    )
    event.listen(engine, "connect", _configure_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _configure_sqlite(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    driver_connection: Any = connection
    driver_connection.isolation_level = None  # the driver must not begin transactions of its own: see _begin_sqlite
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.execute("PRAGMA synchronous=FULL")  # WAL with NORMAL may lose the last commits when power fails
    _use_write_ahead_log(cursor)
    cursor.close()


def _is_busy(error: BaseException) -> bool:
    return getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


@retry(
    retry=retry_if_exception(_is_busy),
    wait=wait_random(0.01, 0.1),
    stop=stop_after_delay(BUSY_TIMEOUT_S),
    reraise=True,
)
def _use_write_ahead_log(cursor: DBAPICursor) -> None:
    """Switch to the write-ahead log; it stays as it was in memory and where the file system cannot.

    SQLite's own busy timeout does not wait here: two programs that open a new database at once would meet as "locked".
    """
    cursor.execute("PRAGMA journal_mode=WAL")


def _begin_sqlite(connection: Connection) -> None:
    """Begin the kind of transaction that the session asked for."""
    writes = bool(connection.get_execution_options().get(WRITES, False))
    connection.exec_driver_sql(f"PRAGMA query_only={'OFF' if writes else 'ON'}")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _postgresql_engine(url: URL) -> Engine:
    defaults = {"application_name": "tuner", **NOTICES_LOSS}
    try:
        with translated(url):
            return create_engine(
                url,
                pool_pre_ping=True,  # a connection that idled through a long trial may have been cut
                pool_size=2,
                max_overflow=3,
                connect_args={name: value for name, value in defaults.items() if name not in url.query},
                hide_parameters=True,
            )
    except ModuleNotFoundError as error:
        raise StorageError(
            "PostgreSQL needs the package psycopg, which is not installed",
            "pip install 'specdec-tuner[postgresql]'",
        ) from error
