"""Nothing that a supervised program starts outlives it, its owner or its supervisor."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support.drills import command_line, leftovers
from tuner.processes import supervisor

PYTHON = (sys.executable, "-I", "-S")
SLEEP = "import time; time.sleep(600)"
IN_A_SESSION = f"import subprocess, sys; subprocess.Popen([sys.executable, '-ISc', {SLEEP!r}], start_new_session=True)"
ORPHANED = f"import subprocess, sys; subprocess.run([sys.executable, '-ISc', {IN_A_SESSION!r}])"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
FAMILY = f"{IN_A_SESSION}; {ORPHANED}; {SLEEP}"
"""Itself, a child in a session of its own, and an orphaned grandchild in another."""


@dataclass
class Supervised:
    control: socket.socket
    program: subprocess.Popen[str]
    mark: str

    def said(self, within_s: float = 20.0) -> list[list[str]]:
        """The words of every line until the supervisor ended."""
        self.control.settimeout(within_s)
        text = b""
        while received := self.control.recv(4096):
            text += received
        return [line.split() for line in text.decode().splitlines()]

    def alive(self) -> list[psutil.Process]:
        return leftovers(SUPERVISED=self.mark)

    def commands(self) -> list[psutil.Process]:
        """Those that are no supervisor."""
        words = {one: command_line(one) for one in self.alive()}
        return [one for one in words if words[one] and supervisor.__file__ not in words[one]]


Supervise = Callable[..., Supervised]


@pytest.fixture
def supervise(request: pytest.FixtureRequest) -> Iterator[Supervise]:
    started: list[Supervised] = []

    def start(program: str, **orders: object) -> Supervised:
        mark = f"{os.getpid()}-{request.node.name}-{len(started)}"
        ours, theirs = socket.socketpair()
        owner = os.pidfd_open(os.getpid())
        plan = {"control": theirs.fileno(), "owner": owner, "keep": [], "hold": [], "cpus": [], "deadline_s": 60.0}
        orders_text = json.dumps({**plan, "grace_s": 0.2, **orders})
        process = subprocess.Popen(
            [*PYTHON, supervisor.__file__, orders_text, *PYTHON, "-c", program],
            pass_fds=(theirs.fileno(), owner, *orders.get("hold", ()), *orders.get("keep", ())),
            env={**os.environ, "SUPERVISED": mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        os.close(owner)
        theirs.close()
        started.append(Supervised(ours, process, mark))
        return started[-1]

    yield start
    for one in started:
        one.control.close()
        one.program.communicate(timeout=20)
        assert one.alive() == []


def until(condition: Callable[[], object], within_s: float = 20.0) -> None:
    give_up_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < give_up_s
        time.sleep(0.01)


def test_it_tells_the_exit_code(supervise: Supervise) -> None:
    began, ended = supervise("raise SystemExit(3)").said()
    assert (began[0], ended[:3]) == ("began", ["ended", "exit", "3"])
    assert float(ended[3]) >= float(began[2])


def test_it_tells_the_signal(supervise: Supervise) -> None:
    assert supervise("import os; os.kill(os.getpid(), 11)").said()[-1][:3] == ["ended", "signal", "11"]


def test_a_program_that_is_not_there_ends_with_127() -> None:
    ours, theirs = socket.socketpair()
    orders = {
        "control": theirs.fileno(),
        "owner": -1,
        "keep": [],
        "hold": [],
        "cpus": [],
        "deadline_s": 9,
        "grace_s": 1,
    }
    arguments = [*PYTHON, supervisor.__file__, json.dumps(orders), "/no/such/program"]
    with ours, theirs:
        done = subprocess.run(arguments, pass_fds=[theirs.fileno()], capture_output=True, text=True, check=False)
        assert b"ended exit 127" in ours.recv(4096)
    assert "/no/such/program: " in done.stderr


def test_a_deadline_ends_the_whole_family(supervise: Supervise) -> None:
    family = supervise(FAMILY, deadline_s=0.6)
    until(lambda: len(family.commands()) == 3)
    assert family.said()[-1][:2] == ["ended", "deadline"]
    assert family.commands() == []


def test_the_owners_word_ends_the_whole_family(supervise: Supervise) -> None:
    family = supervise(FAMILY)
    until(lambda: len(family.commands()) == 3)
    family.control.shutdown(socket.SHUT_WR)
    assert family.said()[-1][:2] == ["ended", "told"]
    assert family.commands() == []


def test_what_a_program_leaves_behind_is_ended(supervise: Supervise) -> None:
    assert supervise(f"{IN_A_SESSION}; {ORPHANED}").said()[-1][:3] == ["ended", "exit", "0"]


def test_a_server_gets_the_time_to_end_by_itself(supervise: Supervise) -> None:
    server = (
        "import signal, sys, time; signal.signal(15, lambda *_: (print('closed'), sys.exit())); print('up', flush=True)"
    )
    served = supervise(f"{server}; time.sleep(600)", grace_s=10.0)
    assert served.program.stdout.readline() == "up\n"
    served.control.shutdown(socket.SHUT_WR)
    served.said()
    assert served.program.stdout.readline() == "closed\n"


def test_what_ignores_the_request_is_killed(supervise: Supervise) -> None:
    deaf = supervise(DEAF)
    assert deaf.program.stdout.readline() == "deaf\n"
    deaf.control.shutdown(socket.SHUT_WR)
    assert deaf.said()[-1][:2] == ["ended", "told"]


def test_a_stopped_program_is_ended(supervise: Supervise) -> None:
    stopped = supervise(SLEEP, grace_s=10.0)
    until(stopped.commands)
    stopped.commands()[0].suspend()
    stopped.control.shutdown(socket.SHUT_WR)
    began_s = time.monotonic()
    stopped.said()
    assert time.monotonic() - began_s < 5.0


def test_a_killed_supervisor_takes_the_program_along(supervise: Supervise) -> None:
    orphan = supervise(SLEEP)
    until(lambda: len(orphan.commands()) == 1)
    for process in orphan.alive():
        if process not in orphan.commands():
            process.kill()
    until(lambda: not orphan.alive())
    assert [words[0] for words in orphan.said()] == ["began"]


def test_killing_the_process_that_the_owner_started_ends_nothing(supervise: Supervise) -> None:
    stage = supervise("import time; print('up', flush=True); time.sleep(0.5)")
    assert stage.program.stdout.readline() == "up\n"
    stage.program.kill()
    assert stage.said()[-1][:3] == ["ended", "exit", "0"]


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
def test_a_supervisor_that_is_told_to_end_ends_the_program(supervise: Supervise, by: signal.Signals) -> None:
    told = supervise(SLEEP)
    until(lambda: len(told.commands()) == 1)
    told.commands()[0].parent().send_signal(by)
    assert told.said()[-1][:2] == ["ended", "told"]


def test_locks_are_held_to_the_end_and_not_by_the_program(supervise: Supervise, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    held = supervise(
        f"import os, time; print(sorted(os.listdir('/proc/self/fd')), flush=True); {SLEEP}", hold=[writing]
    )
    os.close(writing)
    assert held.program.stdout.readline().count("'") == 8  # 0, 1, 2 and the listing itself
    assert select.select([reading], [], [], 0)[0] == []
    held.control.shutdown(socket.SHUT_WR)
    held.said()
    until(lambda: select.select([reading], [], [], 0)[0])
    os.close(reading)


def test_a_program_runs_on_the_cpus_that_it_is_given(supervise: Supervise) -> None:
    cpu = min(os.sched_getaffinity(0))
    pinned = supervise("import os; print(os.sched_getaffinity(0))", cpus=[cpu])
    assert pinned.program.stdout.read() == f"{{{cpu}}}\n"


def test_a_program_is_killed_before_others_when_memory_ends(supervise: Supervise) -> None:
    scored = supervise("print(open('/proc/self/oom_score_adj').read())")
    assert int(scored.program.stdout.read()) >= supervisor.OUT_OF_MEMORY_SCORE


OWNER = """
import os, sys, time
from pathlib import Path
from tests.support.drills import a_task, drill_environment
from tuner.processes.stage_process import StageProcess
process = StageProcess.start(a_task(key={key!r}, environment=drill_environment(faults="load:*=hang_below")))
if {forks}:
    os.fork()
Path({ready!r}).write_text(str(os.getpid()))
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("forks", [False, True], ids=["alone", "with a fork that keeps its files open"])
def test_nothing_is_left_of_a_killed_owner(tmp_path: Path, forks: bool) -> None:
    ready = tmp_path / "ready"
    program = OWNER.format(key=tmp_path.name, ready=str(ready), forks=forks)
    owner = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    stage = {"TUNER_STAGE": f"drill::baseline:{tmp_path.name}:0"}
    try:
        until(lambda: len(leftovers(**stage)) >= 8, within_s=60.0)
        owner.kill()
        until(lambda: not leftovers(**stage))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(owner.pid, signal.SIGKILL)
        owner.wait()
