"""A search of a simulated engine with everything that outlives one run of it: what tests of the loop share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import optuna

from tests.support.observed import prompts
from tests.support.simulated import World
from tuner.dispatch import InlineDispatcher
from tuner.driver import Search, SearchResult
from tuner.objective import DEFAULT_OBJECTIVES
from tuner.plan import SearchPlan
from tuner.search_space import Draft, DraftTokens, SearchSpace
from tuner.speculation import Method
from tuner.store import TrialStore
from tuner.study import TrialLedger
from tuner.testing.memory_store import MemoryStore
from tuner.workload import Workload

SPACE = SearchSpace(
    name="two-drafts",
    description="A good draft and a bad one.",
    engine="simulated",
    drafts=(
        Draft(name="good", method=Method.DRAFT_MODEL, model="good"),
        Draft(name="bad", method=Method.DRAFT_MODEL, model="bad"),
    ),
    num_speculative_tokens=DraftTokens(min=1, max=6),
)


def a_world(**changes: object) -> World:
    world = World(hit_rates={"good": 0.8, "bad": 0.05}, draft_ms={"good": 1.0, "bad": 1.0})
    for name, value in changes.items():
        setattr(world, name, value)
    return world


def a_plan(**changes: object) -> SearchPlan:
    workload = Workload(
        name="simulated",
        description="prompts without text",
        limits_reason="a test",
        prompts=tuple(prompts(24)),
        search_prompts=12,
        certify_prompts=12,
        max_output_tokens=40,
    )
    plan = SearchPlan(
        name="study",
        target_model="target",
        target_name="target",
        draft_folders={"good": "good", "bad": "bad"},
        fingerprints={"target": "0", "good": "1", "bad": "2"},
        workload=workload,
        space=SPACE,
        objectives=DEFAULT_OBJECTIVES,
        cache_dir="unused",
    )
    return replace(plan, **changes)  # type: ignore[arg-type]


class Bench:
    """Everything that outlives one run of a search: the store, Optuna's storage, the world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.store: TrialStore = MemoryStore()
        self.optuna_storage = optuna.storages.InMemoryStorage()
        self.dispatcher = InlineDispatcher()

    def ledger(self, plan: SearchPlan) -> TrialLedger:
        return TrialLedger.open(self.optuna_storage, plan.name, plan.space, plan.objectives)

    def run(self, plan: SearchPlan) -> SearchResult:
        return Search(plan, self.store, self.ledger(plan), self.dispatcher).run()

    @property
    def optuna_trials(self) -> list[optuna.trial.FrozenTrial]:
        return optuna.load_study(study_name="study", storage=self.optuna_storage).get_trials()


class StopError(Exception):
    """Ends the driver where a kill would."""


def stopping(call: Callable[..., object], after: int) -> Callable[..., object]:
    """The function, which works ``after`` times and then stops the driver before doing anything."""
    calls = iter(range(after))

    def maybe(*arguments: object) -> object:
        if next(calls, None) is None:
            raise StopError
        return call(*arguments)

    return maybe
