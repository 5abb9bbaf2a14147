"""Objectives at several numbers of requests in flight, and cost, through the whole loop of a search."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import optuna
import pytest

from tests.support.simulated import SimulatedEngine, World
from tests.support.simulated_studies import a_plan
from tuner.dispatch import InlineDispatcher
from tuner.driver import Search, SearchResult
from tuner.objective import parse_objectives
from tuner.observer import SilentObserver
from tuner.plan import SearchPlan
from tuner.records import BaselineResult, MeasureResult, StageKind, from_json
from tuner.search_space import DraftTokens
from tuner.speculation import NO_SPECULATION, Speculation
from tuner.stopping import StopKind
from tuner.stored import read_study
from tuner.study import TrialLedger
from tuner.testing.memory_store import MemoryStore
from tuner.trial import StageTask

LATENCY_AND_THROUGHPUT = ("e2e_ms@1", "output_tokens_per_s@8")


class Heard(SilentObserver):
    """Keeps the notices."""

    def __init__(self) -> None:
        self.notices: list[str] = []

    def notice(self, text: str) -> None:
        self.notices.append(text)


@dataclass
class Machine:
    """A simulated engine, whose further rows of a pass cost enough to make many drafted tokens dear at a load."""

    world: World = field(
        default_factory=lambda: World(
            hit_rates={"light": 0.8, "heavy": 0.3}, draft_ms={"light": 1.0, "heavy": 4.0}, ttft_ms=2.0
        )
    )
    store: MemoryStore = field(default_factory=MemoryStore)
    heard: Heard = field(default_factory=Heard)
    submitted: list[StageTask] = field(default_factory=list)

    def search(self, plan: SearchPlan) -> SearchResult:
        dispatcher = InlineDispatcher()
        submit = dispatcher.submit

        def remembered(task: StageTask) -> None:
            self.submitted.append(task)
            submit(task)

        dispatcher.submit = remembered  # type: ignore[method-assign]
        ledger = TrialLedger.open(optuna.storages.InMemoryStorage(), plan.name, plan.space, plan.objectives)
        return Search(plan, self.store, ledger, dispatcher, self.heard).run()

    def tasks(self, kind: StageKind) -> list[StageTask]:
        return [task for task in self.submitted if task.kind is kind]

    def result_of(self, plan: SearchPlan, task: StageTask) -> bytes:
        stage = self.store.stage(plan.name, task.kind, task.key)
        assert stage is not None
        assert stage.result is not None
        return stage.result


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr("tuner.trial.load_engine", lambda _name: SimulatedEngine(made.world))
    return made


@dataclass
class Searched:
    """A search that ended, and the machine it ran on."""

    machine: Machine
    plan: SearchPlan
    result: SearchResult


@pytest.fixture(scope="module")
def searched() -> Searched:
    """Latency alone, and throughput of eight requests."""
    machine, plan = Machine(), plan_of(*LATENCY_AND_THROUGHPUT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tuner.trial.load_engine", lambda _name: SimulatedEngine(machine.world))
        return Searched(machine=machine, plan=plan, result=machine.search(plan))


def plan_of(*names: str, price_per_hour: float | None = None) -> SearchPlan:
    objectives = parse_objectives(names, concurrency=1, price_per_hour=price_per_hour)
    return a_plan("mixed-load", objectives=objectives)


# ── what is measured ──────────────────────────────────────────────────────────────────────────────────────────────


def test_one_engine_with_a_slot_for_each_request_is_measured_at_every_load(searched: Searched) -> None:
    machine, plan = searched.machine, searched.plan
    (task,) = machine.tasks(StageKind.BASELINE)
    assert (task.config.max_num_seqs, task.concurrency, task.loads) == (8, 1, (8,))
    baseline = from_json(BaselineResult, machine.result_of(plan, task))
    assert baseline.measurement.environment["concurrency"] == "1"
    assert baseline.at_load[8].measurement.environment["concurrency"] == "8"
    assert baseline.at_load[8].verify is not None
    assert baseline.at_load[8].verify.batch == 8
    measured = from_json(MeasureResult, machine.result_of(plan, machine.tasks(StageKind.MEASURE)[0]))
    assert set(measured.at_load) == {8}


def test_figures_of_a_load_are_columns_of_their_own(searched: Searched) -> None:
    alone, tried = searched.result.trials[:2]
    assert alone.values["e2e_ms@1"] == alone.metrics["e2e_ms_mean"]
    assert alone.values["output_tokens_per_s@8"] == alone.metrics["output_tokens_per_s@8"]
    assert alone.metrics["speedup@8"] == 1.0
    assert tried.metrics["speedup"] != tried.metrics["speedup@8"]
    limits = [tried.metrics[name] for name in ("speedup_low@8", "speedup@8", "speedup_high@8")]
    assert limits == sorted(limits, key=lambda one: one or 0.0)


def test_a_machine_that_slowed_down_is_corrected_at_every_load(
    machine: Machine, searched: Searched, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_as_fast = replace(machine.world, round_ms=40.0, row_ms=2.0, ttft_ms=4.0, draft_ms={"light": 2.0, "heavy": 8.0})

    def load_engine(_name: str) -> SimulatedEngine:
        return SimulatedEngine(half_as_fast if machine.submitted[-1].kind is StageKind.MEASURE else machine.world)

    monkeypatch.setattr("tuner.trial.load_engine", load_engine)
    tried, steady = (result.trials[1] for result in (machine.search(searched.plan), searched.result))
    assert tried.speculation == steady.speculation
    assert tried.metrics["machine_slowdown"] == pytest.approx(2.0)
    assert tried.values == pytest.approx(steady.values)


# ── what is predicted, and when it ends ───────────────────────────────────────────────────────────────────────────


def test_every_load_is_predicted_before_it_is_measured(searched: Searched) -> None:
    tried = searched.result.trials[1]
    for name, tolerance in (("e2e_ms_mean", 1e-6), ("output_tokens_per_s@8", 0.1), ("speedup@8", 0.1)):
        assert tried.metrics[name] == pytest.approx(tried.predicted[name], rel=tolerance), name


def test_the_search_ends_once_no_load_has_anything_worth_it(searched: Searched) -> None:
    assert searched.result.stopped.kind is StopKind.NOTHING_WORTH_IT
    alone, together = (fastest(searched.result, name).drafted_tokens for name in ("speedup", "speedup@8"))
    assert alone > together > 0  # fewer drafted tokens where their rows are dear, and both were tried
    assert not [one for one in searched.machine.heard.notices if "cannot be predicted" in one]


def fastest(result: SearchResult, name: str) -> Speculation:
    """The measured configuration with the largest gain of that name."""
    return max(result.trials, key=lambda trial: trial.metrics[name] or 0.0).speculation


def test_members_of_the_front_are_as_sure_as_their_loads_are_known(searched: Searched) -> None:
    front = searched.result.pareto
    assert len([entry for entry in front if entry.is_measured]) >= 2
    assert all(entry.probability is not None for entry in front)
    assert {name for entry in front for name in entry.values} == set(LATENCY_AND_THROUGHPUT)


def test_what_cannot_be_predicted_is_tried_to_the_end_and_the_person_is_told(machine: Machine) -> None:
    plan = plan_of("e2e_ms@4", "memory")
    space = plan.space.model_copy(update={"num_speculative_tokens": DraftTokens(min=1, max=2)})
    result = machine.search(replace(plan, space=space))
    assert result.stopped.kind is StopKind.ALL_TRIED
    assert "memory cannot be predicted: configurations are tried until all are, or a limit" in machine.heard.notices


# ── what is deployed ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("names", "concurrency", "speedup", "said"),
    [
        (LATENCY_AND_THROUGHPUT, 1, "speedup", "than no speculation ("),
        (LATENCY_AND_THROUGHPUT[::-1], 8, "speedup@8", "than no speculation with 8 requests in flight ("),
        (("ttft_ms", "waste", "e2e_ms_p90@4"), 4, "speedup@4", "than no speculation with 4 requests in flight ("),
    ],
)
def test_the_first_objective_about_speed_says_at_which_load_the_best_is_chosen_and_certified(
    machine: Machine, names: tuple[str, ...], concurrency: int, speedup: str, said: str
) -> None:
    result = machine.search(plan_of(*names))
    assert result.recommended is not None
    assert fastest(result, speedup) in {result.recommended.speculation, *result.decision.tied_with}
    assert said in result.decision.sentence
    (certified,) = result.certified
    assert {side.environment["concurrency"] for side in (certified.baseline, certified.candidate)} == {str(concurrency)}
    (task,) = machine.tasks(StageKind.CERTIFY)
    assert (task.config.max_num_seqs, task.loads) == (max(concurrency, *plan_of(*names).loads), ())


def test_where_a_load_gains_nothing_the_verdict_says_at_which(machine: Machine) -> None:
    machine.world.row_ms = 12.0
    result = machine.search(plan_of("output_tokens_per_s@8", "e2e_ms@1"))
    assert result.recommended is None
    assert result.certified == ()
    assert result.decision.sentence.startswith("Do not speculate: ")
    tried = [trial for trial in result.trials if not trial.speculation.is_baseline]
    assert tried
    assert max(trial.metrics["speedup"] or 0.0 for trial in tried) > 1  # it would have paid off alone
    assert "with 8 requests in flight" in result.decision.sentence


def test_a_study_read_back_has_the_slots_and_the_loads(searched: Searched) -> None:
    plan, result = searched.plan, searched.result
    stored = read_study(searched.machine.store, plan.name)
    assert stored.config(NO_SPECULATION) == plan.config(NO_SPECULATION)
    speculation = result.trials[1].speculation
    assert stored.predictions.metrics(speculation) == pytest.approx(result.predictions.metrics(speculation))
    assert "speedup@8" in stored.predictions.metrics(speculation)


# ── cost ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_cost_is_predicted_and_decides_as_throughput_does(machine: Machine) -> None:
    by_cost = machine.search(plan_of("cost@8", "waste", price_per_hour=3.6))
    machine.store = MemoryStore()
    by_throughput = machine.search(plan_of("output_tokens_per_s@8", "waste"))
    assert by_cost.stopped.kind is StopKind.NOTHING_WORTH_IT
    assert by_cost.decision.candidate == by_throughput.decision.candidate
    assert [trial.speculation for trial in by_cost.trials] == [trial.speculation for trial in by_throughput.trials]
    for one, other in zip(by_cost.trials, by_throughput.trials, strict=True):
        assert one.values["cost@8"] == pytest.approx(1000.0 / other.values["output_tokens_per_s@8"])


# ── which study it is ─────────────────────────────────────────────────────────────────────────────────────────────


def test_loads_and_prices_make_another_study_only_where_there_are_any() -> None:
    assert not {"loads", "price_per_hour"} & set(a_plan("any").spec)
    assert not {"loads", "price_per_hour"} & set(plan_of("e2e_ms@1").spec)
    spec = plan_of("cost@8", "e2e_ms@2", price_per_hour=1.5).spec
    assert (spec["loads"], spec["price_per_hour"]) == ([2, 8], 1.5)
