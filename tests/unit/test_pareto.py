from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from tuner.errors import MeasurementError
from tuner.pareto import pareto_front


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
