"""Predictions from replayed rounds and timed steps: exact cases by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.support.observed import a_failed_request, a_measurement, a_request
from tuner.cost_model import CostModel
from tuner.errors import MeasurementError
from tuner.metrics import summarize
from tuner.prediction import Prediction, predict
from tuner.predictions import Predictions
from tuner.records import BaselineResult, Measurement, PromptTrace, TimedSteps, Trace, TraceResult
from tuner.step_times import CONFIGURATION_ERROR, guessed_step_times

VERIFY = TimedSteps(step="verify", seconds={1: (0.010,), 2: (0.011,), 3: (0.012,), 4: (0.013,)})
DRAFT = TimedSteps(step="draft", seconds={1: (0.001,), 2: (0.002,), 3: (0.003,)})


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


def costs(
    trace: Trace,
    *,
    verify: TimedSteps = VERIFY,
    draft: TimedSteps = DRAFT,
    plain_ms: float | None = None,
    prefill: TimedSteps | None = None,
) -> CostModel:
    result = TraceResult(trace=trace, draft_steps=draft, draft_prefill=prefill)
    return CostModel.timed(verify, [result], plain_ms)


def predicted(trace: Trace, baseline: Measurement, drafted_tokens: int) -> Prediction:
    """As a study predicts it."""
    if drafted_tokens == 0:
        return predict(trace, costs(trace), baseline, 0)
    result = TraceResult(trace=trace, draft_steps=DRAFT)
    made = Predictions.of(BaselineResult(measurement=baseline, verify=VERIFY), [result])
    return made.by_configuration[trace.draft_name, drafted_tokens]


def test_a_round_verifies_one_row_more_than_it_drafted_and_runs_all_passes_of_the_draft():
    # beyond a plain round of 10 ms: the draft's 3 ms, and 1 ms for each row
    assert costs(a_trace(ALWAYS)).round_ms("draft", 3) == pytest.approx([3, 4, 5, 6])


@pytest.mark.parametrize(
    ("verify", "draft", "missing"),
    [
        (VERIFY, TimedSteps(step="draft", seconds={1: (0.001,)}), "a draft of 3 tokens of 'draft' was not timed"),
        (TimedSteps(step="verify", seconds={1: (0.01,), 2: (0.01,)}), DRAFT, "a verify pass of 3 rows was not timed"),
    ],
)
def test_nothing_is_extrapolated_beyond_the_timed_sizes(verify, draft, missing):
    model = costs(a_trace(ALWAYS), verify=verify, draft=draft)
    assert not model.reaches("draft", 3)
    with pytest.raises(MeasurementError, match=missing):
        model.round_ms("draft", 3)


def test_a_size_without_a_timing_is_refused():
    with pytest.raises(MeasurementError, match="step verify of size 2 has no timing"):
        costs(a_trace(ALWAYS), verify=TimedSteps(step="verify", seconds={1: (0.01,), 2: ()}))


def test_a_width_between_two_timed_ones_allows_for_a_kink():
    verify = TimedSteps(step="verify", seconds={1: (0.010,), 2: (0.012,), 4: (0.020,)})
    model = costs(a_trace(ALWAYS), verify=verify)
    assert model.round_ms("draft", 3) == pytest.approx([3, 3 + 2, 3 + 6, 3 + 10])
    assert model.kink_ms(3) == pytest.approx([0, 0, 4, 0])
    assert not model.widths_are_timed
    assert costs(a_trace(ALWAYS)).widths_are_timed


def test_guessed_rounds_take_the_passes_that_the_engine_wastes_too():
    times = guessed_step_times((0.4, 0.4), {"draft": (2.0, 2.0)})
    model = CostModel(step_times=times, wasted_draft_passes=1)
    assert model.round_ms("draft", 2) == pytest.approx([6, 6.4, 6.8])
    assert model.reaches("draft", 60)
    assert not model.reaches("another", 1)


def test_the_draft_reads_the_prompt_before_the_first_token():
    prefill = TimedSteps(step="draft_prefill", seconds={10: (0.004,), 30: (0.008,)})
    baseline = a_measurement(alone("p0", 9), alone("p1", 9))  # of 10 prompt tokens each
    trace = a_trace(ALWAYS, NEVER)
    with_it = predict(trace, costs(trace, prefill=prefill), baseline, 2)
    without = predict(trace, costs(trace), baseline, 2)
    assert with_it.columns["ttft_ms_mean"] == pytest.approx(without.columns["ttft_ms_mean"] + 4)
    assert with_it.e2e_ms == pytest.approx(without.e2e_ms + 4)
    lengths = costs(trace, prefill=prefill).draft_prefill_ms("draft", np.array([5, 10, 20, 99]))
    assert lengths == pytest.approx([4, 4, 6, 8])


def test_no_speculation_is_predicted_as_it_was_measured():
    baseline = a_measurement(
        alone("p0", 9, ttft_s=0.2, tpot_s=0.012), alone("p1", 9, tpot_s=0.015), alone("p2", 1, ttft_s=0.3)
    )
    trace = a_trace(ALWAYS, NEVER, ("p2", (0,)))
    made = predicted(trace, baseline, 0)
    measured = summarize(baseline)
    assert made.speedup == pytest.approx(1)
    for name in ("e2e_ms_mean", "e2e_ms_p50", "e2e_ms_p90", "ttft_ms_mean", "tpot_ms_mean", "tpot_ms_p90"):
        assert made.columns[name] == pytest.approx(measured[name]), name
    assert made.acceptance_rate is None
    assert made.waste_tokens_per_output_token == 0


def test_no_speculation_is_predicted_as_measured_on_a_machine_that_was_slower_when_steps_were_timed():
    baseline = a_measurement(alone("p0", 9, tpot_s=0.008), alone("p1", 9, tpot_s=0.009))
    made = predicted(a_trace(ALWAYS, NEVER), baseline, 0)
    assert made.e2e_ms == pytest.approx(summarize(baseline)["e2e_ms_mean"])


def test_a_prediction_by_hand():
    # p0 takes two rounds of 4 tokens, p1 eight rounds of one; T(3) = 13 + 3 ms and 2 ms of overhead.
    baseline = a_measurement(alone("p0", 9, tpot_s=0.012), alone("p1", 9, tpot_s=0.012))
    made = predicted(a_trace(ALWAYS, NEVER), baseline, 3)
    assert made.e2e_ms == pytest.approx(100 + 5 * 18)
    assert made.tpot_ms == pytest.approx(180 / 16)
    assert made.speedup == pytest.approx((2 * 100 + 16 * 12) / (2 * 100 + 10 * 18))
    assert made.mean_acceptance_length == pytest.approx(16 / 10)
    assert made.acceptance_rate == pytest.approx(6 / 30)
    assert made.waste_tokens_per_output_token == pytest.approx(24 / 18)
    assert made.columns["round_time_ms"] == pytest.approx(18)


def test_on_a_slower_timing_machine_steps_are_scaled():
    baseline = a_measurement(alone("p0", 9, tpot_s=0.005), alone("p1", 9, tpot_s=0.005))
    made = predicted(a_trace(ALWAYS, NEVER), baseline, 3)
    assert made.columns["round_time_ms"] == pytest.approx(16 / 2)


def test_a_round_that_proposed_less_is_cheaper_to_verify():
    baseline = a_measurement(alone("p0", 9), alone("p1", 9))
    silent = predicted(a_trace(ALWAYS, NEVER, proposed=3), baseline, 3)
    quiet = predicted(a_trace(("p0", (0,) * 9), NEVER, proposed=0), baseline, 3)
    assert quiet.columns["round_time_ms"] == pytest.approx(10 + 3)
    assert silent.columns["round_time_ms"] == pytest.approx(13 + 3)


def test_the_interval_holds_at_least_what_a_configuration_adds_on_its_own():
    baseline = a_measurement(alone("p0", 9), alone("p1", 9))
    made = predicted(a_trace(("p0", (0,) * 9), NEVER), baseline, 2)
    assert made.speedup_high / made.speedup > math.exp(1.96 * CONFIGURATION_ERROR)
    assert made.speedup_low * made.speedup_high == pytest.approx(made.speedup**2)


def test_noisy_timings_widen_the_interval():
    def width(noise: float) -> float:
        seconds = dict.fromkeys((1, 2, 3), (0.01 - noise, 0.01, 0.01 + noise))
        trace = a_trace(ALWAYS, NEVER)
        model = costs(trace, verify=TimedSteps(step="verify", seconds=seconds))
        made = predict(trace, model, a_measurement(alone("p0", 9), alone("p1", 9)), 2)
        return made.speedup_high - made.speedup_low

    assert width(0.002) > width(0.0)


def test_doubtful_positions_widen_the_limits_by_what_they_could_cost():
    baseline = BaselineResult(
        measurement=a_measurement(alone("p0", 9, tpot_s=0.012), alone("p1", 9, tpot_s=0.012)), verify=VERIFY
    )

    def spread(share: float) -> float:
        result = TraceResult(trace=a_trace(ALWAYS, NEVER), draft_steps=DRAFT, doubtful_share=share)
        made = Predictions.of(baseline, [result]).by_configuration["draft", 3]
        assert made.e2e_ms == pytest.approx(190)
        return math.log(made.speedup_high / made.speedup)

    # 16 tokens in ten rounds, which take 180 of 380 ms: 5 % of the positions could change them by 8 %
    assert math.sqrt(spread(0.05) ** 2 - spread(0.0) ** 2) == pytest.approx(0.05 * 1.6 * 180 / 380)


def test_a_measured_configuration_settles_doubtful_positions():
    baseline = BaselineResult(measurement=a_measurement(alone("p0", 9), alone("p1", 9)), verify=VERIFY)
    sure = TraceResult(trace=a_trace(ALWAYS, ("p1", ALWAYS[1])), draft_steps=DRAFT)
    doubted = Predictions.of(baseline, [replace(sure, doubtful_share=0.1)])
    slower = doubted.by_configuration["draft", 3].e2e_ms * 1.05
    after = doubted.sharpened({("draft", 3): slower})
    assert after.by_configuration["draft", 3].e2e_ms == pytest.approx(slower, rel=0.02)
    before, now = doubted.by_configuration["draft", 2], after.by_configuration["draft", 2]
    assert now.e2e_ms > before.e2e_ms
    assert now.speedup_high / now.speedup_low < before.speedup_high / before.speedup_low


def test_failed_requests_of_the_baseline_are_not_predicted():
    baseline = a_measurement(alone("p0", 9), a_failed_request("p1"))
    made = predicted(a_trace(ALWAYS, NEVER), baseline, 3)
    assert made.mean_acceptance_length == 4


def test_repeats_of_a_prompt_are_averaged():
    baseline = a_measurement(alone("p0", 9, ttft_s=0.1), alone("p0", 9, ttft_s=0.3), alone("p1", 9, ttft_s=0.2))
    assert predicted(a_trace(ALWAYS, NEVER), baseline, 0).columns["ttft_ms_mean"] == pytest.approx(200)


def test_a_trace_of_other_prompts_is_refused():
    with pytest.raises(MeasurementError, match="share no completed prompt"):
        predicted(a_trace(ALWAYS), a_measurement(alone("other", 9)), 1)


def test_everything_within_reach_is_predicted():
    baseline = a_measurement(alone("p0", 9), alone("p1", 9))
    verify = TimedSteps(step="verify", seconds={1: (0.01,), 2: (0.01,), 3: (0.01,)})
    traces = [a_trace(ALWAYS, NEVER, name="wide"), a_trace(ALWAYS, NEVER, name="narrow")]
    short = TimedSteps(step="draft", seconds={1: (0.001,)})
    results = [TraceResult(trace=traces[0], draft_steps=DRAFT), TraceResult(trace=traces[1], draft_steps=short)]
    made = Predictions.of(BaselineResult(measurement=baseline, verify=verify), results)
    assert list(made.by_configuration) == [("wide", 1), ("wide", 2), ("narrow", 1)]


def test_a_measured_configuration_sharpens_the_others():
    # Drafting takes twice what it was timed at: all k of the draft are slower than predicted.
    baseline = BaselineResult(measurement=a_measurement(alone("p0", 9), alone("p1", 9)), verify=VERIFY)
    trace = a_trace(ALWAYS, NEVER)
    before = Predictions.of(baseline, [TraceResult(trace=trace, draft_steps=DRAFT)])
    measured = (2 * 100 + 10 * (13 + 6)) / 2
    after = before.sharpened({("draft", 3): measured})
    assert before.by_configuration["draft", 3].e2e_ms == pytest.approx(180)
    assert 180 < after.by_configuration["draft", 3].e2e_ms <= measured
    assert after.by_configuration["draft", 2].e2e_ms > before.by_configuration["draft", 2].e2e_ms
    assert before.sharpened({}) is before
