"""A trace is made once: by the first search that needs it, and by no later one, whatever else they ask for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import optuna
import pytest

from tests.support import simulated_studies
from tests.support.simulated import SimulatedEngine, Simulation, World
from tests.support.simulated_studies import SPACE
from tuner.decide import Verdict
from tuner.dispatch import InlineDispatcher
from tuner.driver import PredictedStudy, Search
from tuner.errors import StorageError, TraceError
from tuner.objective import parse_objectives
from tuner.plan import SearchPlan
from tuner.predictions import Predictions
from tuner.records import Sampling, StageKind, Trace, TraceResult, from_json, to_json
from tuner.reuse import transferred_traces, whole
from tuner.search_space import Draft, DraftTokens
from tuner.speculation import Method
from tuner.stopping import Budget
from tuner.store import StageRecord, StageState, TrialStore
from tuner.stored import read_study
from tuner.study import TrialLedger
from tuner.testing.memory_store import MemoryStore
from tuner.trace_keys import Numerics
from tuner.traces import unpack_trace

HIT_RATES = {"light": 0.5, "heavy": 0.8, "renamed": 0.5}


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Drafts that an engine traced, in order."""
    drafts: list[str] = []
    trace = Simulation.trace

    def noted(engine: Simulation, *arguments: Any) -> Trace:
        drafts.append(engine._draft)
        return trace(engine, *arguments)

    monkeypatch.setattr(Simulation, "trace", noted)
    return drafts


def a_plan(name: str = "first", workload: str = "numbers", **changes: Any) -> SearchPlan:
    return simulated_studies.a_plan(workload, name=name, **({"budget": Budget(max_trials=2)} | changes))


@pytest.fixture(autouse=True)
def world(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every engine is simulated, with a clock that starts anew."""

    def load(_name: str) -> SimulatedEngine:
        return SimulatedEngine(World(hit_rates=HIT_RATES, draft_ms={"light": 1.0, "heavy": 4.0, "renamed": 1.0}))

    monkeypatch.setattr("tuner.trial.load_engine", load)


def a_search(store: TrialStore, plan: SearchPlan) -> Search:
    storage = optuna.storages.InMemoryStorage()
    ledger = TrialLedger.open(storage, plan.name, plan.space, plan.objectives)
    return Search(plan, store, ledger, InlineDispatcher())


def search(store: TrialStore, plan: SearchPlan) -> PredictedStudy:
    """As far as traces are needed: up to the predictions."""
    return a_search(store, plan).predict()


def acceptance(predictions: Predictions) -> dict[tuple[str, int], float | None]:
    """What replay alone says: no clock in it."""
    return {key: one.columns["acceptance_rate"] for key, one in predictions.by_configuration.items()}


def up_to(drafted_tokens: int) -> Any:
    return SPACE.model_copy(update={"num_speculative_tokens": DraftTokens(min=1, max=drafted_tokens)})


def test_a_search_makes_one_trace_of_each_draft_and_keeps_it_outside_its_stages(
    store: MemoryStore, made: list[str]
) -> None:
    search(store, a_plan())
    assert made == ["light", "heavy"]
    assert [(one.header["draft_name"], one.depth) for one in store.traces()] == [("light", 6), ("heavy", 6)]
    for one in store.stages("first"):
        if one.kind is StageKind.TRACE:
            stage = store.stage("first", one.kind, one.key)
            assert stage is not None
            assert stage.result is not None
            assert from_json(TraceResult, stage.result).trace.prompts == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 7, "sampler": "random", "budget": Budget(max_trials=3)},
        {"objectives": parse_objectives(["ttft_ms"])},
        {"margin": 0.1},
        {"num_threads": 3, "deadline_s": 60.0},
        {"space": up_to(4)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_second_study_with_other_settings_makes_no_trace(
    store: MemoryStore, made: list[str], changes: dict[str, Any]
) -> None:
    first = search(store, a_plan())
    made.clear()
    second = search(store, a_plan("second", **changes))
    assert made == []
    assert len(store.traces()) == 2
    shared = acceptance(second.predictions)
    assert shared == {key: rate for key, rate in acceptance(first.predictions).items() if key in shared}
    assert max(tokens for _, tokens in shared) == second.study.spec["space"]["num_speculative_tokens"]["max"]


def test_a_second_study_comes_to_its_verdict_without_making_a_trace(store: MemoryStore, made: list[str]) -> None:
    first = a_search(store, a_plan()).run()
    made.clear()
    second = a_search(store, a_plan("second", margin=0.1, budget=Budget(max_trials=3))).run()
    assert made == []
    assert second.decision.verdict is first.decision.verdict is Verdict.RECOMMEND


def test_a_sampled_workload_has_traces_of_its_own(store: MemoryStore, made: list[str]) -> None:
    warm = Sampling(temperature=0.7, seed=3)
    sampled = a_plan("sampled")
    search(store, a_plan())
    search(store, replace(sampled, workload=sampled.workload.model_copy(update={"sampling": warm})))
    assert made == ["light", "heavy"] * 2
    assert [one.header["key"]["sampling"]["temperature"] for one in store.traces()] == [0.0, 0.0, 0.7, 0.7]


def test_the_draft_is_still_timed_in_the_second_study(store: MemoryStore, made: list[str]) -> None:
    search(store, a_plan())
    search(store, a_plan("second", seed=7))
    timed = [one for one in store.stages("second") if one.kind is StageKind.TRACE]
    assert [one.state for one in timed] == [StageState.DONE] * 2


def test_a_deeper_search_makes_the_trace_again_and_replaces_it(store: MemoryStore, made: list[str]) -> None:
    shallow = search(store, a_plan(space=up_to(2)))
    deep = search(store, a_plan("deeper", space=up_to(5)))
    assert made == ["light", "heavy"] * 2
    assert [one.depth for one in store.traces()] == [5, 5]
    for name, result in (("first", shallow), ("deeper", deep)):
        assert acceptance(read_study(store, name).predictions) == acceptance(result.predictions)


def test_a_draft_of_another_name_with_the_same_weights_uses_the_trace(store: MemoryStore, made: list[str]) -> None:
    first = search(store, a_plan())
    made.clear()
    renamed = SPACE.model_copy(update={"drafts": (Draft(name="renamed", method=Method.DRAFT_MODEL, model="light"),)})
    second = search(store, a_plan("second", space=renamed))
    assert made == []
    for tokens in (1, 6):
        assert acceptance(second.predictions)["renamed", tokens] == acceptance(first.predictions)["light", tokens]


@pytest.mark.parametrize(
    "changes",
    [
        {"fingerprints": {"target": "other", "light": "1", "heavy": "2"}},
        {"fingerprints": {"target": "0", "light": "other", "heavy": "other too"}},
        {"workload": "letters"},
        {"max_model_len": 2048},
        {"weight_format": "int8"},
    ],
    ids=["target", "drafts", "outputs", "context", "numerics"],
)
def test_another_trace_is_made_where_it_could_differ(
    store: MemoryStore, made: list[str], changes: dict[str, Any]
) -> None:
    search(store, a_plan())
    search(store, a_plan("second", **changes))
    assert made == ["light", "heavy"] * 2
    assert len(store.traces()) == 4


def test_a_trace_under_other_numerics_is_found_as_transferred(store: MemoryStore) -> None:
    search(store, a_plan())
    kept = store.trace(store.traces()[0].key)
    assert kept is not None
    assert kept.data is not None
    key = unpack_trace(kept.data).key
    assert transferred_traces(store, key) == ()
    elsewhere = replace(key, numerics=Numerics(engine="vllm", weight_format="bf16", lossless=None))
    assert [one.key for one in transferred_traces(store, elsewhere)] == [key.key]
    assert transferred_traces(store, replace(elsewhere, target="other")) == ()


def test_where_a_trace_was_made_is_kept_with_it(store: MemoryStore) -> None:
    search(store, a_plan())
    provenance = store.traces()[0].header["provenance"]
    assert {name: provenance[name] for name in ("study", "target", "workload")} == {
        "study": "first",
        "target": "target",
        "workload": "numbers",
    }
    assert "command" not in provenance
    assert "models" not in provenance


class StopError(Exception):
    """Ends the driver where a kill would."""


class DyingStore(MemoryStore):
    """Works for so many writes, and ends the driver before the next one."""

    def __init__(self, writes: int) -> None:
        super().__init__()
        self.writes = writes
        for name in ("add_study", "save_stage", "save_trial", "save_trace", "conclude"):
            setattr(self, name, self._counted(getattr(self, name)))

    def _counted(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            if self.writes == 0:
                raise StopError
            self.writes -= 1
            return write(*arguments)

        return counted


# study, trial 0, baseline twice, trial 0; then for each draft: its stage begins, its trace, its stage is done
@pytest.mark.parametrize(
    ("writes", "traced_before"), [(5, []), (6, ["light"]), (7, []), (8, []), (9, ["heavy"]), (10, [])]
)
def test_a_search_killed_between_any_two_writes_goes_on_and_makes_no_kept_trace_again(
    made: list[str], writes: int, traced_before: list[str]
) -> None:
    whole_search = search(MemoryStore(), a_plan())
    made.clear()
    store = DyingStore(writes)
    with pytest.raises(StopError):
        search(store, a_plan())
    store.writes = -1
    result = search(store, a_plan())
    assert sorted(made) == sorted(["light", "heavy", *traced_before])  # only what died before it was kept
    assert acceptance(result.predictions) == acceptance(whole_search.predictions)
    assert acceptance(read_study(store, "first").predictions) == acceptance(result.predictions)


def with_traces_in_stages(store: MemoryStore) -> MemoryStore:
    """The study as earlier versions kept it."""
    old = MemoryStore()
    old.add_study(store.study("first"))
    for trial in store.trials("first"):
        old.save_trial(trial)
    for one in store.stages("first"):
        stage = store.stage("first", one.kind, one.key)
        assert stage is not None
        old.save_stage(replace(stage, result=_as_before(store, stage)))
    return old


def _as_before(store: MemoryStore, stage: StageRecord) -> bytes | None:
    if stage.kind is not StageKind.TRACE or stage.result is None:
        return stage.result
    result = replace(whole(store, from_json(TraceResult, stage.result)), trace_key=None)
    return to_json(result).replace(b',"trace_key":null', b"")


def test_traces_that_earlier_versions_kept_in_the_stages_are_still_used(store: MemoryStore, made: list[str]) -> None:
    before = search(store, a_plan())
    old = with_traces_in_stages(store)
    assert old.traces() == ()
    made.clear()
    assert acceptance(read_study(old, "first").predictions) == acceptance(before.predictions)
    assert acceptance(search(old, a_plan()).predictions) == acceptance(before.predictions)
    assert made == []


def test_a_lost_trace_is_named_with_what_to_do(store: MemoryStore) -> None:
    search(store, a_plan())
    store._traces.clear()
    with pytest.raises(
        StorageError, match=r"the acceptance trace [0-9a-f]{16} of light is not in the database"
    ) as caught:
        read_study(store, "first")
    assert "tuner traces import" in caught.value.hint


def test_a_damaged_trace_is_never_used(store: MemoryStore, made: list[str]) -> None:
    search(store, a_plan())
    kept = store.trace(store.traces()[0].key)
    assert kept is not None
    assert kept.data is not None
    store._traces[kept.key] = replace(kept, data=kept.data[:-100])
    with pytest.raises(TraceError, match="damaged"):
        search(store, a_plan("second"))
    with pytest.raises(TraceError, match="damaged"):
        read_study(store, "first")


def test_a_draft_whose_trace_contradicts_itself_is_explored_without_predictions(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = Simulation.trace

    def boasting(engine: Simulation, *arguments: Any) -> Trace:
        made = trace(engine, *arguments)
        if engine._draft != "heavy":
            return made
        return replace(made, prompts=tuple(replace(one, matched=(0, 99, *one.matched[2:])) for one in made.prompts))

    monkeypatch.setattr(Simulation, "trace", boasting)
    result = search(store, a_plan())
    assert {draft for draft, _ in result.predictions.by_configuration} == {"light"}
    assert [one.header["draft_name"] for one in store.traces()] == ["light"]
    (failed,) = [one for one in store.stages("first") if one.state is StageState.FAILED]
    assert failed.error is not None
    assert "heavy: trace of prompt" in failed.error
    assert "matched at position 1 is 99" in failed.error
