"""The database's schema: which revision it has, and bringing it to the one this program knows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, inspect

from tuner.errors import SchemaError
from tuner_storage.errors import translated
from tuner_storage.session import WRITES
from tuner_storage.tables import Base
from tuner_storage.urls import hidden

VERSION_TABLE = "tuner_alembic_version"
"""Optuna's RDB storage owns ``alembic_version`` in the same database."""

MIGRATIONS = Path(__file__).parent / "migrations"
_UPGRADE_LOCK = 0x74756E6572  # "tuner": the key of PostgreSQL's advisory lock while a schema is changed


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaStatus:
    """How a database's schema stands to this program.

    Attributes:
        revision: What the database says it has; None when it says nothing.
        head: What this program needs.
        has_tables: Whether any of our tables exists.
        is_known: Whether this program knows how to come from ``revision`` to ``head``.
    """

    revision: str | None
    head: str
    has_tables: bool
    is_known: bool

    @property
    def is_current(self) -> bool:
        """Whether nothing needs to be done."""
        return self.revision == self.head

    @property
    def is_new(self) -> bool:
        """Whether the database holds nothing of ours yet."""
        return self.revision is None and not self.has_tables


def schema_status(engine: Engine) -> SchemaStatus:
    """How the database's schema stands to this program.

    Raises:
        StorageError: The database cannot be reached or read.
    """
    with translated(engine.url), engine.connect() as connection:
        return _status(connection)


def require_current_schema(engine: Engine, *, create: bool) -> None:
    """Give a new database its tables, and refuse every other schema than this program's.

    Raises:
        SchemaError: The schema is older, newer or unknown, or there is none and ``create`` is False.
    """
    status = schema_status(engine)
    if status.is_new and create:
        upgrade(engine)
    elif not status.is_current:
        raise schema_error(engine, status)


def upgrade(engine: Engine) -> SchemaStatus:
    """Bring a new or older database to this program's schema, as one transaction; the status before is returned.

    Two programs that upgrade at once wait for each other, and the second finds nothing to do.

    Raises:
        SchemaError: The schema is newer or unknown.
        StorageError: The database cannot be reached or written.
    """
    with translated(engine.url), _exclusive(engine) as connection:
        status = _status(connection)
        if not (status.is_new or status.is_known):
            raise schema_error(engine, status)
        if not status.is_current:
            command.upgrade(alembic_config(connection), "head")
    return status


def schema_error(engine: Engine, status: SchemaStatus) -> SchemaError:
    """The error that says how the schema differs and what to do."""
    where = f"the database {hidden(engine.url)}"
    if status.is_new:
        return SchemaError(f"{where} has no tables of the tuner", "run `tuner db upgrade`, or check --storage")
    if status.is_known:
        return SchemaError(
            f"{where} has the older schema {status.revision}, this program needs {status.head}",
            "run `tuner db upgrade`",
        )
    if status.revision is None:
        return SchemaError(f"{where} has tuner tables without a revision", "restore it from a copy, or use another one")
    return SchemaError(
        f"{where} has the schema {status.revision}, which this program does not know (it knows {status.head})",
        "install the version of specdec-tuner that wrote it, or a newer one",
    )


def alembic_config(connection: Connection | None = None) -> Config:
    """Alembic's configuration, without any file in the working directory."""
    config = Config()
    # Alembic interpolates % in its options.
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def is_ours(name: str | None, kind: str) -> bool:
    """Whether Alembic should look at this object of the database: tables of ours only."""
    return kind != "table" or (name is not None and name in Base.metadata.tables)


def _status(connection: Connection) -> SchemaStatus:
    scripts = ScriptDirectory.from_config(alembic_config())
    revision = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()
    return SchemaStatus(
        revision=revision,
        head=str(scripts.get_current_head()),
        has_tables=not set(inspect(connection).get_table_names()).isdisjoint(Base.metadata.tables),
        is_known=revision in {script.revision for script in scripts.walk_revisions()},
    )


@contextmanager
def _exclusive(engine: Engine) -> Iterator[Connection]:
    """A transaction during which no other program changes the schema."""
    with engine.execution_options(**{WRITES: True}).connect() as connection:
        if connection.dialect.name == "sqlite":
            with _without_foreign_keys(connection), connection.begin():
                yield connection
        else:
            with connection.begin():
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_UPGRADE_LOCK})")
                yield connection


@contextmanager
def _without_foreign_keys(connection: Connection) -> Iterator[None]:
    """Let SQLite's tables be rebuilt: dropping the old one would delete the rows that refer to it."""
    driver_connection: Any = connection.connection.driver_connection
    driver_connection.execute("PRAGMA foreign_keys=OFF")
    try:
        yield
    finally:
        driver_connection.execute("PRAGMA foreign_keys=ON")
