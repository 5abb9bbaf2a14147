"""An engine on a clock of its own: every time and every acceptance is written down beforehand."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from tuner.engines.base import Artifact, Capabilities, LoadedEngine
from tuner.records import (
    GREEDY,
    Arrival,
    Chunk,
    Counters,
    Event,
    Failed,
    Finished,
    PromptTrace,
    Sampling,
    Sent,
    TargetOutput,
    TimedSteps,
    Trace,
    TraceKind,
)
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
        draft_s: Part of it that goes into drafting.
        top2_gap: Of every token of every output.
        prompt_tokens: Of every prompt.
        output_tokens: After which an answer ends by itself; None runs to each request's cap.
        failing: Prompts whose requests fail instead of being answered.
        clock: Shared by everything this engine loads.

    Its trace is that of a logged run: known where the script's rounds begin. Default times are exact in binary, so
    that sums of them can be compared with ``==``.
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
    draft_s: float = 0.0
    top2_gap: float = 4.0
    prompt_tokens: int = 10
    output_tokens: int | None = None
    failing: frozenset[str] = frozenset()
    clock: FakeClock = field(default_factory=FakeClock)

    def check(self, config: EngineConfig) -> None:
        """Everything is possible."""

    def replay_is_exact(self, config: EngineConfig) -> bool:  # noqa: ARG002
        """No: the script follows rounds, not positions of the output, so a trace holds for its own k alone."""
        return False

    def compile_key(self, config: EngineConfig) -> str:  # noqa: ARG002
        """Always the same: nothing is compiled."""
        return content_key({"engine": self.name})

    def compile(self, config: EngineConfig, folder: Path) -> None:
        """Nothing to do."""

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
        self._draft_name, self._drafted_tokens = config.speculation.draft_name, config.speculation.drafted_tokens
        self._rounds: list[tuple[int, int]] = []  # drafted and accepted of each

    def run(self, arrivals: Iterable[Arrival], concurrency: int | None = None) -> Iterator[Event]:
        """Serve requests; those in flight share their rounds."""
        began_s, queue = self._clock.now_s, iter(arrivals)
        most = min(concurrency or self._max_num_seqs, self._max_num_seqs)
        waiting = None
        running: list[_Request] = []
        while True:
            while len(running) < most and (waiting := waiting or next(queue, None)) is not None:
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

    def trace(self, outputs: Sequence[TargetOutput], sampling: Sampling = GREEDY) -> Trace:
        """What the script's rounds accept along each output; see ``Replayable``."""
        return Trace(
            draft_name=self._draft_name,
            max_drafted_tokens=self._drafted_tokens,
            prompts=tuple(self._prompt_trace(output) for output in outputs),
            kind=TraceKind.LOGGED,
            sampling=sampling,
        )

    def _prompt_trace(self, output: TargetOutput) -> PromptTrace:
        length = len(output.token_ids)
        matched, rounds, place = {}, 0, 1
        while place < length:
            scripted = self._engine.accepts[rounds % len(self._engine.accepts)]
            drafted = min(self._drafted_tokens, output.max_output_tokens - place - 1)
            matched[place] = min(scripted, drafted, length - place)
            rounds, place = rounds + 1, place + matched[place] + 1
        return PromptTrace(
            prompt_id=output.prompt.prompt_id,
            prompt_class=output.prompt.prompt_class,
            max_output_tokens=output.max_output_tokens,
            proposed=tuple(self._drafted_tokens if place in matched else 0 for place in range(length)),
            matched=tuple(matched.get(place, 0) for place in range(length)),
            top2_gaps=(self._engine.top2_gap,) * length,
            unknown=tuple(place for place in range(1, length) if place not in matched),
        )

    def top2_gaps(self, outputs: Sequence[TargetOutput]) -> tuple[tuple[float, ...], ...]:
        """The same everywhere; see ``Replayable``."""
        return tuple((self._engine.top2_gap,) * len(output.token_ids) for output in outputs)

    def time_verify(self, widths: Sequence[int], repeats: int, batch: int = 1) -> TimedSteps:
        """What a round has left for the target; see ``Replayable``."""
        seconds = self._engine.round_s - self._engine.draft_s
        return TimedSteps(step="verify", seconds=dict.fromkeys(widths, (seconds,) * repeats), batch=batch)

    def time_draft(self, lengths: Sequence[int], repeats: int, batch: int = 1) -> TimedSteps:
        """A round's drafting, however much is drafted; see ``Replayable``."""
        seconds = (self._engine.draft_s,) * repeats
        return TimedSteps(step="draft", seconds=dict.fromkeys(lengths, seconds), batch=batch)

    def time_draft_prefill(self, prompt_tokens: Sequence[int], repeats: int) -> TimedSteps | None:  # noqa: ARG002
        """None: the script's drafts read no prompt."""
        return None

    def close(self) -> None:
        """Nothing to release."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
