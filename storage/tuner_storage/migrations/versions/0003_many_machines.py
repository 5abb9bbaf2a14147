"""Searches on many machines: where a stage ran and what it wrote, compiles found by key, and stopping a search."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Stages of before have no label, and no log of them was kept."""
    op.add_column("tuner_study", sa.Column("stop_asked_at", MOMENT, nullable=True))
    op.add_column("tuner_stage", sa.Column("label", sa.Text(), server_default="", nullable=False))
    op.add_column("tuner_stage", sa.Column("node", sa.Text(), nullable=True))
    op.create_index("ix_tuner_stage_key_kind", "tuner_stage", ["key", "kind"])
    op.create_table(
        "tuner_log",
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=True),
        sa.Column("log", sa.LargeBinary(), nullable=False),
        sa.Column("ended_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["study_id"], ["tuner_study.id"], name="fk_tuner_log_study_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("study_id", "kind", "key", "attempt", name="pk_tuner_log"),
    )
