"""One search by the real driver over simulated machines, and how busy it kept their devices."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from harness.simulated_cluster import Interval, Machine, SimulatedCluster

from tests.support.bench import a_plan
from tests.support.compiling import ClusterBench, lasting
from tuner.hardware import Hardware, read_hardware
from tuner.plan import Compiling
from tuner.records import StageKind
from tuner.search_space import Draft, DraftTokens, SearchSpace
from tuner.speculation import Method
from tuner.stopping import Budget

DEVICE_MACHINES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where a search compiles.

    Attributes:
        compile_on: As in hardware files.
        compile_blocks: Blocks of devices that a compile holds.
        farm_machines: Machines without devices beside those with; compiles take these first.
    """

    name: str
    compile_on: str
    compile_blocks: int = 0
    farm_machines: int = 0

    @property
    def hardware(self) -> Hardware:
        """The shipped trn2.48xlarge, compiling there."""
        shipped = read_hardware("trn2.48xlarge")
        compiling = shipped.stages.compile.model_copy(update={"blocks": self.compile_blocks})
        stages = shipped.stages.model_copy(update={"compile": compiling})
        return shipped.model_copy(update={"compile_on": self.compile_on, "stages": stages, "node_cache_gb": None})

    def machines(self, hardware: Hardware) -> list[Machine]:
        """Those without devices first, which is where compiles go that may run anywhere."""
        cpus, devices = hardware.cpus_per_machine or 0, hardware.devices_per_machine or 0
        farm = [Machine(cpus=cpus, name=f"compile-{one}") for one in range(self.farm_machines)]
        return [*farm, *(Machine(cpus=cpus, devices=devices, name=f"trn2-{one}") for one in range(DEVICE_MACHINES))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What came of it.

    Attributes:
        busy_share: Time that blocks spent in measurements over blocks × time from the first of them to the last.
        busy_share_compiled: Likewise, from the first measurement of a configuration that the traces had not compiled.
        wall_s: Simulated, of the whole search up to its last measurement: baseline, traces and trials.
        trials_wall_s: Likewise from the end of the last trace.
        compiles_at_once: At most.
        driver_s: Real, of the driver and everything that is simulated.
    """

    measurements: int
    busy_share: float
    busy_share_compiled: float
    wall_s: float
    trials_wall_s: float
    compiles_at_once: int
    driver_s: float


def simulate(setting: Setting, drafts: int, most_tokens: int, folder: Path) -> Simulated:
    """Try every configuration of so many drafts with 1 to ``most_tokens`` tokens, asked for by Optuna's grid."""
    bench, hardware = ClusterBench(folder), setting.hardware
    names = [f"draft-{one:02}" for one in range(drafts)]
    bench.world.hit_rates = {name: 0.4 + 0.5 * place / drafts for place, name in enumerate(names)}
    bench.world.draft_ms = dict.fromkeys(names, 1.0)
    bench.cluster = cluster = SimulatedCluster(setting.machines(hardware), lasting)
    space = SearchSpace(
        name="simulated",
        description="Many drafts.",
        engine="simulated",
        drafts=tuple(Draft(name=name, method=Method.DRAFT_MODEL, model=name) for name in names),
        num_speculative_tokens=DraftTokens(min=1, max=most_tokens),
    )
    plan = a_plan(
        space=space,
        draft_folders={name: name for name in names},
        fingerprints={"target": "0", **{name: name for name in names}},
        sampler="grid",
        budget=Budget(),
        hardware=hardware,
        cache_dir=str(folder),
        compiling=Compiling(key_of=bench.engine.compile_key, loads_at_once=1),
    )
    began_s = time.monotonic()
    with patch("tuner.trial.load_engine", lambda _name: bench.engine):
        bench.run(plan)
    return _observed(cluster, hardware, time.monotonic() - began_s)


def _observed(cluster: SimulatedCluster, hardware: Hardware, driver_s: float) -> Simulated:
    measured = [one for one in cluster.ran if one.kind is StageKind.MEASURE]
    traces_end_s = max(one.ended_s for one in cluster.ran if one.kind is StageKind.TRACE)
    compiles = [one for one in cluster.ran if one.kind is StageKind.COMPILE]
    blocks = DEVICE_MACHINES * (hardware.devices_per_machine or 0) // hardware.block
    own = {one.label for one in compiles if one.began_s >= traces_end_s}
    return Simulated(
        measurements=len(measured),
        busy_share=_busy_share(measured, min(one.began_s for one in measured), blocks),
        busy_share_compiled=_busy_share(measured, min(one.began_s for one in measured if one.label in own), blocks),
        wall_s=max(one.ended_s for one in measured),
        trials_wall_s=max(one.ended_s for one in measured) - traces_end_s,
        compiles_at_once=max(sum(one.began_s <= at.began_s < one.ended_s for one in compiles) for at in compiles),
        driver_s=driver_s,
    )


def _busy_share(measured: Sequence[Interval], from_s: float, blocks: int) -> float:
    """Of the time from that moment to the end of the last measurement."""
    busy_s = sum(one.ended_s - one.began_s for one in measured if one.began_s >= from_s)
    return busy_s / (blocks * (max(one.ended_s for one in measured) - from_s))
