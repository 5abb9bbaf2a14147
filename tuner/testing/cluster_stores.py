"""What every store must do for searches on many machines; part of the contract in ``tuner.testing.stores``."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from tuner.errors import NotFoundError
from tuner.records import StageKind
from tuner.store import StageRecord, StageState, TrialStore
from tuner.testing.store_records import NOON, a_done_stage, a_log, a_stage, a_study


def a_compile(study_name: str, minute: int, **changes: Any) -> StageRecord:
    """A compile that was done that many minutes after noon."""
    changes = {"kind": StageKind.COMPILE, "ended_at": NOON + timedelta(minutes=minute)} | changes
    return a_done_stage(study_name, **changes)


def a_failed_compile(study_name: str, minute: int, error: str = "no such operator") -> StageRecord:
    """A compile that failed that many minutes after noon."""
    failure = {"error_type": "CompileError", "error": error, "result": None}
    return a_compile(study_name, minute, state=StageState.FAILED, **failure)


class ClusterStoreContract:
    """What the docstrings of ``TrialStore`` promise of logs, compiles and stopping; subclasses override ``store``."""

    @pytest.fixture
    def store(self) -> Iterator[TrialStore]:
        """An empty store."""
        raise NotImplementedError("the subclass supplies the fixture `store`")

    def test_a_stage_keeps_its_label_and_its_node(self, store: TrialStore) -> None:
        store.add_study(a_study())
        store.save_stage(a_stage(label="good k=5", node=None))
        store.save_stage(a_stage(label="good k=5", node="ip-10-0-0-7"))
        (listed,) = store.stages("code-gen")
        assert (listed.label, listed.node) == ("good k=5", "ip-10-0-0-7")
        assert store.stage("code-gen", listed.kind, listed.key) == a_stage(label="good k=5", node="ip-10-0-0-7")

    def test_a_log_comes_back_equal(self, store: TrialStore) -> None:
        store.add_study(a_study())
        for log in (a_log(), a_log(key="other", text="", node=None, label="")):
            store.save_log(log)
        assert set(store.logs("code-gen")) == {a_log(), a_log(key="other", text="", node=None, label="")}

    def test_a_long_log_is_kept_whole(self, store: TrialStore) -> None:
        store.add_study(a_study())
        store.save_log(a_log(text="line of a log\n" * 18_000))
        assert store.logs("code-gen") == (a_log(text="line of a log\n" * 18_000),)

    def test_a_log_of_the_same_attempt_is_replaced(self, store: TrialStore) -> None:
        store.add_study(a_study())
        later = a_log(text="all of it", node="ip-10-0-0-8", ended_at=NOON + timedelta(hours=1))
        for log in (a_log(text="half of"), later, later):
            store.save_log(log)
        assert store.logs("code-gen") == (later,)

    def test_logs_of_other_attempts_kinds_keys_and_studies_are_others(self, store: TrialStore) -> None:
        for name in ("code-gen", "other"):
            store.add_study(a_study(name))
        changes: tuple[dict[str, Any], ...] = ({}, {"attempt": 1}, {"kind": StageKind.COMPILE}, {"key": "another"})
        for change in changes:
            store.save_log(a_log(**change))
        store.save_log(a_log("other"))
        assert len(store.logs("code-gen")) == len(changes)
        assert store.logs("other") == (a_log("other"),)

    def test_logs_come_oldest_first(self, store: TrialStore) -> None:
        store.add_study(a_study())
        for minute in (3, 1, 2):
            store.save_log(a_log(attempt=minute, ended_at=NOON + timedelta(minutes=minute)))
        assert [log.attempt for log in store.logs("code-gen")] == [1, 2, 3]

    def test_logs_of_one_configuration_are_found_by_its_label(self, store: TrialStore) -> None:
        store.add_study(a_study())
        for label in ("good k=5", "good k=50", ""):
            store.save_log(a_log(key=label, label=label))
        assert store.logs("code-gen", "good k=5") == (a_log(key="good k=5", label="good k=5"),)
        assert store.logs("code-gen", "") == (a_log(key="", label=""),)
        assert store.logs("code-gen", "bad k=5") == ()
        assert len(store.logs("code-gen")) == 3

    def test_what_no_database_takes_is_replaced_in_a_log(self, store: TrialStore) -> None:
        store.add_study(a_study())
        store.save_log(a_log(text="core\0dump \udcff"))
        (log,) = store.logs("code-gen")
        assert log.text == "core\N{REPLACEMENT CHARACTER}dump ?"

    def test_a_log_of_an_unknown_study_is_refused(self, store: TrialStore) -> None:
        with pytest.raises(NotFoundError):
            store.save_log(a_log())
        assert store.logs("code-gen") == ()

    def test_a_compile_is_found_by_its_key_in_any_study_with_its_result(self, store: TrialStore) -> None:
        for name in ("code-gen", "other"):
            store.add_study(a_study(name))
        store.save_stage(a_compile("other", 1))
        store.save_stage(a_done_stage("code-gen"))  # a measurement of the same key
        store.save_stage(a_compile("code-gen", 2, key="another"))
        assert store.compile_of(a_stage().key) == a_compile("other", 1)
        assert store.compile_of("unknown") is None

    def test_the_newest_compile_that_is_done_is_found(self, store: TrialStore) -> None:
        for name, minute in (("first", 1), ("newest", 3), ("second", 2)):
            store.add_study(a_study(name))
            store.save_stage(a_compile(name, minute))
        assert store.compile_of(a_stage().key) == a_compile("newest", 3)

    def test_a_compile_that_is_done_counts_more_than_a_later_failure(self, store: TrialStore) -> None:
        for name in ("done", "failed"):
            store.add_study(a_study(name))
        store.save_stage(a_failed_compile("failed", 9))
        assert store.compile_of(a_stage().key) == a_failed_compile("failed", 9)
        store.save_stage(a_compile("done", 1))
        assert store.compile_of(a_stage().key) == a_compile("done", 1)

    def test_where_every_compile_failed_the_newest_failure_is_found(self, store: TrialStore) -> None:
        for name, minute in (("old", 1), ("new", 2)):
            store.add_study(a_study(name))
            store.save_stage(a_failed_compile(name, minute, error=name))
        assert store.compile_of(a_stage().key) == a_failed_compile("new", 2, error="new")

    def test_a_compile_that_runs_has_not_ended(self, store: TrialStore) -> None:
        store.add_study(a_study())
        store.save_stage(a_stage(kind=StageKind.COMPILE))
        assert store.compile_of(a_stage().key) is None

    def test_a_study_is_asked_to_stop_until_that_is_withdrawn(self, store: TrialStore) -> None:
        for name in ("code-gen", "other"):
            store.add_study(a_study(name))
        assert not store.stop_asked("code-gen")
        store.ask_to_stop("code-gen")
        store.ask_to_stop("code-gen")
        assert (store.stop_asked("code-gen"), store.stop_asked("other")) == (True, False)
        store.withdraw_stop("code-gen")
        store.withdraw_stop("code-gen")
        assert not store.stop_asked("code-gen")
        assert store.study("code-gen") == a_study()

    def test_a_study_that_does_not_exist_cannot_be_asked_to_stop(self, store: TrialStore) -> None:
        with pytest.raises(NotFoundError):
            store.ask_to_stop("code-gen")
        assert not store.stop_asked("code-gen")
        store.withdraw_stop("code-gen")
