"""Acceptance traces as artifacts of their own, and the probability of being on the front."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Traces of before stay where they are, in the results of their stages."""
    op.create_table(
        "tuner_trace",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("path_key", sa.Text(), nullable=False),
        sa.Column("header", sa.JSON(), nullable=False),
        sa.Column("depth", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_tuner_trace"),
        sa.UniqueConstraint("key", name="uq_tuner_trace_key"),
    )
    op.create_index("ix_tuner_trace_path_key", "tuner_trace", ["path_key"])
    op.add_column("tuner_pareto", sa.Column("probability", sa.Double(), nullable=True))
