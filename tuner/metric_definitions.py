"""The metrics as data: name, unit, formula, and when one is absent. The formulas themselves are in ``metrics``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricDefinition:
    """One metric as data: what its documentation is made from.

    Attributes:
        name: As in tables and ``--json``; ends with its unit.
        direction: Which way is better; None where neither is.
        inputs: Recorded facts that it is derived from.
        absent: When it is None.
    """

    name: str
    unit: str
    formula: str
    direction: Literal["down", "up"] | None
    inputs: tuple[str, ...]
    absent: str


METRICS: tuple[MetricDefinition, ...] = (
    MetricDefinition(
        name="ttft_ms",
        unit="ms",
        formula="first chunk that carries a token − sent",
        direction="down",
        inputs=("sent_s", "chunks"),
        absent="no token came, or the request failed",
    ),
    MetricDefinition(
        name="e2e_ms",
        unit="ms",
        formula="last token − sent",
        direction="down",
        inputs=("sent_s", "chunks"),
        absent="no token came, or the request failed",
    ),
    MetricDefinition(
        name="tpot_ms",
        unit="ms",
        formula="(t_last − t_first) / (N − tokens of the first chunk); over requests, the mean is the ratio of sums",
        direction="down",
        inputs=("chunks", "output_tokens"),
        absent="fewer than two chunks, or the request failed",
    ),
    MetricDefinition(
        name="inter_chunk_ms",
        unit="ms",
        formula="gaps between chunks; a chunk may hold several tokens, so this is no latency between tokens",
        direction="down",
        inputs=("chunks",),
        absent="one chunk",
    ),
    MetricDefinition(
        name="round_time_ms",
        unit="ms",
        formula="Σ(t_last − t_first) / Σ rounds, requests one at a time",
        direction="down",
        inputs=("chunks", "rounds"),
        absent="the engine counts no rounds, or requests overlapped",
    ),
    MetricDefinition(
        name="output_tokens_per_s",
        unit="tokens/s",
        formula="ΣN / wall time",
        direction="up",
        inputs=("output_tokens", "wall_s"),
        absent="no request was completed",
    ),
    MetricDefinition(
        name="cost_per_million_tokens",
        unit="currency",
        formula="price per hour / 3600 / output tokens per second · 10⁶",
        direction="down",
        inputs=("output_tokens", "wall_s"),
        absent="no price was given, or no request was completed",
    ),
    MetricDefinition(
        name="goodput_requests_per_s",
        unit="requests/s",
        formula="requests that met every limit / wall time",
        direction="up",
        inputs=("sent_s", "chunks", "output_tokens", "wall_s"),
        absent="no limit was given",
    ),
    MetricDefinition(
        name="mean_acceptance_length",
        unit="tokens/round",
        formula="τ = Σ(N − 1) / Σ rounds over completed requests; the first token comes from the prefill",
        direction="up",
        inputs=("output_tokens", "rounds"),
        absent="the engine counts no rounds, or no round was needed",
    ),
    MetricDefinition(
        name="acceptance_rate",
        unit="",
        formula="accepted / drafted; depends on k, so it is no objective",
        direction=None,
        inputs=("drafted_tokens", "accepted_tokens"),
        absent="nothing was drafted (the baseline), or the engine does not count",
    ),
    MetricDefinition(
        name="waste_tokens_per_output_token",
        unit="tokens/token",
        formula="Σ(drafted − accepted) / ΣN",
        direction="down",
        inputs=("drafted_tokens", "accepted_tokens", "output_tokens"),
        absent="the engine does not count drafted tokens",
    ),
    MetricDefinition(
        name="acceptance_by_position",
        unit="",
        formula="rounds that accepted position i / rounds that drafted it",
        direction=None,
        inputs=("drafted_at", "accepted_at"),
        absent="the engine does not count positions",
    ),
    MetricDefinition(
        name="conditional_acceptance_by_position",
        unit="",
        formula="α_i = accepted at i / accepted at i − 1, among rounds that drafted i",
        direction=None,
        inputs=("drafted_at", "accepted_at"),
        absent="some rounds drafted i − 1 tokens and stopped: not drafted is not rejected",
    ),
    MetricDefinition(
        name="failed_requests",
        unit="requests",
        formula="requests that ended badly; they enter no latency",
        direction="down",
        inputs=("error",),
        absent="never",
    ),
    MetricDefinition(
        name="peak_memory_bytes",
        unit="bytes",
        formula="largest resident memory of the engine's process tree",
        direction="down",
        inputs=("peak_memory_bytes",),
        absent="the engine runs elsewhere, or beside another one",
    ),
)
