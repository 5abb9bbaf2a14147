"""How a search stands, and why it stops trying: nothing left that is worth it, or what it may spend is spent."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tuner.speculation import Speculation


class StopKind(StrEnum):
    """What ended the trying."""

    NOTHING_WORTH_IT = "nothing_worth_it"
    ALL_TRIED = "all_tried"
    MAX_TRIALS = "max_trials"
    MAX_COMPILES = "max_compiles"
    MAX_MINUTES = "max_minutes"
    MAX_COST = "max_cost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why no further configuration is tried.

    Attributes:
        text: For a person, with the figures behind it.
    """

    kind: StopKind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a search stands after a trial: the best so far, and what could still beat it.

    Attributes:
        best: Fastest measured configuration; None where none is faster than no speculation.
        best_speedup: Its estimated speed-up, as all measurements together say; 1 for no speculation.
        num_open: Configurations that may still be faster by more than ε.
        most_promising: Of these the one that is worth most; None where there is none.
        most_promising_speedup: Predicted.
        most_promising_bound: What its speed-up could be at most, one-sided 95 %.
        num_unpredicted: Further configurations of which only a measurement can tell.
    """

    best: Speculation | None
    best_speedup: float
    num_open: int
    most_promising: Speculation | None = None
    most_promising_speedup: float | None = None
    most_promising_bound: float | None = None
    num_unpredicted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a search has used so far.

    Attributes:
        trials: Configurations tried, the baseline among them.
        compiles: Of them, those that needed a compile that was not there already; equal to ``trials`` where an
            engine compiles nothing, so that the same limit means the same there.
        seconds: Of its stages that ended before the final comparison, over all its runs; of each its last attempt.
    """

    trials: int
    compiles: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a search may use before its final comparison; None is no limit.

    Attributes:
        max_trials: Configurations tried, the baseline among them.
        max_compiles: Likewise, those that were compiled.
        max_minutes: Of stages.
        max_cost: In the currency of ``price_per_hour``.
        price_per_hour: Of the machines that the search holds.
    """

    max_trials: int | None = None
    max_compiles: int | None = None
    max_minutes: float | None = None
    max_cost: float | None = None
    price_per_hour: float | None = None

    def exhausted_by(self, spent: Spent) -> Reason | None:
        """Why nothing more may be tried; None while something may."""
        cost = self.cost(spent)
        limits = (
            (StopKind.MAX_TRIALS, self.max_trials, spent.trials, "{:.0f} configurations were tried"),
            (StopKind.MAX_COMPILES, self.max_compiles, spent.compiles, "{:.0f} configurations were compiled"),
            (StopKind.MAX_MINUTES, self.max_minutes, spent.seconds / 60, "{:.1f} minutes of measuring were used"),
            (StopKind.MAX_COST, self.max_cost, cost, "{:.2f} was spent"),
        )
        for kind, limit, used, text in limits:
            if limit is not None and used is not None and used >= limit:
                return Reason(kind=kind, text=f"{text.format(used)}, the limit is {limit:g}")
        return None

    def cost(self, spent: Spent) -> float | None:
        """What the search has cost so far; None where no price is known."""
        return None if self.price_per_hour is None else self.price_per_hour * spent.seconds / 3600
