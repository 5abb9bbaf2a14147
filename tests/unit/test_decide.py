from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from tests.support.observed import a_failed_request, a_measurement, a_request, timed
from tuner.decide import Decision, Verdict, decide, no_winner, physics_check
from tuner.errors import MeasurementError
from tuner.intervals import Interval
from tuner.records import CertifyResult, Divergence, Measurement, Sampling, from_json, to_json
from tuner.speculation import NO_SPECULATION, Method, Speculation

EAGLE = Speculation(method=Method.EAGLE, draft_name="eagle", draft_model="eagle", drafted_tokens=3)
LENGTHS = np.linspace(1.0, 3.0, 24)


def gains(mean: float, spread: float, n: int = 24) -> np.ndarray:
    """Gains of n prompts around a mean, the same every time."""
    return mean * (1 + spread * np.sin(np.arange(n) * 2.4))


def certified(speedups: np.ndarray, *, rounds: int | None = 3) -> CertifyResult:
    """Baseline and candidate of eleven tokens a prompt; the candidate needs ``rounds`` rounds for ten of them."""
    lengths = LENGTHS[: len(speedups)]
    slow = [timed(f"p{n}", s, rounds=10) for n, s in enumerate(lengths)]
    fast = [timed(f"p{n}", s / gain, rounds=rounds) for n, (s, gain) in enumerate(zip(lengths, speedups, strict=True))]
    return CertifyResult(baseline=a_measurement(*slow), candidate=a_measurement(*fast), order="ABBA")


def test_a_clear_gain_is_recommended():
    decision = decide(certified(gains(1.4, 0.1)), EAGLE)
    assert decision.verdict is Verdict.RECOMMEND
    assert decision.recommends
    assert decision.sentence.startswith("Use eagle k=3: it answers faster than no speculation (1.39 times the speed")
    assert decision.speedup.one_sided_99_low > 1.02
    assert decision.mean_acceptance_length == pytest.approx(10 / 3)
    assert decision.agreement.share_identical == 1


def test_a_clear_loss_is_do_not_speculate():
    decision = decide(certified(gains(0.9, 0.05)), EAGLE)
    assert decision.verdict is Verdict.DO_NOT_SPECULATE
    assert not decision.recommends
    assert decision.sentence.startswith("Do not speculate: eagle k=3 does not gain 2 % end to end (0.90 times")


def test_a_gain_below_the_margin_is_do_not_speculate():
    sure_but_small = certified(gains(1.03, 0.002))
    assert decide(sure_but_small, margin=0.02).verdict is Verdict.RECOMMEND
    assert decide(sure_but_small, margin=0.10).verdict is Verdict.DO_NOT_SPECULATE


def test_an_interval_that_holds_both_answers_is_open_and_says_what_would_help():
    decision = decide(certified(gains(1.12, 0.3)), EAGLE)
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert decision.sentence.startswith("Inconclusive for eagle k=3: the interval holds both answers (1.0")
    assert decision.prompts_needed > 24
    assert decision.notes[0] == (
        f"about {decision.prompts_needed} prompts, {math.ceil(decision.seconds_needed)} seconds of measuring, "
        "would settle it if the estimate holds"
    )
    assert decision.seconds_needed == pytest.approx(decision.prompts_needed * 2.0 / 24)  # both sides took a second


def test_the_recommendation_needs_the_one_sided_99_percent_limit():
    # Sure at 97.5 %, not at 99 %.
    result = certified(gains(1.16, 0.235))
    decision = decide(result)
    assert decision.speedup.low > decision.speedup.one_sided_99_low
    between = (decision.speedup.low + decision.speedup.one_sided_99_low) / 2
    assert decide(result, margin=between - 1).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("n", [0, 2, 7])
def test_too_few_prompts_are_open_however_large_the_gain(n):
    decision = decide(certified(np.full(n, 3.0)))
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert "fewer than 8 prompts" in decision.sentence
    assert (decision.speedup is None) == (n < 3)
    assert decision.prompts_needed == 8


def test_a_gain_at_the_margin_itself_asks_for_no_number_of_prompts():
    result = certified(gains(1.12, 0.3))
    decision = decide(result, margin=decide(result).speedup.estimate - 1)
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert decision.prompts_needed is None


# ── physics ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_gain_above_what_was_accepted_is_an_artefact():
    decision = decide(certified(gains(1.4, 0.02), rounds=8), EAGLE)  # τ = 1.25
    assert decision.physics.is_artefact
    assert decision.physics.limit == pytest.approx(1.25)
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert "artefact" in decision.sentence
    assert decision.prompts_needed is None


def test_a_significant_gain_without_an_accepted_token_is_an_artefact():
    check = physics_check(*_sides(certified(gains(1.1, 0.01), rounds=10)))
    assert check.limit == pytest.approx(1)
    assert check.is_artefact


def test_a_gain_whose_interval_covers_one_is_no_artefact():
    check = physics_check(*_sides(certified(gains(1.01, 0.1), rounds=10)))
    assert check.tpot_speedup.low < 1
    assert not check.is_artefact


def test_the_cost_of_drafting_lowers_the_limit():
    sides = _sides(certified(gains(1.15, 0.02), rounds=8))
    assert not physics_check(*sides).is_artefact
    assert physics_check(*sides, draft_cost_low=0.15).limit == pytest.approx(1.25 / 1.15)
    assert physics_check(*sides, draft_cost_low=0.15).is_artefact


def test_without_round_counts_physics_says_nothing():
    decision = decide(certified(gains(1.4, 0.05), rounds=None))
    assert decision.physics.limit is None
    assert decision.verdict is Verdict.RECOMMEND


def test_a_gain_in_time_to_first_token_is_no_matter_of_physics():
    # The same decode times; the candidate's prefill is ten times as fast.
    slow = [timed(f"p{n}", 1.0 + s, ttft_s=1.0, rounds=10) for n, s in enumerate(LENGTHS)]
    fast = [timed(f"p{n}", 0.1 + s, ttft_s=0.1, rounds=10) for n, s in enumerate(LENGTHS)]
    check = physics_check(a_measurement(*slow), a_measurement(*fast))
    assert check.tpot_speedup.estimate == pytest.approx(1)
    assert not check.is_artefact


def _sides(result: CertifyResult) -> tuple[Measurement, Measurement]:
    return result.baseline, result.candidate


# ── what is left out ──────────────────────────────────────────────────────────────────────────────────────────


def with_loop(result: CertifyResult, *, on_baseline: bool) -> CertifyResult:
    """Prompt p3 runs to its cap saying the same token; under the candidate it is ten times as fast."""
    loop = {"token_ids": (7,) * 31, "finish_reason": "length"}
    slow = a_request("p3", chunks=((0.0, 1), (30.0, 30)), rounds=30, **(loop if on_baseline else {}))
    fast = a_request("p3", chunks=((0.0, 1), (3.0, 30)), rounds=8, **loop)
    swap = lambda side, new: replace(  # noqa: E731
        side, requests=tuple(new if one.prompt_id == "p3" else one for one in side.requests)
    )
    return replace(result, baseline=swap(result.baseline, slow), candidate=swap(result.candidate, fast))


def test_loops_of_the_baseline_are_left_out_and_reported_both_ways():
    decision = decide(with_loop(certified(gains(1.1, 0.05)), on_baseline=True))
    assert decision.looping_prompts == ("p3",)
    assert decision.speedup.n == 23
    assert decision.speedup.estimate == pytest.approx(1.1, abs=0.02)
    assert decision.speedup_with_looping.estimate > 1.6
    assert any(
        "1 prompts left out, on which the target alone goes in circles; with them: 1." in n for n in decision.notes
    )


def test_a_loop_of_the_candidate_alone_stays_in():
    decision = decide(with_loop(certified(gains(1.1, 0.05)), on_baseline=False))
    assert decision.looping_prompts == ()
    assert decision.speedup == decision.speedup_with_looping
    assert decision.speedup.n == 24


def test_a_class_that_repeats_by_nature_stays_in():
    decision = decide(with_loop(certified(gains(1.1, 0.05)), on_baseline=True), repetition_expected=lambda _: True)
    assert decision.speedup.n == 24


def test_diverged_pairs_stay_in_and_are_counted():
    result = certified(gains(1.4, 0.05))
    first, *others = result.candidate.requests
    other_words = replace(first, token_ids=(99, *first.token_ids[1:]))
    decision = decide(replace(result, candidate=a_measurement(other_words, *others)))
    assert decision.speedup.n == 24
    assert decision.agreement.share_identical == pytest.approx(23 / 24)


def test_a_candidate_that_fails_requests_is_not_recommended():
    result = certified(gains(1.4, 0.05))
    _, *others = result.candidate.requests
    decision = decide(replace(result, candidate=a_measurement(a_failed_request("p0"), *others)))
    assert decision.failed_prompts == ("p0",)
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert "1 requests failed that did not fail without speculation" in decision.sentence


def test_requests_that_fail_on_both_sides_do_not_stand_in_the_way():
    result = certified(gains(1.4, 0.05))
    failed = [a_measurement(a_failed_request("p0"), *side.requests[1:]) for side in _sides(result)]
    decision = decide(replace(result, baseline=failed[0], candidate=failed[1]))
    assert decision.verdict is Verdict.RECOMMEND
    assert decision.failed_prompts == ("p0",)


def test_forced_lengths_carry_no_conclusion():
    result = certified(gains(1.4, 0.05))
    forced = replace(result.candidate, environment={"output_lengths": "forced"})
    with pytest.raises(MeasurementError, match="forced to their cap"):
        decide(replace(result, candidate=forced))


def test_repeated_prompts_are_no_further_evidence():
    result = certified(gains(3.0, 0.05, n=4))
    often = [a_measurement(*side.requests * 6) for side in _sides(result)]
    decision = decide(replace(result, baseline=often[0], candidate=often[1]))
    assert decision.speedup.n == 4
    assert decision.verdict is Verdict.INCONCLUSIVE


def test_the_report_says_that_load_to_load_variation_is_not_in_it():
    assert (
        "one load per side: variation from load to load is not in the interval"
        in decide(certified(gains(1.4, 0.05))).notes
    )


# ── ties ──────────────────────────────────────────────────────────────────────────────────────────────────────────


OTHERS = tuple(replace(EAGLE, drafted_tokens=k) for k in range(4, 10))


def test_the_simplest_of_a_tie_is_recommended_and_the_others_are_named():
    decision = decide(certified(gains(1.4, 0.1)), EAGLE, tied_with=OTHERS[:2])
    assert decision.verdict is Verdict.TIE
    assert decision.recommends
    assert decision.tied_with == OTHERS[:2]
    assert decision.sentence.startswith(
        "Use eagle k=3, the simplest of 3 that cannot be told apart (also eagle k=4, eagle k=5): it answers faster"
    )


def test_many_ties_are_counted_and_not_all_named():
    sentence = decide(certified(gains(1.4, 0.1)), EAGLE, tied_with=OTHERS).sentence
    assert (
        "the simplest of 7 that cannot be told apart (also eagle k=4, eagle k=5, eagle k=6, eagle k=7 and 2 more)"
        in (sentence)
    )


@pytest.mark.parametrize(("gain", "verdict"), [(0.9, Verdict.DO_NOT_SPECULATE), (1.04, Verdict.INCONCLUSIVE)])
def test_a_tie_that_does_not_beat_no_speculation_is_not_recommended(gain, verdict):
    decision = decide(certified(gains(gain, 0.1)), EAGLE, tied_with=OTHERS)
    assert decision.verdict is verdict
    assert not decision.recommends


# ── losslessness ──────────────────────────────────────────────────────────────────────────────────────────────────


def with_divergence(result: CertifyResult, *gaps: float | None) -> CertifyResult:
    """The first outputs of the candidate leave the baseline's at their fourth token, with these logit gaps there."""
    requests = list(result.candidate.requests)
    for place in range(len(gaps)):
        ids = requests[place].token_ids
        requests[place] = replace(requests[place], token_ids=(*ids[:3], 99, *ids[4:]))
    found = tuple(Divergence(prompt_id=f"p{place}", position=3, gap=gap) for place, gap in enumerate(gaps))
    return replace(result, candidate=a_measurement(*requests), divergences=found)


def test_a_clear_choice_that_came_out_otherwise_is_a_fault_at_any_gain():
    result = with_divergence(certified(gains(1.4, 0.05)), 0.0001, 0.8, 2.5)
    decision = decide(result, EAGLE, tied_with=OTHERS)
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert (
        "the output to prompt 'p2' leaves the target's at position 3, where the two best logits lie 2.5 apart and the "
        "numerics' noise is 0.001, and 1 more outputs likewise: a fault of the engine" in decision.sentence
    )
    assert [one.prompt_id for one in decision.losslessness.bugs] == ["p2", "p1"]
    assert decision.prompts_needed is None


def test_a_fault_does_not_make_a_loss_worth_a_second_look():
    assert decide(with_divergence(certified(gains(0.9, 0.05)), 2.5)).verdict is Verdict.DO_NOT_SPECULATE


def test_near_ties_are_harmless_and_counted():
    decision = decide(with_divergence(certified(gains(1.4, 0.05)), 0.0001, 0.0002))
    assert decision.verdict is Verdict.RECOMMEND
    assert decision.losslessness.near_ties == 2
    assert "2 outputs differ where the target's two best tokens are a near-tie, which is harmless" in decision.notes


def test_without_logits_divergences_are_counted_and_what_they_are_stays_open():
    decision = decide(with_divergence(certified(gains(1.4, 0.05)), None))
    assert decision.verdict is Verdict.RECOMMEND
    rate = 1000 / (23 * 11 + 4)
    assert decision.notes[-1] == (
        f"1 outputs differ from those without speculation ({rate:.2g} divergences per 1,000 tokens): "
        "logits were not at hand, so near-ties could not be told from bugs"
    )


def test_numerics_that_promise_nothing_are_not_held_to_the_gate_and_the_note_says_so():
    result = with_divergence(certified(gains(1.4, 0.05)), 2.5)
    rough = {"lossless": "no"}
    rough_sides = [replace(side, environment=rough) for side in _sides(result)]
    decision = decide(replace(result, baseline=rough_sides[0], candidate=rough_sides[1]))
    assert decision.verdict is Verdict.RECOMMEND
    assert decision.notes[-1].endswith("the engine's numerics do not promise the same outputs")


def test_sampled_outputs_are_not_compared():
    result = with_divergence(certified(gains(1.4, 0.05)), 2.5)
    decision = decide(replace(result, sampling=Sampling(temperature=1.0)))
    assert decision.verdict is Verdict.RECOMMEND
    assert (decision.agreement, decision.losslessness) == (None, None)


# ── acceptance beside replay ──────────────────────────────────────────────────────────────────────────────────────


def replayed(estimate: float) -> Interval:
    return Interval(
        estimate=estimate,
        low=estimate * 0.95,
        high=estimate * 1.05,
        one_sided_99_low=estimate * 0.94,
        n=24,
        coefficient_of_variation=0.1,
        method="delta",
    )


def test_acceptance_outside_the_replayed_interval_is_an_alarm_in_the_notes():
    result = certified(gains(1.4, 0.05))  # τ = 3.33
    assert decide(result, replayed_acceptance=replayed(3.3)).notes == decide(result).notes
    decision = decide(result, replayed_acceptance=replayed(2.0), alarms=("ALARM: rounds",))
    assert decision.verdict is Verdict.RECOMMEND
    assert decision.notes[0] == "ALARM: rounds"
    assert decision.notes[1].startswith("ALARM: the measured mean acceptance length 3.33")


# ── several loads ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_gain_that_another_load_does_not_show_is_open():
    assert decide([certified(gains(1.25, 0.02))]).verdict is Verdict.RECOMMEND
    decision = decide([certified(gains(one, 0.02)) for one in (1.25, 1.05, 1.02)])
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert decision.loads == 3
    assert decision.prompts_needed is None  # more prompts would not tell how loads differ


def test_several_loads_that_agree_are_recommended_and_the_note_says_how_much_they_vary():
    decision = decide([certified(gains(one, 0.05)) for one in (1.40, 1.42, 1.38)])
    assert decision.verdict is Verdict.RECOMMEND
    assert "3 loads per side: the gain varies by 1.4 % from load to load, which the interval contains" in decision.notes


def test_an_engine_that_holds_one_configuration_says_so():
    decision = decide(replace(certified(gains(1.4, 0.05)), loads=3))
    assert any(note.startswith("one configuration fits at a time") for note in decision.notes)


def test_a_failure_of_the_candidate_in_any_load_stands_in_the_way():
    result = certified(gains(1.4, 0.05))
    broken = a_measurement(a_failed_request("p0"), *result.candidate.requests[1:])
    assert decide([result, replace(result, candidate=broken)]).verdict is Verdict.INCONCLUSIVE


def test_a_decision_survives_being_stored():
    decision = decide(with_loop(certified(gains(1.1, 0.05)), on_baseline=True), EAGLE)
    text = to_json(decision)
    json.loads(text, parse_constant=pytest.fail)
    assert from_json(Decision, text) == decision


def test_a_decision_with_ties_and_faults_survives_being_stored():
    decision = decide([with_divergence(certified(gains(1.4, 0.05)), 2.5)] * 2, EAGLE, tied_with=OTHERS)
    assert from_json(Decision, to_json(decision)) == decision


def test_what_was_certified_before_divergences_were_looked_at_is_still_read():
    old = json.loads(to_json(certified(gains(1.4, 0.05))))
    for name in ("divergences", "sampling", "loads"):
        del old[name]
    assert from_json(CertifyResult, json.dumps(old).encode()) == certified(gains(1.4, 0.05))


# ── nothing to certify ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class AnyTrial:
    speculation: Speculation
    metrics: Mapping[str, float | None] = field(default_factory=dict)


def test_when_no_candidate_was_faster_the_verdict_names_the_best():
    trials = [
        AnyTrial(NO_SPECULATION, {"speedup": 1.0}),
        AnyTrial(EAGLE, {"speedup": 0.97}),
        AnyTrial(replace(EAGLE, drafted_tokens=7), {"speedup": 0.8}),
        AnyTrial(replace(EAGLE, drafted_tokens=9), {"speedup": None}),
    ]
    decision = no_winner(trials)
    assert decision.verdict is Verdict.DO_NOT_SPECULATE
    assert decision.candidate == EAGLE
    assert decision.sentence == (
        "Do not speculate: the best of 2 measured configurations, eagle k=3, "
        "has 0.97 times the speed of no speculation."
    )


def test_when_nothing_could_be_measured_the_verdict_is_open():
    decision = no_winner([AnyTrial(NO_SPECULATION, {"speedup": 1.0})])
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert "no configuration with speculation could be measured" in decision.sentence


def test_when_predictions_rule_everything_out_the_verdict_is_not_to_speculate() -> None:
    ruled_out = "no other configuration can be more than 1 % faster than no speculation (95 % sure)"
    decision = no_winner([AnyTrial(NO_SPECULATION, {"speedup": 1.0})], ruled_out=ruled_out)
    assert decision.verdict is Verdict.DO_NOT_SPECULATE
    assert decision.sentence == f"Do not speculate: {ruled_out}."
    slower = no_winner([AnyTrial(NO_SPECULATION, {"speedup": 1.0}), AnyTrial(EAGLE, {"speedup": 0.9})], 0.02, ruled_out)
    assert "the best of 1 measured configurations, eagle k=3" in slower.sentence


def test_when_too_little_was_answered_to_compare_the_verdict_says_so():
    decision = no_winner([AnyTrial(NO_SPECULATION, {"speedup": 1.0}), AnyTrial(EAGLE, {"speedup": None})])
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert "too few answers" in decision.sentence
