"""What is compiled, and how often: once for each key, across trials, studies and restarts."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.bench import SPACE
from tests.support.compiling import ClusterBench, a_cluster
from tuner.driver import SearchResult
from tuner.errors import CompileError
from tuner.observer import SilentObserver
from tuner.plan import PLAIN_HARDWARE, SearchPlan
from tuner.records import StageKind
from tuner.search_space import DraftTokens
from tuner.stopping import Budget, StopKind
from tuner.store import StageState, TrialRecord, TrialState

SMALL = SPACE.model_copy(update={"num_speculative_tokens": DraftTokens(min=1, max=3)})
EVERYTHING = 7
"""Configurations of it, with no speculation."""


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ClusterBench:
    bench = ClusterBench(tmp_path)
    monkeypatch.setattr("tuner.intervals.RESAMPLES", 199)  # how wide limits are is tested elsewhere
    monkeypatch.setattr("tuner.trial.load_engine", lambda _name: bench.engine)
    return bench


def whole_space(bench: ClusterBench, **changes: object) -> SearchPlan:
    return bench.plan(**{"space": SMALL, "sampler": "grid", "budget": Budget(max_trials=50), **changes})


def trial_of(result: SearchResult, label: str) -> TrialRecord:
    return next(row for row in result.trials if row.speculation.label == label)


# ── once ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_configuration_is_compiled_once(bench: ClusterBench) -> None:
    bench.run(whole_space(bench))
    assert len(bench.workshop.compiled) == len(set(bench.workshop.compiled)) == EVERYTHING


def test_configurations_with_one_key_are_compiled_once(bench: ClusterBench) -> None:
    bench.workshop.ignores_tokens = True
    result = bench.run(whole_space(bench))
    assert len(bench.workshop.compiled) == 3  # no speculation and two drafts
    assert {row.state for row in result.trials} == {TrialState.COMPLETE}
    assert len({row.speculation.key for row in result.trials}) == EVERYTHING


def test_trials_that_start_together_wait_for_one_compile(bench: ClusterBench) -> None:
    bench.workshop.ignores_tokens = True
    bench.workshop.failing = {"good k=3", "bad k=3"}  # the traces fail, and what the trials ask for has no result yet
    result = bench.run(whole_space(bench))
    assert sorted(bench.workshop.compiled) == ["bad k=3", "good k=3", "no speculation"]
    assert len([row for row in result.trials if row.state is TrialState.INFEASIBLE]) == 6


def test_another_study_finds_everything_compiled(bench: ClusterBench) -> None:
    bench.run(whole_space(bench))
    bench.workshop.compiled.clear()
    again = bench.run(whole_space(bench, name="other", budget=Budget(max_compiles=1)))
    assert bench.workshop.compiled == []
    assert bench.stages(StageKind.COMPILE, "other") == []
    assert again.stopped.kind is StopKind.ALL_TRIED  # what is found costs nothing of the one compile


def test_what_was_compiled_before_is_found_where_the_database_is_another(bench: ClusterBench, tmp_path: Path) -> None:
    bench.run(whole_space(bench))
    other = ClusterBench(tmp_path)
    other.engine = bench.engine
    bench.workshop.compiled.clear()
    result = other.run(whole_space(other, budget=Budget(max_compiles=1)))
    assert bench.workshop.compiled == []
    assert result.stopped.kind is StopKind.ALL_TRIED


def test_a_compile_that_another_study_runs_is_followed(bench: ClusterBench) -> None:
    first, second = whole_space(bench), whole_space(bench, name="other")
    (compile_task,) = first.compile_tasks(first.baseline_task())
    bench.cluster.submit(compile_task)  # by another driver
    bench.run(second)
    assert bench.workshop.compiled.count("no speculation") == 1


# ── failing ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_failing_compile_is_told_once_and_its_configuration_is_infeasible(bench: ClusterBench) -> None:
    bench.workshop.failing = {"good k=2"}
    result = bench.run(whole_space(bench))
    trial = trial_of(result, "good k=2")
    assert (trial.state, trial.error_type) == (TrialState.INFEASIBLE, "CompileError")
    assert trial.error == "good k=2 does not compile\ntry another"
    assert [row.speculation.label for row in result.trials].count("good k=2") == 1
    assert bench.workshop.compiled.count("good k=2") == 1
    assert "good k=2" not in bench.world.loads


def test_a_failed_compile_is_remembered_by_the_same_search_and_by_others(bench: ClusterBench) -> None:
    bench.workshop.failing = {"good k=2"}
    bench.run(whole_space(bench))
    bench.workshop.compiled.clear()
    bench.run(whole_space(bench))
    other = bench.run(whole_space(bench, name="other"))
    assert bench.workshop.compiled == []
    assert trial_of(other, "good k=2").error == "good k=2 does not compile (tried in study 'study')\ntry another"


def test_a_failed_compile_is_tried_again_where_that_is_asked_for(bench: ClusterBench) -> None:
    bench.workshop.failing = {"good k=2"}
    before = bench.run(whole_space(bench))
    bench.workshop.failing = set()
    bench.workshop.compiled.clear()
    after = bench.run(whole_space(bench, retry_failed=True))
    assert bench.workshop.compiled == ["good k=2"]
    assert after.trials[: len(before.trials)] == before.trials
    (new,) = after.trials[len(before.trials) :]
    assert (new.speculation.label, new.state, new.duplicate_of) == ("good k=2", TrialState.COMPLETE, None)


def test_what_fails_again_is_tried_once_in_each_run(bench: ClusterBench) -> None:
    bench.workshop.ignores_tokens = True
    bench.workshop.failing = {"bad k=3"}
    before = bench.run(whole_space(bench))
    bench.workshop.compiled.clear()
    bench.run(whole_space(bench, retry_failed=True))
    assert bench.workshop.compiled == ["bad k=3"]  # by the trace; three trials have that key
    assert len(bench.store.trials("study")) == len(before.trials) + 3


def test_retried_trials_wait_for_each_other_too(bench: ClusterBench) -> None:
    bench.workshop.failing = {f"good k={count}" for count in (1, 2)}
    bench.run(whole_space(bench))
    bench.cluster.ran.clear()
    bench.run(whole_space(bench, retry_failed=True, parallel=1))
    first, second = (one for one in bench.cluster.ran if one.kind is StageKind.COMPILE)
    assert first.ended_s <= second.began_s


def test_a_retried_trial_that_was_interrupted_goes_on_as_one(bench: ClusterBench) -> None:
    bench.workshop.failing = {"good k=2"}
    before = bench.run(whole_space(bench))
    bench.workshop.failing = set()
    search, ended = bench.search(whole_space(bench, retry_failed=True)), bench.store.save_trial
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench.store, "save_trial", _unless_ended(ended))
        with pytest.raises(KeyboardInterrupt):
            search.run()
    for retry_failed in (False, True):
        after = bench.run(whole_space(bench, retry_failed=retry_failed))
        (new,) = after.trials[len(before.trials) :]
        assert (new.state, new.duplicate_of) == (TrialState.COMPLETE, None)
    assert bench.workshop.compiled.count("good k=2") == 2


def _unless_ended(save: object) -> object:
    def saved(trial: TrialRecord) -> None:
        if trial.state is not TrialState.RUNNING:
            raise KeyboardInterrupt
        save(trial)  # type: ignore[operator]

    return saved


def test_a_baseline_that_does_not_compile_ends_the_search(bench: ClusterBench) -> None:
    bench.workshop.failing = {"no speculation"}
    with pytest.raises(CompileError, match="no speculation does not compile"):
        bench.run(whole_space(bench))
    assert bench.workshop.compiled == ["no speculation"]
    (row,) = bench.stages(StageKind.COMPILE)
    assert row.state is StageState.FAILED


def test_the_next_run_compiles_the_baseline_again_and_is_not_locked_out(bench: ClusterBench) -> None:
    bench.workshop.failing = {"no speculation"}
    for _ in range(2):
        with pytest.raises(CompileError):
            bench.run(whole_space(bench))
    assert bench.workshop.compiled == ["no speculation"] * 2
    bench.workshop.failing = set()
    assert len(bench.run(whole_space(bench)).trials) >= EVERYTHING


# ── anew ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_other_facts_of_the_machines_compile_anew(bench: ClusterBench) -> None:
    bench.run(whole_space(bench))
    bench.workshop.compiled.clear()
    newer = PLAIN_HARDWARE.model_copy(update={"compile_facts": {"sdk": "2.31"}})
    bench.run(whole_space(bench, name="other", hardware=newer))
    assert len(bench.workshop.compiled) == EVERYTHING


def test_a_failure_under_other_facts_does_not_count(bench: ClusterBench) -> None:
    bench.workshop.failing = {"good k=2"}
    bench.run(whole_space(bench))
    bench.workshop.failing = set()
    newer = PLAIN_HARDWARE.model_copy(update={"compile_facts": {"sdk": "2.31"}})
    other = bench.run(whole_space(bench, name="other", hardware=newer))
    assert trial_of(other, "good k=2").state is TrialState.COMPLETE


class Notices(SilentObserver):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def notice(self, text: str) -> None:
        self.heard.append(text)


def test_an_artifact_that_is_gone_is_compiled_again_once(bench: ClusterBench) -> None:
    bench.workshop.ignores_tokens = True
    bench.run(whole_space(bench))
    shutil.rmtree(bench.cache_dir / "artifacts")
    bench.workshop.compiled.clear()
    bench.cluster = a_cluster(machines=6)
    notices = Notices()
    result = bench.search(whole_space(bench, name="other"), notices).run()
    assert sorted(bench.workshop.compiled) == ["bad k=3", "good k=3", "no speculation"]
    assert {row.state for row in result.trials} == {TrialState.COMPLETE}
    assert len([text for text in notices.heard if text.endswith("; it is compiled again")]) == 3


def test_compiles_that_were_made_again_are_paid_for(bench: ClusterBench) -> None:
    bench.run(whole_space(bench))
    shutil.rmtree(bench.cache_dir / "artifacts")
    bench.workshop.compiled.clear()
    result = bench.run(whole_space(bench, name="other", parallel=1, budget=Budget(max_compiles=4)))
    assert len(bench.workshop.compiled) == 4
    assert result.stopped.kind is StopKind.MAX_COMPILES


def test_a_study_goes_on_after_its_artifacts_are_gone(bench: ClusterBench) -> None:
    bench.run(whole_space(bench, budget=Budget(max_trials=4)))
    shutil.rmtree(bench.cache_dir / "artifacts")
    more = replace(whole_space(bench), budget=Budget(max_trials=50))
    assert {row.state for row in bench.run(more).trials} == {TrialState.COMPLETE}
