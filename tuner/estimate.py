"""What a search would run, how long it would take and how much disk, said before anything starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.catalog import read_catalog
from tuner.measure import ANCHOR_EVERY, passes_at
from tuner.models.resolve import find_model
from tuner.priors import DEVICES, plain_step_s
from tuner.records import Prompt, StageKind
from tuner.search_space import SearchSpace
from tuner.settings import Settings
from tuner.workload import Workload

PLAIN_MACHINE = "cpu"
"""What is assumed before anything is loaded: other devices are faster."""

LOAD_S = 8.0
"""A worker's start and an engine's load."""

STEP_TIMING_TOKENS = 400
"""Timed single steps of a stage, in tokens of plain decoding."""

TRACE_SHARE = 0.3
"""A draft's pass over the outputs, relative to the target's decoding of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage:
    """Stages of one kind that a search would run.

    Attributes:
        count: How many of them, at most.
        requests: Prompts sent in each, both sides counted.
        seconds: For all of them, at most: answers may end before their cap.
    """

    kind: StageKind
    count: int
    requests: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    """A model that the search needs.

    Attributes:
        is_here: Nothing has to be fetched.
        is_ready: Nothing has to be converted either.
        download_bytes: None where the size is not known before it is fetched.
        disk_bytes: Likewise, of what is kept.
    """

    name: str
    is_here: bool
    is_ready: bool
    download_bytes: int | None
    disk_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDescription:
    """A search that has not started.

    Attributes:
        configurations: In the space, the baseline among them.
        max_trials: Measured at most, the baseline among them.
        study: Its name; None while models have to be fetched or converted, as the name depends on their content.
        notices: What a person should know before it starts; likewise.
        seconds: All stages together, by a rule of thumb for plain machines; fetching and installing not counted.
    """

    workload: str
    space: str
    configurations: int
    max_trials: int
    stages: tuple[PlannedStage, ...]
    models: tuple[PlannedModel, ...]
    study: str | None = None
    notices: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Of all stages."""
        return sum(stage.seconds for stage in self.stages)

    @property
    def download_bytes(self) -> int:
        """Of all models that are not here, as far as it is known."""
        return sum(model.download_bytes or 0 for model in self.models if not model.is_here)

    @property
    def disk_bytes(self) -> int:
        """Taken by models that are not here yet, as far as it is known."""
        return sum(model.disk_bytes or 0 for model in self.models if not model.is_here)


def describe_search(
    *,
    target: str,
    workload: Workload,
    space: SearchSpace,
    max_trials: int,
    settings: Settings,
    certify_loads: int = 1,
    loads: Sequence[int] = (),
) -> PlanDescription:
    """Describe a search without fetching, loading or starting anything.

    ``loads`` are further numbers of requests in flight at which objectives want figures.
    """
    names = (target, *(draft.model for draft in space.drafts if draft.model is not None))
    models = tuple(_planned_model(name, settings) for name in names)
    configurations = len(space.configurations())
    trials = min(max_trials, configurations)
    seconds_per_token = plain_step_s(models[0].disk_bytes or 0, DEVICES[PLAIN_MACHINE])
    return PlanDescription(
        workload=workload.name,
        space=space.name,
        configurations=configurations,
        max_trials=trials,
        stages=tuple(_stages(workload, len(space.drafts), trials, certify_loads, loads, seconds_per_token)),
        models=models,
    )


def _planned_model(name: str, settings: Settings) -> PlannedModel:
    entry, place = read_catalog().find(name), find_model(name, settings=settings)
    here = None if place is None else _size(place)
    return PlannedModel(
        name=name,
        is_here=place is not None,
        is_ready=place is not None and place.is_dir(),
        download_bytes=None if entry is None else entry.download_bytes,
        disk_bytes=here if entry is None else entry.disk_bytes or entry.download_bytes,
    )


def _size(path: Path) -> int | None:
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.glob("*.safetensors")) or None


def _stages(
    workload: Workload,
    drafts: int,
    trials: int,
    certify_loads: int,
    loads: Sequence[int],
    seconds_per_token: float,
) -> Iterator[PlannedStage]:
    search, certify = workload.search_sample(), workload.certify_sample()
    search_s = _tokens(search, workload) * seconds_per_token
    certify_s = _tokens(certify, workload) * seconds_per_token
    timing_s = (1 + len(loads)) * STEP_TIMING_TOKENS * seconds_per_token
    anchors = -(-len(search) // ANCHOR_EVERY)
    passes = sum(passes_at(load, search) for load in loads)  # together they take no longer than one by one
    again, again_s = passes * len(search), passes * search_s
    yield _stage(StageKind.BASELINE, 1, len(search) + again, search_s + again_s + timing_s)
    yield _stage(StageKind.TRACE, drafts, len(search), TRACE_SHARE * search_s + timing_s)
    measured_s = (1 + 1 / ANCHOR_EVERY) * search_s + again_s
    yield _stage(StageKind.MEASURE, trials - 1, len(search) + anchors + again, measured_s)
    yield _stage(StageKind.CERTIFY, certify_loads, 2 * len(certify), 2 * certify_s)


def _stage(kind: StageKind, count: int, requests: int, seconds: float) -> PlannedStage:
    return PlannedStage(kind=kind, count=count, requests=requests, seconds=count * (LOAD_S + seconds))


def _tokens(prompts: Sequence[Prompt], workload: Workload) -> int:
    return sum(workload.output_cap(prompt) for prompt in prompts)
