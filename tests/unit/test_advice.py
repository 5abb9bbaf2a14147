"""What drafts must reach on a study, against a world whose drafts and costs are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.support.observed import a_measurement, a_request
from tests.support.simulated_studies import a_plan, study_into
from tuner.advice import Advice, DraftAdvice, advise
from tuner.errors import ConfigurationError
from tuner.predictions import Predictions
from tuner.records import BaselineResult, Measurement, PromptTrace, TimedSteps, Trace, TraceResult
from tuner.stored import StoredStudy, read_study
from tuner.testing.memory_store import MemoryStore

HIT_RATES = {"light": 0.6, "heavy": 0.9}


@pytest.fixture(scope="module")
def study() -> StoredStudy:
    store = MemoryStore()
    study_into(store, a_plan("code"), HIT_RATES)
    return read_study(store, "code")


def measured(study: StoredStudy) -> Measurement:
    assert study.baseline_result is not None
    return study.baseline_result.measurement


def traces(study: StoredStudy) -> list[Trace]:
    return [one.trace for one in study.traces]


@pytest.fixture
def advice(study: StoredStudy) -> Advice:
    return advise(measured(study), traces(study), study.predictions, margin=0.02)


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
    advice = advise(measured(study), traces(study), study.predictions, margin=0.1, speedups=(3.0, 1.1, 1.5))
    assert advice.speedups == pytest.approx((1.1, 1.5, 3.0))
    assert [need.speedup for need in advice.drafts[0].requirements] == pytest.approx([1.1, 1.5, 3.0])


def test_a_cheaper_draft_needs_less(advice: Advice) -> None:
    given = [one for one in advice.drafts if one.draft_name is None]
    assert [one.cost_share for one in given] == pytest.approx([0.05, 0.1, 0.2])
    needed = [one.requirements[1].acceptance or 1.0 for one in given]
    assert needed == sorted(needed)
    assert needed[0] < needed[-1]


# ── by hand ───────────────────────────────────────────────────────────────────────────────────────────────────────

FLAT = {1: (0.010,), 2: (0.010,)}  # verifying a second token costs nothing
NEXT_TO_NOTHING = {1: (1e-9,)}


def a_trace(proposed: tuple[int, ...] = (0, *[1] * 10), matched: tuple[int, ...] = (0,) * 11) -> Trace:
    prompt = PromptTrace(prompt_id="p0", prompt_class="any", max_output_tokens=64, proposed=proposed, matched=matched)
    return Trace(draft_name="draft", max_drafted_tokens=1, prompts=(prompt,))


def advice_on(
    trace: Trace,
    *,
    token_s: float = 0.010,
    verify: Mapping[int, tuple[float, ...]] = FLAT,
    prefill: TimedSteps | None = None,
    speedup: float = 1.2,
    cost_shares: tuple[float, ...] = (),
) -> Advice:
    """For eleven tokens, the first after 0.1 s, after a prompt of eight tokens."""
    request = a_request(chunks=[(0.1 + token_s * place, 1) for place in range(11)], prompt_tokens=8)
    baseline = BaselineResult(
        measurement=a_measurement(request), verify=TimedSteps(step="verify", seconds=dict(verify))
    )
    steps = TimedSteps(step="draft", seconds=NEXT_TO_NOTHING)
    result = TraceResult(trace=trace, draft_steps=steps, draft_prefill=prefill)
    predictions = Predictions.of(baseline, [result])
    return advise(baseline.measurement, [trace], predictions, margin=0.0, speedups=(speedup,), cost_shares=cost_shares)


def least(draft: DraftAdvice) -> float | None:
    return draft.requirements[-1].acceptance


def test_the_part_of_the_latency_before_the_first_token_is_out_of_reach() -> None:
    # 0.1 s before the first token, 10 tokens of 0.01 s after it: 1 / (1/2 + 1/2 / (1 + a)) = 1.2
    assert least(advice_on(a_trace()).drafts[0]) == pytest.approx(0.5)
    assert least(advice_on(a_trace(), speedup=1.5).drafts[0]) is None


def test_a_draft_that_does_not_exist_yet_reads_the_prompt_at_its_share() -> None:
    # 1 / (0.5 + 0.1 · 0.5 + 0.5 · 1.1 / (1 + a)) = 1.1
    unborn = advice_on(a_trace(), speedup=1.1, cost_shares=(0.1,)).drafts[1]
    assert least(unborn) == pytest.approx(0.55 / (1 / 1.1 - 0.55) - 1)


def test_what_verifying_adds_is_added_to_the_measured_round() -> None:
    # T(0) = 20, of which 10 are no timed step, T(1) = 20 + 5; f = 0.1 / 0.3
    found = advice_on(a_trace(), token_s=0.020, verify={1: (0.010,), 2: (0.015,)})
    assert least(found.drafts[0]) == pytest.approx(2 / 3 * 25 / 20 / (1 / 1.2 - 1 / 3) - 1)


def test_the_draft_s_own_prefill_counts() -> None:
    prefill = TimedSteps(step="draft_prefill", seconds={4: (0.010,), 12: (0.030,)})  # 0.020 s of 0.2 for 8 tokens
    found = advice_on(a_trace(), prefill=prefill, speedup=1.1)
    assert least(found.drafts[0]) == pytest.approx(0.5 / (1 / 1.1 - 0.6) - 1)


def test_a_lookup_tells_how_often_it_proposes() -> None:
    traced = advice_on(a_trace(proposed=(0, 1, *[0] * 8, 1), matched=(0, 1, *[0] * 9))).drafts[0].traced
    assert traced is not None
    assert (traced.first_token, traced.proposing_share) == (0.5, 0.2)


def test_a_draft_that_is_not_priced_is_left_out(study: StoredStudy) -> None:
    other = replace(traces(study)[0], draft_name="untimed")
    advice = advise(measured(study), [other, *traces(study)], study.predictions, margin=0.02, cost_shares=())
    assert {one.draft_name for one in advice.drafts} == {"light", "heavy"}


def test_where_no_draft_is_priced_nothing_is_said(study: StoredStudy) -> None:
    for known in ((), traces(study)):
        with pytest.raises(ConfigurationError, match="what verifying several tokens costs is not known"):
            advise(measured(study), known, Predictions(by_configuration={}), margin=0.02)


def test_answers_of_one_token_leave_nothing_to_draft(study: StoredStudy) -> None:
    single = a_measurement(a_request(chunks=[(0.1, 1)]))
    with pytest.raises(ConfigurationError, match="single tokens"):
        advise(single, traces(study), study.predictions, margin=0.02)


@pytest.mark.parametrize("share", [-0.1, float("nan"), float("inf")])
def test_a_cost_that_is_no_share_is_refused(study: StoredStudy, share: float) -> None:
    with pytest.raises(ConfigurationError, match="a draft cost of"):
        advise(measured(study), traces(study), study.predictions, margin=0.02, cost_shares=(share,))
