"""What was predicted of a configuration before it was measured, beside what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tuner.objective import at_load, figures_at
from tuner.speculation import Speculation
from tuner.store import TrialRecord, TrialState

NORMAL_95 = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One measured configuration of which there was a prediction.

    Attributes:
        trial: Its number.
        predicted: Figures by the names of ``metrics.summarize``, with limits of the speed-up.
        measured: Likewise.
    """

    trial: int
    speculation: Speculation
    predicted: Mapping[str, float | None]
    measured: Mapping[str, float | None]

    def difference(self, name: str) -> float | None:
        """Measured / predicted − 1; None where one of them does not exist."""
        predicted, measured = self.predicted.get(name), self.measured.get(name)
        return measured / predicted - 1 if predicted and measured is not None else None

    @property
    def agrees(self) -> bool | None:
        """Whether the speed-ups differ by no more than both 95 % intervals allow; None where there are not both."""
        errors = [_log_error(side) for side in (self.predicted, self.measured)]
        difference = self.difference("speedup")
        known = [one for one in errors if one is not None]
        if len(known) < len(errors) or difference is None:
            return None
        return abs(math.log1p(difference)) <= NORMAL_95 * math.hypot(*known)


def _log_error(figures: Mapping[str, float | None]) -> float | None:
    """Standard error of the logarithm of a speed-up, from its 95 % limits."""
    low, high = figures.get("speedup_low"), figures.get("speedup_high")
    return math.log(high / low) / (2 * NORMAL_95) if low and high else None


def comparisons(trials: Sequence[TrialRecord], load: int | None = None) -> tuple[Comparison, ...]:
    """Every measured configuration beside its prediction, in the order of the trials; repeats are left out.

    Args:
        trials: Of a study.
        load: Requests in flight; None for the workload's own number.
    """
    return tuple(_comparisons(trials, at_load("speedup", load), load))


def _comparisons(trials: Sequence[TrialRecord], speedup: str, load: int | None) -> Iterator[Comparison]:
    for trial in trials:
        is_first = trial.state is TrialState.COMPLETE and trial.duplicate_of is None
        if is_first and speedup in trial.predicted and trial.metrics.get(speedup) is not None:
            yield Comparison(
                trial=trial.number,
                speculation=trial.speculation,
                predicted=figures_at(trial.predicted, load),
                measured=figures_at(trial.metrics, load),
            )
