"""The worlds that the benchmarks simulate are what they claim to be."""

from __future__ import annotations

from dataclasses import replace
from itertools import repeat

import numpy as np
import pytest

from benchmarks.harness.certified_worlds import (
    DRAFTS,
    POWER_DRAFT,
    Configuration,
    Order,
    World,
    best_of_sixty,
    certify,
    draft_populations,
    gains_five_percent,
    loses,
    never_hits,
    spread,
)
from benchmarks.harness.population import (
    PromptLaw,
    Prompts,
    Timing,
    half_width_over_rounds,
    round_cost_for,
    walk,
)
from benchmarks.harness.shares import share_with_limits
from benchmarks.harness.simulated_machine import Answer, DriftingMachine, SimulatedLoad
from tests.support.observed import prompts
from tuner.loads import pool_loads
from tuner.measure import MeasureLimits, measure
from tuner.metrics import e2e_ms, ttft_ms
from tuner.pairing import paired_speedup

LAW = PromptLaw(acceptance=0.7, concentration=10, drafted_tokens=3)


@pytest.fixture
def generator() -> np.random.Generator:
    return np.random.default_rng(3)


@pytest.fixture(scope="module")
def drafts() -> list[tuple[int, Prompts]]:
    return draft_populations(seed=1, count=400)


# ── prompts ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_answers_are_lognormal_up_to_their_cap(generator):
    decoded = replace(LAW, median_tokens=20.0, cap=60).draw(generator, 20_000).decoded
    assert np.median(decoded + 1) == pytest.approx(20, rel=0.05)
    assert np.quantile(decoded + 1, 0.1587) == pytest.approx(20 / np.e, rel=0.1)  # one standard deviation below
    assert decoded.min() == 1
    assert np.mean(decoded == 59) == pytest.approx(0.136, abs=0.01)  # beyond log(60 / 20) standard deviations


def test_a_draft_that_is_always_right_emits_k_tokens_and_one_in_every_round(generator):
    rounds, squares = walk(generator, np.array([1, 4, 5, 12]), np.full(4, 1 - 1e-15), 3)
    assert rounds.tolist() == [1, 1, 2, 3]
    assert squares.tolist() == [1, 16, 17, 48]


def test_a_draft_that_is_never_right_emits_one_token_in_every_round(generator):
    rounds, squares = walk(generator, np.array([1, 7]), np.zeros(2), 5)
    assert rounds.tolist() == squares.tolist() == [1, 7]


def test_rounds_emit_what_the_geometric_law_says(generator):
    rounds, _ = walk(generator, np.full(500, 1000), np.full(500, 0.6), 3)
    assert 1000 / rounds.mean() == pytest.approx((1 - 0.6**4) / (1 - 0.6), rel=0.005)


def test_the_interval_over_rounds_by_hand():
    # Rounds of 1, 3, 1 and 3 tokens: mean 2, variance 1.
    both = Prompts(decoded=np.array([4.0, 4.0]), rounds=np.array([2.0, 2.0]), squares=np.array([10.0, 10.0]))
    assert half_width_over_rounds(both) == pytest.approx(1.959964 * (1 / 4) ** 0.5 / 2)


def test_a_round_cost_for_a_gain_gives_exactly_that_gain(generator):
    population, timing = LAW.draw(generator, 500), Timing(round_cost=1.0)
    priced = replace(timing, round_cost=round_cost_for(1.07, population, timing))
    assert priced.gain(population) == pytest.approx(1.07, rel=1e-12)


def test_noise_is_the_same_for_both_sides_and_hiccups_are_as_rare_as_stated(generator):
    noises = Timing(round_cost=1.0, noise=0.03, hiccup_share=0.1).noises(generator, 50_000)
    assert np.mean(noises > 1.3) == pytest.approx(0.1, abs=0.01)
    assert np.std(np.log(noises[noises < 1.3])) == pytest.approx(0.03, rel=0.05)


def test_shares_have_clopper_pearson_limits():
    share = share_with_limits(0, 1000)
    assert share["share"] == 0
    assert share["high"] == pytest.approx(1 - 0.025 ** (1 / 1000), abs=1e-5)


# ── machine ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_machine_slows_at_once_in_the_middle():
    machine = DriftingMachine(total_s=10, slowdown=1.2)
    assert [machine.work(2.5) for _ in range(4)] == pytest.approx([2.5, 5, 7.5, 10.5])


def test_a_machine_slows_evenly_over_the_second_half():
    machine = DriftingMachine(total_s=8, slowdown=1.2, is_gradual=True)
    assert machine.work(4) == 4
    steps = np.diff([4, *(machine.work(1) for _ in range(5))])
    assert steps == pytest.approx([1, 1.05, 1.1, 1.15, 1.2])


def test_a_simulated_load_takes_the_laid_down_time_and_counts_its_rounds():
    machine = DriftingMachine(total_s=1e9, slowdown=1.2)
    answers = {one.prompt_id: Answer(output_tokens=31, rounds=10, first_s=0.1, decode_s=0.5) for one in prompts(3)}
    load = SimulatedLoad(machine=machine, answers=answers, noises=repeat(2.0), drafted_tokens=4)
    measured = measure(load, prompts(3), MeasureLimits(max_output_tokens=64))
    assert [ttft_ms(record) for record in measured.requests] == pytest.approx([200] * 3)
    assert [e2e_ms(record) for record in measured.requests] == pytest.approx([1200] * 3)
    assert measured.counters.rounds == 30
    assert measured.counters.drafted_tokens == 120
    assert measured.counters.accepted_tokens == 60


# ── worlds ────────────────────────────────────────────────────────────────────────────────────────────────────


def quiet_world(drafts: list[tuple[int, Prompts]], *, is_gradual: bool) -> World:
    """The same time on both sides, no noise, and a machine that ends 30 % slower."""
    drafted_tokens, population = drafts[0]
    missed = replace(population, rounds=population.decoded)
    timing = Timing(round_cost=1.0, first_token_cost=1.0, noise=0.0)
    candidate = Configuration(drafted_tokens=drafted_tokens, population=missed, timing=timing)
    return World(candidate=candidate, slowdown=1.3, is_gradual=is_gradual)


@pytest.mark.parametrize("is_gradual", [False, True])
def test_blocks_cancel_the_drift(drafts, generator, is_gradual):
    certified = certify(quiet_world(drafts, is_gradual=is_gradual), generator, prompts=40, order=Order.BLOCKS)
    gain = paired_speedup(certified.baseline, certified.candidate)
    assert gain.n == 40
    assert gain.estimate == pytest.approx(1, abs=0.03)


def test_passes_cancel_a_drift_that_comes_at_once_and_are_held_to_one_that_does_not(drafts, generator):
    certified = [
        certify(quiet_world(drafts, is_gradual=is_gradual), generator, prompts=40, order=Order.PASSES)
        for is_gradual in (False, True)
    ]
    at_once, gradual = (pool_loads([one]).speedup for one in certified)
    assert at_once.estimate == pytest.approx(1, abs=0.01)
    assert gradual.estimate == pytest.approx(1.07, abs=0.01)
    assert gradual.low <= 1


def test_running_the_candidate_first_takes_the_drift_for_a_gain(drafts, generator):
    world = quiet_world(drafts, is_gradual=False)
    certified = certify(world, generator, prompts=40, order=Order.CANDIDATE_FIRST)
    assert paired_speedup(certified.baseline, certified.candidate).estimate == pytest.approx(1.3, abs=0.03)


def test_every_prompt_is_as_long_and_as_predictable_under_every_k(drafts):
    first, last = drafts[0][1], drafts[14][1]
    assert [drafts[0][0], drafts[14][0]] == [1, 15]
    assert len(drafts) == 15 * len(DRAFTS)
    assert (first.decoded == last.decoded).all()
    assert last.rounds.sum() < first.rounds.sum()
    assert np.corrcoef(first.decoded / first.rounds, last.decoded / last.rounds)[0, 1] > 0.5


def test_a_draft_that_never_hits_gains_nothing(drafts, generator):
    worlds = [never_hits(generator, drafts) for _ in range(30)]
    assert all(world.candidate.true_gain < 1 for world in worlds)
    assert all((world.candidate.population.rounds == drafts[0][1].decoded).all() for world in worlds)


def test_losses_lie_between_nothing_and_five_percent(drafts, generator):
    gains = [loses(generator, drafts).candidate.true_gain for _ in range(60)]
    assert 0.95 <= min(gains) < 0.96
    assert 0.99 < max(gains) <= 1 + 1e-12


def test_the_best_of_sixty_looks_good_and_gains_nothing(drafts, generator):
    worlds = [best_of_sixty(generator, drafts) for _ in range(10)]
    assert [world.candidate.true_gain for world in worlds] == pytest.approx([1] * 10)
    assert np.mean([world.searched.estimate for world in worlds]) > 1.05


def test_worlds_with_a_gain_have_five_percent_whatever_the_machine_does(drafts, generator):
    world = gains_five_percent(generator, drafts)
    assert world.candidate.true_gain == pytest.approx(1.05)
    assert world.candidate.drafted_tokens == drafts[POWER_DRAFT][0] == 3
    assert 1.1 <= world.slowdown <= 1.3
    assert 0.1 < spread(world.candidate, generator) < 0.4
