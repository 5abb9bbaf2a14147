"""A database that cannot be reached is waited for, and told about once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tuner.errors import StorageError, StorageUnreachableError
from tuner.patience import Patience


def failing(times: int, error: Exception) -> Callable[[], str]:
    """Work that fails at first, as often as said."""
    errors: Iterator[Exception] = iter([error] * times)

    def work() -> str:
        if (failure := next(errors, None)) is not None:
            raise failure
        return "done"

    return work


AWAY = StorageUnreachableError("database postgresql://host/db: connection refused", "check that the server runs")


def test_work_is_repeated_until_the_database_is_back_and_the_outage_is_told_once() -> None:
    heard: list[str] = []
    patience = Patience(60, on_wait=heard.append)
    assert patience.call(failing(3, AWAY)) == "done"
    began, ended = heard
    assert "cannot be reached since" in began
    assert "waiting for it up to 60 s" in began
    assert ended == "the database is back after 0 s"


def test_a_second_outage_is_told_again() -> None:
    heard: list[str] = []
    patience = Patience(60, on_wait=heard.append)
    for _ in range(2):
        patience.call(failing(1, AWAY))
    assert len(heard) == 4


def test_without_patience_nothing_is_repeated() -> None:
    heard: list[str] = []
    with pytest.raises(StorageUnreachableError) as caught:
        Patience(on_wait=heard.append).call(failing(1, AWAY))
    assert (caught.value.message, caught.value.hint) == (AWAY.message, AWAY.hint)
    assert heard == []


def test_when_the_patience_is_over_the_error_says_how_long_was_waited() -> None:
    with pytest.raises(StorageUnreachableError) as caught:
        Patience(0.5).call(failing(1000, AWAY))
    assert caught.value.message == AWAY.message + " (waited 0.5 s)"
    assert caught.value.hint == AWAY.hint


def test_other_errors_are_raised_at_once() -> None:
    with pytest.raises(StorageError, match="disk full"):
        Patience(60).call(failing(1, StorageError("disk full")))


def test_errors_of_other_libraries_are_told_by_whoever_knows_them() -> None:
    patience = Patience(0.1, is_unreachable=lambda error: isinstance(error, ConnectionError))
    with pytest.raises(StorageUnreachableError, match=r"the database cannot be reached \(waited 0\.1 s\)"):
        patience.call(failing(1000, ConnectionError()))


def test_the_end_of_an_outage_that_another_call_began_is_told() -> None:
    heard: list[str] = []
    patience = Patience(0.3, on_wait=heard.append)
    with pytest.raises(StorageUnreachableError):
        patience.call(failing(1000, AWAY))
    patience.call(failing(0, AWAY))
    (ended,) = heard[1:]
    assert ended.startswith("the database is back after ")
