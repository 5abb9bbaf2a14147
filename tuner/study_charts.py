"""What the page of a study shows: its speed-ups over drafted tokens, and below what was predicted of the measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tuner.charts import AccuracyChart, AccuracyPoint, ChartPoint, DraftCurve, SpeedChart, write_charts
from tuner.comparison import comparisons
from tuner.decide import Decision
from tuner.documents import PredictedResult, StudyResult, verdict_sentence
from tuner.forecast import Key
from tuner.objective import at_load, figures_at
from tuner.prediction import Prediction
from tuner.store import StudyRecord, TrialRecord, TrialState
from tuner.tables import number


def write_study(result: StudyResult, path: Path) -> None:
    """Write the page of a study.

    Raises:
        ConfigurationError: The folder does not exist or cannot be written.
    """
    load = None if result.decision is None else result.decision.concurrency
    write_charts(speed_chart(result), path, accuracy_chart(result.trials, load))


def write_prediction(result: PredictedResult, sentence: str, path: Path, load: int | None = None) -> None:
    """Write the page of a study of which there are predictions only, with that sentence under the title.

    Args:
        result: The study.
        sentence: What is predicted.
        path: An HTML file.
        load: Requests in flight; None for the workload's own number.

    Raises:
        ConfigurationError: The folder does not exist or cannot be written.
    """
    write_charts(_speed_chart(result, sentence, None, load), path, accuracy_chart(result.trials, load))


def speed_chart(result: StudyResult) -> SpeedChart:
    """Speed-up over drafted tokens, per draft: predicted, measured and certified."""
    load = None if result.decision is None else result.decision.concurrency
    return _speed_chart(result, verdict_sentence(result), result.decision, load)


def accuracy_chart(trials: Sequence[TrialRecord], load: int | None = None) -> AccuracyChart | None:
    """Predicted against measured speed-ups; None where nothing was measured that had been predicted."""
    points = tuple(
        AccuracyPoint(
            draft_name=one.speculation.draft_name,
            drafted_tokens=one.speculation.drafted_tokens,
            predicted=_gain(one.predicted),
            measured=_gain(one.measured),
            note=f"trial {one.trial}",
        )
        for one in comparisons(trials, load)
    )
    return AccuracyChart(points=points) if points else None


def _gain(figures: Mapping[str, float | None]) -> tuple[float, float | None, float | None]:
    return figures["speedup"] or 0.0, figures.get("speedup_low"), figures.get("speedup_high")


def _speed_chart(result: PredictedResult, sentence: str, decision: Decision | None, load: int | None) -> SpeedChart:
    predicted = result.predictions.at(load).by_configuration
    measured = [replace(one, metrics=figures_at(one.metrics, load)) for one in _measured(result, load)]
    curves = [
        DraftCurve(
            draft_name=name,
            predicted=tuple(_predicted_points(predicted, name)),
            measured=tuple(_point(one, load) for one in measured if one.speculation.draft_name == name),
            certified=_certified_point(decision, name),
        )
        for name in _draft_names(result)
    ]
    return SpeedChart(title=_title(result.study), verdict=sentence, curves=tuple(curves))


def _draft_names(result: PredictedResult) -> tuple[str, ...]:
    tried = {trial.speculation.draft_name for trial in result.trials if not trial.speculation.is_baseline}
    return tuple(sorted(tried | {name for name, _ in result.predictions.by_configuration}))


def _predicted_points(predicted: Mapping[Key, Prediction], draft_name: str) -> Iterator[ChartPoint]:
    for (name, tokens), prediction in sorted(predicted.items()):
        if name == draft_name:
            yield ChartPoint(
                drafted_tokens=tokens,
                speedup=prediction.speedup,
                low=prediction.speedup_low,
                high=prediction.speedup_high,
                note=_acceptance(prediction.columns),
            )


def _measured(result: PredictedResult, load: int | None) -> Iterator[TrialRecord]:
    for trial in result.trials:
        is_first = trial.state is TrialState.COMPLETE and trial.duplicate_of is None
        if is_first and not trial.speculation.is_baseline and trial.metrics.get(at_load("speedup", load)) is not None:
            yield trial


def _point(trial: TrialRecord, load: int | None) -> ChartPoint:
    metrics = trial.metrics
    return ChartPoint(
        drafted_tokens=trial.speculation.drafted_tokens,
        speedup=metrics["speedup"] or 0.0,
        low=metrics.get("speedup_low"),
        high=metrics.get("speedup_high"),
        note=f"trial {trial.number}: {_acceptance(metrics)}",
        before=_before(figures_at(trial.predicted, load)) if at_load("speedup", load) in trial.predicted else "",
    )


def _acceptance(figures: Mapping[str, float | None]) -> str:
    rate = number(figures.get("acceptance_rate"), ".0%")
    length = number(figures.get("mean_acceptance_length"), ".2f")
    return f"acceptance rate {rate}, mean acceptance length {length}"


def _before(predicted: Mapping[str, float | None]) -> str:
    speedup, low, high = _gain(predicted)
    limits = "" if low is None or high is None else f", {low:.2f} to {high:.2f}"
    return f"predicted before: {speedup:.2f} ×{limits}"


def _certified_point(decision: Decision | None, draft_name: str) -> ChartPoint | None:
    if decision is None or decision.candidate is None or decision.speedup is None:
        return None
    if decision.candidate.draft_name != draft_name:
        return None
    return ChartPoint(
        drafted_tokens=decision.candidate.drafted_tokens,
        speedup=decision.speedup.estimate,
        low=decision.speedup.low,
        high=decision.speedup.high,
        note=f"alternating blocks with no speculation, {decision.speedup.n} prompts",
    )


def _title(study: StudyRecord) -> str:
    workload = study.spec.get("workload")
    name = workload.get("name") if isinstance(workload, Mapping) else None
    target = study.spec.get("target")
    return " on ".join(str(part) for part in (name, target) if part) or study.name
