"""Beliefs about the steps of a round, before and after configurations were measured: exact cases by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.errors import MeasurementError
from tuner.records import TimedSteps
from tuner.step_times import (
    CONFIGURATION_ERROR,
    DRAFT_BIAS,
    LOAD_ERROR,
    VERIFY_BIAS,
    MeasuredTotal,
    Step,
    StepTimes,
    guessed_step_times,
    median_ms,
    timed_step_times,
)

ROW, LIGHT, HEAVY = Step("row", "", 1), Step("pass", "light", 1), Step("pass", "heavy", 1)
VERIFY = TimedSteps(step="verify", seconds={1: (0.010,), 2: (0.011,), 3: (0.012,)})
DRAFTS = {"light": TimedSteps(step="draft", seconds={1: (0.001,), 2: (0.002,)})}


def vague(*sds: float) -> StepTimes:
    """A row of 1 ms and passes of 4 and 8 ms, each known to within its relative sd."""
    steps = (ROW, LIGHT, HEAVY)[: len(sds)]
    return StepTimes(steps=steps, log_ms=np.log([1.0, 4.0, 8.0])[: len(sds)], covariance=np.diag(sds) ** 2)


def a_total(*weights: float, total: float, fixed: float = 0.0, error: float = LOAD_ERROR) -> MeasuredTotal:
    return MeasuredTotal(weights=np.array(weights), fixed_ms=fixed, total_ms=total, error=error)


def sds(times: StepTimes) -> list[float]:
    return [float(one) for one in np.sqrt(np.diag(times.covariance))]


# ── what measurements teach ───────────────────────────────────────────────────────────────────────────────────────


def test_without_measurements_the_beliefs_stay() -> None:
    before = vague(0.5)
    assert before.fitted([]) is before


def test_one_step_measured_alone_is_a_weighted_mean_of_belief_and_measurement() -> None:
    after = vague(0.03).fitted([a_total(10.0, total=12.0, error=0.02)])  # 1.2 ms a row
    seen = 0.02**2 + CONFIGURATION_ERROR**2
    share = 0.03**2 / (0.03**2 + seen)
    assert after.log_ms[0] == pytest.approx(share * math.log(1.2))
    assert after.covariance[0, 0] == pytest.approx((1 - share) * 0.03**2)


def test_measured_configurations_recover_the_times_of_their_steps() -> None:
    truth = np.array([1.7, 3.0, 11.0])
    weights = ((3.0, 1.0, 0.0), (8.0, 2.0, 0.0), (5.0, 0.0, 1.0), (9.0, 0.0, 6.0))
    measured = [a_total(*one, fixed=20.0, total=20.0 + float(np.dot(one, truth))) for one in weights]
    after = vague(1.0, 1.0, 1.0).fitted(measured * 20)
    assert np.exp(after.log_ms) == pytest.approx(truth, rel=0.01)
    assert max(sds(after)) < 0.1


def test_a_measurement_that_is_as_predicted_moves_nothing_and_sharpens_what_it_is_made_of() -> None:
    before = vague(0.5, 0.5, 0.5)
    after = before.fitted([a_total(3.0, 1.0, 0.0, fixed=20.0, total=20.0 + 3 * 1.0 + 4.0)])
    assert after.log_ms == pytest.approx(before.log_ms)
    assert sds(after)[0] < 0.5
    assert sds(after)[1] < 0.5
    assert sds(after)[2] == pytest.approx(0.5)  # no part of it
    assert after.covariance[0, 1] < 0  # the more the row took of the sum, the less the pass did


def test_each_further_measurement_sharpens() -> None:
    one = a_total(3.0, 1.0, fixed=20.0, total=27.0)
    widths = [sds(vague(0.5, 0.5).fitted([one] * count))[0] for count in (0, 1, 2, 8)]
    assert widths == sorted(widths, reverse=True)
    assert len(set(widths)) == 4


@pytest.mark.parametrize("factor", [0.5, 0.8, 1.25, 3.0])
def test_a_measurement_far_from_all_beliefs_is_explained_as_well_as_it_can_be(factor: float) -> None:
    before = vague(0.6, 0.6)
    measured = [a_total(3.0, 1.0, fixed=20.0, total=27.0 * factor), a_total(9.0, 3.0, fixed=9.0, total=30.0 / factor)]
    after = before.fitted(measured)
    around = [after.log_ms + np.array(shift) for shift in ((1e-3, 0), (-1e-3, 0), (0, 1e-3), (0, -1e-3))]
    assert all(misfit(before, measured, after.log_ms) < misfit(before, measured, one) for one in around)


@settings(max_examples=60, deadline=None)
@given(totals=st.lists(st.tuples(st.floats(0.2, 15), st.floats(0.2, 15), st.floats(0.3, 3.0)), min_size=1, max_size=5))
def test_no_measurements_are_explained_worse_after_a_fit_than_before(totals: list[tuple[float, float, float]]) -> None:
    before = vague(0.6, 0.6)
    measured = [
        a_total(rows, passes, fixed=10.0, total=(10 + rows + 4 * passes) * factor) for rows, passes, factor in totals
    ]
    after = before.fitted(measured)
    assert misfit(before, measured, after.log_ms) <= misfit(before, measured, before.log_ms)
    assert np.isfinite(after.covariance).all()
    assert (np.diag(after.covariance) <= np.diag(before.covariance) + 1e-12).all()


def misfit(before: StepTimes, measured: list[MeasuredTotal], log_ms: np.ndarray) -> float:
    """Minus twice the logarithm of the posterior density."""
    found = 0.0
    for one in measured:
        total = one.fixed_ms + float(one.weights @ np.exp(log_ms))
        found += math.log(one.total_ms / total) ** 2 / (one.error**2 + CONFIGURATION_ERROR**2)
    moved = log_ms - before.log_ms
    return found + float(moved @ np.linalg.solve(before.covariance, moved))


def test_steps_that_explain_no_positive_time_are_refused() -> None:
    with pytest.raises(MeasurementError, match="contradict the measured configurations"):
        vague(0.5).fitted([a_total(-3.0, fixed=2.0, total=10.0)])


# ── timed steps ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_median_of_repeats_and_its_error_by_hand() -> None:
    steps = TimedSteps(step="verify", seconds={1: (0.009, 0.010, 0.010, 0.012, 0.030)})
    middle, error = median_ms(steps, 1)
    assert middle == pytest.approx(10)
    # deviations 1 0 0 2 20, their median 1
    assert error == pytest.approx(1.2533 * 1.4826 * 1 / math.sqrt(5))


def test_a_size_without_repeats_is_refused() -> None:
    with pytest.raises(MeasurementError, match="step draft of size 4 has no timing"):
        median_ms(TimedSteps(step="draft", seconds={1: (0.1,)}), 4)


def test_timings_of_one_kind_share_an_error_and_those_of_different_kinds_none() -> None:
    times = timed_step_times(VERIFY, DRAFTS)
    assert [(one.kind, one.draft_name, one.size) for one in times.steps] == [
        ("verify", "", 1),
        ("verify", "", 2),
        ("verify", "", 3),
        ("draft", "light", 1),
        ("draft", "light", 2),
    ]
    verify, draft = VERIFY_BIAS**2 + LOAD_ERROR**2, DRAFT_BIAS**2 + LOAD_ERROR**2
    assert times.covariance[0, 1] == pytest.approx(verify)
    assert times.covariance[3, 4] == pytest.approx(draft)
    assert times.covariance[0, 3] == 0
    assert times.covariance[0, 0] == pytest.approx(verify + LOAD_ERROR**2 / 10)
    assert np.exp(times.log_ms) == pytest.approx([10, 11, 12, 1, 2])


def test_drafts_of_different_names_share_no_error() -> None:
    times = timed_step_times(VERIFY, {**DRAFTS, "heavy": TimedSteps(step="draft", seconds={1: (0.004,)})})
    assert times.covariance[3, 5] == 0


def test_a_machine_that_was_slower_when_steps_were_timed_scales_them_all() -> None:
    times = timed_step_times(VERIFY, DRAFTS, scale=0.5)
    assert np.exp(times.log_ms) == pytest.approx([5, 5.5, 6, 0.5, 1])
    assert times.covariance == pytest.approx(timed_step_times(VERIFY, DRAFTS).covariance)


def test_one_measured_k_teaches_of_every_other_k_of_its_draft() -> None:
    before = timed_step_times(VERIFY, DRAFTS)
    weights = np.array([-1.0, 0, 1.0, 0, 1.0])  # a round of two drafted tokens beyond a plain one
    after = before.fitted([MeasuredTotal(weights=weights, fixed_ms=10.0, total_ms=15.0, error=LOAD_ERROR)])
    one, two = (after.medians("draft", "light")[size][0] for size in (1, 2))
    assert two > 2.05
    assert one / two == pytest.approx(0.5, rel=0.01)


def test_drafting_that_takes_no_time_that_the_clock_shows_is_no_obstacle() -> None:
    times = timed_step_times(VERIFY, {"ngram": TimedSteps(step="draft", seconds={1: (0.0, 0.0), 2: (0.0, 1e-7, 3e-7)})})
    drawn = times.draws(100, np.random.default_rng(0))
    assert np.isfinite(drawn).all()
    assert drawn[:, 3:].max() < 0.01
    assert times.fitted([a_total(0, 0, 1, 1, 0, total=12.0)]).log_ms == pytest.approx(times.log_ms)


def test_medians_are_told_by_kind_draft_and_size() -> None:
    verify = timed_step_times(VERIFY, DRAFTS).medians("verify")
    assert list(verify) == [1, 2, 3]
    assert verify[2] == pytest.approx((11, math.sqrt(VERIFY_BIAS**2 + LOAD_ERROR**2 * 1.1)))
    assert list(timed_step_times(VERIFY, DRAFTS).medians("draft", "light")) == [1, 2]
    assert timed_step_times(VERIFY, DRAFTS).medians("draft", "heavy") == {}


# ── guessed steps ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_guess_lies_between_its_limits_on_a_scale_of_logarithms() -> None:
    times = guessed_step_times((0.01, 1.0), {"light": (2.0, 8.0)})
    assert times.steps == (ROW, LIGHT)
    assert np.exp(times.log_ms) == pytest.approx([0.1, 4.0])
    assert sds(times) == pytest.approx([math.log(100) / math.sqrt(12), math.log(4) / math.sqrt(12)])
    assert times.covariance[0, 1] == 0


def test_a_guess_without_doubt_still_has_the_error_of_a_load() -> None:
    assert sds(guessed_step_times((0.4, 0.4), {})) == [LOAD_ERROR]


@pytest.mark.parametrize("limits", [(0.0, 1.0), (-1.0, 1.0), (2.0, 1.0), (math.nan, 1.0), (1.0, math.inf)])
def test_limits_that_are_no_positive_range_are_refused(limits: tuple[float, float]) -> None:
    with pytest.raises(MeasurementError, match="the limits of step pass 'light' are"):
        guessed_step_times((0.1, 0.2), {"light": limits})


# ── draws ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_draws_have_the_medians_and_the_spread_of_the_beliefs() -> None:
    drawn = np.log(vague(0.1, 0.4).draws(20_000, np.random.default_rng(0)))
    assert drawn.shape == (20_000, 2)
    assert drawn.mean(axis=0) == pytest.approx(np.log([1.0, 4.0]), abs=0.01)
    assert drawn.std(axis=0) == pytest.approx([0.1, 0.4], rel=0.02)


def test_draws_repeat_with_the_same_generator() -> None:
    first, second = (vague(0.1, 0.4).draws(5, np.random.default_rng(3)) for _ in range(2))
    assert (first == second).all()


def test_beliefs_of_full_correlation_can_be_drawn() -> None:
    times = replace(vague(0.1, 0.1), covariance=np.full((2, 2), 0.01))
    drawn = times.draws(10, np.random.default_rng(0))
    assert drawn[:, 1] / drawn[:, 0] == pytest.approx(np.full(10, 4.0))
