"""Static token trees: rounds that try several continuations at once, replayed from the ranks of a trace."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tuner.errors import ConfigurationError
from tuner.greedy_rounds import visited
from tuner.positions import Counts, Positions, positions, ranks
from tuner.records import WORST_RANK, Trace, TraceKind
from tuner.replay import ReplayedRounds

ROOT, NOWHERE = 0, -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTree:
    """A tree of proposals, the same in every round.

    Attributes:
        paths: One per node, the ranks from the root to it: ``(0,)`` is the draft's likeliest next token, ``(0, 1)``
            its second likeliest after that.

    Raises:
        ConfigurationError: A node occurs twice, has no parent, or has a negative rank.
    """

    paths: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        known = set(self.paths)
        if len(known) != len(self.paths) or () in known:
            raise ConfigurationError("a token tree names a node twice, or its root", "name each node below it once")
        for path in self.paths:
            if min(path) < 0 or (len(path) > 1 and path[:-1] not in known):
                raise ConfigurationError(
                    f"token tree: node {path} has a negative rank or no parent", f"add node {path[:-1]}"
                )

    @classmethod
    def chain(cls, drafted_tokens: int) -> Self:
        """The tree that is no tree: the likeliest token after the likeliest token."""
        return cls(paths=tuple((0,) * depth for depth in range(1, drafted_tokens + 1)))

    @property
    def depth(self) -> int:
        """Most tokens that a round can accept."""
        return max((len(path) for path in self.paths), default=0)

    def nodes_to_depth(self) -> Counts:
        """[depth + 1], nodes no deeper than that: what a round proposes when the cap leaves room for no more."""
        depths = [len(path) for path in self.paths]
        return np.cumsum(np.bincount(depths, minlength=self.depth + 1))

    def children(self) -> Counts:
        """[nodes + 1, WORST_RANK + 1], the node that continues a node with a rank; the root is 0, ``NOWHERE`` none.

        Ranks from ``WORST_RANK`` on are not told apart, so no such node ever matches.
        """
        number = {(): ROOT} | {path: index for index, path in enumerate(self.paths, start=1)}
        table = np.full((len(number), WORST_RANK + 1), NOWHERE, dtype=np.int64)
        for path, node in number.items():
            if path and path[-1] < WORST_RANK:
                table[number[path[:-1]], path[-1]] = node
        return table


def replay_tree(trace: Trace, tree: TokenTree, prompt_ids: Collection[str] | None = None) -> ReplayedRounds:
    """Replay rounds that verify a whole tree and accept its longest path along the target's output.

    Exact for an autoregressive draft that expands each node with its own likeliest tokens after it, verified by
    keeping what equals the target's token, greedy or sampled: the rank at each depth is that after the true tokens
    before it, and only along those is a path accepted. Not exact for heads that all propose from the round's first
    position (Medusa), for drafts that feed on their own features (EAGLE), for trees that are chosen anew in each
    round, nor where nodes are drawn from the draft at random.

    Siblings have different ranks, so at most one path fits. Near the cap a round proposes the nodes for which there
    is room, as ``replay_all`` does with k.

    Args:
        trace: A teacher-forced trace with ranks.
        tree: What each round proposes.
        prompt_ids: Replay only these; None replays all.

    Returns:
        ``drafted_tokens`` are the tree's nodes: a round verifies one row more, and drafts ``tree.depth`` deep.

    Raises:
        ConfigurationError: The trace is not teacher-forced.
        MeasurementError: The trace has no ranks, or contradicts itself.
    """
    if trace.kind is not TraceKind.TEACHER_FORCED:
        raise ConfigurationError(
            f"the {trace.kind} trace of {trace.draft_name!r} cannot be replayed with a token tree",
            "trace an autoregressive draft with its ranks",
        )
    prompts = [prompt for prompt in trace.prompts if prompt_ids is None or prompt.prompt_id in prompt_ids]
    laid = positions(prompts)
    begin, end = np.repeat(laid.starts, laid.lengths), np.repeat(laid.ends, laid.lengths)
    place = np.arange(len(begin))
    room = begin + np.repeat(laid.caps, laid.lengths) - place - 1
    matched = np.minimum(_matched(tree, np.minimum(ranks(prompts, laid), WORST_RANK), end), room)
    drafted = tree.nodes_to_depth()[np.clip(room, 0, tree.depth)]
    return _rounds(laid, len(tree.paths), matched, drafted, visited(laid, matched + 1))


def _matched(tree: TokenTree, found: Counts, end: Counts) -> Counts:
    """[positions], how deep the path along the target's tokens goes from each position."""
    children, place = tree.children(), np.arange(len(found))
    node, matched = np.full(len(found), ROOT), np.zeros(len(found), dtype=np.int64)
    for depth in range(tree.depth):
        inside = (node != NOWHERE) & (place + depth < end)
        token = np.where(inside, place + depth, 0)
        node = np.where(inside, children[node, found[token]], NOWHERE)
        matched += node != NOWHERE
    return matched


def _rounds(laid: Positions, nodes: int, matched: Counts, drafted: Counts, visits: NDArray[np.bool_]) -> ReplayedRounds:
    places = np.flatnonzero(visits)
    prompt = np.searchsorted(laid.ends, places, side="right")
    count = len(laid.lengths)
    histogram = np.bincount(prompt * (nodes + 1) + drafted[places], minlength=count * (nodes + 1))
    histogram = histogram.reshape(count, nodes + 1)
    accepted = np.bincount(prompt, weights=matched[places], minlength=count).astype(np.int64)
    return ReplayedRounds(
        drafted_tokens=nodes,
        prompt_ids=laid.prompt_ids,
        output_tokens=laid.lengths,
        rounds=histogram.sum(axis=1),
        drafted=histogram @ np.arange(nodes + 1),
        accepted=accepted,
        rounds_by_drafted=histogram,
    )
