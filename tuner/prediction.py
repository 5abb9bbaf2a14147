"""What a configuration would show if it were measured: replayed rounds, priced by the cost model."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tuner.acceptance_length import acceptance_lengths
from tuner.cost_model import CostModel
from tuner.errors import MeasurementError
from tuner.interference import held_up_ms
from tuner.intervals import Interval, log_ratio
from tuner.metrics import LATENCIES, STATISTICS, completed, decode_ms, decoded_tokens, e2e_ms, ttft_ms
from tuner.records import Measurement, RequestRecord, Trace
from tuner.replay import ReplayedRounds, exactness, is_bounded, replay_nearest
from tuner.step_times import CONFIGURATION_ERROR

Floats = NDArray[np.float64]

NORMAL_95 = 1.96


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
class BaselinePaths:
    """The baseline's latencies per prompt, repeats averaged: arrays over prompts.

    Attributes:
        held_up: What others' prompts add to its decoding, where requests are in flight together.
        tpot: Without that; 0 for answers of one chunk.
        prompt_tokens: 0 where the engine does not say.
    """

    prompt_ids: tuple[str, ...]
    ttft: Floats
    e2e: Floats
    held_up: Floats
    tpot: Floats
    prompt_tokens: NDArray[np.int64]

    @classmethod
    def of(cls, baseline: Measurement, pass_ms: float | None = None) -> BaselinePaths:
        """Of the prompts that were answered with at least one token.

        ``pass_ms`` is the timed pass of one row of each request; without it nobody is taken to be held up.
        """
        waits = {} if pass_ms is None else held_up_ms(baseline, pass_ms)
        by_prompt: dict[str, list[RequestRecord]] = {}
        for record in completed(baseline.requests):
            if record.output_tokens:
                by_prompt.setdefault(record.prompt_id, []).append(record)
        groups = list(by_prompt.values())
        return cls(
            prompt_ids=tuple(by_prompt),
            ttft=np.array([np.mean([ttft_ms(one) or 0.0 for one in records]) for records in groups]),
            e2e=np.array([np.mean([e2e_ms(one) or 0.0 for one in records]) for records in groups]),
            held_up=np.array([np.mean([waits.get(one.request_id, 0.0) for one in records]) for records in groups]),
            tpot=np.array([np.mean([_tpot_ms(one, waits) for one in records]) for records in groups]),
            prompt_tokens=np.array([records[0].prompt_tokens or 0 for records in groups], dtype=np.int64),
        )

    def chosen(self, prompt_ids: Sequence[str]) -> BaselinePaths:
        """Only these prompts, in this order."""
        rows = [self.prompt_ids.index(one) for one in prompt_ids]
        return BaselinePaths(
            prompt_ids=tuple(prompt_ids),
            ttft=self.ttft[rows],
            e2e=self.e2e[rows],
            held_up=self.held_up[rows],
            tpot=self.tpot[rows],
            prompt_tokens=self.prompt_tokens[rows],
        )


def _tpot_ms(record: RequestRecord, waits: Mapping[str, float]) -> float:
    time = (decode_ms(record) or 0.0) - waits.get(record.request_id, 0.0)
    return time / max(decoded_tokens(record), 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PredictedPaths:
    """One configuration's latencies per prompt: arrays over prompts.

    Attributes:
        first: Time to the first token, the draft's reading of the prompt included.
        plain: As many of the baseline's rounds as it takes, and waiting for others' prompts.
        weights: [steps], what its rounds take beyond those, summed over prompts.
        extra: What they take, per prompt.
        acceptance_length: Limits of τ over prompts; None for fewer than three.
    """

    rounds: ReplayedRounds
    baseline: BaselinePaths
    first: Floats
    plain: Floats
    weights: Floats
    extra: Floats
    acceptance_length: Interval | None = None

    @property
    def decode(self) -> Floats:
        """After the first token."""
        total: Floats = self.plain + self.extra
        return total

    @property
    def e2e(self) -> Floats:
        """From sending to the last token."""
        total: Floats = self.first + self.decode
        return total

    def priced(self, draft_name: str, costs: CostModel) -> PredictedPaths:
        """The same rounds at other step times."""
        return replace(_paths(draft_name, self.rounds, costs, self.baseline), acceptance_length=self.acceptance_length)


def predicted_paths(
    trace: Trace, costs: CostModel, baseline: BaselinePaths, drafted_tokens: Collection[int]
) -> list[PredictedPaths]:
    """What each k of one draft takes, on the prompts that the trace and the baseline share.

    Raises:
        MeasurementError: They share none, or a round of some k has a part beyond the timed sizes.
        ConfigurationError: The trace does not reach some k.
    """
    shared = {prompt.prompt_id for prompt in trace.prompts} & set(baseline.prompt_ids)
    if not shared:
        raise MeasurementError(
            f"the trace of {trace.draft_name!r} and the baseline share no completed prompt",
            "trace the outputs of this baseline",
        )
    every = replay_nearest(trace, list(drafted_tokens), shared)
    return [
        replace(_paths(trace.draft_name, one, costs, baseline.chosen(one.prompt_ids)), acceptance_length=length)
        for one, length in zip(every, acceptance_lengths(every), strict=True)
    ]


def _paths(draft_name: str, rounds: ReplayedRounds, costs: CostModel, baseline: BaselinePaths) -> PredictedPaths:
    k = rounds.drafted_tokens
    used = np.flatnonzero(rounds.rounds_by_drafted.sum(axis=0))
    prefill = costs.draft_prefill_ms(draft_name, baseline.prompt_tokens) if k else np.zeros(len(baseline.ttft))
    longer = 1 + prefill.sum() / max(baseline.ttft.sum(), np.finfo(np.float64).tiny)
    plain = rounds.rounds * baseline.tpot + baseline.held_up * longer
    weights = rounds.rounds_by_drafted.sum(axis=0) @ costs.round_weights(draft_name, k)
    extra = rounds.rounds_by_drafted[:, used] @ costs.round_ms(draft_name, k)[used]
    doubted = costs.doubt(draft_name, rounds.mean_acceptance_length) if k else None
    if doubted is not None:
        weights, extra = _doubted(weights, plain, extra, costs, *doubted)
    return PredictedPaths(
        rounds=rounds,
        baseline=baseline,
        first=baseline.ttft + prefill,
        plain=plain,
        weights=weights,
        extra=extra,
    )


def _doubted(
    weights: Floats, plain: Floats, extra: Floats, costs: CostModel, index: int, weight: float
) -> tuple[Floats, Floats]:
    """Weights of the steps and time beyond plain rounds, where replay's rounds are more or fewer by a factor.

    Decode time D becomes D · (1 + weight · (factor − 1)), linear in the factor as in all steps.
    """
    decode = plain + extra
    stretch = 1 + weight * (float(np.exp(costs.step_times.log_ms[index])) - 1)
    weights = weights * stretch
    weights[index] = weight * float(decode.sum())
    return weights, decode * stretch - plain


def predict(trace: Trace, costs: CostModel, baseline: Measurement, drafted_tokens: int) -> Prediction:
    """Predict one k of one draft; see ``predicted_paths``."""
    paths = predicted_paths(trace, costs, BaselinePaths.of(baseline), [drafted_tokens])[0]
    return prediction(trace.draft_name, paths, costs)


def within_reach(trace: Trace, costs: CostModel, drafted_tokens: Collection[int]) -> list[int]:
    """Those numbers of drafted tokens that the trace and the timed steps reach."""
    name = trace.draft_name
    return [k for k in drafted_tokens if is_bounded(trace, k) and costs.reaches(name, k)]


def beyond_reach(trace: Trace, costs: CostModel, drafted_tokens: int) -> str:
    """Why a number of drafted tokens has no prediction; empty where it is within reach."""
    if not is_bounded(trace, drafted_tokens):
        return exactness(trace, drafted_tokens).reason
    return "" if costs.reaches(trace.draft_name, drafted_tokens) else "its rounds are wider than any that was timed"


def prediction(draft_name: str, paths: PredictedPaths, costs: CostModel) -> Prediction:
    """The figures of one configuration, with limits of its gain.

    The limits hold the spread over prompts, the uncertainty of the steps' times, and what a configuration adds on its
    own, as independent errors of the logarithm.
    """
    k, before, after = paths.rounds.drafted_tokens, paths.baseline.e2e, paths.e2e
    gain, error = log_ratio(before[None, :], after[None, :]) if len(after) > 1 else (np.log(before / after), [0.0])
    timing = _timing_error_ms(paths, costs) / float(after.sum())
    spread = NORMAL_95 * math.hypot(float(error[0]), timing, CONFIGURATION_ERROR if k else 0.0)
    return Prediction(
        draft_name=draft_name,
        drafted_tokens=k,
        speedup=math.exp(float(gain[0])),
        speedup_low=math.exp(float(gain[0]) - spread),
        speedup_high=math.exp(float(gain[0]) + spread),
        columns=_columns(paths.rounds, paths.first, paths.decode) | _length_limits(paths.acceptance_length),
    )


def _timing_error_ms(paths: PredictedPaths, costs: CostModel) -> float:
    """Standard error of the summed latency, from the steps' times and from kinks between timed widths."""
    slopes = paths.weights * np.exp(costs.step_times.log_ms)
    steps = math.sqrt(float(slopes @ costs.step_times.covariance @ slopes))
    kinks = paths.rounds.rounds_by_drafted.sum(axis=0) @ costs.kink_ms(paths.rounds.drafted_tokens)
    return math.hypot(steps, float(kinks))


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


def _length_limits(length: Interval | None) -> dict[str, float | None]:
    return {
        "mean_acceptance_length_low": None if length is None else max(1.0, length.low),  # a round yields a token
        "mean_acceptance_length_high": None if length is None else length.high,
    }


def _statistic(sample: Floats, statistic: str) -> float | None:
    if not sample.size:
        return None
    if statistic == "mean":
        return float(sample.mean())
    return float(np.percentile(sample, float(statistic.removeprefix("p"))))
