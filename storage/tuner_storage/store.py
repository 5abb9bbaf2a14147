"""``TrialStore`` on a SQL database."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import URL, Engine, Insert, case, delete, func, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session, undefer
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from tuner.errors import NotFoundError
from tuner.patience import Patience
from tuner.records import StageKind
from tuner.store import (
    ParetoEntry,
    StageLog,
    StageRecord,
    StageState,
    StudyRecord,
    TrialRecord,
    check_front,
    check_has_data,
    check_same_study,
    check_stage_change,
    check_study_name,
    check_trial_change,
    no_such_study,
    utc_now,
)
from tuner.traces import TraceRecord
from tuner_storage import rows
from tuner_storage.errors import ConnectionLostError
from tuner_storage.session import reading, writing
from tuner_storage.tables import Base, LogRow, ParetoRow, StageRow, StudyRow, TraceRow, TrialRow
from tuner_storage.upserts import write_log, write_stage, write_trial
from tuner_storage.urls import hidden

T = TypeVar("T")

RECONNECTIONS = Retrying(
    retry=retry_if_exception_type(ConnectionLostError),
    stop=stop_after_attempt(3),
    wait=wait_exponential(multiplier=0.5),
    reraise=True,
)
"""A server that cut us off during a transaction, although it runs; every method may be repeated."""

_NOT_YET = -1
"""Depth of a trace whose row is made only to be locked: below every real one."""


class SqlTrialStore:
    """Keeps studies, stages and trials in SQLite or PostgreSQL. Made by ``open_store``.

    May be used by several threads and by several processes, each with its own store.
    """

    def __init__(self, engine: Engine, patience: Patience | None = None) -> None:
        self._engine = engine
        self._patience = patience or Patience()

    def __repr__(self) -> str:
        return f"SqlTrialStore({hidden(self._engine.url)!r})"

    @property
    def url(self) -> URL:
        """Where the database is; show it with ``hidden(url)`` only."""
        return self._engine.url

    @property
    def engine(self) -> Engine:
        """SQLAlchemy's engine, for the lock and the migrations."""
        return self._engine

    @property
    def patience(self) -> Patience:
        """How long this store waits for its server; for others that use the same database."""
        return self._patience

    def add_study(self, study: StudyRecord) -> StudyRecord:
        """See ``TrialStore.add_study``."""
        check_study_name(study.name)
        return self._write(lambda session: _add_study(session, study))

    def study(self, name: str) -> StudyRecord:
        """See ``TrialStore.study``."""
        return self._read(lambda session: rows.study_record(_study_row(session, name)))

    def studies(self) -> tuple[StudyRecord, ...]:
        """See ``TrialStore.studies``."""
        oldest_first = select(StudyRow).order_by(StudyRow.created_at, StudyRow.id)
        return self._read(lambda session: tuple(map(rows.study_record, session.scalars(oldest_first))))

    def conclude(self, study_name: str, conclusion: Mapping[str, Any], front: Sequence[ParetoEntry]) -> None:
        """See ``TrialStore.conclude``."""
        check_front(front)
        self._write(lambda session: _conclude(session, study_name, conclusion, front))

    def pareto_front(self, study_name: str) -> tuple[ParetoEntry, ...]:
        """See ``TrialStore.pareto_front``."""
        in_order = select(ParetoRow).join(StudyRow).where(StudyRow.name == study_name).order_by(ParetoRow.position)
        return self._read(lambda session: tuple(map(rows.pareto_entry, session.scalars(in_order))))

    def save_stage(self, stage: StageRecord) -> None:
        """See ``TrialStore.save_stage``."""
        self._write(lambda session: _save_stage(session, rows.stored_form(stage)))

    def stage(self, study_name: str, kind: StageKind, key: str) -> StageRecord | None:
        """See ``TrialStore.stage``."""
        return self._read(lambda session: _stage(session, study_name, kind, key))

    def stages(self, study_name: str) -> tuple[StageRecord, ...]:
        """See ``TrialStore.stages``."""
        return self._read(lambda session: _stages(session, study_name))

    def compile_of(self, key: str) -> StageRecord | None:
        """See ``TrialStore.compile_of``."""
        return self._read(lambda session: _compile_of(session, key))

    def save_log(self, log: StageLog) -> None:
        """See ``TrialStore.save_log``."""
        self._write(lambda session: _save_log(session, log))

    def logs(self, study_name: str, label: str | None = None) -> tuple[StageLog, ...]:
        """See ``TrialStore.logs``."""
        return self._read(lambda session: _logs(session, study_name, label))

    def save_trial(self, trial: TrialRecord) -> None:
        """See ``TrialStore.save_trial``."""
        self._write(lambda session: _save_trial(session, rows.stored_form(trial)))

    def trials(self, study_name: str) -> tuple[TrialRecord, ...]:
        """See ``TrialStore.trials``."""
        return self._read(lambda session: _trials(session, study_name))

    def save_trace(self, trace: TraceRecord) -> bool:
        """See ``TrialStore.save_trace``."""
        check_has_data(trace)
        return self._write(lambda session: _save_trace(session, trace))

    def trace(self, key: str) -> TraceRecord | None:
        """See ``TrialStore.trace``."""
        return self._read(lambda session: _trace(session, key))

    def traces(self, path_key: str | None = None) -> tuple[TraceRecord, ...]:
        """See ``TrialStore.traces``."""
        return self._read(lambda session: _traces(session, path_key))

    def ask_to_stop(self, study_name: str) -> None:
        """See ``TrialStore.ask_to_stop``."""
        self._write(lambda session: _ask_to_stop(session, study_name))

    def stop_asked(self, study_name: str) -> bool:
        """See ``TrialStore.stop_asked``."""
        asked_at = select(StudyRow.stop_asked_at).where(StudyRow.name == study_name)
        return self._read(lambda session: session.scalar(asked_at)) is not None

    def withdraw_stop(self, study_name: str) -> None:
        """See ``TrialStore.withdraw_stop``."""
        withdrawn = update(StudyRow).where(StudyRow.name == study_name).values(stop_asked_at=None)
        self._write(lambda session: session.execute(withdrawn))

    def close(self) -> None:
        """Release connections. May be called twice."""
        self._engine.dispose()

    def _read(self, work: Callable[[Session], T]) -> T:
        def once() -> T:
            with reading(self._engine) as session:
                return work(session)

        return self._patience.call(lambda: RECONNECTIONS.copy()(once))

    def _write(self, work: Callable[[Session], T]) -> T:
        def once() -> T:
            with writing(self._engine) as session:
                return work(session)

        return self._patience.call(lambda: RECONNECTIONS.copy()(once))


def _study_row(session: Session, name: str, *, lock: bool = False) -> StudyRow:
    """The study's row; locked, all others who conclude it or ask it to stop wait until the transaction ends."""
    query = select(StudyRow).where(StudyRow.name == name)
    row = session.scalar(query.with_for_update() if lock else query)
    if row is None:
        raise _no_such_study(session, name)
    return row


def _no_such_study(session: Session, name: str) -> NotFoundError:
    return no_such_study(name, tuple(session.scalars(select(StudyRow.name).order_by(StudyRow.id))))


def _add_study(session: Session, study: StudyRecord) -> StudyRecord:
    session.execute(_insert_unless_there(session, StudyRow, "name", _study_columns(study)))
    stored = rows.study_record(_study_row(session, study.name))
    check_same_study(stored, study)
    return stored


def _study_columns(study: StudyRecord) -> dict[str, Any]:
    return {
        "name": study.name,
        "spec": dict(study.spec),
        "provenance": dict(study.provenance),
        "created_at": study.created_at,
        "conclusion": None if study.conclusion is None else dict(study.conclusion),
    }


def _insert_unless_there(session: Session, table: type[Base], unique: str, columns: Mapping[str, Any]) -> Insert:
    dialect = sqlite if session.get_bind().dialect.name == "sqlite" else postgresql
    insert: Any = dialect.insert(table)
    statement: Insert = insert.values(**columns).on_conflict_do_nothing(index_elements=[unique])
    return statement


def _conclude(session: Session, study_name: str, conclusion: Mapping[str, Any], front: Sequence[ParetoEntry]) -> None:
    study = _study_row(session, study_name, lock=True)
    study.conclusion = dict(conclusion)
    session.execute(delete(ParetoRow).where(ParetoRow.study_id == study.id))
    session.add_all(rows.pareto_row(study.id, position, entry) for position, entry in enumerate(front))


def _save_stage(session: Session, stage: StageRecord) -> None:
    if write_stage(session, stage.study_name, rows.stage_columns(stage)):
        return
    stored = _stage(session, stage.study_name, stage.kind, stage.key)
    if stored is None:
        raise _no_such_study(session, stage.study_name)
    check_stage_change(stored, stage)


def _stage(session: Session, study_name: str, kind: StageKind, key: str) -> StageRecord | None:
    row = session.scalar(
        select(StageRow)
        .options(undefer(StageRow.result))
        .join(StudyRow)
        .where(StudyRow.name == study_name, StageRow.kind == kind, StageRow.key == key)
    )
    return None if row is None else rows.stage_record(row, study_name)


def _stages(session: Session, study_name: str) -> tuple[StageRecord, ...]:
    by_start = (
        select(StageRow).join(StudyRow).where(StudyRow.name == study_name).order_by(StageRow.started_at, StageRow.id)
    )
    return tuple(rows.stage_record(row, study_name, with_result=False) for row in session.scalars(by_start))


def _compile_of(session: Session, key: str) -> StageRecord | None:
    done_first = case((StageRow.state == StageState.DONE, 0), else_=1)
    newest_first = func.coalesce(StageRow.ended_at, StageRow.started_at).desc()
    found = session.execute(
        select(StageRow, StudyRow.name)
        .options(undefer(StageRow.result))
        .join(StudyRow)
        .where(StageRow.key == key, StageRow.kind == StageKind.COMPILE, StageRow.state != StageState.RUNNING)
        .order_by(done_first, newest_first)
        .limit(1)
    ).first()
    return None if found is None else rows.stage_record(*found)


def _save_log(session: Session, log: StageLog) -> None:
    if not write_log(session, log.study_name, rows.log_columns(log)):
        raise _no_such_study(session, log.study_name)


def _logs(session: Session, study_name: str, label: str | None) -> tuple[StageLog, ...]:
    oldest_first = (
        select(LogRow)
        .join(StudyRow)
        .where(StudyRow.name == study_name)
        .order_by(LogRow.ended_at, LogRow.kind, LogRow.key, LogRow.attempt)
    )
    wanted = oldest_first if label is None else oldest_first.where(LogRow.label == label)
    return tuple(rows.stage_log(row, study_name) for row in session.scalars(wanted))


def _ask_to_stop(session: Session, study_name: str) -> None:
    study = _study_row(session, study_name, lock=True)
    if study.stop_asked_at is None:
        study.stop_asked_at = utc_now()


def _save_trial(session: Session, trial: TrialRecord) -> None:
    check_trial_change(None, trial)
    if write_trial(session, trial.study_name, rows.trial_columns(trial)):
        return
    by_number = select(TrialRow).join(StudyRow)
    row = session.scalar(by_number.where(StudyRow.name == trial.study_name, TrialRow.number == trial.number))
    if row is None:
        raise _no_such_study(session, trial.study_name)
    check_trial_change(rows.trial_record(row, trial.study_name), trial)


def _trials(session: Session, study_name: str) -> tuple[TrialRecord, ...]:
    by_number = select(TrialRow).join(StudyRow).where(StudyRow.name == study_name).order_by(TrialRow.number)
    return tuple(rows.trial_record(row, study_name) for row in session.scalars(by_number))


def _save_trace(session: Session, trace: TraceRecord) -> bool:
    columns = rows.trace_columns(trace)
    session.execute(_insert_unless_there(session, TraceRow, "key", {**columns, "depth": _NOT_YET}))
    row = session.scalars(select(TraceRow).where(TraceRow.key == trace.key).with_for_update()).one()
    if row.depth >= trace.depth:
        return False
    for name, value in columns.items():
        setattr(row, name, value)
    return True


def _trace(session: Session, key: str) -> TraceRecord | None:
    row = session.scalar(select(TraceRow).where(TraceRow.key == key))
    return None if row is None else rows.trace_record(row)


def _traces(session: Session, path_key: str | None) -> tuple[TraceRecord, ...]:
    oldest_first = select(TraceRow).order_by(TraceRow.created_at, TraceRow.id)
    wanted = oldest_first if path_key is None else oldest_first.where(TraceRow.path_key == path_key)
    return tuple(rows.trace_record(row, with_data=False) for row in session.scalars(wanted))
