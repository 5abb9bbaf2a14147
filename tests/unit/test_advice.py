"""What drafts must reach on a study, against a world whose drafts and costs are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.support.observed import a_measurement, a_request
from tests.support.searches import search_into, search_plan
from tuner.advice import Advice, DraftAdvice, advise
from tuner.errors import ConfigurationError
from tuner.payoff import tokens_per_round
from tuner.predictions import Predictions
from tuner.records import BaselineResult, PromptTrace, TimedSteps, Trace, TraceResult
from tuner.store import MemoryStore
from tuner.stored import StoredStudy, read_study

HIT_RATES = {"light": 0.6, "heavy": 0.9}
NOTHING = Predictions(by_configuration={})


@pytest.fixture(scope="module")
def study() -> StoredStudy:
    store = MemoryStore()
    search_into(store, search_plan("code"), HIT_RATES)
    return read_study(store, "code")


@pytest.fixture
def advice(study: StoredStudy) -> Advice:
    assert study.baseline_result is not None
    return advise(study.baseline_result, study.traces, study.predictions, margin=0.02)


def by_name(advice: Advice) -> Mapping[str | None, DraftAdvice]:
    return {one.draft_name: one for one in advice.drafts}


def test_timed_drafts_have_the_costs_of_their_world(advice: Advice) -> None:
    assert {name: one.cost_share for name, one in by_name(advice).items() if name} == {
        "light": pytest.approx(1 / 20),
        "heavy": pytest.approx(4 / 20),
    }
    assert advice.first_token_share == pytest.approx(50 / (50 + 39 * 20))
    assert advice.most_drafted_tokens == 6


def test_traced_drafts_have_about_the_acceptance_of_their_world(advice: Advice) -> None:
    for name, rate in HIT_RATES.items():
        traced = by_name(advice)[name].traced
        assert traced is not None
        assert traced.equivalent == pytest.approx(rate, abs=0.04)
        assert traced.first_token == pytest.approx(rate, abs=0.04)
        assert traced.proposing_share == 1.0


def test_the_replayed_speed_up_lies_where_the_model_puts_its_acceptance(advice: Advice) -> None:
    # heavy reaches 2.03 in replay: about the acceptance that the model asks for 2
    heavy = by_name(advice)["heavy"]
    assert heavy.traced is not None
    assert heavy.traced.speedup == pytest.approx(2.0, abs=0.1)
    assert heavy.requirements[-1].acceptance == pytest.approx(heavy.traced.equivalent, abs=0.02)


def test_wanted_gains_are_the_margin_and_those_asked_for(study: StoredStudy) -> None:
    assert study.baseline_result is not None
    advice = advise(study.baseline_result, (), study.predictions, margin=0.1, speedups=(3.0, 1.1, 1.5))
    assert advice.speedups == pytest.approx((1.1, 1.5, 3.0))
    assert [need.speedup for need in advice.drafts[0].requirements] == pytest.approx([1.1, 1.5, 3.0])


def test_a_cheaper_draft_needs_less(advice: Advice) -> None:
    given = [one for one in advice.drafts if one.draft_name is None]
    assert [one.cost_share for one in given] == pytest.approx([0.05, 0.1, 0.2])
    needed = [one.requirements[1].acceptance or 1.0 for one in given]
    assert needed == sorted(needed)
    assert needed[0] < needed[-1]


def test_a_draft_that_was_not_predicted_is_left_out(study: StoredStudy) -> None:
    assert study.baseline_result is not None
    advice = advise(study.baseline_result, study.traces, NOTHING, margin=0.02)
    assert [one.draft_name for one in advice.drafts] == [None, None, None]


# ── by hand ───────────────────────────────────────────────────────────────────────────────────────────────────────


def a_baseline(*, token_s: float = 0.010, verify: TimedSteps | None = None) -> BaselineResult:
    """Eleven tokens, the first after 0.1 s, after a prompt of eight tokens."""
    request = a_request(chunks=[(0.1 + token_s * place, 1) for place in range(11)], prompt_tokens=8)
    steps = verify or TimedSteps(step="verify", seconds={1: (0.010,), 2: (0.010,)})
    return BaselineResult(measurement=a_measurement(request), verify=steps)


def least_acceptance(baseline: BaselineResult, share: float, speedup: float) -> float | None:
    advice = advise(baseline, (), NOTHING, margin=0.0, speedups=(speedup,), cost_shares=(share,))
    return advice.drafts[0].requirements[-1].acceptance


def test_half_of_the_latency_is_out_of_reach_where_the_prefill_takes_it() -> None:
    # 0.1 s before the first token, 10 tokens of 0.01 s after it: 1 / (1/2 + 1/2 / (1 + a)) = 1.2
    assert least_acceptance(a_baseline(), 0.0, 1.2) == pytest.approx(0.5)
    assert least_acceptance(a_baseline(), 0.0, 1.5) is None


def test_a_draft_that_does_not_exist_yet_reads_the_prompt_at_its_share() -> None:
    # 1 / (0.5 + 0.1 · 0.5 + 0.5 · 1.1 / (1 + a)) = 1.1
    assert least_acceptance(a_baseline(), 0.1, 1.1) == pytest.approx(0.55 / (1 / 1.1 - 0.55) - 1)


def test_what_rounds_take_beyond_their_steps_is_kept() -> None:
    # T(0) = 20 of which 10 are overhead, T(1) = 10 + 10: f = 0.1 / 0.3
    assert least_acceptance(a_baseline(token_s=0.020), 0.0, 1.2) == pytest.approx(2 / 3 / (1 / 1.2 - 1 / 3) - 1)


def test_steps_that_were_timed_on_a_slower_machine_are_scaled() -> None:
    slow = TimedSteps(step="verify", seconds={1: (0.020,), 2: (0.020,)})
    assert least_acceptance(a_baseline(verify=slow), 0.0, 1.2) == pytest.approx(0.5)


def test_widths_between_timed_ones_are_interpolated() -> None:
    gaps = TimedSteps(step="verify", seconds={1: (0.010,), 3: (0.014,)})
    advice = advise(a_baseline(verify=gaps), (), NOTHING, margin=0.0, cost_shares=(0.0,))
    perfect = max(tokens_per_round(1.0, k) / rows for k, rows in ((1, 1.2), (2, 1.4)))
    assert advice.drafts[0].most_speedup == pytest.approx(1 / (0.5 + 0.5 / perfect))


def test_a_lookup_tells_how_often_it_proposes() -> None:
    prompt = PromptTrace(
        prompt_id="p0", prompt_class="any", max_output_tokens=64, proposed=(0, 1, *[0] * 8, 1), matched=(0, 1, *[0] * 9)
    )
    trace = Trace(draft_name="ngram", max_drafted_tokens=1, prompts=(prompt,))
    steps = TimedSteps(step="draft", seconds={1: (0.0001,)})
    result = TraceResult(trace=trace, draft_steps=steps)
    baseline = a_baseline()
    advice = advise(baseline, [result], Predictions.of(baseline, [result]), margin=0.02, cost_shares=())
    traced = advice.drafts[0].traced
    assert traced is not None
    assert (traced.first_token, traced.proposing_share) == (0.5, 0.2)


def test_the_draft_s_own_prefill_counts() -> None:
    trace = Trace(
        draft_name="model",
        max_drafted_tokens=1,
        prompts=(
            PromptTrace(
                prompt_id="p0", prompt_class="any", max_output_tokens=64, proposed=(0, *[1] * 10), matched=(0,) * 11
            ),
        ),
    )
    steps = TimedSteps(step="draft", seconds={1: (0.0,)})
    prefill = TimedSteps(step="draft_prefill", seconds={4: (0.010,), 12: (0.030,)})  # 0.020 s for 8 tokens
    result = TraceResult(trace=trace, draft_steps=steps, draft_prefill=prefill)
    baseline = a_baseline()
    predictions = Predictions.of(baseline, [replace(result, draft_prefill=None)])
    advice = advise(baseline, [result], predictions, margin=0.0, speedups=(1.1,), cost_shares=())
    # 0.020 of 0.2 s: 1 / (0.5 + 0.1 + 0.5 / (1 + a)) = 1.1
    assert advice.drafts[0].requirements[-1].acceptance == pytest.approx(0.5 / (1 / 1.1 - 0.6) - 1)


def test_without_a_timed_verify_curve_nothing_is_said() -> None:
    for steps in (None, TimedSteps(step="verify", seconds={1: (0.010,)})):
        untimed = replace(a_baseline(), verify=steps)
        with pytest.raises(ConfigurationError, match="verifying several tokens was not timed"):
            advise(untimed, (), NOTHING, margin=0.02)


def test_answers_of_one_token_leave_nothing_to_draft() -> None:
    single = a_measurement(a_request(chunks=[(0.1, 1)]))
    with pytest.raises(ConfigurationError, match="single tokens"):
        advise(replace(a_baseline(), measurement=single), (), NOTHING, margin=0.02)


@pytest.mark.parametrize("share", [-0.1, float("nan"), float("inf")])
def test_a_cost_that_is_no_share_is_refused(share: float) -> None:
    with pytest.raises(ConfigurationError, match="a draft cost of"):
        advise(a_baseline(), (), NOTHING, margin=0.02, cost_shares=(share,))
