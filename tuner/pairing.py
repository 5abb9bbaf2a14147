"""Two configurations compared prompt by prompt: four to eight times sharper than comparing their means."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tuner.intervals import Interval, ratio_interval
from tuner.metrics import LATENCIES, decoded_tokens
from tuner.records import Measurement, MeasureResult, RequestRecord


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pairs:
    """A latency of both sides by prompt, repeats averaged.

    Attributes:
        baseline: [prompts], ms.
        candidate: [prompts], ms, of the same prompts.
        failed: Prompts left out because a request of either side failed.
    """

    prompt_ids: tuple[str, ...]
    baseline: NDArray[np.float64]
    candidate: NDArray[np.float64]
    failed: tuple[str, ...]


def paired(
    baseline: Measurement, candidate: Measurement, metric: str = "e2e_ms", left_out: Collection[str] = ()
) -> Pairs:
    """Match the two sides by prompt.

    TPOT is weighted on both sides by the tokens of the baseline's answer, so that sums over prompts are times.
    """
    left, right = _by_prompt(baseline), _by_prompt(candidate)
    shared = [one for one in left if one in right and one not in left_out]
    failed = tuple(one for one in shared if not all(record.is_complete for record in left[one] + right[one]))
    rows = {
        one: (_mean(left[one], metric), _mean(right[one], metric), _weight(left[one], metric))
        for one in shared
        if one not in failed
    }
    whole = {one: (row[0] * row[2], row[1] * row[2]) for one, row in rows.items() if row[0] and row[1]}
    table = np.array(list(whole.values()), dtype=np.float64).reshape(-1, 2)
    return Pairs(prompt_ids=tuple(whole), baseline=table[:, 0], candidate=table[:, 1], failed=failed)


def _by_prompt(measurement: Measurement) -> dict[str, list[RequestRecord]]:
    found: dict[str, list[RequestRecord]] = {}
    for record in measurement.requests:
        found.setdefault(record.prompt_id, []).append(record)
    return found


def _mean(records: Sequence[RequestRecord], metric: str) -> float:
    """Mean over repeats; 0 where a request does not have the metric, so that the prompt is left out."""
    values = [LATENCIES[metric](record) for record in records]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else 0.0


def _weight(records: Sequence[RequestRecord], metric: str) -> float:
    return float(np.mean([decoded_tokens(record) for record in records])) if metric == "tpot_ms" else 1.0


def paired_speedup(
    baseline: Measurement,
    candidate: Measurement,
    metric: str = "e2e_ms",
    *,
    left_out: Collection[str] = (),
    seed: int = 0,
) -> Interval | None:
    """Σ latency of the baseline / Σ latency of the candidate over the prompts that both completed.

    Prompts in ``left_out`` are left out. None for fewer than three prompts.
    """
    pairs = paired(baseline, candidate, metric, left_out)
    return ratio_interval(pairs.baseline, pairs.candidate, seed)


def anchored_speedup(
    baseline: Measurement, result: MeasureResult, metric: str = "e2e_ms", *, left_out: Collection[str] = ()
) -> Interval | None:
    """Gain of a candidate measured in search over a baseline measured earlier, corrected by its anchor.

    The anchor shows how much slower or faster the machine is than at the baseline's time. Its own uncertainty is
    in the interval, unless it shares fewer than three prompts with the baseline. Without an anchor the machine is
    taken to be as it was. None for fewer than three prompts.
    """
    direct = paired_speedup(baseline, result.candidate, metric, left_out=left_out)
    if direct is None or result.anchor is None:
        return direct
    return _corrected(direct, result.anchor, baseline, metric, left_out)


def compared_speedup(
    one: MeasureResult,
    other: MeasureResult,
    baseline: Measurement,
    metric: str = "e2e_ms",
    *,
    left_out: Collection[str] = (),
    seed: int = 0,
) -> Interval | None:
    """Gain of one measurement of a search over another, each corrected by its anchor as in ``anchored_speedup``.

    None for fewer than three prompts.
    """
    gain = paired_speedup(other.candidate, one.candidate, metric, left_out=left_out, seed=seed)
    if gain is not None and one.anchor is not None:
        gain = _corrected(gain, one.anchor, baseline, metric, left_out)
    if gain is not None and other.anchor is not None:
        gain = _corrected(gain, baseline, other.anchor, metric, left_out)
    return gain


def _corrected(
    gain: Interval, slower: Measurement, faster: Measurement, metric: str, left_out: Collection[str]
) -> Interval:
    """The gain times Σ slower / Σ faster over the prompts of two runs of the same configuration, if there are any."""
    same = paired(slower, faster, metric, left_out)
    drift = ratio_interval(same.baseline, same.candidate, skewed=False)
    if drift is not None:
        return _product(gain, drift)
    return _scaled(gain, same.baseline.sum() / same.candidate.sum()) if same.prompt_ids else gain


def _scaled(interval: Interval, factor: float) -> Interval:
    return replace(
        interval,
        estimate=interval.estimate * factor,
        low=interval.low * factor,
        high=interval.high * factor,
        one_sided_99_low=interval.one_sided_99_low * factor,
    )


def _product(one: Interval, other: Interval) -> Interval:
    """The product of two independent ratios: widths on the logarithm's scale add in squares."""
    estimate = one.estimate * other.estimate

    def limit(name: str, sign: int) -> float:
        widths = (math.log(getattr(side, name) / side.estimate) for side in (one, other))
        return estimate * math.exp(sign * math.hypot(*widths))

    return Interval(
        estimate=estimate,
        low=limit("low", -1),
        high=limit("high", 1),
        one_sided_99_low=limit("one_sided_99_low", -1),
        n=one.n,
        coefficient_of_variation=math.hypot(
            one.coefficient_of_variation, other.coefficient_of_variation * math.sqrt(one.n / other.n)
        ),
        method=one.method,
    )
