"""Between rows and records; and the one form in which a record is stored and compared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from tuner.store import ParetoEntry, StageLog, StageRecord, StudyRecord, TrialRecord, storable_text
from tuner.traces import TraceRecord
from tuner_storage.tables import LogRow, ParetoRow, StageRow, StudyRow, TraceRow, TrialRow

MAX_ERROR_CHARACTERS = 65_536
"""Errors carry the log of what failed; its end says more than its middle, and 64 kB is more than anyone reads."""

RecordT = TypeVar("RecordT", StageRecord, TrialRecord)


def stored_form(record: RecordT) -> RecordT:
    """The record as it can be given back: its error cut to ``MAX_ERROR_CHARACTERS``, in characters of Unicode."""
    return record if record.error is None else replace(record, error=cut(record.error))


def cut(text: str) -> str:
    """The text as every database takes it, and its middle left out, with a mark, when it is too long."""
    text = storable_text(text)
    if len(text) <= MAX_ERROR_CHARACTERS:
        return text
    mark = f"\n[… cut: {len(text)} characters, {MAX_ERROR_CHARACTERS} kept …]\n"
    half = (MAX_ERROR_CHARACTERS - len(mark)) // 2
    return text[:half] + mark + text[-half:]


def study_record(row: StudyRow) -> StudyRecord:
    """The study of a row."""
    return StudyRecord(
        name=row.name,
        spec=row.spec,
        provenance=row.provenance,
        created_at=row.created_at,
        conclusion=row.conclusion,
    )


def stage_record(row: StageRow, study_name: str, *, with_result: bool = True) -> StageRecord:
    """The stage of a row; without its result nothing of that size is read."""
    return StageRecord(
        study_name=study_name,
        kind=row.kind,
        key=row.key,
        label=row.label,
        attempt=row.attempt,
        node=row.node,
        state=row.state,
        started_at=row.started_at,
        ended_at=row.ended_at,
        result=row.result if with_result else None,
        error_type=row.error_type,
        error=row.error,
    )


def stage_columns(stage: StageRecord) -> dict[str, Any]:
    """The stage's values by column, but for its study."""
    return {
        "kind": stage.kind,
        "key": stage.key,
        "label": stage.label,
        "attempt": stage.attempt,
        "node": stage.node,
        "state": stage.state,
        "started_at": stage.started_at,
        "ended_at": stage.ended_at,
        "result": stage.result,
        "error_type": stage.error_type,
        "error": stage.error,
    }


def stage_log(row: LogRow, study_name: str) -> StageLog:
    """The log of a row."""
    return StageLog(
        study_name=study_name,
        kind=row.kind,
        key=row.key,
        attempt=row.attempt,
        label=row.label,
        node=row.node,
        text=row.text.decode(),
        ended_at=row.ended_at,
    )


def log_columns(log: StageLog) -> dict[str, Any]:
    """The log's values by column, but for its study."""
    return {
        "kind": log.kind,
        "key": log.key,
        "attempt": log.attempt,
        "label": log.label,
        "node": log.node,
        "log": storable_text(log.text).encode(),
        "ended_at": log.ended_at,
    }


def trial_record(row: TrialRow, study_name: str) -> TrialRecord:
    """The trial of a row."""
    return TrialRecord(
        study_name=study_name,
        number=row.number,
        speculation=row.speculation,
        state=row.state,
        values=row.values,
        metrics=row.metrics,
        predicted=row.predicted,
        duplicate_of=row.duplicate_of,
        error_type=row.error_type,
        error=row.error,
        created_at=row.created_at,
        ended_at=row.ended_at,
    )


def trial_columns(trial: TrialRecord) -> dict[str, Any]:
    """The trial's values by column, but for its study."""
    return {
        "number": trial.number,
        "speculation": trial.speculation,
        "state": trial.state,
        "objective_values": dict(trial.values),
        "metrics": dict(trial.metrics),
        "predicted": dict(trial.predicted),
        "duplicate_of": trial.duplicate_of,
        "error_type": trial.error_type,
        "error": trial.error,
        "created_at": trial.created_at,
        "ended_at": trial.ended_at,
    }


def pareto_entry(row: ParetoRow) -> ParetoEntry:
    """The member of the front of a row."""
    return ParetoEntry(
        speculation=row.speculation,
        values=row.values,
        trial_number=row.trial_number,
        is_measured=row.is_measured,
        probability=row.probability,
    )


def pareto_row(study_id: int, position: int, entry: ParetoEntry) -> ParetoRow:
    """The row of a member of the front."""
    return ParetoRow(
        study_id=study_id,
        position=position,
        speculation=entry.speculation,
        values=dict(entry.values),
        trial_number=entry.trial_number,
        is_measured=entry.is_measured,
        probability=entry.probability,
    )


def trace_record(row: TraceRow, *, with_data: bool = True) -> TraceRecord:
    """The trace of a row; without its data nothing of that size is read."""
    return TraceRecord(
        key=row.key,
        path_key=row.path_key,
        header=row.header,
        depth=row.depth,
        data=row.data if with_data else None,
        created_at=row.created_at,
    )


def trace_columns(trace: TraceRecord) -> dict[str, Any]:
    """The trace's values by column."""
    return {
        "key": trace.key,
        "path_key": trace.path_key,
        "header": dict(trace.header),
        "depth": trace.depth,
        "data": trace.data,
        "created_at": trace.created_at,
    }
