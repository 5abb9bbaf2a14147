"""From acceptance to gain and back, for drafts that nobody has run yet.

A model, not a replay: every drafted token is right with the same probability α, whatever came before, and the draft
always proposes k tokens. A round then yields τ = 1 + α + … + α^k tokens, and with f the share of the latency that
comes before the first token,

    speed-up = 1 / (f + f_draft + (1 − f) · T(k) / (T(0) · τ)),  T(k) = target(k + 1) + draft(k)

where target(k + 1) is a round of no speculation and what verifying k more tokens adds to it. Real drafts are better on
some text than on other; at the same mean acceptance that gives other τ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from tuner.errors import ConfigurationError

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCosts:
    """What rounds take with one draft, on one workload.

    Attributes:
        target_ms: A round without drafting that verifies 1, 2, … rows; the first is one of no speculation.
        draft_ms: Proposing 1, 2, … tokens.
        first_token_share: Of no speculation's end-to-end latency, before the first token.
        draft_prefill_share: Of the same latency, added by the draft reading the prompt.
    """

    target_ms: tuple[float, ...]
    draft_ms: tuple[float, ...]
    first_token_share: float = 0.0
    draft_prefill_share: float = 0.0

    @property
    def most_drafted_tokens(self) -> int:
        """Largest k of which both steps are known."""
        return min(len(self.target_ms) - 1, len(self.draft_ms))

    @property
    def cost_share(self) -> float:
        """One drafted token over one round of no speculation, at the largest k."""
        most = self.most_drafted_tokens
        return self.draft_ms[most - 1] / most / self.target_ms[0]

    @property
    def round_ms(self) -> tuple[float, ...]:
        """T(k), by k from 0 on."""
        drafting = (0.0, *self.draft_ms)
        return tuple(self.target_ms[k] + drafting[k] for k in range(self.most_drafted_tokens + 1))

    def latency_ratio(self, decode_ratio: float) -> float:
        """End-to-end latency over that of no speculation, where the rounds together take that share of its rounds."""
        return self.first_token_share + self.draft_prefill_share + (1 - self.first_token_share) * decode_ratio

    def speedups(self, acceptance: float) -> Floats:
        """End-to-end gain over no speculation at that acceptance: [k], from k = 1 on."""
        alone, *rounds = self.round_ms
        tokens = (tokens_per_round(acceptance, k + 1) for k in range(len(rounds)))
        taken = zip(rounds, tokens, strict=True)
        return np.array([1 / self.latency_ratio(round_ms / (alone * yields)) for round_ms, yields in taken])


def tokens_per_round(acceptance: float, drafted_tokens: int) -> float:
    """τ = 1 + α + … + α^k."""
    return float(np.sum(acceptance ** np.arange(drafted_tokens + 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """What a speed-up takes.

    Attributes:
        acceptance: Smallest α that reaches it with the best k; None where not even 1 does.
        drafted_tokens: The best k at that α.
    """

    speedup: float
    acceptance: float | None
    drafted_tokens: int | None


def required_acceptance(costs: RoundCosts, speedup: float) -> Requirement:
    """The smallest acceptance at which the best k is that much faster than no speculation.

    More acceptance never makes any k slower, so the best gain rises with α and crosses the wanted one once.

    Raises:
        ConfigurationError: The speed-up is below 1, or no number.
    """
    if not (math.isfinite(speedup) and speedup >= 1):
        raise ConfigurationError(f"a speed-up of {speedup} is none", "give 1 or more, e.g. 1.5")

    def missing(acceptance: float) -> float:
        return speedup - float(costs.speedups(acceptance).max())

    if missing(1.0) > 0:
        return Requirement(speedup=speedup, acceptance=None, drafted_tokens=None)
    least = 0.0 if missing(0.0) <= 0 else float(brentq(missing, 0.0, 1.0))
    return Requirement(speedup=speedup, acceptance=least, drafted_tokens=int(costs.speedups(least).argmax()) + 1)


def equivalent_acceptance(mean_acceptance_length: float, drafted_tokens: int) -> float:
    """The α whose rounds of k drafted tokens yield that many tokens: tokens_per_round, turned round.

    Args:
        mean_acceptance_length: τ; what lies outside 1 … k + 1 is taken for the nearer end.
        drafted_tokens: k, at least 1.
    """
    if mean_acceptance_length <= 1:
        return 0.0
    if mean_acceptance_length >= drafted_tokens + 1:
        return 1.0
    return float(brentq(lambda one: tokens_per_round(one, drafted_tokens) - mean_acceptance_length, 0.0, 1.0))
