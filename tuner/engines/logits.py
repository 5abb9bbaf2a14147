"""What rows of logits say of given tokens: rank, probability, and how clear the choice was. Needs PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor

from tuner.errors import MeasurementError
from tuner.records import WORST_RANK, Sampling

# Rows whose logits are held at a time: 39 MB with a vocabulary of 152,000.
ROWS_AT_ONCE = 64
ABSENT = -1

ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFacts:
    """What a model says of one token in each row.

    Attributes:
        ranks: 0 for the most likely, at most ``WORST_RANK``; of equal logits the first has the better rank, as
            argmax takes it.
        probabilities: After temperature, top-k and top-p; empty where tokens are chosen greedily.
        top2_gaps: Largest logit minus the second, whatever the token.
    """

    ranks: tuple[int, ...]
    probabilities: tuple[float, ...]
    top2_gaps: tuple[float, ...]


def token_facts(
    states: Tensor,
    columns: Tensor,
    logits_of: Callable[[Tensor], Tensor],
    sampling: Sampling,
    *,
    are_chosen: bool = False,
) -> TokenFacts:
    """Facts of one token in each row, with only a few rows of logits in memory at a time.

    Args:
        states: Hidden states [rows, hidden].
        columns: Of the token of each row in its logits [rows]; ``ABSENT`` where it has none.
        logits_of: Makes logits [some rows, vocabulary] of states.
        sampling: Temperature, top-k and top-p.
        are_chosen: Whether this model chose the tokens. None of them has probability 0 then: one that these numerics
            put just outside top-k or top-p counts as it did before that cut.

    Raises:
        MeasurementError: Logits are NaN or infinite.
    """
    pieces = zip(torch.split(states, ROWS_AT_ONCE), torch.split(columns, ROWS_AT_ONCE), strict=True)
    parts = [_facts(logits_of(rows), own, sampling, are_chosen=are_chosen) for rows, own in pieces]
    return TokenFacts(
        ranks=_joined(part.ranks for part in parts),
        probabilities=_joined(part.probabilities for part in parts),
        top2_gaps=_joined(part.top2_gaps for part in parts),
    )


def _facts(logits: Tensor, columns: Tensor, sampling: Sampling, *, are_chosen: bool) -> TokenFacts:
    if not bool(torch.isfinite(logits).all()):
        raise MeasurementError("a model's logits are NaN or infinite", "check its weights and its dtype")
    first, second = logits.topk(2).values.unbind(1)
    probabilities: list[float] = []
    if sampling.temperature > 0:
        own = probabilities_of(logits, columns, sampling)
        uncut = probabilities_of(logits, columns, Sampling(temperature=sampling.temperature)) if are_chosen else own
        probabilities = torch.where(own > 0, own, uncut).tolist()
    return TokenFacts(
        ranks=tuple(ranks_of(logits, columns).tolist()),
        probabilities=tuple(probabilities),
        top2_gaps=tuple((first - second).tolist()),
    )


def _joined(parts: Iterable[tuple[ValueT, ...]]) -> tuple[ValueT, ...]:
    return tuple(chain.from_iterable(parts))


def runs_of_hits(ranks: Sequence[int], count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Proposed and matched tokens at each position of an output, of an autoregressive draft asked for ``count``.

    Its proposals are its most likely tokens, and those after the first are the same pass along the output as long as
    they were right: matches are runs of rank 0. Position 0 is the prefill's, where nothing is proposed.
    """
    matched = [0] * len(ranks)
    run = 0
    for position in range(len(ranks) - 1, 0, -1):
        run = run + 1 if ranks[position] == 0 else 0
        matched[position] = min(run, count)
    return (0,) * min(1, len(ranks)) + (count,) * (len(ranks) - 1), tuple(matched)


def ranks_of(logits: Tensor, columns: Tensor) -> Tensor:
    """How many logits of each row come before that of its column, at most ``WORST_RANK`` [rows]."""
    own = logits.gather(1, columns.clamp_min(0)[:, None])
    before = torch.arange(logits.shape[1], device=logits.device) < columns[:, None]
    ranks = ((logits > own) | ((logits == own) & before)).sum(1)
    return ranks.clamp_max(WORST_RANK).masked_fill(columns == ABSENT, WORST_RANK)


def probabilities_of(logits: Tensor, columns: Tensor, sampling: Sampling) -> Tensor:
    """Probability of one column in each row; 0 for what top-k or top-p leaves out, and for absent ones [rows]."""
    if sampling.top_k == 0 and sampling.top_p >= 1.0:  # no need to sort
        own = torch.softmax(logits / sampling.temperature, 1).gather(1, columns.clamp_min(0)[:, None])[:, 0]
        return own.masked_fill(columns == ABSENT, 0.0)
    probabilities, kept = distribution(logits, sampling)
    return (probabilities * (kept == columns[:, None])).sum(1)


def distribution(logits: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Probabilities and columns of what may be drawn, the most likely first [..., kept]; 0 for what may not.

    Temperature comes first, then the ``top_k`` most likely, then the smallest set whose probability reaches
    ``top_p``; the token that crosses ``top_p`` is kept.

    Args:
        logits: [..., vocabulary].
        sampling: With a temperature above 0.
    """
    vocabulary = logits.shape[-1]
    kept = min(sampling.top_k, vocabulary) if sampling.top_k > 0 else vocabulary
    ordered, columns = torch.topk(logits / sampling.temperature, kept)
    probabilities = torch.softmax(ordered, -1)
    if sampling.top_p < 1.0:
        outside = probabilities.cumsum(-1) - probabilities >= sampling.top_p
        outside[..., 0] = False
        probabilities = probabilities.masked_fill(outside, 0.0)
        probabilities = probabilities / probabilities.sum(-1, keepdim=True)
    return probabilities, columns
