"""What the SQL store promises beyond the contract, on each database."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import event, make_url, text

from tuner.errors import StorageError
from tuner.store import StageKind
from tuner.testing.store_records import (
    a_done_stage,
    a_finished_trial,
    a_log,
    a_stage,
    a_study,
    a_trace,
    a_trial,
    an_entry,
)
from tuner_storage import SqlTrialStore, open_store
from tuner_storage.rows import MAX_ERROR_CHARACTERS, cut
from tuner_storage.session import reading, writing
from tuner_storage.tables import StudyRow

SPAWN = multiprocessing.get_context("spawn")
TABLES_OF_A_STUDY = ("trial", "stage", "log", "pareto")


@pytest.fixture
def store(database_url: str) -> Iterator[SqlTrialStore]:
    store = open_store(database_url)
    store.add_study(a_study())
    yield store
    store.close()


def a_row(name: str) -> StudyRow:
    return StudyRow(name=name, spec={}, provenance={}, created_at=a_study().created_at)


def write_trials(url: str, first: int) -> None:
    store = open_store(url)
    for number in range(first, first + 10):
        store.save_trial(a_trial(number=number))
    store.close()


def write_a_trial_and_die(url: str) -> None:
    store = open_store(url)
    store.save_trial(a_finished_trial())
    os.kill(os.getpid(), signal.SIGKILL)


def cut_all_connections(url: str) -> None:
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


@pytest.mark.slow
def test_processes_that_write_at_once_lose_nothing(store: SqlTrialStore, database_url: str) -> None:
    writers = [SPAWN.Process(target=write_trials, args=(database_url, first)) for first in (0, 10)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert [trial.number for trial in store.trials("code-gen")] == list(range(20))


@pytest.mark.slow
def test_what_was_saved_survives_the_death_of_its_writer(store: SqlTrialStore, database_url: str) -> None:
    writer = SPAWN.Process(target=write_a_trial_and_die, args=(database_url,))
    writer.start()
    writer.join()
    assert writer.exitcode == -signal.SIGKILL
    assert store.trials("code-gen") == (a_finished_trial(),)


def test_a_conclusion_that_cannot_be_stored_changes_nothing(store: SqlTrialStore) -> None:
    store.conclude("code-gen", {"verdict": "first"}, [an_entry()])
    with pytest.raises(StorageError, match=r"not JSON compliant"):
        store.conclude("code-gen", {"verdict": "second"}, [an_entry(), an_entry(values={"e2e_ms": math.nan})])
    assert store.study("code-gen").conclusion == {"verdict": "first"}
    assert store.pareto_front("code-gen") == (an_entry(),)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"metrics": {"tpot_ms": math.nan}}, r"not JSON compliant"),
        ({"metrics": {"tpot_ms": {1}}}, "cannot be stored as JSON"),
        ({"created_at": datetime(2026, 3, 1)}, "no time zone"),  # noqa: DTZ001
    ],
)
def test_what_could_not_be_given_back_is_refused(store: SqlTrialStore, change: dict[str, Any], reason: str) -> None:
    with pytest.raises(StorageError, match=reason):
        store.save_trial(a_finished_trial(**change))
    assert store.trials("code-gen") == ()


def test_a_long_error_is_kept_cut_and_marked(store: SqlTrialStore) -> None:
    log = "x" * 300_000
    store.save_trial(a_finished_trial(error=log))
    store.save_trial(a_finished_trial(error=log))
    store.save_stage(a_stage(error=log))
    (trial,) = store.trials("code-gen")
    stage = store.stage("code-gen", StageKind.MEASURE, a_stage().key)
    assert trial.error == cut(log)
    assert stage is not None
    assert stage.error == cut(log)
    assert "cut: 300000 characters" in cut(log)
    assert len(cut(log)) <= MAX_ERROR_CHARACTERS


def test_long_settings_and_odd_characters_are_kept_whole(store: SqlTrialStore) -> None:
    study = a_study(
        "odd", spec={"config": "k" * 5000, "nul": "a\0b", "quote": "'\";--"}, provenance={"argv": ["\udc80"]}
    )
    assert store.add_study(study) == study
    assert store.study("odd") == study


def test_an_error_with_nul_characters_is_kept(store: SqlTrialStore) -> None:
    store.save_trial(a_finished_trial(error="core\0dump"))
    (trial,) = store.trials("code-gen")
    assert trial.error == "core\N{REPLACEMENT CHARACTER}dump"


def test_results_are_compressed(store: SqlTrialStore) -> None:
    store.save_stage(a_done_stage(result=b'{"at_s": 0.125}' * 10_000))
    with reading(store.engine) as session:
        assert session.scalar(text("SELECT length(result) FROM tuner_stage")) < 2000


def test_listing_traces_reads_no_data(store: SqlTrialStore) -> None:
    store.save_trace(a_trace())
    statements: list[str] = []

    @event.listens_for(store.engine, "before_cursor_execute")
    def note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        statements.append(statement)

    assert len(store.traces()) == 1
    assert any("tuner_trace" in one for one in statements)
    assert not any("data" in one for one in statements)


def test_a_reading_session_cannot_write(store: SqlTrialStore) -> None:
    with pytest.raises(StorageError, match=r"readonly|read-only"), reading(store.engine) as session:
        session.execute(text("UPDATE tuner_study SET name = 'x'"))
    with pytest.raises(StorageError, match=r"readonly|read-only"), reading(store.engine) as session:
        session.add(a_row("x"))
    assert [study.name for study in store.studies()] == ["code-gen"]


def test_a_writing_session_that_raises_keeps_nothing(store: SqlTrialStore) -> None:
    with pytest.raises(StorageError, match=r"UNIQUE|unique"), writing(store.engine) as session:
        session.add_all([a_row("x"), a_row("code-gen")])
    assert [study.name for study in store.studies()] == ["code-gen"]


def test_a_deleted_study_takes_all_of_it_along(store: SqlTrialStore) -> None:
    store.save_trace(a_trace())
    store.save_trial(a_trial())
    store.save_stage(a_stage())
    store.save_log(a_log())
    store.conclude("code-gen", {}, [an_entry()])
    with writing(store.engine) as session:
        session.execute(text("DELETE FROM tuner_study"))
    with reading(store.engine) as session:
        counts = [session.scalar(text(f"SELECT count(*) FROM tuner_{one}")) for one in TABLES_OF_A_STUDY]  # noqa: S608
    assert counts == [0, 0, 0, 0]
    assert store.trace(a_trace().key) == a_trace()  # it serves the next study


@pytest.mark.slow
def test_a_store_shows_itself_without_its_password(postgres_url: str) -> None:
    # The server trusts everyone, so any password will do; this one needs every escape.
    store = open_store(make_url(postgres_url).set(password="p@ss#1%/").render_as_string(hide_password=False))
    assert store.url.password == "p@ss#1%/"
    assert repr(store).startswith("SqlTrialStore('postgresql+psycopg://postgres:***@/test_")
    store.close()


@pytest.mark.slow
def test_a_connection_that_was_cut_while_idle_is_made_again(postgres_url: str) -> None:
    store = open_store(postgres_url)
    store.add_study(a_study())
    cut_all_connections(postgres_url)
    store.save_trial(a_finished_trial())
    assert store.trials("code-gen") == (a_finished_trial(),)
    store.close()


@pytest.mark.slow
def test_a_transaction_whose_connection_is_cut_is_done_again(postgres_url: str) -> None:
    store = open_store(postgres_url)
    store.add_study(a_study())
    cuts: list[str] = []

    @event.listens_for(store.engine, "before_cursor_execute")
    def cut_once(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        if statement.startswith("INSERT INTO tuner_trial") and not cuts:
            cuts.append(statement)
            cut_all_connections(postgres_url)

    store.save_trial(a_finished_trial())
    assert len(cuts) == 1
    assert store.trials("code-gen") == (a_finished_trial(),)
    store.close()


@pytest.mark.slow
def test_a_server_that_keeps_cutting_is_given_up(postgres_url: str) -> None:
    store = open_store(postgres_url)
    store.add_study(a_study())

    @event.listens_for(store.engine, "before_cursor_execute")
    def cut_always(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        if statement.startswith("INSERT INTO tuner_trial"):
            cut_all_connections(postgres_url)

    with pytest.raises(StorageError, match=r"connection"):
        store.save_trial(a_finished_trial())
    assert store.trials("code-gen") == ()
    store.close()


@pytest.mark.slow
def test_a_missing_postgresql_database_is_named_with_the_remedy(postgres_url: str) -> None:
    url = make_url(postgres_url).set(database="nowhere").render_as_string(hide_password=False)
    with pytest.raises(StorageError, match='"nowhere" does not exist') as caught:
        open_store(url)
    assert caught.value.hint


def test_sqlite_is_set_up_to_lose_nothing(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    with reading(store.engine) as session:
        names = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        settings = {name: session.scalar(text(f"PRAGMA {name}")) for name in names}
    assert settings == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 30_000}
    store.close()


def test_a_write_waits_while_another_program_holds_the_file(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    store.add_study(a_study())
    holder = sqlite3.connect(str(store.url.database), isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN EXCLUSIVE")
    timer = threading.Timer(0.5, lambda: holder.execute("ROLLBACK"))
    timer.start()
    store.save_trial(a_finished_trial())
    timer.join()
    holder.close()
    assert store.trials("code-gen") == (a_finished_trial(),)
    store.close()


def test_a_file_that_stays_locked_is_named(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner_storage.engine.BUSY_TIMEOUT_S", 0.1)
    store = open_store(sqlite_url)
    holder = sqlite3.connect(str(store.url.database), isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StorageError, match=r"tuner\.db: database is locked") as caught:
        store.add_study(a_study())
    holder.close()
    assert "another program held the database" in caught.value.hint
    store.close()


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("shopping list\n" * 1000)
    with pytest.raises(StorageError, match="not a database") as caught:
        open_store(f"sqlite:///{tmp_path}/notes.txt")
    assert "--storage" in caught.value.hint


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot make the folder"):
        open_store(f"sqlite:///{tmp_path}/file/tuner.db")


def test_opening_without_create_makes_no_file(sqlite_url: str, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="there is no database at"):
        open_store(sqlite_url, create=False)
    assert list(tmp_path.iterdir()) == []


def test_a_store_stays_where_it_was_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("sqlite:///tuner.db")
    store.add_study(a_study())
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    store.close()
    assert store.study("code-gen") == replace(a_study())
    store.close()


def test_a_network_file_system_is_warned_about(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tuner_storage.engine._file_system", lambda _folder: "nfs4")
    open_store(sqlite_url).close()
    assert "network file system (nfs4)" in caplog.text
