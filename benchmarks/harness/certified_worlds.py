"""Simulated worlds in which the truth is known: what speculation gains there, and what the product says of it.

A world's prompts are drawn from a population whose every member is known, so its true gain is a ratio of two sums.
Certification is ``tuner.measure``'s on a simulated clock, the verdict is ``tuner.decide``'s.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product

import numpy as np

from tuner.intervals import Interval, ratio_interval
from tuner.measure import MeasureLimits, measure, measure_blocks
from tuner.records import CertifyResult, Prompt

from .population import Floats, PromptLaw, Prompts, Timing, round_cost_for
from .simulated_machine import Answer, DriftingMachine, SimulatedLoad

POPULATION = 10_000
"""Prompts that a world draws from, with repetition, so that its truth is no estimate."""

DRAFTS = ((0.45, 8.0), (0.6, 12.0), (0.75, 16.0), (0.85, 12.0))
"""Mean acceptance over prompts, and concentration: single prompts spread around it as in real traces."""

DRAFTED_TOKENS = range(1, 16)
MEDIAN_TOKENS, CAP = 60.0, 256

ROUND_S = 0.02
NOISE, HICCUP_SHARE = 0.03, 0.02

SLOWDOWNS = (1.1, 1.3)
"""How many times as long work takes in the second half of a measurement: from and to."""

DRAFT_COSTS, ROW_COSTS = (0.03, 0.25), (0.01, 0.05)
"""Of a drafted token and of a further verified row, over a plain round. Draft costs are uniform in the logarithm."""

LOOKUP_SHARE, LOOKUP_COST = 0.2, 0.002
"""Of drafts that never hit those that are a lookup, which costs next to nothing."""

LARGEST_LOSS = 0.05
POWER_GAIN = 1.05

POWER_DRAFT = 2 * len(DRAFTED_TOKENS) + 2
"""The third draft at k = 3."""

NOISES_PER_PROMPT = 10
"""Draws of noise for each prompt of the population: hiccups are rare, and weigh much in a spread."""

SEARCH_PROMPTS = 24
LOAD_ERROR = 0.02
"""By which one load's speed differs from another's in a search, after correction by the anchor."""


class Order(StrEnum):
    """How baseline and candidate take turns."""

    BLOCKS = "blocks"
    """A few prompts at a time, where both engines fit beside each other."""
    PASSES = "passes"
    """Baseline, candidate twice, baseline, each over all prompts, where one engine fits."""
    CANDIDATE_FIRST = "candidate_first"
    """The candidate over all prompts, then the baseline: the wrong way, for comparison."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A draft at one k: what it does on every prompt there is, and what its rounds cost."""

    drafted_tokens: int
    population: Prompts
    timing: Timing

    @property
    def true_gain(self) -> float:
        """Σ latency without over Σ latency with the draft, over the whole population."""
        return self.timing.gain(self.population)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What is true, and what a search made of it.

    Attributes:
        slowdown: How many times as long work takes in the end.
        is_gradual: Whether the machine slows evenly over the second half, or at once in the middle.
        searched: The candidate's gain as the search that chose it measured it; None where nothing was chosen.
    """

    candidate: Configuration
    slowdown: float
    is_gradual: bool
    searched: Interval | None = None


def draft_populations(seed: int, count: int = POPULATION) -> list[tuple[int, Prompts]]:
    """Each draft at each k on the same prompts: k and what became of them."""
    return [(law.drafted_tokens, law.draw(np.random.default_rng(seed), count)) for law in _laws()]


def _laws() -> Iterator[PromptLaw]:
    for (acceptance, concentration), drafted_tokens in product(DRAFTS, DRAFTED_TOKENS):
        yield PromptLaw(
            acceptance=acceptance,
            concentration=concentration,
            drafted_tokens=drafted_tokens,
            median_tokens=MEDIAN_TOKENS,
            cap=CAP,
        )


def with_gain(gain: float, drafted_tokens: int, population: Prompts) -> Configuration:
    """A configuration whose rounds cost so much that its true gain is this, e.g. 1.05."""
    timing = _timing(round_cost_for(gain, population, _timing(1.0)))
    return Configuration(drafted_tokens=drafted_tokens, population=population, timing=timing)


def _timing(round_cost: float, first_token_cost: float = 1.1) -> Timing:
    return Timing(round_cost=round_cost, first_token_cost=first_token_cost, noise=NOISE, hiccup_share=HICCUP_SHARE)


def never_hits(generator: np.random.Generator, drafts: Sequence[tuple[int, Prompts]]) -> World:
    """Nothing that the draft proposes is right: every round emits one token, and costs more than a plain one."""
    drafted_tokens, prompts = drafts[generator.integers(len(drafts))]
    missed = Prompts(decoded=prompts.decoded, rounds=prompts.decoded, squares=prompts.decoded)
    if generator.random() < LOOKUP_SHARE:
        timing = _timing(1 + LOOKUP_COST, first_token_cost=1.0)
    else:
        draft_cost = math.exp(generator.uniform(*map(math.log, DRAFT_COSTS)))
        timing = _timing(1 + drafted_tokens * (draft_cost + generator.uniform(*ROW_COSTS)))
    return _drifting(generator, Configuration(drafted_tokens=drafted_tokens, population=missed, timing=timing))


def loses(generator: np.random.Generator, drafts: Sequence[tuple[int, Prompts]]) -> World:
    """The draft hits, and what it costs eats that up: the true gain lies between -5 and 0 %."""
    drafted_tokens, prompts = drafts[generator.integers(len(drafts))]
    return _drifting(generator, with_gain(1 - generator.uniform(0, LARGEST_LOSS), drafted_tokens, prompts))


def best_of_sixty(generator: np.random.Generator, drafts: Sequence[tuple[int, Prompts]]) -> World:
    """No configuration gains anything; the one that looked best on the search's prompts is the candidate."""
    chosen = generator.integers(len(drafts[0][1]), size=SEARCH_PROMPTS)
    configurations = [with_gain(1.0, drafted_tokens, prompts) for drafted_tokens, prompts in drafts]
    baseline = _search(generator, configurations[0].timing.plain(configurations[0].population[chosen]))
    measured = [_search(generator, one.timing.speculated(one.population[chosen])) for one in configurations]
    best = min(range(len(measured)), key=lambda number: measured[number].sum())
    searched = ratio_interval(baseline, measured[best], int(generator.integers(2**31)))
    return _drifting(generator, configurations[best], searched)


def _search(generator: np.random.Generator, latencies: Floats) -> Floats:
    """Latencies as one load of a search measures them."""
    noises = _timing(1.0).noises(generator, len(latencies))
    return latencies * noises * generator.lognormal(0.0, LOAD_ERROR)


def gains_five_percent(generator: np.random.Generator, drafts: Sequence[tuple[int, Prompts]]) -> World:
    """The draft of middling acceptance at k = 3 truly gains 5 %."""
    return _drifting(generator, with_gain(POWER_GAIN, *drafts[POWER_DRAFT]))


def _drifting(generator: np.random.Generator, candidate: Configuration, searched: Interval | None = None) -> World:
    slowdown, is_gradual = float(generator.uniform(*SLOWDOWNS)), bool(generator.random() < 0.5)
    return World(candidate=candidate, slowdown=slowdown, is_gradual=is_gradual, searched=searched)


def spread(configuration: Configuration, generator: np.random.Generator) -> float:
    """Coefficient of variation of the paired gain over the whole population, noise included."""
    timing, population = configuration.timing, configuration.population
    prompts = population[np.tile(np.arange(len(population)), NOISES_PER_PROMPT)]
    sides = [
        side * timing.noises(generator, len(prompts)) for side in (timing.plain(prompts), timing.speculated(prompts))
    ]
    interval = ratio_interval(*sides, skewed=False)
    assert interval is not None  # thousands of prompts
    return interval.coefficient_of_variation


def certify(world: World, generator: np.random.Generator, *, prompts: int, order: Order) -> CertifyResult:
    """Measure both sides on prompts that no search has seen, as the product does where ``order`` is its own."""
    candidate = world.candidate
    chosen = candidate.population[generator.integers(len(candidate.population), size=prompts)]
    timing = candidate.timing
    passes = 2 if order is Order.PASSES else 1
    work = passes * float(timing.plain(chosen).sum() + timing.speculated(chosen).sum())
    machine = DriftingMachine(total_s=work * ROUND_S, slowdown=world.slowdown, is_gradual=world.is_gradual)
    plain = SimulatedLoad(
        machine=machine,
        noises=_noises(timing, generator),
        answers=_answers(chosen, chosen.decoded, timing.first_token, 1.0),
    )
    speculating = SimulatedLoad(
        machine=machine,
        noises=_noises(timing, generator),
        answers=_answers(chosen, chosen.rounds, timing.first_token * timing.first_token_cost, timing.round_cost),
        drafted_tokens=candidate.drafted_tokens,
    )
    return _take_turns(plain, speculating, order)


def _answers(chosen: Prompts, rounds: Floats, first_token: float, round_cost: float) -> dict[str, Answer]:
    pairs = zip(chosen.decoded.tolist(), rounds.tolist(), strict=True)
    return {
        _name(number): Answer(
            output_tokens=int(decoded) + 1,
            rounds=int(count),
            first_s=first_token * ROUND_S,
            decode_s=count * round_cost * ROUND_S,
        )
        for number, (decoded, count) in enumerate(pairs)
    }


def _name(number: int) -> str:
    return f"prompt-{number}"


def _noises(timing: Timing, generator: np.random.Generator) -> Iterator[float]:
    while True:
        yield from timing.noises(generator, 64).tolist()


def _take_turns(plain: SimulatedLoad, speculating: SimulatedLoad, order: Order) -> CertifyResult:
    names = list(plain.answers)
    prompts = [Prompt(prompt_id=name, prompt_class="simulated", text=name) for name in names]
    limits = MeasureLimits(max_output_tokens=CAP)
    if order is Order.BLOCKS:
        return measure_blocks(plain, speculating, prompts, limits)
    if order is Order.CANDIDATE_FIRST:
        candidate = measure(speculating, prompts, limits, name="candidate")
        return CertifyResult(baseline=measure(plain, prompts, limits, name="baseline"), candidate=candidate, order="BA")
    first = measure(plain, prompts, limits, name="baseline-first")
    candidate = measure(speculating, prompts, limits, name="candidate", passes=2)
    baseline = first + measure(plain, prompts, limits, name="baseline-last")
    return CertifyResult(baseline=baseline, candidate=candidate, order="ABBA", loads=3)
