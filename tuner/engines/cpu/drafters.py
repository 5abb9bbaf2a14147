"""What proposes tokens: the protocol, the empty drafter and the draft model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tuner.engines.cpu.attention import Segment
from tuner.engines.cpu.model import LanguageModel
from tuner.engines.logits import runs_of_hits
from tuner.records import GREEDY, TraceKind


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that wants proposals: its slot, all its tokens so far, and at most how many."""

    slot: int
    tokens: Sequence[int]
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a draft does along one output, as in ``PromptTrace``: an entry for each position 0 … N - 1."""

    proposed: tuple[int, ...]
    matched: tuple[int, ...]
    ranks: tuple[int, ...] = ()


class Drafter(Protocol):
    """Proposes tokens for the requests in its slots.

    Attributes:
        kind: What a replay of it is.
        weight_bytes: Read to propose one token.
    """

    kind: TraceKind
    weight_bytes: int

    def start(self, slot: int, prompt: Sequence[int], hidden: Tensor) -> None:
        """A request begins. ``hidden`` are the target's states [prompt, hidden]."""
        ...

    def propose(self, asks: Sequence[Ask]) -> list[list[int]]:
        """At most ``count`` tokens for each. Asking again without ``advance`` gives the same."""
        ...

    def advance(self, slot: int, accepted: int, hidden: Tensor) -> None:
        """The round is over: ``hidden`` are the target's states of the rows that became certain."""
        ...

    def replay(self, tokens: Sequence[int], prompt_tokens: int, count: int, hidden: Tensor) -> Replayed:
        """Proposals at every position of an output of one token or more.

        Args:
            tokens: Prompt and output.
            prompt_tokens: How many of them are the prompt.
            count: Tokens wanted at each position, k.
            hidden: The target's states of all ``tokens`` but the last [tokens - 1, hidden].
        """
        ...


class NoDrafter:
    """Proposes nothing: the target alone."""

    kind = TraceKind.PROPOSALS
    weight_bytes = 0

    def start(self, slot: int, prompt: Sequence[int], hidden: Tensor) -> None:
        """Nothing to prepare."""

    def propose(self, asks: Sequence[Ask]) -> list[list[int]]:
        """No token for anyone."""
        return [[] for _ in asks]

    def advance(self, slot: int, accepted: int, hidden: Tensor) -> None:
        """Nothing to keep."""

    def replay(
        self,
        tokens: Sequence[int],
        prompt_tokens: int,
        count: int,  # noqa: ARG002
        hidden: Tensor,  # noqa: ARG002
    ) -> Replayed:
        """Nothing proposed anywhere."""
        nothing = (0,) * (len(tokens) - prompt_tokens)
        return Replayed(proposed=nothing, matched=nothing)


class ModelDrafter:
    """An autoregressive draft model with a cache of its own, rolled back to what was accepted."""

    kind = TraceKind.TEACHER_FORCED

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self.weight_bytes = model.weight_bytes
        self._valid: dict[int, int] = {}  # cached entries of each slot that belong to its tokens
        self._reach: dict[int, tuple[int, int]] = {}  # certain and drafted entries that the last proposal cached

    def start(self, slot: int, prompt: Sequence[int], hidden: Tensor) -> None:  # noqa: ARG002
        """Read the prompt."""
        self._model.prefill(slot, prompt)
        self._valid[slot] = len(prompt)
        self._reach.pop(slot, None)

    def propose(self, asks: Sequence[Ask]) -> list[list[int]]:
        """Catch up with each request's tokens, then continue them one by one."""
        pending = [ask.tokens[self._valid[ask.slot] :] for ask in asks]
        segments = [Segment(ask.slot, self._valid[ask.slot], len(new)) for ask, new in zip(asks, pending, strict=True)]
        states = self._model.hidden_states(torch.tensor([t for new in pending for t in new]), segments)
        # The last drafted token is never read.
        self._reach.update((ask.slot, (len(ask.tokens), ask.count - 1)) for ask in asks)
        starts = [len(ask.tokens) for ask in asks]
        return continue_greedily(asks, starts, last_rows(states, segments), self._model.choose, self._step)

    def _step(self, token_ids: Tensor, segments: Sequence[Segment], states: Tensor) -> Tensor:  # noqa: ARG002
        return self._model.hidden_states(token_ids, segments)

    def advance(self, slot: int, accepted: int, hidden: Tensor) -> None:  # noqa: ARG002
        """Keep the cached entries of accepted tokens."""
        if slot in self._reach:
            certain, drafted = self._reach.pop(slot)
            self._valid[slot] = certain + min(accepted, drafted)

    def replay(
        self,
        tokens: Sequence[int],
        prompt_tokens: int,
        count: int,
        hidden: Tensor,  # noqa: ARG002
    ) -> Replayed:
        """One teacher-forced pass: a proposal's next token is the same pass as long as it was right before."""
        states = self._model.prefill(0, tokens[:-1])[prompt_tokens - 1 :]
        ranks = self._model.facts(states, tokens[prompt_tokens:], GREEDY).ranks
        proposed, matched = runs_of_hits(ranks, count)
        return Replayed(proposed=proposed, matched=matched, ranks=ranks)


# The draft's most likely token after each row of states.
Choose = Callable[[Tensor], Tensor]
# The draft's next states [requests, hidden], from one more token and the former state of each request.
Step = Callable[[Tensor, Sequence[Segment], Tensor], Tensor]


def last_rows(states: Tensor, segments: Sequence[Segment]) -> Tensor:
    """The state of the last row of each segment [segments, hidden]."""
    if len(segments) == 1:
        return states[-1:]
    ends = torch.tensor([segment.rows for segment in segments]).cumsum(0) - 1
    return states[ends]


def continue_greedily(
    asks: Sequence[Ask], starts: Sequence[int], states: Tensor, choose: Choose, step: Step
) -> list[list[int]]:
    """The draft's own greedy continuation of each request.

    Args:
        asks: The requests.
        starts: Cache position of the first drafted token of each.
        states: The draft's states after each request's last token [requests, hidden].
        choose: Makes tokens of states.
        step: Makes the next states.
    """
    # Those that want most come first, so that the ones still going are always the first rows.
    order = sorted(range(len(asks)), key=lambda index: -asks[index].count)
    states = states[order] if len(asks) > 1 else states
    columns: list[list[int]] = []
    for depth in range(1, asks[order[0]].count + 1):
        chosen = choose(states)
        columns.append(chosen.tolist())
        going = [index for index in order if asks[index].count > depth]
        if going:
            segments = [Segment(asks[index].slot, starts[index] + depth - 1, 1) for index in going]
            states = step(chosen[: len(going)], segments, states[: len(going)])
    rank_of = {index: rank for rank, index in enumerate(order)}
    return [[column[rank_of[index]] for column in columns[: ask.count]] for index, ask in enumerate(asks)]
