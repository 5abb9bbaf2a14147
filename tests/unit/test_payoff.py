"""From acceptance to gain and back, by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.errors import ConfigurationError
from tuner.payoff import RoundCosts, equivalent_acceptance, required_acceptance, tokens_per_round

FREE = RoundCosts(target_ms=(10.0, 10.0, 10.0), draft_ms=(0.0, 0.0))  # k 1 and 2 cost nothing
ONE = RoundCosts(target_ms=(10.0, 10.0), draft_ms=(0.0,))


def costs(**changes: object) -> RoundCosts:
    """Rounds of one drafted token, for which everything follows by head."""
    settings: dict[str, object] = {"target_ms": (10.0, 10.0), "draft_ms": (0.0,)}
    return RoundCosts(**{**settings, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("acceptance", "drafted_tokens", "tokens"), [(0.0, 5, 1.0), (0.5, 2, 1.75), (1.0, 4, 5.0), (0.9, 1, 1.9)]
)
def test_tokens_of_a_round_are_a_geometric_sum(acceptance: float, drafted_tokens: int, tokens: float) -> None:
    assert tokens_per_round(acceptance, drafted_tokens) == pytest.approx(tokens)


@pytest.mark.parametrize(
    ("wanted", "given_costs", "acceptance"),
    [
        (1.5, ONE, 0.5),  # 1 + a
        (1.5, FREE, (math.sqrt(3) - 1) / 2),  # 1 + a + a²
        (1.1, costs(draft_ms=(1.0,)), 0.21),  # (1 + a) / 1.1
        (1.2, costs(first_token_share=0.5), 0.5),  # 1 / (1/2 + 1/2 / (1 + a))
        (1.25, costs(draft_prefill_share=0.1), 1 / 0.7 - 1),  # 1 / (0.1 + 1 / (1 + a))
        (1.2, costs(target_ms=(20.0, 30.0)), 0.8),  # (1 + a) / (30 / 20)
        (1.0, costs(draft_ms=(5.0,)), 0.5),  # to break even
    ],
)
def test_the_acceptance_that_a_gain_takes(wanted: float, given_costs: RoundCosts, acceptance: float) -> None:
    assert required_acceptance(given_costs, wanted).acceptance == pytest.approx(acceptance)


def test_the_best_k_is_told_with_it() -> None:
    assert required_acceptance(FREE, 1.5).drafted_tokens == 2
    kinked = RoundCosts(target_ms=(10.0, 10.0, 30.0), draft_ms=(0.0, 0.0))
    assert required_acceptance(kinked, 1.5).drafted_tokens == 1


def test_what_not_even_a_perfect_draft_reaches_has_no_acceptance() -> None:
    never = required_acceptance(costs(first_token_share=0.5), 1.5)  # a perfect draft gains 1 / 0.75
    assert (never.acceptance, never.drafted_tokens) == (None, None)


def test_exactly_what_a_perfect_draft_reaches_takes_a_perfect_draft() -> None:
    assert required_acceptance(ONE, 2.0).acceptance == pytest.approx(1.0)


@pytest.mark.parametrize("wanted", [0.99, -1.0, float("nan"), float("inf")])
def test_a_loss_or_no_number_is_no_speed_up_to_reach(wanted: float) -> None:
    with pytest.raises(ConfigurationError, match="a speed-up of"):
        required_acceptance(ONE, wanted)


def test_k_goes_as_far_as_both_steps_are_known() -> None:
    assert RoundCosts(target_ms=(1.0,) * 9, draft_ms=(1.0,) * 3).most_drafted_tokens == 3
    assert RoundCosts(target_ms=(1.0,) * 3, draft_ms=(1.0,) * 9).most_drafted_tokens == 2


def test_the_cost_share_is_of_one_token() -> None:
    assert RoundCosts(target_ms=(10.0,) * 5, draft_ms=(1.0, 2.0, 3.0, 4.0)).cost_share == pytest.approx(0.1)


rounds = st.builds(
    RoundCosts,
    target_ms=st.lists(st.floats(0.5, 3), min_size=2, max_size=9).map(lambda steps: tuple(sorted(steps))),
    draft_ms=st.lists(st.floats(0, 1), min_size=8, max_size=8).map(lambda steps: tuple(sorted(steps))),
    first_token_share=st.floats(0, 0.9),
    draft_prefill_share=st.floats(0, 0.1),
)


@given(rounds, st.floats(1, 3))
def test_the_required_acceptance_reaches_the_gain_and_less_does_not(given_costs: RoundCosts, wanted: float) -> None:
    least = required_acceptance(given_costs, wanted).acceptance
    if least is None:
        assert given_costs.speedups(1.0).max() < wanted
    else:
        assert given_costs.speedups(min(1.0, least + 1e-6)).max() >= wanted - 1e-9
        assert least == 0 or given_costs.speedups(max(0.0, least - 1e-3)).max() < wanted


@given(st.floats(0.01, 0.99), st.integers(1, 15))
def test_the_equivalent_acceptance_turns_tokens_per_round_back(acceptance: float, drafted_tokens: int) -> None:
    tokens = tokens_per_round(acceptance, drafted_tokens)
    assert equivalent_acceptance(tokens, drafted_tokens) == pytest.approx(acceptance, abs=1e-6)


@pytest.mark.parametrize(("tokens", "acceptance"), [(1.0, 0.0), (0.5, 0.0), (4.0, 1.0), (4.2, 1.0)])
def test_tokens_outside_what_rounds_can_yield_are_the_nearer_end(tokens: float, acceptance: float) -> None:
    assert equivalent_acceptance(tokens, 3) == acceptance
