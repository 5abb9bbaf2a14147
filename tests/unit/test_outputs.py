from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.observed import a_failed_request, a_measurement, a_request
from tuner.outputs import LOGIT_NOISE, divergences, identical_outputs, is_looping, looping_prompts, losslessness
from tuner.records import CertifyResult, Divergence, Sampling

PROSE = list(range(100, 140))


@pytest.mark.parametrize("period", [1, 2, 7, 20, 64])
def test_a_periodic_tail_at_the_cap_is_a_loop(period):
    tail = list(range(period)) * (max(24, 3 * period) // period + 1)
    assert is_looping(PROSE + tail, hit_cap=True, repetition_expected=False)


def test_an_answer_that_stops_by_itself_is_no_loop():
    assert not is_looping([1] * 60, hit_cap=False, repetition_expected=False)


def test_a_class_that_expects_repetition_has_no_loops():
    assert not is_looping([1] * 60, hit_cap=True, repetition_expected=True)


def test_a_short_repetition_is_no_loop():
    assert not is_looping(PROSE + [7] * 23, hit_cap=True, repetition_expected=False)
    assert is_looping(PROSE + [7] * 24, hit_cap=True, repetition_expected=False)


def test_two_repeats_of_a_long_sentence_are_no_loop():
    sentence = list(range(30))
    assert not is_looping(PROSE + sentence * 2, hit_cap=True, repetition_expected=False)
    assert is_looping(PROSE + sentence * 3, hit_cap=True, repetition_expected=False)


def test_a_repetition_that_ended_is_no_loop():
    assert not is_looping([7] * 60 + PROSE, hit_cap=True, repetition_expected=False)


@pytest.mark.parametrize("ids", [[], [1], [1, 1]])
def test_tiny_outputs_do_not_loop(ids):
    assert not is_looping(ids, hit_cap=True, repetition_expected=False)


def test_loops_are_found_on_requests_that_hit_their_cap():
    chunks = ((0.1, 30),)
    looping = a_request("a", chunks=chunks, token_ids=(5,) * 30, finish_reason="length")
    stopped = a_request("b", chunks=chunks, token_ids=(5,) * 30, finish_reason="stop")
    table = a_request("c", chunks=chunks, token_ids=(5,) * 30, finish_reason="length", prompt_class="table")
    measured = a_measurement(looping, stopped, table)
    assert looping_prompts(measured, lambda name: name == "table") == {"a"}
    assert looping_prompts(measured) == {"a", "c"}


def test_identical_outputs_agree():
    measured = a_measurement(a_request("a"), a_request("b"))
    agreement = identical_outputs(measured, measured)
    assert (agreement.pairs, agreement.share_identical, agreement.divergences_per_1000_tokens) == (2, 1.0, 0.0)


def test_divergences_are_counted_per_token_up_to_the_first():
    chunks = ((0.1, 50),)
    ids = tuple(range(50))
    baseline = a_measurement(a_request("a", chunks=chunks, token_ids=ids), a_request("b", chunks=chunks, token_ids=ids))
    other = a_request("b", chunks=chunks, token_ids=(*ids[:29], 999, *ids[30:]))
    agreement = identical_outputs(baseline, a_measurement(a_request("a", chunks=chunks, token_ids=ids), other))
    assert agreement.share_identical == 0.5
    assert agreement.divergences_per_1000_tokens == pytest.approx(1000 / (50 + 29 + 1))


def test_an_output_that_is_a_prefix_of_the_other_diverges():
    longer = a_measurement(a_request("a", chunks=((0.1, 3),)))
    shorter = a_measurement(a_request("a", chunks=((0.1, 2),)))
    assert identical_outputs(longer, shorter).share_identical == 0


def test_outputs_that_nobody_knows_are_not_compared():
    baseline = a_measurement(a_request("a", token_ids=()), a_request("b"))
    candidate = a_measurement(a_request("a", token_ids=()), a_failed_request("b"))
    agreement = identical_outputs(baseline, candidate)
    assert (agreement.pairs, agreement.share_identical, agreement.divergences_per_1000_tokens) == (0, None, None)


# ── where outputs diverge, and why ────────────────────────────────────────────────────────────────────────────────


def answered(**outputs: tuple[int, ...]):
    """Answers of these tokens by prompt."""
    return a_measurement(*(a_request(name, chunks=((0.1, len(ids)),), token_ids=ids) for name, ids in outputs.items()))


def compared(baseline, candidate, *gaps: Divergence, **changes) -> CertifyResult:
    return CertifyResult(baseline=baseline, candidate=candidate, order="ABBA", divergences=gaps, **changes)


def test_a_divergence_is_at_the_first_token_that_differs():
    found = divergences(answered(a=(1, 2, 3, 4), b=(5, 6)), answered(a=(1, 2, 9, 4), b=(5, 6)))
    assert found == {Divergence(prompt_id="a", position=2): (1, 2, 3)}


def test_the_first_token_of_all_can_be_the_one_that_differs():
    assert divergences(answered(a=(1, 2)), answered(a=(3, 2))) == {Divergence(prompt_id="a", position=0): (1,)}


def test_an_output_that_ends_early_diverges_at_its_end_whichever_side_it_is():
    expected = {Divergence(prompt_id="a", position=2): (1, 2, 3)}
    assert divergences(answered(a=(1, 2)), answered(a=(1, 2, 3, 4))) == expected
    assert divergences(answered(a=(1, 2, 3, 4)), answered(a=(1, 2))) == expected


def test_a_prompt_that_diverges_at_the_same_place_in_two_passes_is_one_divergence():
    baseline, other = answered(a=(1, 2, 3)), answered(a=(1, 9, 3))
    assert len(divergences(baseline + baseline, other + other)) == 1


def test_a_near_tie_is_harmless_and_a_clear_choice_is_a_bug():
    baseline, other = answered(a=(1, 2), b=(1, 2), c=(1, 2)), answered(a=(1, 3), b=(1, 3), c=(3, 2))
    near = Divergence(prompt_id="a", position=1, gap=LOGIT_NOISE)
    clear = Divergence(prompt_id="b", position=1, gap=LOGIT_NOISE * 1.01)
    clearer = Divergence(prompt_id="c", position=0, gap=7.0)
    found = losslessness([compared(baseline, other, near, clear, clearer)])
    assert (found.near_ties, found.bugs, found.unexplained) == (1, (clearer, clear), 0)


@pytest.mark.parametrize("gap", [None, float("nan")])
def test_without_a_gap_a_divergence_is_unexplained(gap):
    looked_at = Divergence(prompt_id="a", position=1, gap=gap)
    found = losslessness([compared(answered(a=(1, 2)), answered(a=(1, 3)), looked_at)])
    assert (found.near_ties, found.bugs, found.unexplained) == (0, (), 1)


def test_a_gap_of_another_place_explains_nothing():
    elsewhere = Divergence(prompt_id="a", position=0, gap=0.0)
    assert losslessness([compared(answered(a=(1, 2)), answered(a=(1, 3)), elsewhere)]).unexplained == 1


def test_numerics_that_promise_nothing_have_no_bugs():
    clear = Divergence(prompt_id="a", position=1, gap=7.0)
    rough = replace(answered(a=(1, 3)), environment={"lossless": "no"})
    found = losslessness([compared(answered(a=(1, 2)), rough, clear)])
    assert (found.is_promised, found.bugs, found.unexplained) == (False, (), 1)


def test_sampled_outputs_are_not_held_to_be_the_same():
    sampled = compared(answered(a=(1, 2)), answered(a=(1, 3)), sampling=Sampling(temperature=0.7))
    assert losslessness([sampled]) is None


def test_the_same_divergence_in_two_loads_counts_once():
    near = Divergence(prompt_id="a", position=1, gap=0.0)
    load = compared(answered(a=(1, 2)), answered(a=(1, 3)), near)
    assert losslessness([load, load]).near_ties == 1
