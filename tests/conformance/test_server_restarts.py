"""A PostgreSQL that is restarted, or killed and started again, costs a search some seconds and nothing else."""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import optuna
import psycopg
import pytest
from optuna.trial import TrialState as OptunaState
from sqlalchemy import make_url

from tests.support.bench import SPACE
from tests.support.postgres import PostgresServer
from tuner.errors import StorageError, StorageUnreachableError
from tuner.objective import DEFAULT_OBJECTIVES
from tuner.store import StageState, TrialRecord, TrialState, TrialStore
from tuner.study import TrialLedger, close_optuna_storage, open_optuna_storage
from tuner.testing.store_records import a_done_stage, a_finished_trial, a_log, a_stage, a_study
from tuner_storage import lock_holder, open_store, optuna_url, study_lock

pytestmark = pytest.mark.slow

AWAY_S = 1.0


@pytest.fixture
def heard() -> list[str]:
    return []


@pytest.fixture(params=[False, True], ids=["restarted", "killed"])
def is_killed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def restarts(postgres: PostgresServer, is_killed: bool) -> Iterator[threading.Thread]:
    """Restarts the server in the middle of what the test does."""

    def restart() -> None:
        time.sleep(0.7)
        postgres.restart(kill=is_killed, away_s=AWAY_S)

    thread = threading.Thread(target=restart)
    yield thread
    if thread.ident is not None:
        thread.join()


def ended(trial: TrialRecord) -> TrialRecord:
    values = {objective.name: 1.0 + trial.number for objective in DEFAULT_OBJECTIVES}
    return a_finished_trial(
        number=trial.number,
        speculation=trial.speculation,
        values=values,
        duplicate_of=None,
        created_at=trial.created_at,
    )


def test_a_search_loses_nothing_and_does_nothing_twice(
    postgres_url: str, restarts: threading.Thread, heard: list[str]
) -> None:
    with closing(open_store(postgres_url, patience_s=60, on_wait=heard.append)) as store:
        store.add_study(a_study())
        storage = open_optuna_storage(optuna_url(postgres_url), store.patience)
        ledger = TrialLedger.open(storage, "code-gen", SPACE, DEFAULT_OBJECTIVES, store.patience)
        told: list[TrialRecord] = []
        restarts.start()
        while restarts.is_alive() or len(heard) < 2:  # some trials before, some after
            asked = ledger.ask()
            trial = TrialRecord(study_name="code-gen", number=asked.number, speculation=asked.speculation)
            store.save_trial(trial)
            stage = a_stage(key=str(asked.number))
            store.save_stage(stage)
            store.save_stage(a_done_stage(key=stage.key))
            store.save_log(a_log(key=stage.key))
            told.append(ended(trial))
            store.save_trial(told[-1])
            ledger.tell(told[-1])
        assert store.trials("code-gen") == tuple(told)
        assert [stage.state for stage in store.stages("code-gen")] == [StageState.DONE] * len(told)
        assert len(store.logs("code-gen")) == len(told)
    found = optuna.load_study(study_name="code-gen", storage=storage).get_trials()
    close_optuna_storage(storage)
    assert [trial.state for trial in found if trial.number in {one.number for one in told}] == [
        OptunaState.COMPLETE
    ] * len(told)
    assert len(found) - len(told) <= 1  # Optuna makes a trial again whose commit was cut off: the first one is no one's
    assert [text.partition(" since ")[0] for text in heard[:1]] == ["the database cannot be reached"]
    assert [text.partition(" after ")[0] for text in heard[1:]] == ["the database is back"]


def test_the_lock_is_taken_again(postgres: PostgresServer, postgres_url: str, is_killed: bool) -> None:
    with closing(open_store(postgres_url, patience_s=60, on_wait=print)) as store:
        with study_lock(store, "code-gen") as lock:
            lock.renew()
            postgres.restart(kill=is_killed)
            assert other_connection_sees_holder(postgres_url) is None
            lock.renew()
            assert lock_holder(store, "code-gen") == f"tuner process {os.getpid()} on {socket.gethostname()}"
            with pytest.raises(StorageError, match="is being run by tuner process"), study_lock(store, "code-gen"):
                pass
            lock.renew()
        assert lock_holder(store, "code-gen") is None


def other_connection_sees_holder(url: str) -> str | None:
    with closing(open_store(url)) as store:
        return lock_holder(store, "code-gen")


def test_a_lock_that_another_driver_took_meanwhile_is_lost(postgres: PostgresServer, postgres_url: str) -> None:
    with (
        closing(open_store(postgres_url, patience_s=60, on_wait=print)) as store,
        closing(open_store(postgres_url, patience_s=60, on_wait=print)) as other,
        study_lock(store, "code-gen") as lock,
    ):
        postgres.restart()
        with study_lock(other, "code-gen"), pytest.raises(StorageError, match="is being run by tuner process"):
            lock.renew()
        lock.renew()


def test_a_lock_whose_network_was_cut_is_taken_from_its_own_former_session(postgres_url: str) -> None:
    with closing(open_store(postgres_url)) as store, study_lock(store, "code-gen") as lock:
        session = lock._connection.connection.dbapi_connection.pgconn.socket  # type: ignore[attr-defined]
        former = os.dup(session)  # the server still has its session, and we have lost it
        here, there = socket.socketpair()
        there.close()
        os.dup2(here.fileno(), session)
        here.close()
        lock.renew()
        assert lock_holder(store, "code-gen") is not None
        os.close(former)


def read_for_ever(store: TrialStore) -> None:
    for _ in itertools.count():
        store.trials("code-gen")


def test_without_patience_an_outage_is_an_error_and_the_store_works_again_after_it(
    postgres: PostgresServer, postgres_url: str
) -> None:
    with closing(open_store(postgres_url)) as store:
        store.add_study(a_study())
        store.save_trial(a_finished_trial())
        restart = threading.Thread(target=postgres.restart, kwargs={"away_s": 4.0})
        restart.start()
        with pytest.raises(StorageUnreachableError) as caught:
            read_for_ever(store)
        restart.join()
        assert "check host" in caught.value.hint
        assert store.trials("code-gen") == (a_finished_trial(),)


def test_what_is_not_about_reaching_the_server_is_said_at_once(postgres_url: str) -> None:
    with closing(open_store(postgres_url, patience_s=60)) as store:
        store.add_study(a_study())
        plain = make_url(postgres_url).set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(plain, autocommit=True) as connection:
            connection.execute("ALTER TABLE tuner_trial RENAME TO elsewhere")
        began_s = time.monotonic()
        with pytest.raises(StorageError, match="tuner_trial") as caught:
            store.save_trial(a_finished_trial(state=TrialState.LOST))
        assert not isinstance(caught.value, StorageUnreachableError)
        assert time.monotonic() - began_s < 5


@pytest.mark.parametrize("host", ["127.0.0.1:1", "no-such-host.invalid"])
def test_an_address_that_nobody_answers_is_said_at_once_even_with_patience(host: str) -> None:
    began_s = time.monotonic()
    with pytest.raises(StorageUnreachableError) as caught:
        open_store(f"postgresql://user:secret@{host}/studies", patience_s=600)
    assert time.monotonic() - began_s < 15
    assert "secret" not in str(caught.value)
    assert "that the server runs" in caught.value.hint
