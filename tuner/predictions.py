"""What replay and the cost model say of every configuration, before it is measured and after others were."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tuner.cost_model import CostModel, plain_round_ms
from tuner.errors import MeasurementError
from tuner.forecast import Candidate, Forecast, Key, Outlook
from tuner.metrics import summarize
from tuner.objective import OBJECTIVES, THROUGHPUT, Objective, at_load
from tuner.prediction import (
    BaselinePaths,
    PredictedPaths,
    Prediction,
    beyond_reach,
    predicted_paths,
    prediction,
    within_reach,
)
from tuner.records import BaselineResult, Measurement, Prompt, TargetOutput, Trace, TraceResult
from tuner.speculation import Speculation
from tuner.step_times import median_ms

Floats = NDArray[np.float64]

EXACT = frozenset({"waste", "mean_acceptance_length", "acceptance_rate"})
"""Figures that replay knows without a cost model: no measurement of a configuration adds to them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Predictions:
    """Predicted figures by draft and number of drafted tokens; empty where an engine cannot replay.

    Attributes:
        baseline: Figures of no speculation, by the names of ``metrics.summarize``.
        paths: What the predictions rest on.
        costs: Times of the steps; None where there is no prediction.
        at_load: The same at further numbers of requests in flight.
    """

    by_configuration: Mapping[Key, Prediction]
    baseline: Mapping[str, float | None] = field(default_factory=dict)
    paths: Mapping[Key, PredictedPaths] = field(default_factory=dict)
    costs: CostModel | None = None
    at_load: Mapping[int, Predictions] = field(default_factory=dict)

    @classmethod
    def of(cls, baseline: BaselineResult, traces: Sequence[TraceResult], costs: CostModel | None = None) -> Self:
        """Predict every configuration that the traces and the cost model reach.

        Args:
            baseline: Measured, with timed passes of engines that can time them.
            traces: Of the drafts that can be replayed; with limits of their steps where none could be timed.
            costs: Of the steps; None takes the timed ones, or those guessed from the limits.
        """
        at_load = {load: cls.of(result, timed_at(traces, load)) for load, result in baseline.at_load.items()}
        return replace(cls._of_one_load(baseline, traces, costs), at_load=at_load)

    @classmethod
    def _of_one_load(cls, baseline: BaselineResult, traces: Sequence[TraceResult], costs: CostModel | None) -> Self:
        costs = costs or _costs(baseline, traces)
        if costs is None:
            return cls(by_configuration={})
        costs = costs.with_doubts({one.trace.draft_name: one.doubtful_share for one in traces})
        before = BaselinePaths.of(baseline.measurement, _pass_ms(baseline))
        found: dict[Key, PredictedPaths] = {}
        for trace in (one.trace for one in traces):
            reached = within_reach(trace, costs, range(1, trace.max_drafted_tokens + 1))
            for paths in predicted_paths(trace, costs, before, reached) if reached else []:
                found[trace.draft_name, paths.rounds.drafted_tokens] = paths
        return cls._priced(summarize(baseline.measurement), found, costs)

    @classmethod
    def _priced(
        cls, baseline: Mapping[str, float | None], paths: Mapping[Key, PredictedPaths], costs: CostModel
    ) -> Self:
        made = {key: prediction(key[0], one, costs) for key, one in paths.items()}
        rate = baseline.get("output_tokens_per_s")
        with_rate = {
            key: replace(one, columns={**one.columns, "output_tokens_per_s": rate and rate * one.speedup})
            for key, one in made.items()
        }
        return cls(by_configuration=with_rate, baseline=baseline, paths=paths, costs=costs)

    def sharpened(
        self,
        measured: Mapping[Key, float],
        at_load: Mapping[int, Mapping[Key, float]] = MappingProxyType({}),
        only: Key | None = None,
    ) -> Self:
        """The predictions after configurations were measured: the step times that explain them best price all.

        Args:
            measured: Mean end-to-end latency of each, ms, at the machine's speed of the baseline.
            at_load: The same at further numbers of requests in flight.
            only: A configuration whose prediction is wanted; None for those of all, which takes as many times longer.
        """
        return self.fitted(measured, at_load).repriced(only) if measured else self

    def fitted(self, measured: Mapping[Key, float], at_load: Mapping[int, Mapping[Key, float]]) -> Self:
        """The first half of ``sharpened``: with the step times after the measurements, but not priced with them yet."""
        if self.costs is None or not measured:
            return self
        costs = self.costs.with_step_times(self._latencies.fitted(measured))
        others = {load: one.fitted(at_load.get(load, {}), {}) for load, one in self.at_load.items()}
        return replace(self, costs=costs, at_load=others)

    def repriced(self, only: Key | None = None) -> Self:
        """The second half of ``sharpened``: all configurations, or one only, priced with the step times that it has."""
        if self.costs is None:
            return self
        costs = self.costs
        priced = {key: paths.priced(key[0], costs) for key, paths in self.paths.items() if only in (None, key)}
        others = {load: one.repriced(only) for load, one in self.at_load.items()}
        return replace(self._priced(self.baseline, priced, costs), at_load=others)

    def outlook(
        self, measured: Mapping[Key, float], errors: Mapping[Key, float] = MappingProxyType({})
    ) -> Outlook | None:
        """What measurements and predictions together say of end-to-end latency; None without predictions.

        Args:
            measured: As in ``sharpened``, of predictions that are not sharpened yet.
            errors: Relative sd of measurements, where it is known.
        """
        return self._latencies.outlook(measured, errors=errors) if self.paths else None

    # ── one configuration ─────────────────────────────────────────────────────────────────────────────────────────

    def of_configuration(self, speculation: Speculation) -> Prediction | None:
        """The prediction of a configuration; None where there is none."""
        return self.by_configuration.get((speculation.draft_name, speculation.drafted_tokens))

    def metrics(self, speculation: Speculation) -> dict[str, float]:
        """Predicted columns of a configuration, with its speed-up and limits; empty where there is no prediction."""
        prediction = self.of_configuration(speculation)
        if prediction is None:
            return {}
        known = {name: value for name, value in prediction.columns.items() if value is not None}
        return known | {
            "speedup": prediction.speedup,
            "speedup_low": prediction.speedup_low,
            "speedup_high": prediction.speedup_high,
            **self._metrics_at_load(speculation),
        }

    def _metrics_at_load(self, speculation: Speculation) -> dict[str, float]:
        return {
            at_load(name, load): value
            for load, one in self.at_load.items()
            for name, value in one.metrics(speculation).items()
        }

    def values(self, speculation: Speculation, objectives: Sequence[Objective]) -> dict[str, float] | None:
        """Predicted objective values; None unless every objective can be predicted."""
        found = {one.name: one.value_in(self.at(one.load).metrics(speculation)) for one in objectives}
        known = {name: value for name, value in found.items() if value is not None}
        return known if len(known) == len(found) else None

    def ranked(self, candidates: Sequence[Speculation]) -> list[Speculation]:
        """The candidates that have a prediction, fastest first."""
        known = [
            (one.speedup, speculation) for speculation in candidates if (one := self.of_configuration(speculation))
        ]
        return [speculation for _, speculation in sorted(known, key=lambda pair: -pair[0])]

    def gaps(self, candidates: Sequence[Speculation], traces: Sequence[TraceResult]) -> dict[Speculation, str]:
        """Those of the candidates that have no prediction, each with the reason, in words for a person."""
        by_draft = {one.trace.draft_name: one.trace for one in traces}
        return {
            one: self._gap(by_draft.get(one.draft_name), one.drafted_tokens)
            for one in candidates
            if not one.is_baseline and self.of_configuration(one) is None
        }

    def _gap(self, trace: Trace | None, drafted_tokens: int) -> str:
        if trace is None:
            return "the draft could not be replayed"
        if self.costs is None:
            return "the engine timed no steps"
        return beyond_reach(trace, self.costs, drafted_tokens) or "no prompt was answered"

    # ── all of them, for the search ───────────────────────────────────────────────────────────────────────────────

    def forecasts(self, objectives: Sequence[Objective]) -> dict[int, Forecast]:
        """A forecast for each objective that is predicted within limits, by its position."""
        return {
            index: self.at(objective.load)._forecast(objective)
            for index, objective in enumerate(objectives)
            if objective.name not in EXACT and self._is_predicted(objective)
        }

    def left_open(self, objectives: Sequence[Objective]) -> tuple[Objective, ...]:
        """Objectives that can only be measured, as memory: no bound on them ends a search."""
        return tuple(one for one in objectives if one.name not in EXACT and not self._is_predicted(one))

    def _is_predicted(self, objective: Objective) -> bool:
        predicted = self.at(objective.load).by_configuration.values()
        return bool(predicted) and all(objective.value_in(one.columns) for one in predicted)

    def at(self, load: int | None) -> Predictions:
        """Those for that many requests in flight, empty where there are none; None for the workload's own number."""
        return self if load is None else self.at_load.get(load, Predictions(by_configuration={}))

    @cached_property
    def _latencies(self) -> Forecast:
        return self._forecast(OBJECTIVES["e2e_ms"])

    def _forecast(self, objective: Objective) -> Forecast:
        """For an objective of this load."""
        assert self.costs is not None  # noqa: S101 - there is a prediction, so there is a price
        log_ms = self.costs.step_times.log_ms
        return Forecast(
            candidates=tuple(
                _candidate(key, self.paths[key], objective.value_in(one.columns) or math.nan, objective.metric, log_ms)
                for key, one in self.by_configuration.items()
            ),
            step_times=self.costs.step_times,
            baseline_value=objective.value_in(self.baseline) or math.nan,
            is_rate=objective.metric == THROUGHPUT,
            widths_are_timed=self.costs.widths_are_timed,
        )


def timed_at(traces: Sequence[TraceResult], load: int) -> tuple[TraceResult, ...]:
    """The traces with what drafting costs at that many requests in flight; those of which it is not known are out."""
    known = [one for one in traces if load in one.draft_steps_at_load or one.draft_steps is None]
    return tuple(replace(one, draft_steps=one.draft_steps_at_load.get(load)) for one in known)


def _pass_ms(baseline: BaselineResult) -> float | None:
    """A pass of one row of each request; None where it was not timed."""
    verify = baseline.verify
    return median_ms(verify, 1)[0] if verify is not None and verify.seconds.get(1) else None


def _costs(baseline: BaselineResult, traces: Sequence[TraceResult]) -> CostModel | None:
    """From timed steps, else from the limits that stand in for them; None where there is neither."""
    plain_ms = plain_round_ms(baseline)
    if baseline.verify is not None:
        return CostModel.timed(baseline.verify, traces, plain_ms)
    limits = {one.trace.draft_name: one.limits for one in traces if one.limits is not None}
    return CostModel.guessed(limits, plain_ms) if limits and plain_ms else None


def _candidate(key: Key, paths: PredictedPaths, value: float, metric: str, log_ms: Floats) -> Candidate:
    """A configuration as a sum of steps, scaled such that the expected sum is the predicted value of the metric."""
    has_first, has_rounds = metric != "tpot_ms", metric != "ttft_ms"
    total = has_first * float(paths.first.sum()) + has_rounds * float(paths.decode.sum())
    fixed = total - has_rounds * float(paths.weights @ np.exp(log_ms))
    unit = value * total if metric == THROUGHPUT else value / total
    return Candidate(key=key, weights=has_rounds * paths.weights, fixed_ms=fixed, unit=unit)


def target_outputs(baseline: Measurement, prompts: Sequence[Prompt]) -> tuple[TargetOutput, ...]:
    """What the target alone answered to each prompt.

    Raises:
        MeasurementError: The engine gave no token ids, so there is nothing to replay along.
    """
    by_id = {prompt.prompt_id: prompt for prompt in prompts}
    complete = [record for record in baseline.requests if record.is_complete]
    if any(len(record.token_ids) != record.output_tokens for record in complete):
        raise MeasurementError("the engine gives no token ids, so drafts cannot be replayed along its outputs")
    return tuple(
        TargetOutput(
            prompt=by_id[record.prompt_id], token_ids=record.token_ids, max_output_tokens=record.max_output_tokens
        )
        for record in complete
    )


def prompt_lengths(baseline: Measurement) -> tuple[int, ...]:
    """The shortest, the median and the longest prompt, in tokens; fewer where they are alike, none where not known."""
    known = sorted(record.prompt_tokens for record in baseline.requests if record.prompt_tokens)
    return tuple(sorted({known[0], known[len(known) // 2], known[-1]})) if known else ()
