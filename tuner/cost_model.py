"""What a round takes, as a sum of timed or guessed steps.

The time of a round depends on what is drafted and verified, not on what is accepted:

    T(j) = overhead + verify(j + 1) + draft(k)

for a round that proposed j of at most k tokens. The overhead is what the baseline's measured rounds took beyond a
one-row pass, so that no speculation is predicted as it was measured:

    T(j) = plain round + [verify(j + 1) − verify(1)] + draft(k)

Where steps were timed, each width of the pass and each length of a draft has its own time: kinks are measured, not
modelled. Where only the models' sizes are known, a row and a pass of the draft each have one guessed time, and k
tokens take k passes and those that the engine wastes. All at the number of requests in flight of the baseline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tuner.errors import MeasurementError
from tuner.metrics import completed, tpot_ms
from tuner.records import BaselineResult, TimedSteps, TraceResult
from tuner.step_limits import StepLimits
from tuner.step_times import Step, StepTimes, guessed_step_times, median_ms, timed_step_times

Floats = NDArray[np.float64]

MOST_DOUBT = 0.25
"""Relative sd of a configuration's decode time that doubtful positions give it at most."""

NORMAL_95 = 1.96


@dataclass(frozen=True, kw_only=True, eq=False)  # no slots: cached_property needs a dictionary
class CostModel:
    """Times of the steps of a round, for one target, one machine and one number of requests in flight.

    Attributes:
        step_times: Of passes and drafts; sharpened by measured configurations.
        draft_prefill: What the draft adds to the time to the first token, by its name; absent where it reads nothing.
        wasted_draft_passes: Passes of a round beyond the tokens that it proposes; only where times are guessed.
        most_drafted_tokens: Likewise, the largest round that is predicted; None is no limit.
    """

    step_times: StepTimes
    draft_prefill: Mapping[str, TimedSteps] = field(default_factory=dict)
    wasted_draft_passes: int = 0
    most_drafted_tokens: int | None = None

    @classmethod
    def timed(cls, verify: TimedSteps, traces: Sequence[TraceResult], plain_round_ms: float | None) -> Self:
        """From the single steps that were timed in the stages ``baseline`` and ``trace``.

        Args:
            verify: Passes of the target.
            traces: Of the drafts that were timed.
            plain_round_ms: The baseline's measured time per token. Where it is less than the timed one-row pass, the
                machine was slower when steps were timed, and all of them are scaled. None where it is not known.

        Raises:
            MeasurementError: A size has no timing.
        """
        one_row_ms, _ = median_ms(verify, min(verify.seconds, default=1))
        scale = 1.0 if plain_round_ms is None else min(1.0, plain_round_ms / one_row_ms)
        drafts = {one.trace.draft_name: one.draft_steps for one in traces if one.draft_steps is not None}
        prefill = {one.trace.draft_name: one.draft_prefill for one in traces if one.draft_prefill is not None}
        return cls(step_times=timed_step_times(verify, drafts, scale), draft_prefill=prefill)

    @classmethod
    def guessed(cls, limits: Mapping[str, StepLimits], plain_round_ms: float) -> Self:
        """From limits of the steps, by draft, where the engine cannot time any: at least one draft.

        What a draft adds to the time to the first token is not guessed: it is predicted as the baseline's.

        Raises:
            MeasurementError: A limit or the plain round is not positive.
        """
        rows, passes = zip(*((one.row, one.draft_pass) for one in limits.values()), strict=True)
        row = (min(low for low, _ in rows) * plain_round_ms, max(high for _, high in rows) * plain_round_ms)
        in_ms = [(low * plain_round_ms, high * plain_round_ms) for low, high in passes]
        return cls(
            step_times=guessed_step_times(row, dict(zip(limits, in_ms, strict=True))),
            wasted_draft_passes=max(one.wasted_draft_passes for one in limits.values()),
            most_drafted_tokens=max(one.most_drafted_tokens for one in limits.values()),
        )

    def with_doubts(self, shares: Mapping[str, float]) -> Self:
        """The same, and for drafts of which a share of positions is doubtful a step of its own that stands for them.

        The step is a factor near 1, so that measured configurations sharpen it as they do times; see ``doubt``. The
        share is its 95 % limit: that every doubtful position goes the same way is the worst case.
        """
        if not any(shares.values()):
            return self
        sds = {name: min(share / NORMAL_95, MOST_DOUBT) for name, share in shares.items() if share > 0}
        doubted = {Step("doubt", name, 1): sd for name, sd in sds.items()}
        return replace(self, step_times=self.step_times.with_factors(doubted))

    def doubt(self, draft_name: str, mean_acceptance_length: float | None) -> tuple[int, float] | None:
        """Which step stands for a draft's doubtful positions, and its weight in a round; None where none does.

        A position that misses instead of hitting costs a round more at most, so with a share s of doubtful positions
        the rounds change by s · τ at most: the step's weight is τ.
        """
        index = self._index.get(Step("doubt", draft_name, 1))
        if index is None or mean_acceptance_length is None:
            return None
        sd = float(np.sqrt(self.step_times.covariance[index, index]))
        return index, min(mean_acceptance_length, MOST_DOUBT / sd)

    def with_step_times(self, step_times: StepTimes) -> Self:
        """The same with other times."""
        return replace(self, step_times=step_times)

    @property
    def widths_are_timed(self) -> bool:
        """Whether every width up to the widest was timed, so that no kink can hide between two of them."""
        sizes = self._sizes("verify", "")
        return bool(sizes) and len(sizes) == max(sizes) - min(sizes) + 1

    def reaches(self, draft_name: str, drafted_tokens: int) -> bool:
        """Whether a round of that many tokens lies within what was timed; nothing is extrapolated."""
        if Step("row", "", 1) in self._index:
            most = self.most_drafted_tokens
            return Step("pass", draft_name, 1) in self._index and (most is None or drafted_tokens <= most)
        widths, lengths = self._sizes("verify", ""), self._sizes("draft", draft_name)
        return drafted_tokens + 1 <= max(widths, default=0) and drafted_tokens <= max(lengths, default=0)

    def round_weights(self, draft_name: str, drafted_tokens: int) -> Floats:
        """How often each step occurs in a round beyond a plain one: [j = 0 … k, steps], j the tokens it proposed.

        The draft runs its k passes even where fewer proposals come of them.

        Raises:
            MeasurementError: A size lies beyond those that were timed.
        """
        weights = np.zeros((drafted_tokens + 1, len(self.step_times.steps)))
        if drafted_tokens == 0:
            return weights
        if Step("row", "", 1) in self._index:
            weights[:, self._index[Step("row", "", 1)]] = np.arange(drafted_tokens + 1)
            weights[:, self._index[Step("pass", draft_name, 1)]] = drafted_tokens + self.wasted_draft_passes
            return weights
        self._add(weights[0:], "draft", draft_name, drafted_tokens, 1.0)
        self._add(weights[0:], "verify", "", 1, -1.0)
        for drafted in range(drafted_tokens + 1):
            self._add(weights[drafted : drafted + 1], "verify", "", drafted + 1, 1.0)
        return weights

    def round_ms(self, draft_name: str, drafted_tokens: int) -> Floats:
        """Time of a round beyond a plain one, by the tokens that it proposed: [k + 1].

        Raises:
            MeasurementError: A size lies beyond those that were timed.
        """
        times: Floats = self.round_weights(draft_name, drafted_tokens) @ np.exp(self.step_times.log_ms)
        return times

    def kink_ms(self, drafted_tokens: int) -> Floats:
        """What a kink between two timed widths could add to a round, by the tokens that it proposed: [k + 1]."""
        sizes = self._sizes("verify", "")
        medians = self.step_times.medians("verify")
        found = np.zeros(drafted_tokens + 1)
        for drafted in range(drafted_tokens + 1 if sizes else 0):
            below, above, share = _neighbours(sizes, drafted + 1, "verify pass of {} rows")
            found[drafted] = abs(medians[above][0] - medians[below][0]) / 2 if share else 0.0
        return found

    def draft_prefill_ms(self, draft_name: str, prompt_tokens: NDArray[np.int64]) -> Floats:
        """What the draft's reading of each prompt adds to its first token: [prompts]; between two timed lengths a line.

        Prompts shorter or longer than all timed ones take the nearest time: stages time the extremes of a workload.
        """
        timed = self.draft_prefill.get(draft_name)
        if timed is None or not timed.seconds:
            return np.zeros(len(prompt_tokens))
        sizes = sorted(timed.seconds)
        times: Floats = np.interp(prompt_tokens, sizes, [median_ms(timed, size)[0] for size in sizes])
        return times

    @cached_property
    def _index(self) -> Mapping[Step, int]:
        return {step: index for index, step in enumerate(self.step_times.steps)}

    def _sizes(self, kind: str, draft_name: str) -> list[int]:
        return sorted(step.size for step in self._index if (step.kind, step.draft_name) == (kind, draft_name))

    def _add(self, rows: Floats, kind: str, draft_name: str, size: int, times: float) -> None:
        """Count a step in every row; one between two timed sizes counts as a share of each."""
        name = "verify pass of {} rows" if kind == "verify" else f"draft of {{}} tokens of {draft_name!r}"
        below, above, share = _neighbours(self._sizes(kind, draft_name), size, name)
        rows[:, self._index[Step(kind, draft_name, below)]] += times * (1 - share)
        rows[:, self._index[Step(kind, draft_name, above)]] += times * share


def _neighbours(sizes: Sequence[int], size: int, name: str) -> tuple[int, int, float]:
    """The timed sizes around one, and how far it lies on the way from the lower to the upper."""
    below = max((one for one in sizes if one <= size), default=None)
    above = min((one for one in sizes if one >= size), default=None)
    if below is None or above is None:
        raise MeasurementError(
            f"a {name.format(size)} was not timed and lies beyond those that were: {list(sizes)}",
            "time it, or leave the configuration out of the prediction",
        )
    return below, above, 0.0 if above == below else (size - below) / (above - below)


def plain_round_ms(baseline: BaselineResult) -> float | None:
    """Mean time per output token of the baseline, over prompts; None where no answer has a second token."""
    times = [time for record in completed(baseline.measurement.requests) if (time := tpot_ms(record)) is not None]
    return float(np.mean(times)) if times else None
