"""A machine that grows slower during a measurement, and an engine on it whose answers are laid down beforehand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from tuner.records import Arrival, Chunk, Counters, Event, Finished, Sent

PROMPT_TOKENS = 10


@dataclass(slots=True, kw_only=True)
class DriftingMachine:
    """A clock shared by all that runs on the machine: the same work takes longer in the second half.

    Attributes:
        total_s: Work of the whole measurement as the fast machine does it; half of it done, the slow half begins.
        slowdown: How many times as long work takes in the end.
        is_gradual: Whether the machine slows evenly over the second half, or at once in its middle.
        now_s: Time that has passed.
    """

    total_s: float
    slowdown: float
    is_gradual: bool = False
    now_s: float = 0.0
    _done_s: float = 0.0

    def work(self, seconds: float) -> float:
        """Do work that takes the fast machine so long; the time after it."""
        self.now_s += seconds * self._factor()
        self._done_s += seconds
        return self.now_s

    def _factor(self) -> float:
        into = max(0.0, 2 * self._done_s / self.total_s - 1)
        if into == 0:
            return 1.0
        return 1 + (self.slowdown - 1) * (min(into, 1.0) if self.is_gradual else 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One side's answer to one prompt.

    Attributes:
        first_s: Work until the first token.
        decode_s: Work for all later ones.
    """

    output_tokens: int
    rounds: int
    first_s: float
    decode_s: float


@dataclass(slots=True, kw_only=True)
class SimulatedLoad:
    """A loaded engine that answers one request after another as laid down, each in two chunks without token ids.

    Attributes:
        answers: By prompt id.
        noises: A factor on the work of each request in turn, without end.
        drafted_tokens: Of each round.
    """

    machine: DriftingMachine
    answers: Mapping[str, Answer]
    noises: Iterator[float]
    drafted_tokens: int = 0
    _totals: Counters = field(default_factory=Counters)

    def run(self, arrivals: Iterable[Arrival], concurrency: int | None = None) -> Iterator[Event]:  # noqa: ARG002
        """Serve requests in order. An answer that is longer than its request's cap takes its share of the time."""
        for arrival in arrivals:
            yield from self._serve(arrival)

    def _serve(self, arrival: Arrival) -> Iterator[Event]:
        request, answer, noise = arrival.request_id, self.answers[arrival.prompt.prompt_id], next(self.noises)
        tokens = min(answer.output_tokens, arrival.max_output_tokens)
        share = (tokens - 1) / (answer.output_tokens - 1)
        rounds = max(1, round(answer.rounds * share))
        counted = Counters(
            rounds=rounds, drafted_tokens=rounds * self.drafted_tokens, accepted_tokens=max(0, tokens - 1 - rounds)
        )
        self._totals += counted
        yield Sent(request_id=request, at_s=self.machine.now_s)
        yield Chunk(request_id=request, at_s=self.machine.work(answer.first_s * noise), num_tokens=1)
        decoded_s = self.machine.work(answer.decode_s * share * noise)
        yield Chunk(request_id=request, at_s=decoded_s, num_tokens=tokens - 1)
        yield Finished(
            request_id=request,
            at_s=decoded_s,
            reason="length" if tokens == arrival.max_output_tokens else "stop",
            prompt_tokens=PROMPT_TOKENS,
            output_tokens=tokens,
            rounds=counted.rounds,
            drafted_tokens=counted.drafted_tokens,
            accepted_tokens=counted.accepted_tokens,
        )

    def counters(self) -> Counters:
        """Totals of everything served."""
        return self._totals

    def environment(self) -> dict[str, str]:
        """What it is."""
        return {"engine": "simulated"}

    def close(self) -> None:
        """Nothing to release."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
