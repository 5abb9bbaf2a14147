"""What a search does, shown on stderr while it does it: bars in a terminal, plain lines elsewhere, or JSON events."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from tuner.cli.watched import WatchedStage, WatchedStages
from tuner.cli.words import (
    awaited_words,
    duration_words,
    elapsed_words,
    node_words,
    num_prompts,
    outlook_words,
    stage_words,
    standing_words,
    trial_words,
)

if TYPE_CHECKING:
    from tuner.dispatch import StageStatus
    from tuner.observer import Observer
    from tuner.records import StageKind
    from tuner.stopping import Standing
    from tuner.store import TrialRecord
    from tuner.timetable import SearchOutlook
    from tuner.trial import StageTask

ResultT = TypeVar("ResultT")

RUNNING_EVERY_S = 60.0
"""At most so often a line says what runs; what runs for a shorter time is not named."""

WAITING_AFTER_S, WAITING_EVERY_S = 10.0, 300.0
"""A stage that waits longer is named with what it waits for, and again after that time."""

MOST_NAMED = 4
"""Running stages in one line."""


@contextmanager
def observing(*, as_json: bool = False) -> Iterator[Observer]:
    """An observer for the stderr that there is."""
    if as_json:
        from tuner.cli.events import observing_as_json

        with observing_as_json() as observer:
            yield observer
    elif sys.stderr.isatty():
        from tuner.cli.bars import observing_in_terminal

        with observing_in_terminal() as observer:
            yield observer
    else:
        yield LineObserver()


def run_observed(run: Callable[[Observer], ResultT], kept: str, *, as_json: bool) -> ResultT:
    """Run with an observer; Ctrl-C ends the command with what is ``kept``, and that the same command goes on."""
    import typer

    from tuner.cli.output import INTERRUPTED, report_interruption

    try:
        with observing(as_json=as_json) as observer:
            return run(observer)
    except KeyboardInterrupt:
        report_interruption(f"{kept} is kept, and the same command goes on from there", as_json=as_json)
        raise typer.Exit(INTERRUPTED) from None


def local_now() -> datetime:
    """The present moment, in the time zone of this machine."""
    return datetime.now().astimezone()


class LineObserver:
    """Plain lines: of each stage and trial one, more of stages that run or wait for long.

    Args:
        now_s: A clock for durations.
        now: The present moment, in the person's time zone.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic, now: Callable[[], datetime] = local_now) -> None:
        self._now_s, self._now = now_s, now
        self._stages = WatchedStages()
        self._expected_s: dict[StageKind, float] = {}
        self._told_running_s = now_s()
        self._told_outlook: tuple[int, bool] | None = None

    def stage_began(self, task: StageTask) -> None:
        """Say which stage is to run, over how many prompts."""
        self._stages.begin(task, self._now_s())
        prompts = num_prompts(task)
        count = "1 prompt" if prompts == 1 else f"{prompts} prompts"
        words = f"{stage_words(task)}: {count}" if prompts else stage_words(task)
        self._say(f"{words}, attempt {task.attempt + 1}" if task.attempt else words)

    def stage_seen(self, task: StageTask, status: StageStatus) -> None:
        """Say what runs or waits for long, now and then."""
        now_s = self._now_s()
        stage = self._stages.see(task, status, now_s)
        if not stage.is_waiting:
            self._say_what_runs(now_s)
        elif (waited_s := stage.elapsed_s(now_s)) >= WAITING_AFTER_S and stage.say_again(now_s, WAITING_EVERY_S):
            waiting_for = f" for {awaited_words(status.waiting_for)}" if status.waiting_for else ""
            self._say(f"{stage_words(task)} has waited {duration_words(waited_s)}{waiting_for}")

    def stage_ended(self, task: StageTask, status: StageStatus | None) -> None:  # noqa: ARG002
        """Watch it no more: the trial's line says how it went."""
        self._stages.end(task)

    def trial_ended(self, trial: TrialRecord) -> None:
        """Say what became of a trial."""
        self._say(trial_words(trial))

    def standing(self, standing: Standing) -> None:
        """Say what could still beat the best."""
        self._say(standing_words(standing))

    def outlook(self, outlook: SearchOutlook) -> None:
        """Say when the search ends, after the baseline, the traces and each trial."""
        self._expected_s = dict(outlook.expected_s)
        told = (outlook.trials, outlook.running > 0)
        if outlook.ends_at is None or told == self._told_outlook:
            return
        self._told_outlook = told
        self._say(f"  {outlook_words(outlook, self._now())}")

    def notice(self, text: str) -> None:
        """Pass it on."""
        self._say(f"note: {text}")

    def _say_what_runs(self, now_s: float) -> None:
        if now_s - self._told_running_s < RUNNING_EVERY_S:
            return
        long = [one for one in self._stages if not one.is_waiting and one.elapsed_s(now_s) >= RUNNING_EVERY_S]
        if not long:
            return
        self._told_running_s = now_s
        more = [f"{len(long) - MOST_NAMED} more"] if len(long) > MOST_NAMED else []
        self._say(f"  running: {'; '.join([*(self._running_words(one, now_s) for one in long[:MOST_NAMED]), *more])}")

    def _running_words(self, stage: WatchedStage, now_s: float) -> str:
        words = [
            f"{stage_words(stage.task)} {elapsed_words(stage.elapsed_s(now_s), self._expected_s.get(stage.task.kind))}"
        ]
        if stage.status is not None and stage.status.total:
            words.append(f"{stage.status.done} of {stage.status.total} prompts")
        if stage.status is not None and (node := node_words(stage.status.node)):
            words.append(node)
        return ", ".join(words)

    def _say(self, text: str) -> None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
