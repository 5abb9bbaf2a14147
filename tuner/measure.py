"""Running prompts through a loaded engine and writing down what happens: the same for every engine.

Requests are sent in a closed loop: the engine takes the next one whenever a slot is free. Two engines that are
loaded together take turns, so that a drifting machine slows both alike.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import psutil

from tuner.engines.base import LoadedEngine
from tuner.errors import ConfigurationError, MeasurementError, WorkloadError
from tuner.metrics import completed, decode_ms, decoded_tokens
from tuner.records import (
    GREEDY,
    Arrival,
    CertifyResult,
    Counters,
    Failed,
    Finished,
    Measurement,
    MeasureResult,
    Prompt,
    RequestRecord,
    Sampling,
)
from tuner.request_log import RequestLog

Progress = Callable[[int, int], None]
"""Called with (finished, total) requests; failed ones are finished too."""

WARMUP_TOKENS = 16
"""Enough rounds for a time per round, few enough to cost little beside the measured requests."""

STEADY_WITHIN = 0.1
"""Two warm-up requests in a row whose round times differ by less are steady: noise alone is 1-5 %."""

MEMORY_INTERVAL_S = 1.0
"""Between two looks at memory, each between two requests: a look reads all of /proc and may take 10 ms."""

ANCHOR_EVERY = 3
"""Prompts of a candidate for each that the baseline runs beside it: a third more time for a machine that drifts."""

BLOCK_REQUESTS_PER_SLOT = 2
"""Requests of one side before the other has its turn: seconds, where a machine drifts over minutes."""

LEAST_REQUESTS_PER_SLOT = 2
"""At a further load; fewer, and most of the time some slots would be empty. Prompts are repeated for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureLimits:
    """How requests are sent and capped.

    Attributes:
        max_output_tokens: Cap of every request; a prompt's own lower cap goes before it.
        concurrency: Requests in flight. The engine was loaded for as many at least.
        ignore_eos: Force every answer to its cap. Only for timing rounds: no conclusion follows from it.
        max_warmup_requests: Warm-up ends after so many, steady or not; at least one is sent.
    """

    max_output_tokens: int
    sampling: Sampling = GREEDY
    concurrency: int = 1
    ignore_eos: bool = False
    max_warmup_requests: int = 4


def measure(
    loaded: LoadedEngine,
    prompts: Sequence[Prompt],
    limits: MeasureLimits,
    *,
    name: str = "request",
    passes: int = 1,
    progress: Progress | None = None,
) -> Measurement:
    """Warm up, then run every prompt once, or in several passes over all of them, and record each request.

    ``name`` begins the id of each request.

    Raises:
        WorkloadError: There is no prompt.
        MeasurementError: What the engine reported contradicts itself.
    """
    report = _Report(progress, passes * len(prompts))
    side = _Side(name=name, loaded=loaded, limits=limits, report=report, bytes_of_others=0)
    side.warm_up(prompts)
    for _ in range(passes):
        side.run(prompts)
    return side.measurement()


def measure_loads(
    loaded: LoadedEngine,
    prompts: Sequence[Prompt],
    limits: MeasureLimits,
    loads: Sequence[int],
    progress: Progress | None = None,
) -> dict[int, Measurement]:
    """Measure at the limits' own number of requests in flight and then at each further one, by that number.

    Every prompt is run at each; where there are few of them several times, see ``passes_at``.

    Raises:
        WorkloadError: There is no prompt.
        MeasurementError: What the engine reported contradicts itself.
    """
    report = _Report(progress, len(prompts) + sum(passes_at(load, prompts) * len(prompts) for load in loads))
    side = _Side(name="request", loaded=loaded, limits=limits, report=report, bytes_of_others=0)
    side.warm_up(prompts)
    side.run(prompts)
    return {limits.concurrency: side.measurement()} | _at_loads(loaded, prompts, limits, loads, report)


def passes_at(load: int, prompts: Sequence[Prompt]) -> int:
    """How often the prompts are run at a further load, so that its slots are mostly full."""
    return max(1, -(-LEAST_REQUESTS_PER_SLOT * load // max(1, len(prompts))))


def _at_loads(
    loaded: LoadedEngine, prompts: Sequence[Prompt], limits: MeasureLimits, loads: Sequence[int], report: _Report
) -> dict[int, Measurement]:
    found = {}
    for load in loads:
        side = _Side(name=f"load-{load}", loaded=loaded, limits=replace(limits, concurrency=load), report=report)
        side.warm_up(prompts)
        side.run(list(prompts) * passes_at(load, prompts))
        found[load] = side.measurement()
    return found


def measure_with_anchor(
    baseline: LoadedEngine,
    candidate: LoadedEngine,
    prompts: Sequence[Prompt],
    limits: MeasureLimits,
    *,
    loads: Sequence[int] = (),
    anchor_every: int = ANCHOR_EVERY,
    anchor_bytes: int | None = None,
    progress: Progress | None = None,
) -> MeasureResult:
    """Run the candidate on every prompt, and the baseline on every third beside it in time.

    The baseline goes first in one group of prompts and last in the next, each time on the prompt that the
    candidate has nearest to it. Then the candidate alone runs them at each further load.

    Both engines share the process, so the candidate's memory is what is left of the whole after ``anchor_bytes``,
    by which loading the baseline made it grow; None where that is not given.

    Raises:
        WorkloadError: There is no prompt.
        MeasurementError: What an engine reported contradicts itself.
    """
    groups = _groups(prompts, anchor_every * limits.concurrency)
    nearest = [_nearest(group, limits.concurrency, first=not turn % 2) for turn, group in enumerate(groups)]
    later = sum(passes_at(load, prompts) * len(prompts) for load in loads)
    report = _Report(progress, len(prompts) + sum(map(len, nearest)) + later)
    tested = _Side(name="candidate", loaded=candidate, limits=limits, report=report, bytes_of_others=anchor_bytes)
    anchor = _Side(name="anchor", loaded=baseline, limits=limits, report=report)
    anchor.warm_up(prompts)
    tested.warm_up(prompts)
    for turn, (group, beside) in enumerate(zip(groups, nearest, strict=True)):
        work = [(anchor, beside), (tested, group)]
        for side, share in work if turn % 2 == 0 else reversed(work):
            side.run(share)
    found = tested.measurement()
    return MeasureResult(
        candidate=found,
        anchor=anchor.measurement(),
        at_load=_at_loads(candidate, prompts, limits, loads, report),
    )


def measure_blocks(
    baseline: LoadedEngine,
    candidate: LoadedEngine,
    prompts: Sequence[Prompt],
    limits: MeasureLimits,
    *,
    order: str = "ABBA",
    progress: Progress | None = None,
) -> CertifyResult:
    """Run baseline (A) and candidate (B) on the same prompts, a few at a time, in alternating order.

    The first prompts are run A then B, the next B then A, and so on: what the machine does over minutes hits both
    sides alike.

    Raises:
        WorkloadError: There is no prompt.
        ConfigurationError: ``order`` is not made of pairs AB and BA.
        MeasurementError: What an engine reported contradicts itself.
    """
    half = max(1, -(-len(prompts) // 2))  # of one block each, a slowing machine is a slow candidate
    groups = _groups(prompts, min(BLOCK_REQUESTS_PER_SLOT * limits.concurrency, half))
    blocks = _blocks(order, len(groups))
    report = _Report(progress, 2 * len(prompts))
    sides = {
        "A": _Side(name="baseline", loaded=baseline, limits=limits, report=report),
        "B": _Side(name="candidate", loaded=candidate, limits=limits, report=report),
    }
    for side in sides.values():
        side.warm_up(prompts)
    for turn, letter in enumerate(blocks):
        sides[letter].run(groups[turn // 2])
    return CertifyResult(
        baseline=sides["A"].measurement(),
        candidate=sides["B"].measurement(),
        order=blocks,
        sampling=limits.sampling,
    )


def process_tree_bytes() -> int:
    """Resident memory of this process and everything below it, now."""
    process = psutil.Process()
    total: int = process.memory_info().rss
    for child in process.children(recursive=True):
        try:
            total += child.memory_info().rss
        except psutil.NoSuchProcess:  # it ended between the listing and the look
            continue
    return total


def _groups(prompts: Sequence[Prompt], size: int) -> list[Sequence[Prompt]]:
    return [prompts[start : start + size] for start in range(0, len(prompts), size)]


def _nearest(group: Sequence[Prompt], size: int, *, first: bool) -> Sequence[Prompt]:
    return group[:size] if first else group[-size:]


def _blocks(order: str, num_groups: int) -> str:
    pairs = [order[start : start + 2] for start in range(0, len(order), 2)]
    if not pairs or any(pair not in ("AB", "BA") for pair in pairs):
        raise ConfigurationError(f"order {order!r} is not made of the pairs AB and BA", 'use "ABBA"')
    return "".join(pairs[turn % len(pairs)] for turn in range(num_groups))


class _Report:
    """Counts finished requests for whoever shows progress."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def one_more(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total)


@dataclass(slots=True, kw_only=True)
class _Side:
    """One loaded engine under measurement: warmed up once, then given prompts block by block.

    Attributes:
        bytes_of_others: Resident memory of the process tree that is not this engine's; None leaves memory unknown.
    """

    name: str
    loaded: LoadedEngine
    limits: MeasureLimits
    report: _Report
    bytes_of_others: int | None = None
    _numbers: Iterator[int] = field(default_factory=count)
    _warmup: tuple[RequestRecord, ...] = ()
    _requests: list[RequestRecord] = field(default_factory=list)
    _wall_s: float = 0.0
    _counters_before: Counters | None = None
    _peak_bytes: int = 0
    _looked_s: float = -math.inf

    def warm_up(self, prompts: Sequence[Prompt]) -> None:
        """Send short requests until the time per round is steady; they are kept apart from the measured ones."""
        if not prompts:
            raise WorkloadError("there is no prompt to measure", "check the workload's file and its filters")
        shortest = min(prompts, key=_length)
        cap = min(WARMUP_TOKENS, self.limits.max_output_tokens)
        for number in range(max(1, self.limits.max_warmup_requests)):
            arrival = self._arrival(_marked(shortest, number), f"{self.name}-warmup", cap)
            self._warmup += tuple(_serve(self.loaded, [arrival], self.limits.concurrency, lambda: None))
            if _is_steady(self._warmup):
                break
        self._counters_before = self.loaded.counters()

    def run(self, prompts: Sequence[Prompt]) -> None:
        """Run these prompts in a closed loop and add them to the record."""
        arrivals = [self._arrival(prompt, self.name, self.limits.max_output_tokens) for prompt in prompts]
        records = _serve(self.loaded, arrivals, self.limits.concurrency, self._one_ended)
        self._requests += records
        self._wall_s += _wall_s(records)

    def measurement(self) -> Measurement:
        """Everything observed so far."""
        self._look_at_memory()
        made = Measurement(
            requests=tuple(self._requests),
            warmup=self._warmup,
            counters=self._counted(),
            wall_s=self._wall_s,
            peak_memory_bytes=None if self.bytes_of_others is None else self._peak_bytes - self.bytes_of_others,
            environment=self.loaded.environment() | _conditions(self.limits),
        )
        _check_counts(made)
        return made

    def _arrival(self, prompt: Prompt, prefix: str, cap: int) -> Arrival:
        return Arrival(
            request_id=f"{prefix}-{next(self._numbers)}",
            prompt=prompt,
            max_output_tokens=min(cap, prompt.max_output_tokens or cap),
            sampling=self.limits.sampling,
            ignore_eos=self.limits.ignore_eos,
        )

    def _one_ended(self) -> None:
        if time.monotonic() - self._looked_s > MEMORY_INTERVAL_S:
            self._look_at_memory()
        self.report.one_more()

    def _look_at_memory(self) -> None:
        if self.bytes_of_others is not None:
            self._peak_bytes = max(self._peak_bytes, process_tree_bytes())
            self._looked_s = time.monotonic()

    def _counted(self) -> Counters | None:
        after = self.loaded.counters()
        if after is None or self._counters_before is None:
            return None
        return _difference(after, self._counters_before)


def _length(prompt: Prompt) -> int:
    return len(prompt.text or "") + sum(len(message.content) for message in prompt.messages)


def _marked(prompt: Prompt, number: int) -> Prompt:
    """The prompt with a mark at its beginning, so that no measured request finds its prefix in a cache."""
    mark = f"({number}) "
    if prompt.text is not None:
        return replace(prompt, text=mark + prompt.text)
    first, *others = prompt.messages
    return replace(prompt, messages=(replace(first, content=mark + first.content), *others))


def _is_steady(warmup: Sequence[RequestRecord]) -> bool:
    times = [time for record in warmup[-2:] if (time := _time_per_round_ms(record)) is not None]
    return len(times) == 2 and abs(times[0] - times[1]) <= STEADY_WITHIN * min(times)


def _time_per_round_ms(record: RequestRecord) -> float | None:
    """Decode time per round, or per token where the engine counts no rounds."""
    time = decode_ms(record)
    return None if time is None else time / (record.rounds or decoded_tokens(record))


def _conditions(limits: MeasureLimits) -> dict[str, str]:
    return {
        "concurrency": str(limits.concurrency),
        "output_lengths": "forced" if limits.ignore_eos else "natural",
    }


def _wall_s(records: Sequence[RequestRecord]) -> float:
    tokens_at = [at_s for record in records for at_s, _ in record.chunks]
    return max(tokens_at) - min(record.sent_s for record in records) if tokens_at else 0.0


def _difference(after: Counters, before: Counters) -> Counters:
    """What was counted in between.

    Raises:
        MeasurementError: A total fell: the engine was restarted while it was measured.
    """
    totals = ("rounds", "rounds_with_draft", "drafted_tokens", "accepted_tokens")
    fell = [name for name in totals if getattr(after, name) < getattr(before, name)]
    if fell:
        raise MeasurementError(
            f"the engine's counter {fell[0]} fell from {getattr(before, fell[0])} to {getattr(after, fell[0])}",
            "the engine was restarted while it was measured; measure again",
        )
    return after - before


def _check_counts(measurement: Measurement) -> None:
    """Refuse totals of the engine that are not the sum over its requests.

    Raises:
        MeasurementError: Some of the work was counted elsewhere, or work that is not ours was counted too.
    """
    good = completed(measurement.requests)
    if measurement.counters is None or len(good) != len(measurement.requests):
        return
    for name in ("rounds", "drafted_tokens", "accepted_tokens"):
        counts = [getattr(record, name) for record in good]
        total = getattr(measurement.counters, name)
        if None not in counts and sum(counts) != total:
            raise MeasurementError(
                f"the engine counted {total} {name}, its requests have {sum(counts)} together",
                "is another client using the engine, or does it have several workers of which one was read?",
            )


def _serve(
    loaded: LoadedEngine, arrivals: Sequence[Arrival], concurrency: int, one_ended: Callable[[], None]
) -> list[RequestRecord]:
    """Run the arrivals; one record for each, in order of sending."""
    log = RequestLog(arrivals, concurrency)
    for event in loaded.run(iter(arrivals), concurrency):
        log.add(event)
        if isinstance(event, Finished | Failed):
            one_ended()
    return log.records()
