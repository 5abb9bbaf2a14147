"""The SQL store: tables, sessions, migrations and locks, on SQLite and PostgreSQL.

Everything that speaks SQL or imports SQLAlchemy is in this package; the rest of the tuner knows
``tuner.store.TrialStore`` and the records it takes.
"""

from tuner_storage.engine import open_engine, open_store
from tuner_storage.lock import StudyLock, lock_holder, making_tables, study_lock
from tuner_storage.migrate import SchemaStatus, require_current_schema, schema_status, upgrade
from tuner_storage.store import SqlTrialStore
from tuner_storage.urls import hidden, optuna_url, parse_storage_url

__all__ = [
    "SchemaStatus",
    "SqlTrialStore",
    "StudyLock",
    "hidden",
    "lock_holder",
    "making_tables",
    "open_engine",
    "open_store",
    "optuna_url",
    "parse_storage_url",
    "require_current_schema",
    "schema_status",
    "study_lock",
    "upgrade",
]
