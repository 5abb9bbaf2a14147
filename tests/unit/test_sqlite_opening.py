"""Opening a SQLite file that another program is opening too."""

from __future__ import annotations

import sqlite3

import pytest

from tuner_storage.engine import _use_write_ahead_log


class Cursor:
    """Fails as often as it is told, with SQLite's own code."""

    def __init__(self, failures: int, code: int) -> None:
        self.failures, self.code, self.calls = failures, code, 0

    def execute(self, _statement: str) -> None:
        self.calls += 1
        if self.calls <= self.failures:
            error = sqlite3.OperationalError("refused")
            error.sqlite_errorcode = self.code
            raise error


def test_a_file_that_is_locked_while_it_is_made_is_tried_again() -> None:
    cursor = Cursor(2, sqlite3.SQLITE_BUSY)
    _use_write_ahead_log(cursor)  # type: ignore[arg-type]
    assert cursor.calls == 3


def test_another_fault_is_told_at_once() -> None:
    cursor = Cursor(9, sqlite3.SQLITE_CANTOPEN)
    with pytest.raises(sqlite3.OperationalError):
        _use_write_ahead_log(cursor)  # type: ignore[arg-type]
    assert cursor.calls == 1
