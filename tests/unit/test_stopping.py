"""What a search may use, and what it says when that is used up."""

from __future__ import annotations

import pytest

from tuner.stopping import Budget, Reason, Spent, StopKind


def spent(trials: int = 3, compiles: int = 2, minutes: float = 90.0) -> Spent:
    return Spent(trials=trials, compiles=compiles, seconds=minutes * 60)


@pytest.mark.parametrize(
    ("budget", "kind", "text"),
    [
        (Budget(max_trials=3), StopKind.MAX_TRIALS, "3 configurations were tried, the limit is 3"),
        (Budget(max_trials=1), StopKind.MAX_TRIALS, "3 configurations were tried, the limit is 1"),
        (Budget(max_compiles=2), StopKind.MAX_COMPILES, "2 configurations were compiled, the limit is 2"),
        (Budget(max_minutes=90), StopKind.MAX_MINUTES, "90.0 minutes of measuring were used, the limit is 90"),
        (Budget(max_minutes=62.5), StopKind.MAX_MINUTES, "90.0 minutes of measuring were used, the limit is 62.5"),
        (Budget(max_cost=1.95, price_per_hour=1.34), StopKind.MAX_COST, "2.01 was spent, the limit is 1.95"),
    ],
)
def test_each_limit_ends_a_search_and_says_so(budget: Budget, kind: StopKind, text: str) -> None:
    assert budget.exhausted_by(spent()) == Reason(kind=kind, text=text)


@pytest.mark.parametrize(
    "budget",
    [
        Budget(),
        Budget(max_trials=4),
        Budget(max_compiles=3),
        Budget(max_minutes=90.1),
        Budget(max_cost=2.02, price_per_hour=1.34),
        Budget(price_per_hour=1.34),
    ],
)
def test_below_every_limit_the_search_goes_on(budget: Budget) -> None:
    assert budget.exhausted_by(spent()) is None


def test_of_several_limits_the_one_that_is_reached_is_named() -> None:
    budget = Budget(max_trials=6, max_compiles=5, max_minutes=60, max_cost=100, price_per_hour=1)
    reason = budget.exhausted_by(spent())
    assert reason is not None
    assert reason.kind is StopKind.MAX_MINUTES


def test_the_cost_is_the_price_of_the_hours() -> None:
    assert Budget(price_per_hour=1.34).cost(spent(minutes=90)) == pytest.approx(2.01)
    assert Budget().cost(spent()) is None


def test_without_a_price_no_cost_is_ever_reached() -> None:
    assert Budget(max_cost=0.01).exhausted_by(spent()) is None
