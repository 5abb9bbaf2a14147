"""What a search would do: its settings, and the stages that follow from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tuner.artifacts import ArtifactPlace
from tuner.decide import DEFAULT_MARGIN
from tuner.hardware import Hardware
from tuner.needs import Needs
from tuner.objective import Objective, deciding, further_loads
from tuner.records import Prompt, StageKind, TargetOutput
from tuner.samplers import EPSILON, SamplerName
from tuner.search_space import SearchSpace
from tuner.speculation import NO_SPECULATION, EngineConfig, Speculation, content_key
from tuner.stopping import Budget
from tuner.trace_keys import Numerics, TraceKey, decisive, outputs_key, rule_of
from tuner.trial import StageTask, StepTiming, artifact_key
from tuner.workload import Workload

DEFAULT_MAX_TRIALS = 6
DEFAULT_BUDGET = Budget(max_trials=DEFAULT_MAX_TRIALS)
STAGE_DEADLINE_S = 1800.0
STEP_REPEATS = 12
"""Timings of each step size: enough for a median that one scheduler hiccup does not move."""


PLAIN_HARDWARE = Hardware(name="cpu", description="machines without devices")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiling:
    """How an engine that compiles does it.

    Attributes:
        key_of: The engine's ``compile_key``.
        loads_at_once: The engine's, which decides what a timed stage loads.
    """

    key_of: Callable[[EngineConfig], str]
    loads_at_once: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPlan:
    """Everything that decides what a search does.

    Attributes:
        target_model: Folder of the target.
        target_name: What a person called it.
        space: As written, with drafts by name or reference.
        draft_folders: Folder of the weights of each draft reference in the space.
        fingerprints: Hash of the content of the target and of each draft, so that other weights are another study.
        epsilon: Gain over the best measured configuration that is not worth another trial.
        budget: What the search may use; another one goes on with the same study.
        certify_loads: Times that both sides of the final comparison are loaded anew; more go on with the same study.
        replay_is_exact: Whether the engine's own accept/reject sequence is what replay gives.
        margin: Smallest gain worth recommending: 0.02 asks for 2 %.
        hardware: The machines, and what stages hold of them.
        deadline_s: Of every kind of stage; None takes the hardware's.
        artifacts: Where compiled artifacts are shared; None takes the hardware's.
        compiling: None for engines without a compiler.
        parallel: Trials in flight at most; None for as many as the machines take.
        retry_failed: Whether configurations are tried again that could not run.
        notices: What a person should know before it starts, such as prompts that were left out.
    """

    name: str
    target_model: str
    target_name: str
    draft_folders: Mapping[str, str]
    fingerprints: Mapping[str, str]
    workload: Workload
    space: SearchSpace
    objectives: tuple[Objective, ...]
    cache_dir: str
    sampler: SamplerName = "replay"
    seed: int = 0
    epsilon: float = EPSILON
    budget: Budget = DEFAULT_BUDGET
    certify_loads: int = 1
    replay_is_exact: bool = True
    margin: float = DEFAULT_MARGIN
    weight_format: str = "auto"
    num_threads: int | None = None
    max_model_len: int = 1024
    hardware: Hardware = PLAIN_HARDWARE
    deadline_s: float | None = None
    artifacts: str | None = None
    compiling: Compiling | None = None
    parallel: int | None = None
    retry_failed: bool = False
    notices: tuple[str, ...] = ()

    @property
    def loads(self) -> tuple[int, ...]:
        """Requests in flight beside the workload's own number, at which objectives want figures."""
        return further_loads(self.objectives)

    @property
    def spec(self) -> Mapping[str, Any]:
        """What makes two searches the same study, as plain JSON values."""
        prices = [objective.price_per_hour for objective in self.objectives if objective.price_per_hour is not None]
        return {
            "target": self.target_name,
            "models": dict(self.fingerprints),
            "workload": _workload_spec(self.workload),
            "space": _space_spec(self.space),
            "objectives": [objective.name for objective in self.objectives],
            "sampler": self.sampler,
            "seed": self.seed,
            "margin": self.margin,
            "weight_format": self.weight_format,
            "num_threads": self.num_threads,
            "max_model_len": self.max_model_len,
            **({"loads": list(self.loads)} if self.loads else {}),
            **({"price_per_hour": prices[0]} if prices else {}),
            **({"hardware": identity} if (identity := self.hardware.identity) else {}),
        }

    @property
    def places(self) -> dict[str, str]:
        """Where each model lies on this machine, by what a person called it."""
        return {self.target_name: self.target_model, **self.draft_folders}

    def config(self, speculation: Speculation) -> EngineConfig:
        """How the engine is loaded for a configuration."""
        reference = speculation.draft_model
        folder = None if reference is None else self.draft_folders[reference]
        return EngineConfig(
            target_model=self.target_model,
            speculation=replace(speculation, draft_model=folder),
            max_num_seqs=max((self.workload.concurrency, *self.loads)),
            max_model_len=self.max_model_len,
            weight_format=self.weight_format,
            num_threads=self.num_threads,
        )

    @property
    def deepest(self) -> int:
        """Largest k of the space."""
        return self.space.num_speculative_tokens.max

    def needs(self, kind: StageKind) -> Needs:
        """What a stage of that kind holds of its machine."""
        return self.hardware.needs(kind)

    @property
    def all_needs(self) -> tuple[Needs, ...]:
        """Of every kind of stage that the search has."""
        return tuple(self.needs(kind) for kind in StageKind if kind is not StageKind.COMPILE or self.compiling)

    def compile_tasks(self, task: StageTask) -> tuple[StageTask, ...]:
        """What has to be compiled before a stage can load what it loads; nothing for engines without a compiler."""
        if self.compiling is None:
            return ()
        configs = dict.fromkeys(self._loaded(task, self.compiling))
        return tuple(self._compile_task(config, self.compiling.key_of(config)) for config in configs)

    def _loaded(self, task: StageTask, compiling: Compiling) -> tuple[EngineConfig, ...]:
        plain = replace(task.config, speculation=NO_SPECULATION)
        if task.kind is StageKind.TRACE:
            return () if task.timing is None else (task.config,)
        has_both = task.kind is StageKind.CERTIFY or (task.kind is StageKind.MEASURE and compiling.loads_at_once > 1)
        return (plain, task.config) if has_both else (task.config,)

    def _compile_task(self, config: EngineConfig, engine_key: str) -> StageTask:
        task = self._task(StageKind.COMPILE, config.speculation, ())
        return replace(task, key=artifact_key(engine_key, task.compile_facts), config=config)

    def baseline_task(self) -> StageTask:
        """The target alone over the search's prompts, and the cost of verifying several rows."""
        widths = tuple(range(1, self.deepest + 2))
        timing = StepTiming(verify_widths=widths, draft_lengths=(), repeats=STEP_REPEATS)
        return self._task(StageKind.BASELINE, NO_SPECULATION, self.workload.search_sample(), timing=timing)

    def trace_task(
        self,
        draft_name: str,
        outputs: Sequence[TargetOutput],
        prefill_tokens: tuple[int, ...] = (),
        *,
        is_timed: bool = True,
    ) -> StageTask:
        """One draft's proposals along the target's outputs, and the cost of proposing; without outputs only that.

        ``prefill_tokens`` are lengths of prompts: the draft's reading of them is timed. Where the engine can time
        nothing it cannot replay either, and the trace is made without it.
        """
        lengths = tuple(range(1, self.deepest + 1))
        timing = StepTiming(
            verify_widths=(), draft_lengths=lengths, repeats=STEP_REPEATS, prefill_tokens=prefill_tokens
        )
        speculation = self.space.speculation(draft_name, self.deepest)
        return self._task(StageKind.TRACE, speculation, (), timing=timing if is_timed else None, outputs=tuple(outputs))

    def trace_key(self, draft_name: str, outputs: Sequence[TargetOutput], environment: Mapping[str, str]) -> TraceKey:
        """What a draft's trace along these outputs depends on; ``environment`` is the baseline measurement's."""
        speculation = self.space.speculation(draft_name, self.deepest)
        reference = speculation.draft_model
        return TraceKey(
            target=self.fingerprints[self.target_name],
            method=speculation.method,
            draft=None if reference is None else self.fingerprints[reference],
            outputs=outputs_key(outputs),
            sampling=decisive(self.workload.sampling),
            max_model_len=self.max_model_len,
            numerics=Numerics.of(self.space.engine, environment, self.weight_format),
            rule=rule_of(speculation),
        )

    def measure_task(self, speculation: Speculation) -> StageTask:
        """One configuration over the search's prompts."""
        return self._task(StageKind.MEASURE, speculation, self.workload.search_sample())

    def certify_tasks(self, speculation: Speculation) -> tuple[StageTask, ...]:
        """The winner and the baseline in alternating blocks, on prompts the search has not seen: one task per load.

        With as many requests in flight as the objective says that decides.
        """
        load = deciding(self.objectives).load or self.workload.concurrency
        first = replace(
            self._task(StageKind.CERTIFY, speculation, self.workload.certify_sample()), concurrency=load, loads=()
        )
        others = [content_key({"key": first.key, "load": load}) for load in range(1, self.certify_loads)]
        return (first, *(replace(first, key=key) for key in others))

    def _task(
        self,
        kind: StageKind,
        speculation: Speculation,
        prompts: tuple[Prompt, ...],
        timing: StepTiming | None = None,
        outputs: tuple[TargetOutput, ...] = (),
    ) -> StageTask:
        return StageTask(
            study_name=self.name,
            kind=kind,
            key=content_key({"kind": kind, "speculation": asdict(speculation)}),
            engine=self.space.engine,
            config=self.config(speculation),
            prompts=prompts,
            max_output_tokens=self.workload.max_output_tokens,
            sampling=self.workload.sampling,
            concurrency=self.workload.concurrency,
            loads=self.loads,
            outputs=outputs,
            timing=timing,
            needs=self.needs(kind),
            artifacts=self.artifact_place if self.compiling else None,
            compile_facts=dict(self.hardware.compile_facts),
            deadline_s=self.deadline_s or self.hardware.deadline_s(kind, STAGE_DEADLINE_S),
        )

    @property
    def artifact_place(self) -> ArtifactPlace:
        """Where compiled artifacts are."""
        return self.hardware.artifact_place(Path(self.cache_dir), self.artifacts)


def _workload_spec(workload: Workload) -> dict[str, Any]:
    return {
        "name": workload.name,
        "prompts_sha256": workload.prompts_sha256,
        "search_prompts": [prompt.prompt_id for prompt in workload.search_sample()],
        "certify_prompts": [prompt.prompt_id for prompt in workload.certify_sample()],
        "max_output_tokens": workload.max_output_tokens,
        "concurrency": workload.concurrency,
        "sampling": asdict(workload.sampling),
    }


def _space_spec(space: SearchSpace) -> dict[str, Any]:
    return {
        "engine": space.engine,
        "drafts": {name: space.draft(name).model_dump(mode="json") for name in space.draft_names},
        "num_speculative_tokens": space.num_speculative_tokens.model_dump(),
    }
