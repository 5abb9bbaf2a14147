"""Prompt lookup finds what a plain scan of the text finds."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tuner.proposers import NgramIndex, leading_matches, replay_proposals


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
