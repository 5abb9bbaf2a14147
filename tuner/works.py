"""Works in flight: each waits for a stage, and one driver moves them all on without waiting for any."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Generic, TypeVar

from tuner.errors import SearchStoppedError
from tuner.stages import StageRun, StageRunner, Work

ResultT = TypeVar("ResultT")

SHORTEST_WAIT_S, LONGEST_WAIT_S = 0.05, 2.0
WAITING_SHARE = 0.02
"""Between two looks passes this share of the time since something last moved: looks take time of the timed cores."""


class StopAsked(StrEnum):
    """How a person wants a search to stop before its end."""

    AFTER_RUNNING_STAGES = "after running stages"
    AT_ONCE = "at once"
    LEAVE = "leave"
    """The driver ends; stages that can go on without it do, and the next driver collects them."""


class InFlight(Generic[ResultT]):
    """A work that has been started."""

    def __init__(self, work: Work[ResultT]) -> None:
        self._work = work
        self._run: StageRun | None = None
        self.has_ended = False
        self.value: ResultT | None = None

    def begin(self, runner: StageRunner) -> None:
        """Send its first stage to a worker, after those whose results are there already."""
        while not self.has_ended and (self._run is None or self._run.has_ended):
            self._step(runner)

    def advance(self, runner: StageRunner) -> bool:
        """Move on as far as it goes without waiting; whether it moved."""
        has_moved = False
        while not self.has_ended and (self._run is None or self._run.look()):
            self._step(runner)
            has_moved = True
        return has_moved

    def _step(self, runner: StageRunner) -> None:
        run = self._run
        try:
            if run is None:
                wanted = next(self._work)
            elif run.error is not None:
                wanted = self._work.throw(run.error)
            else:
                wanted = self._work.send(run.result or b"")
        except StopIteration as end:
            self.has_ended, self.value = True, end.value
        else:
            self._run = runner.begin(wanted)


class Works:
    """All works of one search.

    Args:
        runner: Runs what they want.
        stop_asked: Looked at before anything moves; None while nobody wants the search to stop.
        sleep: Between two looks; simulations pass their own.
    """

    def __init__(
        self,
        runner: StageRunner,
        stop_asked: Callable[[], StopAsked | None] = lambda: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._runner = runner
        self._stop_asked = stop_asked
        self._sleep = sleep
        self._in_flight: list[InFlight[None]] = []

    def __len__(self) -> int:
        return len(self._in_flight)

    def start(self, work: Work[None]) -> None:
        """Begin a work; the stages that it wants run while others do."""
        flight = InFlight(work)
        flight.begin(self._runner)
        if not flight.has_ended:
            self._in_flight.append(flight)

    def finish(self, works: Sequence[Work[ResultT]]) -> list[ResultT]:
        """Run these to their ends, beside each other, and give what they return."""
        flights = [InFlight(work) for work in works]
        self._wait(
            lambda: [one.advance(self._runner) for one in flights],
            lambda: all(one.has_ended for one in flights),
        )
        return [one.value for one in flights]  # type: ignore[misc]  # an ended work has its value

    def wait_for_any(self) -> None:
        """Wait until something that was started has moved on.

        Raises:
            SearchStoppedError: Somebody asked the search to stop.
        """
        moved: list[bool] = []

        def look() -> list[bool]:
            moved[:] = [one.advance(self._runner) for one in self._in_flight]
            self._in_flight = [one for one in self._in_flight if not one.has_ended]
            return moved

        self._wait(look, lambda: any(moved) or not self._in_flight)

    def _wait(self, look: Callable[[], list[bool]], is_over: Callable[[], bool]) -> None:
        waited_s = 0.0
        while True:
            self._stop_if_asked()
            waited_s = 0.0 if any(look()) else waited_s
            if is_over():
                return
            pause_s = min(max(SHORTEST_WAIT_S, WAITING_SHARE * waited_s), LONGEST_WAIT_S)
            self._sleep(pause_s)
            waited_s += pause_s

    def _stop_if_asked(self) -> None:
        """End what runs, or wait for it, as it was asked; the works themselves are not moved on."""
        while (asked := self._stop_asked()) is not None:
            for run in () if asked is StopAsked.LEAVE else self._runner.running:
                if not run.look() and (asked is StopAsked.AT_ONCE or not run.has_started):
                    run.abandon()
            if asked is StopAsked.LEAVE or not self._runner.running:
                raise SearchStoppedError("the search was stopped", "the same command goes on from there")
            self._sleep(SHORTEST_WAIT_S)
