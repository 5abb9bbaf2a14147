"""An engine that compiles, and machines on a clock of their own: what tests of many trials in flight share."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from benchmarks.harness.simulated_cluster import Machine, SimulatedCluster
from tests.support.bench import Bench, a_plan, a_world
from tests.support.simulated import SimulatedEngine, Simulation, World
from tuner.driver import Search, SearchResult
from tuner.engines.base import Artifact
from tuner.errors import CompileError
from tuner.observer import Observer
from tuner.plan import Compiling, SearchPlan
from tuner.records import StageKind
from tuner.speculation import EngineConfig, content_key
from tuner.store import StageRecord
from tuner.trial import StageTask

MINUTE_S = 60.0
COMPILE_S, MEASURE_S = 20 * MINUTE_S, 3 * MINUTE_S


@dataclass
class Workshop:
    """What the compiler does, and what it did.

    Attributes:
        failing: Labels of configurations that do not compile.
        ignores_tokens: Whether one artifact serves every k of a draft.
        compiled: Labels of what was really compiled, in order.
    """

    failing: set[str] = field(default_factory=set)
    ignores_tokens: bool = False
    compiled: list[str] = field(default_factory=list)


class CompilingEngine(SimulatedEngine):
    """One artifact for each configuration, which is a file with its key."""

    name: ClassVar[str] = "simulated"
    capabilities = replace(SimulatedEngine.capabilities, needs_compile=True, loads_at_once=1)

    def __init__(self, world: World, workshop: Workshop) -> None:
        super().__init__(world)
        self.workshop = workshop

    def compile_key(self, config: EngineConfig) -> str:
        tokens = 0 if self.workshop.ignores_tokens else config.speculation.drafted_tokens
        return content_key([config.speculation.draft_name, tokens])

    def compile(self, config: EngineConfig, folder: Path) -> None:
        label = config.speculation.label
        self.workshop.compiled.append(label)
        if label in self.workshop.failing:
            raise CompileError(f"{label} does not compile", "try another")
        (folder / "model.neff").write_text(self.compile_key(config))

    def load(self, config: EngineConfig, artifact: Artifact) -> Simulation:
        assert artifact.path is not None
        assert (artifact.path / "model.neff").read_text() == self.compile_key(config)
        return super().load(config, artifact)


def lasting(task: StageTask) -> float:
    """Seconds of a stage: twenty minutes of a compile, three of everything timed."""
    return COMPILE_S if task.kind is StageKind.COMPILE else MEASURE_S


class ClusterBench(Bench):
    """A ``Bench`` whose engine compiles, on two machines of four CPUs; ``cache_dir`` keeps the artifacts."""

    def __init__(self, cache_dir: Path) -> None:
        super().__init__(a_world())
        self.workshop = Workshop()
        self.engine = CompilingEngine(self.world, self.workshop)
        self.cache_dir = cache_dir
        self.cluster = a_cluster()
        self.plans: list[SearchPlan] = []

    def plan(self, **changes: object) -> SearchPlan:
        compiling = Compiling(key_of=self.engine.compile_key, loads_at_once=1)
        return a_plan(**{"cache_dir": str(self.cache_dir), "compiling": compiling, "deadline_s": 3600.0, **changes})

    def search(self, plan: SearchPlan, observer: Observer | None = None, **options: object) -> Search:
        """One driver of the study; each call is another one."""
        return Search(
            plan,
            self.store,
            self.ledger(plan),
            self.cluster,
            observer,
            sleep=self.cluster.sleep,
            **options,  # type: ignore[arg-type]
        )

    def run(self, plan: SearchPlan) -> SearchResult:
        return self.search(plan).run()

    def stages(self, kind: StageKind, study_name: str = "study") -> list[StageRecord]:
        return [one for one in self.store.stages(study_name) if one.kind is kind]


def a_cluster(machines: int = 2, cpus: int = 4) -> SimulatedCluster:
    return SimulatedCluster([Machine(cpus=cpus, name=f"machine-{one}") for one in range(machines)], lasting)
