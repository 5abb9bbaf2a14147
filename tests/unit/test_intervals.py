from __future__ import annotations

import math

import numpy as np
import pytest

from tuner.intervals import (
    FEW_PROMPTS,
    RESAMPLES,
    TAIL_LEVEL_OF_FEW,
    log_ratio,
    prompts_needed,
    ratio_interval,
)

T_975, T_99 = 3.182446, 6.165339
"""Student's quantiles for 3 and for 2.2 degrees of freedom."""


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


def test_students_limits_by_hand():
    # Pairs of (2, 1) and (4, 3), two each: ratio 12/8; 2/1.5 - 1 = 1/3 and 4/1.5 - 3 = -1/3. Leaving a prompt out
    # leaves a denominator of 7 or 5. Weights 1/8 and 3/8 are worth 64/20 = 3.2 equal prompts.
    interval = ratio_interval(np.array([2.0, 4.0, 2.0, 4.0]), np.array([1.0, 3.0, 1.0, 3.0]))
    error = math.sqrt(3 / 4 * 2 * ((1 / 21) ** 2 + (1 / 15) ** 2))
    assert interval.method == "delta"
    assert interval.estimate == pytest.approx(1.5)
    assert interval.coefficient_of_variation == pytest.approx((1 / 3) * math.sqrt(4 / 3) / 2)
    assert interval.low == pytest.approx(1.5 * math.exp(-T_975 * error), rel=1e-6)
    assert interval.high == pytest.approx(1.5 * math.exp(T_975 * error), rel=1e-6)
    assert interval.one_sided_99_low == pytest.approx(1.5 * math.exp(-T_99 * error), rel=1e-6)


def test_many_prompts_get_the_delta_method_with_almost_normal_quantiles():
    numerators, denominators = np.array([2.0, 4.0] * 1000), np.array([1.0, 3.0] * 1000)
    interval = ratio_interval(numerators, denominators)
    assert interval.method == "delta"
    assert math.log(interval.high / 1.5) == pytest.approx(1.96 * (1 / 3) / math.sqrt(2000) / 2, rel=3e-3)


def test_resampling_by_counts_is_resampling_prompt_by_prompt():
    numerators, denominators = heavy_tailed(np.random.default_rng(4), 20)
    interval = ratio_interval(numerators, denominators, seed=9)
    picked = np.random.default_rng(9).integers(20, size=(RESAMPLES, 20))
    (observed,), (error,) = log_ratio(numerators[None, :], denominators[None, :])
    ratios, errors = log_ratio(numerators[picked], denominators[picked])
    upper, lower, tail = np.quantile((ratios - observed) / errors, [0.975, 0.025, TAIL_LEVEL_OF_FEW])
    assert interval.method == "bootstrap-t"
    assert interval.low == pytest.approx(math.exp(observed - upper * error))
    assert interval.high == pytest.approx(math.exp(observed - lower * error), rel=0.05)  # Student's where it is wider
    assert interval.high >= math.exp(observed - lower * error) * (1 - 1e-9)
    assert interval.one_sided_99_low == pytest.approx(math.exp(observed - tail * error))


def test_gains_that_hardly_differ_lose_no_digits_in_resampling():
    generator = np.random.default_rng(6)
    baseline = generator.lognormal(0.0, 1.0, 20)
    spread = generator.normal(0.0, 1.0, 20)
    widths = [
        math.log(interval.high / interval.low) / scale
        for scale in (1e-3, 1e-8)
        if (interval := ratio_interval(baseline, baseline * (1 + scale * spread)))
    ]
    assert widths[1] == pytest.approx(widths[0], rel=0.01)


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
    baseline = np.ones(FEW_PROMPTS)
    baseline[3] = 60.0
    candidate = baseline / np.linspace(1.0, 1.4, FEW_PROMPTS)
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


def test_a_greater_power_needs_more_prompts():
    # 80 % of repetitions: z = 2.3263 + 0.8416 for a one-sided 99 % limit.
    assert prompts_needed(0.2, 0.03, 0.98, power=0.8) == math.ceil((3.16797 * 0.2 / 0.03) ** 2)
    assert prompts_needed(0.2, 0.03, 0.98, power=0.5) == prompts_needed(0.2, 0.03, 0.98)
