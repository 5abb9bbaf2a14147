"""Searches with many trials in flight whose workers die, whose driver dies, or that somebody stops."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from optuna.trial import TrialState as OptunaState

from benchmarks.harness.simulated_cluster import Machine, SimulatedCluster
from tests.support.bench import SPACE, StopError, stopping
from tests.support.compiling import COMPILE_S, MEASURE_S, ClusterBench, lasting
from tuner.dispatch import StageStatus
from tuner.driver import SearchResult
from tuner.errors import DispatchError, SearchStoppedError, WorkerLostError
from tuner.observer import SilentObserver
from tuner.plan import SearchPlan
from tuner.records import StageKind
from tuner.search_space import DraftTokens
from tuner.stages import MAX_ATTEMPTS
from tuner.stopping import Budget, StopKind
from tuner.store import StageState, TrialRecord, TrialState
from tuner.study import TrialLedger
from tuner.trial import StageTask
from tuner.works import StopAsked

SMALL = SPACE.model_copy(update={"num_speculative_tokens": DraftTokens(min=1, max=2)})


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ClusterBench:
    bench = ClusterBench(tmp_path)
    monkeypatch.setattr("tuner.intervals.RESAMPLES", 99)  # how wide limits are is tested elsewhere
    monkeypatch.setattr("tuner.trial.load_engine", lambda _name: bench.engine)
    return bench


def whole_space(bench: ClusterBench, **changes: object) -> SearchPlan:
    return bench.plan(**{"space": SMALL, "sampler": "grid", "budget": Budget(max_trials=50), **changes})


# ── workers ───────────────────────────────────────────────────────────────────────────────────────────────────────


class LosingCluster(SimulatedCluster):
    """Loses attempts of some stages, as soon as they run or before they do."""

    def __init__(self, is_lost: Callable[[StageTask], bool], *, before_start: bool = False) -> None:
        super().__init__([Machine(cpus=4, name="machine-0"), Machine(cpus=4, name="machine-1")], lasting)
        self.is_lost = is_lost
        self.before_start = before_start
        self.tasks: list[StageTask] = []

    @property
    def submitted(self) -> list[tuple[StageKind, str, int]]:
        return [(task.kind, task.config.speculation.label, task.attempt) for task in self.tasks]

    def submit(self, task: StageTask) -> None:
        super().submit(task)
        self.tasks.append(task)

    def poll(self, task: StageTask) -> StageStatus:
        status = super().poll(task)
        if self.is_lost(task) and (self.before_start or status.has_started):
            lost = WorkerLostError(f"the machine of {task.config.speculation.label} went away")
            return StageStatus(has_started=not self.before_start, error=lost)
        return status

    def attempts(self, kind: StageKind, label: str) -> list[int]:
        return [attempt for one, name, attempt in self.submitted if (one, name) == (kind, label)]


def losing(*labels: str, kind: StageKind = StageKind.MEASURE, attempts: int = 1000) -> Callable[[StageTask], bool]:
    return lambda task: task.kind is kind and task.config.speculation.label in labels and task.attempt < attempts


def answered(result: SearchResult) -> list[TrialRecord]:
    """Trials that repeat no other."""
    return [row for row in result.trials if row.duplicate_of is None]


@pytest.mark.parametrize("kind", [StageKind.COMPILE, StageKind.MEASURE])
def test_a_lost_stage_runs_again_under_the_next_attempt(bench: ClusterBench, kind: StageKind) -> None:
    bench.cluster = cluster = LosingCluster(losing("good k=1", kind=kind, attempts=MAX_ATTEMPTS - 1))
    result = bench.run(whole_space(bench))
    assert cluster.attempts(kind, "good k=1") == [0, 1, 2]
    assert {row.state for row in result.trials} == {TrialState.COMPLETE}


@pytest.mark.parametrize("kind", [StageKind.COMPILE, StageKind.MEASURE])
def test_a_configuration_that_loses_every_worker_is_given_up_and_the_search_goes_on(
    bench: ClusterBench, kind: StageKind
) -> None:
    bench.cluster = cluster = LosingCluster(losing("good k=1", kind=kind))
    result = bench.run(whole_space(bench))
    assert cluster.attempts(kind, "good k=1") == [0, 1, 2]
    (given_up,) = (row for row in answered(result) if row.state is TrialState.INFEASIBLE)
    assert (given_up.speculation.label, given_up.error_type) == ("good k=1", "WorkerLostError")
    assert "lost its worker 3 times; the last time: the machine of good k=1 went away" in (given_up.error or "")
    assert result.stopped.kind is StopKind.ALL_TRIED


def test_two_configurations_in_a_row_that_lose_their_workers_are_the_machines_fault(bench: ClusterBench) -> None:
    bench.cluster = LosingCluster(losing("good k=1", "good k=2", "bad k=1", "bad k=2"))
    with pytest.raises(DispatchError, match="2 configurations in a row lost their workers"):
        bench.run(whole_space(bench))
    bench.cluster.close()
    bench.cluster = LosingCluster(lambda _task: False)
    result = bench.run(whole_space(bench))
    assert [row.state for row in answered(result)].count(TrialState.INFEASIBLE) == 1


def test_one_configuration_that_was_asked_for_twice_counts_once(bench: ClusterBench) -> None:
    bench.cluster = LosingCluster(losing("good k=2"))  # the predicted best, so that a random sampler repeats it
    space = SPACE.model_copy(update={"num_speculative_tokens": DraftTokens(min=2, max=2)})
    result = bench.run(bench.plan(space=space, sampler="random", budget=Budget(max_trials=50)))
    repeats = [row for row in result.trials if row.speculation.label == "good k=2"]
    assert {row.state for row in repeats} == {TrialState.INFEASIBLE}
    assert len([row for row in repeats if row.duplicate_of is None]) == 1


class Preempted:
    """Loses what waits or begins, many times over, before it has started."""

    def __init__(self, times: int) -> None:
        self.left = times

    def __call__(self, task: StageTask) -> bool:
        if task.kind is not StageKind.MEASURE or not self.left:
            return False
        self.left -= 1
        return True


def test_attempts_that_never_started_do_not_count(bench: ClusterBench) -> None:
    bench.cluster = cluster = LosingCluster(Preempted(40), before_start=True)
    result = bench.run(whole_space(bench))
    assert {row.state for row in result.trials} == {TrialState.COMPLETE}
    assert max(attempt for kind, _, attempt in cluster.submitted if kind is StageKind.MEASURE) > MAX_ATTEMPTS


# ── the driver ────────────────────────────────────────────────────────────────────────────────────────────────────


def stopped_at(bench: ClusterBench, plan: SearchPlan, owner: object, method: str, after: int) -> bool:
    """Run until the driver dies at the call of that number; whether it did."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, method, stopping(getattr(owner, method), after))
        try:
            bench.run(plan)
        except StopError:
            return True
    return False


def check_whole(bench: ClusterBench) -> None:
    """Everything has ended, once, in our rows and in Optuna's."""
    rows = bench.store.trials("study")
    assert [row.number for row in rows if row.state is TrialState.RUNNING] == []
    first = [row.speculation.key for row in rows if row.duplicate_of is None and row.state is TrialState.COMPLETE]
    assert len(first) == len(set(first)) == 5
    told = {one.number: one for one in bench.optuna_trials}
    assert [one for one in told.values() if one.state in (OptunaState.RUNNING, OptunaState.WAITING)] == []
    assert [number for number, one in told.items() if one.state is OptunaState.COMPLETE] == [one.number for one in rows]
    for row in rows:
        assert told[row.number].values == list(row.values.values())


WRITES = ("save_stage", "save_trial", "conclude")


@pytest.mark.slow
@pytest.mark.parametrize("method", WRITES)
def test_a_driver_that_dies_at_any_write_finds_its_stages_running_or_done(
    bench: ClusterBench, tmp_path: Path, method: str
) -> None:
    """On a standing cluster stages go on, and each is done once, whatever is killed."""
    for after in itertools.count():
        one = ClusterBench(tmp_path / f"{after}")
        bench.engine = one.engine
        has_died = stopped_at(one, whole_space(one), one.store, method, after)
        one.run(whole_space(one))
        check_whole(one)
        assert len(one.workshop.compiled) == 5
        loads = [label for label in one.world.loads if label in {"good k=1", "bad k=1", "bad k=2"}]
        assert sorted(loads) == ["bad k=1", "bad k=2", "bad k=2", "good k=1"]  # a trace at the largest k is one more
        if not has_died:
            break
    assert after >= (1 if method == "conclude" else 10)


@pytest.mark.slow
@pytest.mark.parametrize("method", WRITES)
def test_a_driver_that_dies_with_its_machines_repeats_only_what_had_not_ended(
    bench: ClusterBench, tmp_path: Path, method: str
) -> None:
    for after in itertools.count(0, 3):
        one = ClusterBench(tmp_path / f"{after}")
        bench.engine = one.engine
        has_died = stopped_at(one, whole_space(one), one.store, method, after)
        one.cluster.close()
        done = {(row.kind, row.key) for row in one.store.stages("study")} if one.store.studies() else set()
        done = {id_ for id_ in done if (found := one.store.stage("study", *id_)) and found.state is StageState.DONE}
        one.cluster = cluster = LosingCluster(lambda _task: False)
        one.run(whole_space(one))
        check_whole(one)
        submitted = [(task.kind, task.key) for task in cluster.tasks]
        assert not done & set(submitted)
        assert len(submitted) == len(set(submitted))
        if not has_died:
            break


@pytest.mark.parametrize("method", ["ask", "tell", "enqueue", "_finish", "_suggest"])
def test_a_driver_that_dies_around_optunas_writes_leaves_nothing_running_there(
    bench: ClusterBench, tmp_path: Path, method: str
) -> None:
    for after in itertools.count():
        one = ClusterBench(tmp_path / f"{after}")
        bench.engine = one.engine
        has_died = stopped_at(one, whole_space(one), TrialLedger, method, after)
        one.run(whole_space(one))
        check_whole(one)
        assert len(one.workshop.compiled) == 5
        if not has_died:
            break


def test_a_resumed_driver_attaches_to_the_attempt_that_runs(bench: ClusterBench) -> None:
    bench.cluster = cluster = LosingCluster(losing("good k=1", attempts=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench.cluster, "sleep", _stopping_once(cluster, StageKind.MEASURE, attempt=1))
        with pytest.raises(StopError):
            bench.run(whole_space(bench))
    began = {stage.task.name: stage.began_s for stage in cluster.running}
    cluster.tasks.clear()
    bench.run(whole_space(bench))
    assert cluster.attempts(StageKind.MEASURE, "good k=1") == [1]  # the name under which it runs
    ends = [one for one in cluster.ran if (one.kind, one.label) == (StageKind.MEASURE, "good k=1")]
    assert ends[-1].began_s in began.values()


def _stopping_once(cluster: LosingCluster, kind: StageKind, attempt: int) -> Callable[[float], None]:
    sleep = cluster.sleep

    def slept(seconds: float) -> None:
        if any(one.task.kind is kind and one.task.attempt == attempt for one in cluster.running):
            raise StopError
        sleep(seconds)

    return slept


def test_after_an_attempt_that_ended_badly_the_next_has_a_name_of_its_own(bench: ClusterBench) -> None:
    bench.cluster = LosingCluster(losing("no speculation", kind=StageKind.BASELINE))
    with pytest.raises(WorkerLostError, match="lost its worker 3 times"):
        bench.run(whole_space(bench))
    bench.cluster = cluster = LosingCluster(lambda _task: False)
    bench.run(whole_space(bench))
    assert cluster.attempts(StageKind.BASELINE, "no speculation") == [3]


# ── being stopped ─────────────────────────────────────────────────────────────────────────────────────────────────


class Ended(SilentObserver):
    """What ended with a look at it, and what without."""

    def __init__(self) -> None:
        self.collected: list[StageKind] = []
        self.abandoned: list[StageKind] = []

    def stage_ended(self, task: StageTask, status: StageStatus | None) -> None:
        (self.abandoned if status is None else self.collected).append(task.kind)


def stop_in_the_middle(bench: ClusterBench, how: StopAsked) -> tuple[float, Ended]:
    """Stop a search while some of its stages run and others wait; gives the moment, and what ended after it."""
    heard, moments = Ended(), [0.0]

    def asked() -> StopAsked | None:
        kinds = {one.task.kind for one in bench.cluster.running}
        waits = len(bench.cluster.running) < len(bench.cluster._stages)
        if moments[0] or (StageKind.MEASURE in kinds and waits):
            if not moments[0]:
                heard.collected.clear()
            moments[0] = moments[0] or bench.cluster.clock.now_s
            return how
        return None

    with pytest.raises(SearchStoppedError):
        bench.search(whole_space(bench), heard, stop_asked=asked).run()
    return moments[0], heard


def go_on(bench: ClusterBench) -> None:
    """The same search once more; nothing that was done is done again."""
    done = {(row.kind, row.key) for row in bench.store.stages("study") if row.state is StageState.DONE}
    submitted: list[tuple[StageKind, str]] = []
    with pytest.MonkeyPatch.context() as patch:
        submit = bench.cluster.submit
        patch.setattr(bench.cluster, "submit", lambda task: (submitted.append((task.kind, task.key)), submit(task))[1])
        bench.run(whole_space(bench))
    assert not done & set(submitted)
    check_whole(bench)


def test_what_runs_is_waited_for_and_nothing_new_is_started(bench: ClusterBench) -> None:
    moment_s, heard = stop_in_the_middle(bench, StopAsked.AFTER_RUNNING_STAGES)
    assert heard.collected
    assert heard.abandoned
    assert not bench.cluster.running
    assert all(one.began_s <= moment_s for one in bench.cluster.ran)
    assert moment_s < bench.cluster.clock.now_s <= moment_s + COMPILE_S
    go_on(bench)


def test_at_once_ends_what_runs(bench: ClusterBench) -> None:
    moment_s, heard = stop_in_the_middle(bench, StopAsked.AT_ONCE)
    assert heard.abandoned
    assert not bench.cluster.running
    assert bench.cluster.clock.now_s == moment_s
    go_on(bench)


def test_left_stages_go_on_and_the_next_driver_collects_them(bench: ClusterBench) -> None:
    stop_in_the_middle(bench, StopAsked.LEAVE)
    left = {stage.task.name for stage in bench.cluster.running}
    assert len(left) > 1
    compiled = list(bench.workshop.compiled)
    bench.cluster.clock.advance(COMPILE_S + MEASURE_S)  # they end while nobody looks
    go_on(bench)
    assert len(bench.workshop.compiled) == len(set(bench.workshop.compiled)) == 5
    assert bench.workshop.compiled[: len(compiled)] == compiled


def test_stopping_while_the_baseline_runs_keeps_it(bench: ClusterBench) -> None:
    def asked() -> StopAsked | None:
        kinds = {one.task.kind for one in bench.cluster.running}
        return (
            StopAsked.AFTER_RUNNING_STAGES if StageKind.BASELINE in kinds or bench.stages(StageKind.BASELINE) else None
        )

    with pytest.raises(SearchStoppedError):
        bench.search(whole_space(bench), stop_asked=asked).run()
    (row,) = bench.stages(StageKind.BASELINE)
    assert row.state is StageState.DONE
    go_on(bench)
