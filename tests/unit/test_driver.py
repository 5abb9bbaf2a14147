"""The search's loop against a simulated engine: order, resumption, duplicates, failures, verdict."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState as OptunaState

from tests.support.bench import SPACE, Bench, StopError, a_plan, a_world, stopping
from tests.support.simulated import SimulatedEngine
from tuner.api import SearchOptions, run_search
from tuner.decide import Verdict
from tuner.dispatch import InlineDispatcher, StageStatus
from tuner.driver import Search
from tuner.errors import OutOfDeviceMemoryError, StudyMismatchError, WorkerLostError
from tuner.objective import parse_objectives
from tuner.observer import SilentObserver
from tuner.plan import SearchPlan
from tuner.planning import CheckedSearch
from tuner.records import StageKind
from tuner.search_space import DraftTokens
from tuner.settings import read_settings
from tuner.speculation import NO_SPECULATION
from tuner.stages import MAX_ATTEMPTS
from tuner.stopping import Budget, Reason, Standing, StopKind
from tuner.store import TrialState
from tuner.study import TrialLedger
from tuner.trial import StageTask


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench(a_world())
    monkeypatch.setattr("tuner.intervals.RESAMPLES", 199)  # how wide limits are is tested elsewhere
    monkeypatch.setattr("tuner.trial.load_engine", lambda _name: SimulatedEngine(bench.world))
    return bench


def test_the_good_draft_is_recommended_near_its_best_k(bench: Bench) -> None:
    result = bench.run(a_plan())
    assert result.decision.verdict is Verdict.RECOMMEND
    assert result.recommended is not None
    assert result.recommended.speculation.draft_name == "good"
    best = max(result.predictions.by_configuration.values(), key=lambda one: one.speedup)
    assert result.recommended.metrics["speedup"] == pytest.approx(best.speedup, rel=0.02)


def test_the_baseline_is_trial_0_and_its_speed_up_is_1(bench: Bench) -> None:
    result = bench.run(a_plan())
    assert result.baseline.number == 0
    assert result.baseline.speculation == NO_SPECULATION
    assert result.baseline.metrics["speedup"] == 1.0


def test_the_search_ends_once_nothing_can_be_much_faster_than_the_best(bench: Bench) -> None:
    result = bench.run(a_plan())
    assert [trial.speculation.label for trial in result.trials] == ["no speculation", "good k=5"]
    assert result.stopped == Reason(
        kind=StopKind.NOTHING_WORTH_IT,
        text="no other configuration can be more than 1 % faster than good k=5 (95 % sure)",
    )
    assert result.study.conclusion is not None
    assert result.study.conclusion["stopped"] == {"kind": "nothing_worth_it", "text": result.stopped.text}


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_samplers_that_cannot_tell_when_to_stop_measure_six_configurations(bench: Bench, sampler: str) -> None:
    result = bench.run(a_plan(sampler=sampler))
    measured = [trial for trial in result.trials if trial.duplicate_of is None]
    assert len(measured) == 6
    assert len({trial.speculation.key for trial in measured}) == 6
    assert result.stopped.kind is StopKind.MAX_TRIALS


def test_what_was_measured_agrees_with_what_was_predicted(bench: Bench) -> None:
    for trial in bench.run(a_plan()).trials[1:]:
        if trial.duplicate_of is None:
            assert trial.metrics["speedup"] == pytest.approx(trial.predicted["speedup"], rel=1e-6)
            assert trial.metrics["acceptance_rate"] == pytest.approx(trial.predicted["acceptance_rate"])


def test_when_no_draft_pays_the_verdict_is_not_to_speculate(bench: Bench) -> None:
    bench.world.draft_ms = {"good": 30.0, "bad": 30.0}
    result = bench.run(a_plan())
    assert result.decision.verdict is Verdict.DO_NOT_SPECULATE
    assert result.recommended is None
    assert result.certified == ()
    assert len(result.trials) == 1  # the bounds rule out everything else, so nothing else is measured
    assert result.decision.sentence == (
        "Do not speculate: no other configuration can be more than 1 % faster than no speculation (95 % sure)."
    )


@pytest.mark.parametrize("sampler", ["tpe", "random", "nsga2", "grid"])
def test_every_other_sampler_exhausts_a_small_space_and_the_search_ends(bench: Bench, sampler: str) -> None:
    space = SPACE.model_copy(update={"num_speculative_tokens": DraftTokens(min=1, max=2)})
    result = bench.run(a_plan(space=space, budget=Budget(max_trials=50), sampler=sampler))
    assert {trial.speculation.key for trial in result.trials} == {one.key for one in space.configurations()}
    assert result.stopped == Reason(kind=StopKind.ALL_TRIED, text="every configuration of the space was tried")


def test_an_objective_that_can_only_be_measured_has_the_whole_space_tried(bench: Bench) -> None:
    space = SPACE.model_copy(update={"num_speculative_tokens": DraftTokens(min=1, max=2)})
    objectives = parse_objectives(["e2e_ms", "memory"])
    result = bench.run(a_plan(space=space, budget=Budget(max_trials=50), objectives=objectives))
    assert {trial.speculation.key for trial in result.trials} == {one.key for one in space.configurations()}
    assert result.stopped.kind is StopKind.ALL_TRIED


class Listener(SilentObserver):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.standings: list[Standing] = []
        self.notices: list[str] = []

    def standing(self, standing: Standing) -> None:
        self.standings.append(standing)

    def notice(self, text: str) -> None:
        self.notices.append(text)


def listening(bench: Bench, plan: SearchPlan) -> Listener:
    heard = Listener()
    Search(plan, bench.store, bench.ledger(plan), bench.dispatcher, heard).run()
    return heard


def test_after_each_trial_the_search_says_what_could_still_beat_the_best(bench: Bench) -> None:
    bench.world.draft_ms = {"good": 3.0, "bad": 3.0}
    heard = listening(bench, a_plan(epsilon=0.0001))
    trials = bench.store.trials("study")[1:]
    assert len(heard.standings) == len(trials) >= 2
    first, last = heard.standings[0], heard.standings[-1]
    assert first.best == trials[0].speculation
    assert first.best_speedup == pytest.approx(trials[0].metrics["speedup"], rel=0.001)
    assert first.num_open > 0
    assert first.most_promising == trials[1].speculation
    assert first.most_promising_bound is not None
    assert first.most_promising_bound > first.best_speedup
    assert (last.num_open, last.most_promising, last.num_unpredicted) == (0, None, 0)
    assert heard.notices[-1].startswith("no more configurations are tried: no other configuration can be more than")


def test_the_standing_counts_drafts_without_a_trace(bench: Bench) -> None:
    bench.world.broken = frozenset({"bad k=6"})
    heard = listening(bench, a_plan(budget=Budget(max_trials=2)))
    (standing,) = heard.standings
    assert standing.num_unpredicted == 6
    assert any("bad cannot be replayed and is explored without predictions" in notice for notice in heard.notices)


def test_samplers_that_cannot_tell_say_no_standing(bench: Bench) -> None:
    assert listening(bench, a_plan(sampler="random", budget=Budget(max_trials=2))).standings == []


def test_a_configuration_that_cannot_run_is_told_once_with_a_penalty_and_its_reason(bench: Bench) -> None:
    bench.world.broken = frozenset({"good k=4"})
    space = SPACE.model_copy(update={"num_speculative_tokens": DraftTokens(min=1, max=4)})
    result = bench.run(a_plan(space=space, budget=Budget(max_trials=50)))
    first = next(trial for trial in result.trials if trial.speculation.label == "good k=4")
    assert first.state is TrialState.INFEASIBLE
    assert first.error_type == OutOfDeviceMemoryError.__name__
    told = bench.optuna_trials[first.number]
    assert told.state is OptunaState.COMPLETE
    assert told.values[0] == pytest.approx(2 * result.baseline.values["e2e_ms"])
    assert told.constraints["cannot_run"] > 0
    assert bench.world.loads.count("good k=4") == 2  # the trace, which failed too, and one trial


def test_a_draft_that_cannot_be_traced_is_still_explored(bench: Bench) -> None:
    bench.world.broken = frozenset({"bad k=6"})
    result = bench.run(a_plan(budget=Budget(max_trials=13)))
    assert "bad" in {trial.speculation.draft_name for trial in result.trials if trial.state is TrialState.COMPLETE}


@pytest.mark.parametrize("method", ["save_stage", "save_trial", "conclude"])
@pytest.mark.parametrize("after", [0, 1, 3, 6, 9])
def test_a_search_stopped_anywhere_goes_on_and_repeats_no_measurement(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, method: str, after: int
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(bench.store, method, stopping(getattr(bench.store, method), after))
        try:
            bench.run(a_plan())
        except StopError:
            bench.dispatcher.close()
    done_before = (
        {(one.kind, one.key) for one in bench.store.stages("study") if one.ended_at is not None}
        if (bench.store.studies())
        else set()
    )
    bench.world.loads.clear()
    submitted: list[tuple[StageKind, str]] = []
    submit = bench.dispatcher.submit
    monkeypatch.setattr(
        bench.dispatcher, "submit", lambda task: (submitted.append((task.kind, task.key)), submit(task))[1]
    )
    result = bench.run(a_plan())
    assert result.decision.verdict is Verdict.RECOMMEND
    assert not done_before & set(submitted)
    assert result.baseline.number == 0
    assert all(trial.state is not TrialState.RUNNING for trial in result.trials)
    assert not [one for one in bench.optuna_trials if one.state is OptunaState.RUNNING]
    assert [one.number for one in bench.optuna_trials if one.state is OptunaState.COMPLETE] == [
        trial.number for trial in result.trials
    ]


@pytest.mark.parametrize("after", [1, 3, 5])
def test_a_driver_that_dies_before_it_tells_optuna_tells_it_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(TrialLedger, "tell", stopping(TrialLedger.tell, after))
        try:
            bench.run(a_plan())
        except StopError:
            bench.dispatcher.close()
    result = bench.run(a_plan())
    assert len(bench.optuna_trials) == len(result.trials)
    assert {one.state for one in bench.optuna_trials} == {OptunaState.COMPLETE}


def test_a_lost_optuna_study_is_rebuilt_from_our_rows(bench: Bench) -> None:
    before = bench.run(a_plan())
    bench.optuna_storage = optuna.storages.InMemoryStorage()
    after = bench.run(a_plan())
    assert after.trials == before.trials
    assert [one.values for one in bench.optuna_trials] == [list(trial.values.values()) for trial in before.trials]


def test_a_finished_study_measures_nothing_again(bench: Bench) -> None:
    first = bench.run(a_plan())
    bench.world.loads.clear()
    again = bench.run(a_plan())
    assert bench.world.loads == []
    assert (again.decision, again.trials, again.pareto) == (first.decision, first.trials, first.pareto)


def test_other_settings_under_the_same_name_are_refused_with_both_values(bench: Bench) -> None:
    bench.run(a_plan())
    with pytest.raises(StudyMismatchError, match=r"margin: stored 0\.02, now 0\.1"):
        bench.run(a_plan(margin=0.1))


class LosingDispatcher(InlineDispatcher):
    """Loses the worker of each stage a few times before it runs."""

    def __init__(self, losses: int) -> None:
        super().__init__()
        self.losses = losses
        self.held: set[str] = set()

    def submit(self, task: StageTask) -> None:
        self.held.add(task.name)
        super().submit(task)

    def forget(self, task: StageTask) -> None:
        self.held.remove(task.name)
        super().forget(task)

    def poll(self, task: StageTask) -> StageStatus:
        if task.attempt % MAX_ATTEMPTS < self.losses:
            return StageStatus(has_started=True, error=WorkerLostError("the worker is gone"))
        return super().poll(task)


def test_a_lost_worker_is_replaced(bench: Bench) -> None:
    bench.dispatcher = LosingDispatcher(losses=MAX_ATTEMPTS - 1)
    assert bench.run(a_plan()).decision.verdict is Verdict.RECOMMEND


def test_every_attempt_is_forgotten_so_that_the_next_stage_finds_its_machine_free(bench: Bench) -> None:
    dispatcher = LosingDispatcher(losses=1)
    bench.dispatcher = dispatcher
    bench.run(a_plan())
    assert not dispatcher.held


def test_a_worker_lost_every_time_ends_the_search_and_keeps_the_rows(bench: Bench) -> None:
    bench.dispatcher = LosingDispatcher(losses=MAX_ATTEMPTS)
    with pytest.raises(WorkerLostError, match="3 times"):
        bench.run(a_plan())
    (stage,) = bench.store.stages("study")
    assert stage.attempt == MAX_ATTEMPTS - 1
    bench.dispatcher = InlineDispatcher()
    assert bench.run(a_plan()).decision.verdict is Verdict.RECOMMEND


def test_the_front_holds_the_baseline_and_marks_what_was_only_predicted(bench: Bench) -> None:
    front = bench.run(a_plan()).pareto
    assert any(entry.speculation.is_baseline and entry.is_measured for entry in front)
    assert all((entry.trial_number is not None) == entry.is_measured for entry in front)
    latencies = [entry.values["e2e_ms"] for entry in front]
    assert latencies == sorted(latencies)


class ReadSearch(CheckedSearch):
    """Has its models' fingerprints already."""

    def plan(self) -> SearchPlan:
        return self.draft


def test_other_settings_under_the_same_name_change_nothing_in_optuna(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tuner.api.open_optuna_storage", lambda _url, _patience: bench.optuna_storage)
    settings = read_settings({}, storage_url=f"sqlite:///{tmp_path / 'studies.sqlite'}", cache_dir=tmp_path)

    def search(plan: SearchPlan) -> None:
        def checked(options: SearchOptions, _settings: object) -> CheckedSearch:
            return ReadSearch(options=options, engine=SimulatedEngine(bench.world), draft=plan, places={})

        monkeypatch.setattr("tuner.api.check_search", checked)
        run_search(SearchOptions(workload="any", dispatch="inline", name=plan.name), settings=settings)

    search(a_plan(budget=Budget(max_trials=1)))
    before = optuna.load_study(study_name="study", storage=bench.optuna_storage)
    for objectives in (["ttft_ms"], ["ttft_ms", "memory"], ["output_tokens_per_s", "waste"]):
        with pytest.raises(StudyMismatchError, match="objectives: stored"):
            search(a_plan(budget=Budget(max_trials=1), objectives=parse_objectives(objectives)))
    after = optuna.load_study(study_name="study", storage=bench.optuna_storage)
    assert after.metric_names == before.metric_names == ["e2e_ms", "waste"]
    assert after.user_attrs == before.user_attrs


@pytest.mark.parametrize("directions", [["minimize"], ["minimize", "maximize"], ["minimize", "minimize"]])
def test_an_optuna_study_of_another_program_is_left_alone(bench: Bench, directions: list[str]) -> None:
    theirs = optuna.create_study(storage=bench.optuna_storage, study_name="study", directions=directions)
    theirs.add_trial(optuna.trial.create_trial(values=[1.0] * len(directions)))
    with pytest.raises(StudyMismatchError, match="not this search's"):
        bench.run(a_plan())
    kept = optuna.load_study(study_name="study", storage=bench.optuna_storage)
    assert kept.user_attrs == {}
    assert kept.metric_names is None
    assert len(kept.get_trials()) == 1
