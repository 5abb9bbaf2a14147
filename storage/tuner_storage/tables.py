"""The tables. All are named ``tuner_*``: Optuna owns ``studies``, ``trials``, ``alembic_version`` in the same database.

    tuner_study ─┬─ tuner_stage    one row per (study, kind, key); its result deflated
                 ├─ tuner_log      one row per attempt of a stage; its text deflated
                 ├─ tuner_trial    one row per (study, number)
                 └─ tuner_pareto   the front as last concluded, one row per position
    tuner_trace                    one row per acceptance trace; belongs to no study

A change here needs a migration in ``migrations/versions`` and a new dump (``python -m tuner_storage.schema``).
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from sqlalchemy import Double, Enum, ForeignKey, Index, LargeBinary, MetaData, String, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from tuner.records import StageKind
from tuner.speculation import Speculation
from tuner.store import MAX_NAME_LENGTH, StageState, TrialState
from tuner_storage.columns import Compressed, SpeculationColumn, StrictJson, UtcDateTime

_NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


def _word(kind: type[StrEnum]) -> Enum:
    """A closed set of words, kept as text so that a new word needs no migration."""
    return Enum(kind, native_enum=False, length=16, values_callable=lambda members: [one.value for one in members])


class Base(DeclarativeBase):
    """What the tables share: how Python types are stored."""

    metadata = MetaData(naming_convention=_NAMES)
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        dict[str, Any]: StrictJson,
        dict[str, float]: StrictJson,
        dict[str, float | None]: StrictJson,
        bytes: Compressed,
        datetime: UtcDateTime,
        Speculation: SpeculationColumn,
        StageKind: _word(StageKind),
        StageState: _word(StageState),
        TrialState: _word(TrialState),
        str: Text,
    }


Name = Annotated[str, mapped_column(String(MAX_NAME_LENGTH))]
StudyId = Annotated[int, mapped_column(ForeignKey("tuner_study.id", ondelete="CASCADE"))]


class StudyRow(Base):
    """One search: what was asked for, and its verdict."""

    __tablename__ = "tuner_study"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[Name] = mapped_column(unique=True)
    spec: Mapped[dict[str, Any]]
    provenance: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
    conclusion: Mapped[dict[str, Any] | None]
    stop_asked_at: Mapped[datetime | None]


class StageRow(Base):
    """One piece of work and, when it is done, its result."""

    __tablename__ = "tuner_stage"
    __table_args__ = (
        UniqueConstraint("study_id", "kind", "key"),
        Index(None, "key", "kind"),  # one configuration is compiled once for all studies
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[StudyId]
    kind: Mapped[StageKind]
    key: Mapped[str]
    label: Mapped[str] = mapped_column(server_default="")
    attempt: Mapped[int]
    node: Mapped[str | None]
    state: Mapped[StageState]
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    result: Mapped[bytes | None] = mapped_column(deferred=True)
    error_type: Mapped[str | None]
    error: Mapped[str | None]


class LogRow(Base):
    """What one attempt of a stage wrote."""

    __tablename__ = "tuner_log"

    study_id: Mapped[StudyId] = mapped_column(primary_key=True)
    kind: Mapped[StageKind] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    label: Mapped[str]
    node: Mapped[str | None]
    text: Mapped[bytes] = mapped_column("log")  # TEXT is a word of SQL
    ended_at: Mapped[datetime]


class TrialRow(Base):
    """One configuration that was asked for, and what became of it."""

    __tablename__ = "tuner_trial"

    study_id: Mapped[StudyId] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    speculation: Mapped[Speculation]
    state: Mapped[TrialState]
    values: Mapped[dict[str, float]] = mapped_column("objective_values")  # VALUES is a word of SQL
    metrics: Mapped[dict[str, float | None]]
    predicted: Mapped[dict[str, float]]
    duplicate_of: Mapped[int | None]
    error_type: Mapped[str | None]
    error: Mapped[str | None]
    created_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]


class ParetoRow(Base):
    """A member of a study's Pareto front."""

    __tablename__ = "tuner_pareto"

    study_id: Mapped[StudyId] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    speculation: Mapped[Speculation]
    values: Mapped[dict[str, float]] = mapped_column("objective_values")  # VALUES is a word of SQL
    trial_number: Mapped[int | None]
    is_measured: Mapped[bool]
    probability: Mapped[float | None] = mapped_column(Double)


class TraceRow(Base):
    """An acceptance trace, made once and used by every study that it fits."""

    __tablename__ = "tuner_trace"

    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(unique=True)
    path_key: Mapped[str] = mapped_column(index=True)
    header: Mapped[dict[str, Any]]
    depth: Mapped[int]
    data: Mapped[bytes] = mapped_column(LargeBinary, deferred=True)  # an npz, compressed by itself
    created_at: Mapped[datetime]
