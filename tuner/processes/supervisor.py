"""Stands between the owner of a stage and the stage's processes, so that none of them outlives either.

A program of its own with the standard library alone: ``python -I -S supervisor.py ORDERS COMMAND …`` starts in some
20 ms, and no fault of a stage's libraries reaches it. ORDERS is a JSON object:

    control     its end of a socket pair. End of file: the owner is gone or wants the stage ended
    owner       pidfd of the owner, -1 where the kernel has none; a fork of the owner may keep the socket open
    keep        descriptors that the command inherits
    hold        descriptors that stay open until everything has ended, such as locks
    cpus        those that the command may run on; [] for all
    deadline_s  after which the command is ended
    grace_s     between SIGTERM and SIGKILL

It writes two lines into ``control``: ``began PID SECONDS``, and ``ended REASON VALUE SECONDS`` with the reason
``exit``, ``signal``, ``deadline`` or ``told``; seconds are those of ``time.monotonic()``. It ends itself after the last
descendant, so that end of file means: nothing is left.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

LOOK_INTERVAL_S = 0.02
"""Between two looks at processes that are being ended."""

OUT_OF_MEMORY_SCORE = 500
"""Of a stage, from -1000 to 1000: when memory ends, the kernel kills it rather than the search or the database."""


def main() -> None:
    """Run the command and see to its end."""
    orders, command = json.loads(sys.argv[1]), sys.argv[2:]
    for descriptor in (orders["control"], orders["owner"], *orders["hold"]):
        if descriptor >= 0:
            os.set_inheritable(descriptor, False)
    _step_aside(orders)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # the owner's thread may have blocked some
    woken = _wake_on_signals()
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    stage = _start(command, orders)
    began_s = time.monotonic()
    _say(orders["control"], f"began {stage} {began_s}")
    reason, value = _wait(stage, orders, woken, began_s + orders["deadline_s"])
    _say(orders["control"], f"ended {reason} {value} {time.monotonic()}")
    _end_all(orders["grace_s"])  # also what a stage left behind that ended by itself


def _step_aside(orders: dict[str, Any]) -> None:
    """Go on in a child: Ray kills the direct children of a worker with SIGKILL when the worker ends.

    The process that the owner started only waits, so that the supervisor leaves no zombie.
    """
    supervisor = os.fork()
    if not supervisor:
        return
    for descriptor in (orders["control"], *orders["keep"], *orders["hold"]):
        os.close(descriptor)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(supervisor, 0)
    os._exit(0)


def _wake_on_signals() -> int:
    """A descriptor that becomes readable when a child ends or when somebody tells this process to end."""
    woken, waking = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(waking, False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    return woken


def _start(command: list[str], orders: dict[str, Any]) -> int:
    supervisor = os.getpid()
    stage = os.fork()
    if stage:
        for descriptor in orders["keep"]:
            os.close(descriptor)
        return stage
    try:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:
            os._exit(127)
        os.setsid()  # what it sends to its own group does not end the supervisor
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        if orders["cpus"]:
            os.sched_setaffinity(0, orders["cpus"])
        _be_killed_first()
        os.execv(command[0], command)  # noqa: S606
    except OSError as error:
        os.write(2, f"{command[0]}: {error}\n".encode())
    finally:
        os._exit(127)


def _be_killed_first() -> None:
    path = "/proc/self/oom_score_adj"
    with contextlib.suppress(OSError), open(path, "r+") as file:  # noqa: PTH123 - pathlib alone takes 10 ms to import
        if int(file.read()) < OUT_OF_MEMORY_SCORE:
            file.seek(0)
            file.write(str(OUT_OF_MEMORY_SCORE))


def _wait(stage: int, orders: dict[str, Any], woken: int, deadline_s: float) -> tuple[str, int]:
    """Why the stage ends or has to be ended."""
    poller = select.poll()
    for descriptor in (orders["control"], orders["owner"], woken):
        if descriptor >= 0:
            poller.register(descriptor, select.POLLIN)
    while True:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return "deadline", 0
        # One day at most: poll takes milliseconds in 32 bits.
        ready = {descriptor for descriptor, _ in poller.poll(min(left_s, 86400.0) * 1000)}
        if woken in ready:
            numbers = set(os.read(woken, 4096))
            if (status := _reap().get(stage)) is not None:
                return ("signal", -status) if status < 0 else ("exit", status)
            if numbers - {signal.SIGCHLD}:
                return "told", 0
        if ready - {woken}:
            return "told", 0


def _end_all(grace_s: float) -> None:
    """End every descendant. Orphans come here, this process being a subreaper, so no child means no descendant."""
    killing_s = time.monotonic() + grace_s
    told: set[int] = set()
    while True:
        _reap()
        if not _has_children():
            return
        found = _descendants()
        if time.monotonic() >= killing_s:
            _signal(found, signal.SIGKILL)
        else:
            _signal(found - told, signal.SIGTERM)
            _signal(found - told, signal.SIGCONT)  # a stopped one would not hear the first
            told |= found
        time.sleep(LOOK_INTERVAL_S)


def _reap() -> dict[int, int]:
    """Exit codes of children that ended, by pid; negative for signals, as ``subprocess`` has them."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = os.waitstatus_to_exitcode(found[1])
    return ended


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _descendants() -> set[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                parent = int(file.read().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    found: set[int] = set()
    waiting = [os.getpid()]
    while waiting:
        below = children.get(waiting.pop(), [])
        found.update(below)
        waiting += below
    return found


def _signal(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def _say(control: int, line: str) -> None:
    with contextlib.suppress(OSError):  # the owner is gone
        os.write(control, f"{line}\n".encode())


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl {option}")


if __name__ == "__main__":
    main()
