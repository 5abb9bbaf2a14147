"""How Alembic runs the migrations: on the connection it is given, inside that connection's transaction."""

from __future__ import annotations

from alembic import context

from tuner_storage.migrate import VERSION_TABLE, is_ours
from tuner_storage.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
    include_name=lambda name, kind, _parents: is_ours(name, kind),
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
