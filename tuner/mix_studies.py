"""The studies behind a mix: whether they may be compared, and the figures that they have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tuner.errors import ConfigurationError, NotFoundError, StudyMismatchError
from tuner.mix import LatencyRatio, MixWorkload
from tuner.observed_costs import draft_costs
from tuner.oracle import variable_length
from tuner.payoff import RoundCosts
from tuner.predictions import Predictions
from tuner.records import Measurement, Trace
from tuner.search_space import SearchSpace
from tuner.speculation import NO_SPECULATION, Speculation
from tuner.store import StudyRecord, TrialRecord, TrialState


def check_mixable(studies: Sequence[StudyRecord]) -> None:
    """Refuse studies whose figures were not had under the same conditions.

    Raises:
        StudyMismatchError: Names every condition that differs, with both values.
    """
    first, *others = studies
    wanted = _conditions(first)
    for other in others:
        found = _conditions(other)
        lines = [
            f"  {name}: {wanted.get(name)!r} in {first.name!r}, {found.get(name)!r} in {other.name!r}"
            for name in dict.fromkeys((*wanted, *found))
            if wanted.get(name) != found.get(name)
        ]
        if lines:
            raise StudyMismatchError(
                f"studies {first.name!r} and {other.name!r} cannot be mixed:\n" + "\n".join(lines),
                "search every workload with the same target, search space and engine settings",
            )


def _conditions(study: StudyRecord) -> dict[str, Any]:
    """What must be equal for figures of two studies to be compared, by the name that an error calls it."""
    spec = study.spec
    space: Mapping[str, Any] = spec.get("space", {})
    models: Mapping[str, str] = spec.get("models", {})
    target = spec.get("target")
    return {
        "target fingerprint": models.get(str(target), target),
        "engine": space.get("engine"),
        "weight format": spec.get("weight_format"),
        "concurrency": spec.get("workload", {}).get("concurrency"),
        "threads": spec.get("num_threads"),
        "num_speculative_tokens": space.get("num_speculative_tokens"),
        **{f"draft {name}": dict(draft) for name, draft in space.get("drafts", {}).items()},
        **{f"fingerprint of {name}": key for name, key in models.items() if name != target},
    }


def mix_workload(
    study: StudyRecord,
    trials: Sequence[TrialRecord],
    predictions: Predictions,
    *,
    baseline: Measurement | None = None,
    traces: Sequence[Trace] = (),
    weight: float = 1.0,
) -> MixWorkload:
    """A study's part in a mix: measured figures where there are some, else predicted ones.

    The figures measured in the search are taken, not that of the certified winner: all of them, and the predictions,
    are about the same prompts.

    Args:
        study: Whose space says what may be chosen.
        trials: What was measured.
        predictions: What was not.
        baseline: No speculation, for the oracle; None leaves a variable k out.
        traces: Of the drafts that were replayed along it, likewise.
        weight: The workload's share of the requests, in any unit.

    Raises:
        NotFoundError: No speculation was not measured yet, so there is nothing to relate to.
    """
    if not any(trial.speculation.is_baseline and trial.state is TrialState.COMPLETE for trial in trials):
        raise NotFoundError(
            f"study {study.name!r} has no measured baseline yet", "run its search again: it goes on where it was"
        )
    variable = {} if baseline is None else _variable(baseline, predictions, traces)
    measured = {one.speculation: _measured(one) for one in trials if _has_speedup(one)}
    return MixWorkload(
        study_name=study.name,
        label=str(study.spec.get("workload", {}).get("name", study.name)),
        weight=weight,
        ratios=_predicted(study, predictions) | measured,
        oracle={name: one.oracle for name, one in variable.items()},
        replayed={NO_SPECULATION: 1.0, **_replayed(study, variable)},
        infeasible=frozenset(one.speculation for one in trials if one.state is TrialState.INFEASIBLE),
    )


def _has_speedup(trial: TrialRecord) -> bool:
    return trial.state is TrialState.COMPLETE and bool(trial.metrics.get("speedup"))


def _measured(trial: TrialRecord) -> LatencyRatio:
    if trial.speculation.is_baseline:
        return LatencyRatio(estimate=1.0, low=1.0, high=1.0, is_measured=True)
    speedup, low, high = (trial.metrics.get(name) for name in ("speedup", "speedup_low", "speedup_high"))
    return LatencyRatio(
        estimate=1 / (speedup or 1.0), low=1 / high if high else None, high=1 / low if low else None, is_measured=True
    )


def _predicted(study: StudyRecord, predictions: Predictions) -> dict[Speculation, LatencyRatio]:
    """Predicted ratios of the configurations of the study's space."""
    found: dict[Speculation, LatencyRatio] = {}
    for speculation in _configurations(study):
        one = predictions.of_configuration(speculation)
        if one is not None:
            low, high = 1 / one.speedup_high, 1 / one.speedup_low
            found[speculation] = LatencyRatio(estimate=1 / one.speedup, low=low, high=high, is_measured=False)
    return found


def _configurations(study: StudyRecord) -> tuple[Speculation, ...]:
    space: Mapping[str, Any] | None = study.spec.get("space")
    if space is None:
        return ()
    stored = SearchSpace.model_validate(
        {
            "name": "stored",
            "description": "as it was searched",
            "engine": space["engine"],
            "drafts": list(space["drafts"].values()),
            "num_speculative_tokens": space["num_speculative_tokens"],
        }
    )
    return stored.configurations()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Variable:
    """Latency ratios of one draft: with the best length in every round, and with each fixed one from 0 on."""

    oracle: float
    fixed: tuple[float, ...]


def _variable(baseline: Measurement, predictions: Predictions, traces: Sequence[Trace]) -> dict[str, _Variable]:
    """Drafts that are priced, and whose trace tells the rounds of every length."""
    found: dict[str, _Variable] = {}
    for trace in traces:
        costs = draft_costs(baseline, predictions, trace)
        if costs is not None:
            with suppress(ConfigurationError):  # a trace that tells the rounds of some lengths only
                found[trace.draft_name] = _ratios(costs, trace)
    return found


def _ratios(costs: RoundCosts, trace: Trace) -> _Variable:
    lengths = variable_length(trace, costs.round_ms)
    alone = float(lengths.fixed_ms[0].sum())
    return _Variable(
        oracle=costs.latency_ratio(float(lengths.oracle_ms.sum()) / alone),
        fixed=tuple(costs.latency_ratio(float(one) / alone) for one in lengths.fixed_ms.sum(axis=1)),
    )


def _replayed(study: StudyRecord, variable: Mapping[str, _Variable]) -> dict[Speculation, float]:
    return {
        one: variable[one.draft_name].fixed[one.drafted_tokens]
        for one in _configurations(study)
        if one.draft_name in variable and one.drafted_tokens < len(variable[one.draft_name].fixed)
    }
