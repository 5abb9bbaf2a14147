"""Sessions that read unless they are asked to write; each is one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from tuner_storage.errors import translated

WRITES = "tuner_writes"
"""Execution option that tells the engine's ``begin`` handler which kind of transaction to start."""


@contextmanager
def reading(engine: Engine) -> Iterator[Session]:
    """A transaction in which the database itself refuses every change."""
    with _transaction(engine.execution_options(**{WRITES: False}, postgresql_readonly=True)) as session:
        yield session


@contextmanager
def writing(engine: Engine) -> Iterator[Session]:
    """A transaction that is kept when the block ends, and undone when it raises.

    On SQLite it takes the write lock at once (BEGIN IMMEDIATE): what is read in it cannot change before it ends.
    """
    with _transaction(engine.execution_options(**{WRITES: True})) as session:
        yield session


@contextmanager
def _transaction(engine: Engine) -> Iterator[Session]:
    with translated(engine.url), Session(engine) as session, session.begin():
        yield session
