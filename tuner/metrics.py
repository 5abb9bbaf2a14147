"""Every figure derived from what was observed: one function each, with its formula.

Engines deliver timestamps and counts, reports deliver text; formulas live here alone. ``metric_definitions``
describes them as data, and ``docs/metrics.md`` is made from it by ``python -m tuner.metrics``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from tuner.errors import MeasurementError
from tuner.metric_definitions import METRICS
from tuner.records import Measurement, RequestRecord

FORMULA_VERSION = 1
"""Raised when a formula changes, so that figures kept from before are derived again."""

Statistic = Literal["mean", "p50", "p90", "p99"]
STATISTICS: tuple[Statistic, ...] = ("mean", "p50", "p90", "p99")

MS_PER_S = 1000.0
SECONDS_PER_HOUR = 3600.0


def check_record(record: RequestRecord) -> None:
    """Refuse a completed request whose parts contradict each other.

    Raises:
        MeasurementError: The engine's token count is missing, or is not the sum over chunks or the number of ids.
    """
    if not record.is_complete:
        return
    arrived = sum(count for _, count in record.chunks)
    if record.output_tokens != arrived:
        raise MeasurementError(
            f"request {record.request_id}: the engine says {record.output_tokens} output tokens, "
            f"its chunks carry {arrived}",
            "this is a fault of the engine; the request cannot be timed",
        )
    if record.token_ids and len(record.token_ids) != arrived:
        raise MeasurementError(
            f"request {record.request_id}: {len(record.token_ids)} token ids for {arrived} output tokens",
            "this is a fault of the engine; the request cannot be timed",
        )


def completed(requests: Iterable[RequestRecord]) -> tuple[RequestRecord, ...]:
    """The requests that ended well, each checked against itself.

    Raises:
        MeasurementError: One of them contradicts itself.
    """
    good = tuple(record for record in requests if record.is_complete)
    for record in good:
        check_record(record)
    return good


def _chunks(record: RequestRecord) -> tuple[tuple[float, int], ...]:
    """Chunks of a completed request that carry a token: a role, an empty or a usage event is none."""
    if not record.is_complete:
        return ()
    check_record(record)
    return tuple(chunk for chunk in record.chunks if chunk[1] > 0)


def ttft_ms(record: RequestRecord) -> float | None:
    """Time to the first token: first chunk that carries one − sent. None when no token came or it failed."""
    chunks = _chunks(record)
    return (chunks[0][0] - record.sent_s) * MS_PER_S if chunks else None


def e2e_ms(record: RequestRecord) -> float | None:
    """End-to-end latency: last token − sent. None when no token came or the request failed."""
    chunks = _chunks(record)
    return (chunks[-1][0] - record.sent_s) * MS_PER_S if chunks else None


def decode_ms(record: RequestRecord) -> float | None:
    """Time from the first chunk to the last: t_last − t_first. None for fewer than two chunks."""
    chunks = _chunks(record)
    return (chunks[-1][0] - chunks[0][0]) * MS_PER_S if len(chunks) > 1 else None


def decoded_tokens(record: RequestRecord) -> int:
    """Tokens that came after the first chunk: those that ``decode_ms`` was spent on."""
    return sum(count for _, count in _chunks(record)[1:])


def tpot_ms(record: RequestRecord) -> float | None:
    """Mean time per output token after the first chunk.

    (t_last − t_first) / (N − tokens of the first chunk). None for fewer than two chunks.
    """
    time = decode_ms(record)
    return None if time is None else time / decoded_tokens(record)


def inter_chunk_ms(record: RequestRecord) -> tuple[float, ...]:
    """Gaps between chunks. Not a latency between tokens: a chunk may hold several. Empty for one chunk."""
    return tuple((later - earlier) * MS_PER_S for (earlier, _), (later, _) in pairwise(_chunks(record)))


LATENCIES: dict[str, Callable[[RequestRecord], float | None]] = {
    "ttft_ms": ttft_ms,
    "e2e_ms": e2e_ms,
    "tpot_ms": tpot_ms,
}


def latency_summary(measurement: Measurement, name: str, statistic: Statistic) -> float | None:
    """Mean or percentile of a latency over completed requests; None when none of them has it.

    The mean of TPOT is the ratio of sums Σ(t_last − t_first) / Σ(N − tokens of the first chunk), so that a long
    answer weighs as much as its tokens. Percentiles are over requests, interpolated linearly.
    """
    values = [value for record in measurement.requests if (value := LATENCIES[name](record)) is not None]
    if not values:
        return None
    if statistic != "mean":
        return float(np.percentile(values, float(statistic.removeprefix("p"))))
    if name == "tpot_ms":
        return mean_tpot_ms(measurement.requests)
    return float(np.mean(values))


def mean_tpot_ms(requests: Iterable[RequestRecord]) -> float | None:
    """Σ(t_last − t_first) / Σ(N − tokens of the first chunk) over completed requests of at least two chunks."""
    pairs = [(time, decoded_tokens(record)) for record in requests if (time := decode_ms(record)) is not None]
    return sum(time for time, _ in pairs) / sum(tokens for _, tokens in pairs) if pairs else None


def output_tokens_per_s(measurement: Measurement) -> float | None:
    """ΣN of completed requests / wall time. None when nothing was completed."""
    tokens = sum(record.output_tokens or 0 for record in completed(measurement.requests))
    return tokens / measurement.wall_s if tokens and measurement.wall_s > 0 else None


def cost_per_million_tokens(tokens_per_s: float | None, price_per_hour: float | None) -> float | None:
    """Price per hour / 3600 / output tokens per second · 10⁶. None without a price or a throughput."""
    if not tokens_per_s or price_per_hour is None:
        return None
    return price_per_hour / SECONDS_PER_HOUR / tokens_per_s * 1e6


def goodput_requests_per_s(measurement: Measurement, limits_ms: Mapping[str, float]) -> float | None:
    """Completed requests that met every limit, per second of wall time. None when no limit is given.

    ``limits_ms`` has the largest allowed value by name of a latency, e.g. ``{"ttft_ms": 200}``. A limit on what a
    request does not have (TPOT of one token) is met.
    """
    if not limits_ms or measurement.wall_s <= 0:
        return None
    good = [record for record in completed(measurement.requests) if _meets(record, limits_ms)]
    return len(good) / measurement.wall_s


def _meets(record: RequestRecord, limits_ms: Mapping[str, float]) -> bool:
    values = {name: LATENCIES[name](record) for name in limits_ms}
    return all(value is None or value <= limits_ms[name] for name, value in values.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTotals:
    """Sums over the completed requests of a measurement; None for what the engine does not count."""

    output_tokens: int
    decoded_tokens: int
    rounds: int | None
    drafted_tokens: int | None
    accepted_tokens: int | None


def round_totals(measurement: Measurement) -> RoundTotals:
    """Rounds and tokens of completed requests.

    Each request's own counts are taken where the engine gives them. The engine's totals stand in only when no
    request failed, because they would count the failed ones too.
    """
    good = completed(measurement.requests)
    whole = measurement.counters if len(good) == len(measurement.requests) else None
    return RoundTotals(
        output_tokens=sum(record.output_tokens or 0 for record in good),
        decoded_tokens=sum(max((record.output_tokens or 0) - 1, 0) for record in good),
        rounds=_total([record.rounds for record in good], whole.rounds if whole else None),
        drafted_tokens=_total([record.drafted_tokens for record in good], whole.drafted_tokens if whole else None),
        accepted_tokens=_total([record.accepted_tokens for record in good], whole.accepted_tokens if whole else None),
    )


def _total(counts: list[int | None], engine_total: int | None) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if counts and len(known) == len(counts) else engine_total


def mean_acceptance_length(measurement: Measurement) -> float | None:
    """τ = Σ(N − 1) / Σ rounds over completed requests. None without round counts or without a round."""
    totals = round_totals(measurement)
    return totals.decoded_tokens / totals.rounds if totals.rounds else None


def acceptance_rate(measurement: Measurement) -> float | None:
    """Accepted / drafted tokens. None when nothing was drafted or the engine does not count."""
    totals = round_totals(measurement)
    if not totals.drafted_tokens or totals.accepted_tokens is None:
        return None
    return totals.accepted_tokens / totals.drafted_tokens


def waste_tokens_per_output_token(measurement: Measurement) -> float | None:
    """Σ(drafted − accepted) / ΣN. 0 for the baseline, which drafts nothing; None where that is not counted."""
    totals = round_totals(measurement)
    if totals.drafted_tokens is None or totals.accepted_tokens is None or not totals.output_tokens:
        return None
    return (totals.drafted_tokens - totals.accepted_tokens) / totals.output_tokens


def acceptance_by_position(measurement: Measurement) -> tuple[float | None, ...]:
    """Rounds that accepted position i / rounds that drafted it. Empty where positions are not counted."""
    counters = measurement.counters
    if counters is None:
        return ()
    pairs = zip(counters.accepted_at, counters.drafted_at, strict=True)
    return tuple(accepted / drafted if drafted else None for accepted, drafted in pairs)


def conditional_acceptance_by_position(measurement: Measurement) -> tuple[float | None, ...]:
    """α_i = accepted at i / accepted at i − 1, among rounds that drafted i.

    None for a position that some rounds did not reach: totals cannot tell whether those had accepted i − 1, and
    what was not drafted was not rejected.
    """
    counters = measurement.counters
    if counters is None or not counters.drafted_at:
        return ()
    first = counters.accepted_at[0] / counters.drafted_at[0] if counters.drafted_at[0] else None
    drafted, accepted = pairwise(counters.drafted_at), pairwise(counters.accepted_at)
    later = (
        now / before if before and drafted_before == drafted_now else None
        for (drafted_before, drafted_now), (before, now) in zip(drafted, accepted, strict=True)
    )
    return first, *later


def round_time_ms(measurement: Measurement) -> float | None:
    """Σ(t_last − t_first) / Σ rounds. None without round counts, or when requests overlapped in time."""
    totals = round_totals(measurement)
    good = completed(measurement.requests)
    if not totals.rounds or _overlap(good):
        return None
    return sum(decode_ms(record) or 0.0 for record in good) / totals.rounds


def _overlap(requests: Iterable[RequestRecord]) -> bool:
    spans = sorted((record.sent_s, record.chunks[-1][0]) for record in requests if record.chunks)
    return any(sent < ended for (_, ended), (sent, _) in pairwise(spans))


def failed_requests(measurement: Measurement) -> int:
    """Requests that ended badly."""
    return sum(not record.is_complete for record in measurement.requests)


def summarize(measurement: Measurement) -> dict[str, float | None]:
    """Every column that tables and objectives use, by name; None where the figure does not exist.

    Raises:
        MeasurementError: A completed request contradicts itself.
    """
    columns: dict[str, float | None] = {
        f"{name}_{statistic}": latency_summary(measurement, name, statistic)
        for name in LATENCIES
        for statistic in STATISTICS
    }
    return columns | {
        "round_time_ms": round_time_ms(measurement),
        "output_tokens_per_s": output_tokens_per_s(measurement),
        "mean_acceptance_length": mean_acceptance_length(measurement),
        "acceptance_rate": acceptance_rate(measurement),
        "waste_tokens_per_output_token": waste_tokens_per_output_token(measurement),
        "failed_requests": float(failed_requests(measurement)),
        "peak_memory_bytes": None if measurement.peak_memory_bytes is None else float(measurement.peak_memory_bytes),
    }


def metrics_markdown() -> str:
    """The text of ``docs/metrics.md``."""
    rows = [
        f"| `{one.name}` | {one.unit} | {one.formula} | {one.direction or ''} | "
        f"{', '.join(f'`{name}`' for name in one.inputs)} | {one.absent} |"
        for one in METRICS
    ]
    return "\n".join(
        [
            "# Metrics",
            "",
            f"Formula version {FORMULA_VERSION}. Made by `python -m tuner.metrics > docs/metrics.md`.",
            "",
            "N is the number of output tokens as the engine says it. A figure that cannot be derived is `null`,",
            "never 0. Latencies have the columns `_mean`, `_p50`, `_p90` and `_p99`. A column that ends in `@N` is the",
            "figure at N requests in flight; without it, at the workload's own number of them.",
            "",
            "| name | unit | formula | better | from | `null` when |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    sys.stdout.write(metrics_markdown())
