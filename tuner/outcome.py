"""From what a stage measured to the row of a trial: objective values, columns of tables, state."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from tuner.errors import MeasurementError, TunerError
from tuner.intervals import FEWEST_PROMPTS, log_ratio, ratio_interval
from tuner.metrics import LATENCIES, decode_ms, decoded_tokens, e2e_ms, summarize
from tuner.objective import COST, THROUGHPUT, Objective, at_load, losses, values
from tuner.outputs import identical_outputs, looping_prompts
from tuner.pairing import anchored_speedup, paired, paired_speedup
from tuner.pareto import front_probabilities, log_normal_draws, pareto_front
from tuner.predictions import Predictions
from tuner.records import BaselineResult, Measurement, MeasureResult, RequestRecord
from tuner.speculation import Speculation
from tuner.step_times import LOAD_ERROR
from tuner.store import ParetoEntry, TrialRecord, TrialState

TIMED_METRICS = frozenset((*LATENCIES, THROUGHPUT, COST, "goodput_requests_per_s"))
"""Metrics that a clock decides, and that are known only as well as the gain over no speculation."""

FRONT_DRAWS = 1000
"""Puts a probability within 0.03 of what more draws would give."""

FRONT_SEED = 0
"""The front of a stored study is the same whenever it is computed."""

NORMAL_95 = 1.96


FITS_OF_EACH, FIT_GROWTH = 20, 1.1
"""Measurements up to which each is worth a fit, and how many times more are worth another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOutcome:
    """What became of a trial.

    Attributes:
        metrics: ``metrics.summarize``'s columns with ``tpot_ms_low`` and ``tpot_ms_high``, and of a candidate:
            ``speedup`` over no speculation with ``speedup_low`` and ``speedup_high``, ``identical_share``, and
            ``machine_slowdown``, the anchor's time over the baseline's on the same prompts, by which its times
            were divided, and ``measurement_error``, how sure they are.
    """

    state: TrialState
    values: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    error_type: str | None = None
    error: str | None = None

    @classmethod
    def of_baseline(cls, result: BaselineResult, objectives: Sequence[Objective]) -> TrialOutcome:
        """The target alone: a speed-up of exactly 1."""
        return cls(
            state=TrialState.COMPLETE,
            values=values(result.measurement, objectives, _measurements(result)),
            metrics=summarize(result.measurement)
            | _tpot_limits(result.measurement)
            | {"speedup": 1.0}
            | {
                at_load(name, load): value
                for load, one in _measurements(result).items()
                for name, value in {**summarize(one), **_tpot_limits(one), "speedup": 1.0}.items()
            },
        )

    @classmethod
    def of_candidate(
        cls,
        baseline: BaselineResult,
        result: MeasureResult,
        objectives: Sequence[Objective],
        repetition_expected: Callable[[str], bool],
    ) -> TrialOutcome:
        """A configuration beside the baseline, both at the machine's speed of the baseline's run.

        Raises:
            MeasurementError: An objective has no value, or the anchor shares no prompt with the baseline.
        """
        slowdown = machine_slowdown(baseline.measurement, result.anchor)
        candidate = at_reference_speed(result.candidate, slowdown)
        looping = looping_prompts(baseline.measurement, repetition_expected)
        speedup = anchored_speedup(baseline.measurement, result, left_out=looping)
        agreement = identical_outputs(baseline.measurement, candidate)
        at_loads = {load: at_reference_speed(one, slowdown) for load, one in result.at_load.items()}
        return cls(
            state=TrialState.COMPLETE,
            values=values(candidate, objectives, at_loads),
            metrics=summarize(candidate)
            | _tpot_limits(candidate)
            | {
                "speedup": None if speedup is None else speedup.estimate,
                "speedup_low": None if speedup is None else speedup.low,
                "speedup_high": None if speedup is None else speedup.high,
                "identical_share": agreement.share_identical,
                "machine_slowdown": slowdown,
                "measurement_error": measurement_error(baseline.measurement, result.anchor),
            }
            | _metrics_at_loads(_measurements(baseline), at_loads, looping),
        )

    @classmethod
    def infeasible(cls, error: TunerError) -> TrialOutcome:
        """A configuration that cannot run, with its reason."""
        return cls(state=TrialState.INFEASIBLE, error_type=type(error).__name__, error=str(error))

    def applied_to(self, row: TrialRecord, ended_at: datetime) -> TrialRecord:
        """The trial's row with this outcome."""
        return replace(
            row,
            state=self.state,
            values=self.values,
            metrics=self.metrics,
            error_type=self.error_type,
            error=self.error,
            ended_at=ended_at,
        )


def _measurements(baseline: BaselineResult) -> dict[int, Measurement]:
    """Of the further loads."""
    return {load: one.measurement for load, one in baseline.at_load.items()}


def _metrics_at_loads(
    baseline: Mapping[int, Measurement], candidate: Mapping[int, Measurement], left_out: Collection[str]
) -> dict[str, float | None]:
    """Columns of a candidate at further loads, with its speed-up there; both sides at the same machine's speed."""
    columns: dict[str, float | None] = {}
    for load, measured in candidate.items():
        gain = paired_speedup(baseline[load], measured, left_out=left_out)
        figures = summarize(measured) | _tpot_limits(measured)
        figures |= {
            "speedup": None if gain is None else gain.estimate,
            "speedup_low": None if gain is None else gain.low,
            "speedup_high": None if gain is None else gain.high,
        }
        columns |= {at_load(name, load): value for name, value in figures.items()}
    return columns


def seen_at(load: int | None, baseline: BaselineResult, result: MeasureResult) -> MeasureResult:
    """What was measured with that many requests in flight, None for the workload's own number.

    At a further load no anchor ran: times are brought to the machine's speed of the baseline by that of the own load.
    """
    if load is None:
        return result
    slowdown = machine_slowdown(baseline.measurement, result.anchor)
    return MeasureResult(candidate=at_reference_speed(result.at_load[load], slowdown), anchor=None)


def _tpot_limits(measurement: Measurement) -> dict[str, float | None]:
    """95 % limits of the mean TPOT, the ratio of sums over requests."""
    rows = [
        (time, float(decoded_tokens(record)))
        for record in measurement.requests
        if (time := decode_ms(record)) is not None
    ]
    table = np.array(rows, dtype=np.float64).reshape(-1, 2)
    interval = ratio_interval(table[:, 0], table[:, 1])
    return {
        "tpot_ms_low": None if interval is None else interval.low,
        "tpot_ms_high": None if interval is None else interval.high,
    }


def machine_slowdown(baseline: Measurement, anchor: Measurement | None) -> float:
    """How much slower the machine was at the anchor than at the baseline: Σ e2e / Σ e2e on the same prompts.

    1 without an anchor.

    Raises:
        MeasurementError: They have no completed prompt in common.
    """
    if anchor is None:
        return 1.0
    before = {record.prompt_id: e2e_ms(record) for record in baseline.requests}
    pairs = [
        (now, then)
        for record in anchor.requests
        if (now := e2e_ms(record)) is not None and (then := before.get(record.prompt_id)) is not None
    ]
    if not pairs:
        raise MeasurementError(
            "the baseline run beside the candidate completed none of the baseline's prompts",
            "look at the failed requests of the stage",
        )
    return sum(now for now, _ in pairs) / sum(then for _, then in pairs)


def measurement_error(baseline: Measurement, anchor: Measurement | None) -> float | None:
    """Relative standard error of a measurement's mean latency, from what the machine did to the anchor beside it.

    The same configuration ran on the same prompts twice, so that only noise tells its latencies apart. None without an
    anchor, or where it shares fewer than three prompts with the baseline.
    """
    if anchor is None:
        return None
    pairs = paired(baseline, anchor)
    if len(pairs.prompt_ids) < FEWEST_PROMPTS:
        return None
    _, error = log_ratio(pairs.baseline[None, :], pairs.candidate[None, :])
    return float(error[0])


def at_reference_speed(measurement: Measurement, slowdown: float) -> Measurement:
    """The measurement with every time divided by ``slowdown``, so that loads of different moments compare."""
    return replace(
        measurement,
        requests=tuple(_scaled(record, slowdown) for record in measurement.requests),
        wall_s=measurement.wall_s / slowdown,
    )


def _scaled(record: RequestRecord, slowdown: float) -> RequestRecord:
    return replace(
        record,
        sent_s=record.sent_s / slowdown,
        chunks=tuple((at_s / slowdown, count) for at_s, count in record.chunks),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Contender:
    """A configuration that may be on the front, with its figures."""

    entry: ParetoEntry
    metrics: Mapping[str, float | None]

    def log_error(self, objective: Objective) -> float | None:
        """Standard error of the logarithm of an objective; None where it is not known."""
        if self.entry.speculation.is_baseline or objective.metric not in TIMED_METRICS:
            return 0.0
        low, high = (self.metrics.get(at_load(name, objective.load)) for name in ("speedup_low", "speedup_high"))
        over_prompts = math.log(high / low) / (2 * NORMAL_95) if low and high else None
        if objective.load is None:
            return over_prompts
        return math.hypot(over_prompts or 0.0, LOAD_ERROR)


def sharpened(predictions: Predictions, trials: Sequence[TrialRecord]) -> Predictions:
    """The predictions after what these trials measured, at every load."""
    return fitted(predictions, trials).repriced()


def fitted(predictions: Predictions, trials: Sequence[TrialRecord]) -> Predictions:
    """The predictions with step times after these trials; see ``Predictions.fitted``."""
    at_loads = {load: measured_latencies(trials, load) for load in predictions.at_load}
    return predictions.fitted(measured_latencies(trials), at_loads)


class Sharpening:
    """What is predicted of one configuration after another, each after the measurements of its time.

    A fit takes the longer the more there are, and the less does one more change it: after the first twenty it is made
    anew for every tenth more of them.
    """

    def __init__(self, predictions: Predictions) -> None:
        self._predictions = predictions
        self._fitted, self._count = predictions, 0

    def metrics(self, speculation: Speculation, measured: Sequence[TrialRecord]) -> dict[str, float]:
        """Predicted columns of a configuration, as ``Predictions.metrics``."""
        if len(measured) <= FITS_OF_EACH or len(measured) >= FIT_GROWTH * self._count:
            self._fitted, self._count = fitted(self._predictions, measured), len(measured)
        key = (speculation.draft_name, speculation.drafted_tokens)
        return self._fitted.repriced(key).metrics(speculation)


def measured_latencies(trials: Sequence[TrialRecord], load: int | None = None) -> dict[tuple[str, int], float]:
    """Mean end-to-end latency of each measured configuration with speculation, ms, by draft and drafted tokens."""
    return {
        (trial.speculation.draft_name, trial.speculation.drafted_tokens): latency
        for trial in trials
        if trial.state is TrialState.COMPLETE
        and not trial.speculation.is_baseline
        and (latency := trial.metrics.get(at_load("e2e_ms_mean", load))) is not None
    }


def estimated_gains(
    predictions: Predictions, trials: Sequence[TrialRecord], load: int | None = None
) -> dict[str, float]:
    """Speed-up of each measured and predicted configuration, as all measurements together say, by its key.

    The fastest of several noisy measurements is flattered by its noise; an estimate that leans on what the others and
    the single steps say is less so.

    Args:
        predictions: Not sharpened yet.
        trials: All of them.
        load: Requests in flight; None for the workload's own number.
    """
    at = predictions if load is None else predictions.at_load.get(load, predictions)
    errors = {_key(trial): trial.metrics.get("measurement_error") or 0.0 for trial in trials}
    outlook = at.outlook(measured_latencies(trials, load), errors)
    if outlook is None:
        return {}
    return {
        trial.speculation.key: outlook.expected_speedup(_key(trial))
        for trial in trials
        if trial.state is TrialState.COMPLETE and _key(trial) in outlook.keys
    }


def _key(trial: TrialRecord) -> tuple[str, int]:
    return trial.speculation.draft_name, trial.speculation.drafted_tokens


def front_members(
    trials: Sequence[TrialRecord],
    untried: Sequence[Speculation],
    predictions: Predictions,
    objectives: Sequence[Objective],
) -> tuple[ParetoEntry, ...]:
    """The Pareto front over measured trials and those of the untried whose every objective can be predicted.

    Each member has its probability of not being dominated, over all contenders; see ``_probabilities``.
    """
    contenders = [
        _Contender(
            entry=ParetoEntry(
                speculation=trial.speculation, values=trial.values, trial_number=trial.number, is_measured=True
            ),
            metrics=trial.metrics,
        )
        for trial in trials
    ]
    contenders += [
        _Contender(
            entry=ParetoEntry(speculation=speculation, values=predicted, trial_number=None, is_measured=False),
            metrics=predictions.metrics(speculation),
        )
        for speculation in untried
        if (predicted := predictions.values(speculation, objectives)) is not None
    ]
    table = losses([one.entry.values for one in contenders], objectives)
    members = [
        replace(one.entry, probability=probability)
        for one, is_member, probability in zip(
            contenders, pareto_front(table), _probabilities(contenders, table, objectives), strict=True
        )
        if is_member
    ]
    return tuple(sorted(members, key=lambda entry: losses([entry.values], objectives[:1])[0, 0]))


def _probabilities(
    contenders: Sequence[_Contender], table: NDArray[np.float64], objectives: Sequence[Objective]
) -> Sequence[float | None]:
    """Each contender's probability of being on the true front; None for all where one's speed has no interval.

    Latencies, throughputs and costs vary as the gain over no speculation does, by its interval, measured or predicted,
    and independently of each other: what all configurations share, the prompts and the baseline's own noise, cancels
    in that gain. At a further load no anchor runs, so what differs between two loads of an engine is added there. No
    speculation is the yardstick and does not vary. Waste, acceptance and memory are counted, not timed.

    Args:
        contenders: Measured and predicted.
        table: [contenders, objectives], lower is better.
        objectives: Of the study.
    """
    errors = np.array([[one.log_error(objective) for objective in objectives] for one in contenders], dtype=np.float64)
    if not len(contenders) or np.isnan(errors).any():
        return [None] * len(contenders)
    draws = log_normal_draws(table, errors, FRONT_DRAWS, FRONT_SEED)
    return [float(share) for share in front_probabilities(draws)]
