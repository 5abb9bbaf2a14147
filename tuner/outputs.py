"""What the outputs themselves say: whether one went in circles, and whether two are the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.records import Measurement, RequestRecord

LONGEST_PERIOD = 64
"""Tokens. Loops of small models repeat a phrase or a sentence; none longer than this was seen."""

SHORTEST_LOOP = 24
"""Tokens that must repeat before a tail counts as a loop: a ruler of dashes or an indented block is shorter."""

REPEATS_OF_A_LOOP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How far a candidate's outputs are the baseline's.

    Attributes:
        pairs: Compared requests.
        share_identical: Of those; None when there is nothing to compare.
        divergences_per_1000_tokens: Diverged pairs per thousand tokens up to the first difference; None likewise.
    """

    pairs: int
    share_identical: float | None
    divergences_per_1000_tokens: float | None


def is_looping(token_ids: Sequence[int], *, hit_cap: bool, repetition_expected: bool) -> bool:
    """Whether an output ran into its cap while repeating itself.

    The rule: it hit the cap, its class does not expect repetition, and for some period p of at most 64 tokens its
    last max(24, 3p) tokens each equal the token p places before (the first p of them begin the loop).
    """
    if not hit_cap or repetition_expected:
        return False
    ids = np.asarray(token_ids, dtype=np.int64)
    periods = range(1, min(LONGEST_PERIOD, len(ids) - 1) + 1)
    return any(_periodic_tail(ids, period) >= max(SHORTEST_LOOP, REPEATS_OF_A_LOOP * period) for period in periods)


def _periodic_tail(ids: NDArray[np.int64], period: int) -> int:
    """Tokens at the end that repeat with this period, the first period included."""
    differs = np.flatnonzero(ids[period:] != ids[:-period])
    first_equal = int(differs[-1]) + 1 if len(differs) else 0
    return len(ids) - first_equal


def looping_prompts(
    baseline: Measurement, repetition_expected: Callable[[str], bool] = lambda _: False
) -> frozenset[str]:
    """Ids of prompts whose output from the target alone goes in circles; they are left out for every candidate.

    ``repetition_expected`` says of a prompt class whether its answers repeat by nature.
    """
    return frozenset(
        record.prompt_id
        for record in baseline.requests
        if record.is_complete
        and is_looping(
            record.token_ids,
            hit_cap=record.finish_reason == "length",
            repetition_expected=repetition_expected(record.prompt_class),
        )
    )


def identical_outputs(baseline: Measurement, candidate: Measurement) -> Agreement:
    """Compare each output of the candidate with the baseline's to the same prompt.

    Only completed requests whose token ids are known are compared. Under temperature 0 every pair should be
    identical; divergences are counted per thousand tokens up to the first difference of each pair.
    """
    expected = {record.prompt_id: record.token_ids for record in reversed(baseline.requests) if _has_ids(record)}
    pairs = [
        (expected[record.prompt_id], record.token_ids)
        for record in candidate.requests
        if _has_ids(record) and record.prompt_id in expected
    ]
    common = [common_prefix(left, right) for left, right in pairs]
    diverged = sum(left != right for left, right in pairs)
    if not pairs:
        return Agreement(pairs=0, share_identical=None, divergences_per_1000_tokens=None)
    return Agreement(
        pairs=len(pairs),
        share_identical=1 - diverged / len(pairs),
        divergences_per_1000_tokens=1000 * diverged / max(sum(common) + diverged, 1),
    )


def _has_ids(record: RequestRecord) -> bool:
    return record.is_complete and len(record.token_ids) == record.output_tokens


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Leading tokens that two outputs share."""
    unequal = (place for place, (one, other) in enumerate(zip(left, right, strict=False)) if one != other)
    return next(unequal, min(len(left), len(right)))
