"""What an engine is: protocols that built-in and third-party engines implement alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Protocol, Self, runtime_checkable

from tuner.records import GREEDY, Arrival, Counters, Event, Sampling, TargetOutput, TimedSteps, Trace
from tuner.speculation import EngineConfig, Method

DEEPEST_REPLAY = 64
"""Depth of traces in which depth costs nothing: no search space asks for more drafted tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What an engine can do, known without loading anything.

    Attributes:
        methods: Ways of speculating it implements.
        max_num_seqs: Largest batch.
        max_drafted_tokens: Largest k.
        needs_compile: Whether a configuration costs a compile before it can be loaded.
        gives_token_ids: Whether chunks carry token ids.
        loads_at_once: Loaded engines that fit beside each other; 2 lets two configurations be interleaved.
        wasted_draft_passes: Draft passes of a round beyond the tokens that it proposes: a round with k drafted tokens
            runs the draft k + this many times. NxDI's fused speculation wastes one.
        drafts_are_sampled: Whether a draft model draws its tokens where the target samples; else it proposes its most
            likely ones.
        device: What it runs on, a name of ``priors.DEVICES``; None where that is known only when it is loaded.
    """

    methods: frozenset[Method]
    max_num_seqs: int
    max_drafted_tokens: int
    needs_compile: bool
    gives_token_ids: bool
    loads_at_once: int
    wasted_draft_passes: int = 0
    drafts_are_sampled: bool = False
    device: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """What ``compile`` made.

    Attributes:
        key: ``Engine.compile_key``.
        path: The folder that was compiled into; None for engines without a compiler.
    """

    key: str
    path: Path | None = None


class LoadedEngine(Protocol):
    """An engine that holds a model and serves requests. A context manager; ``close`` may be called twice."""

    def run(self, arrivals: Iterable[Arrival], concurrency: int | None = None) -> Iterator[Event]:
        """Serve requests and yield what happens, in order of time.

        ``arrivals`` is pulled whenever fewer than ``concurrency`` are in flight, None for as many as there are slots,
        so a closed loop is an iterable that never waits and an open loop one whose ``at_s`` lie apart. Every request
        yields ``Sent``, its ``Chunk``s, then ``Finished`` or ``Failed``; one request's failure does not end the others.
        """
        ...

    def counters(self) -> Counters | None:
        """A snapshot of the totals since load; None where the engine has none."""
        ...

    def environment(self) -> dict[str, str]:
        """Facts for the record: threads, weight format, versions."""
        ...

    def close(self) -> None:
        """Release everything."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


@runtime_checkable
class Replayable(Protocol):
    """A loaded engine that can say what its draft would have proposed, and time single steps."""

    def trace(self, outputs: Sequence[TargetOutput], sampling: Sampling = GREEDY) -> Trace:
        """Proposals of the loaded draft at every position of every output, for k up to the loaded one at least.

        ``sampling`` is how the target chose the outputs: probabilities are kept where it was not greedy.
        """
        ...

    def top2_gaps(self, outputs: Sequence[TargetOutput]) -> tuple[tuple[float, ...], ...]:
        """Logit of the target's most likely token minus that of its second, at each position of each output."""
        ...

    def time_verify(self, widths: Sequence[int], repeats: int, batch: int = 1) -> TimedSteps:
        """Time one target pass over each number of rows of ``batch`` requests, interleaved over widths."""
        ...

    def time_draft(self, lengths: Sequence[int], repeats: int, batch: int = 1) -> TimedSteps:
        """Time proposing each number of tokens for ``batch`` requests, interleaved over lengths."""
        ...

    def time_draft_prefill(self, prompt_tokens: Sequence[int], repeats: int) -> TimedSteps | None:
        """Time the draft's reading of a prompt, interleaved over its lengths; None where it reads none."""
        ...


class Engine(Protocol):
    """A way of running a model."""

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]

    def check(self, config: EngineConfig) -> None:
        """Refuse what cannot work before anything is spent on it.

        Raises:
            UnsupportedConfigurationError: With the reason and what to change.
            ModelError: The target or draft cannot be used.
        """
        ...

    def replay_is_exact(self, config: EngineConfig) -> bool:
        """Whether replay gives this engine's own accept/reject sequence."""
        ...

    def compile_key(self, config: EngineConfig) -> str:
        """Hash of only what the compiled artifact depends on: the model's shape, the configuration, the compiler."""
        ...

    def compile(self, config: EngineConfig, folder: Path) -> None:
        """Compile into an empty folder; called only where ``capabilities.needs_compile``, in a process of its own.

        The folder is published as it is left, under ``compile_key``, and never written to again.

        Raises:
            CompileError: With the compiler's own words.
        """
        ...

    def load(self, config: EngineConfig, artifact: Artifact) -> LoadedEngine:
        """Load the model. The result is a context manager.

        Raises:
            OutOfDeviceMemoryError: It does not fit.
        """
        ...
