"""What was predicted of a configuration before it was measured, beside what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

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
    predicted: Mapping[str, float]
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


def comparisons(trials: Sequence[TrialRecord]) -> tuple[Comparison, ...]:
    """Every measured configuration beside its prediction, in the order of the trials; repeats are left out."""
    return tuple(_comparisons(trials))


def _comparisons(trials: Sequence[TrialRecord]) -> Iterator[Comparison]:
    for trial in trials:
        is_first = trial.state is TrialState.COMPLETE and trial.duplicate_of is None
        if is_first and "speedup" in trial.predicted and trial.metrics.get("speedup") is not None:
            yield Comparison(
                trial=trial.number,
                speculation=trial.speculation,
                predicted=trial.predicted,
                measured=trial.metrics,
            )
