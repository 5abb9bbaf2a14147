"""Who hears what a search does while it does it."""

from __future__ import annotations

from typing import Protocol

from tuner.dispatch import StageStatus
from tuner.stopping import Standing
from tuner.store import TrialRecord
from tuner.timetable import SearchOutlook
from tuner.trial import StageTask


class Observer(Protocol):
    """Hears what a search does; the CLI shows it."""

    def stage_began(self, task: StageTask) -> None:
        """A stage was sent to a worker."""
        ...

    def stage_seen(self, task: StageTask, status: StageStatus) -> None:
        """How a stage is doing, some times a second; of a short one perhaps never before its end."""
        ...

    def stage_ended(self, task: StageTask, status: StageStatus | None) -> None:
        """That attempt of a stage is over; ``status`` is None where it was given up without a look at its end."""
        ...

    def trial_ended(self, trial: TrialRecord) -> None:
        """A trial got its result."""
        ...

    def standing(self, standing: Standing) -> None:
        """What could still beat the best, after a trial of a search that can tell."""
        ...

    def outlook(self, outlook: SearchOutlook) -> None:
        """How far the search is and when it may end, whenever something began or ended."""
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

    def stage_ended(self, task: StageTask, status: StageStatus | None) -> None:
        """See ``Observer.stage_ended``."""

    def trial_ended(self, trial: TrialRecord) -> None:
        """See ``Observer.trial_ended``."""

    def standing(self, standing: Standing) -> None:
        """See ``Observer.standing``."""

    def outlook(self, outlook: SearchOutlook) -> None:
        """See ``Observer.outlook``."""

    def notice(self, text: str) -> None:
        """See ``Observer.notice``."""
