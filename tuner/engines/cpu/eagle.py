"""The EAGLE head: one layer that continues the target's own hidden states.

Entry t reads token t together with the target's state h of token t - 1 and predicts token t + 1. Within a round the
head feeds on its own states; afterwards its cache entries are computed again from the target's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tuner.engines.cpu.attention import BranchAttention, Segment
from tuner.engines.cpu.drafters import Ask, Replayed, continue_greedily, last_rows
from tuner.engines.cpu.kernels import Linear
from tuner.engines.cpu.model import PREFILL_ROWS, LanguageModel
from tuner.proposers import leading_matches
from tuner.records import TraceKind


class EagleDrafter:
    """Proposes with an EAGLE head.

    Args:
        model: The head's layers, with the target's embedding and rows of its output matrix.
        fuse: Maps token embedding and state, side by side, to the width of the layers.
    """

    kind = TraceKind.ROLLOUTS

    def __init__(self, model: LanguageModel, fuse: Linear, fuse_bytes: int) -> None:
        self._model, self._fuse = model, fuse
        self.weight_bytes = model.weight_bytes + fuse_bytes
        self._pending: dict[int, Tensor] = {}  # the target's states of each slot that no entry holds yet
        self._asked: set[int] = set()

    def start(self, slot: int, prompt: Sequence[int], hidden: Tensor) -> None:
        """Read the prompt; its last state waits for the first output token."""
        self._read(slot, prompt, hidden)
        self._pending[slot] = hidden[-1:]
        self._asked.discard(slot)

    def _read(self, slot: int, tokens: Sequence[int], hidden: Tensor) -> list[Tensor]:
        states = []
        for first in range(1, len(tokens), PREFILL_ROWS):
            ids = torch.tensor(tokens[first : first + PREFILL_ROWS])
            segment = Segment(slot, first - 1, len(ids))
            states.append(self._step(ids, [segment], hidden[first - 1 : first - 1 + len(ids)]))
        return states

    def _inputs(self, token_ids: Tensor, states: Tensor) -> Tensor:
        return self._fuse(torch.cat([self._model.embed(token_ids), states], -1))

    def _step(self, token_ids: Tensor, segments: Sequence[Segment], states: Tensor) -> Tensor:
        stack = self._model.stack
        return stack.forward(self._inputs(token_ids, states), stack.attend(segments))

    def propose(self, asks: Sequence[Ask]) -> list[list[int]]:
        """Read what became certain since the last round, then continue on the head's own states."""
        pending = [self._pending[ask.slot] for ask in asks]
        tokens = [ask.tokens[-len(new) :] for ask, new in zip(asks, pending, strict=True)]
        segments = [
            Segment(ask.slot, len(ask.tokens) - 1 - len(new), len(new)) for ask, new in zip(asks, pending, strict=True)
        ]
        ids = torch.tensor([token for new in tokens for token in new])
        states = self._step(ids, segments, pending[0] if len(pending) == 1 else torch.cat(pending))
        self._asked.update(ask.slot for ask in asks)
        starts = [len(ask.tokens) - 1 for ask in asks]  # an entry lies one position before its token
        return continue_greedily(asks, starts, last_rows(states, segments), self._model.choose, self._step)

    def advance(self, slot: int, accepted: int, hidden: Tensor) -> None:  # noqa: ARG002
        """Take the target's states; they replace the head's own at the next proposal."""
        if slot in self._asked:
            self._asked.discard(slot)
            self._pending[slot] = hidden
        else:
            self._pending[slot] = torch.cat([self._pending[slot], hidden])

    def replay(self, tokens: Sequence[int], prompt_tokens: int, count: int, hidden: Tensor) -> Replayed:
        """Roll out from every position at once, each branch seeing only what its round would have seen."""
        if len(tokens) - prompt_tokens < 2:  # no round begins
            return Replayed(proposed=(0,), matched=(0,))
        entries = torch.cat(self._read(0, tokens[:-1], hidden))
        # A round after output token s - 1 starts from the entry of token prompt_tokens + s - 1, the first of which
        # is the entry after the prompt's own.
        states = entries[prompt_tokens - 1 :]
        seen = torch.arange(prompt_tokens, len(tokens) - 1)
        branches = BranchAttention(self._model.stack.cache, 0, seen)
        columns = []
        for depth in range(count):
            chosen = self._model.choose(states)
            columns.append(chosen)
            if depth + 1 < count:
                states = self._model.stack.forward(self._inputs(chosen, states), branches)
                branches.step()
        matched = [
            leading_matches(proposed, tokens[prompt_tokens + 1 + index :])
            for index, proposed in enumerate(torch.stack(columns, 1).tolist())
        ]
        return Replayed(proposed=(0, *[count] * len(matched)), matched=(0, *matched))
