"""Records for the tests of stores, with something in every field."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tuner.records import StageKind
from tuner.speculation import Method, Speculation
from tuner.store import ParetoEntry, StageLog, StageRecord, StageState, StudyRecord, TrialRecord, TrialState
from tuner.traces import TraceRecord

NOON = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
EAGLE = Speculation(method=Method.EAGLE, draft_name="eagle", draft_model="/models/eagle", drafted_tokens=3)
NGRAM = Speculation(method=Method.NGRAM, draft_name="ngram", drafted_tokens=5, prompt_lookup_max=4, prompt_lookup_min=2)


def a_study(name: str = "code-gen", **changes: Any) -> StudyRecord:
    """A study with nested settings, text beyond ASCII, and every kind of JSON value."""
    study = StudyRecord(
        name=name,
        spec={
            "target": "SmolLM2",
            "workload": {"name": "code-gen", "classes": ["python", "größe \N{GRINNING FACE}"], "prompts": None},
            "seed": 7,
            "margin": 0.05,
            "is_quick": False,
        },
        provenance={"packages": {"optuna": "5.0.0"}, "argv": ["tuner", "search"]},
        created_at=NOON,
    )
    return replace(study, **changes)


def a_stage(study_name: str = "code-gen", **changes: Any) -> StageRecord:
    """A stage that runs."""
    stage = StageRecord(
        study_name=study_name,
        kind=StageKind.MEASURE,
        key="0123456789abcdef",
        label="größe k=5",
        node="10.0.0.7",
        started_at=NOON,
    )
    return replace(stage, **changes)


def a_done_stage(study_name: str = "code-gen", **changes: Any) -> StageRecord:
    """A stage that is done, with a result."""
    done = a_stage(
        study_name, state=StageState.DONE, ended_at=NOON + timedelta(seconds=1.5), result=b'{"wall_s": 1.5}\x00\xff'
    )
    return replace(done, **changes)


def a_log(study_name: str = "code-gen", **changes: Any) -> StageLog:
    """What the first attempt of ``a_done_stage`` wrote."""
    log = StageLog(
        study_name=study_name,
        kind=StageKind.MEASURE,
        key="0123456789abcdef",
        attempt=0,
        label="größe k=5",
        node="10.0.0.7",
        text="loading größe\n\x1b[31mslow\x1b[0m \N{GRINNING FACE}\n",
        ended_at=NOON + timedelta(seconds=1.5),
    )
    return replace(log, **changes)


def a_trial(study_name: str = "code-gen", number: int = 1, **changes: Any) -> TrialRecord:
    """A trial that runs."""
    trial = TrialRecord(study_name=study_name, number=number, speculation=EAGLE, created_at=NOON)
    return replace(trial, **changes)


def a_finished_trial(study_name: str = "code-gen", number: int = 1, **changes: Any) -> TrialRecord:
    """A trial with every field filled."""
    trial = a_trial(
        study_name,
        number,
        state=TrialState.COMPLETE,
        values={"e2e_ms": 812.25, "waste": 0.1 + 0.2},
        metrics={"ttft_ms": 20.5, "tpot_ms": None},
        predicted={"speedup": 1.4},
        duplicate_of=0,
        ended_at=NOON + timedelta(minutes=3),
    )
    return replace(trial, **changes)


def an_entry(**changes: Any) -> ParetoEntry:
    """A measured member of a front."""
    return replace(
        ParetoEntry(speculation=EAGLE, values={"e2e_ms": 812.25}, trial_number=1, is_measured=True), **changes
    )


def a_trace(**changes: Any) -> TraceRecord:
    """An acceptance trace; a store does not look into its data."""
    trace = TraceRecord(
        key="0123456789abcdef",
        path_key="fedcba9876543210",
        header={"key": {"target": "ab", "draft": None}, "prompts": 12, "provenance": {"study": "größe"}},
        depth=4,
        data=b"PK\x03\x04\x00\xff",
        created_at=NOON,
    )
    return replace(trace, **changes)
