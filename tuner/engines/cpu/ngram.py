"""Prompt lookup: propose what followed the last occurrence of the latest tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from tuner.engines.cpu.drafters import Ask
from tuner.records import TraceKind


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


class NgramDrafter:
    """Proposes by prompt lookup in a request's own prompt and output."""

    kind = TraceKind.PROPOSALS
    uses_hidden_states = False
    weight_bytes = 0

    def __init__(self, longest: int, shortest: int) -> None:
        self._longest, self._shortest = longest, shortest
        self._index_of: dict[int, NgramIndex] = {}

    def start(self, slot: int, prompt: Sequence[int], hidden: Tensor) -> None:  # noqa: ARG002
        """Forget the slot's former request."""
        self._index_of[slot] = NgramIndex(self._longest, self._shortest)

    def propose(self, asks: Sequence[Ask]) -> list[list[int]]:
        """What followed each request's latest tokens before."""
        return [self._index_of[ask.slot].propose(ask.tokens, ask.count) for ask in asks]

    def advance(self, slot: int, accepted: int, hidden: Tensor) -> None:
        """Nothing to do: the index reads the tokens themselves."""

    def replay(
        self,
        tokens: Sequence[int],
        prompt_tokens: int,
        count: int,
        hidden: Tensor,  # noqa: ARG002
    ) -> Iterator[tuple[int, int]]:
        """Tokens proposed and leading matches, had a round begun after each output token."""
        index = NgramIndex(self._longest, self._shortest)
        for known in range(prompt_tokens + 1, len(tokens)):
            proposed = index.propose(tokens[:known], count)
            yield len(proposed), leading_matches(proposed, tokens[known:])


def leading_matches(proposed: Sequence[int], truth: Sequence[int]) -> int:
    """How many tokens agree before the first that does not."""
    for index, (a, b) in enumerate(zip(proposed, truth, strict=False)):
        if a != b:
            return index
    return min(len(proposed), len(truth))
