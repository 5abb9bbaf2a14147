"""Whole searches over the simulated engine, written into a store: studies as a person has them."""

from __future__ import annotations

from collections.abc import Mapping

import optuna
import pytest

from tests.support.observed import a_prompt
from tests.support.simulated import SimulatedEngine, World
from tuner.dispatch import InlineDispatcher
from tuner.driver import Search, SearchResult
from tuner.objective import DEFAULT_OBJECTIVES
from tuner.plan import SearchPlan
from tuner.samplers import make_sampler
from tuner.search_space import Draft, DraftTokens, SearchSpace
from tuner.speculation import Method
from tuner.store import TrialStore
from tuner.study import TrialLedger, distributions
from tuner.workload import Workload

SPACE = SearchSpace(
    name="two-drafts",
    description="A draft of a millisecond a token, and one of four.",
    engine="simulated",
    drafts=(
        Draft(name="light", method=Method.DRAFT_MODEL, model="light"),
        Draft(name="heavy", method=Method.DRAFT_MODEL, model="heavy"),
    ),
    num_speculative_tokens=DraftTokens(min=1, max=6),
)


def search_plan(workload: str, *, name: str | None = None, **changes: object) -> SearchPlan:
    """A search of a workload of twenty-four prompts; the study has the workload's name."""
    asked = Workload(
        name=workload,
        description="prompts without text",
        limits_reason="a test",
        prompts=tuple(a_prompt(f"{workload}-{number}") for number in range(24)),
        search_prompts=12,
        certify_prompts=12,
        max_output_tokens=40,
    )
    settings: dict[str, object] = {
        "name": name or workload,
        "target_model": "target",
        "target_name": "target",
        "draft_folders": {"light": "light", "heavy": "heavy"},
        "fingerprints": {"target": "0", "light": "1", "heavy": "2"},
        "workload": asked,
        "space": SPACE,
        "objectives": DEFAULT_OBJECTIVES,
        "cache_dir": "unused",
    }
    return SearchPlan(**{**settings, **changes})  # type: ignore[arg-type]


def search_into(store: TrialStore, plan: SearchPlan, hit_rates: Mapping[str, float]) -> SearchResult:
    """Run the search to its verdict, in a world where drafts are right that often."""
    world = World(hit_rates=hit_rates, draft_ms={"light": 1.0, "heavy": 4.0})
    sampler = make_sampler(plan.sampler, distributions(plan.space), plan.seed)
    storage = optuna.storages.InMemoryStorage()
    ledger = TrialLedger.open(storage, plan.name, plan.space, plan.objectives, sampler)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tuner.trial.load_engine", lambda _name: SimulatedEngine(world))
        return Search(plan, store, ledger, InlineDispatcher()).run()
