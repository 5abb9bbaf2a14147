"""What a search does, drawn in a terminal: a bar for each stage, below them how far the search is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TaskID
from rich.table import Column
from rich.text import Text

from tuner.cli.progress import local_now
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

REDRAWS_PER_S = 2
"""Drawing takes time of the cores that are timed."""

NAME_WIDTH = 20
"""At least, in narrow terminals: which stage it is matters more than the rest."""

LINES_LEFT = 3
"""Of the terminal's height, for what is not a bar."""


@contextmanager
def observing_in_terminal() -> Iterator[Observer]:
    """An observer that draws on stderr until the block ends; only trials, standings and notices stay."""
    console = Console(stderr=True, highlight=False, markup=False)
    with StageBars(console, refresh_per_second=REDRAWS_PER_S) as bars:
        yield BarObserver(bars)


class StageBars(Progress):
    """Bars of stages above one line.

    Args:
        console: Where they are drawn.
        now_s: A clock for durations.
        now: The present moment, in the person's time zone.
        **settings: Of ``Progress``.
    """

    def __init__(
        self,
        console: Console,
        now_s: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = local_now,
        **settings: Any,
    ) -> None:
        self.now_s, self._now, self._screen = now_s, now, console
        self.last: SearchOutlook | None = None
        super().__init__(
            SpinnerColumn(), _Name(), _Bar(bar_width=16), _State(self), console=console, transient=True, **settings
        )

    def expected_s(self, kind: StageKind) -> float | None:
        """What a stage of that kind is expected to take; None where nobody knows."""
        return None if self.last is None else self.last.expected_s.get(kind)

    def get_renderables(self) -> Iterable[RenderableType]:
        """What is drawn: as many bars as there is room for, those that run first, and the line."""
        tasks = sorted(self.tasks, key=lambda task: _stage(task).is_waiting)
        room = max(self._screen.height - LINES_LEFT, 1)
        yield self.make_tasks_table(tasks[:room])
        if len(tasks) > room:
            yield Text(f"  {len(tasks) - room} more stages", style="dim")
        if self.last is not None and (words := outlook_words(self.last, self._now())):
            yield Text(words, no_wrap=True, overflow="ellipsis")


class BarObserver:
    """Moves the bars; a line per trial, standing and notice stays above them."""

    def __init__(self, bars: StageBars) -> None:
        self._bars = bars
        self._stages = WatchedStages()
        self._drawn: dict[WatchedStage, TaskID] = {}

    def stage_began(self, task: StageTask) -> None:
        """Show a bar."""
        stage = self._stages.begin(task, self._bars.now_s())
        self._drawn[stage] = self._bars.add_task(stage_words(task), total=num_prompts(task) or None, stage=stage)

    def stage_seen(self, task: StageTask, status: StageStatus) -> None:
        """Move its bar."""
        stage = self._stages.see(task, status, self._bars.now_s())
        if stage in self._drawn and status.total:
            self._bars.update(self._drawn[stage], completed=status.done, total=status.total)

    def stage_ended(self, task: StageTask, status: StageStatus | None) -> None:  # noqa: ARG002
        """Take its bar away."""
        stage = self._stages.end(task)
        if stage is not None and stage in self._drawn:
            self._bars.remove_task(self._drawn.pop(stage))

    def trial_ended(self, trial: TrialRecord) -> None:
        """Say what became of a trial, above the bars."""
        self._bars.console.print(trial_words(trial))

    def standing(self, standing: Standing) -> None:
        """Say what could still beat the best, above the bars."""
        self._bars.console.print(standing_words(standing))

    def outlook(self, outlook: SearchOutlook) -> None:
        """Show when the search ends, below the bars."""
        self._bars.last = outlook

    def notice(self, text: str) -> None:
        """Pass it on, above the bars."""
        self._bars.console.print(f"note: {text}")


def _stage(task: Task) -> WatchedStage:
    stage: WatchedStage = task.fields["stage"]
    return stage


class _Name(ProgressColumn):
    """What the stage does."""

    def __init__(self) -> None:
        super().__init__(Column(no_wrap=True, overflow="ellipsis", min_width=NAME_WIDTH))

    def render(self, task: Task) -> Text:
        return Text(task.description, style="dim" if _stage(task).is_waiting else "")


class _Bar(BarColumn):
    """Prompts done of all; none while the stage waits."""

    def render(self, task: Task) -> Any:
        return Text() if _stage(task).is_waiting else super().render(task)


class _State(ProgressColumn):
    """Prompts, time and machine of a stage that runs; what another one waits for."""

    def __init__(self, bars: StageBars) -> None:
        super().__init__(Column(no_wrap=True, overflow="ellipsis"))
        self._bars = bars

    def render(self, task: Task) -> Text:
        stage, now_s = _stage(task), self._bars.now_s()
        status, elapsed_s = stage.status, stage.elapsed_s(now_s)
        if stage.is_waiting:
            awaited = awaited_words(status.waiting_for) if status is not None and status.waiting_for else "its start"
            return Text(f"{duration_words(elapsed_s)} waiting for {awaited}", style="dim")
        words = [elapsed_words(elapsed_s, self._bars.expected_s(stage.task.kind))]
        if task.total:
            words.insert(0, f"{task.completed:.0f}/{task.total:.0f} prompts")
        if status is not None and (node := node_words(status.node)):
            words.append(node)
        return Text(", ".join(words))
