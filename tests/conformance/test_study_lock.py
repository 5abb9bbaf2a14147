"""Two drivers never run one study at once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from tuner.errors import StorageError
from tuner.study import close_optuna_storage, open_optuna_storage
from tuner_storage import SqlTrialStore, lock_holder, making_tables, open_store, optuna_url, study_lock

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def store(database_url: str) -> Iterator[SqlTrialStore]:
    store = open_store(database_url)
    yield store
    store.close()


def hold_lock(url: str, held: Connection) -> None:
    with study_lock(open_store(url), "code-gen"):
        held.send("held")
        signal.pause()


def test_a_second_driver_is_refused_with_the_first_ones_process(store: SqlTrialStore) -> None:
    with (
        study_lock(store, "code-gen"),
        pytest.raises(StorageError) as caught,
        study_lock(store, "code-gen"),
    ):
        raise AssertionError("the lock was given twice")
    assert caught.value.message == (
        f"study 'code-gen' is being run by tuner process {os.getpid()} on {socket.gethostname()}"
    )
    assert "--name" in caught.value.hint


def test_who_runs_a_study_can_be_asked_without_running_it(store: SqlTrialStore, database_url: str) -> None:
    other = open_store(database_url)
    assert lock_holder(other, "code-gen") is None
    with study_lock(store, "code-gen") as lock:
        for _ in range(2):
            assert lock_holder(other, "code-gen") == f"tuner process {os.getpid()} on {socket.gethostname()}"
            lock.renew()
        assert lock_holder(other, "open-prose") is None
    assert lock_holder(other, "code-gen") is None
    other.close()


def test_asking_who_runs_a_study_never_keeps_a_driver_out(store: SqlTrialStore, database_url: str) -> None:
    other, has_ended = open_store(database_url), threading.Event()

    def ask() -> None:
        while not has_ended.is_set():
            lock_holder(other, "code-gen")

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for _ in range(50):
            with study_lock(store, "code-gen"):
                pass
    finally:
        has_ended.set()
        asking.join()
        other.close()


def test_other_studies_are_free(store: SqlTrialStore) -> None:
    with study_lock(store, "code-gen"), study_lock(store, "open-prose"):
        pass


def test_a_study_is_free_again_afterwards(store: SqlTrialStore) -> None:
    for _ in range(3):
        with study_lock(store, "code-gen"):
            store.studies()


def test_a_study_is_free_again_after_an_error(store: SqlTrialStore) -> None:
    with pytest.raises(KeyError), study_lock(store, "code-gen"):
        raise KeyError("x")
    with study_lock(store, "code-gen"):
        pass


@pytest.mark.slow
def test_a_killed_driver_holds_nothing(store: SqlTrialStore, database_url: str) -> None:
    ours, theirs = SPAWN.Pipe()
    driver = SPAWN.Process(target=hold_lock, args=(database_url, theirs))
    driver.start()
    assert ours.recv() == "held"
    with pytest.raises(StorageError, match=f"tuner process {driver.pid} on "), study_lock(store, "code-gen"):
        pass
    driver.kill()
    driver.join()
    assert lock_holder(store, "code-gen") is None
    with study_lock(store, "code-gen"):
        pass


def test_a_store_in_memory_needs_no_lock() -> None:
    store = open_store("sqlite://")
    with study_lock(store, "code-gen") as lock, study_lock(store, "code-gen"):
        lock.renew()
        assert lock_holder(store, "code-gen") is None
        store.close()


def test_a_holder_that_cannot_be_read_is_another_process(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    with study_lock(store, "code-gen"):
        (holder,) = Path(str(store.url.database)).parent.glob("*.holder")
        holder.unlink()
        with pytest.raises(StorageError, match="being run by another process"), study_lock(store, "code-gen"):
            pass
    store.close()


def make_optunas_tables(url: str, together: Barrier) -> None:
    store = open_store(url)
    together.wait(60)
    with making_tables(store):
        close_optuna_storage(open_optuna_storage(optuna_url(url)))
    store.close()


def test_two_programs_make_optunas_tables_in_turn(database_url: str) -> None:
    together = SPAWN.Barrier(2)
    programs = [SPAWN.Process(target=make_optunas_tables, args=(database_url, together)) for _ in range(2)]
    for program in programs:
        program.start()
    for program in programs:
        program.join(60)
    assert [program.exitcode for program in programs] == [0, 0]
