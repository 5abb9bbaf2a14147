"""The machines that run stages: their devices, CPUs and prices, and what each kind of stage holds of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from tuner.artifacts import ArtifactPlace
from tuner.errors import HardwareError
from tuner.lookup import find_file, shipped_names
from tuner.needs import Needs
from tuner.records import StageKind
from tuner.yaml_files import Number, WholeNumber, read_yaml, validate

DEFAULT_HARDWARE = "cpu"
EVERY_CPU = "all"
COMPILE_CPUS = 1
"""Of a compile where nothing is said: such a compiler runs beside others on whatever machine there is."""

MOST_DEADLINE_S = 7 * 24 * 3600
GB = 10**9

_STRICT = ConfigDict(frozen=True, extra="forbid")
_OWN_RESOURCES = frozenset({"CPU", "memory", "object_store_memory"})
"""What other fields say."""


def _cpu_count(value: object) -> object:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 4096
    if value is None or value == EVERY_CPU or is_count:
        return value
    raise ValueError(f"should be a whole number from 1 to 4096, or {EVERY_CPU}")


CpuCount = Annotated[Any, BeforeValidator(_cpu_count)]
Seconds = Annotated[Number | None, Field(gt=0, le=MOST_DEADLINE_S, allow_inf_nan=False)]
Price = Annotated[Number | None, Field(ge=0, le=1_000_000, allow_inf_nan=False)]
Amount = Annotated[Number, Field(gt=0, le=1_000_000, allow_inf_nan=False)]


class StageOnHardware(BaseModel):
    """What stages of one kind hold of a machine while they run."""

    model_config = _STRICT

    num_cpus: CpuCount = Field(
        None,
        description=f"CPUs reserved for it, or `{EVERY_CPU}` for every CPU of a machine: nothing runs beside it",
    )
    blocks: WholeNumber | None = Field(
        None, ge=0, le=64, description="blocks of devices it holds, 0 to 64; 1 where it is left out, 0 for compile"
    )
    memory_gb: Number = Field(
        0.0, ge=0, le=100_000, allow_inf_nan=False, description="memory reserved for it, in GB; 0 reserves none"
    )
    resources: dict[str, Amount] = Field(
        default_factory=dict,
        max_length=20,
        description="further resources by name, as machines offer them",
    )
    deadline_s: Seconds = Field(None, description="seconds after which it is ended, up to a week")
    environment: dict[str, str] = Field(
        default_factory=dict, max_length=100, description="variables of its process, over those of all stages"
    )

    @model_validator(mode="after")
    def _names_other_resources(self) -> Self:
        if taken := sorted(_OWN_RESOURCES.intersection(self.resources)):
            raise ValueError(f"resources names {', '.join(taken)}: say num_cpus or memory_gb instead")
        return self


class StagesOnHardware(BaseModel):
    """What each kind of stage holds."""

    model_config = _STRICT

    baseline: StageOnHardware = Field(default_factory=StageOnHardware, description="no speculation, timed")
    trace: StageOnHardware = Field(default_factory=StageOnHardware, description="a draft along the outputs, timed")
    compile: StageOnHardware = Field(default_factory=StageOnHardware, description="what an engine compiles, not timed")
    measure: StageOnHardware = Field(default_factory=StageOnHardware, description="one configuration, timed")
    certify: StageOnHardware = Field(default_factory=StageOnHardware, description="the final comparison, timed")

    def of(self, kind: StageKind) -> StageOnHardware:
        """Of one kind."""
        found: StageOnHardware = getattr(self, str(kind))
        return found


class Hardware(BaseModel):
    """The machines that run a search's stages. All machines with devices are alike."""

    model_config = _STRICT

    name: str = Field(min_length=1, max_length=60, description="what tables call these machines")
    description: str = Field(min_length=1, max_length=500, description="what they are, in a sentence")
    device: str | None = Field(
        None,
        pattern=r"^[A-Za-z][A-Za-z0-9_.:-]*$",
        max_length=60,
        description="resource that devices are counted in: neuron_cores or GPU; none for plain machines",
    )
    devices_per_machine: WholeNumber | None = Field(
        None, ge=1, le=1024, description="devices of one machine, 1 to 1024; none where machines differ"
    )
    block: WholeNumber = Field(
        1,
        ge=1,
        le=1024,
        description="adjacent devices that one configuration runs on, 1 to 1024",
    )
    cpus_per_machine: WholeNumber | None = Field(None, ge=1, le=4096, description="CPUs of one machine, 1 to 4096")
    price_per_hour: Price = Field(None, description="price of one machine per hour; none where it is not known")
    currency: str = Field("USD", min_length=1, max_length=12, description="of the prices")
    compile_on: Literal["device_host", "cpu"] = Field(
        "device_host", description="device_host compiles on machines with devices, holding none; cpu on any machine"
    )
    compile_price_per_hour: Price = Field(
        None, description="price per hour of the machines that compile, where compile_on is cpu"
    )
    artifacts: str | None = Field(
        None, min_length=1, description="folder or URL that every machine reaches, for compiled artifacts"
    )
    node_cache_gb: Number | None = Field(
        None,
        gt=0,
        le=1_000_000,
        allow_inf_nan=False,
        description="most GB of compiled artifacts on each machine",
    )
    compile_facts: dict[str, str] = Field(
        default_factory=dict,
        max_length=20,
        description="what compiled artifacts depend on beside the configuration, as {sdk: …}: others compile anew",
    )
    environment: dict[str, str] = Field(
        default_factory=dict, max_length=100, description="variables of every stage's process"
    )
    stages: StagesOnHardware = Field(
        default_factory=StagesOnHardware, description="what each kind of stage holds: {measure: {num_cpus: …}, …}"
    )
    wait_for_nodes_s: Seconds = Field(None, description="seconds to wait for machines that are not there yet")

    # ── rules ─────────────────────────────────────────────────────────────────────────────────────────────────

    @model_validator(mode="after")
    def _whole_blocks(self) -> Self:
        if self.device is None:
            named = [kind for kind in StageKind if self.stages.of(kind).blocks]
            if named or self.devices_per_machine is not None or self.block != 1:
                raise ValueError("device is missing: block, blocks and devices_per_machine count its devices")
            return self
        if any(self.device in self.stages.of(kind).resources for kind in StageKind):
            raise ValueError(f"resources names the device {self.device}: say blocks instead")
        if self.devices_per_machine is None:
            return self
        if self.devices_per_machine % self.block:
            raise ValueError(
                f"devices_per_machine {self.devices_per_machine} is no multiple of block {self.block}: only whole "
                "blocks of one size stay adjacent"
            )
        for kind in StageKind:
            if (asked := self.needs(kind).num_devices) > self.devices_per_machine:
                raise ValueError(
                    f"stage {kind} takes {asked} {self.device}, one machine has {self.devices_per_machine}: "
                    "lower block or blocks"
                )
        return self

    @model_validator(mode="after")
    def _cpus_are_reserved_for_all_or_none(self) -> Self:
        shared = [kind for kind in StageKind if kind is not StageKind.COMPILE and self._cpus(kind) is not None]
        silent = [str(kind) for kind in StageKind if self.stages.of(kind).num_cpus is None]
        if shared and silent:
            raise ValueError(
                f"stage {shared[0]} shares its machine, so that CPUs must be reserved for every stage: say num_cpus "
                f"for {', '.join(silent)} too, or `num_cpus: {EVERY_CPU}` for {shared[0]}"
            )
        for kind in self._on_these_machines():
            if (asked := self._cpus(kind)) is not None and asked > (self.cpus_per_machine or asked):
                raise ValueError(f"stage {kind} takes {asked} CPUs, one machine has {self.cpus_per_machine}")
        return self

    @model_validator(mode="after")
    def _compile_price_is_used(self) -> Self:
        if self.compile_price_per_hour is not None and self.compile_on != "cpu":
            raise ValueError("compile_price_per_hour is of machines that only compile: say compile_on: cpu")
        return self

    # ── what follows ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def measured_price_per_hour(self) -> float | None:
        """Of the share of a machine that a measured configuration holds: its blocks of the machine's devices."""
        held = self.needs(StageKind.MEASURE).num_devices
        if self.price_per_hour is None or not held or self.devices_per_machine is None:
            return self.price_per_hour
        return self.price_per_hour * held / self.devices_per_machine

    @property
    def identity(self) -> dict[str, Any]:
        """What makes a study another one, as plain JSON values: what was timed, and nothing of prices or places."""
        return {} if self.device is None else {"device": self.device, "block": self.block}

    def needs(self, kind: StageKind) -> Needs:
        """What a stage of that kind holds while it runs."""
        stage = self.stages.of(kind)
        is_compile = kind is StageKind.COMPILE
        blocks = (0 if is_compile else 1) if stage.blocks is None else stage.blocks
        count = 0 if self.device is None else blocks * self.block
        beside_devices = self.device is not None and is_compile and self.compile_on == "device_host"
        return Needs(
            num_cpus=self._cpus(kind),
            device=self.device if count or beside_devices else None,
            num_devices=count,
            on_device_host=beside_devices,
            memory_bytes=round(stage.memory_gb * GB),
            resources=dict(stage.resources),
            environment={**self.environment, **stage.environment},
        )

    def per_machine(self, kind: StageKind) -> int:
        """How many stages of that kind one machine takes at once, by what the file says of it; at least 1."""
        needs = self.needs(kind)
        if needs.num_cpus is None:
            return 1
        by_cpus = None if self.cpus_per_machine is None else self.cpus_per_machine // needs.num_cpus
        has_devices = self.devices_per_machine is not None and needs.num_devices > 0
        by_devices = (self.devices_per_machine or 0) // needs.num_devices if has_devices else None
        return max(1, min((limit for limit in (by_cpus, by_devices) if limit is not None), default=1))

    def deadline_s(self, kind: StageKind, default: float) -> float:
        """Seconds after which a stage of that kind is ended."""
        written = self.stages.of(kind).deadline_s
        return default if written is None else written

    def artifact_place(self, cache_dir: Path, artifacts: str | None = None) -> ArtifactPlace:
        """Where compiled artifacts are; ``artifacts`` is an option, and comes before what the file says."""
        limit = self.node_cache_gb
        return ArtifactPlace(
            node_dir=str(cache_dir / "artifacts"),
            shared=artifacts or self.artifacts,
            node_limit_bytes=None if limit is None else round(limit * GB),
        )

    def _cpus(self, kind: StageKind) -> int | None:
        written = self.stages.of(kind).num_cpus
        if written is None and kind is StageKind.COMPILE:
            return COMPILE_CPUS
        return None if written in (None, EVERY_CPU) else int(written)

    def _on_these_machines(self) -> Iterator[StageKind]:
        """Kinds of stages that run on the machines that the file describes."""
        return (kind for kind in StageKind if kind is not StageKind.COMPILE or self.compile_on == "device_host")


def hardware_names() -> tuple[str, ...]:
    """Names of the hardware files that come with the package."""
    return shipped_names("hardware")


def read_hardware(reference: str | Path = DEFAULT_HARDWARE) -> Hardware:
    """The hardware of a shipped name or a YAML file.

    Raises:
        NotFoundError: It is neither.
        HardwareError: The file is not valid; the message has file, line and field.
    """
    document = read_yaml(find_file("hardware", reference), HardwareError)
    return validate(document, Hardware, HardwareError)
