"""The speculative decoding loop: admit requests, draft, verify, append."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tuner.engines.cpu.attention import Segment
from tuner.engines.cpu.drafters import Ask, Drafter
from tuner.engines.cpu.model import LanguageModel
from tuner.engines.cpu.requests import REFUSALS, ArrivalQueue, Running, accept
from tuner.engines.cpu.sampling import confirm, num_accepted
from tuner.engines.cpu.tally import Tally
from tuner.models.tokenizer import ChatTokenizer
from tuner.records import Arrival, Chunk, Event, Failed, Sent


@dataclass(slots=True, kw_only=True)
class Decoder:
    """Decodes up to ``max_num_seqs`` requests together.

    Attributes:
        drafted_tokens: Most tokens proposed for a request in a round, k.
        max_model_len: Prompt plus output tokens that a request may reach.
    """

    target: LanguageModel
    drafter: Drafter
    tokenizer: ChatTokenizer
    drafted_tokens: int
    max_num_seqs: int
    max_model_len: int
    tally: Tally = field(default_factory=Tally)

    def run(self, arrivals: Iterable[Arrival], concurrency: int | None = None) -> Iterator[Event]:
        """Serve requests; see ``LoadedEngine.run``."""
        queue, most = ArrivalQueue(arrivals), min(concurrency or self.max_num_seqs, self.max_num_seqs)
        running: list[Running] = []
        while True:
            while len(running) < most and (arrival := queue.take(wait=not running)) is not None:
                running += yield from self._admit(arrival, free_slot(running))
            if not running:
                return
            outputs = self._round(running)
            yield from self._report(running, outputs, time.monotonic())
            running = [request for request in running if request.finish_reason is None]

    def _admit(self, arrival: Arrival, slot: int) -> Generator[Event, None, list[Running]]:
        """Read the prompt and choose the first token; nothing is returned for a request that is over with it."""
        yield Sent(request_id=arrival.request_id, at_s=time.monotonic())
        try:
            request = accept(arrival, slot, self.tokenizer, self.max_model_len)
        except REFUSALS as error:
            yield Failed(request_id=arrival.request_id, at_s=time.monotonic(), error=str(error))
            return []
        first = self._prefill(request)
        yield from self._report([request], [[first]], time.monotonic())
        return [request] if request.finish_reason is None else []

    @staticmethod
    def _report(running: Sequence[Running], outputs: Sequence[list[int]], at_s: float) -> Iterator[Event]:
        for request, output in zip(running, outputs, strict=True):
            yield Chunk(request_id=request.request_id, at_s=at_s, num_tokens=len(output), token_ids=tuple(output))
            reason = request.finish_reason
            if reason is not None:
                yield request.finished(at_s, reason)

    # Inference mode is a state of the thread: it may not stay on while a generator waits for its caller.
    @torch.inference_mode()
    def _prefill(self, request: Running) -> int:
        states = self.target.prefill(request.slot, request.tokens)
        first = request.choose(self.target.logits(states[-1:])[0])
        self.drafter.start(request.slot, request.tokens, states)
        request.tokens.append(first)
        return first

    @torch.inference_mode()
    def _round(self, running: Sequence[Running]) -> list[list[int]]:
        """One decode step of every request; their output, already appended."""
        drafts = self._draft(running)
        # The last token has been chosen but never read: it goes through the target together with the drafted ones.
        fed = [[request.tokens[-1], *draft] for request, draft in zip(running, drafts, strict=True)]
        segments = [
            Segment(request.slot, len(request.tokens) - 1, len(rows))
            for request, rows in zip(running, fed, strict=True)
        ]
        states = self.target.hidden_states(torch.tensor([token for rows in fed for token in rows]), segments)
        sizes = [len(rows) for rows in fed]
        logits = torch.split(self.target.logits(states), sizes)
        return [
            self._append(request, draft, rows, own)
            for request, draft, rows, own in zip(running, drafts, logits, torch.split(states, sizes), strict=True)
        ]

    def _draft(self, running: Sequence[Running]) -> list[list[int]]:
        drafts: list[list[int]] = [[] for _ in running]
        wanted = [request.wanted(self.drafted_tokens) for request in running]
        asking = [index for index, count in enumerate(wanted) if count > 0]
        if asking:
            asks = [Ask(running[index].slot, running[index].tokens, wanted[index]) for index in asking]
            for index, draft in zip(asking, self.drafter.propose(asks), strict=True):
                drafts[index] = draft
        return drafts

    def _append(self, request: Running, draft: list[int], logits: Tensor, states: Tensor) -> list[int]:
        output = confirm(draft, logits, request.choose, request.ends)
        accepted = num_accepted(draft, output)
        request.append(output, drafted=len(draft), accepted=accepted)
        self.tally.add(len(draft), accepted)
        self.drafter.advance(request.slot, accepted, states[: len(output)])
        return output


def free_slot(running: Sequence[Running]) -> int:
    """The lowest slot that no request holds."""
    held = {request.slot for request in running}
    return next(slot for slot in range(len(running) + 1) if slot not in held)
