"""The commands about searches that run, or ran, somewhere else."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import RunCli, run_main
from tuner.records import StageKind
from tuner.store import StageState, TrialState
from tuner.testing.store_records import EAGLE, NGRAM, NOON, a_done_stage, a_log, a_stage, a_study, a_trial
from tuner_storage import SqlTrialStore, open_store, study_lock

US = f"tuner process {os.getpid()} on {socket.gethostname()}"
ENDED = {"decision": {"verdict": "recommend", "sentence": "Use eagle k=3."}}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'studies.sqlite'}"


@pytest.fixture
def tuner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str) -> RunCli:
    monkeypatch.delenv("TUNER_DEBUG", raising=False)
    monkeypatch.setenv("TUNER_STORAGE", url)
    return lambda *arguments: run_main(monkeypatch, capsys, *arguments)


@pytest.fixture
def store(url: str) -> Iterator[SqlTrialStore]:
    store = open_store(url)
    yield store
    store.close()


@contextmanager
def running(store: SqlTrialStore, name: str, stops_after: Callable[[], bool]) -> Iterator[None]:
    """A driver of the study that ends as soon as that says so."""
    holds = threading.Event()

    def drive() -> None:
        with study_lock(store, name):
            holds.set()
            while not stops_after():
                time.sleep(0.02)

    driver = threading.Thread(target=drive)
    driver.start()
    holds.wait()
    yield
    driver.join()


def listed(tuner: RunCli) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(tuner("studies", "--json").stdout)["studies"]
    return found


# ── studies ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_studies_say_who_runs_them_or_how_they_ended(tuner: RunCli, store: SqlTrialStore) -> None:
    for hour, name in enumerate(("ended", "interrupted", "running")):
        store.add_study(a_study(name, created_at=NOON + timedelta(hours=hour)))
    store.conclude("ended", ENDED, ())
    for number, state in enumerate((TrialState.COMPLETE, TrialState.INFEASIBLE, TrialState.RUNNING)):
        store.save_trial(a_trial("running", number, state=state))
    with study_lock(store, "running"):
        found = listed(tuner)
        table = tuner("studies").stdout
    assert [(one["study"], one["state"], one["run_by"], one["trials_done"]) for one in found] == [
        ("ended", "ended", None, 0),
        ("interrupted", "interrupted", None, 0),
        ("running", "running", US, 2),
    ]
    assert found[0]["sentence"] == "Use eagle k=3."
    lines = table.splitlines()
    assert "Use eagle k=3." in lines[1]
    assert "goes on with it" in lines[2]
    assert f"run by {US}" in lines[3]


def test_a_running_study_that_is_asked_to_stop_is_listed_so(tuner: RunCli, store: SqlTrialStore) -> None:
    store.add_study(a_study())
    store.ask_to_stop("code-gen")
    assert [one["stop_asked"] for one in listed(tuner)] == [False]
    with study_lock(store, "code-gen"):
        assert [one["stop_asked"] for one in listed(tuner)] == [True]
        assert "asked to stop" in tuner("studies").stdout


def test_listing_leaves_no_lock_files(tuner: RunCli, store: SqlTrialStore, tmp_path: Path) -> None:
    store.add_study(a_study())
    listed(tuner)
    assert list(tmp_path.glob("*.lock")) == []


# ── cancel ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_running_search_is_asked_to_stop_and_waited_for(tuner: RunCli, store: SqlTrialStore) -> None:
    store.add_study(a_study())
    with running(store, "code-gen", lambda: store.stop_asked("code-gen")):
        said = tuner("cancel", "code-gen")
    assert said.exit_code == 0
    assert (
        said.stdout
        == "study 'code-gen' has stopped; what is finished is kept, and the same command goes on from there\n"
    )
    assert said.stderr == f"asked {US} to stop; waiting up to 60 s\n"
    assert not store.stop_asked("code-gen")  # the next search of that name may run


def test_a_search_that_does_not_stop_in_time_is_an_error(tuner: RunCli, store: SqlTrialStore) -> None:
    store.add_study(a_study())
    with study_lock(store, "code-gen"):
        said = tuner("cancel", "code-gen", "--wait", "0.3", "--json")
    assert (said.exit_code, said.stdout) == (1, "")
    error = json.loads(said.stderr.splitlines()[-1])["error"]
    assert error["message"] == f"study 'code-gen' is still being run by {US}, 0.3 s after it was asked to stop"
    assert store.stop_asked("code-gen")


def test_without_waiting_a_search_is_only_asked(tuner: RunCli, store: SqlTrialStore) -> None:
    store.add_study(a_study())
    with study_lock(store, "code-gen"):
        said = tuner("cancel", "code-gen", "--wait", "0")
    assert (said.exit_code, said.stdout) == (0, f"asked {US} to stop study 'code-gen'\n")
    assert store.stop_asked("code-gen")


def test_where_nobody_runs_a_study_nothing_is_asked(tuner: RunCli, store: SqlTrialStore) -> None:
    store.add_study(a_study())
    assert tuner("cancel", "code-gen").stdout == "nobody runs study 'code-gen'\n"
    assert json.loads(tuner("cancel", "code-gen", "--json").stdout) == {
        "study": "code-gen",
        "run_by": None,
        "has_stopped": True,
        "stages_ended": None,
    }
    assert not store.stop_asked("code-gen")


def test_stages_that_were_left_on_a_standing_cluster_are_ended(
    tuner: RunCli, store: SqlTrialStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add_study(a_study(provenance={"ray_address": "10.0.0.1:6379"}))
    ended: list[tuple[str, str]] = []

    def end_stages(address: str, study_name: str) -> int:
        ended.append((address, study_name))
        return 2

    monkeypatch.setattr("tuner.api.end_stages", end_stages)
    said = tuner("cancel", "code-gen")
    assert ended == [("10.0.0.1:6379", "code-gen")]
    assert said.stdout == (
        "nobody runs study 'code-gen'; stages that it had left on the Ray cluster 10.0.0.1:6379"
        " and that were ended: 2\n"
    )


def test_an_unknown_study_cannot_be_cancelled(tuner: RunCli, store: SqlTrialStore) -> None:
    store.add_study(a_study())
    said = tuner("cancel", "code-gem")
    assert (said.exit_code, said.stdout) == (2, "")
    assert "'code-gen'" in said.stderr


# ── logs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def logged(store: SqlTrialStore) -> SqlTrialStore:
    """Trial 1 compiled at the second attempt and was measured; trial 2 waits; and a trace belongs to no trial."""
    store.add_study(a_study())
    for number, speculation in ((1, EAGLE), (2, NGRAM)):
        store.save_trial(a_trial(number=number, speculation=speculation))
    facts = {"kind": StageKind.COMPILE, "key": "aa", "label": EAGLE.label}
    store.save_log(a_log(attempt=0, text="node lost\n", ended_at=NOON, node=None, **facts))
    ended = NOON + timedelta(seconds=90)
    store.save_stage(a_done_stage(attempt=1, started_at=NOON, ended_at=ended, **facts))
    store.save_log(a_log(attempt=1, text="one\ntwo\nthree", ended_at=ended, **facts))
    measured = {"kind": StageKind.MEASURE, "key": "bb", "label": EAGLE.label}
    failure = {"state": StageState.FAILED, "error_type": "EngineCrashedError", "error": "killed"}
    store.save_stage(a_stage(started_at=ended, **measured, **failure))
    store.save_log(a_log(text="measuring\n", ended_at=ended + timedelta(seconds=5), **measured))
    trace = {"kind": StageKind.TRACE, "key": "cc", "label": "eagle k=8"}
    store.save_log(a_log(text="tracing\n", ended_at=NOON + timedelta(hours=1), **trace))
    return store


def test_the_logs_of_a_trial_are_shown_with_every_attempt(tuner: RunCli, logged: SqlTrialStore) -> None:
    assert tuner("logs", "1").stdout == (
        "── compile of eagle k=3, attempt 0, ended 2026-03-01 12:00:00 UTC ──\nnode lost\n\n"
        "── compile of eagle k=3, attempt 1, on 10.0.0.7, ended 2026-03-01 12:01:30 UTC, after 90.0 s, done ──\n"
        "one\ntwo\nthree\n\n"
        "── measure of eagle k=3, attempt 0, on 10.0.0.7, ended 2026-03-01 12:01:35 UTC, after 5.0 s,"
        " failed with EngineCrashedError ──\nmeasuring\n\n"
    )


def test_only_the_end_of_each_log_can_be_shown(tuner: RunCli, logged: SqlTrialStore) -> None:
    lines = tuner("logs", "1", "--stage", "compile", "--tail", "1").stdout.splitlines()
    assert [line for line in lines if line and not line.startswith("──")] == ["node lost", "three"]
    found = json.loads(tuner("logs", "1", "--tail", "0", "--json").stdout)["logs"]
    assert [log["text"] for log in found] == ["", "", ""]


def test_stages_that_belong_to_no_trial_are_found_by_their_kind(tuner: RunCli, logged: SqlTrialStore) -> None:
    said = tuner("logs", "--stage", "trace").stdout
    assert said.splitlines()[1] == "tracing"
    assert "trace of eagle k=8" in said


def test_without_a_trial_the_logs_are_listed(tuner: RunCli, logged: SqlTrialStore) -> None:
    lines = [line.split() for line in tuner("logs").stdout.splitlines()]
    assert [line[:5] for line in lines[2:]] == [
        ["1", "eagle", "k=3", "compile", "0"],
        ["1", "eagle", "k=3", "compile", "1"],
        ["1", "eagle", "k=3", "measure", "0"],
        ["–", "eagle", "k=8", "trace", "0"],
    ]


def test_logs_are_a_document_for_scripts(tuner: RunCli, logged: SqlTrialStore) -> None:
    found = json.loads(tuner("logs", "1", "--study", "code-gen", "--json").stdout)
    assert (found["study"], found["trial"]) == ("code-gen", 1)
    assert found["logs"][1] == {
        "kind": "compile",
        "key": "aa",
        "attempt": 1,
        "label": "eagle k=3",
        "node": "10.0.0.7",
        "started_at": "2026-03-01T12:00:00.123456+00:00",
        "ended_at": "2026-03-01T12:01:30.123456+00:00",
        "state": "done",
        "error_type": None,
        "text": "one\ntwo\nthree",
    }


def test_without_a_study_the_newest_is_meant(tuner: RunCli, logged: SqlTrialStore) -> None:
    logged.add_study(a_study("newer", created_at=NOON + timedelta(days=1)))
    assert tuner("logs").stdout == ("study 'newer' has no log of any stage: none has ended, or they wrote nothing\n")
    assert tuner("logs", "--study", "code-gen", "--stage", "trace").exit_code == 0


def test_a_trial_without_logs_says_so(tuner: RunCli, logged: SqlTrialStore) -> None:
    said = tuner("logs", "2", "--stage", "measure")
    assert (said.exit_code, said.stdout) == (
        0,
        "study 'code-gen' has no log of stage measure of trial 2 (ngram k=5): none has ended, or they wrote nothing\n",
    )


def test_what_is_not_there_is_an_error_with_what_there_is(tuner: RunCli, logged: SqlTrialStore) -> None:
    unknown_trial = tuner("logs", "7")
    assert (unknown_trial.exit_code, unknown_trial.stdout) == (2, "")
    assert unknown_trial.stderr == "error: study 'code-gen' has no trial 7\nhint: there are: 1, 2\n"
    assert "did you mean 'measure'" in tuner("logs", "1", "--stage", "mesure").stderr
    assert "'code-gen'" in tuner("logs", "--study", "code-jen").stderr


def test_where_there_is_no_study_there_are_no_logs(tuner: RunCli, url: str) -> None:
    said = tuner("logs")
    assert (said.exit_code, said.stdout) == (2, "")
    assert "tuner search" in said.stderr


def test_passwords_in_logs_are_hidden(tuner: RunCli, store: SqlTrialStore) -> None:
    store.add_study(a_study())
    store.save_log(a_log(text="connecting to postgresql://ann:s3cret@db/tuner"))
    assert "s3cret" not in tuner("logs", "--stage", "measure").stdout
    assert "s3cret" not in tuner("logs", "--json").stdout
