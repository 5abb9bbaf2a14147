"""Builders of what an engine observes, and a tiny engine with a clock of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

from tuner.records import (
    Arrival,
    Chunk,
    Counters,
    Event,
    Failed,
    Finished,
    Measurement,
    Prompt,
    RequestRecord,
    Sent,
)


def a_request(
    prompt_id: str = "p0",
    *,
    sent_s: float = 0.0,
    chunks: Sequence[tuple[float, int]] = ((0.1, 1), (0.2, 1)),
    **changes: Any,
) -> RequestRecord:
    """A completed request; its token ids count up from 0."""
    tokens = sum(count for _, count in chunks)
    record = RequestRecord(
        request_id=f"request-{prompt_id}",
        prompt_id=prompt_id,
        prompt_class="any",
        max_output_tokens=64,
        sent_s=sent_s,
        chunks=tuple(chunks),
        token_ids=tuple(range(tokens)),
        output_tokens=tokens,
        finish_reason="stop",
    )
    return replace(record, **changes)


def a_failed_request(prompt_id: str = "p0", **changes: Any) -> RequestRecord:
    """A request that came to nothing after its first token."""
    failed = a_request(prompt_id, chunks=((0.001, 1),), error="broken", finish_reason=None, output_tokens=None)
    return replace(failed, **changes)


def a_measurement(*requests: RequestRecord, **changes: Any) -> Measurement:
    return replace(Measurement(requests=requests, wall_s=1.0), **changes)


def timed(
    prompt_id: str, e2e_s: float, *, tokens: int = 11, rounds: int | None = None, ttft_s: float = 0.0
) -> RequestRecord:
    """A request of that end-to-end latency, in two chunks."""
    return a_request(prompt_id, chunks=((ttft_s, 1), (e2e_s, tokens - 1)), rounds=rounds)


def a_prompt(prompt_id: str = "p0", **changes: Any) -> Prompt:
    return replace(Prompt(prompt_id=prompt_id, prompt_class="any", text=f"prompt {prompt_id}"), **changes)


def prompts(count: int) -> list[Prompt]:
    return [a_prompt(f"p{number}") for number in range(count)]


@dataclass
class Clock:
    """Time that passes only when told to; shared by engines that take turns."""

    now_s: float = 0.0

    def passes(self, seconds: float) -> float:
        self.now_s += seconds
        return self.now_s


@dataclass
class ScriptedEngine:
    """Serves one request after another: first token after ``ttft_s``, then rounds that emit ``emits`` in turn.

    Each answer has ``tokens`` tokens. Requests in ``fails`` fail after their first token; those in ``vanishes``
    are taken and never finished. ``log`` hears who ran what.
    """

    clock: Clock = field(default_factory=Clock)
    name: str = "engine"
    tokens: int = 5
    emits: Sequence[int] = (1,)
    round_s: Sequence[float] = (0.01,)
    ttft_s: float = 0.1
    fails: frozenset[str] = frozenset()
    vanishes: frozenset[str] = frozenset()
    log: list[tuple[str, str]] = field(default_factory=list)
    totals: Counters | None = field(default_factory=Counters)
    served: list[Arrival] = field(default_factory=list)
    overrides: Mapping[str, Any] = field(default_factory=dict)
    closed: int = 0

    def run(self, arrivals: Iterable[Arrival], concurrency: int | None = None) -> Iterator[Event]:
        for arrival in arrivals:
            self.served.append(arrival)
            self.log.append((self.name, arrival.prompt.prompt_id))
            yield from self._answer(arrival)

    def _answer(self, arrival: Arrival) -> Iterator[Event]:
        request, prompt_id = arrival.request_id, arrival.prompt.prompt_id
        yield Sent(request_id=request, at_s=self.clock.now_s)
        yield Chunk(request_id=request, at_s=self.clock.passes(self.ttft_s), num_tokens=1, token_ids=(0,))
        if prompt_id in self.vanishes:
            return
        if prompt_id in self.fails:
            yield Failed(request_id=request, at_s=self.clock.now_s, error="out of luck")
            return
        done, rounds, drafted, accepted = 1, 0, 0, 0
        end = min(self.tokens, arrival.max_output_tokens)
        round_s = self.round_s[min(len(self.served) - 1, len(self.round_s) - 1)]
        while done < end:
            emitted = min(self.emits[rounds % len(self.emits)], end - done)
            ids = tuple(range(done, done + emitted))
            yield Chunk(request_id=request, at_s=self.clock.passes(round_s), num_tokens=emitted, token_ids=ids)
            done, rounds, drafted, accepted = done + emitted, rounds + 1, drafted + 3, accepted + emitted - 1
        if self.totals is not None:
            self.totals = Counters(
                rounds=self.totals.rounds + rounds,
                rounds_with_draft=self.totals.rounds_with_draft + rounds,
                drafted_tokens=self.totals.drafted_tokens + drafted,
                accepted_tokens=self.totals.accepted_tokens + accepted,
            )
        finished = Finished(
            request_id=request,
            at_s=self.clock.now_s,
            reason="length" if done == arrival.max_output_tokens else "stop",
            prompt_tokens=3,
            output_tokens=done,
            rounds=rounds,
            drafted_tokens=drafted,
            accepted_tokens=accepted,
        )
        yield replace(finished, **self.overrides)

    def counters(self) -> Counters | None:
        return self.totals

    def environment(self) -> dict[str, str]:
        return {"engine": self.name}

    def close(self) -> None:
        self.closed += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
