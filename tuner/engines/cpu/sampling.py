"""Choosing the target's next tokens, and how many drafted ones they confirm.

Drafts propose their most likely token, so the draft's distribution is a point and rejection sampling takes its
simplest exact form: draw y from the target's distribution p; the drafted x is accepted if y = x, which happens with
probability min(1, p(x) / q(x)) = p(x); otherwise y itself is the output, distributed as p without x, the residual.
Each output position uses one random number, whatever was drafted, so that a request gives the same tokens under every
draft, and acceptance can be replayed along the sampled output.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from tuner.engines.logits import distribution
from tuner.records import Sampling

# The target's next token, from one row of logits [vocabulary].
Chooser = Callable[[Tensor], int]


def chooser(sampling: Sampling) -> Chooser:
    """Greedy at temperature 0, otherwise a sampler with the request's own random numbers."""
    return _most_likely if sampling.temperature == 0 else Sampler(sampling)


def _most_likely(logits: Tensor) -> int:
    return int(logits.argmax())


class Sampler:
    """Draws tokens by the inverse of the cumulative distribution, one random number for each."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._random = np.random.default_rng(sampling.seed)

    def __call__(self, logits: Tensor) -> int:
        """The next token of one row of logits [vocabulary]."""
        probabilities, token_ids = distribution(logits, self._sampling)
        cumulative = probabilities.double().cumsum(0)
        drawn = self._random.random() * float(cumulative[-1])
        last = int((probabilities > 0).sum()) - 1
        return int(token_ids[min(int(torch.searchsorted(cumulative, drawn, right=True)), last)])


def confirm(drafted: Sequence[int], logits: Tensor, choose: Chooser, ends: Collection[int]) -> list[int]:
    """Output tokens of one round: confirmed drafts, then the target's own token.

    Stops after a token of ``ends``, wherever in the round it stands.

    Args:
        drafted: What was proposed.
        logits: Of the target after the last token and after each drafted one [drafted + 1, vocabulary].
        choose: The request's way of choosing.
        ends: Tokens that end the output.
    """
    output: list[int] = []
    for row in range(len(drafted) + 1):
        token = choose(logits[row])
        output.append(token)
        if row == len(drafted) or token != drafted[row] or token in ends:
            break
    return output


def num_accepted(drafted: Sequence[int], output: Sequence[int]) -> int:
    """Drafted tokens among the output of their round."""
    return sum(a == b for a, b in zip(drafted, output, strict=False))
