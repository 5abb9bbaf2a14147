from __future__ import annotations

from pathlib import Path

from tuner_storage.schema import RENEW, schema_sql

COMMITTED = Path(__file__).parents[2] / "storage" / "schema.sql"


def test_the_committed_schema_is_that_of_the_tables() -> None:
    assert COMMITTED.read_text() == schema_sql(), f"the tables changed; renew the dump: {RENEW}"


def test_the_schema_is_written_for_each_database() -> None:
    assert "-- sqlite\n" in schema_sql()
    assert "-- postgresql\n" in schema_sql()
    assert schema_sql().count("CREATE TABLE tuner_trial") == 2
