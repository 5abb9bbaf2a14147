"""How sure a ratio of sums over prompts is.

Prompts are the independent units. Rounds are not: intervals that treat them so cover 36–86 % instead of 95 %.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

FEWEST_PROMPTS = 3
"""Below this there is no spread to speak of, and no interval."""

FEW_PROMPTS = 500
"""Below this the bootstrap's own quantiles are taken: over 10 to 200 of the prompts in benchmarks/interval_coverage.py
Student's one-sided 99 % limits cover 94-99 %. From here on both cover alike, and resampling takes 0.03 s and more."""

FEW_FOR_TAILS = 100
"""Below this even the bootstrap's one-sided 99 % limit covers 97-99 %, since a sample rarely holds its tail."""

TAIL_LEVEL, TAIL_LEVEL_OF_FEW = 0.99, 0.995
"""Quantile of the resampled pivot behind the one-sided 99 % limit. That of few prompts is set by what it covers."""

FEWEST_TO_RESAMPLE = 8
"""Below this too few different resamples exist, and their quantiles run off to nothing or to thousands."""

DOMINATING_SHARE = 0.1
"""A prompt that holds more of a sum than this decides the tails at any number of prompts."""

RESAMPLES = 4999
"""Puts forty-nine resamples beyond the one-sided 99 % limit; a millisecond for 39 prompts."""

RESAMPLES_AT_ONCE = 500
"""So that their counts stay in the processor's cache: twice as fast as all at once."""

WIDEST = math.log(1000)
"""A limit a thousandfold from the estimate says nothing; wider ones are cut there, so that they stay numbers."""

SMALLEST_ERROR = 1e-12
"""Relative. Gains that are equal to the last digit have no spread to resample."""

SMALLEST_SPREAD = 1e-12
"""Of a resample's squared residuals, relative to the prompts'. One prompt alone has no spread but that of rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A ratio with its limits.

    Attributes:
        low: Lower limit, 95 % two-sided.
        high: Upper limit, 95 % two-sided.
        one_sided_99_low: Lower limit that the true ratio exceeds with 99 %.
        n: Prompts.
        coefficient_of_variation: sd(e_i) / mean denominator, of e_i = numerator_i / ratio − denominator_i: what
            the number of prompts for a wanted width follows from.
        method: How the quantiles were found.
    """

    estimate: float
    low: float
    high: float
    one_sided_99_low: float
    n: int
    coefficient_of_variation: float
    method: Literal["delta", "bootstrap-t"]


def ratio_interval(
    numerators: NDArray[np.float64], denominators: NDArray[np.float64], seed: int = 0, *, skewed: bool = True
) -> Interval | None:
    """Σ numerators / Σ denominators over prompts, with limits on the logarithm's scale.

    The quantiles of fewer than 500 prompts, or of any number with one that dominates, are those of the bootstrap-t
    over prompts (Efron 1981; Hall 1988), whose standard error is the delta method's; else Student's. None is narrower
    than Student's with the leave-one-out standard error (MacKinnon and White 1985). Its degrees of freedom are n − 1;
    for the one-sided 99 % limit (Σ w)² / Σ w² − 1, w the denominators (Kish 1965): one answer ten times as long as
    the others leaves little to judge a tail by. Fewer than eight prompts get Student's alone, which is for looking
    at, not for deciding. ``benchmarks/interval_coverage.py`` measures what the limits cover.

    Args:
        numerators: [prompts], positive.
        denominators: [prompts], of the same prompts in the same order, positive.
        seed: Of the resampling.
        skewed: False where both sides are the same configuration, so that only noise tells them apart: Student's
            quantiles are then right at any number of prompts.

    Returns:
        None for fewer than three prompts.
    """
    n = len(numerators)
    if n < FEWEST_PROMPTS:
        return None
    ratios, errors = log_ratio(numerators[None, :], denominators[None, :])
    ratio, error = float(ratios[0]), float(errors[0])
    limits = _student_limits(numerators, denominators, ratio)
    uneven = n < FEW_PROMPTS or _is_dominated(numerators, denominators)
    resamples = skewed and uneven and n >= FEWEST_TO_RESAMPLE and error > SMALLEST_ERROR
    if resamples:
        tails = [quantile * error for quantile in _bootstrap_quantiles(numerators, denominators, ratio, seed)]
        farther = (min, max, min)
        limits = [pick(pair) for pick, pair in zip(farther, zip(limits, tails, strict=True), strict=True)]
    low, high, low_99 = (math.exp(ratio + _bounded(limit)) for limit in limits)
    return Interval(
        estimate=math.exp(ratio),
        low=low,
        high=high,
        one_sided_99_low=low_99,
        n=n,
        coefficient_of_variation=error * math.sqrt(n),
        method="bootstrap-t" if resamples else "delta",
    )


def _student_limits(numerators: NDArray[np.float64], denominators: NDArray[np.float64], ratio: float) -> list[float]:
    """Distances of the three limits from the logarithm of the ratio: lower, upper, lower one-sided 99 %."""
    n = len(numerators)
    weights = denominators / denominators.sum()
    residuals = numerators / math.exp(ratio) - denominators
    without = residuals / (denominators.sum() - denominators)  # what leaving that prompt out does to the ratio
    error = math.sqrt((n - 1) / n * float((without**2).sum()))
    effective = max(1.0, 1 / float((weights**2).sum()) - 1)
    quantiles = ((n - 1, 0.025), (n - 1, 0.975), (effective, 0.01))
    return [float(stdtrit(degrees, level)) * error for degrees, level in quantiles]


def _bounded(width: float) -> float:
    return max(-WIDEST, min(WIDEST, width))


def _is_dominated(numerators: NDArray[np.float64], denominators: NDArray[np.float64]) -> bool:
    shares = [float(side.max() / side.sum()) for side in (numerators, denominators)]
    return max(shares) > DOMINATING_SHARE


def log_ratio(
    numerators: NDArray[np.float64], denominators: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Logarithm of the ratio of sums and its standard error, for each row.

    Args:
        numerators: [samples, prompts].
        denominators: [samples, prompts].
    """
    n = numerators.shape[1]
    ratio = numerators.sum(axis=1) / denominators.sum(axis=1)
    residuals = numerators / ratio[:, None] - denominators
    error = residuals.std(axis=1, ddof=1) / (math.sqrt(n) * denominators.mean(axis=1))
    return np.log(ratio), error


def _bootstrap_quantiles(
    numerators: NDArray[np.float64], denominators: NDArray[np.float64], observed: float, seed: int
) -> tuple[float, float, float]:
    """What takes the place of Student's quantiles for the lower, the upper and the lower one-sided 99 % limit.

    A resample that drew one prompt only has no spread and is left out. Limits of the ratio run against the
    quantiles of the pivot: the lower limit takes the upper one.

    Resamples are made as products, counts of each prompt times the prompts' sums and squares. Residuals of a
    resample's own ratio follow from those of the observed one, so that equal gains lose no digits.
    """
    n = len(numerators)
    residuals = numerators / math.exp(observed) - denominators
    columns = (numerators, denominators, residuals, residuals**2, residuals * numerators, numerators**2)
    tops, bottoms, lefts, squares, products, top_squares = _resampled_sums(np.column_stack(columns), seed).T
    shift = lefts / tops  # 1 / observed ratio - 1 / the resample's ratio
    spread = squares - 2 * shift * products + shift**2 * top_squares
    usable = spread > SMALLEST_SPREAD * float((residuals**2).sum())
    error = np.sqrt(spread[usable] * n / (n - 1)) / bottoms[usable]
    pivots = -np.log1p(-math.exp(observed) * shift[usable]) / error
    tail = TAIL_LEVEL_OF_FEW if n < FEW_FOR_TAILS else TAIL_LEVEL
    upper, lower, upper_99 = np.quantile(pivots, [0.975, 0.025, tail])
    return -float(upper), -float(lower), -float(upper_99)


def _resampled_sums(columns: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """Sums of each column over the prompts that each resample drew: [resamples, columns].

    Args:
        columns: [prompts, columns].
        seed: Of the resampling.
    """
    n, generator = len(columns), np.random.default_rng(seed)
    sums = []
    for start in range(0, RESAMPLES, RESAMPLES_AT_ONCE):
        count = min(RESAMPLES_AT_ONCE, RESAMPLES - start)
        places = generator.integers(n, size=(count, n), dtype=np.int32)
        places += np.arange(0, count * n, n, dtype=np.int32)[:, None]
        sums.append(np.bincount(places.ravel(), minlength=count * n).reshape(count, n) @ columns)
    return np.concatenate(sums)


def prompts_needed(
    coefficient_of_variation: float, half_width: float, confidence: float = 0.95, *, power: float = 0.5
) -> int:
    """Prompts for an interval of that relative half-width: (z · CV / h)², z = 1.96 for 95 %.

    A difference of that width is then told from none in every second repetition. For a greater share of them z grows
    by its quantile: 0.84 for 80 %.

    Args:
        coefficient_of_variation: sd(e_i) / mean L, of the prompts seen so far.
        half_width: Relative, e.g. 0.02.
        confidence: Of the two-sided interval.
        power: Share of repetitions whose interval leaves a true difference of that width out.
    """
    z = float(ndtri((1 + confidence) / 2) + ndtri(power))
    return math.ceil((z * coefficient_of_variation / half_width) ** 2)
