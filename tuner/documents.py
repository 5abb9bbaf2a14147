"""What a study found and what a search would do, as JSON documents for scripts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Protocol

from tuner.decide import Decision
from tuner.estimate import PlanDescription
from tuner.export import Chosen
from tuner.predictions import Predictions
from tuner.records import to_json
from tuner.speculation import EngineConfig, Speculation
from tuner.store import ParetoEntry, StudyRecord, TrialRecord

NO_VERDICT = "No verdict yet: this search has not ended; the command that started it goes on with it."


class StudyResult(Protocol):
    """What a report needs of a study, finished or not; a search's own result is one.

    Attributes are read only. ``decision`` is None while there is no verdict, ``baseline`` while it is not measured.
    """

    @property
    def study(self) -> StudyRecord:
        """What was asked for."""
        ...

    @property
    def decision(self) -> Decision | None:
        """The verdict."""
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
    def trials(self) -> tuple[TrialRecord, ...]:
        """All trials by number."""
        ...

    @property
    def predictions(self) -> Predictions:
        """What replay said of every configuration."""
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
        "decision": None if decision is None else _finite(json.loads(to_json(decision))),
        "baseline": None if result.baseline is None else trial_document(result.baseline),
        "recommended": None if result.recommended is None else trial_document(result.recommended),
        "pareto": [_member_document(entry) for entry in result.pareto],
        "trials": [trial_document(trial) for trial in result.trials],
        "created_at": result.study.created_at.isoformat(),
        "spec": _finite(result.study.spec),
        "provenance": _finite(result.study.provenance),
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
        "decision": None if decision is None else _finite(json.loads(to_json(decision))),
        "conditions": _finite(result.study.spec),
        "provenance": _finite(result.study.provenance),
    }


def plan_document(plan: PlanDescription) -> dict[str, Any]:
    """What a search would do, and what that takes in all."""
    described: dict[str, Any] = _finite(asdict(plan))
    return {
        **described,
        "seconds": plan.seconds,
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
        "values": _finite(trial.values),
        "metrics": _finite(trial.metrics),
        "predicted": _finite(trial.predicted),
        "duplicate_of": trial.duplicate_of,
        "error_type": trial.error_type,
        "error": trial.error,
    }


def _member_document(entry: ParetoEntry) -> dict[str, Any]:
    return {
        **speculation_document(entry.speculation),
        "trial": entry.trial_number,
        "is_measured": entry.is_measured,
        "probability": entry.probability,
        "values": _finite(entry.values),
    }


def _finite(value: Any) -> Any:
    """The value with every number that JSON cannot hold replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return value
