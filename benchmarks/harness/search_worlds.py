"""Simulated machines, targets and drafts whose truth is known: what a search costs, and what its choice loses.

A world has drafts with acceptance traces of regime-switching hits, a verify curve, draft costs, and for every
configuration an error of its own. A search sees the replay of a sample of prompts; the truth is the population.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tuner.forecast import Candidate, Forecast, Key
from tuner.records import PromptTrace, Trace, TraceKind
from tuner.replay import ReplayedRounds, replay_all
from tuner.step_times import Step, guessed_step_times

Floats = NDArray[np.float64]

DRAFTED_TOKENS = range(1, 16)
POPULATION, SAMPLE = 500, 200
LONGEST_OUTPUT = 192

DRAFT_COST = (0.03, 0.25)
ROW_COST = (0.01, 0.05)
HIT_RATE = (0.3, 0.9)
CONFIGURATION_ERROR = 0.015
TIMING_ERROR = 0.01


@dataclass(frozen=True, kw_only=True, eq=False)
class Family:
    """How worlds are drawn.

    Attributes:
        kink: Least and most relative cost of crossing one width of the verify curve.
        acceptance_shift: Relative change of hit rates on the engine that replay does not see.
        drift: Most relative change of the machine's speed over ten evaluations, either way.
    """

    name: str
    drafts: int = 4
    kink: tuple[float, float] = (0.0, 0.0)
    acceptance_shift: float = 0.0
    drift: float = 0.0


WELL_SPECIFIED = Family(name="well_specified")
MISSPECIFIED = Family(name="misspecified", kink=(0.15, 0.30), acceptance_shift=-0.05, drift=0.05)
LARGE = Family(name="large", drafts=18)
FAMILIES = (WELL_SPECIFIED, MISSPECIFIED, LARGE)


@dataclass(frozen=True, kw_only=True, eq=False)
class World:
    """One truth.

    Attributes:
        speedups: True speed over no speculation, over the population.
        latencies: What the search's prompts take under each configuration, without timing noise; 1 is a plain round
            per output token.
        forecast: What is known before anything but the baseline was measured.
        drift_per_evaluation: Relative.
    """

    speedups: Mapping[Key, float]
    latencies: Mapping[Key, float]
    forecast: Forecast
    drift_per_evaluation: float

    @cached_property
    def best_speedup(self) -> float:
        """Of all configurations, no speculation among them."""
        return max(1.0, *self.speedups.values())

    def regret(self, key: Key | None) -> float:
        """Share of the best speed that a choice gives away; None is no speculation."""
        return 1 - self.true_speedup(key) / self.best_speedup

    def true_speedup(self, key: Key | None) -> float:
        """Of a configuration, or 1 for no speculation."""
        return 1.0 if key is None else self.speedups[key]

    def measured(self, key: Key, evaluation: int, rng: np.random.Generator) -> float:
        """The latency as a search measures it as its nth evaluation."""
        noise = rng.normal(0, TIMING_ERROR) + self.drift_per_evaluation * evaluation
        return self.latencies[key] * math.exp(noise)


def worlds(family: Family, count: int, seed: int = 0) -> Iterator[World]:
    """So many worlds of a family, the same for the same seed."""
    for index in range(count):
        yield make_world(family, np.random.default_rng([seed, index, len(family.name)]))


def make_world(family: Family, rng: np.random.Generator) -> World:
    """Draw one world."""
    lengths = np.clip(rng.lognormal(4.3, 0.6, POPULATION), 8, LONGEST_OUTPUT).astype(np.int64)
    row_ms = rng.uniform(*ROW_COST)
    passes = np.exp(rng.uniform(*np.log(DRAFT_COST), family.drafts))
    verify = _verify_curve(family, row_ms, rng)
    baseline = float((lengths[:SAMPLE] - 1).sum())
    speedups: dict[Key, float] = {}
    latencies: dict[Key, float] = {}
    candidates: list[Candidate] = []
    for index in range(family.drafts):
        name = f"draft-{index}"
        hits = _hits(rng, lengths)
        on_engine = hits & (rng.random(hits.shape) < 1 + family.acceptance_shift)
        seen = replay_all(_trace(name, hits[:SAMPLE], lengths[:SAMPLE]), DRAFTED_TOKENS)
        true = replay_all(_trace(name, on_engine, lengths), DRAFTED_TOKENS)
        own = np.exp(rng.normal(0, CONFIGURATION_ERROR, len(DRAFTED_TOKENS)))
        for tokens, before, after, error in zip(DRAFTED_TOKENS, seen, true, own, strict=True):
            key = (name, tokens)
            costs = (verify[: tokens + 1] + passes[index] * tokens) * error
            by_prompt = after.rounds_by_drafted @ costs
            speedups[key] = float((lengths - 1).sum() / by_prompt.sum())
            latencies[key] = float(by_prompt[:SAMPLE].sum()) / baseline
            candidates.append(_candidate(key, before, family.drafts, index, baseline))
    step_times = guessed_step_times(ROW_COST, {f"draft-{index}": DRAFT_COST for index in range(family.drafts)})
    return World(
        speedups=speedups,
        latencies=latencies,
        forecast=Forecast(candidates=tuple(candidates), step_times=step_times, baseline_value=1.0),
        drift_per_evaluation=rng.uniform(-family.drift, family.drift) / 10,
    )


def _verify_curve(family: Family, row: float, rng: np.random.Generator) -> Floats:
    """Time of a pass by its drafted rows 0 … 15, with a kink from one width on."""
    rows = np.arange(max(DRAFTED_TOKENS) + 1)
    kink_at, height = rng.integers(2, len(rows)), rng.uniform(*family.kink)
    curve: Floats = (1 + row * rows) * np.where(rows >= kink_at, 1 + height, 1.0)
    return curve


def _hits(rng: np.random.Generator, lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether a draft is right at each position: prompts differ, and each has easy and hard stretches."""
    mean, concentration = rng.uniform(*HIT_RATE), rng.uniform(15, 40)
    by_prompt = rng.beta(mean * concentration, (1 - mean) * concentration, len(lengths))
    gap, stay = rng.uniform(0.05, 0.25), rng.uniform(0.85, 0.97)
    hits = np.zeros((len(lengths), LONGEST_OUTPUT), dtype=np.bool_)
    is_easy = rng.random(len(lengths)) < 0.5
    for place in range(LONGEST_OUTPUT):
        hits[:, place] = rng.random(len(lengths)) < by_prompt + np.where(is_easy, gap, -gap)
        is_easy ^= rng.random(len(lengths)) > stay
    return hits


def _trace(name: str, hits: NDArray[np.bool_], lengths: NDArray[np.int64]) -> Trace:
    runs = np.zeros((hits.shape[0], hits.shape[1] + 1), dtype=np.int64)
    for place in range(hits.shape[1] - 1, -1, -1):
        runs[:, place] = np.where(hits[:, place], runs[:, place + 1] + 1, 0)
    left = lengths[:, None] - np.arange(runs.shape[1])
    matched = np.clip(np.minimum(runs, left), 0, max(DRAFTED_TOKENS))
    prompts = tuple(
        PromptTrace(
            prompt_id=str(index),
            prompt_class="all",
            max_output_tokens=2 * LONGEST_OUTPUT,  # answers stop by themselves, so proposals are never clipped
            proposed=(max(DRAFTED_TOKENS),) * int(length),
            matched=tuple(matched[index, :length].tolist()),
        )
        for index, length in enumerate(lengths)
    )
    return Trace(
        draft_name=name, max_drafted_tokens=max(DRAFTED_TOKENS), prompts=prompts, kind=TraceKind.TEACHER_FORCED
    )


def _candidate(key: Key, rounds: ReplayedRounds, drafts: int, index: int, baseline: float) -> Candidate:
    """A configuration as sums of the guessed steps: rows beyond the first, and passes of its draft."""
    weights = np.zeros(1 + drafts)
    total = float(rounds.rounds.sum())
    weights[0] = float(rounds.drafted.sum())
    weights[1 + index] = total * key[1]
    return Candidate(key=key, weights=weights, fixed_ms=total, unit=1 / baseline)


__all__ = ["FAMILIES", "LARGE", "MISSPECIFIED", "WELL_SPECIFIED", "Family", "Step", "World", "make_world", "worlds"]
