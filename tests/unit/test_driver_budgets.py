"""What a search may use: trials, compiles, minutes, cost; and going on when it is given more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.bench import Bench, StopError, a_plan, a_world, stopping
from tests.support.simulated import SimulatedEngine
from tuner.dispatch import InlineDispatcher, StageStatus
from tuner.records import StageKind
from tuner.stopping import Budget, Reason, StopKind
from tuner.trial import StageTask


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench(a_world())
    monkeypatch.setattr("tuner.intervals.RESAMPLES", 199)  # how wide limits are is tested elsewhere
    monkeypatch.setattr("tuner.trial.load_engine", lambda _name: SimulatedEngine(bench.world))
    return bench


def test_more_trials_go_on_with_an_ended_study(bench: Bench) -> None:
    first = bench.run(a_plan(sampler="random", budget=Budget(max_trials=2)))
    assert (len(first.trials), first.stopped.text) == (2, "2 configurations were tried, the limit is 2")
    bench.world.loads.clear()
    second = bench.run(a_plan(sampler="random", budget=Budget(max_trials=4)))
    assert second.trials[:2] == first.trials
    assert second.stopped == Reason(kind=StopKind.MAX_TRIALS, text="4 configurations were tried, the limit is 4")
    assert first.trials[1].speculation.label not in bench.world.loads[:2]


def test_fewer_trials_than_were_measured_measure_nothing_and_decide_again(bench: Bench) -> None:
    first = bench.run(a_plan(sampler="random", budget=Budget(max_trials=4)))
    bench.world.loads.clear()
    second = bench.run(a_plan(sampler="random", budget=Budget(max_trials=2)))
    assert second.trials == first.trials
    assert bench.world.loads == []


def test_a_smaller_epsilon_goes_on_with_an_ended_study(bench: Bench) -> None:
    coarse = bench.run(a_plan(epsilon=0.9))
    assert coarse.stopped.text == "no other configuration can be more than 90 % faster than no speculation (95 % sure)"
    fine = bench.run(a_plan(epsilon=0.01))
    assert fine.trials[0] == coarse.trials[0]
    assert len(fine.trials) == 2


def test_where_nothing_is_worth_it_any_more_that_is_said_and_not_the_limit(bench: Bench) -> None:
    result = bench.run(a_plan(budget=Budget(max_trials=2)))
    assert (len(result.trials), result.stopped.kind) == (2, StopKind.NOTHING_WORTH_IT)


def test_compiles_are_limited_as_trials_are(bench: Bench) -> None:
    result = bench.run(a_plan(sampler="random", budget=Budget(max_trials=6, max_compiles=3)))
    assert len(result.trials) == 3
    assert result.stopped.text == "3 configurations were compiled, the limit is 3"


class HourlyDispatcher(InlineDispatcher):
    """Every stage takes an hour."""

    def poll(self, task: StageTask) -> StageStatus:
        return replace(super().poll(task), ran_s=3600.0)


def an_hour_a_stage(bench: Bench) -> None:
    bench.dispatcher = HourlyDispatcher()


def test_minutes_are_those_of_all_stages(bench: Bench) -> None:
    an_hour_a_stage(bench)
    # the baseline and two traces take three hours, and the first configuration makes it four
    result = bench.run(a_plan(sampler="random", budget=Budget(max_minutes=240)))
    assert len(result.trials) == 2
    assert result.stopped == Reason(
        kind=StopKind.MAX_MINUTES, text="240.0 minutes of measuring were used, the limit is 240"
    )


def test_minutes_of_earlier_runs_count(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    an_hour_a_stage(bench)
    plan = a_plan(sampler="random", budget=Budget(max_trials=9, max_minutes=300))
    with monkeypatch.context() as patch:
        patch.setattr(bench.store, "save_trial", stopping(bench.store.save_trial, 3))  # stopped after four hours
        with pytest.raises(StopError):
            bench.run(plan)
    assert len([one for one in bench.store.stages("study") if one.ended_at is not None]) == 4
    assert bench.run(plan).stopped.text == "300.0 minutes of measuring were used, the limit is 300"
    measured = [one for one in bench.store.stages("study") if one.kind is StageKind.MEASURE]
    assert len(measured) == 2


def test_the_final_comparison_is_not_counted_when_more_minutes_are_given(bench: Bench) -> None:
    an_hour_a_stage(bench)
    first = bench.run(a_plan(sampler="random", budget=Budget(max_minutes=240)))
    assert first.certified is not None
    second = bench.run(a_plan(sampler="random", budget=Budget(max_minutes=300)))
    assert len(second.trials) == len(first.trials) + 1
    assert second.stopped.text == "300.0 minutes of measuring were used, the limit is 300"


def test_cost_is_the_price_of_those_hours(bench: Bench) -> None:
    an_hour_a_stage(bench)
    result = bench.run(a_plan(sampler="random", budget=Budget(max_cost=6.5, price_per_hour=1.5)))
    assert result.stopped == Reason(kind=StopKind.MAX_COST, text="7.50 was spent, the limit is 6.5")
    assert len(result.trials) == 3
