"""One driver per study: a second search of the same name is refused while the first one runs."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from sqlalchemy import URL, Connection, text

from tuner.errors import StorageError
from tuner.speculation import content_key
from tuner_storage.errors import translated
from tuner_storage.store import SqlTrialStore
from tuner_storage.urls import is_memory, is_sqlite

_APPLICATION_NAME_BYTES = 63  # PostgreSQL cuts what is longer
_HOLDER = text(
    "SELECT activity.application_name FROM pg_locks AS locks JOIN pg_stat_activity AS activity USING (pid)"
    " WHERE locks.locktype = 'advisory' AND locks.granted AND locks.objsubid = 1"
    " AND locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND (locks.classid::bigint << 32 | locks.objid::bigint) = :key"
)


@contextmanager
def study_lock(store: SqlTrialStore, study_name: str) -> Iterator[None]:
    """Hold the study for this process; the operating system or the server lets go of it when the process dies.

    SQLite: a lock file beside the database. PostgreSQL: an advisory lock, held by a connection of its own (behind
    PgBouncer this needs session pooling). A database in memory has no other process to guard against.

    Raises:
        StorageError: Another driver holds it; says which process on which host, where that is known.
    """
    if is_memory(store.url):
        yield
    elif is_sqlite(store.url):
        with _file_lock(store.url, study_name):
            yield
    else:
        with _advisory_lock(store, study_name):
            yield


@contextmanager
def _file_lock(url: URL, study_name: str) -> Iterator[None]:
    path = Path(f"{url.database}.{content_key(study_name)}.lock")
    holder_path = path.with_suffix(".holder")  # apart, because trying to lock may empty the lock file
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise _held_error(study_name, _read_holder(holder_path)) from error
    except OSError as error:
        raise StorageError(f"cannot lock {path}: {error.strerror}", "check that you may write to its folder") from error
    try:
        holder_path.write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        yield
    finally:
        holder_path.unlink(missing_ok=True)
        lock.release()


def _read_holder(path: Path) -> str | None:
    try:
        holder = json.loads(path.read_text())
    except (OSError, ValueError):  # the other driver is just beginning or ending
        return None
    return f"tuner process {holder['pid']} on {holder['host']}"


@contextmanager
def _advisory_lock(store: SqlTrialStore, study_name: str) -> Iterator[None]:
    # Signed, because PostgreSQL's bigint is.
    key = int.from_bytes(bytes.fromhex(content_key(["tuner study", study_name])), "big", signed=True)
    with translated(store.url):
        connection = store.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    with connection:
        with translated(store.url):
            connection.detach()  # closed at the end instead of pooled: that is what lets go of the lock
            _take(connection, key, study_name)
        yield


def _take(connection: Connection, key: int, study_name: str) -> None:
    name = f"tuner process {os.getpid()} on {socket.gethostname()}"[:_APPLICATION_NAME_BYTES]
    connection.execute(text("SELECT set_config('application_name', :name, false)"), {"name": name})
    if not connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": key}):
        raise _held_error(study_name, connection.scalar(_HOLDER, {"key": key}))


def _held_error(study_name: str, holder: str | None) -> StorageError:
    return StorageError(
        f"study {study_name!r} is being run by {holder or 'another process'}",
        "wait for it or stop it, or give another --name",
    )
