"""What the outputs themselves say: whether one went in circles, whether two are the same, and why not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tuner.records import CertifyResult, Divergence, Measurement, RequestRecord

LONGEST_PERIOD = 64
"""Tokens. Loops of small models repeat a phrase or a sentence; none longer than this was seen."""

SHORTEST_LOOP = 24
"""Tokens that must repeat before a tail counts as a loop: a ruler of dashes or an indented block is shorter."""

REPEATS_OF_A_LOOP = 3

LOGIT_NOISE = 0.001
"""Ten times the largest difference of a logit between one row alone and the same among 2 to 13: SmolLM2-135M on the
engine cpu, 1.3e-4 with fp16 weights and 8e-5 with fp32. About one greedy choice in fifteen hundred is closer."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Losslessness:
    """What lies behind outputs that differ although both sides always took the target's most likely token.

    Attributes:
        is_promised: Whether the engine's numerics promise identical outputs; else nothing is held against it.
        near_ties: Divergences where the two best tokens lie as close as the numerics' noise: either may be taken.
        bugs: Divergences where the target's choice was clear, those of the clearest first.
        unexplained: Divergences whose logits are not known.
    """

    is_promised: bool = True
    near_ties: int = 0
    bugs: tuple[Divergence, ...] = ()
    unexplained: int = 0


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
    pairs = _pairs(baseline, candidate)
    common = [common_prefix(left, right) for _, left, right in pairs]
    diverged = sum(left != right for _, left, right in pairs)
    if not pairs:
        return Agreement(pairs=0, share_identical=None, divergences_per_1000_tokens=None)
    return Agreement(
        pairs=len(pairs),
        share_identical=1 - diverged / len(pairs),
        divergences_per_1000_tokens=1000 * diverged / max(sum(common) + diverged, 1),
    )


def divergences(baseline: Measurement, candidate: Measurement) -> dict[Divergence, tuple[int, ...]]:
    """Where outputs of the candidate first differ from the baseline's, and the tokens up to and with that place.

    The same pairs are compared as in ``identical_outputs``. The last token of a path is one of the two that differ,
    or the only one where an output is the beginning of the other. Gaps are not known yet.
    """
    found: dict[Divergence, tuple[int, ...]] = {}
    for prompt_id, left, right in _pairs(baseline, candidate):
        if left != right:
            position = common_prefix(left, right)
            longer = max(left, right, key=len)
            found[Divergence(prompt_id=prompt_id, position=position)] = longer[: position + 1]
    return found


def _pairs(baseline: Measurement, candidate: Measurement) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """Prompt, output of the baseline and of the candidate."""
    expected = {record.prompt_id: record.token_ids for record in reversed(baseline.requests) if _has_ids(record)}
    return [
        (record.prompt_id, expected[record.prompt_id], record.token_ids)
        for record in candidate.requests
        if _has_ids(record) and record.prompt_id in expected
    ]


def _has_ids(record: RequestRecord) -> bool:
    return record.is_complete and len(record.token_ids) == record.output_tokens


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Leading tokens that two outputs share."""
    unequal = (place for place, (one, other) in enumerate(zip(left, right, strict=False)) if one != other)
    return next(unequal, min(len(left), len(right)))


def losslessness(loads: Sequence[CertifyResult], noise: float = LOGIT_NOISE) -> Losslessness | None:
    """Tell near-ties from bugs where greedy outputs of a certification differ; None where tokens were sampled.

    Args:
        loads: Certifications of one candidate; the same divergence in several of them counts once.
        noise: Gap of two logits that the numerics alone may turn round.
    """
    if any(load.sampling.temperature > 0 for load in loads):
        return None
    gaps = {(one.prompt_id, one.position): one.gap for load in loads for one in load.divergences}
    found = {one for load in loads for one in divergences(load.baseline, load.candidate)}
    looked_at = [replace(one, gap=gaps.get((one.prompt_id, one.position))) for one in found]
    known = [(gap, one) for one in looked_at if (gap := one.gap) is not None and not math.isnan(gap)]
    clear = [one for gap, one in sorted(known, key=lambda pair: (-pair[0], pair[1].prompt_id)) if gap > noise]
    sides = [side.environment for load in loads for side in (load.baseline, load.candidate)]
    is_promised = all(environment.get("lossless") != "no" for environment in sides)
    return Losslessness(
        is_promised=is_promised,
        near_ties=len(known) - len(clear),
        bugs=tuple(clear) if is_promised else (),
        unexplained=len(found) - len(known) + (0 if is_promised else len(clear)),
    )
