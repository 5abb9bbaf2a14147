from __future__ import annotations

import pytest

from tests.support.observed import a_failed_request, a_measurement, a_request
from tuner.outputs import identical_outputs, is_looping, looping_prompts

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
