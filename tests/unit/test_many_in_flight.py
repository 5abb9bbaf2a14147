"""Many trials in flight on machines with a clock of their own: what runs beside what, and what is asked meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness.simulated_cluster import Interval
from tests.support.bench import SPACE
from tests.support.compiling import COMPILE_S, MEASURE_S, ClusterBench, a_cluster
from tests.support.simulated import SimulatedEngine
from tuner.decide import Verdict
from tuner.driver import SearchResult
from tuner.observer import SilentObserver
from tuner.plan import SearchPlan
from tuner.records import StageKind
from tuner.search_space import DraftTokens
from tuner.stopping import Budget, StopKind
from tuner.store import TrialState
from tuner.trial import StageTask

TIMED = frozenset(StageKind) - {StageKind.COMPILE}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ClusterBench:
    bench = ClusterBench(tmp_path)
    monkeypatch.setattr("tuner.intervals.RESAMPLES", 199)  # how wide limits are is tested elsewhere
    monkeypatch.setattr("tuner.trial.load_engine", lambda _name: bench.engine)
    return bench


def a_random_plan(bench: ClusterBench, max_trials: int = 9, **changes: object) -> SearchPlan:
    return bench.plan(sampler="random", budget=Budget(max_trials=max_trials), **changes)


class InFlight(SilentObserver):
    """Counts trials of different configurations in flight whenever a stage begins."""

    def __init__(self, bench: ClusterBench) -> None:
        self.bench = bench
        self.counts: list[int] = []

    def stage_began(self, task: StageTask) -> None:
        rows = self.bench.store.trials("study")
        self.counts.append(len({row.speculation.key for row in rows if row.state is TrialState.RUNNING}))


def most_in_flight(bench: ClusterBench, plan: SearchPlan) -> int:
    heard = InFlight(bench)
    bench.search(plan, heard).run()
    return max(heard.counts)


def overlapping(ran: list[Interval], one: Interval) -> list[Interval]:
    return [other for other in ran if other is not one and other.began_s < one.ended_s and one.began_s < other.ended_s]


# ── how many at once ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("parallel", "most"), [(1, 1), (3, 3), (None, 7)])
def test_as_many_trials_are_in_flight_as_are_asked_for_or_as_the_machines_take(
    bench: ClusterBench, parallel: int | None, most: int
) -> None:
    bench.cluster = a_cluster(machines=2, cpus=3)  # one measurement and three compiles on each, of which 12 are tried
    bench.cluster.machines[1].cpus = bench.cluster.machines[1].free_cpus = 2
    assert most_in_flight(bench, a_random_plan(bench, max_trials=13, parallel=parallel)) == most


def test_an_engine_without_a_compiler_has_one_trial_in_flight_on_each_machine(
    bench: ClusterBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.trial.load_engine", lambda _name: SimulatedEngine(bench.world))
    assert most_in_flight(bench, a_random_plan(bench, compiling=None)) == 2


def test_the_next_configuration_is_compiled_while_the_first_is_measured(bench: ClusterBench) -> None:
    bench.cluster = a_cluster(machines=3)
    bench.run(a_random_plan(bench))
    measured = [one for one in bench.cluster.ran if one.kind is StageKind.MEASURE]
    beside = {other.kind for one in measured for other in overlapping(bench.cluster.ran, one)}
    assert StageKind.COMPILE in beside


def test_a_timed_stage_has_its_machine_alone(bench: ClusterBench) -> None:
    bench.cluster = a_cluster(machines=1)
    bench.run(a_random_plan(bench))
    timed = [one for one in bench.cluster.ran if one.kind in TIMED]
    assert len(timed) >= 12
    assert all(not overlapping(bench.cluster.ran, one) for one in timed)


def test_a_long_row_of_compiles_does_not_keep_a_measurement_off_its_machine(bench: ClusterBench) -> None:
    bench.cluster = a_cluster(machines=1, cpus=2)
    bench.run(a_random_plan(bench))
    compiled = {one.label: one.ended_s for one in bench.cluster.ran if one.kind is StageKind.COMPILE}
    waits = [one.began_s - compiled[one.label] for one in bench.cluster.ran if one.kind is StageKind.MEASURE]
    assert max(waits) <= COMPILE_S + 2 * MEASURE_S


# ── what is asked meanwhile ───────────────────────────────────────────────────────────────────────────────────────


def configurations(result: SearchResult) -> set[str]:
    return {row.speculation.label for row in result.trials}


@pytest.mark.parametrize("most", [2, 5])
def test_nothing_is_asked_beyond_the_trials_with_many_in_flight(bench: ClusterBench, most: int) -> None:
    result = bench.run(a_random_plan(bench, max_trials=most))
    assert len(configurations(result)) == most
    assert result.stopped.kind is StopKind.MAX_TRIALS


def test_nothing_is_compiled_beyond_the_compiles_with_many_in_flight(bench: ClusterBench) -> None:
    result = bench.run(bench.plan(sampler="random", budget=Budget(max_compiles=5)))
    assert len(bench.workshop.compiled) == 5  # the baseline, the traces at the largest k, and two more
    assert result.stopped.kind is StopKind.MAX_COMPILES


def test_minutes_of_what_runs_count_before_more_is_asked(bench: ClusterBench) -> None:
    before = 20 + 3 + 2 * (20 + 3)  # baseline and traces
    result = bench.run(bench.plan(sampler="random", parallel=2, budget=Budget(max_minutes=before + 30)))
    assert result.stopped.kind is StopKind.MAX_MINUTES
    assert len(configurations(result)) <= 4


def test_a_configuration_that_is_asked_for_while_it_runs_shares_its_result(bench: ClusterBench) -> None:
    result = bench.run(a_random_plan(bench, max_trials=13))
    repeats = [row for row in result.trials if row.duplicate_of is not None]
    assert repeats
    for row in repeats:
        assert (row.speculation, row.values) == (result.trials[row.duplicate_of or 0].speculation, row.values)
    assert len([one for one in bench.cluster.ran if one.kind is StageKind.MEASURE]) == 12


def test_the_replay_sampler_asks_for_no_more_than_is_worth_it_beside_what_runs(bench: ClusterBench) -> None:
    bench.cluster = a_cluster(machines=8, cpus=8)
    result = bench.run(bench.plan(budget=Budget(max_trials=13)))
    assert result.stopped.kind is StopKind.NOTHING_WORTH_IT
    assert len(configurations(result)) <= 3
    assert all("bad" not in label for label in configurations(result))


@pytest.mark.parametrize("sampler", ["replay", "grid"])
def test_the_conclusion_is_that_of_one_at_a_time(bench: ClusterBench, tmp_path: Path, sampler: str) -> None:
    space = SPACE.model_copy(update={"num_speculative_tokens": DraftTokens(min=1, max=6)})
    budget = Budget(max_trials=13)
    many = bench.run(bench.plan(sampler=sampler, space=space, budget=budget))
    other = ClusterBench(tmp_path / "other")
    bench.engine = other.engine
    one = other.run(other.plan(sampler=sampler, space=space, budget=budget, parallel=1))
    assert many.decision.verdict is one.decision.verdict is Verdict.RECOMMEND
    assert many.recommended is not None
    assert one.recommended is not None
    assert many.recommended.speculation == one.recommended.speculation
    assert configurations(one) <= configurations(many)
    if sampler == "grid":
        assert _measured(many) == pytest.approx(_measured(one))


def _measured(result: SearchResult) -> dict[str, float]:
    return {row.speculation.label: row.values["e2e_ms"] for row in result.trials}
