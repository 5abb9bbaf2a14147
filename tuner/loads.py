"""Several certifications of one candidate, each on loads of its own, as one comparison.

The same program loaded twice does not run at the same speed: memory lies elsewhere, threads share other cores. An
interval over the prompts of one load knows nothing of that.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import numpy as np
from scipy.special import stdtrit

from tuner.intervals import WIDEST, Interval, ratio_interval
from tuner.pairing import Pairs, paired
from tuner.records import CertifyResult, Measurement

LEAST_LOAD_SD = 0.01
"""Relative sd of a gain from load to load, taken where fewer is seen: two loads that happen to agree prove little."""

ONE_AT_A_TIME = 3
"""Loads of a certification in whole passes: the baseline, the candidate, the baseline again."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PooledLoads:
    """A comparison over every load of both sides.

    Attributes:
        baseline: Requests of all loads together.
        candidate: The same of the other side.
        pairs: Latencies by prompt, averaged over loads.
        speedup: Gain over no speculation; contains the variation from load to load where there are several.
        load_error: Standard error of the gain's logarithm that comes from loads; None for a single load.
    """

    baseline: Measurement
    candidate: Measurement
    pairs: Pairs
    speedup: Interval | None
    load_error: float | None


def pool_loads(loads: Sequence[CertifyResult], left_out: Collection[str] = (), seed: int = 0) -> PooledLoads:
    """The end-to-end gain over all loads.

    Random effects on the logarithm of the gain, y = μ + prompts + load: the prompts are the same in every load, so
    their error is that of the latencies averaged over loads, and the variance between the loads' own gains, divided by
    their number, is added to it. Two variances that were estimated from few and from many take Student's quantile with
    Welch and Satterthwaite's degrees of freedom: L − 1 where all of the error lies between L loads, n − 1 where none
    of it does. What skewed latencies add to the prompts' quantiles stays added. Noise of single requests is in both
    variances, and loads are taken to differ by 1 % at least, which errs to the wider side. Where they truly differ by
    0.5–2 %, two to five loads of 60 prompts were seen to cover 95–100 % with the 95 % interval, and 99–100 % with the
    one-sided 99 % limit; the higher, the less of the error lies between prompts.

    Where one engine fits at a time, the limits move outwards by what the machine's drift from pass to pass could have
    added to the gain.

    Args:
        loads: Of the same candidate on the same prompts; at least one.
        left_out: Prompts that count for neither side.
        seed: Of the resampling.
    """
    baseline = reduce(add, [load.baseline for load in loads])
    candidate = reduce(add, [load.candidate for load in loads])
    pairs = paired(baseline, candidate, left_out=left_out)
    over_prompts = ratio_interval(pairs.baseline, pairs.candidate, seed)
    error = None if len(loads) < 2 or over_prompts is None else _load_error(loads, pairs.prompt_ids)
    speedup = over_prompts
    if over_prompts is not None and error is not None:
        speedup = _widened(over_prompts, error, len(loads))
    if speedup is not None:
        speedup = _moved_outwards(speedup, float(np.mean([_drift_bias(load, left_out) for load in loads])))
    return PooledLoads(baseline=baseline, candidate=candidate, pairs=pairs, speedup=speedup, load_error=error)


def _load_error(loads: Sequence[CertifyResult], prompt_ids: Sequence[str]) -> float:
    """Standard error of the mean over loads of the logarithm of their gains on these prompts."""
    kept = set(prompt_ids)
    gains = []
    for load in loads:
        others = {record.prompt_id for record in load.baseline.requests} - kept
        own = paired(load.baseline, load.candidate, left_out=others)
        gains.append(math.log(own.baseline.sum() / own.candidate.sum()))
    return max(float(np.std(gains, ddof=1)), LEAST_LOAD_SD) / math.sqrt(len(gains))


def _widened(interval: Interval, load_error: float, loads: int) -> Interval:
    """The interval with the variation from load to load in it."""
    prompts_error = interval.coefficient_of_variation / math.sqrt(interval.n)
    total = prompts_error**2 + load_error**2
    if total == 0:
        return interval
    freedom = total**2 / (prompts_error**4 / (interval.n - 1) + load_error**4 / (loads - 1))

    def limit(name: str, level: float) -> float:
        alone = abs(math.log(getattr(interval, name) / interval.estimate))
        plain = -float(stdtrit(interval.n - 1, level)) * prompts_error
        skewed = prompts_error * max(alone / plain, 1.0) if plain > 0 else 0.0
        width = min(-float(stdtrit(freedom, level)) * math.hypot(skewed, load_error), WIDEST)
        return interval.estimate * math.exp(width if name == "high" else -width)

    return replace(
        interval,
        low=limit("low", 0.025),
        high=limit("high", 0.025),
        one_sided_99_low=limit("one_sided_99_low", 0.01),
    )


def _drift_bias(load: CertifyResult, left_out: Collection[str]) -> float:
    """Most that a drifting machine can have added to the logarithm of a gain, or taken from it.

    Blocks of a few prompts leave no time to drift. Whole passes A B B A cancel a drift that is linear in time, and no
    other: a machine that slows during the last two passes only makes the candidate look faster. Let a be the last A
    over the first, b the second B over the first. While the machine only slows, or only speeds up, the first B ran as
    fast as the first A at one extreme, and the last A as fast as the second B at the other.
    """
    if load.loads != ONE_AT_A_TIME:
        return 0.0
    outer, inner = (_change(side, left_out) for side in (load.baseline, load.candidate))
    sums = (1 + outer, 1 + inner), (outer / inner + outer, 1 + outer)
    return max(abs(math.log(one / other)) for one, other in sums)


def _change(side: Measurement, left_out: Collection[str]) -> float:
    """The second pass's latencies over the first's; 1 where no prompt completed both."""
    middle = len(side.requests) // 2
    first, second = (replace(side, requests=part) for part in (side.requests[:middle], side.requests[middle:]))
    same = paired(first, second, left_out=left_out)
    return float(same.candidate.sum() / same.baseline.sum()) if same.prompt_ids else 1.0


def _moved_outwards(interval: Interval, bias: float) -> Interval:
    factor = math.exp(bias)
    return replace(
        interval,
        low=interval.low / factor,
        high=interval.high * factor,
        one_sided_99_low=interval.one_sided_99_low / factor,
    )
