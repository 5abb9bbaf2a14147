from __future__ import annotations

import math

import numpy as np
import pytest

from tuner.intervals import FEW_PROMPTS, prompts_needed, ratio_interval


def heavy_tailed(generator: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Latencies of two configurations: lengths differ tenfold between prompts, gains by a quarter."""
    baseline = generator.lognormal(0.0, 0.6, n)
    return baseline, baseline / generator.lognormal(math.log(1.3), 0.25, n)


TRUE_RATIO = 1.3 / math.exp(0.25**2 / 2)  # E[B] / E[B / S]; the gain S does not depend on the length B


@pytest.mark.parametrize("n", [12, 24, 60])
def test_intervals_cover_the_truth_on_heavy_tailed_latencies(n, monkeypatch):
    monkeypatch.setattr("tuner.intervals.RESAMPLES", 399)
    generator = np.random.default_rng(11)
    intervals = [ratio_interval(*heavy_tailed(generator, n), seed=number) for number in range(800)]
    assert np.mean([one.low <= TRUE_RATIO <= one.high for one in intervals]) >= 0.93
    assert np.mean([one.one_sided_99_low <= TRUE_RATIO for one in intervals]) >= 0.97


def test_treating_tokens_as_independent_would_cover_far_too_little():
    # The wrong way: the same sums, with the spread of 40 rounds of each prompt taken for that of the prompts.
    generator = np.random.default_rng(11)
    hits = 0
    for _ in range(200):
        baseline, candidate = heavy_tailed(generator, 24)
        rounds = [np.repeat(side / 40, 40) for side in (baseline, candidate)]
        wrong = ratio_interval(*rounds)
        hits += wrong.low <= TRUE_RATIO <= wrong.high
    assert hits / 200 < 0.5


def test_limits_are_finite_numbers_however_few_the_prompts():
    lone_gain = np.array([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.000001]), np.ones(8)
    for data in (lone_gain, (np.array([1.0, 2.0, 900.0]), np.array([1.0, 1.0, 1.0]))):
        interval = ratio_interval(*data)
        assert 0 < interval.one_sided_99_low <= interval.estimate <= interval.high < 1e6


def test_delta_method_by_hand():
    # 40 pairs of (2, 1) and (4, 3) in equal numbers: ratio 6/4, e = 2/1.5 - 1 and 4/1.5 - 3, i.e. ±1/3.
    numerators, denominators = np.array([2.0, 4.0] * 20), np.array([1.0, 3.0] * 20)
    interval = ratio_interval(numerators, denominators)
    sd = (1 / 3) * math.sqrt(40 / 39)
    error = sd / math.sqrt(40) / 2
    assert interval.method == "delta"
    assert interval.estimate == pytest.approx(1.5)
    assert interval.coefficient_of_variation == pytest.approx(sd / 2)
    assert interval.low == pytest.approx(1.5 * math.exp(-2.022691 * error), rel=1e-6)  # t of 39 degrees of freedom
    assert interval.high == pytest.approx(1.5 * math.exp(2.022691 * error), rel=1e-6)
    assert interval.one_sided_99_low == pytest.approx(1.5 * math.exp(-2.425841 * error), rel=1e-6)


def test_pairs_are_much_narrower_than_their_spread():
    generator = np.random.default_rng(5)
    baseline = generator.lognormal(0.0, 1.0, 200)
    interval = ratio_interval(baseline * 1.5, baseline * generator.normal(1.0, 0.05, 200))
    assert interval.high - interval.low < 0.05


def test_few_prompts_are_resampled():
    generator = np.random.default_rng(2)
    assert ratio_interval(*heavy_tailed(generator, FEW_PROMPTS - 1)).method == "bootstrap-t"
    assert ratio_interval(*(np.ones(FEW_PROMPTS) for _ in range(2))).method == "delta"


def test_a_dominating_prompt_is_resampled_at_any_number():
    baseline = np.ones(100)
    baseline[3] = 60.0
    candidate = baseline / np.linspace(1.0, 1.4, 100)
    assert ratio_interval(baseline, candidate).method == "bootstrap-t"


def test_fewer_than_three_prompts_have_no_interval():
    assert ratio_interval(np.ones(2), np.ones(2)) is None
    assert ratio_interval(np.ones(3), np.ones(3)) is not None


def test_equal_gains_have_no_width():
    interval = ratio_interval(np.array([2.0, 4.0, 8.0]), np.array([1.0, 2.0, 4.0]))
    assert (interval.low, interval.estimate, interval.high) == pytest.approx((2, 2, 2))


def test_the_same_seed_gives_the_same_interval():
    data = heavy_tailed(np.random.default_rng(1), 20)
    assert ratio_interval(*data, seed=4) == ratio_interval(*data, seed=4)
    assert ratio_interval(*data, seed=4) != ratio_interval(*data, seed=5)


@pytest.mark.parametrize(("variation", "half_width", "needed"), [(0.2, 0.02, 385), (0.06, 0.02, 35), (0.3, 0.05, 139)])
def test_prompts_for_a_half_width(variation, half_width, needed):
    assert prompts_needed(variation, half_width) == needed
    assert needed == math.ceil((1.96 * variation / half_width) ** 2)
