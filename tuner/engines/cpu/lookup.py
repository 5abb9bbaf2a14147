"""Drafting without a model, by looking up a request's own prompt and output."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from tuner.engines.cpu.drafters import Ask, Replayed
from tuner.proposers import Proposer, replay_proposals
from tuner.records import TraceKind


class LookupDrafter:
    """Proposes by a rule that reads tokens alone.

    Args:
        new_proposer: Makes the proposer of one request.
    """

    kind = TraceKind.PROPOSALS
    weight_bytes = 0

    def __init__(self, new_proposer: Callable[[], Proposer]) -> None:
        self._new_proposer = new_proposer
        self._proposer_of: dict[int, Proposer] = {}

    def start(self, slot: int, prompt: Sequence[int], hidden: Tensor) -> None:  # noqa: ARG002
        """Forget the slot's former request."""
        self._proposer_of[slot] = self._new_proposer()

    def propose(self, asks: Sequence[Ask]) -> list[list[int]]:
        """What followed each request's latest tokens before."""
        return [self._proposer_of[ask.slot].propose(ask.tokens, ask.count) for ask in asks]

    def advance(self, slot: int, accepted: int, hidden: Tensor) -> None:
        """Nothing to do: the proposer reads the tokens themselves."""

    def replay(
        self,
        tokens: Sequence[int],
        prompt_tokens: int,
        count: int,
        hidden: Tensor,  # noqa: ARG002
    ) -> Replayed:
        """The rule itself at each position."""
        steps = list(replay_proposals(self._new_proposer(), tokens, prompt_tokens, count))
        return Replayed(
            proposed=(0, *(proposed for proposed, _ in steps)), matched=(0, *(matched for _, matched in steps))
        )
