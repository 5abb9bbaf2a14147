"""Lookups find what a plain scan of the text finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.errors import ConfigurationError
from tuner.proposers import (
    NgramIndex,
    SuffixIndex,
    SuffixRule,
    leading_matches,
    lookup_lengths,
    proposer_maker,
    replay_proposals,
    suffix_rule,
    trace_proposals,
)
from tuner.records import Prompt, PromptTrace, TargetOutput, Trace, TraceKind
from tuner.replay import replay
from tuner.speculation import NO_SPECULATION, Method, Speculation

NGRAM = Speculation(method=Method.NGRAM, draft_name="ngram", drafted_tokens=3)
SUFFIX = Speculation(method=Method.SUFFIX, draft_name="suffix", drafted_tokens=3)


def scanned(tokens: Sequence[int], longest: int, shortest: int, count: int) -> list[int]:
    """The rule itself: longest suffix first, latest earlier occurrence."""
    for length in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        suffix = list(tokens[-length:])
        for begin in range(len(tokens) - length - 1, -1, -1):
            if list(tokens[begin : begin + length]) == suffix:
                return list(tokens[begin + length : begin + length + count])
    return []


def test_what_followed_the_latest_occurrence_is_proposed() -> None:
    index = NgramIndex(longest=2, shortest=1)
    assert index.propose([1, 2, 7, 1, 2, 8, 1, 2], 2) == [8, 1]


def test_the_longest_match_goes_before_a_later_shorter_one() -> None:
    index = NgramIndex(longest=2, shortest=1)
    assert index.propose([1, 2, 7, 5, 2, 8, 1, 2], 1) == [7]


def test_a_match_near_the_end_proposes_fewer() -> None:
    assert NgramIndex(longest=1, shortest=1).propose([3, 4, 3], 5) == [4, 3]


def test_a_repeated_token_continues_itself() -> None:
    assert NgramIndex(longest=3, shortest=1).propose([5, 5, 5], 4) == [5]


def test_new_text_has_no_proposal() -> None:
    assert NgramIndex(longest=3, shortest=1).propose([1, 2, 3], 4) == []


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=60),
    st.integers(1, 4),
    st.integers(1, 4),
    st.lists(st.integers(1, 5), max_size=20),
)
def test_a_growing_index_equals_a_scan(tokens: list[int], longest: int, shortest: int, steps: list[int]) -> None:
    longest, shortest = max(longest, shortest), min(longest, shortest)
    index, known = NgramIndex(longest, shortest), 1
    for step in [0, *steps]:
        known = min(known + step, len(tokens))
        assert index.propose(tokens[:known], 4) == scanned(tokens[:known], longest, shortest, 4)


def test_replay_proposes_what_decoding_would_at_each_position() -> None:
    steps = replay_proposals(NgramIndex(longest=1, shortest=1), [4, 5, 4, 5, 6, 5], prompt_tokens=2, count=3)
    # Known 4 5 4: proposes 5 4, the text goes on 5 6. Known 4 5 4 5: proposes 4 5 for 6. Known … 6: nothing.
    assert list(steps) == [(2, 1), (2, 0), (0, 0)]


def test_matches_are_counted_up_to_the_first_difference() -> None:
    assert leading_matches([1, 2, 3], [1, 2, 4]) == 2
    assert leading_matches([1, 2, 3], [1, 2]) == 2
    assert leading_matches([], [1]) == 0


def counted(tokens: Sequence[int], rule: SuffixRule, count: int) -> list[int]:
    """The suffix rule itself: every earlier place is compared, every continuation is counted again from the start."""
    ends = range(1, len(tokens))
    pattern = max((common_suffix(tokens[:end], tokens) for end in ends), default=0)
    pattern = min(pattern, rule.max_tree_depth - 1)
    if pattern == 0:
        return []
    places = [end for end in ends if common_suffix(tokens[:end], tokens) >= pattern]
    proposed: list[int] = []
    while len(proposed) < min(count, int(pattern * rule.max_spec_factor + 1e-6), rule.max_tree_depth - pattern):
        size = len(proposed)
        alike = [place for place in places if list(tokens[place : place + size]) == proposed]
        following = [(tokens[place + size], place) for place in alike if place + size < len(tokens)]
        counts = Counter(token for token, _ in following)
        best = max(following, key=lambda pair: (counts[pair[0]], pair[1]), default=None)
        if best is None or counts[best[0]] / len(places) < rule.min_token_prob:
            break
        proposed.append(best[0])
    return proposed


def common_suffix(one: Sequence[int], other: Sequence[int]) -> int:
    return leading_matches(one[::-1], other[::-1])


def test_the_most_frequent_continuation_is_proposed() -> None:
    text = [1, 2, 7, 7, 1, 2, 8, 8, 1, 2, 7, 9, 1, 2]
    assert SuffixIndex(SuffixRule()).propose(text, 1) == [7]
    # 1 2 occurred three times: with 7 twice, and then with 7 and with 9 once each, of which 9 came last.
    assert SuffixIndex(SuffixRule()).propose(text, 9) == [7, 9]


def test_a_proposal_ends_where_its_share_of_occurrences_is_too_small() -> None:
    text = [1, 2, 7, 7, 1, 2, 8, 8, 1, 2, 7, 9, 1, 2]
    for least, proposed in ((0.33, [7, 9]), (0.34, [7]), (0.67, [])):
        assert SuffixIndex(SuffixRule(min_token_prob=least)).propose(text, 9) == proposed


def test_a_longer_suffix_allows_a_longer_proposal() -> None:
    text = [*range(10), 50, *range(4)]  # 0 1 2 3 occurred before
    for factor, length in ((1.0, 4), (0.5, 2), (0.25, 1), (0.2, 0), (9.0, 11)):
        assert SuffixIndex(SuffixRule(max_spec_factor=factor)).propose(text, 20) == text[4:][:length]


def test_suffix_and_proposal_together_are_no_longer_than_the_depth() -> None:
    text = [*range(10), 50, *range(4)]
    for depth, proposed in ((2, [4]), (3, [4]), (6, [4, 5]), (24, [4, 5, 6, 7])):
        assert SuffixIndex(SuffixRule(max_tree_depth=depth)).propose(text, 20) == proposed


def test_a_text_that_repeats_one_token_continues_with_it() -> None:
    assert SuffixIndex(SuffixRule()).propose([5, 5, 5, 5], 9) == [5]
    assert SuffixIndex(SuffixRule()).propose([5], 9) == []


RULES = st.builds(
    SuffixRule,
    max_tree_depth=st.integers(2, 9),
    max_spec_factor=st.sampled_from([0.3, 0.5, 1.0, 2.0, 4.0]),
    min_token_prob=st.sampled_from([0.0, 0.1, 0.34, 0.5, 0.75, 1.0]),
)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), RULES, st.lists(st.integers(1, 5), max_size=12))
def test_a_growing_suffix_index_equals_a_count_over_the_whole_text(
    tokens: list[int], rule: SuffixRule, steps: list[int]
) -> None:
    index, known = SuffixIndex(rule), 1
    for step in [0, *steps]:
        known = min(known + step, len(tokens))
        assert index.propose(tokens[:known], 9) == counted(tokens[:known], rule, 9)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), RULES, st.integers(0, 9))
def test_asking_for_fewer_gives_the_beginning_of_the_same(tokens: list[int], rule: SuffixRule, count: int) -> None:
    assert SuffixIndex(rule).propose(tokens, count) == SuffixIndex(rule).propose(tokens, 30)[:count]
    assert NgramIndex(3, 1).propose(tokens, count) == NgramIndex(3, 1).propose(tokens, 30)[:count]


def test_what_a_configuration_leaves_out_has_defaults() -> None:
    assert lookup_lengths(NGRAM) == (4, 2)
    assert suffix_rule(SUFFIX) == SuffixRule(max_tree_depth=24, max_spec_factor=1.0, min_token_prob=0.1)
    given_zero = replace(SUFFIX, suffix_decoding_min_token_prob=0.0, suffix_decoding_max_tree_depth=8)
    assert suffix_rule(given_zero) == SuffixRule(max_tree_depth=8, min_token_prob=0.0)


def test_a_method_with_a_model_has_no_proposer() -> None:
    with pytest.raises(ConfigurationError, match="method none proposes with a model") as caught:
        proposer_maker(NO_SPECULATION)
    assert caught.value.hint == "methods without one: ngram, suffix"


def traced(speculation: Speculation, prompt: list[int], *token_ids: int) -> Trace:
    output = TargetOutput(
        prompt=Prompt(prompt_id="p", prompt_class="c", text="p"), token_ids=token_ids, max_output_tokens=9
    )
    return trace_proposals(speculation, [output], [prompt], depth=4)


def test_a_trace_holds_what_is_proposed_at_every_position() -> None:
    lookup = replace(NGRAM, prompt_lookup_max=1, prompt_lookup_min=1)
    trace = traced(lookup, [4, 5], 4, 5, 6, 5)
    assert (trace.draft_name, trace.kind, trace.max_drafted_tokens) == ("ngram", TraceKind.PROPOSALS, 4)
    assert trace.prompts == (
        PromptTrace(
            prompt_id="p",
            prompt_class="c",
            max_output_tokens=9,
            # Known 4 5 4: proposes 5 4, the text goes on 5 6. Known 4 5 4 5: proposes 4 5 for 6. Known … 6: nothing.
            proposed=(0, 2, 2, 0),
            matched=(0, 1, 0, 0),
        ),
    )
    assert replay(trace, 4).rounds.tolist() == [2]


@pytest.mark.parametrize("speculation", [NGRAM, SUFFIX], ids=["ngram", "suffix"])
@pytest.mark.parametrize("length", [0, 1, 2])
def test_a_short_output_has_an_entry_for_each_token(speculation: Speculation, length: int) -> None:
    (prompt,) = traced(speculation, [1, 2, 3], *range(4, 4 + length)).prompts
    assert (prompt.proposed, prompt.matched) == ((0,) * length, (0,) * length)
