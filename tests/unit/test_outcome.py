from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.support.study_results import EAGLE, NGRAM, a_prediction, a_trial
from tuner.objective import DEFAULT_OBJECTIVES, parse_objectives
from tuner.outcome import front_members
from tuner.predictions import Predictions
from tuner.speculation import NO_SPECULATION, Speculation
from tuner.store import ParetoEntry, TrialRecord

NOTHING_PREDICTED = Predictions(by_configuration={})


def measured(
    number: int, speculation: Speculation, e2e_ms: float, waste: float, spread: float | None = 0.05
) -> TrialRecord:
    """A trial whose gain over 2,000 ms is known to within this factor; to nothing where it is None."""
    gain = 2000.0 / e2e_ms
    limits = {} if spread is None else {"speedup_low": gain / (1 + spread), "speedup_high": gain * (1 + spread)}
    return a_trial(number, speculation, values={"e2e_ms": e2e_ms, "waste": waste}, metrics={"speedup": gain, **limits})


BASELINE = measured(0, NO_SPECULATION, 2000.0, 0.0, spread=None)


def front(
    *trials: TrialRecord, untried: tuple[Speculation, ...] = (), predictions: Predictions = NOTHING_PREDICTED
) -> Mapping[Speculation, ParetoEntry]:
    members = front_members([BASELINE, *trials], untried, predictions, DEFAULT_OBJECTIVES)
    return {entry.speculation: entry for entry in members}


def test_what_wastes_least_is_on_the_front_for_sure():
    assert front(measured(1, EAGLE, 1500.0, 0.8))[NO_SPECULATION].probability == 1.0


def test_a_member_that_is_barely_faster_is_barely_sure():
    # Slower in truth with probability one half, and then it wastes tokens for nothing.
    members = front(measured(1, EAGLE, 1999.9, 0.8))
    assert members[EAGLE].probability == pytest.approx(0.5, abs=0.05)


def test_a_clear_member_is_sure():
    assert front(measured(1, EAGLE, 1500.0, 0.8))[EAGLE].probability == 1.0


def test_two_that_differ_by_less_than_they_are_known_to_share_the_front():
    other = replace(EAGLE, drafted_tokens=4)
    members = front(measured(1, EAGLE, 1500.0, 0.8), measured(2, other, 1510.0, 0.8))
    assert set(members) == {NO_SPECULATION, EAGLE}  # the slower one is not a member by estimate
    assert 0.5 < members[EAGLE].probability < 0.7


def test_predicted_members_are_as_sure_as_their_prediction():
    predictions = Predictions(by_configuration={("ngram", 4): a_prediction("ngram", 4, 1.3)})
    objectives = parse_objectives(["e2e_ms"])
    trials = [replace(BASELINE, values={"e2e_ms": 2000.0})]
    (member,) = front_members(trials, (NGRAM,), predictions, objectives)
    assert (member.speculation, member.is_measured, member.trial_number) == (NGRAM, False, None)
    assert member.probability == 1.0


def test_where_a_gain_has_no_interval_nothing_is_said_of_probability():
    members = front(measured(1, EAGLE, 1500.0, 0.8, spread=None))
    assert {entry.probability for entry in members.values()} == {None}


def test_at_a_further_load_what_differs_between_loads_is_in_doubt_even_without_an_interval():
    objectives = parse_objectives(["output_tokens_per_s@8", "waste"])
    other = replace(EAGLE, drafted_tokens=4)
    rates = [(0, NO_SPECULATION, 50.0, 0.0), (1, EAGLE, 100.0, 0.8), (2, other, 99.0, 0.8)]
    trials = [
        a_trial(number, speculation, values={"output_tokens_per_s@8": rate, "waste": waste}, metrics={})
        for number, speculation, rate, waste in rates
    ]
    members = {entry.speculation: entry for entry in front_members(trials, (), NOTHING_PREDICTED, objectives)}
    assert set(members) == {NO_SPECULATION, EAGLE}
    assert members[NO_SPECULATION].probability == 1.0
    # 1 % apart, each known to 1 %: the better one by estimate is so in truth with Φ(1 / √2)
    assert members[EAGLE].probability == pytest.approx(0.76, abs=0.03)


def test_at_a_further_load_its_own_interval_counts():
    objectives = parse_objectives(["cost@8", "waste"], price_per_hour=1.0)
    sure, unsure = ({"speedup_low@8": 2 / width, "speedup_high@8": 2 * width} for width in (1.001, 1.5))
    trials = [a_trial(0, NO_SPECULATION, values={"cost@8": 2.0, "waste": 0.0})]

    def probability(metrics: Mapping[str, float]) -> float:
        faster = a_trial(1, EAGLE, values={"cost@8": 1.8, "waste": 0.5}, metrics=metrics)
        entries = front_members([*trials, faster], (), NOTHING_PREDICTED, objectives)
        return next(entry.probability for entry in entries if entry.speculation == EAGLE)

    assert probability(sure) == 1.0
    assert 0.6 < probability(unsure) < 0.9


def test_the_front_of_a_study_is_the_same_every_time():
    trials = measured(1, EAGLE, 1990.0, 0.8), measured(2, NGRAM, 1980.0, 0.9)
    assert front(*trials) == front(*trials)


def test_an_exact_objective_alone_leaves_no_doubt():
    members = front_members(
        [BASELINE, measured(1, EAGLE, 1500.0, 0.8)], (), NOTHING_PREDICTED, parse_objectives(["waste"])
    )
    assert [(entry.speculation, entry.probability) for entry in members] == [(NO_SPECULATION, 1.0)]
