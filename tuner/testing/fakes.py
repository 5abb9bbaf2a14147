"""An engine on a clock of its own: every time and every acceptance is written down beforehand."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import ClassVar, Self

from tuner.engines.base import Artifact, Capabilities, LoadedEngine
from tuner.records import Arrival, Chunk, Counters, Event, Failed, Finished, Sent
from tuner.speculation import EngineConfig, Method, content_key

MAX_DRAFTED_TOKENS = 16


@dataclass(slots=True)
class FakeClock:
    """Time that passes only when told to."""

    now_s: float = 0.0

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds

    def wait_until(self, moment_s: float) -> None:
        """Let time pass up to a moment, if it is still to come."""
        self.now_s = max(self.now_s, moment_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeEngine:
    """An engine whose requests all run by the same script.

    Attributes:
        accepts: Draft tokens that are right in a request's first, second, … round; begins again at its end. A round
            cannot accept more than it drafts.
        ttft_s: Time of a prefill.
        round_s: Time of a round, whatever it drafts and however many requests share it.
        prompt_tokens: Of every prompt.
        output_tokens: After which an answer ends by itself; None runs to each request's cap.
        failing: Prompts whose requests fail instead of being answered.
        clock: Shared by everything this engine loads.

    Default times are exact in binary, so that sums of them can be compared with ``==``.
    """

    name: ClassVar[str] = "fake"
    capabilities: ClassVar[Capabilities] = Capabilities(
        methods=frozenset(Method),
        max_num_seqs=8,
        max_drafted_tokens=MAX_DRAFTED_TOKENS,
        needs_compile=False,
        gives_token_ids=True,
        loads_at_once=2,
    )

    accepts: tuple[int, ...] = (0,)
    ttft_s: float = 0.5
    round_s: float = 0.125
    prompt_tokens: int = 10
    output_tokens: int | None = None
    failing: frozenset[str] = frozenset()
    clock: FakeClock = field(default_factory=FakeClock)

    def check(self, config: EngineConfig) -> None:
        """Everything is possible."""

    def replay_is_exact(self, config: EngineConfig) -> bool:  # noqa: ARG002
        """No: the script follows rounds, not positions of the output."""
        return False

    def compile_key(self, config: EngineConfig) -> str:  # noqa: ARG002
        """Always the same: nothing is compiled."""
        return content_key({"engine": self.name})

    def compile(self, config: EngineConfig, cache_dir: str) -> Artifact:  # noqa: ARG002
        """Nothing to do."""
        return Artifact(key=self.compile_key(config))

    def load(self, config: EngineConfig, artifact: Artifact) -> LoadedEngine:  # noqa: ARG002
        """Ready at once."""
        return LoadedFakeEngine(self, config)


@dataclass(slots=True)
class _Request:
    arrival: Arrival
    length: int
    emitted: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0


class LoadedFakeEngine:
    """What ``FakeEngine`` loads. The token at position i of every output has id i."""

    def __init__(self, engine: FakeEngine, config: EngineConfig) -> None:
        self._engine, self._clock = engine, engine.clock
        self._max_num_seqs = config.max_num_seqs
        self._drafted_tokens = config.speculation.drafted_tokens
        self._rounds: list[tuple[int, int]] = []  # drafted and accepted of each

    def run(self, arrivals: Iterable[Arrival]) -> Iterator[Event]:
        """Serve requests; those in flight share their rounds."""
        began_s, queue = self._clock.now_s, iter(arrivals)
        waiting = None
        running: list[_Request] = []
        while True:
            while len(running) < self._max_num_seqs and (waiting := waiting or next(queue, None)) is not None:
                due_s = began_s + waiting.at_s
                if due_s > self._clock.now_s and running:
                    break
                self._clock.wait_until(due_s)
                running += yield from self._admit(waiting)
                waiting = None
            if not running:
                return
            self._clock.advance(self._engine.round_s)
            for request in running:
                yield from self._emit(request, self._round(request))
            running = [request for request in running if request.emitted < request.length]

    def _admit(self, arrival: Arrival) -> Generator[Event, None, list[_Request]]:
        yield Sent(request_id=arrival.request_id, at_s=self._clock.now_s)
        if arrival.prompt.prompt_id in self._engine.failing:
            yield Failed(request_id=arrival.request_id, at_s=self._clock.now_s, error="the script says so")
            return []
        own_end = self._engine.output_tokens
        length = arrival.max_output_tokens if own_end is None or arrival.ignore_eos else own_end
        request = _Request(arrival, min(length, arrival.max_output_tokens))
        self._clock.advance(self._engine.ttft_s)
        yield from self._emit(request, 1)
        return [request] if request.emitted < request.length else []

    def _round(self, request: _Request) -> int:
        drafted = min(self._drafted_tokens, request.arrival.max_output_tokens - request.emitted - 1)
        scripted = self._engine.accepts[request.rounds % len(self._engine.accepts)]
        accepted = min(scripted, drafted, request.length - request.emitted)
        request.rounds += 1
        request.drafted += drafted
        request.accepted += accepted
        self._rounds.append((drafted, accepted))
        return min(accepted + 1, request.length - request.emitted)

    def _emit(self, request: _Request, tokens: int) -> Iterator[Event]:
        name, now_s = request.arrival.request_id, self._clock.now_s
        ids = tuple(range(request.emitted, request.emitted + tokens))
        request.emitted += tokens
        yield Chunk(request_id=name, at_s=now_s, num_tokens=tokens, token_ids=ids)
        if request.emitted == request.length:
            yield Finished(
                request_id=name,
                at_s=now_s,
                reason="length" if request.length == request.arrival.max_output_tokens else "stop",
                prompt_tokens=self._engine.prompt_tokens,
                output_tokens=request.length,
                rounds=request.rounds,
                drafted_tokens=request.drafted,
                accepted_tokens=request.accepted,
            )

    def counters(self) -> Counters:
        """Totals of all rounds so far."""
        drafted, accepted = [drafted for drafted, _ in self._rounds], [accepted for _, accepted in self._rounds]
        depths = range(max(drafted, default=0))
        return Counters(
            rounds=len(self._rounds),
            rounds_with_draft=sum(count > 0 for count in drafted),
            drafted_tokens=sum(drafted),
            accepted_tokens=sum(accepted),
            drafted_at=tuple(sum(count > depth for count in drafted) for depth in depths),
            accepted_at=tuple(sum(count > depth for count in accepted) for depth in depths),
        )

    def environment(self) -> dict[str, str]:
        """Says that it is a fake."""
        return {"engine": "fake"}

    def close(self) -> None:
        """Nothing to release."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
