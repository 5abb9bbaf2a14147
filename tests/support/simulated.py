"""A simulated engine with a clock of its own: true rounds, true replay, no model.

Each draft hits the target's next token with a probability of its own, decided once per position, so that what
``trace`` says and what ``run`` does agree, as they must for an autoregressive draft.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

import numpy as np

from tuner.engines.base import Artifact, Capabilities
from tuner.errors import OutOfDeviceMemoryError
from tuner.records import (
    GREEDY,
    Arrival,
    Chunk,
    Counters,
    Event,
    Finished,
    PromptTrace,
    Sampling,
    Sent,
    TargetOutput,
    TimedSteps,
    Trace,
    TraceKind,
)
from tuner.speculation import EngineConfig, Method


@dataclass
class World:
    """What is true of the machine, the target and the drafts.

    Attributes:
        hit_rates: Probability that a draft's next token is right, by draft name.
        draft_ms: One token of the draft, by draft name.
        top2_gap: Of every token of every output.
        draft_prefill_ms: A draft's reading of any prompt, by draft name; drafts that are not here read none.
        broken: Configurations that run out of memory, by label.
        loads: Labels of what was loaded, in order.
    """

    hit_rates: Mapping[str, float]
    draft_ms: Mapping[str, float]
    round_ms: float = 20.0
    row_ms: float = 1.0
    ttft_ms: float = 50.0
    top2_gap: float = 5.0
    draft_prefill_ms: Mapping[str, float] = field(default_factory=dict)
    broken: frozenset[str] = frozenset()
    now_s: float = 0.0
    loads: list[str] = field(default_factory=list)

    def hits(self, draft: str, prompt_id: str, length: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Whether the draft is right at each position of the prompt's output."""
        seed = sum(map(ord, draft + prompt_id))
        return np.random.default_rng(seed).random(length) < self.hit_rates[draft]

    def verify_s(self, rows: int) -> float:
        return (self.round_ms + self.row_ms * (rows - 1)) / 1000

    def draft_s(self, draft: str, tokens: int) -> float:
        return self.draft_ms.get(draft, 0.0) * tokens / 1000

    def draft_prefill_s(self, draft: str) -> float:
        return self.draft_prefill_ms.get(draft, 0.0) / 1000


class SimulatedEngine:
    name: ClassVar[str] = "simulated"
    capabilities: ClassVar[Capabilities] = Capabilities(
        methods=frozenset(Method),
        max_num_seqs=8,
        max_drafted_tokens=16,
        needs_compile=False,
        gives_token_ids=True,
        loads_at_once=2,
    )

    def __init__(self, world: World) -> None:
        self.world = world

    def check(self, config: EngineConfig) -> None:
        """Everything may be tried."""

    def replay_is_exact(self, config: EngineConfig) -> bool:
        return True

    def compile_key(self, config: EngineConfig) -> str:
        return config.key

    def compile(self, config: EngineConfig, folder: Path) -> None: ...

    def load(self, config: EngineConfig, artifact: Artifact) -> Simulation:
        self.world.loads.append(config.speculation.label)
        if config.speculation.label in self.world.broken:
            raise OutOfDeviceMemoryError(f"{config.speculation.label} does not fit", "lower num_speculative_tokens")
        return Simulation(self.world, config)


class OpaqueEngine(SimulatedEngine):
    """One that can neither replay its drafts nor time single steps, as those of third parties."""

    name: ClassVar[str] = "opaque"

    def load(self, config: EngineConfig, artifact: Artifact) -> OpaqueSimulation:  # type: ignore[override]
        super().load(config, artifact)
        return OpaqueSimulation(self.world, config)


@dataclass
class Serving:
    """A request in flight."""

    request_id: str
    ids: tuple[int, ...]
    hits: Sequence[bool]
    place: int = 1
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def is_over(self) -> bool:
        return self.place >= len(self.ids)

    def advance(self, proposed: int) -> tuple[int, ...]:
        """The output of one round."""
        right = min(run_length(self.hits, self.place), proposed)
        self.rounds, self.drafted, self.accepted = self.rounds + 1, self.drafted + proposed, self.accepted + right
        chunk = self.ids[self.place : self.place + right + 1]
        self.place += len(chunk)
        return chunk


class OpaqueSimulation:
    def __init__(self, world: World, config: EngineConfig) -> None:
        self._world = world
        self._draft = config.speculation.draft_name
        self._tokens = config.speculation.drafted_tokens
        self._max_num_seqs = config.max_num_seqs
        self._totals = Counters()

    def run(self, arrivals: Iterable[Arrival], concurrency: int | None = None) -> Iterator[Event]:
        """Serve requests; those in flight share their rounds, and a prompt is read between two of them."""
        most, queue = min(concurrency or self._max_num_seqs, self._max_num_seqs), iter(arrivals)
        running: list[Serving] = []
        while True:
            while len(running) < most and (arrival := next(queue, None)) is not None:
                running.append((yield from self._admit(arrival)))
            if not running:
                return
            yield from self._round([request for request in running if not request.is_over])
            yield from (self._finished(request) for request in running if request.is_over)
            running = [request for request in running if not request.is_over]

    def _admit(self, arrival: Arrival) -> Generator[Event, None, Serving]:
        prompt_id, cap = arrival.prompt.prompt_id, arrival.max_output_tokens
        request = Serving(
            request_id=arrival.request_id, ids=output_ids(prompt_id, cap), hits=self._hits(prompt_id, cap)
        )
        yield Sent(request_id=request.request_id, at_s=self._world.now_s)
        self._world.now_s += self._world.ttft_ms / 1000 + self._world.draft_prefill_s(self._draft)
        yield Chunk(request_id=request.request_id, at_s=self._world.now_s, num_tokens=1, token_ids=request.ids[:1])
        return request

    def _round(self, running: Sequence[Serving]) -> Iterator[Event]:
        """One round of everything in flight: the time of its draft, and of a pass over the rows of all."""
        proposed = [min(self._tokens, len(request.ids) - request.place - 1) for request in running]
        if running:
            rows = sum(proposed) + len(running)
            self._world.now_s += self._world.draft_s(self._draft, self._tokens) + self._world.verify_s(rows)
        for request, count in zip(running, proposed, strict=True):
            chunk = request.advance(count)
            yield Chunk(request_id=request.request_id, at_s=self._world.now_s, num_tokens=len(chunk), token_ids=chunk)

    def _finished(self, request: Serving) -> Finished:
        self._totals += Counters(
            rounds=request.rounds, drafted_tokens=request.drafted, accepted_tokens=request.accepted
        )
        return Finished(
            request_id=request.request_id,
            at_s=self._world.now_s,
            reason="length",
            prompt_tokens=10,
            output_tokens=len(request.ids),
            rounds=request.rounds,
            drafted_tokens=request.drafted,
            accepted_tokens=request.accepted,
        )

    def _hits(self, prompt_id: str, length: int) -> Sequence[bool]:
        if self._tokens == 0:
            return [False] * length
        return list(self._world.hits(self._draft, prompt_id, length))

    def counters(self) -> Counters:
        return self._totals

    def environment(self) -> dict[str, str]:
        return {"engine": "simulated"}

    def close(self) -> None:
        """Nothing to release."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class Simulation(OpaqueSimulation):
    """One that can do both."""

    def trace(self, outputs: Sequence[TargetOutput], sampling: Sampling = GREEDY) -> Trace:
        return Trace(
            draft_name=self._draft,
            max_drafted_tokens=self._tokens,
            prompts=tuple(self._prompt_trace(output) for output in outputs),
            kind=TraceKind.TEACHER_FORCED,
            sampling=sampling,
        )

    def _prompt_trace(self, output: TargetOutput) -> PromptTrace:
        length = len(output.token_ids)
        hits = self._hits(output.prompt.prompt_id, output.max_output_tokens)[:length]
        matched = [0, *(min(run_length(hits, place), self._tokens) for place in range(1, length))]
        return PromptTrace(
            prompt_id=output.prompt.prompt_id,
            prompt_class=output.prompt.prompt_class,
            max_output_tokens=output.max_output_tokens,
            proposed=(0, *[self._tokens] * (length - 1)),
            matched=tuple(matched),
            ranks=(0, *(0 if hit else 1 for hit in hits[1:])),
            top2_gaps=(self._world.top2_gap,) * length,
        )

    def top2_gaps(self, outputs: Sequence[TargetOutput]) -> tuple[tuple[float, ...], ...]:
        return tuple((self._world.top2_gap,) * len(output.token_ids) for output in outputs)

    def time_verify(self, widths: Sequence[int], repeats: int, batch: int = 1) -> TimedSteps:
        seconds = {rows: (self._world.verify_s(rows * batch),) * repeats for rows in widths}
        return TimedSteps(step="verify", seconds=seconds, batch=batch)

    def time_draft(self, lengths: Sequence[int], repeats: int, batch: int = 1) -> TimedSteps:
        seconds = {tokens: (self._world.draft_s(self._draft, tokens),) * repeats for tokens in lengths}
        return TimedSteps(step="draft", seconds=seconds, batch=batch)

    def time_draft_prefill(self, prompt_tokens: Sequence[int], repeats: int) -> TimedSteps | None:
        if self._draft not in self._world.draft_prefill_ms:
            return None
        seconds = {tokens: (self._world.draft_prefill_s(self._draft),) * repeats for tokens in prompt_tokens}
        return TimedSteps(step="draft_prefill", seconds=seconds)


def output_ids(prompt_id: str, length: int) -> tuple[int, ...]:
    """The target's output to a prompt, the same for every configuration."""
    return tuple(int(one) for one in np.random.default_rng(sum(map(ord, prompt_id))).integers(1000, size=length))


def run_length(hits: Sequence[bool], place: int) -> int:
    """Leading hits from a position on."""
    count = 0
    while place + count < len(hits) and hits[place + count]:
        count += 1
    return count
