"""From acceptance to time: what a configuration would take, from replayed rounds and timed single steps.

The time of a round depends on what is drafted and verified, not on what is accepted:

    T(j) = verify(j + 1) + draft(k) + overhead

The overhead is what the baseline's measured rounds took beyond a timed one-row pass, so that the prediction for
no speculation is the baseline as measured. The draft's own prefill is not in the prediction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.errors import MeasurementError
from tuner.intervals import log_ratio
from tuner.metrics import LATENCIES, MS_PER_S, STATISTICS, completed, e2e_ms, tpot_ms, ttft_ms
from tuner.records import Measurement, RequestRecord, TimedSteps, Trace
from tuner.replay import Amounts, ReplayedRounds, replay_all

MODEL_ERROR = 0.02
"""Relative sd of what no timing of single steps shows: configurations differ by 1.5 %, loads of one by 1 %."""

MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean, for normal noise: sqrt(π / 2)."""

MAD_TO_SD = 1.4826

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """A timed step: the median over its repeats, and the standard error of that."""

    ms: float
    error_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTimes:
    """What the parts of a round take.

    Attributes:
        verify: One target pass, by its rows.
        draft: Proposing, by the number of tokens; empty where nothing is ever proposed.
    """

    verify: Mapping[int, StepTime]
    draft: Mapping[int, StepTime]

    def verify_time(self, rows: int) -> StepTime:
        """One target pass over that many rows.

        Raises:
            MeasurementError: The width lies beyond those that were timed.
        """
        return _at(self.verify, rows, "verify pass of {} rows")

    def draft_time(self, drafted_tokens: int) -> StepTime:
        """Proposing that many tokens; nothing for none.

        Raises:
            MeasurementError: The length lies beyond those that were timed.
        """
        if drafted_tokens == 0:
            return StepTime(ms=0.0, error_ms=0.0)
        return _at(self.draft, drafted_tokens, "draft of {} tokens")

    def round_ms(self, drafted: int, drafted_tokens: int) -> float:
        """A round that proposed ``drafted`` tokens where k is ``drafted_tokens``: verify(j + 1) + draft(k).

        The draft runs its k passes even where fewer proposals come of them.

        Raises:
            MeasurementError: A size lies beyond those that were timed.
        """
        return self.verify_time(drafted + 1).ms + self.draft_time(drafted_tokens).ms


def _at(steps: Mapping[int, StepTime], size: int, name: str) -> StepTime:
    """The step of that size, interpolated between two timed ones; nothing is extrapolated.

    The error of an interpolated step allows what lies between its neighbours to be one kink.
    """
    if size in steps:
        return steps[size]
    below = max((one for one in steps if one < size), default=None)
    above = min((one for one in steps if one > size), default=None)
    if below is None or above is None:
        raise MeasurementError(
            f"a {name.format(size)} was not timed and lies beyond those that were: {sorted(steps)}",
            "time it, or leave the configuration out of the prediction",
        )
    low, high = steps[below], steps[above]
    share = (size - below) / (above - below)
    return StepTime(
        ms=low.ms + share * (high.ms - low.ms),
        error_ms=max(low.error_ms, high.error_ms) + abs(high.ms - low.ms) / 2,
    )


def round_times(verify: TimedSteps, draft: TimedSteps | None) -> RoundTimes:
    """Medians of the repeated timings.

    Raises:
        MeasurementError: A size has no timing.
    """
    return RoundTimes(verify=_medians(verify), draft=_medians(draft) if draft is not None else {})


def _medians(steps: TimedSteps) -> dict[int, StepTime]:
    return {size: _median(steps, size, seconds) for size, seconds in steps.seconds.items()}


def _median(steps: TimedSteps, size: int, seconds: Sequence[float]) -> StepTime:
    if not seconds:
        raise MeasurementError(f"step {steps.step} of size {size} has no timing", "time it at least once")
    times = np.asarray(seconds) * MS_PER_S
    middle = float(np.median(times))
    spread = MAD_TO_SD * float(np.median(np.abs(times - middle)))
    return StepTime(ms=middle, error_ms=MEDIAN_ERROR * spread / math.sqrt(len(times)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a configuration would show if it were measured on the baseline's prompts.

    Attributes:
        speedup: Σ end-to-end latency of the baseline / Σ predicted, over prompts.
        speedup_low: 95 % limit: from the spread over prompts, the timings, and what the model misses.
        columns: Predicted figures under the names that ``metrics.summarize`` uses.
    """

    draft_name: str
    drafted_tokens: int
    speedup: float
    speedup_low: float
    speedup_high: float
    columns: Mapping[str, float | None]

    @property
    def e2e_ms(self) -> float | None:
        """Mean end-to-end latency."""
        return self.columns["e2e_ms_mean"]

    @property
    def tpot_ms(self) -> float | None:
        """Mean time per output token: the ratio of sums."""
        return self.columns["tpot_ms_mean"]

    @property
    def waste_tokens_per_output_token(self) -> float | None:
        """(drafted − accepted) / output tokens; exact, not predicted."""
        return self.columns["waste_tokens_per_output_token"]

    @property
    def mean_acceptance_length(self) -> float | None:
        """τ; exact, not predicted."""
        return self.columns["mean_acceptance_length"]

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted; exact, not predicted."""
        return self.columns["acceptance_rate"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Paths:
    """The baseline's latencies per prompt, repeats averaged: arrays over prompts."""

    prompt_ids: tuple[str, ...]
    ttft: Floats
    e2e: Floats
    tpot: Floats  # 0 for answers of one chunk

    def of(self, prompt_ids: Sequence[str]) -> _Paths:
        rows = [self.prompt_ids.index(one) for one in prompt_ids]
        return _Paths(prompt_ids=tuple(prompt_ids), ttft=self.ttft[rows], e2e=self.e2e[rows], tpot=self.tpot[rows])


def predict(trace: Trace, times: RoundTimes, baseline: Measurement, drafted_tokens: int) -> Prediction:
    """Predict one k of one draft on the prompts that the trace and the baseline share.

    Raises:
        MeasurementError: They share none, or a round of this k has a part beyond the timed sizes.
        ConfigurationError: The trace does not reach this k.
    """
    return _predictions(trace, times, _paths(baseline), [drafted_tokens])[0]


def predict_all(
    traces: Sequence[Trace], times: Mapping[str, RoundTimes], baseline: Measurement, drafted_tokens: Sequence[int]
) -> tuple[Prediction, ...]:
    """Predict every k of every draft that its trace and the timed sizes reach; the others are left out.

    Raises:
        MeasurementError: A trace and the baseline share no completed prompt.
    """
    paths = _paths(baseline)
    found: list[Prediction] = []
    for trace in traces:
        steps = times[trace.draft_name]
        within = [k for k in drafted_tokens if k <= trace.max_drafted_tokens and _reaches(steps, k)]
        found += _predictions(trace, steps, paths, within)
    return tuple(found)


def _predictions(trace: Trace, times: RoundTimes, paths: _Paths, drafted_tokens: Sequence[int]) -> list[Prediction]:
    shared = {prompt.prompt_id for prompt in trace.prompts} & set(paths.prompt_ids)
    if not shared:
        raise MeasurementError(
            f"the trace of {trace.draft_name!r} and the baseline share no completed prompt",
            "trace the outputs of this baseline",
        )
    return [
        _prediction(trace.draft_name, rounds, times, paths.of(rounds.prompt_ids))
        for rounds in replay_all(trace, drafted_tokens, shared)
    ]


def _reaches(times: RoundTimes, drafted_tokens: int) -> bool:
    widest, longest = max(times.verify, default=0), max(times.draft, default=0)
    return drafted_tokens + 1 <= widest and drafted_tokens <= longest


def _paths(baseline: Measurement) -> _Paths:
    by_prompt: dict[str, list[RequestRecord]] = {}
    for record in completed(baseline.requests):
        if record.output_tokens:
            by_prompt.setdefault(record.prompt_id, []).append(record)
    return _Paths(
        prompt_ids=tuple(by_prompt),
        ttft=np.array([np.mean([ttft_ms(one) or 0.0 for one in records]) for records in by_prompt.values()]),
        e2e=np.array([np.mean([e2e_ms(one) or 0.0 for one in records]) for records in by_prompt.values()]),
        tpot=np.array([np.mean([tpot_ms(one) or 0.0 for one in records]) for records in by_prompt.values()]),
    )


def _prediction(draft_name: str, rounds: ReplayedRounds, times: RoundTimes, paths: _Paths) -> Prediction:
    k = rounds.drafted_tokens
    used = np.flatnonzero(rounds.rounds_by_drafted.sum(axis=0))
    steps = np.zeros(k + 1)
    steps[used] = [times.round_ms(int(drafted), k) for drafted in used]
    decode = _calibrated(rounds.rounds_by_drafted @ steps, rounds.rounds, paths.tpot, times.verify_time(1).ms)
    e2e = paths.ttft + decode
    gain, error = log_ratio(paths.e2e[None, :], e2e[None, :]) if len(e2e) > 1 else (np.log(paths.e2e / e2e), [0.0])
    timing = _timing_error_ms(rounds, times, used) / float(e2e.sum())
    spread = 1.96 * math.hypot(float(error[0]), timing, MODEL_ERROR if k else 0.0)
    return Prediction(
        draft_name=draft_name,
        drafted_tokens=k,
        speedup=math.exp(float(gain[0])),
        speedup_low=math.exp(float(gain[0]) - spread),
        speedup_high=math.exp(float(gain[0]) + spread),
        columns=_columns(rounds, paths.ttft, decode),
    )


def _calibrated(stepwise: Floats, rounds: Amounts, tpot: Floats, one_row_ms: float) -> Floats:
    """Decode time per prompt, such that no speculation gives the measured baseline.

    Each prompt's overhead per round is its measured time per token − verify(1). Where the baseline as a whole
    decoded faster than the timed steps, the machine was slower when they were timed, and all of them are scaled.

    Args:
        stepwise: [prompts], Σ rounds · (verify + draft).
        rounds: [prompts].
        tpot: [prompts], of the measured baseline.
        one_row_ms: verify(1).
    """
    if float(tpot[tpot > 0].mean() if (tpot > 0).any() else 0.0) < one_row_ms:
        return stepwise * tpot / one_row_ms
    return stepwise + rounds * (tpot - one_row_ms)


def _timing_error_ms(rounds: ReplayedRounds, times: RoundTimes, used: NDArray[np.int64]) -> float:
    """Standard error of the summed decode time, from the medians of the timed steps."""
    counts = rounds.rounds_by_drafted.sum(axis=0)
    verify = [float(counts[drafted]) * times.verify_time(int(drafted) + 1).error_ms for drafted in used]
    return math.hypot(*verify, float(counts.sum()) * times.draft_time(rounds.drafted_tokens).error_ms)


def _columns(rounds: ReplayedRounds, ttft: Floats, decode: Floats) -> dict[str, float | None]:
    tokens = np.maximum(rounds.output_tokens - 1, 0)
    tpot = decode[tokens > 0] / tokens[tokens > 0]
    samples = {"ttft_ms": ttft, "e2e_ms": ttft + decode, "tpot_ms": tpot}
    columns: dict[str, float | None] = {
        f"{name}_{statistic}": _statistic(samples[name], statistic) for name in LATENCIES for statistic in STATISTICS
    }
    total_rounds, total_tokens = float(rounds.rounds.sum()), int(tokens.sum())
    return columns | {
        "tpot_ms_mean": float(decode.sum()) / total_tokens if total_tokens else None,
        "round_time_ms": float(decode.sum()) / total_rounds if total_rounds else None,
        "mean_acceptance_length": rounds.mean_acceptance_length,
        "acceptance_rate": rounds.acceptance_rate,
        "waste_tokens_per_output_token": rounds.waste_tokens_per_output_token,
    }


def _statistic(sample: Floats, statistic: str) -> float | None:
    if not sample.size:
        return None
    if statistic == "mean":
        return float(sample.mean())
    return float(np.percentile(sample, float(statistic.removeprefix("p"))))
