"""The searcher for Ray Tune, asked and told as Tune does it, and what the trainable reports; without a cluster."""

from __future__ import annotations

import math
import pickle
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState as OptunaState

from tests.support.bench import Bench, a_plan, a_world
from tests.support.compiling import ClusterBench
from tests.support.simulated import SimulatedEngine, World
from tuner.driver import Search
from tuner.errors import NotFoundError, WorkerLostError
from tuner.hardware import Hardware
from tuner.objective import parse_objectives
from tuner.plan import SearchPlan
from tuner.records import StageKind
from tuner.search_space import DraftTokens
from tuner.stages import MAX_ATTEMPTS
from tuner.stopping import StopKind
from tuner.store import TrialState
from tuner.stored import read_study

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what Ray Tune says at its import is its own
    from ray.tune.search import ConcurrencyLimiter, Searcher

    from tuner import ray_tune
    from tuner.ray_tune import PreparedSearch, ReplaySearcher, configuration_runner, tune_resources

FINISHED: Any = Searcher.FINISHED


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = a_world()
    monkeypatch.setattr("tuner.intervals.RESAMPLES", 199)  # how wide limits are is tested elsewhere
    monkeypatch.setattr("tuner.trial.load_engine", lambda _name: SimulatedEngine(world))
    return world


def predict(bench: Bench, plan: SearchPlan) -> None:
    Search(plan, bench.store, bench.ledger(plan), bench.dispatcher).predict()


def prepared(world: World, **changes: object) -> PreparedSearch:
    """A predicted study of the simulated engine."""
    bench, plan = Bench(world), a_plan(**changes)
    predict(bench, plan)
    return PreparedSearch.of(plan, read_study(bench.store, plan.name))


def small(plan_changes: Mapping[str, object] | None = None) -> dict[str, object]:
    """Changes of a plan for a space of four configurations with speculation."""
    space = a_plan().space.model_copy(update={"num_speculative_tokens": DraftTokens(min=1, max=2)})
    return {"space": space, **(plan_changes or {})}


@dataclass
class Tune:
    """What Tune does with a searcher and a trainable, one trial after the other."""

    searcher: Searcher
    run: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    asked: int = 0

    def fit(self) -> list[dict[str, Any]]:
        """The configurations that were run, until the searcher is finished."""
        configs: list[dict[str, Any]] = []
        while (config := self.searcher.suggest(name := self.next_name())) != FINISHED:
            assert config is not None
            configs.append(config)
            self.searcher.on_trial_complete(name, {**self.run(config), "training_iteration": 1, "done": True})
        return configs

    def next_name(self) -> str:
        self.asked += 1
        return f"trial-{self.asked}"


def optuna_trials(searcher: ReplaySearcher) -> list[optuna.trial.FrozenTrial]:
    return optuna.load_study(study_name=ray_tune.STUDY_NAME, storage=searcher.optuna_storage).get_trials()


def states(searcher: ReplaySearcher) -> list[OptunaState]:
    return [trial.state for trial in optuna_trials(searcher)]


def test_tune_measures_what_a_search_would_measure_and_ends_when_nothing_is_worth_it(world: World) -> None:
    before = prepared(world)
    searcher = before.searcher()
    configs = Tune(searcher, configuration_runner(before)).fit()
    assert configs == [{"draft": "good", "num_speculative_tokens": 5}]
    assert searcher.finished_because is not None
    assert searcher.finished_because.kind is StopKind.NOTHING_WORTH_IT


def test_a_trial_has_the_metrics_of_a_search_and_its_prediction(world: World) -> None:
    before = prepared(world)
    searcher = before.searcher()
    Tune(searcher, configuration_runner(before)).fit()
    trial = searcher.trials[1]
    assert trial.state is TrialState.COMPLETE
    assert trial.metrics["speedup"] == pytest.approx(trial.predicted["speedup"], rel=1e-6)
    assert set(trial.values) == {"e2e_ms", "waste"}
    assert "training_iteration" not in trial.metrics


@pytest.mark.parametrize("sampler", ["tpe", "random", "grid"])
def test_samplers_that_cannot_tell_when_to_stop_try_every_configuration_once(world: World, sampler: Any) -> None:
    before = prepared(world, **small())
    configs = Tune(before.searcher(sampler), configuration_runner(before)).fit()
    tried = [(one["draft"], one["num_speculative_tokens"]) for one in configs]
    assert sorted(tried) == [("bad", 1), ("bad", 2), ("good", 1), ("good", 2)]


def test_nothing_is_asked_twice_while_it_runs(world: World) -> None:
    objectives = parse_objectives(["e2e_ms", "memory"])  # of memory only a measurement can tell, so that all is tried
    searcher = prepared(world, **small({"objectives": objectives})).searcher()
    configs = [searcher.suggest(f"trial-{number}") for number in range(5)]
    assert configs[4] is None  # all four run
    assert len({(one["draft"], one["num_speculative_tokens"]) for one in configs[:4] if one}) == 4


def test_while_a_trial_runs_that_decides_tune_waits(world: World) -> None:
    before = prepared(world)
    searcher = before.searcher()
    config = searcher.suggest("first")
    assert config is not None
    assert searcher.suggest("second") is None
    searcher.on_trial_complete("first", dict(configuration_runner(before)(config)))
    assert searcher.suggest("third") == FINISHED


def test_asking_again_for_a_trial_gives_its_configuration(world: World) -> None:
    searcher = prepared(world).searcher()
    assert searcher.suggest("first") == searcher.suggest("first")
    assert states(searcher) == [OptunaState.COMPLETE, OptunaState.RUNNING]


def test_what_was_measured_before_is_known(world: World) -> None:
    bench, plan = Bench(world), a_plan()
    bench.run(plan)
    searcher = PreparedSearch.of(plan, read_study(bench.store, plan.name)).searcher()
    assert searcher.suggest("first") == FINISHED


def test_a_study_without_a_baseline_is_refused(world: World) -> None:
    bench, plan = Bench(world), a_plan()
    predict(bench, plan)
    study = replace(read_study(bench.store, plan.name), baseline_result=None)
    with pytest.raises(NotFoundError, match="has no baseline yet"):
        PreparedSearch.of(plan, study)


def test_a_configuration_is_compiled_before_it_is_measured_and_only_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bench = ClusterBench(tmp_path)
    monkeypatch.setattr("tuner.trial.load_engine", lambda _name: bench.engine)
    plan = bench.plan()
    bench.search(plan).predict()
    before = PreparedSearch.of(plan, read_study(bench.store, plan.name))
    bench.workshop.compiled.clear()
    for _ in range(2):
        found = configuration_runner(before)({"draft": "good", "num_speculative_tokens": 3})
        assert found["cannot_run"] == 0.0
    assert bench.workshop.compiled == ["good k=3"]
    bench.workshop.failing.add("good k=4")
    found = configuration_runner(before)({"draft": "good", "num_speculative_tokens": 4})
    assert found["cannot_run"] == 1.0
    assert found["error_type"] == "CompileError"


# ── failures ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_configuration_that_cannot_run_is_told_as_such_and_not_asked_again(world: World) -> None:
    before = prepared(world)
    world.broken = frozenset({"good k=5"})
    searcher = before.searcher()
    configs = Tune(searcher, configuration_runner(before)).fit()
    assert configs[0] == {"draft": "good", "num_speculative_tokens": 5}
    assert configs[0] not in configs[1:]
    trial = optuna_trials(searcher)[1]
    assert trial.state is OptunaState.COMPLETE
    assert trial.constraints["cannot_run"] == 1.0
    assert searcher.trials[1].error_type == "OutOfDeviceMemoryError"
    assert searcher.trials[1].error == "good k=5 does not fit\nlower num_speculative_tokens"


def test_what_cannot_run_is_reported_with_every_objective_named_and_without_a_number(world: World) -> None:
    run = configuration_runner(prepared(world))
    world.broken = frozenset({"good k=5"})
    found = run({"draft": "good", "num_speculative_tokens": 5})
    assert found["cannot_run"] == 1.0
    assert math.isnan(float(found["e2e_ms"]))
    assert math.isnan(float(found["waste"]))


def test_what_runs_is_reported_as_such(world: World) -> None:
    found = configuration_runner(prepared(world))({"draft": "good", "num_speculative_tokens": 5})
    assert found["cannot_run"] == 0.0
    assert float(found["speedup"]) > 1
    assert "error" not in found


def test_a_lost_worker_is_not_taken_for_a_configuration_that_cannot_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(_task: object) -> bytes:
        raise WorkerLostError("the worker died")

    run = configuration_runner(prepared(world))
    monkeypatch.setattr("tuner.ray_tune.run_stage", lose)
    with pytest.raises(WorkerLostError):
        run({"draft": "good", "num_speculative_tokens": 5})


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (None, True),
        (None, False),
        ({}, False),
        ({"e2e_ms": 100.0}, False),
        ({"e2e_ms": math.nan, "waste": 0.1}, False),
        ({"e2e_ms": math.inf, "waste": 0.1}, False),
        ({"e2e_ms": "fast", "waste": 0.1}, False),
        ({"e2e_ms": 100.0, "waste": 0.1}, True),
        ({"cannot_run": 1.0}, True),
    ],
)
def test_a_trial_without_a_usable_result_is_failed_and_asked_again(
    world: World, result: dict[str, Any] | None, error: bool
) -> None:
    searcher = prepared(world).searcher()
    first = searcher.suggest("first")
    searcher.on_trial_complete("first", result, error=error)
    assert states(searcher) == [OptunaState.COMPLETE, OptunaState.FAIL]
    assert searcher.suggest("second") == first


def test_a_configuration_that_is_lost_every_time_is_given_up(world: World) -> None:
    searcher = prepared(world).searcher()
    first = searcher.suggest("trial-0")
    for number in range(MAX_ATTEMPTS):
        assert searcher.suggest(f"trial-{number}") == first
        searcher.on_trial_complete(f"trial-{number}", error=True)
    assert searcher.trials[-1].state is TrialState.INFEASIBLE
    assert str(searcher.trials[-1].error).startswith("good k=5 was lost 3 times")
    assert searcher.suggest("next") != first


def test_a_trial_that_ends_twice_is_told_once(world: World) -> None:
    before = prepared(world)
    searcher = before.searcher()
    config = searcher.suggest("first")
    assert config is not None
    result = dict(configuration_runner(before)(config))
    searcher.on_trial_complete("first", result)
    searcher.on_trial_complete("first", {**result, "e2e_ms": 1.0, "config/draft": "good"})
    assert states(searcher) == [OptunaState.COMPLETE, OptunaState.COMPLETE]


# ── interruptions ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_restored_searcher_goes_on_without_repeating_anything(world: World, tmp_path: Path) -> None:
    before = prepared(world)
    world.broken = frozenset({"good k=5"})
    searcher = before.searcher()
    first, run = searcher.suggest("first"), configuration_runner(before)
    assert first is not None
    searcher.on_trial_complete("first", dict(run(first)))
    second = searcher.suggest("second")
    assert second is not None
    searcher.save(str(tmp_path / "state.pkl"))

    again = before.searcher()
    again.restore(str(tmp_path / "state.pkl"))
    assert states(again) == [OptunaState.COMPLETE, OptunaState.COMPLETE, OptunaState.RUNNING]
    assert again.suggest("second") == second  # Tune runs it again under its name
    again.on_trial_complete("second", dict(run(second)))
    searcher.on_trial_complete("second", dict(run(second)))
    assert again.suggest("third") == searcher.suggest("third")


def test_a_pickled_searcher_knows_its_trials(world: World) -> None:
    before = prepared(world)
    searcher = before.searcher()
    searcher.suggest("first")
    copy = pickle.loads(pickle.dumps(searcher))  # noqa: S301 - its own
    assert copy.trials == searcher.trials
    assert states(copy) == states(searcher)


def test_trials_that_tune_stopped_are_failed_when_a_run_begins_and_ends(world: World) -> None:
    @dataclass
    class TuneTrial:
        trial_id: str
        ended: bool

        def is_finished(self) -> bool:
            return self.ended

    objectives = parse_objectives(["e2e_ms", "memory"])
    searcher = prepared(world, **small({"objectives": objectives})).searcher()
    for name in ("stopped", "running"):
        searcher.suggest(name)
    callback, trials = searcher.callback(), [TuneTrial("stopped", True), TuneTrial("running", False)]
    callback.setup()
    callback.on_step_begin(0, trials)
    assert states(searcher)[1:] == [OptunaState.FAIL, OptunaState.RUNNING]
    callback.on_experiment_end(trials)
    assert states(searcher)[1:] == [OptunaState.FAIL, OptunaState.FAIL]


def test_a_trial_that_only_tune_remembers_is_taken_in(world: World) -> None:
    before = prepared(world)
    searcher, run = before.searcher(), configuration_runner(before)
    config = {"draft": "good", "num_speculative_tokens": 5}
    searcher.on_trial_complete("unknown", {**run(config), "config/draft": "good", "config/num_speculative_tokens": 5})
    assert searcher.trials[1].state is TrialState.COMPLETE
    assert states(searcher) == [OptunaState.COMPLETE, OptunaState.COMPLETE]
    assert searcher.suggest("first") == FINISHED


def test_tune_may_limit_what_is_in_flight(world: World) -> None:
    objectives = parse_objectives(["e2e_ms", "memory"])
    before = prepared(world, **small({"objectives": objectives}))
    limited = ConcurrencyLimiter(before.searcher(), max_concurrent=1)
    assert limited.suggest("first") is not None
    assert limited.suggest("second") is None


# ── resources ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_measurement_and_its_devices_are_one_bundle() -> None:
    each = {str(kind): {"num_cpus": 8} for kind in StageKind}
    stages = {**each, "measure": {"num_cpus": 8, "memory_gb": 2}}
    hardware = Hardware.model_validate(
        {"name": "trn", "description": "a test", "device": "neuron_cores", "block": 32, "stages": stages}
    )
    resources = tune_resources(a_plan(hardware=hardware))
    assert resources.bundles == [{"CPU": 8.0, "neuron_cores": 32.0, "memory": 2e9}]


def test_without_devices_a_measurement_holds_every_cpu_of_a_machine() -> None:
    assert tune_resources(a_plan(), num_cpus=6).bundles == [{"CPU": 6.0}]
