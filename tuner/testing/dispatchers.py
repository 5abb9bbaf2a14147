"""What every dispatcher must do, as tests: its test module subclasses the contract and supplies two fixtures.

class TestMyDispatcher(DispatcherContract):
    @pytest.fixture
    def dispatcher(self):
        with MyDispatcher() as dispatcher:
            yield dispatcher

    @pytest.fixture
    def make_task(self):
        return my_stage_that
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Protocol
from uuid import uuid4

import psutil
import pytest

from tuner.dispatch import Dispatcher, StageStatus
from tuner.errors import (
    CompileError,
    DispatchError,
    EngineCrashedError,
    StageTimeoutError,
    TunerError,
    UnsatisfiableError,
    WorkerLostError,
)
from tuner.needs import Needs
from tuner.processes.stage_process import STAGE_VARIABLE
from tuner.trial import StageTask

HANGING_PROCESSES = 4
"""That a stage which hangs below has started, beside its own."""


class MakeTask(Protocol):
    """Makes a stage of a real engine that behaves in one of these ways.

    - ``works``: three requests, each reported when it is finished.
    - ``works slowly``: the same, over a second and more.
    - ``talks``: writes ``the drill says something`` to its standard output, and works.
    - ``fails``: raises a ``CompileError``.
    - ``has a bug``: raises a ``ZeroDivisionError``.
    - ``crashes``: is ended by SIGSEGV.
    - ``hangs below``: waits for a process that it started, with at least three more below it for whose end SIGTERM to
      the stage's group does not suffice: one in a session of its own, one orphaned, one that ignores SIGTERM.
    """

    def __call__(self, behaviour: str, *, key: str, needs: Needs, deadline_s: float) -> StageTask: ...


class DispatcherContract:
    """Tests of a dispatcher whose stages run as ``StageProcess``. Override ``dispatcher`` and ``make_task``."""

    within_s = 60.0
    """A stage that works has begun, run and ended by then."""

    @pytest.fixture
    def dispatcher(self) -> Dispatcher:
        """The dispatcher under test, with room for one stage at least."""
        raise NotImplementedError

    @pytest.fixture
    def make_task(self) -> MakeTask:
        """Makes stages; see ``MakeTask``."""
        raise NotImplementedError

    def processes(self, task: StageTask) -> list[psutil.Process]:
        """Every process of a stage that is alive on this machine, wherever it hangs in the tree."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(STAGE_VARIABLE) == task.name:
                    found.append(process)
        return found

    def stage_processes(self, task: StageTask) -> list[psutil.Process]:
        """Those that run the stage's own code."""
        return [one for one in self.processes(task) if _runs_the_stage(one)]

    def test_a_stage_ends_with_its_result(self, dispatcher: Dispatcher, make_task: MakeTask) -> None:
        task = _task(make_task, "works")
        status = self.ended(dispatcher, task)
        assert status.error is None
        assert status.result
        assert (status.has_started, status.done, status.total) == (True, 3, 3)
        assert status.ran_s > 0
        assert status.node

    def test_neither_submitting_nor_looking_waits(self, dispatcher: Dispatcher, make_task: MakeTask) -> None:
        task = _task(make_task, "works slowly")
        began_s = time.monotonic()
        dispatcher.submit(task)
        assert not dispatcher.poll(task).has_ended
        assert time.monotonic() - began_s < 2.0

    def test_progress_is_seen_before_the_end(self, dispatcher: Dispatcher, make_task: MakeTask) -> None:
        task = _task(make_task, "works slowly")
        dispatcher.submit(task)
        seen = []

        def has_ended() -> bool:
            status = dispatcher.poll(task)
            seen.append((status.done, status.total))
            return status.has_ended

        self.until(has_ended)
        assert {(1, 3), (2, 3), (3, 3)} <= set(seen)

    def test_a_stage_submitted_again_is_attached_to(self, dispatcher: Dispatcher, make_task: MakeTask) -> None:
        task = _task(make_task, "works slowly")
        dispatcher.submit(task)
        self.until(lambda: bool(self.stage_processes(task)))
        dispatcher.submit(task)
        assert len(self.stage_processes(task)) == 1
        assert self.ended(dispatcher, task).result

    def test_a_stage_that_was_never_submitted_is_refused(self, dispatcher: Dispatcher, make_task: MakeTask) -> None:
        with pytest.raises(DispatchError, match="never submitted"):
            dispatcher.poll(_task(make_task, "works"))

    def test_an_error_of_ours_keeps_its_class_and_hint(self, dispatcher: Dispatcher, make_task: MakeTask) -> None:
        status = self.ended(dispatcher, _task(make_task, "fails"))
        assert type(status.error) is CompileError
        assert status.error.message
        assert status.error.hint

    def test_a_bug_is_raised_with_its_traceback(self, dispatcher: Dispatcher, make_task: MakeTask) -> None:
        task = _task(make_task, "has a bug")
        with pytest.raises(Exception, match=r"Traceback[^$]*ZeroDivisionError") as caught:
            self.ended(dispatcher, task)
        assert not isinstance(caught.value, TunerError)

    def test_a_stage_that_crashes_says_by_what(self, dispatcher: Dispatcher, make_task: MakeTask) -> None:
        status = self.ended(dispatcher, _task(make_task, "crashes"))
        assert type(status.error) is EngineCrashedError
        assert "SIGSEGV" in status.error.message

    def test_what_a_stage_writes_is_kept(self, dispatcher: Dispatcher, make_task: MakeTask) -> None:
        status = self.ended(dispatcher, _task(make_task, "talks"))
        assert "the drill says something" in status.log

    def test_a_deadline_ends_everything_below(self, dispatcher: Dispatcher, make_task: MakeTask) -> None:
        task = _task(make_task, "hangs below", deadline_s=4.0)
        dispatcher.submit(task)
        self.until(lambda: self.hangs(task))
        status = self.ended(dispatcher, task)
        assert type(status.error) is StageTimeoutError
        assert status.has_started
        assert self.processes(task) == []

    def test_a_deadline_holds_while_nobody_looks(self, dispatcher: Dispatcher, make_task: MakeTask) -> None:
        task = _task(make_task, "hangs below", deadline_s=4.0)
        dispatcher.submit(task)
        self.until(lambda: dispatcher.poll(task).has_started)
        self.until(lambda: self.processes(task) == [])
        assert type(self.ended(dispatcher, task).error) is StageTimeoutError

    def test_a_killed_stage_is_a_lost_worker(self, dispatcher: Dispatcher, make_task: MakeTask) -> None:
        task = _task(make_task, "hangs below")
        dispatcher.submit(task)
        self.until(lambda: self.hangs(task))
        for process in self.stage_processes(task):
            process.kill()
        status = self.ended(dispatcher, task)
        assert type(status.error) is WorkerLostError
        assert status.has_started
        assert self.processes(task) == []

    def test_forgetting_ends_a_stage_that_runs(self, dispatcher: Dispatcher, make_task: MakeTask) -> None:
        task = _task(make_task, "hangs below")
        dispatcher.submit(task)
        self.until(lambda: self.hangs(task))
        dispatcher.forget(task)
        self.until(lambda: self.processes(task) == [])

    def test_a_forgotten_stage_runs_again(self, dispatcher: Dispatcher, make_task: MakeTask) -> None:
        task = _task(make_task, "works")
        for _ in range(2):
            assert self.ended(dispatcher, task).result
            dispatcher.forget(task)
            dispatcher.forget(task)

    def test_needs_that_nobody_can_meet_are_refused(self, dispatcher: Dispatcher) -> None:
        dispatcher.check([Needs(), Needs(num_cpus=1)])
        impossible = (
            Needs(num_cpus=100_000),
            Needs(num_cpus=1, memory_bytes=2**60),
            Needs(num_cpus=1, device="unobtainium", num_devices=1),
            Needs(num_cpus=1, device="unobtainium", on_device_host=True),
            Needs(num_cpus=1, resources={"licence": 1.0}),
        )
        for needs in impossible:
            with pytest.raises(UnsatisfiableError) as caught:
                dispatcher.check([Needs(num_cpus=1), needs])
            assert caught.value.hint

    def test_one_stage_at_least_fits(self, dispatcher: Dispatcher) -> None:
        assert dispatcher.capacity(Needs()) >= 1
        assert dispatcher.capacity(Needs(num_cpus=1)) >= dispatcher.capacity(Needs())

    def test_stages_that_need_the_whole_machine_take_turns(self, dispatcher: Dispatcher, make_task: MakeTask) -> None:
        tasks = [_task(make_task, "works slowly", needs=Needs()) for _ in range(2)]
        for task in tasks:
            dispatcher.submit(task)
        room, most = dispatcher.capacity(Needs()), 0
        waited: list[str] = []
        results: dict[str, bytes | None] = {}

        def have_ended() -> bool:
            nonlocal most
            seen = [(task, dispatcher.poll(task)) for task in tasks if task.name not in results]
            most = max(most, sum(status.has_started and not status.has_ended for _, status in seen))
            waited.extend(status.waiting_for for _, status in seen if status.waiting_for)
            for task, status in seen:
                if status.has_ended:  # it may hold the machine until it is forgotten
                    results[task.name] = status.result
                    dispatcher.forget(task)
            return len(results) == len(tasks)

        self.until(have_ended)
        assert most <= room
        assert waited or room > 1
        assert all(results.values())

    def ended(self, dispatcher: Dispatcher, task: StageTask) -> StageStatus:
        """The status of a stage at its end; submits it where it is new."""
        dispatcher.submit(task)
        self.until(lambda: dispatcher.poll(task).has_ended)
        return dispatcher.poll(task)

    def hangs(self, task: StageTask) -> bool:
        """Whether a stage that hangs below has got so far."""
        return len(self.stage_processes(task)) == 1 and len(self.processes(task)) > HANGING_PROCESSES + 2

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something holds."""
        give_up_s = time.monotonic() + self.within_s
        while not condition():
            assert time.monotonic() < give_up_s, "it took too long"
            time.sleep(0.02)


def _task(make_task: MakeTask, behaviour: str, needs: Needs | None = None, deadline_s: float = 120.0) -> StageTask:
    return make_task(behaviour, key=uuid4().hex[:16], needs=needs or Needs(num_cpus=1), deadline_s=deadline_s)


def _runs_the_stage(process: psutil.Process) -> bool:
    try:
        program = " ".join(process.cmdline())
    except psutil.Error:
        return False
    return "stage_main" in program and "supervisor" not in program
