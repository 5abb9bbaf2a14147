"""The simulated worlds that searches are compared in: their truth is what replay and prices say it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.harness.rivals import RIVALS, predicted_best, regret_curve, search_with_replay
from benchmarks.harness.search_worlds import (
    DRAFTED_TOKENS,
    MISSPECIFIED,
    WELL_SPECIFIED,
    Family,
    World,
    make_world,
    worlds,
)

SMALL = replace(WELL_SPECIFIED, drafts=2)


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(SMALL, np.random.default_rng(1))


def test_a_world_is_the_same_for_the_same_seed() -> None:
    (first,), (second,) = (list(worlds(SMALL, 1, seed=3)) for _ in range(2))
    assert first.speedups == second.speedups
    assert next(worlds(SMALL, 1, seed=4)).speedups != first.speedups


def test_every_configuration_has_a_truth_and_a_forecast(world: World) -> None:
    assert len(world.speedups) == 2 * len(DRAFTED_TOKENS)
    assert set(world.speedups) == set(world.latencies) == set(world.forecast.index_of)


def test_no_speculation_gives_away_the_whole_gain_and_the_best_nothing(world: World) -> None:
    best = max(world.speedups, key=world.speedups.__getitem__)
    assert world.regret(best) == pytest.approx(0) or world.best_speedup == 1
    assert world.regret(None) == pytest.approx(1 - 1 / world.best_speedup)


def test_the_truth_lies_within_what_is_believed_beforehand(world: World) -> None:
    low, high = world.forecast.outlook({}).speedups([0.005, 0.995])
    inside = [low[index] < 1 / world.latencies[key] < high[index] for key, index in world.forecast.index_of.items()]
    assert np.mean(inside) > 0.9


def test_a_misspecified_engine_accepts_less_than_replay_saw() -> None:
    shifted = make_world(replace(MISSPECIFIED, drafts=2, kink=(0.0, 0.0)), np.random.default_rng(1))
    same = make_world(Family(name="same", drafts=2), np.random.default_rng(1))
    assert np.mean([shifted.speedups[key] < same.speedups[key] for key in same.speedups]) > 0.8


def test_a_search_ends_by_itself_with_its_regret(world: World) -> None:
    found = search_with_replay(world, np.random.default_rng(0))
    assert 1 <= found.evaluations < 12
    assert 0 <= found.regret < 0.05
    assert search_with_replay(world, np.random.default_rng(0), max_compiles=2).evaluations == 2


def test_a_rival_starts_from_no_speculation_and_measures_nothing_twice(world: World) -> None:
    curve = regret_curve(world, RIVALS["random"], 12, seed=0, first=predicted_best(world))
    assert len(curve) == 12
    assert curve[0] == world.regret(None)
    assert curve[1] == pytest.approx(world.regret(predicted_best(world)), abs=1e-12)
    everything = regret_curve(world, RIVALS["random"], 99, seed=0)
    assert len(everything) == len(world.speedups) + 1
