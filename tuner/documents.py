"""What a study found and what a search would do, as JSON documents for scripts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Protocol

from tuner.comparison import Comparison, comparisons
from tuner.decide import Decision
from tuner.estimate import PlanDescription
from tuner.export import Chosen
from tuner.predictions import Predictions
from tuner.records import to_json
from tuner.speculation import EngineConfig, Speculation
from tuner.stopping import Reason
from tuner.store import ParetoEntry, StudyRecord, TrialRecord

NO_VERDICT = "No verdict yet: this search has not ended; the command that started it goes on with it."


class PredictedResult(Protocol):
    """What a plot needs of a study. Attributes are read only."""

    @property
    def study(self) -> StudyRecord:
        """What was asked for."""
        ...

    @property
    def trials(self) -> tuple[TrialRecord, ...]:
        """All trials by number."""
        ...

    @property
    def predictions(self) -> Predictions:
        """What replay says of every configuration."""
        ...


class StudyResult(PredictedResult, Protocol):
    """What a report needs of a study, finished or not; a search's own result is one.

    ``decision`` and ``stopped`` are None while there is no verdict, ``baseline`` while it is not measured.
    """

    @property
    def decision(self) -> Decision | None:
        """The verdict."""
        ...

    @property
    def stopped(self) -> Reason | None:
        """Why no further configuration was tried."""
        ...

    @property
    def baseline(self) -> TrialRecord | None:
        """Trial 0, no speculation."""
        ...

    @property
    def recommended(self) -> TrialRecord | None:
        """The trial to deploy, where the verdict is to speculate."""
        ...

    @property
    def pareto(self) -> tuple[ParetoEntry, ...]:
        """The front."""
        ...


def verdict_sentence(result: StudyResult) -> str:
    """The verdict, in one sentence."""
    return NO_VERDICT if result.decision is None else result.decision.sentence


def result_document(result: StudyResult) -> dict[str, Any]:
    """Everything about a study, as one strict JSON object: finite numbers only, null for what does not exist."""
    decision = result.decision
    return {
        "study": result.study.name,
        "verdict": None if decision is None else str(decision.verdict),
        "sentence": verdict_sentence(result),
        "decision": None if decision is None else finite(json.loads(to_json(decision))),
        "baseline": None if result.baseline is None else trial_document(result.baseline),
        "recommended": None if result.recommended is None else trial_document(result.recommended),
        "stopped": None if result.stopped is None else asdict(result.stopped),
        "predicted_against_measured": [
            _comparison_document(one) for one in comparisons(result.trials, decision.concurrency if decision else None)
        ],
        "pareto": [_member_document(entry) for entry in result.pareto],
        "trials": [trial_document(trial) for trial in result.trials],
        "created_at": result.study.created_at.isoformat(),
        "spec": finite(result.study.spec),
        "provenance": finite(result.study.provenance),
    }


def export_document(result: StudyResult, config: EngineConfig, chosen: Chosen) -> dict[str, Any]:
    """A configuration with everything that stands behind it: decision, intervals, conditions, provenance."""
    decision = result.decision
    return {
        "study": result.study.name,
        "trial": chosen.trial.number,
        "is_certified": chosen.is_certified,
        "verdict": None if decision is None else str(decision.verdict),
        "sentence": verdict_sentence(result),
        "configuration": {
            **speculation_document(config.speculation),
            "target_model": config.target_model,
            "max_num_seqs": config.max_num_seqs,
            "max_model_len": config.max_model_len,
            "weight_format": config.weight_format,
            "num_threads": config.num_threads,
        },
        "measured": trial_document(chosen.trial),
        "baseline": None if result.baseline is None else trial_document(result.baseline),
        "decision": None if decision is None else finite(json.loads(to_json(decision))),
        "conditions": finite(result.study.spec),
        "provenance": finite(result.study.provenance),
    }


def plan_document(plan: PlanDescription) -> dict[str, Any]:
    """What a search would do, and what that takes in all."""
    described: dict[str, Any] = finite(asdict(plan))
    return {
        **described,
        "seconds": plan.seconds,
        "compiles": plan.compiles,
        "download_bytes": plan.download_bytes,
        "disk_bytes": plan.disk_bytes,
    }


def speculation_document(speculation: Speculation) -> dict[str, Any]:
    """A configuration under the names that vLLM and the search space use."""
    return {
        "configuration": speculation.label,
        "method": str(speculation.method),
        "draft": speculation.draft_name,
        "model": speculation.draft_model,
        "num_speculative_tokens": speculation.drafted_tokens,
        "prompt_lookup_max": speculation.prompt_lookup_max,
        "prompt_lookup_min": speculation.prompt_lookup_min,
        "suffix_decoding_max_tree_depth": speculation.suffix_decoding_max_tree_depth,
        "suffix_decoding_max_spec_factor": speculation.suffix_decoding_max_spec_factor,
        "suffix_decoding_min_token_prob": speculation.suffix_decoding_min_token_prob,
    }


def trial_document(trial: TrialRecord) -> dict[str, Any]:
    """A trial with everything known of it."""
    return {
        "trial": trial.number,
        **speculation_document(trial.speculation),
        "state": str(trial.state),
        "values": finite(trial.values),
        "metrics": finite(trial.metrics),
        "predicted": finite(trial.predicted),
        "duplicate_of": trial.duplicate_of,
        "error_type": trial.error_type,
        "error": trial.error,
    }


def _comparison_document(one: Comparison) -> dict[str, Any]:
    """The figures that both have, each as predicted, as measured, and measured / predicted − 1."""
    return {
        **speculation_document(one.speculation),
        "trial": one.trial,
        "agrees": one.agrees,
        "figures": {
            name: {
                "predicted": finite(predicted),
                "measured": finite(one.measured[name]),
                "difference": finite(one.difference(name)),
            }
            for name, predicted in one.predicted.items()
            if name in one.measured
        },
    }


def _member_document(entry: ParetoEntry) -> dict[str, Any]:
    return {
        **speculation_document(entry.speculation),
        "trial": entry.trial_number,
        "is_measured": entry.is_measured,
        "probability": entry.probability,
        "values": finite(entry.values),
    }


def finite(value: Any) -> Any:
    """The value with every number that JSON cannot hold replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return value
