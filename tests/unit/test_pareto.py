from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from tuner.errors import MeasurementError
from tuner.pareto import front_probabilities, log_normal_draws, pareto_front


@settings(max_examples=100, deadline=None)
@given(arrays(np.float64, array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=8), elements=st.integers(0, 4)))
def test_the_front_is_what_no_trial_dominates(losses):
    def dominates(one, other):
        return all(a <= b for a, b in zip(one, other, strict=True)) and any(
            a < b for a, b in zip(one, other, strict=True)
        )

    expected = [not any(dominates(other, one) for other in losses) for one in losses]
    assert pareto_front(losses).tolist() == expected


def test_duplicates_of_a_member_are_members():
    assert pareto_front(np.array([[1.0, 2.0], [1.0, 2.0], [2.0, 2.0], [0.5, 3.0]])).tolist() == [
        True,
        True,
        False,
        True,
    ]


def test_no_trial_has_an_empty_front():
    assert pareto_front(np.empty((0, 2))).tolist() == []


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_loss_that_is_not_finite_is_refused(bad):
    with pytest.raises(MeasurementError, match="finite"):
        pareto_front(np.array([[1.0, bad]]))


def test_a_flat_list_of_losses_is_refused():
    with pytest.raises(MeasurementError, match=r"shape \(2,\)"):
        pareto_front(np.array([1.0, 2.0]))


# ── probabilities ─────────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=50, deadline=None)
@given(arrays(np.float64, array_shapes(min_dims=3, max_dims=3, min_side=1, max_side=6), elements=st.integers(0, 4)))
def test_a_probability_is_the_share_of_draws_whose_front_has_the_configuration(draws):
    expected = np.mean([pareto_front(losses) for losses in draws], axis=0)
    assert front_probabilities(draws) == pytest.approx(expected)


def test_exact_losses_leave_no_doubt():
    losses = np.array([[1.0, 2.0], [2.0, 1.0], [2.0, 2.0]])
    draws = log_normal_draws(losses, np.zeros_like(losses), samples=7, seed=0)
    assert front_probabilities(draws).tolist() == [1, 1, 0]


def test_two_that_cannot_be_told_apart_share_the_front():
    losses = np.array([[1.0], [1.0]])
    draws = log_normal_draws(losses, np.full_like(losses, 0.05), samples=4000, seed=1)
    assert front_probabilities(draws) == pytest.approx([0.5, 0.5], abs=0.03)


def test_a_rival_two_standard_errors_behind_is_rarely_the_best():
    losses = np.array([[1.0], [np.exp(0.2)]])
    draws = log_normal_draws(losses, np.array([[0.0], [0.1]]), samples=20_000, seed=2)
    assert front_probabilities(draws)[1] == pytest.approx(0.0228, abs=0.004)


def test_what_is_maximised_keeps_its_sign():
    draws = log_normal_draws(np.array([[-5.0]]), np.array([[0.5]]), samples=100, seed=3)
    assert (draws < 0).all()


@pytest.mark.parametrize("draws", [np.ones((2, 2)), np.ones((0, 2, 2)), np.full((1, 2, 2), np.nan)])
def test_draws_that_say_nothing_are_refused(draws):
    with pytest.raises(MeasurementError, match="finite draws"):
        front_probabilities(draws)
