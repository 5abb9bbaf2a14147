"""Simulated prompts: how long their answers are, and in how many rounds a draft gets through them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

NORMAL_975 = 1.959964
"""Quantile of the normal distribution."""

FEWEST_TOKENS = 2
"""An answer of one token has no round, and says nothing of a draft."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """What became of each prompt. All arrays are [prompts].

    Attributes:
        decoded: Output tokens after the first, N − 1.
        rounds: Rounds that emitted them.
        squares: Σ over rounds of (tokens emitted)²: what an interval over rounds would be made from.
    """

    decoded: Floats
    rounds: Floats
    squares: Floats

    def __len__(self) -> int:
        return len(self.decoded)

    def __getitem__(self, chosen: slice | NDArray[np.int64]) -> Prompts:
        return Prompts(decoded=self.decoded[chosen], rounds=self.rounds[chosen], squares=self.squares[chosen])


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLaw:
    """The distribution that prompts are drawn from.

    Lengths are lognormal and cut at the cap, as a workload cuts them. Each prompt has an acceptance of its own from a
    beta distribution; within it the tokens of a draft are right independently of each other.

    Attributes:
        acceptance: Mean over prompts of the probability that the draft's next token is right.
        concentration: α + β of the beta distribution; smaller spreads prompts wider.
        drafted_tokens: k.
    """

    acceptance: float
    concentration: float
    drafted_tokens: int
    median_tokens: float = 120.0
    length_sigma: float = 1.0
    cap: int = 512

    def draw(self, generator: np.random.Generator, count: int) -> Prompts:
        """So many prompts, each with its answer and its rounds."""
        lengths = generator.lognormal(np.log(self.median_tokens), self.length_sigma, count)
        decoded = np.clip(np.rint(lengths), FEWEST_TOKENS, self.cap).astype(np.int64) - 1
        hits, misses = self.acceptance * self.concentration, (1 - self.acceptance) * self.concentration
        rounds, squares = walk(generator, decoded, generator.beta(hits, misses, count), self.drafted_tokens)
        return Prompts(decoded=decoded.astype(np.float64), rounds=rounds, squares=squares)


def walk(
    generator: np.random.Generator, decoded: NDArray[np.int64], acceptance: Floats, drafted_tokens: int
) -> tuple[Floats, Floats]:
    """Emit every answer round by round: min(run of right tokens, k) + 1 tokens each, the last cut at the end.

    ``decoded`` are the tokens to emit and ``acceptance``, below 1, the probability that the next drafted one is
    right; both are [prompts]. Returned are the rounds and Σ emitted² of each prompt.
    """
    rounds, squares = np.zeros(len(decoded)), np.zeros(len(decoded))
    decay = -np.log(np.maximum(acceptance, np.finfo(np.float64).tiny))
    places, left = np.arange(len(decoded)), decoded.copy()
    while len(places):
        # The whole part of exponential / -log(a) is geometric: at least n with probability a to the n.
        run = np.minimum(generator.standard_exponential(len(places)) / decay[places], drafted_tokens)
        emitted = np.minimum(run.astype(np.int64) + 1, left)
        rounds[places] += 1
        squares[places] += emitted**2
        left = left - emitted
        places, left = places[left > 0], left[left > 0]
    return rounds, squares


def half_width_over_rounds(prompts: Prompts) -> float:
    """The wrong way to a 95 % interval of τ: every round an independent draw of how many tokens it emits.

    On the logarithm's scale. A ratio of latencies inherits it, since rounds are all that differs between its sides.
    """
    rounds = prompts.rounds.sum()
    mean = prompts.decoded.sum() / rounds
    variance = prompts.squares.sum() / rounds - mean**2
    return float(NORMAL_975 * np.sqrt(variance / rounds) / mean)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long answers take with and without the draft, in units of a plain round.

    Attributes:
        round_cost: A round with its drafting over a plain one.
        first_token: Time to the first token without the draft.
        first_token_cost: The same with the draft's own prefill, over the one without.
        noise: Standard deviation of a request's time, relative.
        hiccup_share: Requests during which the machine was busy with something else.
        hiccup: How many times as long those take.
    """

    round_cost: float
    first_token: float = 8.0
    first_token_cost: float = 1.1
    noise: float = 0.03
    hiccup_share: float = 0.0
    hiccup: float = 1.5

    def plain(self, prompts: Prompts) -> Floats:
        """Latency of each prompt without speculation, without noise."""
        return self.first_token + prompts.decoded

    def speculated(self, prompts: Prompts) -> Floats:
        """Latency of each prompt with the draft, without noise."""
        return self.first_token * self.first_token_cost + prompts.rounds * self.round_cost

    def noises(self, generator: np.random.Generator, count: int) -> Floats:
        """Factors on the time of requests, the same for both sides on average."""
        hiccups = np.where(generator.random(count) < self.hiccup_share, self.hiccup, 1.0)
        return generator.lognormal(0.0, self.noise, count) * hiccups

    def gain(self, prompts: Prompts) -> float:
        """Σ latency without / Σ latency with the draft: over a whole population, the true gain."""
        return float(self.plain(prompts).sum() / self.speculated(prompts).sum())


def round_cost_for(gain: float, population: Prompts, timing: Timing) -> float:
    """The cost of a round at which the draft's true gain over the whole population is exactly this."""
    first_token = timing.first_token * timing.first_token_cost
    return float((timing.plain(population).mean() / gain - first_token) / population.rounds.mean())
