"""When things are expected to end: each stage, and the search at the latest.

A stage is expected to take what the ended ones of its kind took; before one has ended, what a rule of thumb says,
corrected by how right it was for other kinds. The search is expected to try as many configurations as it still may.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from statistics import median

from tuner.records import StageKind
from tuner.stopping import Budget, Spent
from tuner.store import StageRecord, StageState


class Phase(IntEnum):
    """What a search does, in this order."""

    BASELINE = 0
    TRACES = 1
    TRIALS = 2
    CERTIFICATION = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOutlook:
    """How far a search is, and how long it may take.

    Attributes:
        trials: Configurations that have an answer, the baseline among them.
        most_trials: Of these there will be so many at most.
        running: Configurations that are being tried.
        expected_s: What a stage of each kind is expected to take, from its start to its end; kinds of which nothing is
            known are left out.
        ends_at: When the search ends at the latest, if stages take as long as expected; None before that can be told.
    """

    trials: int
    most_trials: int
    running: int
    expected_s: Mapping[StageKind, float] = field(default_factory=dict)
    ends_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Underway:
    """A stage that was submitted and has not ended.

    Attributes:
        ran_s: Since it began to run; 0 while it waits.
        done: Finished requests, of ``total``.
    """

    kind: StageKind
    ran_s: float = 0.0
    done: int = 0
    total: int = 0

    def left_s(self, expected_s: float) -> float:
        """Until its end. Of one that runs longer than expected, as long per request as until now."""
        if self.ran_s < expected_s:
            return expected_s - self.ran_s
        return self.ran_s * (self.total / self.done - 1) if self.done else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a search that ends before the next one begins, such as all its trials.

    Attributes:
        kind: The stage that each piece of it ends with.
        to_begin: Pieces of which no stage was submitted yet, at most.
        slots: Pieces in flight at once.
        has_compiles: Whether each begins with a compile.
    """

    kind: StageKind
    to_begin: int
    slots: int = 1
    has_compiles: bool = False


def expected_seconds(estimates: Mapping[StageKind, float], ended: Iterable[StageRecord]) -> dict[StageKind, float]:
    """What a stage of each kind takes: the median of those that ended well, or its corrected estimate.

    Compiles neither correct other kinds nor are corrected by them: a compiler is another program.

    Args:
        estimates: Made before the search, of one stage of each kind.
        ended: Stages of this study.
    """
    took: dict[StageKind, list[float]] = {}
    for row in ended:
        if row.state is StageState.DONE and row.ended_at is not None:
            took.setdefault(row.kind, []).append((row.ended_at - row.started_at).total_seconds())
    medians = {kind: median(seconds) for kind, seconds in took.items()}
    errors = [
        medians[kind] / estimate
        for kind, estimate in estimates.items()
        if kind in medians and kind is not StageKind.COMPILE and estimate > 0
    ]
    correction = median(errors) if errors else 1.0
    corrected = {
        kind: estimate if kind is StageKind.COMPILE else correction * estimate for kind, estimate in estimates.items()
    }
    return {**corrected, **medians}


def most_to_come(
    budget: Budget, spent: Spent, *, untried: int, in_flight: int, slots: int, trial_s: float | None
) -> int:
    """Trials that may still be asked for.

    Args:
        budget: Limits of the search.
        spent: So far; its trials and compiles with those in flight, its seconds without them.
        untried: Configurations that neither were tried nor are being tried.
        in_flight: Trials that are being tried.
        slots: Trials in flight at once.
        trial_s: Time of a trial's stages; None where it is not known.
    """
    most = [untried]
    if budget.max_trials is not None:
        most.append(budget.max_trials - spent.trials)
    if budget.max_compiles is not None:
        most.append(budget.max_compiles - spent.compiles)
    limits_s = [] if budget.max_minutes is None else [60 * budget.max_minutes]
    if budget.max_cost is not None and budget.price_per_hour:
        limits_s.append(3600 * budget.max_cost / budget.price_per_hour)
    if limits_s and trial_s:
        left_s = min(limits_s) - spent.seconds
        # each trial that ends before the limit lets another begin, and free slots are filled at once
        most.append(math.ceil(left_s / trial_s) - 1 + slots - in_flight if left_s > 0 else 0)
    return max(min(most), 0)


def ends_in_s(
    parts: Sequence[Part],
    underway: Sequence[Underway],
    lanes: Mapping[StageKind, int],
    expected_s: Mapping[StageKind, float],
) -> float | None:
    """Until all that is ahead has ended; None where a kind of stage is ahead of which nothing is known.

    Args:
        parts: What the search does now, and then; compiles that are underway belong to the first.
        underway: Stages that were submitted.
        lanes: Stages of each kind that the machines run at once; 1 where it is not said.
        expected_s: See ``expected_seconds``.
    """
    now_s = 0.0
    for index, part in enumerate(parts):
        own = [one for one in underway if one.kind is part.kind or (index == 0 and one.kind is StageKind.COMPILE)]
        try:
            now_s = _end_s(part, own, lanes, expected_s, now_s)
        except KeyError:
            return None
    return now_s


def _end_s(
    part: Part,
    underway: Sequence[Underway],
    lanes: Mapping[StageKind, int],
    expected_s: Mapping[StageKind, float],
    now_s: float,
) -> float:
    """When the last piece has ended: each takes a slot, a lane to be compiled in and a lane for what it ends with."""
    slots, running = _Lanes(part.slots, now_s), _Lanes(lanes.get(part.kind, 1), now_s)
    compiling = _Lanes(lanes.get(StageKind.COMPILE, 1), now_s)
    own = [one for one in underway if one.kind is part.kind]
    ends = [now_s, *(running.take(now_s, one.left_s(expected_s[part.kind])) for one in own)]
    for one in (one for one in underway if one.kind is StageKind.COMPILE):
        compiled = compiling.take(now_s, one.left_s(expected_s[StageKind.COMPILE]))
        ends.append(running.take(compiled, expected_s[part.kind]))
    for end in sorted(ends[1:]):
        slots.take(end, 0.0)
    for _ in range(part.to_begin):
        begin = slots.first_free
        if part.has_compiles:
            begin = compiling.take(begin, expected_s[StageKind.COMPILE])
        ends.append(running.take(begin, expected_s[part.kind]))
        slots.take(ends[-1], 0.0)
    return max(ends)


class _Lanes:
    """When each of some lanes is free."""

    def __init__(self, count: int, now_s: float) -> None:
        self._free = [now_s] * max(count, 1)

    @property
    def first_free(self) -> float:
        """When the next one is."""
        return self._free[0]

    def take(self, begin: float, takes_s: float) -> float:
        """Use the first free one, not before ``begin``; gives the end."""
        end = max(begin, self.first_free) + takes_s
        heapq.heapreplace(self._free, end)
        return end
