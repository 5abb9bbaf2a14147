"""Speculative sampling as published (arXiv 2211.17192), with real models and many sequences of one prompt at once.

Written from the paper and not from the product's replay, which it is there to check: the draft draws each token from
its own distribution q, the target verifies all of them in one pass, a drafted x is accepted with probability
min(1, p(x) / q(x)), and after the first rejection a token of max(0, p − q) is drawn. Every sequence has its own draws.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tuner.engines.base import DEEPEST_REPLAY
from tuner.engines.cpu.attention import Segment
from tuner.engines.cpu.drafters import last_rows
from tuner.engines.cpu.model import LanguageModel
from tuner.engines.logits import distribution, runs_of_hits
from tuner.records import PromptTrace, Sampling

SEQUENCES_OF_A_PASS = 16
"""Along whose outputs p and q are computed at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """One sequence that was decoded to its end."""

    output: tuple[int, ...]
    rounds: int


@dataclass(slots=True)
class _Sequence:
    """One that is being decoded. ``read`` tokens of it lie in the draft's cache."""

    slot: int
    tokens: list[int]
    read: int
    rounds: int = 0


class RejectionSampler:
    """Decodes one prompt many times with two models that both hold a cache with a slot for each sequence.

    Args:
        target: Gives p.
        draft: Gives q, over all or some of the target's tokens.
        prompt: Token ids.
        sampling: Temperature, top-k and top-p of both.
        ends: Tokens that end a sequence.
        cap: Most output tokens.
        generator: Of all draws.
    """

    def __init__(
        self,
        *,
        target: LanguageModel,
        draft: LanguageModel,
        prompt: Sequence[int],
        sampling: Sampling,
        ends: Collection[int],
        cap: int,
        generator: torch.Generator,
    ) -> None:
        self._target, self._draft, self._prompt = target, draft, list(prompt)
        self._sampling, self._ends, self._cap, self._generator = sampling, ends, cap, generator

    @torch.inference_mode()
    def run(self, sequences: int, drafted_tokens: int) -> list[Sampled]:
        """Decode so many sequences with k drafted tokens a round; 0 is the target alone."""
        last = _read_prompt(self._target, self._prompt, sequences)
        _read_prompt(self._draft, self._prompt, sequences)
        first = self._drawn(self._probabilities(self._target, last).expand(sequences, -1))
        every = [
            _Sequence(slot=slot, tokens=[*self._prompt, token], read=len(self._prompt))
            for slot, token in enumerate(first.tolist())
        ]
        while going := [one for one in every if not self._is_over(one)]:
            self._round(going, drafted_tokens)
        return [Sampled(output=tuple(one.tokens[len(self._prompt) :]), rounds=one.rounds) for one in every]

    def _is_over(self, one: _Sequence) -> bool:
        return one.tokens[-1] in self._ends or len(one.tokens) - len(self._prompt) >= self._cap

    def _round(self, going: Sequence[_Sequence], k: int) -> None:
        drafted, q = self._drafted(going, k)
        p = self._verified(going, drafted)
        of_drafted = drafted[:, :, None]
        chance = torch.rand(drafted.shape, generator=self._generator)
        is_accepted = chance * q[:, :k].gather(2, of_drafted)[:, :, 0] < p[:, :k].gather(2, of_drafted)[:, :, 0]
        accepted = is_accepted.long().cumprod(1).sum(1)
        row = torch.arange(len(going))
        # After k acceptances q is 0, and the residual is p itself.
        residual = (p[row, accepted] - q[row, accepted]).clamp_min(0.0)
        own = self._drawn(torch.where(residual.sum(1, keepdim=True) > 0, residual, p[row, accepted]))
        for one, count, draft, token in zip(going, accepted.tolist(), drafted.tolist(), own.tolist(), strict=True):
            one.read = len(one.tokens) + min(count, max(k - 1, 0)) if k else one.read
            self._append(one, [*draft[:count], token])

    def _append(self, one: _Sequence, emitted: Sequence[int]) -> None:
        one.rounds += 1
        for token in emitted:
            one.tokens.append(token)
            if self._is_over(one):
                break

    def _drafted(self, going: Sequence[_Sequence], k: int) -> tuple[Tensor, Tensor]:
        """Drafted tokens [sequences, k], and q at each of them and 0 behind them [sequences, k + 1, vocabulary]."""
        drafted = torch.zeros(len(going), k, dtype=torch.long)
        q = torch.zeros(len(going), k + 1, len(self._target.embedding))
        fed = [one.tokens[one.read :] for one in going]
        segments = [Segment(one.slot, one.read, len(new)) for one, new in zip(going, fed, strict=True)]
        for depth in range(k):
            ids = torch.tensor([token for new in fed for token in new])
            states = last_rows(self._draft.hidden_states(ids, segments), segments)
            q[:, depth] = self._probabilities(self._draft, states)
            drafted[:, depth] = self._drawn(q[:, depth])
            fed = [[token] for token in drafted[:, depth].tolist()]
            segments = [Segment(one.slot, len(one.tokens) + depth, 1) for one in going]
        return drafted, q

    def _verified(self, going: Sequence[_Sequence], drafted: Tensor) -> Tensor:
        """The p after the last certain token and after each drafted one [sequences, k + 1, vocabulary]."""
        last = torch.tensor([[one.tokens[-1]] for one in going])
        rows = torch.cat([last, drafted], 1)
        segments = [Segment(one.slot, len(one.tokens) - 1, rows.shape[1]) for one in going]
        states = self._target.hidden_states(rows.flatten(), segments)
        return self._probabilities(self._target, states).view(*rows.shape, -1)

    def _probabilities(self, model: LanguageModel, states: Tensor) -> Tensor:
        """Over the target's vocabulary [rows, vocabulary]."""
        logits = model.logits(states)
        if self._sampling.top_k == 0 and self._sampling.top_p >= 1.0:  # no need to sort
            probabilities = torch.softmax(logits / self._sampling.temperature, 1)
            columns = torch.arange(logits.shape[1]).expand_as(logits)
        else:
            probabilities, columns = distribution(logits, self._sampling)
        ids = columns if model.token_ids is None else model.token_ids[columns]
        return torch.zeros(len(states), len(self._target.embedding)).scatter_(1, ids, probabilities)

    def _drawn(self, weights: Tensor) -> Tensor:
        """A token of each row [rows]."""
        return torch.multinomial(weights, 1, generator=self._generator)[:, 0]

    @torch.inference_mode()
    def traced(self, sequences: Sequence[Sampled]) -> list[PromptTrace]:
        """Both p and q of each emitted token, by one pass of each model along the outputs, as the product traces them.

        Sequences are named by their number; the caches must still hold the prompt in as many slots.
        """
        made: list[PromptTrace] = []
        for begin in range(0, len(sequences), SEQUENCES_OF_A_PASS):
            outputs = [one.output for one in sequences[begin : begin + SEQUENCES_OF_A_PASS]]
            pairs = zip(self._states(self._target, outputs), self._states(self._draft, outputs), outputs, strict=True)
            for of_target, of_draft, output in pairs:
                p = self._target.facts(of_target, output, self._sampling, are_chosen=True)
                q = self._draft.facts(of_draft, output, self._sampling)
                proposed, matched = runs_of_hits(q.ranks, DEEPEST_REPLAY)
                made.append(
                    PromptTrace(
                        prompt_id=str(len(made)),
                        prompt_class="",
                        max_output_tokens=self._cap,
                        proposed=proposed,
                        matched=matched,
                        ranks=q.ranks,
                        target_probabilities=p.probabilities,
                        draft_probabilities=q.probabilities,
                    )
                )
        return made

    def _states(self, model: LanguageModel, outputs: Sequence[Sequence[int]]) -> Sequence[Tensor]:
        """The states that predict each output token [tokens, hidden], one tensor for each output."""
        fed = [[self._prompt[-1], *output[:-1]] for output in outputs]
        segments = [Segment(slot, len(self._prompt) - 1, len(new)) for slot, new in enumerate(fed)]
        states = model.hidden_states(torch.tensor([token for new in fed for token in new]), segments)
        return torch.split(states, [len(new) for new in fed])


def _read_prompt(model: LanguageModel, prompt: Sequence[int], slots: int) -> Tensor:
    """Read the prompt once and copy its cache to the other slots; its last state [1, hidden]."""
    states = model.prefill(0, prompt)
    cached = model.stack.cache.data[:, :, :, :, : len(prompt)]
    cached[:, :, 1:slots] = cached[:, :, :1].clone()
    return states[-1:]
