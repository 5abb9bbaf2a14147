"""The stages that somebody watches: since when each runs or waits, by the watcher's own clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuner.dispatch import StageStatus
    from tuner.records import StageKind
    from tuner.trial import StageTask


class WatchedStage:
    """One attempt of a stage.

    Attributes:
        told_s: When something was last said of it; None while nothing was.
        told_waiting_for: What it was then said to wait for.
    """

    def __init__(self, task: StageTask, now_s: float) -> None:
        self.task = task
        self.status: StageStatus | None = None
        self.told_s: float | None = None
        self.told_waiting_for: str | None = None
        self._began_s = self._seen_s = now_s

    def see(self, task: StageTask, status: StageStatus, now_s: float) -> None:
        """Take in how it is doing."""
        self.task, self.status, self._seen_s = task, status, now_s

    @property
    def is_waiting(self) -> bool:
        """Whether it was seen not to run yet. One that nobody saw runs in this very process."""
        return self.status is not None and not self.status.has_started

    def elapsed_s(self, now_s: float) -> float:
        """Since it began to run, or while it waits since it was submitted."""
        if self.status is None or not self.status.has_started:
            return now_s - self._began_s
        return self.status.ran_s + now_s - self._seen_s

    def say_again(self, now_s: float, after_s: float) -> bool:
        """Whether so long nothing was said of it; then this moment is noted."""
        if self.told_s is not None and now_s - self.told_s < after_s:
            return False
        self.told_s = now_s
        return True


class WatchedStages:
    """All stages on their way."""

    def __init__(self) -> None:
        self._stages: dict[tuple[StageKind, str], WatchedStage] = {}

    def __iter__(self) -> Iterator[WatchedStage]:
        return iter(self._stages.values())

    def begin(self, task: StageTask, now_s: float) -> WatchedStage:
        """Watch a stage from now on."""
        return self._stages.setdefault((task.kind, task.key), WatchedStage(task, now_s))

    def see(self, task: StageTask, status: StageStatus, now_s: float) -> WatchedStage:
        """The stage, with how it is doing taken in."""
        stage = self.begin(task, now_s)
        stage.see(task, status, now_s)
        return stage

    def end(self, task: StageTask) -> WatchedStage | None:
        """Watch it no more; None where it was not watched."""
        return self._stages.pop((task.kind, task.key), None)
