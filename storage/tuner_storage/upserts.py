"""One statement each that inserts a row of a study or replaces it, unless what is stored must stay."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Executable, Table, bindparam, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from tuner.store import StageState, TrialState
from tuner_storage.tables import LogRow, StageRow, StudyRow, TrialRow

_STUDY_NAME = "name_of_study"


def write_stage(session: Session, study_name: str, columns: Mapping[str, Any]) -> bool:
    """Whether the stage was written: not where it is done, nor where there is no such study."""
    return _write(session, StageRow, study_name, columns)


def write_trial(session: Session, study_name: str, columns: Mapping[str, Any]) -> bool:
    """Whether the trial was written: not where it is finished, nor where there is no such study."""
    return _write(session, TrialRow, study_name, columns)


def write_log(session: Session, study_name: str, columns: Mapping[str, Any]) -> bool:
    """Whether the log was written: not where there is no such study."""
    return _write(session, LogRow, study_name, columns)


_Rows = type[StageRow] | type[TrialRow] | type[LogRow]

_NAMED_BY: dict[_Rows, tuple[str, ...]] = {
    StageRow: ("study_id", "kind", "key"),
    TrialRow: ("study_id", "number"),
    LogRow: ("study_id", "kind", "key", "attempt"),
}
_MAY_CHANGE: dict[_Rows, ColumnElement[bool]] = {
    StageRow: StageRow.state != StageState.DONE,
    TrialRow: TrialRow.state == TrialState.RUNNING,
}


def _write(session: Session, rows: _Rows, study_name: str, columns: Mapping[str, Any]) -> bool:
    connection = session.connection()
    statement = _statement(connection.dialect.name, rows)
    return connection.execute(statement, {_STUDY_NAME: study_name, **columns}).rowcount > 0


@cache
def _statement(dialect_name: str, rows: _Rows) -> Executable:
    """``INSERT … SELECT … ON CONFLICT DO UPDATE``: the study's row is neither read nor locked for it."""
    table: Any = rows.__table__
    names = [column.name for column in table.columns if column.name not in ("id", "study_id")]
    study: Any = StudyRow.__table__
    values = select(study.c.id, *(bindparam(name, type_=table.c[name].type) for name in names)).where(
        study.c.name == bindparam(_STUDY_NAME)
    )
    insert: Any = (sqlite if dialect_name == "sqlite" else postgresql).insert(table)
    insert = insert.from_select(["study_id", *names], values)
    return _replacing(insert, table, names, _NAMED_BY[rows], _MAY_CHANGE.get(rows))


def _replacing(
    insert: Any, table: Table, names: Collection[str], named_by: Collection[str], may_change: ColumnElement[bool] | None
) -> Executable:
    statement: Executable = insert.on_conflict_do_update(
        index_elements=[table.c[name] for name in named_by],
        set_={name: insert.excluded[name] for name in names if name not in named_by},
        where=may_change,
    ).execution_options(preserve_rowcount=True)
    return statement
