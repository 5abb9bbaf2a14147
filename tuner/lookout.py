"""What a search still has ahead of it, counted whenever something moved, for those who watch it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from tuner.dispatch import Dispatcher
from tuner.estimate import estimate_stages
from tuner.observer import Observer
from tuner.plan import SearchPlan
from tuner.records import StageKind
from tuner.stages import StageRun, StageRunner
from tuner.stopping import Spent, Standing
from tuner.store import StageState, utc_now
from tuner.timetable import Part, Phase, SearchOutlook, Underway, ends_in_s, expected_seconds, most_to_come
from tuner.trial_book import TrialBook


class Lookout:
    """Tells an observer how far a search is and when it may end.

    Args:
        now: The present moment.
    """

    def __init__(
        self,
        plan: SearchPlan,
        stages: StageRunner,
        trials: TrialBook,
        dispatcher: Dispatcher,
        observer: Observer,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._plan, self._stages, self._trials = plan, stages, trials
        self._dispatcher, self._observer, self._now = dispatcher, observer, now
        self._num_configurations = len(plan.space.configurations())
        self._estimates: Mapping[StageKind, float] | None = None
        self._most_tried: int | None = None
        self.last = Phase.CERTIFICATION
        """What the search ends with; a prediction ends with the traces."""

    def standing(self, standing: Standing) -> None:
        """Hear, and pass on, what could still beat the best: nothing else will be tried."""
        self._most_tried = len(self._trials.taken()) + standing.num_open + standing.num_unpredicted
        self._observer.standing(standing)

    def tell(self, phase: Phase, spent: Spent, slots: int) -> None:
        """Say what is ahead.

        Args:
            phase: Where the search is.
            spent: What it has used.
            slots: Trials in flight at once.
        """
        worked = self._stages.worked
        expected_s = expected_seconds(self._estimated, worked)
        to_come = self._to_come(phase, spent, slots, expected_s)
        underway = tuple(_underway(run) for run in self._stages.running)
        parts = self._parts(phase, Counter(one.kind for one in underway), to_come, slots)
        # before anything ran there is only a rule of thumb, which is no ground for a time of day
        has_run = any(row.state is StageState.DONE for row in worked)
        left_s = ends_in_s(parts, underway, self._lanes(parts), expected_s) if has_run else None
        self._observer.outlook(
            SearchOutlook(
                trials=len(self._trials.answered),
                most_trials=len(self._trials.taken()) + to_come,
                running=self._in_flight,
                expected_s=expected_s,
                ends_at=None if left_s is None else self._now() + timedelta(seconds=left_s),
            )
        )

    @property
    def _in_flight(self) -> int:
        """Configurations that are being tried; trials of one configuration share what is run for it."""
        return len({row.speculation.key for row in self._trials.running})

    @property
    def _estimated(self) -> Mapping[StageKind, float]:
        if self._estimates is None:
            plan = self._plan
            self._estimates = estimate_stages(
                models=[Path(plan.target_model), *map(Path, plan.draft_folders.values())],
                engine=plan.space.engine,
                workload=plan.workload,
                hardware=plan.hardware,
                loads=plan.loads,
            )
        return self._estimates

    def _lanes(self, parts: Sequence[Part]) -> dict[StageKind, int]:
        kinds = {part.kind for part in parts} | {StageKind.COMPILE for part in parts if part.has_compiles}
        return {kind: self._dispatcher.capacity(self._plan.needs(kind)) for kind in kinds}

    def _to_come(self, phase: Phase, spent: Spent, slots: int, expected_s: Mapping[StageKind, float]) -> int:
        if phase > Phase.TRIALS or self.last < Phase.TRIALS:
            return 0
        kinds = (StageKind.COMPILE, StageKind.MEASURE) if self._plan.compiling else (StageKind.MEASURE,)
        most = most_to_come(
            self._plan.budget,
            spent,
            untried=self._num_configurations - len(self._trials.taken()),
            in_flight=self._in_flight,
            slots=slots,
            trial_s=sum(expected_s.get(kind, 0.0) for kind in kinds),
        )
        return most if self._most_tried is None else min(most, max(self._most_tried - len(self._trials.taken()), 0))

    def _parts(self, phase: Phase, underway: Counter[StageKind], to_come: int, slots: int) -> list[Part]:
        """What the search does now, and then. Told at the beginning of each phase; among trials, whenever one moved."""
        ended = Counter(row.kind for row in self._stages.ended)
        traces, certified = len(self._plan.space.draft_names), self._plan.certify_loads
        unbegun = self._in_flight - underway[StageKind.MEASURE] - underway[StageKind.COMPILE]
        counts = {
            Phase.BASELINE: (StageKind.BASELINE, 1 - ended[StageKind.BASELINE], 1),
            Phase.TRACES: (StageKind.TRACE, traces - ended[StageKind.TRACE], traces),
            Phase.TRIALS: (StageKind.MEASURE, to_come + (max(unbegun, 0) if phase is Phase.TRIALS else 0), slots),
            Phase.CERTIFICATION: (StageKind.CERTIFY, certified, certified),
        }
        return [
            Part(
                kind=kind,
                to_begin=max(to_begin, 0),
                slots=at_once,
                has_compiles=self._plan.compiling is not None and at < Phase.CERTIFICATION,  # those are compiled
            )
            for at, (kind, to_begin, at_once) in counts.items()
            if phase <= at <= self.last
        ]


def _underway(run: StageRun) -> Underway:
    return Underway(kind=run.task.kind, ran_s=run.status.ran_s, done=run.status.done, total=run.status.total)
