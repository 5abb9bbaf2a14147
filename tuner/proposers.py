"""Drafts without a model: rules that look up what followed the latest tokens before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol


class Proposer(Protocol):
    """Proposes tokens for one growing text."""

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """Up to ``count`` tokens that may follow ``tokens``.

        Each call's ``tokens`` begin with those of the call before. Asking for fewer gives the beginning of the same.
        """
        ...


class NgramIndex:
    """Where each n-gram of a growing text ended last, so that a lookup does not scan the text.

    Args:
        longest: Longest n-gram looked up.
        shortest: Shortest n-gram looked up.
    """

    def __init__(self, longest: int, shortest: int) -> None:
        self._lengths = range(longest, shortest - 1, -1)
        self._end_of: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """Up to ``count`` tokens that followed the longest suffix found earlier; its latest occurrence counts."""
        self._extend(tokens)
        for length in self._lengths:
            end = self._end_of.get(tuple(tokens[-length:])) if length < len(tokens) else None
            if end is not None:
                return list(tokens[end : end + count])
        return []

    def _extend(self, tokens: Sequence[int]) -> None:
        # An n-gram at the very end is what is looked up: it enters once something follows it.
        for end in range(self._indexed + 1, len(tokens)):
            for length in self._lengths:
                if length <= end:
                    self._end_of[tuple(tokens[end - length : end])] = end
        self._indexed = max(self._indexed, len(tokens) - 1)


def replay_proposals(
    proposer: Proposer, tokens: Sequence[int], prompt_tokens: int, count: int
) -> Iterator[tuple[int, int]]:
    """Tokens proposed and leading matches at each position 1 … N - 1 of an output, in order.

    Args:
        proposer: Has not seen this text yet.
        tokens: Prompt and output.
        prompt_tokens: How many of them are the prompt.
        count: Tokens wanted at each position, k.
    """
    for known in range(prompt_tokens + 1, len(tokens)):
        proposed = proposer.propose(tokens[:known], count)
        yield len(proposed), leading_matches(proposed, tokens[known:])


def leading_matches(proposed: Sequence[int], truth: Sequence[int]) -> int:
    """How many tokens agree before the first that does not."""
    for index, (a, b) in enumerate(zip(proposed, truth, strict=False)):
        if a != b:
            return index
    return min(len(proposed), len(truth))
