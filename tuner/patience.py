"""Waiting for a database that cannot be reached: a search outlives the restart of its server."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from tenacity import RetryCallState, RetryError, Retrying, retry_if_exception, stop_after_delay, wait_exponential

from tuner.errors import StorageUnreachableError

logger = logging.getLogger(__name__)

T = TypeVar("T")

LONGEST_WAIT_S = 10
"""Between two attempts; a server that is back is noticed within this time."""


class Patience:
    """Repeats what a database was asked until it can be reached again, or for so long that it is given up.

    One object serves everything that uses the same database, so that an outage is told once. May be used by several
    threads.

    Args:
        seconds: Longest wait; 0 asks once.
        is_unreachable: Whether an error means that the database cannot be reached now; every other error is raised.
        on_wait: Hears once that an outage began and once that it is over; None logs it.
    """

    def __init__(
        self,
        seconds: float = 0,
        is_unreachable: Callable[[BaseException], bool] = lambda error: isinstance(error, StorageUnreachableError),
        on_wait: Callable[[str], None] | None = None,
    ) -> None:
        self._seconds = seconds
        self._on_wait = on_wait or logger.warning
        self._lock = threading.Lock()
        self._began_s: float | None = None
        self._retrying = Retrying(
            retry=retry_if_exception(is_unreachable),
            wait=wait_exponential(multiplier=0.05, max=LONGEST_WAIT_S),
            stop=stop_after_delay(seconds),
            before_sleep=self._begin_outage,
        )

    def call(self, work: Callable[[], T]) -> T:
        """What ``work`` gives back; it is called again after an outage, so that it must be safe to repeat.

        Raises:
            StorageUnreachableError: The database could not be reached for longer than the patience.
        """
        try:
            result = self._retrying.copy()(work)
        except RetryError as error:
            raise self._given_up(error.last_attempt.exception()) from error.last_attempt.exception()
        if self._began_s is not None:
            self._end_outage()
        return result

    def _begin_outage(self, _state: RetryCallState) -> None:
        with self._lock:
            if self._began_s is not None:
                return
            self._began_s = time.monotonic()
        now = datetime.now(UTC)
        self._on_wait(
            f"the database cannot be reached since {now:%H:%M:%S} UTC; waiting for it up to {self._seconds:g} s"
        )

    def _end_outage(self) -> None:
        with self._lock:
            began_s, self._began_s = self._began_s, None
        if began_s is not None:
            self._on_wait(f"the database is back after {time.monotonic() - began_s:.0f} s")

    def _given_up(self, error: BaseException | None) -> StorageUnreachableError:
        reason, hint = "the database cannot be reached", ""
        if isinstance(error, StorageUnreachableError):
            reason, hint = error.message, error.hint
        waited = f" (waited {self._seconds:g} s)" if self._seconds else ""
        return StorageUnreachableError(reason + waited, hint or "check that its server runs")
