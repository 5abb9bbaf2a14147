"""The schema is made, upgraded and refused as it should, beside Optuna's in the same database."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import optuna
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, create_engine, inspect, text

from tests.support.schemas import EAGLE, FOLDER
from tuner.errors import SchemaError
from tuner.testing.store_records import a_finished_trial, a_study, a_trace
from tuner_storage import open_engine, open_store, optuna_url, schema_status, upgrade
from tuner_storage.migrate import MIGRATIONS, VERSION_TABLE, is_ours
from tuner_storage.session import writing
from tuner_storage.tables import Base

NEXT_REVISION = '''
"""A later schema."""

import sqlalchemy as sa
from alembic import op

revision = "9999"
down_revision = "{head}"
branch_labels = None
depends_on = None


def upgrade():
    recreate = "always" if op.get_bind().dialect.name == "sqlite" else "never"
    with op.batch_alter_table("tuner_study", recreate=recreate) as table:
        table.add_column(sa.Column("note", sa.Text(), server_default="none"))
'''
COLUMN_OF_NEXT = "note"
HEAD = schema_status(create_engine("sqlite://")).head
FIRST_WITH_TRACES = "0002"
FIRST_WITH_LOGS = "0003"


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = open_engine(database_url)
    yield engine
    engine.dispose()


def open_and_fill(url: str) -> None:
    store = open_store(url)
    store.add_study(a_study())
    store.save_trial(a_finished_trial())
    store.close()


def a_later_program(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on the program knows one revision more."""
    migrations = shutil.copytree(MIGRATIONS, folder / "migrations 100%")
    (migrations / "versions" / "9999_later.py").write_text(NEXT_REVISION.format(head=HEAD))
    monkeypatch.setattr("tuner_storage.migrate.MIGRATIONS", migrations)


def use_optuna(url: str, name: str) -> list[str]:
    storage = optuna.storages.RDBStorage(optuna_url(url))
    study = optuna.create_study(storage=storage, study_name=name)
    study.tell(study.ask(), 1.0)
    names = optuna.get_all_study_names(storage)
    storage.engine.dispose()
    return sorted(names)


def test_a_new_database_gets_the_schema(engine: Engine) -> None:
    assert schema_status(engine).is_new
    upgrade(engine)
    assert schema_status(engine).is_current
    assert set(inspect(engine).get_table_names()) == {*Base.metadata.tables, VERSION_TABLE}


def test_an_upgraded_database_has_nothing_to_upgrade(engine: Engine) -> None:
    assert not upgrade(engine).is_current
    assert upgrade(engine).is_current


def test_programs_that_open_a_new_database_at_once_make_it_once(database_url: str) -> None:
    with ThreadPoolExecutor(max_workers=4) as pool:
        for store in list(pool.map(open_store, [database_url] * 4)):
            assert store.studies() == ()
            store.close()


def test_migrations_make_what_the_tables_say(engine: Engine) -> None:
    upgrade(engine)
    with engine.connect() as connection:
        options = {"include_name": lambda name, kind, _parents: is_ours(name, kind), "version_table": VERSION_TABLE}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, Base.metadata) == []


def test_without_create_an_empty_database_is_refused_and_stays_empty(engine: Engine, database_url: str) -> None:
    engine.connect().close()
    with pytest.raises(SchemaError, match="has no tables of the tuner") as caught:
        open_store(database_url, create=False)
    assert "tuner db upgrade" in caught.value.hint
    assert inspect(engine).get_table_names() == []


def test_an_older_schema_is_refused_until_it_is_upgraded(
    engine: Engine, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_and_fill(database_url)
    a_later_program(tmp_path, monkeypatch)
    with pytest.raises(SchemaError, match=f"has the older schema {HEAD}, this program needs 9999") as caught:
        open_store(database_url)
    assert caught.value.hint == "run `tuner db upgrade`"
    assert COLUMN_OF_NEXT not in {column["name"] for column in inspect(engine).get_columns("tuner_study")}
    assert upgrade(engine).revision == HEAD
    assert COLUMN_OF_NEXT in {column["name"] for column in inspect(engine).get_columns("tuner_study")}
    store = open_store(database_url)
    assert store.trials("code-gen") == (a_finished_trial(),)  # though SQLite rebuilt the table that they refer to
    store.close()


def test_a_newer_schema_is_refused(engine: Engine, database_url: str) -> None:
    open_and_fill(database_url)
    with writing(engine) as session:
        session.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))  # noqa: S608
    for refused in (open_store, lambda _url: upgrade(engine)):
        with pytest.raises(SchemaError, match="has the schema 9999, which this program does not know") as caught:
            refused(database_url)
        assert "newer" in caught.value.hint


def test_tables_without_a_revision_are_refused(engine: Engine, database_url: str) -> None:
    open_and_fill(database_url)
    with writing(engine) as session:
        session.execute(text(f"DROP TABLE {VERSION_TABLE}"))
    with pytest.raises(SchemaError, match="tuner tables without a revision"):
        open_store(database_url)


def test_there_is_a_file_of_the_present_schema() -> None:
    assert (FOLDER / f"{HEAD}.sqlite").exists(), "make and commit it: python -m tests.support.schemas"


@pytest.mark.parametrize("released", sorted(FOLDER.glob("*.sqlite")), ids=lambda path: path.stem)
def test_every_old_schema_upgrades(released: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{shutil.copy(released, tmp_path)}"
    engine = open_engine(url)
    assert upgrade(engine).revision == released.stem
    engine.dispose()
    store = open_store(url, create=False)
    assert [(study.name, study.spec["seed"]) for study in store.studies()] == [("code-gen", 7)]
    assert store.study("code-gen").conclusion == {"verdict": "speculate"}
    assert [trial.values["e2e_ms"] for trial in store.trials("code-gen")] == [1000.0, 800.0]
    assert [entry.speculation for entry in store.pareto_front("code-gen")] == [EAGLE]
    done, failed = store.stages("code-gen")
    assert (done.key, failed.error) == ("0123", "e")
    stored = store.stage("code-gen", done.kind, done.key)
    assert stored is not None
    assert stored.result == b'{"wall_s": 1.5}'
    has_traces = released.stem >= FIRST_WITH_TRACES
    assert [entry.probability for entry in store.pareto_front("code-gen")] == [0.75 if has_traces else None]
    assert [(trace.key, trace.depth) for trace in store.traces("cdef")] == ([("89ab", 4)] if has_traces else [])
    has_logs = released.stem >= FIRST_WITH_LOGS
    assert (done.label, done.node) == (("no speculation", "10.0.0.7") if has_logs else ("", None))
    assert [log.text for log in store.logs("code-gen")] == (["loading\n"] if has_logs else [])
    assert store.stop_asked("code-gen") == has_logs
    store.close()


def test_an_upgraded_database_keeps_traces(tmp_path: Path) -> None:
    url = f"sqlite:///{shutil.copy(FOLDER / '0001.sqlite', tmp_path)}"
    engine = open_engine(url)
    upgrade(engine)
    engine.dispose()
    store = open_store(url, create=False)
    store.save_trace(a_trace())
    assert store.trace(a_trace().key) == a_trace()
    store.close()


def test_optuna_comes_into_a_database_of_ours(database_url: str) -> None:
    open_and_fill(database_url)
    assert use_optuna(database_url, "code-gen") == ["code-gen"]
    store = open_store(database_url)
    assert store.trials("code-gen") == (a_finished_trial(),)
    store.close()


def test_we_come_into_a_database_of_optuna(database_url: str, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()  # Optuna makes no folders
    use_optuna(database_url, "first")
    open_and_fill(database_url)
    assert use_optuna(database_url, "second") == ["first", "second"]
    store = open_store(database_url)
    assert store.trials("code-gen") == (a_finished_trial(),)
    store.close()
