"""What a search would run, and what that takes in time, devices, money and disk, said before anything starts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.catalog import read_catalog
from tuner.engines import Capabilities, load_engine
from tuner.hardware import GB, Hardware, read_hardware
from tuner.measure import ANCHOR_EVERY, passes_at
from tuner.models.resolve import find_model
from tuner.priors import DEVICES, plain_step_s
from tuner.records import Prompt, StageKind
from tuner.search_space import SearchSpace
from tuner.settings import Settings
from tuner.workload import Workload

PLAIN_MACHINE = "cpu"
"""What is assumed before anything is loaded: other devices are faster."""

BANDWIDTH_LOSS = 20.0
"""Time of a token on accelerators over what their bandwidth says: Qwen3-32B was published at 10 ms on 64 cores of
Trainium2 and at 45 ms on 32, where it says 1.4 and 2.8 ms."""

LEAST_TOKEN_S = 0.02
"""Likewise: small models take as long as their layers are many, whatever the bandwidth."""

LOAD_S = 8.0
"""A worker's start and an engine's load, the reading of the weights left out."""

READ_BYTES_PER_S = 1e9
"""Of a good network disk."""

COMPILE_S, COMPILE_S_PER_GB = 200.0, 12.0
"""Of a compile and of each GB of weights: published for Neuron were 100 to 250 s with 1B weights, 400 s with 7B, 950 to
1010 s with 32B and 36B."""

MOST_IN_FLIGHT_OF_REPLAY = 4
"""Its choice grows worse with more at once, and with it the compiles; see benchmarks/compiles_to_decide.py."""

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
        holds: What each holds of a machine, in words.
        num_devices: How many devices of it.
    """

    kind: StageKind
    count: int
    requests: int
    seconds: float
    holds: str = ""
    num_devices: int = 0

    @property
    def seconds_each(self) -> float:
        """Of one of them."""
        return self.seconds / self.count if self.count else 0.0


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
class PlannedMachines:
    """What a search takes of machines, at most.

    Attributes:
        parallel: Configurations in flight.
        count: Machines held from begin to end: as few as take that many configurations at once.
        wall_s: From begin to end; a compile and its measurement come one after the other.
        device: Of the blocks; None where stages hold none.
        block_hours: Time of blocks of devices.
        device_hours: Time of single devices.
        machine_hours: Time of the machines held.
        compile_machine_hours: Time of further machines that only compile.
        cost: In ``currency``; None where a price is not known.
        artifact_bytes: Of all compiled artifacts, by the size of the weights; None where that is not known.
        artifacts: Where they are shared; None for no such place.
    """

    hardware: str
    parallel: int
    count: int
    wall_s: float
    device: str | None
    block: int
    block_hours: float
    device_hours: float
    machine_hours: float
    compile_machine_hours: float
    price_per_hour: float | None
    currency: str
    cost: float | None
    artifact_bytes: int | None
    artifacts: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDescription:
    """A search that has not started.

    Attributes:
        configurations: In the space, the baseline among them.
        max_trials: Measured at most, the baseline among them.
        study: Its name; None while models have to be fetched or converted, as the name depends on their content.
        notices: What a person should know before it starts; likewise.
        seconds: All stages one after the other, by a rule of thumb; fetching and installing not counted.
        assumed_device: What the rule of thumb takes the devices for, a name of ``priors.DEVICES``.
    """

    workload: str
    space: str
    configurations: int
    max_trials: int
    stages: tuple[PlannedStage, ...]
    models: tuple[PlannedModel, ...]
    machines: PlannedMachines
    assumed_device: str = PLAIN_MACHINE
    study: str | None = None
    notices: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Of all stages."""
        return sum(stage.seconds for stage in self.stages)

    @property
    def compiles(self) -> int:
        """Configurations that are compiled, at most; fewer where earlier searches left theirs."""
        return sum(stage.count for stage in self.stages if stage.kind is StageKind.COMPILE)

    @property
    def compile_s(self) -> float:
        """Of one compile."""
        return max((stage.seconds_each for stage in self.stages if stage.kind is StageKind.COMPILE), default=0.0)

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
    hardware: Hardware | None = None,
    certify_loads: int = 1,
    loads: Sequence[int] = (),
    parallel: int | None = None,
    is_cluster: bool = False,
    price_per_hour: float | None = None,
    artifacts: str | None = None,
) -> PlanDescription:
    """Describe a search without fetching, loading or starting anything.

    Args:
        target: The model.
        workload: With its limits.
        space: What may be tried.
        max_trials: Measured at most, the baseline among them.
        settings: Where models are.
        hardware: The machines; None takes plain ones.
        certify_loads: Times that both sides of the final comparison are loaded.
        loads: Further numbers of requests in flight at which objectives want figures.
        parallel: Configurations in flight; None takes as many as one machine takes, and more than that need a cluster.
        is_cluster: Whether there may be several machines.
        price_per_hour: Of one machine; None takes the hardware's.
        artifacts: Where compiled artifacts are shared; None takes the hardware's.

    Raises:
        EngineNotInstalledError: The space's engine is not there.
        ModelError: A model is nothing that could be had.
    """
    hardware, capabilities = hardware or read_hardware(), load_engine(space.engine).capabilities
    models = _planned_models(target, space, settings)
    configurations = len(space.configurations())
    trials = min(max_trials, configurations)
    device = _assumed_device(capabilities)
    times = _Times.of(models, device, hardware.needs(StageKind.MEASURE).num_devices)
    work = _Work(workload=workload, loads=tuple(loads), times=times, capabilities=capabilities)
    stages = tuple(_held(stage, hardware) for stage in work.stages(len(space.drafts), trials, certify_loads))
    return PlanDescription(
        workload=workload.name,
        space=space.name,
        configurations=configurations,
        max_trials=trials,
        stages=stages,
        models=models,
        machines=_planned_machines(
            stages,
            hardware,
            _in_flight(hardware, parallel, is_cluster=is_cluster),
            hardware.price_per_hour if price_per_hour is None else price_per_hour,
            artifact_bytes=times.weight_bytes,
            artifacts=artifacts or hardware.artifacts,
        ),
        assumed_device=device,
    )


def missing_model_bytes(target: str, space: SearchSpace, settings: Settings) -> int:
    """Disk that models take which are not here yet, as far as their sizes are known.

    Raises:
        ModelError: A model is nothing that could be had.
    """
    return sum(model.disk_bytes or 0 for model in _planned_models(target, space, settings) if not model.is_here)


def _planned_models(target: str, space: SearchSpace, settings: Settings) -> tuple[PlannedModel, ...]:
    names = (target, *(draft.model for draft in space.drafts if draft.model is not None))
    return tuple(_planned_model(name, settings) for name in names)


def estimate_stages(
    *, models: Sequence[Path], engine: str, workload: Workload, hardware: Hardware, loads: Sequence[int] = ()
) -> dict[StageKind, float]:
    """Seconds of one stage of each kind, at most, by the same rules of thumb; nothing where the target has no size.

    Args:
        models: Folders or files, the target first and then the drafts.
        engine: Its name.
        workload: With its limits.
        hardware: The machines.
        loads: Further numbers of requests in flight at which objectives want figures.

    Raises:
        EngineNotInstalledError: The engine is not there.
    """
    planned = tuple(
        PlannedModel(name=str(path), is_here=True, is_ready=True, download_bytes=None, disk_bytes=_size(path))
        for path in models
    )
    if not planned[0].disk_bytes:
        return {}
    capabilities = load_engine(engine).capabilities
    device = _assumed_device(capabilities)
    times = _Times.of(planned, device, hardware.needs(StageKind.MEASURE).num_devices)
    work = _Work(workload=workload, loads=tuple(loads), times=times, capabilities=capabilities)
    return {stage.kind: stage.seconds_each for stage in work.stages(drafts=1, trials=2, certify_loads=1)}


def _assumed_device(capabilities: Capabilities) -> str:
    device = capabilities.device
    return PLAIN_MACHINE if device is None or device not in DEVICES else device


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Times:
    """What single things take, by rules of thumb.

    Attributes:
        weight_bytes: Of the target and the largest draft; None where the target's size is not known.
    """

    weight_bytes: int | None
    token_s: float
    load_s: float
    compile_s: float

    @classmethod
    def of(cls, models: Sequence[PlannedModel], device: str, num_devices: int) -> _Times:
        """For the target, which comes first, and its drafts."""
        target, *drafts = (model.disk_bytes or 0 for model in models)
        both = target + max(drafts, default=0)
        plain_s = plain_step_s(target, DEVICES[device])
        is_plain = device == PLAIN_MACHINE
        return cls(
            weight_bytes=both if target else None,
            token_s=plain_s if is_plain else max(LEAST_TOKEN_S, BANDWIDTH_LOSS * plain_s / max(1, num_devices)),
            load_s=LOAD_S + both / READ_BYTES_PER_S,
            compile_s=COMPILE_S + COMPILE_S_PER_GB * both / GB,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What each stage of a search has to do."""

    workload: Workload
    loads: tuple[int, ...]
    times: _Times
    capabilities: Capabilities

    def stages(self, drafts: int, trials: int, certify_loads: int) -> Iterator[PlannedStage]:
        """In the order of their beginning."""
        search, certify = self.workload.search_sample(), self.workload.certify_sample()
        search_s, certify_s = self._seconds(search), self._seconds(certify)
        timing_s = (1 + len(self.loads)) * STEP_TIMING_TOKENS * self.times.token_s
        passes = sum(passes_at(load, search) for load in self.loads)  # together they take no longer than one by one
        again, again_s = passes * len(search), passes * search_s
        has_anchors = self.capabilities.loads_at_once > 1
        anchors = -(-len(search) // ANCHOR_EVERY) if has_anchors else 0
        anchors_s = search_s / ANCHOR_EVERY if has_anchors else 0.0
        sides = 2 if self.capabilities.loads_at_once > 1 else 4  # one at a time: each side is loaded and run twice
        yield self._stage(StageKind.BASELINE, 1, len(search) + again, search_s + again_s + timing_s)
        yield self._stage(StageKind.TRACE, drafts, len(search), TRACE_SHARE * search_s + timing_s)
        if self.capabilities.needs_compile:
            compile_s = trials * self.times.compile_s
            yield PlannedStage(kind=StageKind.COMPILE, count=trials, requests=0, seconds=compile_s)
        measured_s = search_s + anchors_s + again_s
        yield self._stage(StageKind.MEASURE, trials - 1, len(search) + anchors + again, measured_s)
        yield self._stage(StageKind.CERTIFY, certify_loads, sides * len(certify), sides * certify_s)

    def _stage(self, kind: StageKind, count: int, requests: int, seconds: float) -> PlannedStage:
        return PlannedStage(kind=kind, count=count, requests=requests, seconds=count * (self.times.load_s + seconds))

    def _seconds(self, prompts: Sequence[Prompt]) -> float:
        return sum(self.workload.output_cap(prompt) for prompt in prompts) * self.times.token_s


def _held(stage: PlannedStage, hardware: Hardware) -> PlannedStage:
    needs = hardware.needs(stage.kind)
    return replace(stage, holds=str(needs), num_devices=needs.num_devices)


def _in_flight(hardware: Hardware, parallel: int | None, *, is_cluster: bool) -> int:
    at_once = hardware.per_machine(StageKind.MEASURE)
    if parallel is None:
        return min(MOST_IN_FLIGHT_OF_REPLAY, at_once)
    return parallel if is_cluster else min(parallel, at_once)


def _planned_machines(
    stages: Sequence[PlannedStage],
    hardware: Hardware,
    parallel: int,
    price_per_hour: float | None,
    *,
    artifact_bytes: int | None,
    artifacts: str | None,
) -> PlannedMachines:
    by_kind = {stage.kind: stage for stage in stages}
    compiling = by_kind.get(StageKind.COMPILE)
    parallel = max(1, min(parallel, by_kind[StageKind.MEASURE].count))
    count = math.ceil(parallel / hardware.per_machine(StageKind.MEASURE))
    wall_s = _wall_s(by_kind, parallel)
    device_hours = sum(stage.num_devices * stage.seconds for stage in stages) / 3600
    machine_hours = count * wall_s / 3600
    compile_hours = 0.0 if compiling is None or hardware.compile_on == "device_host" else compiling.seconds / 3600
    compile_price = 0.0 if not compile_hours else hardware.compile_price_per_hour
    is_priced = price_per_hour is not None and compile_price is not None
    cost = machine_hours * (price_per_hour or 0.0) + compile_hours * (compile_price or 0.0)
    compiles = 0 if compiling is None else compiling.count
    return PlannedMachines(
        hardware=hardware.name,
        parallel=parallel,
        count=count,
        wall_s=wall_s,
        device=hardware.device if device_hours else None,
        block=hardware.block,
        block_hours=device_hours / hardware.block,
        device_hours=device_hours,
        machine_hours=machine_hours,
        compile_machine_hours=compile_hours,
        price_per_hour=price_per_hour,
        currency=hardware.currency,
        cost=cost if is_priced else None,
        artifact_bytes=0 if not compiles else None if artifact_bytes is None else compiles * artifact_bytes,
        artifacts=artifacts if compiles else None,
    )


def _wall_s(by_kind: Mapping[StageKind, PlannedStage], parallel: int) -> float:
    """From begin to end: the baseline, the traces side by side, rounds of configurations, the final comparison."""
    compile_s = by_kind[StageKind.COMPILE].seconds_each if StageKind.COMPILE in by_kind else 0.0
    trace, measure = by_kind[StageKind.TRACE], by_kind[StageKind.MEASURE]
    traces_s = math.ceil(trace.count / parallel) * trace.seconds_each
    trials_s = math.ceil(measure.count / parallel) * (compile_s + measure.seconds_each)
    return compile_s + by_kind[StageKind.BASELINE].seconds + traces_s + trials_s + by_kind[StageKind.CERTIFY].seconds
