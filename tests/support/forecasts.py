"""Forecasts of drafts whose chance to be right is the same everywhere, so that every figure is known in closed form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from tuner.forecast import Candidate, Forecast, Key
from tuner.samplers import DRAFT, TOKENS
from tuner.search_space import NO_DRAFT
from tuner.step_times import Step, StepTimes

OUTPUT_TOKENS = 1000
PLAIN_ROUND_MS = 20.0
BASELINE_MS = OUTPUT_TOKENS * PLAIN_ROUND_MS


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What is true, and what is believed, of drafts whose tokens are right by a chance of their own.

    Attributes:
        hit_rates: By draft.
        pass_ms: Believed time of one pass of each draft.
        row_ms: Believed time of one more row in the target's pass.
        sd: Of the logarithm of every belief.
        true_ms: Of a row, and of each draft's pass by its name, where they are not as believed.
    """

    hit_rates: Mapping[str, float]
    pass_ms: Mapping[str, float]
    row_ms: float = 0.5
    sd: float = 0.3
    most_tokens: int = 6
    true_ms: Mapping[str, float] = field(default_factory=dict)

    @property
    def keys(self) -> list[Key]:
        """Every configuration with speculation."""
        return [(name, tokens) for name in self.hit_rates for tokens in range(1, self.most_tokens + 1)]

    @property
    def space(self) -> dict[str, BaseDistribution]:
        """As Optuna knows it."""
        return {
            DRAFT: CategoricalDistribution((NO_DRAFT, *self.hit_rates)),
            TOKENS: IntDistribution(1, self.most_tokens),
        }

    def rounds(self, key: Key) -> float:
        """Rounds that the outputs take: tokens over the mean acceptance length."""
        rate, tokens = self.hit_rates[key[0]], key[1]
        return OUTPUT_TOKENS / sum(rate**place for place in range(tokens + 1))

    def weights(self, key: Key) -> np.ndarray:
        """How often each step occurs: rows, then the passes of each draft."""
        of_passes = [float(name == key[0]) for name in self.hit_rates]
        return self.rounds(key) * key[1] * np.array([1.0, *of_passes])

    def latency_ms(self, key: Key, *, believed: bool = False) -> float:
        """What a configuration takes, in truth or as believed before anything was measured."""
        true = {} if believed else self.true_ms
        steps = [true.get("row", self.row_ms), *(true.get(name, self.pass_ms[name]) for name in self.hit_rates)]
        return self.rounds(key) * PLAIN_ROUND_MS + float(self.weights(key) @ steps)

    def speedup(self, key: Key | None, *, believed: bool = False) -> float:
        """Over no speculation; of no speculation itself where the key is None."""
        return 1.0 if key is None else BASELINE_MS / self.latency_ms(key, believed=believed)

    def forecast(self, *drafts: str, is_rate: bool = False) -> Forecast:
        """Of these drafts, or of all."""
        steps = (Step("row", "", 1), *(Step("pass", name, 1) for name in self.hit_rates))
        beliefs = np.log([self.row_ms, *(self.pass_ms[name] for name in self.hit_rates)])
        made = Forecast(
            candidates=tuple(
                Candidate(key=key, weights=self.weights(key), fixed_ms=self.rounds(key) * PLAIN_ROUND_MS, unit=1.0)
                for key in self.keys
                if key[0] in (drafts or self.hit_rates)
            ),
            step_times=StepTimes(steps=steps, log_ms=beliefs, covariance=np.eye(len(steps)) * self.sd**2),
            baseline_value=BASELINE_MS,
            widths_are_timed=True,
        )
        if not is_rate:
            return made
        tokens_per_s = 1000.0 * OUTPUT_TOKENS
        as_rates = tuple(replace(one, unit=tokens_per_s) for one in made.candidates)
        return replace(made, candidates=as_rates, baseline_value=tokens_per_s / BASELINE_MS, is_rate=True)
