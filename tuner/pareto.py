"""Which trials no other trial beats in everything, and how sure that is."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tuner.errors import MeasurementError


def pareto_front(losses: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Mark the trials that no other trial dominates.

    One dominates another when it is no worse in every objective and better in at least one. Equal trials do not
    dominate each other: all duplicates of a member of the front are members.

    Args:
        losses: [trials, objectives], lower is better.

    Returns:
        [trials], True for members of the front.

    Raises:
        MeasurementError: A loss is NaN or infinite, or the array is not two-dimensional.
    """
    if losses.ndim != 2 or not np.isfinite(losses).all():
        raise MeasurementError(
            f"a Pareto front needs finite losses [trials, objectives], got shape {losses.shape}",
            "leave out trials without values",
        )
    no_worse = (losses[:, None, :] <= losses[None, :, :]).all(axis=2)
    better = (losses[:, None, :] < losses[None, :, :]).any(axis=2)
    return np.logical_not((no_worse & better).any(axis=0))


def front_probabilities(draws: NDArray[np.float64]) -> NDArray[np.float64]:
    """How often each configuration is on the front when the losses of all of them vary together.

    Each draw is one set of losses as it might truly be. The work is done one configuration against all at a time, so
    that 300 configurations and 1,000 draws take some tenths of a second and megabytes.

    Args:
        draws: [samples, configurations, objectives], lower is better.

    Returns:
        [configurations], the share of samples in which no other configuration dominates it.

    Raises:
        MeasurementError: A loss is NaN or infinite, or the array is not three-dimensional or has no sample.
    """
    if draws.ndim != 3 or not len(draws) or not np.isfinite(draws).all():
        raise MeasurementError(
            f"front probabilities need finite draws [samples, configurations, objectives], got shape {draws.shape}",
            "leave out configurations without values",
        )
    by_objective = np.ascontiguousarray(np.moveaxis(draws, 2, 0))  # [objectives, samples, configurations]
    is_dominated = np.zeros(draws.shape[:2], dtype=bool)
    for rival in range(draws.shape[1]):
        no_worse, better = np.ones_like(is_dominated), np.zeros_like(is_dominated)
        for losses in by_objective:
            mine = losses[:, rival : rival + 1]
            no_worse &= mine <= losses
            better |= mine < losses
        is_dominated |= no_worse & better
    shares: NDArray[np.float64] = 1.0 - is_dominated.mean(axis=0)
    return shares


def log_normal_draws(
    losses: NDArray[np.float64], log_errors: NDArray[np.float64], samples: int, seed: int
) -> NDArray[np.float64]:
    """Losses as they might truly be, each independently log-normal around its estimate.

    Args:
        losses: [configurations, objectives]; the sign stays.
        log_errors: [configurations, objectives], standard errors of the logarithm; 0 for what is exact.
        samples: Draws.
        seed: Of the draws.

    Returns:
        [samples, configurations, objectives].
    """
    noise = np.random.default_rng(seed).standard_normal((samples, *losses.shape))
    drawn: NDArray[np.float64] = losses * np.exp(noise * log_errors)
    return drawn
