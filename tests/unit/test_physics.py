from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.support.observed import a_failed_request, a_measurement, a_request, timed
from tuner.intervals import Interval
from tuner.physics import (
    TIMING_ERROR,
    acceptance_alarm,
    acceptance_interval,
    draft_cost_low,
    physics_check,
    replayed_acceptance,
    rounds_alarm,
)
from tuner.records import BaselineResult, Measurement, PromptTrace, Sampling, TimedSteps, Trace, TraceKind

LENGTHS = np.linspace(1.0, 3.0, 24)


def sides(gain: float, *, rounds: int = 5, **candidate: str) -> tuple[Measurement, Measurement]:
    """Eleven tokens a prompt; the candidate needs ``rounds`` rounds for ten of them."""
    slow = a_measurement(*(timed(f"p{n}", s, rounds=10) for n, s in enumerate(LENGTHS)))
    fast = a_measurement(*(timed(f"p{n}", s / gain, rounds=rounds) for n, s in enumerate(LENGTHS)))
    return slow, replace(fast, environment=candidate)


# ── physics ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_loss_is_no_artefact_even_where_the_limit_is_lower_still():
    # τ = 1.25 and drafting that costs half a round: at most 0.83. A measured 0.9 is odd, but no gain.
    check = physics_check(*sides(0.9, rounds=8), draft_cost_low=0.5)
    assert check.limit == pytest.approx(1.25 / 1.5)
    assert not check.is_artefact


def test_a_gain_beyond_what_drafting_leaves_is_an_artefact():
    assert not physics_check(*sides(1.9)).is_artefact
    assert physics_check(*sides(1.9), draft_cost_low=0.2).is_artefact


def test_sides_with_other_numbers_in_flight_are_not_held_to_physics():
    check = physics_check(*sides(3.0, concurrency="4"))
    assert check.limit is None
    assert not check.is_artefact


# ── what drafting costs at least ──────────────────────────────────────────────────────────────────────────────────


def a_baseline(*, tpot_s: float = 0.020, one_row_s: float | None = 0.019) -> BaselineResult:
    verify = None if one_row_s is None else TimedSteps(step="verify", seconds={1: (one_row_s,) * 5, 2: (9.0,)})
    request = timed("p0", 10 * tpot_s, tokens=11)
    return BaselineResult(measurement=a_measurement(request), verify=verify)


def drafting(**seconds: tuple[float, ...]) -> TimedSteps:
    return TimedSteps(step="draft", seconds={int(size[1:]): times for size, times in seconds.items()})


def test_drafting_is_set_against_the_slower_of_timed_pass_and_measured_round():
    steps = drafting(k3=(0.004,) * 5)
    allowance = math.exp(-1.96 * TIMING_ERROR)
    assert draft_cost_low(a_baseline(), steps, 3) == pytest.approx(0.004 / 0.020 * allowance)
    assert draft_cost_low(a_baseline(one_row_s=0.025), steps, 3) == pytest.approx(0.004 / 0.025 * allowance)
    assert draft_cost_low(a_baseline(one_row_s=None), steps, 3) == pytest.approx(0.004 / 0.020 * allowance)


def test_noisy_timings_lower_the_limit():
    sure, noisy = drafting(k3=(0.004,) * 5), drafting(k3=(0.002, 0.003, 0.004, 0.005, 0.006))
    assert 0 < draft_cost_low(a_baseline(), noisy, 3) < draft_cost_low(a_baseline(), sure, 3)


def test_a_k_that_was_not_timed_costs_at_least_what_a_smaller_one_does():
    steps = drafting(k2=(0.003,), k8=(0.009,))
    assert draft_cost_low(a_baseline(), steps, 5) == draft_cost_low(a_baseline(), steps, 2)


@pytest.mark.parametrize("steps", [drafting(k8=(0.009,)), drafting(), drafting(k2=()), drafting(k2=(0.0,))])
def test_what_is_not_known_costs_nothing(steps):
    assert draft_cost_low(a_baseline(), steps, 5) == 0


def test_without_any_plain_round_drafting_has_no_relative_cost():
    nothing = BaselineResult(measurement=a_measurement(a_failed_request()), verify=None)
    assert draft_cost_low(nothing, drafting(k2=(0.003,)), 2) == 0


# ── acceptance measured and replayed ──────────────────────────────────────────────────────────────────────────────


def an_interval(low: float, high: float) -> Interval:
    return Interval(
        estimate=math.sqrt(low * high),
        low=low,
        high=high,
        one_sided_99_low=low,
        n=24,
        coefficient_of_variation=0.1,
        method="delta",
    )


def test_intervals_that_overlap_are_no_alarm():
    assert acceptance_alarm(an_interval(2.0, 2.2), an_interval(2.2, 2.4)) is None
    assert acceptance_alarm(an_interval(2.0, 2.9), an_interval(2.2, 2.4)) is None


@pytest.mark.parametrize("measured", [(1.0, 2.19), (2.41, 3.0)])
def test_acceptance_outside_the_replayed_interval_is_an_alarm_with_both_figures(measured):
    alarm = acceptance_alarm(an_interval(*measured), an_interval(2.2, 2.4))
    assert alarm.startswith("ALARM: the measured mean acceptance length ")
    assert f"({measured[0]:.2f} to {measured[1]:.2f}) lies outside the replayed 2.30 (2.20 to 2.40)" in alarm


def test_acceptance_that_nobody_knows_is_no_alarm():
    assert acceptance_alarm(None, an_interval(2.2, 2.4)) is None
    assert acceptance_alarm(an_interval(2.2, 2.4), None) is None


def test_repeats_of_a_prompt_are_no_further_evidence_of_its_acceptance():
    _, fast = sides(1.5)
    uneven = a_measurement(*(replace(one, rounds=3 + n % 4) for n, one in enumerate(fast.requests)))
    assert acceptance_interval(uneven + uneven) == acceptance_interval(uneven)
    assert acceptance_interval(uneven).estimate == pytest.approx(240 / 108)


def a_trace(*matched: tuple[int, ...], **changes: object) -> Trace:
    """Prompts p0, p1, … with these matches of an n-gram that always proposes two tokens."""
    prompts = tuple(
        PromptTrace(
            prompt_id=f"p{number}",
            prompt_class="any",
            max_output_tokens=64,
            proposed=(0, *[2] * (len(one) - 1)),
            matched=one,
        )
        for number, one in enumerate(matched)
    )
    trace = Trace(draft_name="ngram", max_drafted_tokens=2, prompts=prompts, kind=TraceKind.PROPOSALS)
    return replace(trace, **changes)  # type: ignore[arg-type]


# Seven tokens in four rounds (2 + 1 + 1 + 2), in six and in two.
TRACE = a_trace((0, 1, 0, 0, 0, 1, 0), (0, 0, 0, 0, 0, 0, 0), (0, 2, 1, 0, 2, 1, 0))


def run(*rounds: int | None, first_token: int = 0) -> Measurement:
    ids = (first_token, 1, 2, 3, 4, 5, 6)
    return a_measurement(
        *(a_request(f"p{n}", chunks=((0.1, 7),), token_ids=ids, rounds=one) for n, one in enumerate(rounds))
    )


def test_doubtful_positions_widen_the_replayed_acceptance():
    sure, doubted = replayed_acceptance(TRACE, 2), replayed_acceptance(TRACE, 2, doubtful_share=0.1)
    assert doubted.estimate == sure.estimate
    assert doubted.high == pytest.approx(sure.high * (1 + 0.1 * sure.estimate))
    assert doubted.low == pytest.approx(sure.low / (1 + 0.1 * sure.estimate))


def test_replayed_acceptance_is_tokens_over_rounds():
    interval = replayed_acceptance(TRACE, 2)
    assert interval.estimate == pytest.approx(18 / 12)
    assert replayed_acceptance(TRACE, 2, left_out={"p2"}) is None  # two prompts have no interval


def test_the_replayed_rounds_to_the_last_one_are_no_alarm():
    assert rounds_alarm(run(4, 6, 2), run(6, 6, 6), TRACE, 2) is None


def test_one_round_more_on_the_same_output_is_an_alarm_that_names_it():
    alarm = rounds_alarm(run(4, 6, 3), run(6, 6, 6), TRACE, 2)
    assert alarm.startswith("ALARM: 1 of 3 outputs of ngram k=2 took other rounds than replay says")
    assert "prompt 'p2' 3 instead of 2" in alarm


def test_outputs_that_differ_from_the_replayed_ones_say_nothing_of_rounds():
    assert rounds_alarm(run(9, 9, 9, first_token=8), run(6, 6, 6), TRACE, 2) is None


def test_engines_that_count_no_rounds_raise_no_alarm():
    assert rounds_alarm(run(None, None, None), run(6, 6, 6), TRACE, 2) is None


@pytest.mark.parametrize(
    "trace",
    [
        replace(TRACE, sampling=Sampling(temperature=1.0)),
        replace(TRACE, kind=TraceKind.LOGGED, max_drafted_tokens=4),
        replace(TRACE, max_drafted_tokens=1),
    ],
)
def test_only_exact_traces_raise_an_alarm(trace):
    assert rounds_alarm(run(9, 9, 9), run(6, 6, 6), trace, 2) is None
