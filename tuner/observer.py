"""Who hears what a search does while it does it."""

from __future__ import annotations

from typing import Protocol

from tuner.dispatch import StageStatus
from tuner.stopping import Standing
from tuner.store import TrialRecord
from tuner.trial import StageTask


class Observer(Protocol):
    """Hears what a search does; the CLI shows it."""

    def stage_began(self, task: StageTask) -> None:
        """A stage was sent to a worker."""
        ...

    def stage_seen(self, task: StageTask, status: StageStatus) -> None:
        """How a stage is doing, some times a second; of a short one perhaps never before its end."""
        ...

    def stage_ended(self, task: StageTask) -> None:
        """That stage is over."""
        ...

    def trial_ended(self, trial: TrialRecord) -> None:
        """A trial got its result."""
        ...

    def standing(self, standing: Standing) -> None:
        """What could still beat the best, after a trial of a search that can tell."""
        ...

    def notice(self, text: str) -> None:
        """Something a person should know."""
        ...


class SilentObserver:
    """Hears everything and says nothing."""

    def stage_began(self, task: StageTask) -> None:
        """See ``Observer.stage_began``."""

    def stage_seen(self, task: StageTask, status: StageStatus) -> None:
        """See ``Observer.stage_seen``."""

    def stage_ended(self, task: StageTask) -> None:
        """See ``Observer.stage_ended``."""

    def trial_ended(self, trial: TrialRecord) -> None:
        """See ``Observer.trial_ended``."""

    def standing(self, standing: Standing) -> None:
        """See ``Observer.standing``."""

    def notice(self, text: str) -> None:
        """See ``Observer.notice``."""
