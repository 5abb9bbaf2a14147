"""What replay and timed steps say of every configuration before it is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from tuner.cost_model import Prediction, predict_all, round_times
from tuner.errors import MeasurementError
from tuner.objective import Objective
from tuner.records import BaselineResult, Measurement, Prompt, TargetOutput, TraceResult
from tuner.speculation import Speculation

ALIKE = 2
"""Configurations of one draft among the most promising: a third neighbour in k teaches less than another draft."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """Predicted figures by draft and number of drafted tokens; empty where an engine cannot replay."""

    by_configuration: Mapping[tuple[str, int], Prediction]

    @classmethod
    def of(cls, baseline: BaselineResult, traces: Sequence[TraceResult]) -> Self:
        """Predict every configuration that the traces and the timed steps reach."""
        if baseline.verify is None:
            return cls(by_configuration={})
        times = {one.trace.draft_name: round_times(baseline.verify, one.draft_steps) for one in traces}
        deepest = max((one.trace.max_drafted_tokens for one in traces), default=0)
        predicted = predict_all([one.trace for one in traces], times, baseline.measurement, range(1, deepest + 1))
        return cls(by_configuration={(one.draft_name, one.drafted_tokens): one for one in predicted})

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
        }

    def values(self, speculation: Speculation, objectives: Sequence[Objective]) -> dict[str, float] | None:
        """Predicted objective values; None unless every objective can be predicted."""
        columns = self.metrics(speculation)
        if any(objective.column not in columns for objective in objectives):
            return None
        return {objective.name: columns[objective.column] for objective in objectives}

    def ranked(self, candidates: Sequence[Speculation]) -> list[Speculation]:
        """The candidates that have a prediction, fastest first."""
        known = [
            (one.speedup, speculation) for speculation in candidates if (one := self.of_configuration(speculation))
        ]
        return [speculation for _, speculation in sorted(known, key=lambda pair: -pair[0])]

    def most_promising(self, candidates: Sequence[Speculation], count: int) -> list[Speculation]:
        """The fastest candidates, at most two of one draft."""
        chosen: list[Speculation] = []
        for speculation in self.ranked(candidates):
            alike = sum(one.draft_name == speculation.draft_name for one in chosen)
            if len(chosen) < count and alike < ALIKE:
                chosen.append(speculation)
        return chosen


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
