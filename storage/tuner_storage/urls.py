"""Database addresses: what a person may write, what SQLAlchemy and Optuna get, and what may be shown."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from tuner.errors import StorageError

SQLITE = "sqlite"
POSTGRESQL = "postgresql"
BUSY_TIMEOUT_S = 30
"""How long a statement waits for another program's SQLite lock; SQLite's own 5 s lost measurements."""

NOTICES_LOSS = {
    "connect_timeout": "10",
    "keepalives_idle": "60",
    "keepalives_interval": "10",
    "keepalives_count": "5",
    "tcp_user_timeout": "60000",
}
"""A machine that vanished without a word is noticed within two minutes; libpq and TCP by themselves take hours."""

_DRIVERS = {
    "sqlite": "sqlite",
    "sqlite+pysqlite": "sqlite",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
    "postgresql+psycopg2": "postgresql+psycopg",
}
_ADDRESS = re.compile(r"(?P<scheme>[A-Za-z0-9+]+)://(?P<rest>.*)", re.DOTALL)
_HOST = re.compile(r"[\w.:-]*", re.ASCII)
_STRAY_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_EXAMPLES = "for example sqlite:///tuner.db or postgresql://user:password@host:5432/database"
_SLASHES = "write three slashes for a file in this folder (sqlite:///tuner.db), four for an absolute path"
_ESCAPES = "escape special characters of user and password: @ as %40, : as %3A, / as %2F, # as %23, ? as %3F, % as %25"


def parse_storage_url(text: str) -> URL:
    """The address of a database as SQLAlchemy takes it.

    ``postgres://`` and the psycopg2 driver become ``postgresql+psycopg``. No error shows any part of the address
    but its scheme, because a wrongly escaped password may be anywhere in it.

    Raises:
        StorageError: Not an address, another kind of database, a wrong number of slashes, or characters of the
            password that are not escaped.
    """
    match = _ADDRESS.fullmatch(text.strip())
    if match is None:
        raise StorageError("the storage address has no scheme", _EXAMPLES)
    scheme = match["scheme"].lower()
    if scheme not in _DRIVERS:
        raise StorageError(f"the storage address begins with {scheme}://, which is not supported", _EXAMPLES)
    address = f"{_DRIVERS[scheme]}://{match['rest']}"
    return _sqlite_url(address) if _DRIVERS[scheme] == SQLITE else _postgresql_url(address)


def hidden(url: URL) -> str:
    """The address for people: without its password."""
    return url.render_as_string(hide_password=True)


def is_sqlite(url: URL) -> bool:
    """Whether the address is of an SQLite database."""
    return url.get_backend_name() == SQLITE


def is_memory(url: URL) -> bool:
    """Whether the address is of an SQLite database that lives in this process only."""
    return is_sqlite(url) and url.database in {None, "", ":memory:"}


def with_absolute_path(url: URL) -> URL:
    """The same database, whatever the working directory is later."""
    if not is_sqlite(url) or is_memory(url):
        return url
    return url.set(database=str(Path(str(url.database)).absolute()))


def optuna_url(store_url: str) -> str:
    """The address of the same database for ``optuna.storages.RDBStorage``, password included: do not show it.

    Raises:
        StorageError: As ``parse_storage_url``, or the database lives in memory, where nothing can be shared.
    """
    url = parse_storage_url(store_url)
    if is_memory(url):
        raise StorageError("an SQLite database in memory cannot be shared with Optuna", "name a file: " + _SLASHES)
    if is_sqlite(url):
        url = with_absolute_path(url).difference_update_query(["timeout"])
        url = url.update_query_dict({"timeout": str(BUSY_TIMEOUT_S)})
    else:
        url = url.update_query_dict({name: value for name, value in NOTICES_LOSS.items() if name not in url.query})
    return url.render_as_string(hide_password=False)


def _sqlite_url(address: str) -> URL:
    rest = address.removeprefix("sqlite://")
    if rest and not rest.startswith(("/", "?")):
        raise StorageError("the SQLite address has two slashes before the file's name", _SLASHES)
    # Decoded here, because SQLAlchemy 2.1 decodes the file's name and 2.0 does not.
    file = unquote(rest.partition("?")[0].removeprefix("/"))
    if file.startswith("file:"):
        raise StorageError("the SQLite address holds a file: URI, which is not supported", _SLASHES)
    return make_url(address).set(database=str(Path(file).expanduser()) if file.startswith("~") else file)


def _postgresql_url(address: str) -> URL:
    try:
        url = make_url(address)
    except (ArgumentError, ValueError):  # their messages may quote the password
        raise StorageError("the PostgreSQL address cannot be read", f"{_EXAMPLES}; {_ESCAPES}") from None
    url = _with_query_password(url)
    _check_escapes(address, url)
    if not url.database:
        raise StorageError(
            "the PostgreSQL address names no database", "add it: postgresql://user:password@host:5432/database"
        )
    return url


def _check_escapes(address: str, url: URL) -> None:
    user_info = address.partition("://")[2].partition("?")[0].rpartition("@")[0]
    host_is_odd = _HOST.fullmatch(url.host or "") is None
    if host_is_odd or "@" in (url.database or "") or "@" in user_info or _STRAY_PERCENT.search(user_info):
        raise StorageError(
            "the PostgreSQL address has an @, / or % that is not escaped, so where its host begins is not clear",
            _ESCAPES,
        )


def _with_query_password(url: URL) -> URL:
    """Move ``?password=…``, which libpq takes too, to where it is hidden when shown."""
    password = url.query.get("password")
    if not isinstance(password, str):
        return url
    return url.set(password=password).difference_update_query(["password"])
