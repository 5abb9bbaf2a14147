"""Studies of the simulated engine in a store: real stages, and the configurations that a test wants measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from tests.support.observed import a_prompt
from tests.support.simulated import SimulatedEngine, World
from tests.support.study_results import a_decision
from tuner.objective import DEFAULT_OBJECTIVES
from tuner.outcome import TrialOutcome
from tuner.plan import SearchPlan
from tuner.predictions import target_outputs
from tuner.records import BaselineResult, MeasureResult, from_json, to_json
from tuner.search_space import Draft, DraftTokens, SearchSpace
from tuner.speculation import NO_SPECULATION, Method
from tuner.store import StageRecord, StageState, StudyRecord, TrialRecord, TrialStore, utc_now
from tuner.trial import StageTask, run_stage
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


def a_plan(workload: str, *, name: str | None = None, **changes: object) -> SearchPlan:
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


def study_into(
    store: TrialStore, plan: SearchPlan, hit_rates: Mapping[str, float], measured: Sequence[tuple[str, int]] = ()
) -> None:
    """Store a study that ended, in a world where drafts are right that often.

    Args:
        store: Where it goes.
        plan: What is searched.
        hit_rates: By draft.
        measured: Configurations beside no speculation, by draft and drafted tokens.
    """
    world = World(hit_rates=hit_rates, draft_ms={"light": 1.0, "heavy": 4.0})
    store.add_study(StudyRecord(name=plan.name, spec=plan.spec, provenance={"models": plan.places}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tuner.trial.load_engine", lambda _name: SimulatedEngine(world))
        baseline = from_json(BaselineResult, _stage(store, plan.baseline_task()))
        for name in plan.space.draft_names:
            _stage(store, plan.trace_task(name, target_outputs(baseline.measurement, plan.workload.search_sample())))
        outcomes = {NO_SPECULATION: TrialOutcome.of_baseline(baseline, plan.objectives)}
        for name, tokens in measured:
            speculation = plan.space.speculation(name, tokens)
            result = from_json(MeasureResult, run_stage(plan.measure_task(speculation)))
            outcomes[speculation] = TrialOutcome.of_candidate(baseline, result, plan.objectives, lambda _: False)
    for number, (speculation, outcome) in enumerate(outcomes.items()):
        row = TrialRecord(study_name=plan.name, number=number, speculation=speculation)
        store.save_trial(outcome.applied_to(row, utc_now()))
    store.conclude(plan.name, {"decision": json.loads(to_json(a_decision())), "trial": None, "candidate": None}, ())


def _stage(store: TrialStore, task: StageTask) -> bytes:
    result = run_stage(task)
    row = StageRecord(study_name=task.study_name, kind=task.kind, key=task.key, result=result)
    store.save_stage(replace(row, state=StageState.DONE, ended_at=utc_now()))
    return result
