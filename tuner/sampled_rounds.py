"""Expected rounds where the target samples and the draft samples too.

Given the sampled output, the draft's token at t, had one been drafted there, was accepted with probability
a_t = min(1, q(x_t) / p(x_t)), independently of the other positions (p and q after all logit processors).
"""

from __future__ import annotations

import numpy as np

from tuner.positions import Counts, Floats


def expect(acceptance: Floats, lengths: Counts, caps: Counts, drafted_tokens: Counts) -> tuple[Floats, Floats]:
    """Expected values, over the acceptance draws, of what ``greedy_rounds.walk`` counts.

    Everything follows from v(t), the probability that a round starts at t. Token t < cap − 1 was an accepted draft
    just when no round starts at t + 1, so the accepted tokens are Σ (1 − v(t + 1)), and the rounds Σ v(t), t < N.

    Args:
        acceptance: [prompts, positions]; entry 0 and those beyond an output are not used.
        lengths: [prompts], N.
        caps: [prompts].
        drafted_tokens: [ks].

    Returns:
        [ks, prompts, max k + 1], expected rounds that proposed exactly j tokens; [ks, prompts], accepted tokens.
    """
    most = int(drafted_tokens.max(initial=0))
    histogram = np.zeros((len(drafted_tokens), len(lengths), most + 1))
    accepted = np.zeros((len(drafted_tokens), len(lengths)))
    along = np.ascontiguousarray(acceptance.T)
    everything_right = np.ones_like(along)  # [positions, prompts], Π a over the k + 1 positions up to t
    for k in range(most + 1):
        everything_right[:k] = 0.0
        everything_right[k:] *= along[: max(len(along) - k, 0)]
        for row in np.flatnonzero(drafted_tokens == k):
            starts = _round_starts(along, everything_right, k)
            histogram[row], accepted[row] = _counts(starts, lengths, caps, k, most)
    return histogram, accepted


def _round_starts(along: Floats, everything_right: Floats, k: int) -> Floats:
    """[positions + 1, prompts], v(t).

    A round starts at t when the draft was wrong at t − 1, or when one started at t − k − 1 and all its k were right,
    so that t − 1 was the target's own; what the draft had said there does not matter, and may be counted as drawn:
    v(t) = 1 − a(t − 1) + v(t − k − 1) · a(t − k − 1) ⋯ a(t − 1). It reaches back k + 1 steps: as many go at once.
    """
    starts = np.ones((len(along) + 1, along.shape[1]))
    starts[2:] -= along[1:]
    for first in range(k + 2, len(starts), k + 1):
        last = min(first + k + 1, len(starts))
        starts[first:last] += starts[first - k - 1 : last - k - 1] * everything_right[first - 1 : last - 1]
    return starts


def _counts(starts: Floats, lengths: Counts, caps: Counts, k: int, most: int) -> tuple[Floats, Floats]:
    """[prompts, most + 1] and [prompts] of one k.

    Rounds propose k tokens but for those that start so near the cap that j < k fit: at s = cap − 1 − j.
    """
    prompts = np.arange(len(lengths))
    position = np.arange(len(starts))[:, None]
    begun = np.where((position >= 1) & (position < lengths), starts, 0.0)
    histogram = np.zeros((len(lengths), most + 1))
    near_cap = caps[:, None] - 1 - np.arange(k)  # [prompts, k]
    inside = (near_cap >= 1) & (near_cap < lengths[:, None])
    histogram[:, :k] = np.where(inside, begun[np.where(inside, near_cap, 0), prompts[:, None]], 0.0)
    rounds = begun.sum(axis=0)
    histogram[:, k] = np.maximum(rounds - histogram.sum(axis=1), 0.0)
    # The last token is no accepted draft where a round would start after it, nor where the cap kept it from drafting.
    last = np.where(lengths < caps, starts[lengths, prompts], 1.0)
    return histogram, np.where(lengths > 1, np.maximum(lengths - rounds - last, 0.0), 0.0)
