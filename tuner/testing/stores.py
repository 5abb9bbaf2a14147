"""What every store must do, as tests: a store's test module subclasses one of these and supplies the fixtures.

    class TestMyStore(PersistentTrialStoreContract):
        @pytest.fixture
        def reopen(self, tmp_path):
            return lambda: MyStore(tmp_path / "studies")

A store that forgets at the end of its process subclasses ``TrialStoreContract`` and overrides ``store``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from tuner.errors import ConfigurationError, NotFoundError, StorageError, StudyMismatchError
from tuner.records import StageKind
from tuner.speculation import Speculation
from tuner.store import (
    MAX_NAME_LENGTH,
    StageState,
    StudyRecord,
    TrialRecord,
    TrialState,
    TrialStore,
)
from tuner.testing.cluster_stores import ClusterStoreContract
from tuner.testing.store_records import (
    NGRAM,
    NOON,
    a_done_stage,
    a_finished_trial,
    a_stage,
    a_study,
    a_trace,
    a_trial,
    an_entry,
)
from tuner.testing.trace_stores import TraceStoreContract

FINISHED = tuple(state for state in TrialState if state is not TrialState.RUNNING)


class TrialStoreContract(TraceStoreContract, ClusterStoreContract):
    """What the docstrings of ``TrialStore`` promise; subclasses override the fixture ``store``."""

    @pytest.fixture
    def study(self, store: TrialStore) -> StudyRecord:
        """A study that the store holds."""
        return store.add_study(a_study())

    def test_a_new_study_comes_back_equal(self, store: TrialStore) -> None:
        assert store.add_study(a_study()) == a_study()
        assert store.study("code-gen") == a_study()

    def test_adding_the_same_study_again_gives_the_first_one(self, store: TrialStore, study: StudyRecord) -> None:
        later = replace(study, provenance={"argv": ["again"]}, created_at=NOON + timedelta(days=1))
        assert store.add_study(later) == study
        assert store.study("code-gen") == study

    def test_the_order_of_settings_does_not_make_another_study(self, store: TrialStore, study: StudyRecord) -> None:
        assert store.add_study(replace(study, spec=dict(reversed(list(study.spec.items()))))) == study

    def test_another_spec_under_the_same_name_is_refused_and_named(self, store: TrialStore, study: StudyRecord) -> None:
        with pytest.raises(StudyMismatchError) as caught:
            store.add_study(replace(study, spec={**study.spec, "seed": 8}))
        assert "'code-gen'" in caught.value.message
        assert "seed: stored 7, now 8" in caught.value.message
        assert "target" not in caught.value.message
        assert store.study("code-gen") == study

    @pytest.mark.parametrize("name", ["", " ", "\n"])
    def test_an_empty_name_is_refused(self, store: TrialStore, name: str) -> None:
        with pytest.raises(ConfigurationError, match="name is empty"):
            store.add_study(a_study(name))

    def test_a_name_of_the_greatest_length_is_kept(self, store: TrialStore) -> None:
        name = "ü" * MAX_NAME_LENGTH
        store.add_study(a_study(name))
        assert store.study(name).name == name

    def test_a_longer_name_is_refused_with_the_limit(self, store: TrialStore) -> None:
        with pytest.raises(ConfigurationError, match=r"600 characters, the limit is 512"):
            store.add_study(a_study("n" * 600))
        assert store.studies() == ()

    @pytest.mark.parametrize("name", ["two\nlines", "a\x00b", "tab\there", "\udcff"])
    def test_a_name_that_cannot_be_printed_on_one_line_is_refused(self, store: TrialStore, name: str) -> None:
        with pytest.raises(ConfigurationError, match="cannot be printed"):
            store.add_study(a_study(name))

    def test_a_refused_study_is_not_kept(self, store: TrialStore) -> None:
        with pytest.raises(ConfigurationError):
            store.add_study(a_study(""))
        assert store.studies() == ()

    def test_an_unknown_study_is_not_found_and_near_names_are_listed(self, store: TrialStore) -> None:
        for name in ("code-gen-quick", "a", "b", "c", "d", "e"):
            store.add_study(a_study(name))
        with pytest.raises(NotFoundError, match="no study named 'code-gen-quik'") as caught:
            store.study("code-gen-quik")
        assert "'code-gen-quick'" in caught.value.hint

    def test_where_there_is_no_study_the_hint_says_how_to_make_one(self, store: TrialStore) -> None:
        with pytest.raises(NotFoundError) as caught:
            store.study("code-gen")
        assert "tuner search" in caught.value.hint

    def test_studies_come_oldest_first(self, store: TrialStore) -> None:
        store.add_study(a_study("late", created_at=NOON + timedelta(hours=1)))
        store.add_study(a_study("early", created_at=NOON))
        # Earlier than both, though its clock shows a later hour.
        east = timezone(timedelta(hours=9))
        store.add_study(a_study("first", created_at=datetime(2026, 3, 1, 20, 30, tzinfo=east)))
        assert [one.name for one in store.studies()] == ["first", "early", "late"]

    def test_an_empty_store_has_no_studies(self, store: TrialStore) -> None:
        assert store.studies() == ()

    def test_moments_are_the_same_in_any_time_zone(self, store: TrialStore) -> None:
        study = a_study(created_at=NOON.astimezone(timezone(timedelta(hours=-5, minutes=-30))))
        store.add_study(study)
        assert store.study(study.name) == study
        assert store.study(study.name).created_at.tzinfo is not None

    def test_a_conclusion_keeps_verdict_and_front(self, store: TrialStore, study: StudyRecord) -> None:
        verdict = {"recommended": {"draft": "eagle", "k": 3}, "speedup": 1.25, "reasons": ["a", None]}
        store.conclude(study.name, verdict, [an_entry()])
        assert store.study(study.name) == replace(study, conclusion=verdict)
        assert store.pareto_front(study.name) == (an_entry(),)

    def test_a_second_conclusion_replaces_the_first(self, store: TrialStore, study: StudyRecord) -> None:
        store.conclude(study.name, {"verdict": "first"}, [an_entry(), an_entry(speculation=NGRAM)])
        store.conclude(study.name, {"verdict": "second"}, [an_entry(trial_number=4)])
        assert store.study(study.name).conclusion == {"verdict": "second"}
        assert store.pareto_front(study.name) == (an_entry(trial_number=4),)

    def test_an_unknown_study_cannot_be_concluded(self, store: TrialStore) -> None:
        with pytest.raises(NotFoundError):
            store.conclude("code-gen", {}, [an_entry()])
        assert store.pareto_front("code-gen") == ()

    def test_the_front_keeps_its_order(self, store: TrialStore, study: StudyRecord) -> None:
        predicted = an_entry(speculation=NGRAM, trial_number=None, is_measured=False)
        front = (an_entry(trial_number=9), predicted, an_entry(trial_number=2))
        store.conclude(study.name, {}, front)
        assert store.pareto_front(study.name) == front

    @pytest.mark.parametrize("probability", [None, 0.0, 0.1 + 0.2, 1.0])
    def test_a_member_of_the_front_keeps_its_probability(
        self, store: TrialStore, study: StudyRecord, probability: float | None
    ) -> None:
        store.conclude(study.name, {}, [an_entry(probability=probability)])
        assert store.pareto_front(study.name) == (an_entry(probability=probability),)

    @pytest.mark.parametrize("probability", [-0.1, 1.1, float("nan")])
    def test_what_is_no_probability_is_refused(self, store: TrialStore, study: StudyRecord, probability: float) -> None:
        with pytest.raises(StorageError, match="eagle k=3 cannot be on the front with probability"):
            store.conclude(study.name, {}, [an_entry(probability=probability)])
        assert store.study(study.name).conclusion is None

    def test_before_the_conclusion_there_is_no_front(self, store: TrialStore, study: StudyRecord) -> None:
        assert store.study(study.name).conclusion is None
        assert store.pareto_front(study.name) == ()

    @pytest.mark.parametrize("kind", StageKind)
    def test_a_stage_comes_back_equal(self, store: TrialStore, study: StudyRecord, kind: StageKind) -> None:
        stage = a_done_stage(kind=kind, attempt=2)
        store.save_stage(stage)
        assert store.stage(study.name, kind, stage.key) == stage

    def test_an_unknown_stage_is_none(self, store: TrialStore, study: StudyRecord) -> None:
        store.save_stage(a_stage())
        assert store.stage(study.name, StageKind.TRACE, a_stage().key) is None
        assert store.stage(study.name, StageKind.MEASURE, "another") is None
        assert store.stage("another", StageKind.MEASURE, a_stage().key) is None

    def test_stages_of_other_kinds_keys_and_studies_are_others(self, store: TrialStore, study: StudyRecord) -> None:
        store.add_study(a_study("other"))
        stages = (a_stage(), a_stage(kind=StageKind.TRACE), a_stage(key="other"), a_stage("other"))
        for attempt, stage in enumerate(stages):
            store.save_stage(replace(stage, attempt=attempt))
        found = [store.stage(one.study_name, one.kind, one.key) for one in stages]
        assert [one and one.attempt for one in found] == [0, 1, 2, 3]
        assert len(store.stages(study.name)) == 3

    def test_a_running_stage_is_replaced(self, store: TrialStore, study: StudyRecord) -> None:
        store.save_stage(a_stage(attempt=0))
        store.save_stage(a_done_stage(attempt=1))
        assert store.stage(study.name, StageKind.MEASURE, a_stage().key) == a_done_stage(attempt=1)
        assert len(store.stages(study.name)) == 1

    def test_a_failed_stage_may_run_again(self, store: TrialStore, study: StudyRecord) -> None:
        failed = a_stage(state=StageState.FAILED, error_type="WorkerLostError", error="node gone\n  at 12:00")
        store.save_stage(failed)
        assert store.stage(study.name, failed.kind, failed.key) == failed
        store.save_stage(a_stage(attempt=1))
        assert store.stage(study.name, failed.kind, failed.key) == a_stage(attempt=1)

    def test_saving_a_done_stage_again_changes_nothing(self, store: TrialStore, study: StudyRecord) -> None:
        store.save_stage(a_done_stage())
        store.save_stage(a_done_stage())
        assert store.stage(study.name, StageKind.MEASURE, a_stage().key) == a_done_stage()

    @pytest.mark.parametrize(
        "change",
        [{"result": b"{}"}, {"attempt": 1}, {"state": StageState.RUNNING}, {"state": StageState.FAILED, "error": "x"}],
    )
    def test_a_done_stage_cannot_change(self, store: TrialStore, study: StudyRecord, change: dict[str, Any]) -> None:
        store.save_stage(a_done_stage())
        with pytest.raises(StorageError, match="already done"):
            store.save_stage(a_done_stage(**change))
        assert store.stage(study.name, StageKind.MEASURE, a_stage().key) == a_done_stage()

    def test_a_stage_of_an_unknown_study_is_refused(self, store: TrialStore) -> None:
        with pytest.raises(NotFoundError):
            store.save_stage(a_stage())

    def test_stages_come_in_order_of_their_start_without_results(self, store: TrialStore, study: StudyRecord) -> None:
        late, early = NOON + timedelta(minutes=1), NOON - timedelta(minutes=1)
        store.save_stage(a_done_stage(key="late", started_at=late, ended_at=None))
        store.save_stage(a_done_stage(key="early", started_at=early, ended_at=None))
        assert store.stages(study.name) == (
            a_done_stage(key="early", started_at=early, ended_at=None, result=None),
            a_done_stage(key="late", started_at=late, ended_at=None, result=None),
        )

    def test_a_study_without_stages_has_none(self, store: TrialStore, study: StudyRecord) -> None:
        assert store.stages(study.name) == ()

    @pytest.mark.parametrize("trial", [a_trial(), a_finished_trial(), a_trial(number=0, speculation=Speculation())])
    def test_a_trial_comes_back_equal(self, store: TrialStore, study: StudyRecord, trial: TrialRecord) -> None:
        store.save_trial(trial)
        assert store.trials(study.name) == (trial,)

    @pytest.mark.parametrize("state", FINISHED)
    def test_a_running_trial_is_replaced(self, store: TrialStore, study: StudyRecord, state: TrialState) -> None:
        store.save_trial(a_trial())
        store.save_trial(a_trial(predicted={"speedup": 1.5}))
        ended = a_finished_trial(state=state, error_type="OutOfDeviceMemoryError", error="3 GB needed, 1 GB free")
        store.save_trial(ended)
        assert store.trials(study.name) == (ended,)

    @pytest.mark.parametrize("state", FINISHED)
    def test_a_finished_trial_cannot_change(self, store: TrialStore, study: StudyRecord, state: TrialState) -> None:
        finished = a_finished_trial(state=state)
        store.save_trial(finished)
        for changed in (replace(finished, values={"e2e_ms": 1.0}), replace(finished, state=TrialState.RUNNING)):
            with pytest.raises(StorageError, match="finished and cannot change"):
                store.save_trial(changed)
        assert store.trials(study.name) == (finished,)

    @pytest.mark.parametrize("state", FINISHED)
    def test_saving_a_finished_trial_again_changes_nothing(
        self, store: TrialStore, study: StudyRecord, state: TrialState
    ) -> None:
        store.save_trial(a_finished_trial(state=state))
        store.save_trial(a_finished_trial(state=state))
        assert store.trials(study.name) == (a_finished_trial(state=state),)

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    def test_values_that_are_not_finite_are_refused(self, store: TrialStore, study: StudyRecord, value: float) -> None:
        store.save_trial(a_trial())
        with pytest.raises(StorageError, match="not finite"):
            store.save_trial(a_finished_trial(values={"e2e_ms": value}))
        assert store.trials(study.name) == (a_trial(),)

    def test_a_trial_of_an_unknown_study_is_refused(self, store: TrialStore) -> None:
        with pytest.raises(NotFoundError):
            store.save_trial(a_trial())

    def test_trials_come_by_number_and_belong_to_their_study(self, store: TrialStore, study: StudyRecord) -> None:
        store.add_study(a_study("other"))
        for number in (10, 2, 0):
            store.save_trial(a_trial(number=number))
        store.save_trial(a_trial("other", number=1))
        assert [trial.number for trial in store.trials(study.name)] == [0, 2, 10]
        assert store.trials("other") == (a_trial("other", number=1),)

    def test_a_study_without_trials_has_none(self, store: TrialStore, study: StudyRecord) -> None:
        assert store.trials(study.name) == ()

    def test_threads_that_write_at_once_lose_nothing(self, store: TrialStore, study: StudyRecord) -> None:
        def write(thread: int) -> None:
            assert store.add_study(study) == study
            for number in range(thread, 12, 3):
                store.save_trial(a_trial(number=number))
                store.save_stage(a_done_stage(key=f"{number}"))

        with ThreadPoolExecutor(max_workers=3) as pool:
            list(pool.map(write, range(3)))
        assert [trial.number for trial in store.trials(study.name)] == list(range(12))
        assert {stage.key for stage in store.stages(study.name)} == {f"{number}" for number in range(12)}

    def test_a_store_may_be_closed_twice(self, store: TrialStore) -> None:
        store.close()
        store.close()


class PersistentTrialStoreContract(TrialStoreContract):
    """What a store promises that outlives its process; subclasses override the fixture ``reopen``."""

    @pytest.fixture
    def reopen(self) -> Callable[[], TrialStore]:
        """Opens the same store again each time it is called; at first the store is empty."""
        raise NotImplementedError("the subclass supplies the fixture `reopen`")

    @pytest.fixture
    def store(self, reopen: Callable[[], TrialStore]) -> Iterator[TrialStore]:
        """An empty store."""
        store = reopen()
        yield store
        store.close()

    @pytest.fixture
    def second(self, store: TrialStore, reopen: Callable[[], TrialStore]) -> Iterator[TrialStore]:
        """The same store, as another program sees it."""
        assert store.studies() == ()
        second = reopen()
        yield second
        second.close()

    def test_what_was_written_is_seen_at_once_by_others(
        self, store: TrialStore, second: TrialStore, study: StudyRecord
    ) -> None:
        store.save_stage(a_done_stage())
        store.save_trial(a_finished_trial())
        store.save_trace(a_trace())
        store.conclude(study.name, {"verdict": "yes"}, [an_entry()])
        assert second.trace(a_trace().key) == a_trace()
        assert second.studies() == (replace(study, conclusion={"verdict": "yes"}),)
        assert second.stage(study.name, StageKind.MEASURE, a_stage().key) == a_done_stage()
        assert second.trials(study.name) == (a_finished_trial(),)
        assert second.pareto_front(study.name) == (an_entry(),)

    def test_what_was_written_is_there_after_closing(
        self, store: TrialStore, reopen: Callable[[], TrialStore], study: StudyRecord
    ) -> None:
        store.save_trial(a_finished_trial())
        store.close()
        again = reopen()
        assert again.study(study.name) == study
        assert again.trials(study.name) == (a_finished_trial(),)
        again.close()

    def test_moments_come_back_in_utc(self, store: TrialStore, study: StudyRecord) -> None:
        store.save_trial(a_finished_trial(created_at=NOON.astimezone(timezone(timedelta(hours=2)))))
        (trial,) = store.trials(study.name)
        assert [moment and moment.utcoffset() for moment in (trial.created_at, trial.ended_at)] == [timedelta(0)] * 2

    def test_a_study_that_two_add_at_once_is_one(self, store: TrialStore, second: TrialStore) -> None:
        def add(number: int) -> StudyRecord:
            return (store, second)[number % 2].add_study(a_study(provenance={"by": number}))

        with ThreadPoolExecutor(max_workers=4) as pool:
            given = list(pool.map(add, range(8)))
        assert len(store.studies()) == 1
        assert set(map(repr, given)) == {repr(store.study("code-gen"))}

    def test_of_traces_that_several_make_at_once_the_deepest_is_kept(
        self, store: TrialStore, second: TrialStore
    ) -> None:
        def save(depth: int) -> bool:
            return (store, second)[depth % 2].save_trace(a_trace(depth=depth, data=str(depth).encode()))

        with ThreadPoolExecutor(max_workers=4) as pool:
            written = list(pool.map(save, (3, 6, 1, 8, 2, 7)))
        assert written[3]
        assert second.trace(a_trace().key) == a_trace(depth=8, data=b"8")

    def test_of_two_results_for_one_stage_one_is_kept_and_the_other_refused(
        self, store: TrialStore, second: TrialStore, study: StudyRecord
    ) -> None:
        def finish(number: int) -> bytes | None:
            result = str(number).encode()
            try:
                (store, second)[number % 2].save_stage(a_done_stage(result=result))
            except StorageError:
                return None
            return result

        with ThreadPoolExecutor(max_workers=4) as pool:
            kept = [result for result in pool.map(finish, range(8)) if result is not None]
        assert len(kept) == 1
        stored = store.stage(study.name, StageKind.MEASURE, a_stage().key)
        assert stored is not None
        assert stored.result == kept[0]
