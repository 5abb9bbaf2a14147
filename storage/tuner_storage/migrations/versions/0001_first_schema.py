"""The first schema: studies, stages, trials, Pareto fronts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# Plain types, not the package's own: those may change, and this file may not.
MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Forward only: an older program refuses a newer database."""
    _create_study()
    _create_stage()
    _create_trial()
    _create_pareto()


def _create_study() -> None:
    op.create_table(
        "tuner_study",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(512), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("provenance", sa.JSON(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("conclusion", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_tuner_study"),
        sa.UniqueConstraint("name", name="uq_tuner_study_name"),
    )


def _create_stage() -> None:
    op.create_table(
        "tuner_stage",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("started_at", MOMENT, nullable=False),
        sa.Column("ended_at", MOMENT, nullable=True),
        sa.Column("result", sa.LargeBinary(), nullable=True),
        sa.Column("error_type", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        _belongs_to_study("fk_tuner_stage_study_id"),
        sa.PrimaryKeyConstraint("id", name="pk_tuner_stage"),
        sa.UniqueConstraint("study_id", "kind", "key", name="uq_tuner_stage_study_id_kind_key"),
    )


def _create_trial() -> None:
    op.create_table(
        "tuner_trial",
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("speculation", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("objective_values", sa.JSON(), nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("predicted", sa.JSON(), nullable=False),
        sa.Column("duplicate_of", sa.Integer(), nullable=True),
        sa.Column("error_type", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("ended_at", MOMENT, nullable=True),
        _belongs_to_study("fk_tuner_trial_study_id"),
        sa.PrimaryKeyConstraint("study_id", "number", name="pk_tuner_trial"),
    )


def _create_pareto() -> None:
    op.create_table(
        "tuner_pareto",
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("speculation", sa.JSON(), nullable=False),
        sa.Column("objective_values", sa.JSON(), nullable=False),
        sa.Column("trial_number", sa.Integer(), nullable=True),
        sa.Column("is_measured", sa.Boolean(), nullable=False),
        _belongs_to_study("fk_tuner_pareto_study_id"),
        sa.PrimaryKeyConstraint("study_id", "position", name="pk_tuner_pareto"),
    )


def _belongs_to_study(name: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["study_id"], ["tuner_study.id"], name=name, ondelete="CASCADE")
