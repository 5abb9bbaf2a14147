"""A study read back from the store: everything that a report, a plot or an export needs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tuner.decide import Decision
from tuner.errors import NotFoundError
from tuner.outcome import sharpened
from tuner.predictions import Predictions
from tuner.records import BaselineResult, StageKind, TraceResult, from_json
from tuner.reuse import whole
from tuner.speculation import EngineConfig, Speculation
from tuner.stopping import Reason
from tuner.store import ParetoEntry, StudyRecord, TrialRecord, TrialStore


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredStudy:
    """What is known of a study, finished or not.

    Attributes:
        decision: None while there is no verdict.
        baseline: None while it was not asked for.
        recommended: None where the verdict is not to speculate, or open.
        stopped: Why no further configuration was tried; None while some may be, and in studies that did not keep it.
        predictions: Sharpened by what was measured.
        baseline_result: What stage ``baseline`` returned; None while it has not ended.
        traces: Of the drafts that were replayed.
    """

    study: StudyRecord
    decision: Decision | None
    baseline: TrialRecord | None
    recommended: TrialRecord | None
    trials: tuple[TrialRecord, ...]
    pareto: tuple[ParetoEntry, ...]
    predictions: Predictions
    stopped: Reason | None = None
    baseline_result: BaselineResult | None = None
    traces: tuple[TraceResult, ...] = ()

    def config(self, speculation: Speculation) -> EngineConfig:
        """How the study's engine was loaded for a configuration, with the folders of that time."""
        spec, places = self.study.spec, self.study.provenance["models"]
        reference = speculation.draft_model
        return EngineConfig(
            target_model=places[spec["target"]],
            speculation=replace(speculation, draft_model=None if reference is None else places[reference]),
            max_num_seqs=max(spec["workload"]["concurrency"], *spec.get("loads", ()), 1),
            max_model_len=spec["max_model_len"],
            weight_format=spec["weight_format"],
            num_threads=spec["num_threads"],
        )


def read_study(store: TrialStore, name: str | None = None) -> StoredStudy:
    """The study of that name; without a name the newest one that has a verdict, else the newest.

    Raises:
        NotFoundError: There is none.
    """
    study = _newest(store) if name is None else store.study(name)
    trials = store.trials(study.name)
    conclusion: dict[str, Any] = dict(study.conclusion or {})
    recommended = conclusion.get("trial")
    baseline, traces = _replayable(store, study.name)
    return StoredStudy(
        study=study,
        decision=from_json(Decision, json.dumps(conclusion["decision"]).encode()) if conclusion else None,
        baseline=trials[0] if trials else None,
        recommended=next((trial for trial in trials if trial.number == recommended), None),
        trials=trials,
        pareto=store.pareto_front(study.name),
        predictions=_predictions(baseline, traces, trials),
        stopped=from_json(Reason, json.dumps(conclusion["stopped"]).encode()) if conclusion.get("stopped") else None,
        baseline_result=baseline,
        traces=traces,
    )


def _newest(store: TrialStore) -> StudyRecord:
    studies = store.studies()
    if not studies:
        raise NotFoundError("there is no study yet", "run `tuner search --workload code-gen` to make one")
    return next((study for study in reversed(studies) if study.conclusion is not None), studies[-1])


def _predictions(
    baseline: BaselineResult | None, traces: Sequence[TraceResult], trials: Sequence[TrialRecord]
) -> Predictions:
    if baseline is None:
        return Predictions(by_configuration={})
    return sharpened(Predictions.of(baseline, traces), trials)


def _replayable(store: TrialStore, study_name: str) -> tuple[BaselineResult | None, tuple[TraceResult, ...]]:
    """What stages ``baseline`` and ``trace`` returned."""
    results: dict[StageKind, list[bytes]] = {StageKind.BASELINE: [], StageKind.TRACE: []}
    for one in store.stages(study_name):
        if one.kind in results:
            stage = store.stage(study_name, one.kind, one.key)
            if stage is not None and stage.result is not None:
                results[one.kind].append(stage.result)
    baselines = [from_json(BaselineResult, one) for one in results[StageKind.BASELINE]]
    traces = tuple(whole(store, from_json(TraceResult, one)) for one in results[StageKind.TRACE])
    return next(iter(baselines), None), traces
