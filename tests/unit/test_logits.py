"""Ranks, probabilities and gaps of given tokens are those of a sorted row."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tuner.engines import logits as module
from tuner.engines.logits import (
    ABSENT,
    TokenFacts,
    distribution,
    probabilities_of,
    ranks_of,
    runs_of_hits,
    token_facts,
)
from tuner.errors import MeasurementError
from tuner.records import GREEDY, WORST_RANK, Sampling

ROW = torch.tensor([[0.5, 2.0, -1.0, 1.0, 0.0]])
HALF = Sampling(temperature=0.5, top_k=3)


def facts_of(rows: Tensor, columns: list[int], sampling: Sampling = GREEDY, *, are_chosen: bool = False) -> TokenFacts:
    return token_facts(rows, torch.tensor(columns), lambda states: states, sampling, are_chosen=are_chosen)


@given(st.lists(st.integers(-3, 3), min_size=2, max_size=40))
def test_a_rank_is_the_place_in_a_stable_sort(row: list[int]) -> None:
    logits = torch.tensor([[float(one) for one in row]] * len(row))
    order = sorted(range(len(row)), key=lambda column: -row[column])  # stable: of equals the first comes first
    found = ranks_of(logits, torch.arange(len(row))).tolist()
    assert found == [min(order.index(column), WORST_RANK) for column in range(len(row))]
    assert found.index(0) == int(logits[0].argmax())


def test_an_absent_token_has_the_worst_rank_and_no_probability() -> None:
    facts = facts_of(ROW, [ABSENT], Sampling(temperature=1.0))
    assert (facts.ranks, facts.probabilities) == ((WORST_RANK,), (0.0,))


def test_the_gap_is_between_the_two_largest_logits_whatever_the_token() -> None:
    facts = facts_of(ROW.repeat(2, 1), [0, 2])
    assert facts.top2_gaps == (1.0, 1.0)
    assert facts.probabilities == ()


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0),
        Sampling(temperature=0.7),
        Sampling(temperature=1.0, top_k=2),
        Sampling(temperature=1.5, top_p=0.6),
        Sampling(temperature=0.5, top_k=4, top_p=0.8),
    ],
)
def test_probabilities_are_those_that_are_drawn_from(sampling: Sampling) -> None:
    rows = torch.randn(7, 50, generator=torch.Generator().manual_seed(3))
    drawn, kept = distribution(rows, sampling)
    for column in range(50):
        found = probabilities_of(rows, torch.full((7,), column), sampling)
        expected = torch.where(kept == column, drawn, 0.0).sum(1)
        torch.testing.assert_close(found, expected)
    assert distribution(rows, sampling)[0].sum(1).tolist() == pytest.approx([1.0] * 7)


def test_a_batch_of_rows_has_the_distribution_of_each_row_alone() -> None:
    rows = torch.randn(5, 30, generator=torch.Generator().manual_seed(4))
    sampling = Sampling(temperature=0.9, top_k=12, top_p=0.7)
    together = distribution(rows, sampling)
    for index, row in enumerate(rows):
        for all_rows, one in zip(together, distribution(row, sampling), strict=True):
            torch.testing.assert_close(all_rows[index], one)


def test_a_token_that_was_chosen_has_a_probability_even_where_a_cut_leaves_it_out() -> None:
    uncut = math.exp(0.0 / 0.5) / sum(math.exp(one / 0.5) for one in ROW[0].tolist())
    assert facts_of(ROW, [4], HALF).probabilities == (0.0,)
    assert facts_of(ROW, [4], HALF, are_chosen=True).probabilities == pytest.approx((uncut,))
    inside = facts_of(ROW, [1], HALF).probabilities
    assert facts_of(ROW, [1], HALF, are_chosen=True).probabilities == inside


def test_facts_do_not_depend_on_how_many_rows_are_held_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(10, 20, generator=torch.Generator().manual_seed(5))
    columns = [7, 3, 1, ABSENT, 19, 0, 4, 4, 11, 12]
    whole = facts_of(rows, columns, HALF)
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 3)
    assert facts_of(rows, columns, HALF) == whole
    assert len(whole.ranks) == len(whole.probabilities) == len(whole.top2_gaps) == 10


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_no_numbers_are_refused(value: float) -> None:
    rows = ROW.clone()
    rows[0, 2] = value
    with pytest.raises(MeasurementError, match="NaN or infinite"):
        facts_of(rows, [1])


@pytest.mark.parametrize(
    ("ranks", "count", "matched"),
    [
        ([], 4, ()),
        ([0], 4, (0,)),
        ([0, 0, 0, 3, 0], 4, (0, 2, 1, 0, 1)),
        ([5, 0, 0, 0, 0], 2, (0, 2, 2, 2, 1)),
        ([0, 1, 1], 2, (0, 0, 0)),
    ],
)
def test_matches_are_runs_of_right_tokens(ranks: list[int], count: int, matched: tuple[int, ...]) -> None:
    proposed, found = runs_of_hits(ranks, count)
    assert found == matched
    assert proposed == ((0, *[count] * (len(ranks) - 1)) if ranks else ())
