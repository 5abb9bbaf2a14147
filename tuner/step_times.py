"""What the steps of a round take: beliefs, and what measured configurations teach about them.

A round is one target pass over the drafted tokens and one more, and the draft's passes. Their times are jointly
log-normal: known well where a step was timed, vaguely where only the models' sizes are known. A configuration that
was measured is a weighted sum of steps, so it sharpens them all, and with them every configuration not measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tuner.errors import MeasurementError
from tuner.records import TimedSteps

Floats = NDArray[np.float64]

MS_PER_S = 1000.0

LOAD_ERROR = 0.01
"""Relative sd from one load of an engine to the next: timings of one load share it."""

VERIFY_BIAS = 0.03
"""Relative sd of what a pass costs in a round beyond a timed one: caches, other lengths of the context."""

DRAFT_BIAS = 0.10
"""The same of drafting. Seen on CPUs: weights that stay in the cache while they are timed, and not in a round."""

CONFIGURATION_ERROR = 0.015
"""Relative sd of one configuration around the sum of its steps: alignment, compilers, buckets."""

MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean, for normal noise: sqrt(π / 2)."""

MAD_TO_SD = 1.4826

LARGEST_ERROR = 1.0
"""Relative sd of a timing; beyond it a step is as good as unknown, and far draws of its logarithm would overflow."""

MOST_FITTING_STEPS = 50
LARGEST_STEP = 1.0
"""In logarithms: a fit moves no step time by more than a factor of e at once."""
MOST_HALVINGS = 20
FITTED = 1e-9

LEAST_STEP_MS = 1e-6
"""The clock's resolution: looking a draft up may take less than it shows, and has a logarithm all the same."""


@dataclass(frozen=True, slots=True)
class Step:
    """One kind of step: ``("verify", "", 4)`` is a target pass over four rows, ``("draft", "eagle", 2)`` drafting two.

    A guessed cost model has a step per row instead of one per size: ``("row", "", 1)`` and ``("pass", "eagle", 1)``.
    ``("doubt", "eagle", 1)`` is no time but a factor near 1 of the rounds that replay counts; see ``with_factors``.
    """

    kind: str
    draft_name: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredTotal:
    """A configuration's measured time, as a sum of steps.

    Attributes:
        weights: [steps], how often each occurred; the one-row pass of the baseline's own rounds is taken off.
        fixed_ms: What no step accounts for: first tokens, and the baseline's rounds.
        total_ms: As measured.
        error: Relative sd of the measurement itself.
    """

    weights: Floats
    fixed_ms: float
    total_ms: float
    error: float


@dataclass(frozen=True, kw_only=True, eq=False)  # no slots: cached_property needs a dictionary
class StepTimes:
    """Step times as jointly log-normal.

    Attributes:
        steps: Names, in order.
        log_ms: [steps], means of the logarithms of milliseconds.
        covariance: [steps, steps].
    """

    steps: tuple[Step, ...]
    log_ms: Floats
    covariance: Floats

    @cached_property
    def precision(self) -> Floats:
        """Inverse of the covariance: beliefs from before a search are fitted after each of its trials."""
        return _inverse(self.covariance)

    def fitted(self, measured: Sequence[MeasuredTotal]) -> StepTimes:
        """The beliefs after measurements: the mode by Gauss-Newton steps, its covariance by Laplace's method.

        Raises:
            MeasurementError: No positive step times explain a measurement.
        """
        if not measured:
            return self
        fit = _Fit.of(self, measured)
        theta = self.log_ms
        for _ in range(MOST_FITTING_STEPS):
            step = fit.step_from(theta)
            theta = theta + step
            if np.abs(step).max() < FITTED:
                break
        return replace(self, log_ms=theta, covariance=fit.covariance(theta))

    def with_factors(self, sds: Mapping[Step, float]) -> StepTimes:
        """The same beliefs, and steps of 1 beside them with these relative sds, independent of all others."""
        count = len(self.steps)
        covariance = np.diag([0.0] * count + [sd**2 for sd in sds.values()])
        covariance[:count, :count] = self.covariance
        logs: Floats = np.concatenate([self.log_ms, np.zeros(len(sds))])
        return replace(self, steps=(*self.steps, *sds), log_ms=logs, covariance=covariance)

    def draws(self, count: int, rng: np.random.Generator) -> Floats:
        """Random step times that agree with the beliefs: [count, steps], ms."""
        drawn: Floats = np.exp(rng.multivariate_normal(self.log_ms, self.covariance, size=count, method="eigh"))
        return drawn

    def medians(self, kind: str, draft_name: str = "") -> Mapping[int, tuple[float, float]]:
        """Median and relative sd of the steps of one kind, by size."""
        sds = np.sqrt(np.diag(self.covariance))
        return {
            step.size: (math.exp(self.log_ms[index]), float(sds[index]))
            for index, step in enumerate(self.steps)
            if (step.kind, step.draft_name) == (kind, draft_name)
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Fit:
    """Gauss-Newton steps towards the logarithms of step times that explain beliefs and measurements best.

    Attributes:
        before: The beliefs' means.
        before_covariance: Theirs.
        before_precision: Its inverse.
        weights: [measured, steps].
        fixed: [measured], ms.
        target: [measured], logarithms of the measured times.
        precision: [measured], of those logarithms.
    """

    before: Floats
    before_covariance: Floats
    before_precision: Floats
    weights: Floats
    fixed: Floats
    target: Floats
    precision: Floats

    @classmethod
    def of(cls, beliefs: StepTimes, measured: Sequence[MeasuredTotal]) -> _Fit:
        return cls(
            before=beliefs.log_ms,
            before_covariance=beliefs.covariance,
            before_precision=beliefs.precision,
            weights=np.array([one.weights for one in measured]),
            fixed=np.array([one.fixed_ms for one in measured]),
            target=np.log([one.total_ms for one in measured]),
            precision=np.array([1 / (one.error**2 + CONFIGURATION_ERROR**2) for one in measured]),
        )

    def step_from(self, theta: Floats) -> Floats:
        """The next step: halved until it explains more, which far from the beliefs a whole one may not; 0 at the end.

        Raises:
            MeasurementError: The step times themselves explain no positive total.
        """
        now = self._misfit(theta)
        if not np.isfinite(now):
            raise MeasurementError("the timed steps contradict the measured configurations", "time them again")
        slopes = self._slopes(theta)
        unexplained = self.target - np.log(self._totals(theta))
        pull = (slopes.T * self.precision) @ unexplained - self.before_precision @ (theta - self.before)
        seen, doubt = self._seen(slopes)
        whole = self.before_covariance @ pull
        step = np.clip(whole - seen.T @ np.linalg.solve(doubt, slopes @ whole), -LARGEST_STEP, LARGEST_STEP)
        for _ in range(MOST_HALVINGS):
            if self._misfit(theta + step) <= now:
                break
            step = step / 2
        else:
            step = np.zeros_like(theta)
        found: Floats = step
        return found

    def covariance(self, theta: Floats) -> Floats:
        """Of the beliefs after the measurements."""
        seen, doubt = self._seen(self._slopes(theta))
        after: Floats = np.asarray(self.before_covariance - seen.T @ np.linalg.solve(doubt, seen), dtype=np.float64)
        return (after + after.T) / 2

    def _seen(self, slopes: Floats) -> tuple[Floats, Floats]:
        """Covariances of measurements with steps, and among themselves: [measured, steps], [measured, measured].

        There are fewer measurements than steps where it matters, so that the equations are theirs (Woodbury).
        """
        seen: Floats = slopes @ self.before_covariance
        doubt: Floats = seen @ slopes.T + np.diag(1 / self.precision)
        return seen, doubt

    def _totals(self, theta: Floats) -> Floats:
        totals: Floats = self.fixed + self.weights @ np.exp(theta)
        return totals

    def _slopes(self, theta: Floats) -> Floats:
        slopes: Floats = self.weights * np.exp(theta) / self._totals(theta)[:, None]
        return slopes

    def _misfit(self, theta: Floats) -> float:
        """Minus twice the logarithm of the posterior density; infinite where a total is not positive."""
        totals = self._totals(theta)
        if (totals <= 0).any():
            return np.inf
        moved = theta - self.before
        return float(self.precision @ (self.target - np.log(totals)) ** 2 + moved @ self.before_precision @ moved)


def _inverse(matrix: Floats) -> Floats:
    inverse: Floats = np.asarray(np.linalg.inv(matrix), dtype=np.float64)
    return inverse


def timed_step_times(verify: TimedSteps, drafts: Mapping[str, TimedSteps], scale: float = 1.0) -> StepTimes:
    """Beliefs from timed single steps: medians, their errors, and what the timings of one load share.

    Args:
        verify: Passes of the target.
        drafts: Drafting, by the draft's name.
        scale: Milliseconds now for one when they were timed: how much slower the machine is in the baseline's rounds.

    Raises:
        MeasurementError: A size has no timing.
    """
    blocks = [(Step("verify", "", size), verify, size, VERIFY_BIAS) for size in sorted(verify.seconds)]
    for name, timed in drafts.items():
        blocks += [(Step("draft", name, size), timed, size, DRAFT_BIAS) for size in sorted(timed.seconds)]
    medians = np.maximum([median_ms(timed, size) for _, timed, size, _ in blocks], [LEAST_STEP_MS, 0.0])
    own = np.diag(np.minimum(medians[:, 1] / medians[:, 0], LARGEST_ERROR) ** 2 + LOAD_ERROR**2 / 10)
    groups = [(step.kind, step.draft_name) for step, *_ in blocks]
    shared = np.array([[one == other for other in groups] for one in groups], dtype=np.float64)
    bias = np.array([math.hypot(bias, LOAD_ERROR) for *_, bias in blocks])
    return StepTimes(
        steps=tuple(step for step, *_ in blocks),
        log_ms=np.log(medians[:, 0] * scale),
        covariance=own + shared * np.outer(bias, bias),
    )


def median_ms(steps: TimedSteps, size: int) -> tuple[float, float]:
    """Median of one size's repeats and its standard error, ms; the error comes from the median deviation.

    Raises:
        MeasurementError: The size has no timing.
    """
    seconds = steps.seconds.get(size, ())
    if not seconds:
        raise MeasurementError(f"step {steps.step} of size {size} has no timing", "time it at least once")
    times = np.asarray(seconds) * MS_PER_S
    middle = float(np.median(times))
    spread = MAD_TO_SD * float(np.median(np.abs(times - middle)))
    return middle, MEDIAN_ERROR * spread / math.sqrt(len(times))


def guessed_step_times(row: tuple[float, float], passes: Mapping[str, tuple[float, float]]) -> StepTimes:
    """Beliefs before any step was timed: each lies between two limits, all orders of magnitude alike.

    Args:
        row: Least and most milliseconds that one more row adds to a target pass.
        passes: Least and most milliseconds of one pass of each draft, by its name.

    Raises:
        MeasurementError: Limits are not positive, or out of order.
    """
    ranges = {Step("row", "", 1): row, **{Step("pass", name, 1): limits for name, limits in passes.items()}}
    for step, (low, high) in ranges.items():
        if not 0 < low <= high < math.inf:
            raise MeasurementError(
                f"the limits of step {step.kind} {step.draft_name!r} are {low} and {high} ms",
                "give two positive limits, the lower one first",
            )
    logs = np.log(np.array(list(ranges.values())))
    # A normal distribution with the mean and the variance of the log-uniform one.
    sds = np.maximum((logs[:, 1] - logs[:, 0]) / math.sqrt(12), LOAD_ERROR)
    return StepTimes(steps=tuple(ranges), log_ms=logs.mean(axis=1), covariance=np.diag(sds**2))
