from __future__ import annotations

import math

import pytest

from tests.support.observed import a_failed_request, a_measurement, a_request
from tuner.cost_model import MODEL_ERROR, RoundTimes, StepTime, predict, predict_all, round_times
from tuner.errors import MeasurementError
from tuner.metrics import summarize
from tuner.records import PromptTrace, TimedSteps, Trace

VERIFY = TimedSteps(step="verify", seconds={1: (0.010,), 2: (0.011,), 3: (0.012,), 4: (0.013,)})
DRAFT = TimedSteps(step="draft", seconds={1: (0.001,), 2: (0.002,), 3: (0.003,)})
TIMES = round_times(VERIFY, DRAFT)


def a_trace(*prompts: tuple[str, tuple[int, ...]], proposed: int = 3, name: str = "draft") -> Trace:
    """Matches by position of each prompt; every position proposes three tokens."""
    return Trace(
        draft_name=name,
        max_drafted_tokens=3,
        prompts=tuple(
            PromptTrace(
                prompt_id=prompt_id,
                prompt_class="any",
                max_output_tokens=99,
                proposed=(0, *[proposed] * (len(matched) - 1)),
                matched=matched,
            )
            for prompt_id, matched in prompts
        ),
    )


def alone(prompt_id: str, tokens: int, *, ttft_s: float = 0.1, tpot_s: float = 0.010):
    """The target alone: one token after another."""
    return a_request(prompt_id, chunks=[(ttft_s + tpot_s * place, 1) for place in range(tokens)])


ALWAYS = ("p0", (0, 3, 3, 3, 3, 3, 2, 1, 0))  # nine tokens; every proposal is right
NEVER = ("p1", (0,) * 9)


def test_medians_of_repeated_timings_shrug_off_a_hiccup():
    times = round_times(TimedSteps(step="verify", seconds={1: (0.010, 0.011, 0.012, 0.9)}), None)
    assert times.verify[1].ms == pytest.approx(11.5)
    assert times.verify[1].error_ms == pytest.approx(
        1.2533 * 1.4826 * 1.0 / 2
    )  # absolute deviations 1.5, .5, .5, 888.5


def test_a_size_without_a_timing_is_refused():
    with pytest.raises(MeasurementError, match="step verify of size 2 has no timing"):
        round_times(TimedSteps(step="verify", seconds={2: ()}), None)


def test_a_round_verifies_one_row_more_than_it_drafted():
    assert TIMES.round_ms(3, 3) == pytest.approx(13 + 3)
    assert TIMES.round_ms(0, 0) == pytest.approx(10)


def test_the_draft_runs_all_its_passes_even_where_less_is_proposed():
    assert TIMES.round_ms(1, 3) == pytest.approx(11 + 3)


@pytest.mark.parametrize(("drafted", "k"), [(4, 3), (3, 4)])
def test_nothing_is_extrapolated_beyond_the_timed_sizes(drafted, k):
    with pytest.raises(MeasurementError, match="was not timed and lies beyond"):
        TIMES.round_ms(drafted, k)


def test_a_size_between_two_timed_ones_allows_for_a_kink():
    times = RoundTimes(verify={4: StepTime(ms=12.0, error_ms=0.1), 8: StepTime(ms=20.0, error_ms=0.3)}, draft={})
    assert times.verify_time(6) == StepTime(ms=16.0, error_ms=0.3 + 4.0)


def test_no_speculation_is_predicted_as_it_was_measured():
    baseline = a_measurement(
        alone("p0", 9, ttft_s=0.2, tpot_s=0.012), alone("p1", 9, tpot_s=0.015), alone("p2", 1, ttft_s=0.3)
    )
    trace = a_trace(ALWAYS, NEVER, ("p2", (0,)))
    predicted = predict(trace, TIMES, baseline, 0)
    measured = summarize(baseline)
    assert predicted.speedup == pytest.approx(1)
    for name in ("e2e_ms_mean", "e2e_ms_p50", "e2e_ms_p90", "ttft_ms_mean", "tpot_ms_mean", "tpot_ms_p90"):
        assert predicted.columns[name] == pytest.approx(measured[name]), name
    assert predicted.acceptance_rate is None
    assert predicted.waste_tokens_per_output_token == 0


def test_no_speculation_is_predicted_as_measured_on_a_machine_that_was_slower_when_steps_were_timed():
    baseline = a_measurement(alone("p0", 9, tpot_s=0.008), alone("p1", 9, tpot_s=0.009))
    predicted = predict(a_trace(ALWAYS, NEVER), TIMES, baseline, 0)
    assert predicted.e2e_ms == pytest.approx(summarize(baseline)["e2e_ms_mean"])


def test_a_prediction_by_hand():
    # p0 takes two rounds of 4 tokens, p1 eight rounds of one; T(3) = 13 + 3 ms and 2 ms of overhead.
    baseline = a_measurement(alone("p0", 9, tpot_s=0.012), alone("p1", 9, tpot_s=0.012))
    predicted = predict(a_trace(ALWAYS, NEVER), TIMES, baseline, 3)
    assert predicted.e2e_ms == pytest.approx(100 + 5 * 18)
    assert predicted.tpot_ms == pytest.approx(180 / 16)
    assert predicted.speedup == pytest.approx((2 * 100 + 16 * 12) / (2 * 100 + 10 * 18))
    assert predicted.mean_acceptance_length == pytest.approx(16 / 10)
    assert predicted.acceptance_rate == pytest.approx(6 / 30)
    assert predicted.waste_tokens_per_output_token == pytest.approx(24 / 18)
    assert predicted.columns["round_time_ms"] == pytest.approx(18)


def test_on_a_slower_timing_machine_steps_are_scaled():
    baseline = a_measurement(alone("p0", 9, tpot_s=0.005), alone("p1", 9, tpot_s=0.005))
    predicted = predict(a_trace(ALWAYS, NEVER), TIMES, baseline, 3)
    assert predicted.columns["round_time_ms"] == pytest.approx(16 / 2)


def test_a_round_that_proposed_less_is_cheaper_to_verify():
    baseline = a_measurement(alone("p0", 9), alone("p1", 9))
    silent = predict(a_trace(ALWAYS, NEVER, proposed=3), TIMES, baseline, 3)
    quiet = predict(a_trace(("p0", (0,) * 9), NEVER, proposed=0), TIMES, baseline, 3)
    assert quiet.columns["round_time_ms"] == pytest.approx(10 + 3)
    assert silent.columns["round_time_ms"] == pytest.approx(13 + 3)


def test_the_interval_holds_at_least_what_the_model_misses():
    baseline = a_measurement(alone("p0", 9), alone("p1", 9))
    predicted = predict(a_trace(("p0", (0,) * 9), NEVER), TIMES, baseline, 2)
    assert predicted.speedup_high / predicted.speedup == pytest.approx(math.exp(1.96 * MODEL_ERROR))
    assert predicted.speedup_low / predicted.speedup == pytest.approx(math.exp(-1.96 * MODEL_ERROR))


def test_noisy_timings_widen_the_interval():
    def width(noise):
        verify = dict.fromkeys((1, 2, 3), (0.01 - noise, 0.01, 0.01 + noise))
        times = round_times(TimedSteps(step="verify", seconds=verify), DRAFT)
        baseline = a_measurement(alone("p0", 9), alone("p1", 9))
        predicted = predict(a_trace(ALWAYS, NEVER), times, baseline, 2)
        return predicted.speedup_high - predicted.speedup_low

    assert width(0.002) > width(0.0)


def test_failed_requests_of_the_baseline_are_not_predicted():
    baseline = a_measurement(alone("p0", 9), a_failed_request("p1"))
    predicted = predict(a_trace(ALWAYS, NEVER), TIMES, baseline, 3)
    assert predicted.mean_acceptance_length == 4


def test_repeats_of_a_prompt_are_averaged():
    baseline = a_measurement(alone("p0", 9, ttft_s=0.1), alone("p0", 9, ttft_s=0.3), alone("p1", 9, ttft_s=0.2))
    assert predict(a_trace(ALWAYS, NEVER), TIMES, baseline, 0).columns["ttft_ms_mean"] == pytest.approx(200)


def test_a_trace_of_other_prompts_is_refused():
    with pytest.raises(MeasurementError, match="share no completed prompt"):
        predict(a_trace(ALWAYS), TIMES, a_measurement(alone("other", 9)), 1)


def test_everything_within_reach_is_predicted():
    baseline = a_measurement(alone("p0", 9), alone("p1", 9))
    narrow = round_times(TimedSteps(step="verify", seconds={1: (0.01,), 2: (0.01,), 3: (0.01,)}), DRAFT)
    traces = [a_trace(ALWAYS, NEVER, name="wide"), a_trace(ALWAYS, NEVER, name="narrow")]
    predicted = predict_all(traces, {"wide": TIMES, "narrow": narrow}, baseline, range(1, 13))
    assert [(one.draft_name, one.drafted_tokens) for one in predicted] == [
        ("wide", 1), ("wide", 2), ("wide", 3), ("narrow", 1), ("narrow", 2),
    ]  # fmt: skip
