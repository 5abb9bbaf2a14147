"""What is believed of all configurations at once, by draws of step times: cases with known numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.support.forecasts import BASELINE_MS, PLAIN_ROUND_MS, Machine
from tuner.forecast import KINK_ALLOWANCE, Forecast, Key, Outlook
from tuner.step_times import CONFIGURATION_ERROR, LOAD_ERROR

CERTAIN = Machine(hit_rates={"light": 0.5, "heavy": 0.8}, pass_ms={"light": 1.0, "heavy": 4.0}, sd=1e-9)
VAGUE = replace(CERTAIN, sd=0.3)
OWN_SHARE = CONFIGURATION_ERROR**2 / (CONFIGURATION_ERROR**2 + LOAD_ERROR**2)
"""How much of a deviation is the configuration's own; the rest is noise of the measurement."""


def of(outlook: Outlook, values: np.ndarray) -> dict[Key, float]:
    return dict(zip(outlook.keys, (float(one) for one in values), strict=True))


def test_with_known_steps_gains_are_the_logarithms_of_the_speed_ups() -> None:
    # light k=1: two thirds of the rounds, each 20 + 0.5 + 1 ms
    assert CERTAIN.speedup(("light", 1)) == pytest.approx(20 / (2 / 3 * 21.5))
    outlook = CERTAIN.forecast().outlook({})
    gains = of(outlook, outlook.gains[0])
    assert gains == pytest.approx({key: math.log(CERTAIN.speedup(key)) for key in CERTAIN.keys})
    assert outlook.expected_speedup(("light", 1)) == pytest.approx(CERTAIN.speedup(("light", 1)))
    assert (outlook.error == CONFIGURATION_ERROR).all()


def test_a_rate_gains_as_the_time_does() -> None:
    measured = {("heavy", 3): 5000.0}
    as_time = VAGUE.forecast().outlook(measured)
    as_rate = VAGUE.forecast(is_rate=True).outlook({("heavy", 3): 1e6 / 5000.0})
    assert as_rate.gains == pytest.approx(as_time.gains)
    assert as_rate.incumbent_key == as_time.incumbent_key == ("heavy", 3)


# ── the best so far ───────────────────────────────────────────────────────────────────────────────────────────────


def test_before_anything_was_measured_no_speculation_is_the_best() -> None:
    outlook = CERTAIN.forecast().outlook({})
    assert outlook.incumbent is None
    assert outlook.incumbent_key is None
    assert of(outlook, outlook.improvement_bounds())["heavy", 3] == pytest.approx(
        math.log(CERTAIN.speedup(("heavy", 3)))
    )


def test_a_configuration_that_was_measured_slower_than_no_speculation_is_not_the_best() -> None:
    outlook = CERTAIN.forecast().outlook({("light", 6): BASELINE_MS * 1.2})
    assert outlook.measured.sum() == 1
    assert outlook.incumbent_key is None


def test_the_best_is_the_fastest_measured_one() -> None:
    measured = {key: CERTAIN.latency_ms(key) for key in (("light", 1), ("heavy", 3), ("heavy", 1))}
    assert CERTAIN.forecast().outlook(measured).incumbent_key == ("heavy", 3)


def test_configurations_that_are_not_in_the_forecast_are_passed_over() -> None:
    measured = {("other", 1): 1.0, ("heavy", 99): 1.0}
    outlook = VAGUE.forecast().outlook(measured, running=[("other", 2)])
    assert outlook.gains == pytest.approx(VAGUE.forecast().outlook({}).gains)
    assert not outlook.measured.any()
    assert not outlook.running.any()


# ── measurements ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_of_a_measured_deviation_that_no_step_explains_its_own_share_is_believed() -> None:
    key = ("heavy", 3)
    outlook = CERTAIN.forecast().outlook({key: CERTAIN.latency_ms(key) * 1.02})
    found = of(outlook, outlook.gains[0])
    assert found[key] == pytest.approx(math.log(CERTAIN.speedup(key) / 1.02**OWN_SHARE))
    assert found["heavy", 2] == pytest.approx(math.log(CERTAIN.speedup(("heavy", 2))))
    errors = of(outlook, outlook.error)
    assert errors[key] == pytest.approx(CONFIGURATION_ERROR * math.sqrt(1 - OWN_SHARE))
    assert errors["heavy", 2] == CONFIGURATION_ERROR


def test_a_measurement_teaches_of_the_draft_that_was_not_measured_only_what_they_share() -> None:
    before = VAGUE.forecast().outlook({})
    after = VAGUE.forecast().outlook({("heavy", 3): VAGUE.latency_ms(("heavy", 3))})
    spread = {
        key: (float(before.gains[:, index].std()), float(after.gains[:, index].std()))
        for index, key in enumerate(before.keys)
    }
    assert spread["heavy", 4][1] < spread["heavy", 4][0] / 3
    assert spread["light", 4][1] == pytest.approx(spread["light", 4][0], rel=0.1)


def test_the_bound_is_of_the_paired_difference_so_what_is_shared_cancels() -> None:
    shared = np.random.default_rng(0).normal(0.3, 0.2, (50, 1))
    outlook = an_outlook(shared + np.array([0.0, 0.02, -0.01]), measured=[True, False, False])
    assert outlook.improvement_bounds() == pytest.approx([0, 0.02, -0.01])


def test_the_bound_is_the_95_percent_quantile() -> None:
    gains = np.linspace(0.0, 1.0, 101)[:, None]
    outlook = an_outlook(gains, measured=[False])
    assert outlook.improvement_bounds() == pytest.approx([0.95])
    assert outlook.expected_improvements() == pytest.approx([0.5])
    assert outlook.speedup_bound(("a", 1)) == pytest.approx(math.exp(0.95))


def test_what_runs_is_to_be_beaten_as_if_it_had_come_out_as_predicted() -> None:
    gains = np.log(np.full((4, 3), [1.5, 1.6, 1.9]))
    outlook = an_outlook(gains, measured=[True, False, False], running=[False, False, True])
    assert outlook.incumbent == 0
    assert not outlook.is_worth_measuring(0.01).any()


def test_what_is_measured_or_running_or_cannot_gain_more_than_epsilon_is_not_worth_it() -> None:
    gains = np.log(np.full((4, 5), [1.5, 1.5 * 1.0102, 1.5 * 1.0100, 1.4, 1.2]))
    outlook = an_outlook(gains, measured=[True, False, False, False, True], running=[False, False, False, True, False])
    assert outlook.incumbent == 0
    # latency below the best one's by 1 %: a speed-up of 1 / 0.99 = 1.0101
    assert outlook.is_worth_measuring(0.01).tolist() == [False, True, False, False, False]
    assert outlook.is_worth_measuring(0.0).tolist() == [False, True, True, False, False]
    assert outlook.is_worth_measuring(0.02).tolist() == [False] * 5


def test_where_widths_were_not_timed_fewer_rows_than_the_best_may_lie_before_a_kink() -> None:
    gains = np.zeros((4, 3)) + 0.1
    outlook = an_outlook(gains, measured=[False, True, False], kink_allowance=KINK_ALLOWANCE)
    assert outlook.improvement_bounds() == pytest.approx([KINK_ALLOWANCE, 0, 0])
    nothing_measured = an_outlook(gains, measured=[False] * 3, kink_allowance=KINK_ALLOWANCE)
    assert nothing_measured.improvement_bounds() == pytest.approx([0.1] * 3)
    assert VAGUE.forecast().outlook({}).kink_allowance == 0
    assert replace(VAGUE.forecast(), widths_are_timed=False).outlook({}).kink_allowance == KINK_ALLOWANCE


def an_outlook(
    gains: np.ndarray, *, measured: list[bool], running: list[bool] | None = None, kink_allowance: float = 0.0
) -> Outlook:
    count = gains.shape[1]
    return Outlook(
        keys=tuple(("a", tokens) for tokens in range(1, count + 1)),
        gains=gains,
        measured=np.array(measured),
        running=np.array(running or [False] * count),
        error=np.zeros(count),
        kink_allowance=kink_allowance,
    )


# ── several in flight ─────────────────────────────────────────────────────────────────────────────────────────────


def test_what_runs_counts_as_measured_as_predicted() -> None:
    alone = VAGUE.forecast().outlook({})
    during = VAGUE.forecast().outlook({}, running=[("heavy", 3)])
    assert during.running[during.keys.index(("heavy", 3))]
    assert not during.measured.any()
    assert during.incumbent is None
    assert during.gains.mean(axis=0) == pytest.approx(alone.gains.mean(axis=0), abs=0.03)
    assert (
        during.gains.std(axis=0)[during.keys.index(("heavy", 4))]
        < 0.5 * alone.gains.std(axis=0)[alone.keys.index(("heavy", 4))]
    )


def test_what_was_measured_meanwhile_is_not_running() -> None:
    key = ("heavy", 3)
    outlook = VAGUE.forecast().outlook({key: VAGUE.latency_ms(key)}, running=[key])
    assert (outlook.measured.sum(), outlook.running.sum()) == (1, 0)


# ── chances ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_chances_of_being_best_leave_the_rest_to_no_speculation() -> None:
    outlook = VAGUE.forecast().outlook({})
    chances = of(outlook, outlook.probabilities_of_best())
    assert sum(chances.values()) == pytest.approx(1)  # some heavy k is faster than no speculation in every draw
    assert max(chances, key=chances.__getitem__)[0] == "heavy"
    hopeless = replace(CERTAIN, pass_ms={"light": 40.0, "heavy": 40.0}).forecast().outlook({})
    assert hopeless.probabilities_of_best().sum() == 0


def test_quantiles_of_the_speed_up_hold_the_configurations_own_error() -> None:
    low, middle, high = CERTAIN.forecast().outlook({}).speedups([0.025, 0.5, 0.975])
    truth = np.array([CERTAIN.speedup(key) for key in CERTAIN.keys])
    assert middle == pytest.approx(truth, rel=0.005)
    assert np.log(high / low) == pytest.approx(np.full(len(truth), 2 * 1.96 * CONFIGURATION_ERROR), rel=0.15)


def test_the_same_measurements_give_the_same_outlook() -> None:
    measured = {("heavy", 3): 9000.0, ("light", 2): 15000.0}
    first, second = (VAGUE.forecast().outlook(measured) for _ in range(2))
    assert (first.gains == second.gains).all()
    backwards = VAGUE.forecast().outlook(dict(reversed(measured.items())))
    assert backwards.gains == pytest.approx(first.gains)


def test_a_forecast_of_nothing_has_an_outlook_without_configurations() -> None:
    forecast = Forecast(candidates=(), step_times=VAGUE.forecast().step_times, baseline_value=1.0)
    outlook = forecast.outlook({})
    assert outlook.keys == ()
    assert outlook.incumbent_key is None
    assert outlook.is_worth_measuring(0.01).size == 0


def test_as_many_rounds_of_the_baseline_are_what_no_step_accounts_for() -> None:
    one = CERTAIN.forecast().candidates[0]
    assert one.fixed_ms == pytest.approx(2 / 3 * 1000 * PLAIN_ROUND_MS)
