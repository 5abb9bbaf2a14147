"""A loaded model that serves requests, replays drafts and times steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Self

import torch

from tuner.engines.cpu.decode import Decoder
from tuner.engines.cpu.kernels import Kernel
from tuner.engines.cpu.replay import replayed_depth, top2_gaps, trace_output
from tuner.engines.cpu.threads import ThreadChoice
from tuner.engines.cpu.timing import time_draft, time_draft_prefill, time_verify
from tuner.errors import EngineError
from tuner.records import GREEDY, Arrival, Counters, Event, Sampling, TargetOutput, TimedSteps, Trace
from tuner.speculation import EngineConfig


class LoadedCpuEngine:
    """A target and its draft in memory. Implements ``LoadedEngine`` and ``Replayable``."""

    def __init__(self, decoder: Decoder, *, config: EngineConfig, kernel: Kernel, threads: ThreadChoice) -> None:
        self._open: Decoder | None = decoder
        self._config, self._kernel, self._threads = config, kernel, threads
        self._environment = self._describe(decoder)

    def _describe(self, decoder: Decoder) -> dict[str, str]:
        return {
            "threads": str(self._threads.threads),
            "thread_self_test": self._threads.text,
            "weight_format": self._kernel.name,
            "lossless": "yes" if self._kernel.is_lossless else "no",
            "weight_bytes": str(decoder.target.weight_bytes),
            "draft_weight_bytes": str(decoder.drafter.weight_bytes),
            "torch": torch.__version__,
        }

    def _decoder(self) -> Decoder:
        if self._open is None:
            raise EngineError("the cpu engine has been closed", "load the configuration again")
        # A number of the whole process: another loaded engine may have changed it.
        torch.set_num_threads(self._threads.threads)
        return self._open

    def run(self, arrivals: Iterable[Arrival], concurrency: int | None = None) -> Iterator[Event]:
        """Serve requests; see ``LoadedEngine``."""
        return self._decoder().run(arrivals, concurrency)

    def counters(self) -> Counters:
        """Totals since load."""
        return self._decoder().tally.snapshot()

    def environment(self) -> dict[str, str]:
        """Threads, weight format and size, version of PyTorch."""
        return dict(self._environment)

    def trace(self, outputs: Sequence[TargetOutput], sampling: Sampling = GREEDY) -> Trace:
        """Proposals at every position of every output; see ``Replayable``."""
        decoder = self._decoder()
        return Trace(
            draft_name=self._config.speculation.draft_name,
            max_drafted_tokens=replayed_depth(decoder),
            prompts=tuple(trace_output(decoder, output, sampling) for output in outputs),
            kind=decoder.drafter.kind,
            sampling=sampling,
        )

    def top2_gaps(self, outputs: Sequence[TargetOutput]) -> tuple[tuple[float, ...], ...]:
        """How clearly the target chose each token; see ``Replayable``."""
        decoder = self._decoder()
        return tuple(top2_gaps(decoder, output) for output in outputs)

    def time_verify(self, widths: Sequence[int], repeats: int, batch: int = 1) -> TimedSteps:
        """Time passes of the target; see ``Replayable``."""
        return time_verify(self._decoder(), widths, repeats, batch)

    def time_draft(self, lengths: Sequence[int], repeats: int, batch: int = 1) -> TimedSteps:
        """Time drafting; see ``Replayable``."""
        return time_draft(self._decoder(), lengths, repeats, batch)

    def time_draft_prefill(self, prompt_tokens: Sequence[int], repeats: int) -> TimedSteps | None:
        """Time the draft's reading of a prompt; see ``Replayable``."""
        return time_draft_prefill(self._decoder(), prompt_tokens, repeats)

    def close(self) -> None:
        """Release the weights."""
        self._open = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
