from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.errors import ConfigurationError, MeasurementError
from tuner.records import WORST_RANK, PromptTrace, Trace, TraceKind
from tuner.replay import exactness, replay, replay_all


def a_trace(*prompts: PromptTrace, most: int = 32, kind: TraceKind = TraceKind.ROLLOUTS) -> Trace:
    return Trace(draft_name="draft", max_drafted_tokens=most, prompts=prompts, kind=kind)


def autoregressive(bits: list[bool], *, cap: int | None = None, prompt_id: str = "p0", most: int = 32) -> PromptTrace:
    """A draft that is right at the positions with a 1: what it matches is the run of ones from there."""
    runs = [0] * (len(bits) + 1)
    for place in reversed(range(len(bits))):
        runs[place] = runs[place + 1] + 1 if bits[place] else 0
    return PromptTrace(
        prompt_id=prompt_id,
        prompt_class="any",
        max_output_tokens=cap or len(bits),
        proposed=(0, *[most] * (len(bits) - 1)),
        matched=(0, *[min(run, most) for run in runs[1 : len(bits)]]),
    )


def by_hand(prompt: PromptTrace, k: int) -> tuple[int, int, int, dict[int, int]]:
    """Rounds, drafted, accepted and rounds by drafted length, one round after another."""
    n, s = len(prompt.proposed), 1
    rounds = drafted = accepted = 0
    lengths: dict[int, int] = {}
    while s < n:
        j = min(prompt.proposed[s], k, prompt.max_output_tokens - s - 1)
        m = min(prompt.matched[s], j)
        rounds, drafted, accepted = rounds + 1, drafted + j, accepted + min(m, n - s)
        lengths[j] = lengths.get(j, 0) + 1
        s += min(m + 1, n - s)
    assert s == max(n, 1)
    return rounds, drafted, accepted, lengths


@st.composite
def prompt_traces(draw: st.DrawFn) -> PromptTrace:
    length = draw(st.integers(0, 24))
    proposed = draw(st.lists(st.integers(0, 9), min_size=length, max_size=length))
    matched = [draw(st.integers(0, min(one, length - place))) for place, one in enumerate(proposed)]
    return PromptTrace(
        prompt_id=f"p{draw(st.integers())}",
        prompt_class="any",
        max_output_tokens=length + draw(st.integers(0, 5)),
        proposed=tuple(proposed),
        matched=tuple(matched),
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(prompt_traces(), max_size=5))
def test_replay_equals_a_walk_by_hand(prompts):
    for rounds in replay_all(a_trace(*prompts, most=9), range(10)):
        for index, prompt in enumerate(prompts):
            count, drafted, accepted, lengths = by_hand(prompt, rounds.drafted_tokens)
            assert rounds.rounds[index] == count
            assert rounds.drafted[index] == drafted
            assert rounds.accepted[index] == accepted
            histogram = rounds.rounds_by_drafted[index]
            assert {int(j): int(histogram[j]) for j in np.flatnonzero(histogram)} == lengths


@settings(max_examples=60, deadline=None)
@given(st.lists(st.booleans(), min_size=2, max_size=60))
def test_acceptance_length_never_falls_with_k_for_an_autoregressive_draft(bits):
    lengths = [one.mean_acceptance_length for one in replay_all(a_trace(autoregressive(bits)), range(33))]
    assert lengths[0] == 1
    assert lengths == sorted(lengths)


def test_acceptance_length_can_fall_with_k_for_other_drafts():
    # The longer proposal leads past position 4, where the next good one begins, to 5 and 6, where there is none.
    proposals = (0, 3, 0, 0, 2, 0, 0, 2, 0, 0)
    prompt = PromptTrace(
        prompt_id="p0", prompt_class="any", max_output_tokens=12, proposed=proposals, matched=proposals
    )
    assert replay(a_trace(prompt), 2).rounds[0] == 3  # 1, 4, 7
    assert replay(a_trace(prompt), 3).rounds[0] == 4  # 1, 5, 6, 7


def test_hand_counted_rounds():
    # Output of 8 tokens; right at positions 1, 2, 3, wrong at 4, right at 5, 6, 7.
    trace = a_trace(autoregressive([False, True, True, True, False, True, True, True], cap=20))
    three = replay(trace, 3)
    assert three.rounds_by_drafted.tolist() == [[0, 0, 0, 2]]  # s = 1 emits 1-4, s = 5 emits 5-7
    assert (three.drafted[0], three.accepted[0]) == (6, 6)
    assert three.mean_acceptance_length == 3.5
    assert three.waste_tokens_per_output_token == 0
    one = replay(trace, 1)
    assert one.rounds_by_drafted.tolist() == [[0, 4]]  # 1-2, 3-4, 5-6, 7
    assert one.mean_acceptance_length == 7 / 4
    assert one.acceptance_rate == 1


def test_the_last_round_is_clipped_to_the_end_of_the_output():
    # Natural stop below the cap: the draft proposes past the end, which is drafted and not accepted.
    trace = a_trace(
        PromptTrace(prompt_id="p0", prompt_class="any", max_output_tokens=50, proposed=(0, 5, 5), matched=(0, 2, 1))
    )
    rounds = replay(trace, 5)
    assert (rounds.rounds[0], rounds.drafted[0], rounds.accepted[0]) == (1, 5, 2)
    assert rounds.waste_tokens_per_output_token == 1


def test_no_more_is_drafted_than_the_cap_leaves_room_for():
    trace = a_trace(autoregressive([False] * 4, cap=4))
    rounds = replay(trace, 5)
    assert rounds.rounds_by_drafted.tolist() == [[1, 1, 1, 0, 0, 0]]  # room for 2, 1 and 0 beside the target's own


def test_nothing_drafted_is_one_token_a_round():
    rounds = replay(a_trace(autoregressive([True] * 9)), 0)
    assert rounds.rounds.tolist() == [8]
    assert rounds.mean_acceptance_length == 1
    assert rounds.acceptance_rate is None
    assert rounds.waste_tokens_per_output_token == 0


@pytest.mark.parametrize("length", [0, 1])
def test_an_output_of_at_most_one_token_needs_no_round(length):
    trace = (
        a_trace(autoregressive([True] * length, cap=8))
        if length
        else a_trace(PromptTrace(prompt_id="p0", prompt_class="any", max_output_tokens=8, proposed=(), matched=()))
    )
    rounds = replay(trace, 3)
    assert rounds.rounds.tolist() == [0]
    assert rounds.mean_acceptance_length is None


def test_acceptance_length_is_the_ratio_of_sums():
    trace = a_trace(
        autoregressive([True] * 5, prompt_id="quick", cap=9), autoregressive([False] * 13, prompt_id="slow", cap=20)
    )
    assert replay(trace, 3).mean_acceptance_length == 16 / 13


def test_only_the_prompts_asked_for_are_replayed():
    trace = a_trace(*(autoregressive([True] * n, prompt_id=f"p{n}") for n in (3, 5, 7)))
    rounds = replay(trace, 2, prompt_ids={"p3", "p7"})
    assert rounds.prompt_ids == ("p3", "p7")
    assert rounds.output_tokens.tolist() == [3, 7]


@pytest.mark.parametrize("k", [-1, 9])
def test_a_k_beyond_the_trace_is_refused(k):
    with pytest.raises(ConfigurationError, match=f"drafted_tokens {k} cannot be replayed"):
        replay(a_trace(autoregressive([True] * 4), most=8), k)


def ranked(ranks: list[int], *, cap: int, most: int) -> PromptTrace:
    """One pass of an autoregressive draft, with matches told apart only up to ``most`` tokens."""
    bits = autoregressive([rank == 0 for rank in ranks], cap=cap, most=most)
    return replace(bits, ranks=tuple(ranks))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([0, 0, 1, WORST_RANK]), min_size=2, max_size=40), st.booleans(), st.integers(0, 5))
def test_one_pass_of_an_autoregressive_draft_replays_every_k(ranks, with_ranks, spare):
    prompt = ranked(ranks, cap=len(ranks) + spare, most=2)
    one_pass = a_trace(prompt if with_ranks else replace(prompt, ranks=()), most=2, kind=TraceKind.TEACHER_FORCED)
    deep = a_trace(autoregressive([rank == 0 for rank in ranks], cap=len(ranks) + spare, most=60), most=60)
    for shallow, full in zip(replay_all(one_pass, range(61)), replay_all(deep, range(61)), strict=True):
        assert shallow.rounds_by_drafted.tolist() == full.rounds_by_drafted.tolist()
        assert shallow.accepted.tolist() == full.accepted.tolist()


@settings(max_examples=60, deadline=None)
@given(st.lists(prompt_traces(), max_size=4))
def test_rounds_of_any_proposer_lie_between_full_acceptance_and_none(prompts):
    for rounds in replay_all(a_trace(*prompts, most=9), range(10)):
        to_gain = np.maximum(rounds.output_tokens - 1, 0)
        assert (rounds.rounds >= -(-to_gain // (rounds.drafted_tokens + 1))).all()
        assert (rounds.rounds <= to_gain).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(prompt_traces(), max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_prompts_does_not_matter_where_every_prompt_is_traced_by_itself(prompts, random):
    # Holds for any proposer but a cache of earlier responses, whose trace itself depends on the order.
    order = random.sample(range(len(prompts)), len(prompts))
    first = replay_all(a_trace(*prompts, most=9), range(10))
    second = replay_all(a_trace(*(prompts[index] for index in order), most=9), range(10))
    for one, other in zip(first, second, strict=True):
        assert one.rounds_by_drafted[order].tolist() == other.rounds_by_drafted.tolist()
        assert one.mean_acceptance_length == other.mean_acceptance_length
        assert one.waste_tokens_per_output_token == other.waste_tokens_per_output_token


def test_a_position_without_a_proposal_drafts_nothing():
    # An n-gram draft that finds nothing at 1 and 2 and two tokens, one of them right, at 3.
    prompt = PromptTrace(
        prompt_id="p0", prompt_class="any", max_output_tokens=9, proposed=(0, 0, 0, 2, 0), matched=(0, 0, 0, 1, 0)
    )
    rounds = replay(a_trace(prompt, most=5, kind=TraceKind.PROPOSALS), 5)
    assert rounds.rounds_by_drafted.tolist() == [[2, 0, 1, 0, 0, 0]]
    assert rounds.accepted.tolist() == [1]


@pytest.mark.parametrize(
    ("kind", "k", "is_exact", "reason"),
    [
        (TraceKind.TEACHER_FORCED, 99, True, "autoregressive draft"),
        (TraceKind.PROPOSALS, 8, True, "whole proposal"),
        (TraceKind.PROPOSALS, 9, False, "holds at most 8"),
        (TraceKind.ROLLOUTS, 8, True, "whole proposal"),
        (TraceKind.ROLLOUTS, 9, False, "holds at most 8"),
        (TraceKind.LOGGED, 8, True, "the logged run itself"),
        (TraceKind.LOGGED, 7, False, "bounds the rounds at 7 of an autoregressive draft"),
        (TraceKind.LOGGED, 9, False, "holds at most 8"),
        (TraceKind.LOGGED, 0, True, "one token a round"),
        (TraceKind.TEACHER_FORCED, -1, False, "fewer than no tokens"),
    ],
)
def test_every_kind_of_trace_says_what_it_replays_exactly(kind, k, is_exact, reason):
    answer = exactness(a_trace(autoregressive([True] * 4), most=8, kind=kind), k)
    assert answer.is_exact is is_exact
    assert reason in answer.reason


@pytest.mark.parametrize(("proposed", "matched"), [((0, 2, 1), (0, 3, 0)), ((0, 9, 9), (0, 3, 0)), ((0, 1), (0, -1))])
def test_matches_that_cannot_be_are_refused(proposed, matched):
    prompt = PromptTrace(prompt_id="p0", prompt_class="any", max_output_tokens=9, proposed=proposed, matched=matched)
    with pytest.raises(MeasurementError, match=r"prompt 'p0', position 1: -?\d matches of \d proposed tokens"):
        replay(a_trace(prompt), 1)


def test_a_negative_rank_is_refused():
    prompt = ranked([0, 0, 1], cap=9, most=2)
    with pytest.raises(MeasurementError, match="rank -1 of prompt 'p0', position 2"):
        replay(a_trace(replace(prompt, ranks=(0, 0, -1)), kind=TraceKind.TEACHER_FORCED), 1)


def test_a_trace_that_is_longer_than_its_cap_is_refused():
    with pytest.raises(MeasurementError, match="cap 3"):
        replay(a_trace(autoregressive([True] * 4, cap=3)), 1)


@pytest.mark.parametrize("accuracy", [0.0, 0.6, 0.95])
def test_two_hundred_prompts_and_thirty_two_k_take_a_fraction_of_a_second(accuracy):
    bits = np.random.default_rng(3).random((200, 256)) < accuracy
    trace = a_trace(*(autoregressive(list(row), prompt_id=f"p{n}", cap=256) for n, row in enumerate(bits)))
    started = time.process_time()
    replay_all(trace, range(1, 33))
    assert time.process_time() - started < 0.2  # 0.03 on an idle core; shared ones stretch even CPU time
