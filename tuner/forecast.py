"""What every configuration would show, sharpened by those that were measured; and which is worth measuring next.

Replay knows how often each step of a round occurs under every configuration; only the steps' times are uncertain. A
draw of step times therefore gives one possible truth for all configurations together, and whatever is asked (limits,
chances, what is still worth a compile) is a count over such draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from tuner.step_times import CONFIGURATION_ERROR, LOAD_ERROR, MeasuredTotal, StepTimes

Floats = NDArray[np.float64]
Key = tuple[str, int]
"""A draft's name and its drafted tokens per round."""

DRAWS = 512
"""Enough for a 5 % quantile within a tenth of its distance from the median; a millisecond for sixty configurations."""

KINK_ALLOWANCE = 0.005
"""In simulated worlds whose verify curve jumps by 15–30 % at an unknown width it takes a quarter off the regret."""

OPTIMISM = 0.95
"""One-sided level of the bound below which a configuration is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """A configuration as a sum of steps over the search's prompts.

    Attributes:
        weights: [steps], how often each step occurs, the baseline's one-row pass taken off.
        fixed_ms: What no step accounts for: first tokens, and as many of the baseline's rounds.
        unit: The figure that is optimised, for each millisecond of the sum: 1 / prompts for a mean.
    """

    key: Key
    weights: Floats
    fixed_ms: float
    unit: float


@dataclass(frozen=True, kw_only=True, eq=False)  # no slots: cached_property needs a dictionary
class Outlook:
    """What is believed of every configuration at one moment of a search.

    Gains are logarithms of the baseline's time over a configuration's.

    Attributes:
        keys: [configurations]; no speculation is not among them.
        gains: [draws, configurations], without what only a compile of that very configuration would show.
        measured: [configurations].
        running: [configurations], being measured now.
        error: Relative sd that each configuration adds on its own: smaller where it was measured.
        kink_allowance: Added to the bound of configurations that verify fewer rows than the best measured one: where
            widths were not timed, that one may lie beyond a kink of the verify curve and they before it.
    """

    keys: tuple[Key, ...]
    gains: Floats
    measured: NDArray[np.bool_]
    running: NDArray[np.bool_]
    error: Floats
    kink_allowance: float = 0.0

    @cached_property
    def incumbent(self) -> int | None:
        """Index of the measured configuration with the best estimate; None where none beats no speculation."""
        return self._best_of(self.measured)

    def _best_of(self, some: NDArray[np.bool_]) -> int | None:
        if not some.any():
            return None
        best = int(np.where(some, self._means, -np.inf).argmax())
        return best if self._means[best] > 0 else None

    @cached_property
    def _to_beat(self) -> int | None:
        """The best of those that were measured or run: what runs is expected to come out as predicted."""
        return self._best_of(self.measured | self.running)

    @property
    def incumbent_key(self) -> Key | None:
        """The best measured configuration; None where none beats no speculation."""
        return None if self.incumbent is None else self.keys[self.incumbent]

    def improvement_bounds(self) -> Floats:
        """How much faster than the best measured one each configuration could be: [configurations], optimistic, log.

        The 95 % quantile of the paired difference: what all configurations of a draft share cancels.
        """
        bounds: Floats = np.quantile(self._improvements, OPTIMISM, axis=0)
        if self._to_beat is not None:
            widest = self.keys[self._to_beat][1]
            bounds += np.array([self.kink_allowance if tokens < widest else 0.0 for _, tokens in self.keys])
        return bounds

    def expected_improvements(self) -> Floats:
        """Mean of what measuring each configuration would gain over the best measured one: [configurations], log.

        What a configuration adds on its own counts here: it cannot be foreseen, but it may be a gain.
        """
        gained: Floats = np.maximum(self._own_draws - self._gain_to_beat, 0).mean(axis=0)
        return gained

    def is_worth_measuring(self, epsilon: float) -> NDArray[np.bool_]:
        """Configurations, not tried yet, whose optimistic latency lies below the best measured one · (1 − ε)."""
        is_open = np.logical_not(self.measured | self.running)
        worth: NDArray[np.bool_] = is_open & (self.improvement_bounds() > -np.log1p(-epsilon))
        return worth

    def expected_speedup(self, key: Key) -> float:
        """Estimated speed-up of a configuration over no speculation."""
        return float(np.exp(self._means[self.keys.index(key)]))

    def speedup_bound(self, key: Key) -> float:
        """What the speed-up of a configuration could be at most, one-sided 95 %."""
        best = 0.0 if self._to_beat is None else self._means[self._to_beat]
        return float(np.exp(best + self.improvement_bounds()[self.keys.index(key)]))

    def speedups(self, quantiles: Sequence[float]) -> Floats:
        """Quantiles of the speed-up over no speculation: [quantiles, configurations], each one's own error included."""
        levels: Floats = np.exp(np.quantile(self._own_draws, quantiles, axis=0))
        return levels

    def probabilities_of_best(self) -> Floats:
        """Chance of each configuration to be the fastest of all, no speculation among them: [configurations]."""
        draws = self._own_draws
        best = np.where(draws.max(axis=1) > 0, draws.argmax(axis=1), -1)
        share: Floats = np.array([float((best == index).mean()) for index in range(len(self.keys))])
        return share

    @cached_property
    def _means(self) -> Floats:
        means: Floats = self.gains.mean(axis=0)
        return means

    @cached_property
    def _improvements(self) -> Floats:
        improved: Floats = self.gains - self._gain_to_beat
        return improved

    @property
    def _gain_to_beat(self) -> Floats:
        """[draws, 1]."""
        return np.zeros((len(self.gains), 1)) if self._to_beat is None else self.gains[:, [self._to_beat]]

    @cached_property
    def _own_draws(self) -> Floats:
        noise = np.random.default_rng(1).standard_normal(self.gains.shape)
        draws: Floats = self.gains + noise * self.error
        return draws


@dataclass(frozen=True, kw_only=True, eq=False)  # no slots: cached_property needs a dictionary
class Forecast:
    """Everything that replay and timed steps say of the configurations, for one figure that is optimised.

    Attributes:
        baseline_value: The figure for no speculation, as measured.
        is_rate: The figure grows as times shrink, as tokens per second do: it is ``unit`` / sum.
        measured_error: Relative sd of one measurement of a configuration, of the load it ran on too.
        widths_are_timed: Whether the verify curve was timed, so that no kink can hide in it.
    """

    candidates: tuple[Candidate, ...]
    step_times: StepTimes
    baseline_value: float
    is_rate: bool = False
    measured_error: float = LOAD_ERROR
    widths_are_timed: bool = False

    @cached_property
    def index_of(self) -> Mapping[Key, int]:
        """Position of each configuration."""
        return {one.key: index for index, one in enumerate(self.candidates)}

    def outlook(
        self,
        measured: Mapping[Key, float],
        running: Sequence[Key] = (),
        errors: Mapping[Key, float] = MappingProxyType({}),
    ) -> Outlook:
        """What is believed once these figures were measured, while others run.

        Running configurations count as measured exactly as predicted, so that the next one asked for teaches
        something else. Keys that are no candidates are passed over.

        Args:
            measured: The optimised figure of each measured configuration, at the machine's speed of the baseline.
            running: Being measured now.
            errors: Relative sd of measurements that are less sure than ``measured_error``.
        """
        known = {key: value for key, value in measured.items() if key in self.index_of}
        beliefs = self.fitted(known, errors)
        expected = {key: self._expected(beliefs, key) for key in running if key in self.index_of and key not in known}
        beliefs = self.fitted({**known, **expected}, errors) if expected else beliefs
        logs = self._log_totals(beliefs)
        rows = [self.index_of[key] for key in known]
        own = np.array([self._error(key, errors) for key in known])
        share = CONFIGURATION_ERROR**2 / (CONFIGURATION_ERROR**2 + own**2)
        observed = np.log([self._total_ms(key, value) for key, value in known.items()])
        logs[:, rows] += share * (observed - logs[:, rows])
        error = np.full(len(self.candidates), CONFIGURATION_ERROR)
        error[rows] = CONFIGURATION_ERROR * np.sqrt(1 - share)
        return Outlook(
            keys=tuple(one.key for one in self.candidates),
            gains=self._log_gains(logs),
            measured=self._marked(known),
            running=self._marked(expected),
            error=error,
            kink_allowance=0.0 if self.widths_are_timed else KINK_ALLOWANCE,
        )

    def fitted(self, measured: Mapping[Key, float], errors: Mapping[Key, float] = MappingProxyType({})) -> StepTimes:
        """The step times that agree best with what was timed and what was measured; see ``outlook``."""
        totals = [
            MeasuredTotal(
                weights=self.candidates[index].weights,
                fixed_ms=self.candidates[index].fixed_ms,
                total_ms=self._total_ms(key, value),
                error=self._error(key, errors),
            )
            for key, value in measured.items()
            if (index := self.index_of.get(key)) is not None
        ]
        return self.step_times.fitted(totals)

    def _error(self, key: Key, errors: Mapping[Key, float]) -> float:
        return max(self.measured_error, errors.get(key, 0.0))

    def _total_ms(self, key: Key, value: float) -> float:
        unit = self.candidates[self.index_of[key]].unit
        return unit / value if self.is_rate else value / unit

    def _expected(self, beliefs: StepTimes, key: Key) -> float:
        one = self.candidates[self.index_of[key]]
        total = one.fixed_ms + float(one.weights @ np.exp(beliefs.log_ms))
        return one.unit / total if self.is_rate else one.unit * total

    def _log_totals(self, beliefs: StepTimes) -> Floats:
        drawn = beliefs.draws(DRAWS, np.random.default_rng(0))
        weights = np.array([one.weights for one in self.candidates]).reshape(len(self.candidates), drawn.shape[1])
        fixed = np.array([one.fixed_ms for one in self.candidates])
        totals = np.maximum(fixed + drawn @ weights.T, np.finfo(np.float64).tiny)
        logs: Floats = np.log(totals)
        return logs

    def _log_gains(self, logs: Floats) -> Floats:
        units = np.log([one.unit for one in self.candidates])
        baseline = np.log(self.baseline_value)
        gains: Floats = units - logs - baseline if self.is_rate else baseline - units - logs
        return gains

    def _marked(self, keys: Mapping[Key, float]) -> NDArray[np.bool_]:
        return np.array([one.key in keys for one in self.candidates], dtype=np.bool_)
