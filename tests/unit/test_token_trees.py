from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.errors import ConfigurationError, MeasurementError
from tuner.records import WORST_RANK, PromptTrace, Trace, TraceKind
from tuner.replay import replay
from tuner.token_trees import TokenTree, replay_tree


def a_trace(*prompts: tuple[list[int], int], kind: TraceKind = TraceKind.TEACHER_FORCED) -> Trace:
    """Ranks along each output, and its cap."""
    return Trace(
        draft_name="draft",
        max_drafted_tokens=1,
        kind=kind,
        prompts=tuple(
            PromptTrace(
                prompt_id=f"p{number}",
                prompt_class="any",
                max_output_tokens=cap,
                proposed=(0, *[1] * (len(ranks) - 1))[: len(ranks)],
                matched=(0, *[int(rank == 0) for rank in ranks[1:]])[: len(ranks)],
                ranks=tuple(ranks),
            )
            for number, (ranks, cap) in enumerate(prompts)
        ),
    )


def by_hand(ranks: list[int], cap: int, tree: TokenTree) -> tuple[int, int, int]:
    """Rounds, proposed nodes and accepted tokens: every path tried in every round."""
    s, rounds, drafted, accepted = 1, 0, 0, 0
    while s < len(ranks):
        fitting = [path for path in tree.paths if len(path) <= cap - s - 1]
        right = [len(path) for path in fitting if list(path) == ranks[s : s + len(path)] and max(path) < WORST_RANK]
        depth = max(right, default=0)
        rounds, drafted, accepted = rounds + 1, drafted + len(fitting), accepted + depth
        s += depth + 1
    return rounds, drafted, accepted


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    paths: list[tuple[int, ...]] = []
    for _ in range(draw(st.integers(0, 10))):
        path = (*draw(st.sampled_from([(), *paths])), draw(st.sampled_from([0, 1, 2, WORST_RANK])))
        if path not in paths:
            paths.append(path)
    return TokenTree(paths=tuple(paths))


outputs = st.tuples(st.lists(st.sampled_from([0, 0, 1, 2, WORST_RANK]), max_size=25), st.integers(0, 4))


@settings(max_examples=150, deadline=None)
@given(st.lists(outputs, max_size=4), trees())
def test_replay_equals_trying_every_path_in_every_round(prompts, tree):
    capped = [(ranks, len(ranks) + spare) for ranks, spare in prompts]
    rounds = replay_tree(a_trace(*capped), tree)
    for index, (ranks, cap) in enumerate(capped):
        assert (rounds.rounds[index], rounds.drafted[index], rounds.accepted[index]) == by_hand(ranks, cap, tree)
        assert rounds.rounds_by_drafted[index].sum() == rounds.rounds[index]


@settings(max_examples=60, deadline=None)
@given(st.lists(outputs, min_size=1, max_size=4), st.integers(0, 6))
def test_a_chain_is_the_greedy_walk(prompts, k):
    trace = a_trace(*((ranks, len(ranks) + spare) for ranks, spare in prompts))
    tree, chain = replay_tree(trace, TokenTree.chain(k)), replay(trace, k)
    assert tree.rounds_by_drafted.tolist() == chain.rounds_by_drafted.tolist()
    assert tree.accepted.tolist() == chain.accepted.tolist()


def test_a_tree_by_hand():
    # Two continuations, and one more after the second: 1 (rank 1, then 0) to 3, 4 (rank 0, then 2) to 5, 6 ends.
    tree = TokenTree(paths=((0,), (1,), (1, 0)))
    rounds = replay_tree(a_trace(([0, 1, 0, 5, 0, 2, 2], 30)), tree)
    assert rounds.drafted_tokens == 3
    assert rounds.rounds_by_drafted.tolist() == [[0, 0, 0, 3]]
    assert rounds.accepted.tolist() == [3]
    assert rounds.mean_acceptance_length == 2


def test_the_end_of_the_output_clips_what_a_path_accepts():
    tree = TokenTree.chain(5)
    assert replay_tree(a_trace(([0, 0, 0], 30)), tree).accepted.tolist() == [2]


@pytest.mark.parametrize("ranks", [[], [0]])
def test_an_output_of_at_most_one_token_needs_no_round(ranks):
    assert replay_tree(a_trace((ranks, 4)), TokenTree.chain(2)).rounds.tolist() == [0]


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (((0,), (0,)), "twice"),
        (((),), "its root"),
        (((0,), (1, 0)), r"node \(1, 0\) has a negative rank or no parent"),
        (((-1,),), r"node \(-1,\) has a negative rank"),
    ],
)
def test_what_is_no_tree_is_refused(paths, message):
    with pytest.raises(ConfigurationError, match=message):
        TokenTree(paths=paths)


def test_only_an_autoregressive_draft_with_ranks_can_be_replayed():
    with pytest.raises(ConfigurationError, match="the rollouts trace of 'draft' cannot be replayed with a token tree"):
        replay_tree(a_trace(([0, 0], 4), kind=TraceKind.ROLLOUTS), TokenTree.chain(1))
    bare = PromptTrace(prompt_id="bare", prompt_class="any", max_output_tokens=3, proposed=(0, 1), matched=(0, 1))
    trace = Trace(draft_name="draft", max_drafted_tokens=1, prompts=(bare,), kind=TraceKind.TEACHER_FORCED)
    with pytest.raises(MeasurementError, match="'bare': 0 ranks for 2 positions"):
        replay_tree(trace, TokenTree.chain(1))


def test_ranks_and_matches_that_disagree_are_refused():
    # As when two logits tie and the rank does not follow the token that is proposed.
    tied = PromptTrace(
        prompt_id="tied",
        prompt_class="any",
        max_output_tokens=9,
        proposed=(0, 1, 1),
        matched=(0, 1, 0),
        ranks=(0, 0, 0),
    )
    trace = Trace(draft_name="draft", max_drafted_tokens=1, prompts=(tied,), kind=TraceKind.TEACHER_FORCED)
    for rounds in (lambda: replay(trace, 1), lambda: replay_tree(trace, TokenTree.chain(1))):
        with pytest.raises(MeasurementError, match="'tied', position 2: the rank is 0, and 0 tokens match"):
            rounds()


def test_two_hundred_prompts_and_a_tree_of_sixty_nodes_take_a_fraction_of_a_second():
    generator = np.random.default_rng(3)
    ranks = np.minimum(generator.geometric(0.6, (200, 256)) - 1, WORST_RANK).tolist()
    paths = [(), *[(rank,) for rank in range(4)]]
    for _ in range(2):
        paths += [(*path, rank) for path in paths[1:] for rank in range(3) if (*path, rank) not in paths]
    tree = TokenTree(paths=tuple(paths[1:61]))
    trace = a_trace(*((row, 256) for row in ranks))
    started = time.process_time()
    replay_tree(trace, tree)
    assert time.process_time() - started < 0.3  # 0.02 on an idle core; shared ones stretch even CPU time
