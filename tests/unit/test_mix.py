"""Several workloads in one deployment: the weighted mean, regrets, minimax, and what is left out, by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.support.observed import a_measurement, a_request
from tests.support.study_results import BASELINE, a_prediction, a_trial
from tuner.errors import ConfigurationError, NotFoundError, StudyMismatchError
from tuner.mix import LatencyRatio, Mix, MixWorkload, mix
from tuner.mix_studies import check_mixable, mix_workload
from tuner.predictions import Predictions
from tuner.records import BaselineResult, PromptTrace, Sampling, TimedSteps, Trace, TraceKind, TraceResult
from tuner.speculation import NO_SPECULATION, Method, Speculation
from tuner.store import StudyRecord, TrialState

FAST_AT_CODE = Speculation(method=Method.NGRAM, draft_name="ngram", drafted_tokens=5)
EVEN = Speculation(method=Method.NGRAM, draft_name="ngram", drafted_tokens=2)
FAST_AT_CHAT = Speculation(method=Method.EAGLE, draft_name="eagle", draft_model="head", drafted_tokens=3)


def a_ratio(estimate: float, *, error: float = 0.0, is_measured: bool = True) -> LatencyRatio:
    return LatencyRatio(
        estimate=estimate, low=estimate * (1 - error), high=estimate * (1 + error), is_measured=is_measured
    )


def a_workload(
    label: str, ratios: Mapping[Speculation, float | LatencyRatio], weight: float = 1.0, **changes: Any
) -> MixWorkload:
    known = {one: value if isinstance(value, LatencyRatio) else a_ratio(value) for one, value in ratios.items()}
    workload = MixWorkload(
        study_name=f"{label}-study",
        label=label,
        weight=weight,
        ratios={NO_SPECULATION: a_ratio(1.0), **known},
    )
    return replace(workload, **changes)


CODE = {FAST_AT_CODE: 0.5, EVEN: 0.6, FAST_AT_CHAT: 0.8}
CHAT = {FAST_AT_CODE: 0.9, EVEN: 0.6, FAST_AT_CHAT: 0.5}


def code_and_chat(code: float = 1.0, chat: float = 1.0) -> Mix:
    return mix([a_workload("code", CODE, code), a_workload("chat", CHAT, chat)])


def test_the_mean_is_that_of_latency_ratios_weighted_by_shares() -> None:
    found = {one.speculation: one.latency_ratio for one in code_and_chat(30, 10).configurations}
    assert found == {
        NO_SPECULATION: pytest.approx(1.0),
        FAST_AT_CODE: pytest.approx(0.75 * 0.5 + 0.25 * 0.9),
        EVEN: pytest.approx(0.6),
        FAST_AT_CHAT: pytest.approx(0.75 * 0.8 + 0.25 * 0.5),
    }


def test_only_the_proportion_of_weights_matters() -> None:
    assert code_and_chat(30, 10).shares == pytest.approx((0.75, 0.25))
    assert code_and_chat(0.3, 0.1).shares == pytest.approx((0.75, 0.25))


def test_the_recommended_configuration_depends_on_the_shares() -> None:
    assert code_and_chat().recommended.speculation == EVEN
    assert code_and_chat(9, 1).recommended.speculation == FAST_AT_CODE
    assert code_and_chat(1, 9).recommended.speculation == FAST_AT_CHAT


def test_a_regret_is_relative_to_the_best_of_its_workload() -> None:
    rows = {one.speculation: one.regrets for one in code_and_chat().configurations}
    assert rows[EVEN] == pytest.approx((0.2, 0.2))
    assert rows[FAST_AT_CODE] == pytest.approx((0.0, 0.8))
    assert rows[NO_SPECULATION] == pytest.approx((1.0, 1.0))


def test_minimax_has_the_smallest_worst_regret_whatever_the_shares() -> None:
    assert [code_and_chat(weight, 1).minimax.speculation for weight in (0.1, 1, 9)] == [EVEN] * 3
    assert code_and_chat(9, 1).minimax.worst_regret == pytest.approx(0.2)


def test_separate_deployments_take_the_best_of_each_workload() -> None:
    found = code_and_chat()
    assert found.separate == (FAST_AT_CODE, FAST_AT_CHAT)
    assert found.separate_gain == pytest.approx(0.6 / 0.5 - 1)


def test_a_single_configuration_that_is_best_everywhere_leaves_nothing_to_gain() -> None:
    assert mix([a_workload("a", CODE), a_workload("b", CODE)]).separate_gain == pytest.approx(0.0)


def test_no_speculation_is_recommended_where_nothing_gains_the_margin() -> None:
    found = mix([a_workload("a", {EVEN: 0.99}), a_workload("b", {EVEN: 0.99})], margin=0.02)
    assert found.configurations[0].speculation == EVEN
    assert found.recommended.speculation == NO_SPECULATION
    assert found.separate_gain == pytest.approx(1 / 0.99 - 1)


def test_of_equal_configurations_the_simplest_is_recommended() -> None:
    ratios = {FAST_AT_CODE: 0.7, EVEN: 0.7}
    assert mix([a_workload("a", ratios), a_workload("b", ratios)]).recommended.speculation == EVEN


def test_what_is_known_on_some_workloads_only_is_left_out_of_the_mix_but_not_of_separate_deployments() -> None:
    found = mix([a_workload("code", CODE), a_workload("chat", {EVEN: 0.6})])
    assert found.left_out == (FAST_AT_CHAT, FAST_AT_CODE)
    assert {one.speculation for one in found.configurations} == {NO_SPECULATION, EVEN}
    assert found.separate == (FAST_AT_CODE, EVEN)


def test_what_cannot_run_on_one_workload_is_left_out() -> None:
    unable = a_workload("code", CODE, infeasible=frozenset({EVEN}))
    found = mix([unable, a_workload("chat", CHAT)])
    assert found.left_out == (EVEN,)
    assert found.recommended.speculation == FAST_AT_CHAT


def test_limits_are_the_weighted_means_of_limits() -> None:
    code = a_workload("code", {EVEN: a_ratio(0.6, error=0.1)}, 3.0)
    chat = a_workload("chat", {EVEN: 0.8}, 1.0)
    best = mix([code, chat]).recommended
    assert (best.low, best.high) == (pytest.approx(0.75 * 0.54 + 0.2), pytest.approx(0.75 * 0.66 + 0.2))


def test_a_mix_has_no_limits_where_a_workload_has_none() -> None:
    unsure = LatencyRatio(estimate=0.6, low=None, high=None, is_measured=True)
    best = mix([a_workload("code", {EVEN: unsure}), a_workload("chat", CHAT)]).recommended
    assert (best.speculation, best.low, best.high) == (EVEN, None, None)


def test_probabilities_of_being_best_are_shared_between_those_that_cannot_be_told_apart() -> None:
    ratios = {EVEN: a_ratio(0.6, error=0.05), FAST_AT_CODE: a_ratio(0.6, error=0.05)}
    found = mix([a_workload(name, ratios) for name in ("a", "b")])
    chances = {one.speculation: one.probability_best for one in found.configurations}
    assert chances[EVEN] == pytest.approx(0.5, abs=0.05)
    assert sum(chances.values()) == pytest.approx(1.0)
    assert chances[NO_SPECULATION] == 0.0


def test_a_variable_k_is_compared_with_the_replay_of_the_fixed_one() -> None:
    code = a_workload("code", CODE, replayed={EVEN: 0.62}, oracle={"ngram": 0.5, "eagle": 0.4})
    chat = a_workload("chat", CHAT, replayed={EVEN: 0.62}, oracle={"ngram": 0.5, "eagle": 0.7})
    found = mix([code, chat]).variable_k
    assert found is not None
    assert (found.draft_name, found.gain) == ("ngram", pytest.approx(0.62 / 0.5 - 1))


def test_without_replay_on_every_workload_nothing_is_said_of_a_variable_k() -> None:
    code = a_workload("code", CODE, replayed={EVEN: 0.62}, oracle={"ngram": 0.5})
    assert mix([code, a_workload("chat", CHAT)]).variable_k is None


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_a_weight_that_is_no_positive_number_is_refused(weight: float) -> None:
    with pytest.raises(ConfigurationError, match="the weight of study 'code-study' is"):
        code_and_chat(weight, 1.0)


def test_one_workload_is_no_mix() -> None:
    with pytest.raises(ConfigurationError, match="two studies or more"):
        mix([a_workload("code", CODE)])


# ── from stored studies ───────────────────────────────────────────────────────────────────────────────────────────


def a_study(name: str = "code-1", **changes: Any) -> StudyRecord:
    spec = {
        "target": "tiny",
        "models": {"tiny": "0123", "head": "4567"},
        "workload": {"name": name.partition("-")[0], "concurrency": 1},
        "space": {
            "engine": "cpu",
            "drafts": {"eagle": {"name": "eagle", "method": "eagle", "model": "head"}},
            "num_speculative_tokens": {"min": 1, "max": 4},
        },
        "weight_format": "auto",
        "num_threads": None,
    }
    return StudyRecord(name=name, spec=spec | changes)


def test_studies_of_other_workloads_may_be_mixed() -> None:
    check_mixable([a_study("code-1"), a_study("chat-1"), a_study("math-1")])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"models": {"tiny": "9999", "head": "4567"}}, "target fingerprint: '0123' in 'code-1', '9999' in 'chat-1'"),
        ({"weight_format": "int8"}, "weight format: 'auto' in 'code-1', 'int8' in 'chat-1'"),
        ({"num_threads": 4}, "threads: None in 'code-1', 4 in 'chat-1'"),
        ({"workload": {"name": "chat", "concurrency": 8}}, "concurrency: 1 in 'code-1', 8 in 'chat-1'"),
        ({"models": {"tiny": "0123", "head": "1"}}, "fingerprint of head: '4567' in 'code-1', '1' in 'chat-1'"),
        ({"space": {"engine": "vllm", "drafts": {}}}, "engine: 'cpu' in 'code-1', 'vllm' in 'chat-1'"),
    ],
)
def test_studies_under_other_conditions_are_refused_by_what_differs(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(StudyMismatchError) as caught:
        check_mixable([a_study("code-1"), a_study("chat-1", **changes)])
    assert said in caught.value.message
    assert "same target" in caught.value.hint


MEASURED = a_trial(1, FAST_AT_CHAT, metrics={"speedup": 1.25, "speedup_low": 1.0, "speedup_high": 2.0})
PREDICTIONS = Predictions(by_configuration={("eagle", k): a_prediction("eagle", k, 1.6) for k in (2, 3, 9)})


def test_measured_figures_come_before_predicted_ones() -> None:
    found = mix_workload(a_study(), (BASELINE, MEASURED), PREDICTIONS)
    assert found.ratios[FAST_AT_CHAT] == LatencyRatio(estimate=0.8, low=0.5, high=1.0, is_measured=True)
    assert found.ratios[replace(FAST_AT_CHAT, drafted_tokens=2)].is_measured is False
    assert found.label == "code"


def test_a_prediction_has_its_limits_the_other_way_round() -> None:
    ratio = mix_workload(a_study(), (BASELINE,), PREDICTIONS).ratios[FAST_AT_CHAT]
    assert (ratio.low, ratio.high) == (pytest.approx(1 / 1.68), pytest.approx(1 / 1.52))


def test_predictions_beyond_the_space_are_no_candidates() -> None:
    drafted = {one.drafted_tokens for one in mix_workload(a_study(), (BASELINE,), PREDICTIONS).ratios}
    assert drafted == {0, 2, 3}


def test_no_speculation_is_exactly_as_fast_as_itself() -> None:
    ratio = mix_workload(a_study(), (BASELINE,), PREDICTIONS).ratios[NO_SPECULATION]
    assert ratio == LatencyRatio(estimate=1.0, low=1.0, high=1.0, is_measured=True)


def test_what_could_not_run_is_known() -> None:
    broken = replace(MEASURED, state=TrialState.INFEASIBLE, metrics={})
    assert mix_workload(a_study(), (BASELINE, broken), PREDICTIONS).infeasible == {FAST_AT_CHAT}


def test_a_study_without_a_measured_baseline_is_refused() -> None:
    running = replace(BASELINE, state=TrialState.RUNNING)
    with pytest.raises(NotFoundError, match="study 'code-1' has no measured baseline yet"):
        mix_workload(a_study(), (running,), PREDICTIONS)


def replayed(**changes: Any) -> MixWorkload:
    """Eight rounds of 10 ms after 100 ms; three drafted tokens are right, then none; a drafted token takes 1 ms."""
    request = a_request(chunks=[(0.1 + 0.01 * place, 1) for place in range(9)])
    verify = TimedSteps(step="verify", seconds=dict.fromkeys(range(1, 5), (0.010,)))
    baseline = BaselineResult(measurement=a_measurement(request), verify=verify)
    prompt = PromptTrace(
        prompt_id="p0",
        prompt_class="any",
        max_output_tokens=64,
        proposed=(0, *[3] * 8),
        matched=(0, 3, 2, 1, *[0] * 5),
        ranks=(0, 0, 0, 0, *[9] * 5),
        target_probabilities=(0.5,) * 9,
        draft_probabilities=(0.25,) * 9,
    )
    trace = replace(Trace(draft_name="eagle", max_drafted_tokens=3, prompts=(prompt,)), **changes)
    steps = TimedSteps(step="draft", seconds={k: (0.001 * k,) for k in (1, 2, 3)})
    predictions = Predictions.of(baseline, [TraceResult(trace=trace, draft_steps=steps)])
    return mix_workload(a_study(), (BASELINE,), predictions, baseline=baseline.measurement, traces=[trace])


def test_the_oracle_and_the_fixed_k_are_replayed_with_the_same_times() -> None:
    # drafting three once, and nothing after, takes 13 + 4 · 10; three in each of five rounds takes 5 · 13
    found = replayed()
    assert found.oracle == {"eagle": pytest.approx((100 + 53) / 180)}
    assert found.replayed[NO_SPECULATION] == 1.0
    assert found.replayed[FAST_AT_CHAT] == pytest.approx((100 + 65) / 180)


def test_a_draft_whose_acceptance_is_drawn_is_predicted_and_has_no_oracle() -> None:
    found = replayed(kind=TraceKind.TEACHER_FORCED, sampling=Sampling(temperature=1.0))
    assert (found.oracle, dict(found.replayed)) == ({}, {NO_SPECULATION: 1.0})
    assert FAST_AT_CHAT in found.ratios


def test_a_draft_that_is_not_priced_has_no_oracle() -> None:
    trace = Trace(draft_name="eagle", max_drafted_tokens=3, prompts=())
    measurement = a_measurement(a_request())
    found = mix_workload(a_study(), (BASELINE,), PREDICTIONS, baseline=measurement, traces=[trace])
    assert (found.oracle, dict(found.replayed)) == ({}, {NO_SPECULATION: 1.0})
