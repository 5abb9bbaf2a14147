"""Speculation that really ran on the engine beside what replay says of it, request by request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch

from tuner.engines.cpu.loaded import LoadedCpuEngine
from tuner.engines.logits import distribution
from tuner.errors import MeasurementError
from tuner.outputs import LOGIT_NOISE, common_prefix
from tuner.records import Arrival, RequestRecord, Sampling, TargetOutput
from tuner.replay import replay_all
from tuner.request_log import RequestLog
from tuner.speculation import NO_SPECULATION, Speculation

from .comparison import Task
from .shared_target import SharedTarget

Counts = tuple[int, int, int]
"""Rounds, drafted and accepted tokens of one request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One request: what ran minus what was replayed.

    Attributes:
        difference: Along the output of the target alone.
        diverged_at: First token at which its output is not that of the target alone; None where all are.
        margin: How close the target's choice was there; see ``choice_margin``.
        own_difference: Along its own output, where that is another.
    """

    draft: str
    drafted_tokens: int
    workload: str
    prompt_id: str
    counts: Counts
    difference: Counts
    diverged_at: int | None = None
    margin: float | None = None
    own_difference: Counts | None = None

    @property
    def is_tie(self) -> bool:
        """Whether it took another path where the numerics' noise decides, and replay is exact along that one."""
        is_close = self.margin is not None and self.margin <= LOGIT_NOISE
        return is_close and self.own_difference == (0, 0, 0)

    @property
    def unexplained(self) -> Counts:
        """The difference that replay has to answer for."""
        if self.is_tie:
            return (0, 0, 0)
        return max(self.difference, self.own_difference or (0, 0, 0), key=lambda one: sum(map(abs, one)))

    def describe(self) -> dict[str, object]:
        """As the JSON lists it."""
        return asdict(self) | {"is_tie": self.is_tie}


def compare(
    shared: SharedTarget,
    drafts: Iterable[Speculation],
    drafted_tokens: Sequence[int],
    tasks: Sequence[Task],
    sampling: Sampling,
) -> Iterator[Compared]:
    """Run every draft with every k on every task, replay the same, and compare.

    One trace of each draft, made along the outputs of the target alone, answers for every k.

    Args:
        shared: The target.
        drafts: Their own numbers of drafted tokens do not matter.
        drafted_tokens: Values of k.
        tasks: Prompts.
        sampling: How the target chooses; every task has its own seed, counted from this one's.
    """
    alone = run(shared.engine(NO_SPECULATION), tasks, sampling)
    outputs = [_output(task, record) for task, record in zip(tasks, alone, strict=True)]
    for draft in drafts:
        deep = shared.engine(replace(draft, drafted_tokens=max(drafted_tokens)))
        for replayed in replay_all(deep.trace(outputs, sampling), drafted_tokens):
            k = replayed.drafted_tokens
            ran = run(shared.engine(replace(draft, drafted_tokens=k)), tasks, sampling)
            columns = (replayed.rounds, replayed.drafted, replayed.accepted)
            for index, (task, record) in enumerate(zip(tasks, ran, strict=True)):
                said = (int(columns[0][index]), int(columns[1][index]), int(columns[2][index]))
                compared = Compared(
                    draft=draft.draft_name,
                    drafted_tokens=k,
                    workload=task.workload,
                    prompt_id=task.prompt.prompt_id,
                    counts=_counts(record),
                    difference=_minus(_counts(record), said),
                )
                if record.token_ids == outputs[index].token_ids:
                    yield compared
                else:
                    seeded = replace(sampling, seed=sampling.seed + index)
                    yield _diverged(shared, deep, compared, task, (outputs[index].token_ids, record), seeded)


def run(loaded: LoadedCpuEngine, tasks: Sequence[Task], sampling: Sampling) -> list[RequestRecord]:
    """Answer all tasks, as many at once as the engine takes; records in their order.

    Raises:
        MeasurementError: A request failed.
    """
    arrivals = [
        Arrival(
            request_id=str(index),
            prompt=task.prompt,
            max_output_tokens=task.max_output_tokens,
            sampling=replace(sampling, seed=sampling.seed + index),
        )
        for index, task in enumerate(tasks)
    ]
    log = RequestLog(arrivals, concurrency=len(arrivals))
    for event in loaded.run(arrivals):
        log.add(event)
    records = sorted(log.records(), key=lambda record: int(record.request_id))
    for record in records:
        if not record.is_complete:
            raise MeasurementError(f"prompt {record.prompt_id!r} failed: {record.error}")
    return records


def _output(task: Task, record: RequestRecord) -> TargetOutput:
    return TargetOutput(prompt=task.prompt, token_ids=record.token_ids, max_output_tokens=task.max_output_tokens)


def _counts(record: RequestRecord) -> Counts:
    return record.rounds or 0, record.drafted_tokens or 0, record.accepted_tokens or 0


def _minus(ran: Counts, said: Counts) -> Counts:
    return ran[0] - said[0], ran[1] - said[1], ran[2] - said[2]


def _diverged(
    shared: SharedTarget,
    deep: LoadedCpuEngine,
    compared: Compared,
    task: Task,
    outputs: tuple[tuple[int, ...], RequestRecord],
    sampling: Sampling,
) -> Compared:
    """The comparison with where and how closely the outputs parted, and with the replay of the engine's own output."""
    alone, record = outputs
    position = common_prefix(alone, record.token_ids)
    (own,) = replay_all(deep.trace([_output(task, record)], sampling), [compared.drafted_tokens])
    said = (int(own.rounds[0]), int(own.drafted[0]), int(own.accepted[0]))
    return replace(
        compared,
        diverged_at=position,
        margin=choice_margin(shared, task, alone[: position + 1], record.token_ids[: position + 1], sampling),
        own_difference=_minus(_counts(record), said),
    )


@torch.inference_mode()
def choice_margin(
    shared: SharedTarget, task: Task, one: Sequence[int], other: Sequence[int], sampling: Sampling
) -> float | None:
    """How close the choice between the last tokens of two outputs was, that are the same before; None without both.

    Under temperature 0 the difference of their logits. Where tokens are sampled, the smaller of that difference, which
    noise would have to overcome to exchange them in the order of the cumulative distribution, and of how far the random
    number lies from the farther of their two shares of that distribution.
    """
    if len(one) != len(other):
        return None
    ids = [*shared.tokenizer.encode(task.prompt), *one[:-1]]
    logits = shared.model.logits(shared.model.prefill(0, ids)[-1:])[0]
    gap = abs(float(logits[one[-1]] - logits[other[-1]]))
    if sampling.temperature == 0:
        return gap
    probabilities, columns = distribution(logits, sampling)
    cumulative = probabilities.double().cumsum(0)
    drawn = np.random.default_rng(sampling.seed).random(len(one))[-1] * float(cumulative[-1])
    distances = []
    for token in (one[-1], other[-1]):
        rank = int((columns == token).nonzero()[0])
        high = float(cumulative[rank])
        low = high - float(probabilities[rank])
        distances.append(max(low - drawn, drawn - high, 0.0))
    return min(gap, max(distances))
