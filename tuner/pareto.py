"""Which trials no other trial beats in everything."""

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
