"""Ctrl-C, SIGTERM and a study that is cancelled, as the driver hears of them."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tuner import stop_signal
from tuner.observer import SilentObserver
from tuner.stop_signal import CANCEL_NOTICE, CTRL_C_NOTICE, TERMINATED_NOTICE, StopSignal
from tuner.works import StopAsked


class Notices(SilentObserver):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def notice(self, text: str) -> None:
        self.heard.append(text)


def a_signal(notices: Notices, *, is_cancelled: bool = False) -> StopSignal:
    return StopSignal(notices, lambda: is_cancelled, lambda: None)


def test_nobody_asks_at_first() -> None:
    notices = Notices()
    with (heard := a_signal(notices)).hearing():
        assert heard.asked() is None
    assert notices.heard == []


def test_ctrl_c_once_waits_for_what_runs_and_says_so_once() -> None:
    notices = Notices()
    with (heard := a_signal(notices)).hearing():
        signal.raise_signal(signal.SIGINT)
        assert [heard.asked() for _ in range(3)] == [StopAsked.AFTER_RUNNING_STAGES] * 3
    assert notices.heard == [CTRL_C_NOTICE]


def test_ctrl_c_twice_ends_now() -> None:
    with (heard := a_signal(Notices())).hearing():
        signal.raise_signal(signal.SIGINT)
        heard.asked()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_sigterm_leaves_what_runs_to_the_next_driver() -> None:
    notices = Notices()
    with (heard := a_signal(notices)).hearing():
        signal.raise_signal(signal.SIGTERM)
        assert heard.asked() is StopAsked.LEAVE
    assert notices.heard == [TERMINATED_NOTICE]


def test_sigterm_after_ctrl_c_no_longer_waits() -> None:
    with (heard := a_signal(Notices())).hearing():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        assert heard.asked() is StopAsked.LEAVE


def test_the_handlers_of_before_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(ZeroDivisionError), a_signal(Notices()).hearing():
        raise ZeroDivisionError
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


class Database:
    """Counts what it is asked, and cancels when it is told to."""

    def __init__(self) -> None:
        self.looks = self.beats = 0
        self.cancels = False

    def is_cancelled(self) -> bool:
        self.looks += 1
        return self.cancels

    def beat(self) -> None:
        self.beats += 1


def test_the_database_is_asked_every_few_seconds_and_can_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    notices, database, now_s = Notices(), Database(), [0.0]
    monkeypatch.setattr("tuner.stop_signal.time.monotonic", lambda: now_s[0])
    heard = StopSignal(notices, database.is_cancelled, database.beat)
    for _ in range(100):
        heard.asked()
        now_s[0] += stop_signal.LOOK_INTERVAL_S / 10
    assert 9 <= database.looks == database.beats <= 10
    database.cancels = True
    now_s[0] += stop_signal.LOOK_INTERVAL_S
    assert heard.asked() is StopAsked.AT_ONCE
    assert notices.heard == [CANCEL_NOTICE]


def test_outside_the_main_thread_signals_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def run() -> None:
        with (heard := a_signal(Notices())).hearing():
            seen.extend((signal.getsignal(signal.SIGINT), heard.asked()))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [before, None]


WAITING = """
import sys, time
from tuner.observer import SilentObserver
from tuner.stop_signal import StopSignal

class Printing(SilentObserver):
    def notice(self, text):
        print(text, flush=True)

heard = StopSignal(Printing(), lambda: False, lambda: None)
try:
    with heard.hearing():
        print("ready", flush=True)
        while True:
            heard.asked()
            time.sleep(0.01)
except KeyboardInterrupt:
    print("ended", flush=True)
    sys.exit(130)
"""


def test_a_process_hears_real_signals() -> None:
    root = Path(__file__).parents[2]
    process = subprocess.Popen([sys.executable, "-c", WAITING], stdout=subprocess.PIPE, text=True, cwd=root)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == CTRL_C_NOTICE + "\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "ended\n"
        assert process.wait(10) == 130
