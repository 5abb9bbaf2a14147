"""Running contenders in turn over the same prompts, and the figures that follow from the records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tuner.metrics import MS_PER_S, decode_ms, decoded_tokens, e2e_ms, mean_acceptance_length, mean_tpot_ms, tpot_ms
from tuner.records import Measurement, Prompt, RequestRecord

from .contender import Contender

# Outputs of one prompt, by the contender's name.
Row = dict[str, RequestRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A prompt with its cap, under the name of its workload."""

    workload: str
    prompt: Prompt
    max_output_tokens: int


def run_in_turn(contenders: Sequence[Contender], tasks: Sequence[Task], one_done: Callable[[], None]) -> list[Row]:
    """Every contender on every prompt. Each prompt begins with another contender, so that none is always first."""
    rows = []
    for turn, task in enumerate(tasks):
        start = turn % len(contenders)
        row = {}
        for contender in [*contenders[start:], *contenders[:start]]:
            row[contender.name] = contender.run(task.prompt, task.max_output_tokens)
            one_done()
        rows.append(row)
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All records, and what follows from them.

    Attributes:
        references: For each contender the one that does the same without speculation.
        rows: One for each task, in their order.
    """

    references: Mapping[str, str]
    tasks: Sequence[Task]
    rows: Sequence[Row]

    @property
    def workloads(self) -> list[str]:
        """Their names, in order."""
        return list(dict.fromkeys(task.workload for task in self.tasks))

    def records(self, name: str, workload: str | None = None) -> list[RequestRecord]:
        """What one contender did, on one workload or on all."""
        pairs = zip(self.tasks, self.rows, strict=True)
        return [row[name] for task, row in pairs if workload in (None, task.workload)]

    def seconds_per_token(self, name: str, workload: str | None = None) -> float:
        """Decode time per token after the first chunk, as a ratio of sums."""
        milliseconds = mean_tpot_ms(self.records(name, workload))
        return math.nan if milliseconds is None else milliseconds / MS_PER_S

    def tokens_per_s(self, name: str) -> float:
        """Tokens after the first chunk per second of decoding."""
        return 1 / self.seconds_per_token(name)

    def tokens_per_s_with_prefill(self, name: str) -> float:
        """All tokens per second from sending to the last of them."""
        records = self.records(name)
        times = [time for record in records if (time := e2e_ms(record)) is not None]
        return sum(record.output_tokens or 0 for record in records) * MS_PER_S / sum(times)

    def speedup(self, name: str, workload: str) -> float:
        """Decode time per token without speculation over the one with it, sums over prompts."""
        return self.seconds_per_token(self.references[name], workload) / self.seconds_per_token(name, workload)

    def mean_speedup(self, name: str, workload: str | None = None) -> float:
        """Geometric mean over prompts of the speed-up on each."""
        pairs = zip(self.records(self.references[name], workload), self.records(name, workload), strict=True)
        ratios = [
            reference_ms / own_ms
            for reference, own in pairs
            if (reference_ms := tpot_ms(reference)) is not None and (own_ms := tpot_ms(own)) is not None
        ]
        return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan

    def identical_share(self, name: str, other: str) -> float:
        """Share of prompts whose output is the same, token for token."""
        pairs = list(zip(self.records(name), self.records(other), strict=True))
        return sum(own.token_ids == its.token_ids for own, its in pairs) / len(pairs)

    def fastest(self, names: Iterable[str]) -> str:
        """The name with the most tokens per second."""
        return max(names, key=self.tokens_per_s)

    def acceptance_length(self, name: str) -> float | None:
        """Tokens per round; None where rounds are not counted."""
        return mean_acceptance_length(Measurement(requests=tuple(self.records(name))))

    def details(self) -> list[dict[str, object]]:
        """Raw figures of every prompt: decode times and counts, from which all others can be derived again."""
        return [
            {
                "workload": task.workload,
                "prompt": task.prompt.prompt_id,
                "class": task.prompt.prompt_class,
                "prompt_tokens": next(iter(row.values())).prompt_tokens,
                "decode_ms": {name: _rounded(decode_ms(record)) for name, record in row.items()},
                "decoded_tokens": {name: decoded_tokens(record) for name, record in row.items()},
            }
            for task, row in zip(self.tasks, self.rows, strict=True)
        ]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
