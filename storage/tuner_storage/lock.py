"""One driver per study: a second search of the same name is refused while the first one runs."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from filelock import FileLock, Timeout
from sqlalchemy import URL, Connection, text

from tuner.errors import StorageError, StorageUnreachableError
from tuner.speculation import content_key
from tuner_storage.errors import translated
from tuner_storage.store import SqlTrialStore
from tuner_storage.urls import is_memory, is_sqlite

_PEEK_S = 0.25
"""A driver waits so long for a lock file, because ``lock_holder`` may hold it for a moment."""

_OLD_SESSION_ENDS_S = 5
"""The server ends a session that is told to within moments."""

_MAKING_S = 60
_MAKING_KEY = 0x6F7074756E61  # "optuna"

_APPLICATION_NAME_BYTES = 63  # PostgreSQL cuts what is longer
_HOLDER = text(
    "SELECT activity.pid, activity.application_name"
    " FROM pg_locks AS locks JOIN pg_stat_activity AS activity USING (pid)"
    " WHERE locks.locktype = 'advisory' AND locks.granted AND locks.objsubid = 1"
    " AND locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND (locks.classid::bigint << 32 | locks.objid::bigint) = :key"
)
_END_OLD_SESSION = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = :pid AND application_name = :name"
)
_ANOTHER = "another process"


class StudyLock(Protocol):
    """A study that is held for this process."""

    def renew(self) -> None:
        """Make sure that it is still held; cheap, and meant to be called every few seconds.

        Raises:
            StorageError: Another driver took it while the database could not be reached; says which.
            StorageUnreachableError: The database cannot be reached for longer than the store's patience.
        """
        ...


@contextmanager
def study_lock(store: SqlTrialStore, study_name: str) -> Iterator[StudyLock]:
    """Hold the study for this process; the operating system or the server lets go of it when the process dies.

    SQLite: a lock file beside the database. PostgreSQL: an advisory lock, held by a connection of its own (behind
    PgBouncer this needs session pooling). A database in memory has no other process to guard against.

    Raises:
        StorageError: Another driver holds it; says which process on which host, where that is known.
    """
    if is_memory(store.url):
        yield _SafeLock()
    elif is_sqlite(store.url):
        with _file_lock(store.url, study_name):
            yield _SafeLock()
    else:
        lock = _AdvisoryLock(store, study_name)
        try:
            yield lock
        finally:
            lock.release()


def lock_holder(store: SqlTrialStore, study_name: str) -> str | None:
    """Who runs the study now, as "tuner process 4711 on host"; None where nobody does.

    Raises:
        StorageError: The database cannot be read, or the lock file not be opened.
    """
    if is_memory(store.url):
        return None
    if is_sqlite(store.url):
        return _file_holder(store.url, study_name)
    with translated(store.url), store.engine.connect() as connection:
        holder = connection.execute(_HOLDER, {"key": _advisory_key(study_name)}).first()
    return None if holder is None else (holder.application_name or _ANOTHER)


@contextmanager
def making_tables(store: SqlTrialStore) -> Iterator[None]:
    """Keep other programs from making tables meanwhile: Optuna, whose tables are in the same database, does not.

    Raises:
        StorageError: Another program holds it for longer than it takes.
    """
    if is_memory(store.url):
        yield
    elif is_sqlite(store.url):
        path = Path(f"{store.url.database}.making.lock")
        try:
            with FileLock(path, timeout=_MAKING_S):
                yield
        except Timeout as error:
            raise StorageError(f"another program has been making tables for {_MAKING_S} s", f"see {path}") from error
    else:
        with translated(store.url), store.engine.begin() as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MAKING_KEY})
            yield


class _SafeLock:
    """A lock that cannot be lost while its process lives."""

    def renew(self) -> None:
        """Nothing to do."""


def _lock_path(url: URL, study_name: str) -> Path:
    return Path(f"{url.database}.{content_key(study_name)}.lock")


def _holder_path(path: Path) -> Path:
    return path.with_suffix(".holder")  # apart, because trying to lock may empty the lock file


@contextmanager
def _file_lock(url: URL, study_name: str) -> Iterator[None]:
    path = _lock_path(url, study_name)
    lock = FileLock(path, timeout=_PEEK_S)
    try:
        lock.acquire()
    except Timeout as error:
        raise _held_error(study_name, _read_holder(path)) from error
    except OSError as error:
        raise _cannot_lock(path, error) from error
    try:
        _holder_path(path).write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        yield
    finally:
        _holder_path(path).unlink(missing_ok=True)
        lock.release()


def _file_holder(url: URL, study_name: str) -> str | None:
    path = _lock_path(url, study_name)
    if not path.exists():
        return None
    try:
        with FileLock(path, timeout=0):
            return None
    except Timeout:
        return _read_holder(path)
    except OSError as error:
        raise _cannot_lock(path, error) from error


def _cannot_lock(path: Path, error: OSError) -> StorageError:
    return StorageError(f"cannot lock {path}: {error.strerror}", "check that you may write to its folder")


def _read_holder(path: Path) -> str:
    try:
        holder = json.loads(_holder_path(path).read_text())
    except (OSError, ValueError):  # the other driver is just beginning or ending
        return _ANOTHER
    return f"tuner process {holder['pid']} on {holder['host']}"


class _AdvisoryLock:
    """PostgreSQL's lock, which lasts as long as the session of the connection that took it."""

    def __init__(self, store: SqlTrialStore, study_name: str) -> None:
        self._store = store
        self._study_name = study_name
        self._key = _advisory_key(study_name)
        self._name = f"tuner process {os.getpid()} on {socket.gethostname()}"[:_APPLICATION_NAME_BYTES]
        self._server_pid: int | None = None
        self._connection: Connection | None = None
        self._take()

    def renew(self) -> None:
        """See ``StudyLock.renew``."""
        if not self._is_alive():
            with suppress(StorageError), translated(self._store.url):  # what is left of it may be beyond closing
                self.release()
            self._store.patience.call(self._take)

    def release(self) -> None:
        """Let go of it, by closing its connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _is_alive(self) -> bool:
        if self._connection is None:
            return False
        try:
            with translated(self._store.url):
                self._connection.execute(text("SELECT 1"))
        except StorageUnreachableError:
            return False
        return True

    def _take(self) -> None:
        with translated(self._store.url):
            connection = self._store.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            try:
                connection.detach()  # closed at the end instead of pooled: that is what lets go of the lock
                self._lock_with(connection)
            except BaseException:
                connection.close()
                raise
        self._connection = connection

    def _lock_with(self, connection: Connection) -> None:
        connection.execute(text("SELECT set_config('application_name', :name, false)"), {"name": self._name})
        if self._server_pid is not None:
            # Where the network was cut, the server may take hours to notice that our former session is gone.
            connection.execute(_END_OLD_SESSION, {"pid": self._server_pid, "name": self._name})
        deadline_s = time.monotonic() + _OLD_SESSION_ENDS_S
        while not connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": self._key}):
            holder = connection.execute(_HOLDER, {"key": self._key}).first()
            is_our_own = holder is not None and holder.pid == self._server_pid
            if not is_our_own or time.monotonic() > deadline_s:
                raise _held_error(self._study_name, (holder and holder.application_name) or _ANOTHER)
            time.sleep(0.05)
        self._server_pid = connection.scalar(text("SELECT pg_backend_pid()"))


def _advisory_key(study_name: str) -> int:
    # Signed, because PostgreSQL's bigint is.
    return int.from_bytes(bytes.fromhex(content_key(["tuner study", study_name])), "big", signed=True)


def _held_error(study_name: str, holder: str) -> StorageError:
    return StorageError(
        f"study {study_name!r} is being run by {holder}", "wait for it or stop it, or give another --name"
    )
