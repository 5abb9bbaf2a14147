"""Drafts without a model: rules that look up what followed the latest tokens before.

They read one request's own prompt and output. Past responses are never looked up: what they would propose depends on
the order in which requests ran, and no replay could be exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from tuner.errors import ConfigurationError
from tuner.records import GREEDY, PromptTrace, Sampling, TargetOutput, Trace, TraceKind
from tuner.speculation import Method, Speculation

# Longest and shortest n-gram looked up when the configuration names none. Two tokens repeat by chance less often
# than one, and nothing longer than four was ever needed to tell two earlier places apart.
PROMPT_LOOKUP_MAX = 4
PROMPT_LOOKUP_MIN = 2

LOOKUP_METHODS = frozenset({Method.NGRAM, Method.SUFFIX})


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SuffixRule:
    """How suffix decoding proposes, in the words and with the defaults of vLLM's method ``suffix``.

    Attributes:
        max_tree_depth: Longest pattern and its proposal together.
        max_spec_factor: Proposed tokens per token of the pattern.
        min_token_prob: Least share of the pattern's earlier occurrences that went on as proposed.
    """

    max_tree_depth: int = 24
    max_spec_factor: float = 1.0
    min_token_prob: float = 0.1


class SuffixIndex:
    """Suffix decoding over a growing text (after arXiv 2411.04975), with a rule of our own.

    The pattern is the longest suffix of the text that occurred earlier. Of all its earlier occurrences the most
    frequent next token is proposed, the latest among equals, then the most frequent after that, and so on, while the
    share of occurrences that went on this way is large enough and as far as the pattern's length allows.

    vLLM builds a tree and differs in three ways: it weighs a proposal for every length of pattern, and takes the one
    with the largest sum of estimated probabilities; it counts the end of the text as one more occurrence; and unless
    ``suffix_decoding_max_cached_requests`` is 0 it also looks up past responses. What it chooses depends on k, so one
    pass could not replay every k. This rule's proposal for a smaller k is the beginning of that for a larger one.
    """

    def __init__(self, rule: SuffixRule) -> None:
        self._rule = rule
        self._places_of: dict[int, list[int]] = {}
        self._known = 0
        # Where the text was earlier as it is at its end, and over how many tokens: {end of the earlier place: length}.
        self._matches: dict[int, int] = {}

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """Up to ``count`` tokens that mostly followed the longest suffix found earlier."""
        self._extend(tokens)
        longest = min(max(self._matches.values(), default=0), self._rule.max_tree_depth - 1)
        ends = [end for end, length in self._matches.items() if length >= longest]
        # Factors such as 0.1 are a little less in binary than in decimal.
        allowed = int(longest * self._rule.max_spec_factor + 1e-6)
        room = min(count, allowed, self._rule.max_tree_depth - longest)
        return self._most_frequent(tokens, ends, room) if longest > 0 else []

    def _extend(self, tokens: Sequence[int]) -> None:
        for place in range(self._known, len(tokens)):
            places = self._places_of.setdefault(tokens[place], [])
            self._matches = {earlier + 1: self._matches.get(earlier, 0) + 1 for earlier in places}
            places.append(place)
        self._known = max(self._known, len(tokens))

    def _most_frequent(self, tokens: Sequence[int], ends: Sequence[int], room: int) -> list[int]:
        proposed: list[int] = []
        places = ends
        while len(proposed) < room:
            following = [(place, tokens[place]) for place in places if place < len(tokens)]
            if not following:
                break
            counts, latest = Counter(token for _, token in following), {token: place for place, token in following}
            best = max(counts, key=lambda token: (counts[token], latest[token]))
            if counts[best] < self._rule.min_token_prob * len(ends):
                break
            proposed.append(best)
            places = [place + 1 for place, token in following if token == best]
        return proposed


def lookup_lengths(speculation: Speculation) -> tuple[int, int]:
    """Longest and shortest n-gram looked up, defaults filled in."""
    longest = speculation.prompt_lookup_max or PROMPT_LOOKUP_MAX
    return longest, speculation.prompt_lookup_min or min(PROMPT_LOOKUP_MIN, longest)


def suffix_rule(speculation: Speculation) -> SuffixRule:
    """The rule of method ``suffix``, defaults filled in."""
    default, given = SuffixRule(), speculation
    depth, factor = given.suffix_decoding_max_tree_depth, given.suffix_decoding_max_spec_factor
    probability = given.suffix_decoding_min_token_prob
    return SuffixRule(
        max_tree_depth=default.max_tree_depth if depth is None else depth,
        max_spec_factor=default.max_spec_factor if factor is None else factor,
        min_token_prob=default.min_token_prob if probability is None else probability,
    )


def proposer_maker(speculation: Speculation) -> Callable[[], Proposer]:
    """What makes the proposer of each new text.

    Raises:
        ConfigurationError: The method is not one that looks up.
    """
    if speculation.method is Method.NGRAM:
        return partial(NgramIndex, *lookup_lengths(speculation))
    if speculation.method is Method.SUFFIX:
        return partial(SuffixIndex, suffix_rule(speculation))
    raise ConfigurationError(
        f"{speculation.label}: method {speculation.method} proposes with a model",
        f"methods without one: {', '.join(sorted(LOOKUP_METHODS))}",
    )


def trace_proposals(
    speculation: Speculation,
    outputs: Sequence[TargetOutput],
    prompts: Sequence[Sequence[int]],
    *,
    depth: int,
    sampling: Sampling = GREEDY,
) -> Trace:
    """Trace a draft without a model along outputs, without an engine.

    Exact for every k up to ``depth`` for engines that propose by these very rules.

    Args:
        speculation: N-gram or suffix, with its settings.
        outputs: What the target answered.
        prompts: Token ids of each output's prompt, as the engine was given them.
        depth: Most tokens proposed at a position.
        sampling: How the target chose the outputs.

    Raises:
        ConfigurationError: The method is not one that looks up.
    """
    new_proposer = proposer_maker(speculation)
    traced = []
    for output, prompt in zip(outputs, prompts, strict=True):
        tokens = [*prompt, *output.token_ids]
        steps = [(0, 0), *replay_proposals(new_proposer(), tokens, len(prompt), depth)][: len(output.token_ids)]
        traced.append(
            PromptTrace(
                prompt_id=output.prompt.prompt_id,
                prompt_class=output.prompt.prompt_class,
                max_output_tokens=output.max_output_tokens,
                proposed=tuple(proposed for proposed, _ in steps),
                matched=tuple(matched for _, matched in steps),
            )
        )
    return Trace(
        draft_name=speculation.draft_name,
        max_drafted_tokens=depth,
        prompts=tuple(traced),
        kind=TraceKind.PROPOSALS,
        sampling=sampling,
    )


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
