"""Requests on their way through the engine: waiting for a slot, and holding one."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from tuner.engines.cpu.sampling import Chooser, chooser
from tuner.errors import ModelError, WorkloadError
from tuner.models.tokenizer import ChatTokenizer
from tuner.records import Arrival, Finished, FinishReason

# What ``accept`` raises about one request; the others go on.
REFUSALS = (ModelError, WorkloadError)


class ArrivalQueue:
    """Hands out arrivals when they are due, and asks for the next only when it is wanted."""

    def __init__(self, arrivals: Iterable[Arrival]) -> None:
        self._arrivals = iter(arrivals)
        self._next: Arrival | None = None
        self._began_s = time.monotonic()

    def take(self, *, wait: bool) -> Arrival | None:
        """The next arrival; None when there is no more, or when it is not due and nobody waits for it."""
        if self._next is None:
            self._next = next(self._arrivals, None)
        if self._next is None:
            return None
        early_s = self._began_s + self._next.at_s - time.monotonic()
        if early_s > 0 and not wait:
            return None
        if early_s > 0:
            time.sleep(early_s)
        arrival, self._next = self._next, None
        return arrival


@dataclass(slots=True, kw_only=True)
class Running:
    """A request that holds a slot.

    Attributes:
        tokens: Prompt and output so far.
        cap: Length of ``tokens`` at which the request ends.
        ends: Tokens that end it; empty when it ignores them.
    """

    request_id: str
    slot: int
    prompt_tokens: int
    tokens: list[int]
    cap: int
    ends: frozenset[int]
    choose: Chooser
    rounds: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it is over; None while it is not."""
        if self.tokens[-1] in self.ends:
            return "stop"
        return "length" if len(self.tokens) >= self.cap else None

    def wanted(self, drafted_tokens: int) -> int:
        """Tokens worth drafting in the next round: the target adds one of its own to what is accepted."""
        return min(drafted_tokens, self.cap - len(self.tokens) - 1)

    def append(self, output: list[int], *, drafted: int, accepted: int) -> None:
        """Take over the output of one round."""
        self.tokens += output
        self.rounds += 1
        self.drafted_tokens += drafted
        self.accepted_tokens += accepted

    def finished(self, at_s: float, reason: FinishReason) -> Finished:
        """The event of its end."""
        return Finished(
            request_id=self.request_id,
            at_s=at_s,
            reason=reason,
            prompt_tokens=self.prompt_tokens,
            output_tokens=len(self.tokens) - self.prompt_tokens,
            rounds=self.rounds,
            drafted_tokens=self.drafted_tokens,
            accepted_tokens=self.accepted_tokens,
        )


def accept(arrival: Arrival, slot: int, tokenizer: ChatTokenizer, max_model_len: int) -> Running:
    """The arrival as a request with its prompt encoded, nothing computed yet.

    Raises:
        ModelError: The model cannot encode such a prompt.
        WorkloadError: The prompt is empty or leaves no room for output.
    """
    prompt = tokenizer.encode(arrival.prompt)
    check_length(arrival.prompt.prompt_id, len(prompt), arrival.max_output_tokens, max_model_len)
    return Running(
        request_id=arrival.request_id,
        slot=slot,
        prompt_tokens=len(prompt),
        tokens=prompt,
        cap=min(len(prompt) + arrival.max_output_tokens, max_model_len),
        ends=frozenset() if arrival.ignore_eos else tokenizer.eos_token_ids,
        choose=chooser(arrival.sampling),
    )


def check_length(prompt_id: str, prompt_tokens: int, max_output_tokens: int, max_model_len: int) -> None:
    """Refuse a prompt to which no token could be added.

    Raises:
        WorkloadError: It is empty, fills ``max_model_len``, or asks for no output.
    """
    if prompt_tokens == 0:
        raise WorkloadError(f"prompt {prompt_id!r} has no tokens", "write at least one word")
    if prompt_tokens >= max_model_len:
        raise WorkloadError(
            f"prompt {prompt_id!r} has {prompt_tokens} tokens, which leaves no room for output "
            f"in max_model_len {max_model_len}",
            "raise max_model_len or shorten the prompt",
        )
    if max_output_tokens < 1:
        raise WorkloadError(f"prompt {prompt_id!r} asks for {max_output_tokens} output tokens", "ask for 1 or more")
