"""What the measured acceptance allows, and whether it is what replay said."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tuner.intervals import Interval, ratio_interval
from tuner.metrics import MS_PER_S, mean_tpot_ms
from tuner.pairing import paired_speedup
from tuner.records import BaselineResult, Measurement, RequestRecord, TimedSteps, Trace
from tuner.replay import exactness, replay

TIMING_ERROR = 0.04
"""Relative sd of a step's time in a round, from what it took alone: 3 % of passes, and 1 % of each of two loads."""

NORMAL_95 = 1.96


# ── what physics allows ───────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class PhysicsCheck:
    """Whether a gain is possible at all: no configuration decodes faster than its acceptance allows.

    Attributes:
        tpot_speedup: Gain in time per output token; None for too few prompts.
        limit: τ's upper limit / (1 + relative draft cost's lower limit); None where rounds are not counted, or where
            the two sides ran with other numbers of requests in flight.
        is_artefact: The gain is significant, and its lower limit exceeds the limit.
    """

    tpot_speedup: Interval | None
    limit: float | None
    is_artefact: bool


def physics_check(
    baseline: Measurement,
    candidate: Measurement,
    *,
    left_out: Collection[str] = (),
    draft_cost_low: float = 0.0,
    seed: int = 0,
) -> PhysicsCheck:
    """Compare the gain in time per output token with what the acceptance allows.

    A round emits τ tokens on average and takes at least a plain round and its drafting, so the gain is at most
    τ / (1 + draft cost). A gain whose lower limit exceeds that of τ's upper limit is an artefact, and so is a
    significant gain at τ = 1; a gain whose interval covers 1 is none. All this at the same number of requests in
    flight, and of time per token alone: a gain in time to first token has other causes.

    Args:
        baseline: Without speculation.
        candidate: The same prompts with it.
        left_out: Prompts that count for neither side.
        draft_cost_low: Lower limit of a round's drafting time over that of a plain round; see ``draft_cost_low``.
        seed: Of the resampling.
    """
    gain = paired_speedup(baseline, candidate, "tpot_ms", left_out=left_out, seed=seed)
    length = acceptance_interval(candidate, left_out, seed)
    alike = baseline.environment.get("concurrency") == candidate.environment.get("concurrency")
    limit = length.high / (1 + draft_cost_low) if length is not None and alike else None
    is_artefact = gain is not None and limit is not None and gain.low > max(limit, 1.0)
    return PhysicsCheck(tpot_speedup=gain, limit=limit, is_artefact=is_artefact)


def draft_cost_low(baseline: BaselineResult, draft_steps: TimedSteps, drafted_tokens: int) -> float:
    """Lower 95 % limit of the time that a round spends drafting, over that of a round without speculation.

    The plain round is the slower of the timed one-row pass and the baseline's own rounds, which have overhead. Of a k
    that was not timed the next smaller one stands for it, for drafting fewer tokens takes no longer. 0 where nothing
    is known.
    """
    timed = {size: seconds for size, seconds in draft_steps.seconds.items() if size <= drafted_tokens and seconds}
    plain = _plain_round_s(baseline)
    if not timed or plain is None:
        return 0.0
    drafting = np.asarray(timed[max(timed)], dtype=np.float64)
    middle = float(np.median(drafting))
    if middle <= 0:
        return 0.0
    spread = float(drafting.std(ddof=1)) / (middle * math.sqrt(len(drafting))) if len(drafting) > 1 else 0.0
    return middle / plain * math.exp(-NORMAL_95 * math.hypot(spread, TIMING_ERROR))


def _plain_round_s(baseline: BaselineResult) -> float | None:
    measured_ms = mean_tpot_ms(baseline.measurement.requests)
    timed = () if baseline.verify is None else baseline.verify.seconds.get(1, ())
    known = [float(np.median(timed))] if timed else []
    if measured_ms is not None:
        known.append(measured_ms / MS_PER_S)
    return max(known, default=None)


# ── acceptance measured and replayed ──────────────────────────────────────────────────────────────────────────────


def acceptance_interval(measurement: Measurement, left_out: Collection[str] = (), seed: int = 0) -> Interval | None:
    """The measured mean acceptance length τ = Σ(N − 1) / Σ rounds, with its limits over prompts, repeats added up.

    None where the engine counts no rounds of a request, or for fewer than three prompts.
    """
    sums: dict[str, tuple[int, int]] = {}
    for record in measurement.requests:
        if record.is_complete and record.prompt_id not in left_out and record.rounds and record.output_tokens:
            tokens, rounds = sums.get(record.prompt_id, (0, 0))
            sums[record.prompt_id] = (tokens + record.output_tokens - 1, rounds + record.rounds)
    return _ratio(np.array(list(sums.values()), dtype=np.float64).reshape(-1, 2), seed)


def replayed_acceptance(
    trace: Trace,
    drafted_tokens: int,
    left_out: Collection[str] = (),
    seed: int = 0,
    *,
    doubtful_share: float = 0.0,
) -> Interval | None:
    """The same of a replayed configuration; None for fewer than three prompts, or where the trace is not exact.

    Each doubtful position may cost a round or save one, which moves τ by up to that share · τ of itself.
    """
    if not exactness(trace, drafted_tokens).is_exact:
        return None
    kept = [prompt.prompt_id for prompt in trace.prompts if prompt.prompt_id not in left_out]
    rounds = replay(trace, drafted_tokens, kept)
    table = np.column_stack([np.asarray(rounds.output_tokens) - 1.0, np.asarray(rounds.rounds, dtype=np.float64)])
    found = _ratio(table[(table > 0).all(axis=1)], seed)
    if found is None or not doubtful_share:
        return found
    factor = 1 + doubtful_share * found.estimate
    return replace(found, low=found.low / factor, high=found.high * factor)


def _ratio(table: NDArray[np.float64], seed: int) -> Interval | None:
    return ratio_interval(table[:, 0], table[:, 1], seed)


def acceptance_alarm(measured: Interval | None, predicted: Interval | None) -> str | None:
    """What to say where the mean acceptance length is not what replay made of other prompts.

    Both have an interval over their own prompts, and these must have something in common. None where they do, or
    where one of them is not known.
    """
    if measured is None or predicted is None or (measured.low <= predicted.high and predicted.low <= measured.high):
        return None
    return (
        f"ALARM: the measured mean acceptance length {_spoken(measured)} lies outside the replayed "
        f"{_spoken(predicted)}: the two sets of prompts differ, or the draft that ran is not the one that was replayed"
    )


def _spoken(interval: Interval) -> str:
    return f"{interval.estimate:.2f} ({interval.low:.2f} to {interval.high:.2f})"


def rounds_alarm(candidate: Measurement, baseline: Measurement, trace: Trace, drafted_tokens: int) -> str | None:
    """What to say where a configuration did not need the rounds that replay says, on the replayed outputs themselves.

    Where the candidate's output is the baseline's, along which the draft was replayed, the rounds must be the same to
    the last one; outputs that differ are left out. None where they are, and where the trace is not exact for this k
    or the target samples.
    """
    if trace.sampling.temperature > 0 or not exactness(trace, drafted_tokens).is_exact:
        return None
    expected = _replayed_rounds(trace, drafted_tokens)
    outputs = {record.prompt_id: record.token_ids for record in reversed(baseline.requests) if record.is_complete}
    comparable = [record for record in candidate.requests if _is_replayed(record, outputs, expected)]
    wrong = [record for record in comparable if record.rounds != expected[record.prompt_id]]
    if not wrong:
        return None
    first = wrong[0]
    return (
        f"ALARM: {len(wrong)} of {len(comparable)} outputs of {trace.draft_name} k={drafted_tokens} took other rounds "
        f"than replay says, prompt {first.prompt_id!r} {first.rounds} instead of {expected[first.prompt_id]}: "
        "the draft that ran is not the one that was replayed"
    )


def _replayed_rounds(trace: Trace, drafted_tokens: int) -> dict[str, int]:
    rounds = replay(trace, drafted_tokens)
    return {prompt_id: int(count) for prompt_id, count in zip(rounds.prompt_ids, rounds.rounds, strict=True)}


def _is_replayed(record: RequestRecord, outputs: Mapping[str, tuple[int, ...]], expected: Mapping[str, int]) -> bool:
    known = record.is_complete and record.rounds is not None and bool(record.token_ids)
    return known and record.prompt_id in expected and outputs.get(record.prompt_id) == record.token_ids
