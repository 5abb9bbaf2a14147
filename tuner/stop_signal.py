"""Whether somebody wants a search to stop: Ctrl-C in its terminal, a system that ends it, or ``tuner cancel``."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from tuner.observer import Observer
from tuner.works import StopAsked

LOOK_INTERVAL_S = 5.0
"""Between two looks into the database."""

CTRL_C_NOTICE = (
    "stopping: nothing new is started, what runs is waited for; Ctrl-C once more ends now and keeps what is finished"
)
CANCEL_NOTICE = "cancelled: what runs is ended, and what is finished is kept"
TERMINATED_NOTICE = "asked to end by the system: what is finished is kept"


class StopSignal:
    """Answers the driver's question whether to stop.

    Args:
        is_cancelled: Asks the database, every few seconds.
        beat: Called as often, to keep what must be kept alive, such as the study's lock.
    """

    def __init__(self, observer: Observer, is_cancelled: Callable[[], bool], beat: Callable[[], None]) -> None:
        self._observer = observer
        self._is_cancelled = is_cancelled
        self._beat = beat
        self._looked_s = time.monotonic()
        self._asked: StopAsked | None = None
        self._notice = ""

    def asked(self) -> StopAsked | None:
        """How to stop; None to go on. Raises what ``is_cancelled`` and ``beat`` raise."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= LOOK_INTERVAL_S:
            self._looked_s = now_s
            self._beat()
            if self._is_cancelled():
                self._ask(StopAsked.AT_ONCE, CANCEL_NOTICE)
        if self._notice:
            self._observer.notice(self._notice)
            self._notice = ""
        return self._asked

    @contextmanager
    def hearing(self) -> Iterator[None]:
        """Hear Ctrl-C and SIGTERM meanwhile; outside the main thread, where Python hears no signal, only the database.

        Raises:
            KeyboardInterrupt: At the second Ctrl-C.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
        signal.signal(signal.SIGINT, self._interrupt)
        signal.signal(signal.SIGTERM, self._terminate)
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self._asked is not None:
            raise KeyboardInterrupt
        self._ask(StopAsked.AFTER_RUNNING_STAGES, CTRL_C_NOTICE)

    def _terminate(self, _number: int, _frame: FrameType | None) -> None:
        self._ask(StopAsked.LEAVE, TERMINATED_NOTICE)

    def _ask(self, asked: StopAsked, notice: str) -> None:
        if self._asked is not asked:
            self._asked, self._notice = asked, notice
