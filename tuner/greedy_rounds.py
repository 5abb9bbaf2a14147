"""Walks from round to round along outputs that are known, where what each round matches is known too."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tuner.positions import Counts, Positions


def walk(laid: Positions, drafted_tokens: Counts) -> tuple[Counts, Counts]:
    """Walk every (prompt, k) at once, one round of each at a time, until all are at the end of their output.

    A round at position s proposes j = min(proposed at s, k, cap − s − 1) tokens, since no more than the cap can be
    used, and m = min(matched at s, j) of them are right. It emits min(m + 1, N − s) tokens and accepts
    min(m, N − s): the last round is clipped to the end of the output.

    Args:
        laid: Proposals and matches.
        drafted_tokens: [ks].

    Returns:
        [ks, prompts, max k + 1], rounds that proposed exactly j tokens; [ks, prompts], accepted tokens.
    """
    ks, prompts, width = len(drafted_tokens), len(laid.lengths), int(drafted_tokens.max(initial=0)) + 1
    histogram = np.zeros(ks * prompts * width, dtype=np.int64)
    accepted = np.zeros(ks * prompts, dtype=np.int64)

    cell = np.arange(ks * prompts)  # (k, prompt) pairs that are still walking
    k, prompt = (side.ravel() for side in np.meshgrid(drafted_tokens, np.arange(prompts), indexing="ij"))
    place = laid.starts[prompt] + 1  # the first token comes from the prefill
    end, capped_end = laid.ends[prompt], laid.starts[prompt] + laid.caps[prompt]
    while True:
        walking = place < end
        if not walking.all():
            cell, k, place, end, capped_end = (one[walking] for one in (cell, k, place, end, capped_end))
        if not cell.size:
            break
        drafted = np.minimum(np.minimum(laid.proposed[place], k), capped_end - place - 1)
        right = np.minimum(laid.matched[place], drafted)
        histogram[cell * width + drafted] += 1  # each cell occurs once, so no count is lost
        accepted[cell] += np.minimum(right, end - place)
        place = place + right + 1
    return histogram.reshape(ks, prompts, width), accepted.reshape(ks, prompts)


def visited(laid: Positions, emitted: Counts) -> NDArray[np.bool_]:
    """[positions], where rounds start when one that starts at a position emits ``emitted`` tokens, at least one.

    Args:
        laid: Where outputs begin and end.
        emitted: [positions].
    """
    visits = np.zeros(len(emitted), dtype=np.bool_)
    place, end = laid.starts + 1, laid.ends
    while (walking := place < end).any():
        place, end = place[walking], end[walking]
        visits[place] = True
        place = place + emitted[place]
    return visits
