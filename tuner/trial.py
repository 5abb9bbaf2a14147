"""What a worker does: one stage, from loading an engine to the record of what was seen.

Workers see neither the store nor Optuna. They get a ``StageTask``, and return the stage's record as bytes.
"""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from tuner.artifacts import ArtifactCache, ArtifactPlace, BuiltArtifact
from tuner.engines import Artifact, Engine, LoadedEngine, Replayable, load_engine
from tuner.errors import DispatchError, UnsupportedConfigurationError
from tuner.logged_run import logged_requests, logged_trace
from tuner.measure import (
    MeasureLimits,
    measure,
    measure_blocks,
    measure_loads,
    measure_with_anchor,
    process_tree_bytes,
)
from tuner.models.config import read_model_config
from tuner.needs import Needs
from tuner.outputs import divergences
from tuner.priors import step_limits, weight_count
from tuner.records import (
    BaselineResult,
    CertifyResult,
    Measurement,
    MeasureResult,
    Prompt,
    Sampling,
    StageKind,
    TargetOutput,
    TimedSteps,
    Trace,
    TraceResult,
    to_json,
)
from tuner.speculation import NO_SPECULATION, EngineConfig, content_key
from tuner.transfer import FEATURE_METHODS, trace_without_engine

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called with (finished, total) requests."""


MOST_WEIGHTS_FOR_GAPS = 500_000_000
"""Of a target that is run for its near-ties, where no engine has them: on two cores that takes minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTiming:
    """Which single steps are timed, and how often each.

    Attributes:
        prefill_tokens: Lengths of prompts that the draft reads; timed less often, since a prompt takes as long as many
            rounds and counts once.
    """

    verify_widths: tuple[int, ...]
    draft_lengths: tuple[int, ...]
    repeats: int
    prefill_tokens: tuple[int, ...] = ()
    prefill_repeats: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTask:
    """One piece of work, complete in itself; travels to the worker pickled.

    Attributes:
        key: What it works on, by content. With the kind and the attempt it names the stage in a cluster.
        engine: Name of the engine's entry point.
        config: What is loaded; the baseline is this with ``NO_SPECULATION``.
        prompts: In order of sending.
        loads: Further numbers of requests in flight at which ``baseline`` and ``measure`` run the prompts once more.
        outputs: The target's own outputs, for ``trace`` only; empty where the trace is made already, which leaves
            the timing.
        timing: Single steps to time, for ``baseline`` and ``trace``; of a ``trace`` None means that the engine can
            neither replay nor time, so that none is loaded.
        needs: What it holds while it runs.
        artifacts: Where compiled artifacts are; None where the engine compiles nothing.
        compile_facts: What artifacts depend on beside the engine's key, such as the SDK of the machines.
        scope: Tells studies of one name in different databases apart.
        deadline_s: Ends the stage this long after it began to run.
    """

    study_name: str
    kind: StageKind
    key: str
    engine: str
    config: EngineConfig
    prompts: tuple[Prompt, ...]
    max_output_tokens: int
    sampling: Sampling
    concurrency: int
    loads: tuple[int, ...] = ()
    outputs: tuple[TargetOutput, ...] = ()
    timing: StepTiming | None = None
    needs: Needs = field(default_factory=Needs)
    artifacts: ArtifactPlace | None = None
    compile_facts: Mapping[str, str] = field(default_factory=dict)
    scope: str = ""
    attempt: int = 0
    deadline_s: float = 3600.0

    @property
    def name(self) -> str:
        """Unique in a cluster: a compile by its key, whichever study wants it; others by study and attempt too."""
        if self.kind is StageKind.COMPILE:
            return f"{self.kind}:{self.key}"
        return f"{self.study_name}:{self.scope}:{self.kind}:{self.key}:{self.attempt}"

    @property
    def about(self) -> dict[str, str]:
        """What a person wants to know of an artifact that this compiles."""
        return {
            "engine": self.engine,
            "target_model": Path(self.config.target_model).name,
            "configuration": self.config.speculation.label,
        }

    @property
    def limits(self) -> MeasureLimits:
        """How requests are sent and capped."""
        return MeasureLimits(
            max_output_tokens=self.max_output_tokens, sampling=self.sampling, concurrency=self.concurrency
        )


def artifact_key(engine_key: str, compile_facts: Mapping[str, str]) -> str:
    """Names a compiled artifact: the engine's key, and the facts of the machines that it does not know of."""
    return content_key([engine_key, dict(compile_facts)]) if compile_facts else engine_key


def run_stage(task: StageTask, progress: Progress | None = None) -> bytes:
    """Do the work of one stage.

    Returns:
        The stage's record, as ``records.to_json`` writes it.

    Raises:
        EngineError: The configuration cannot run, or what was observed contradicts itself.
    """
    began_s = time.monotonic()
    label = task.config.speculation.label
    logger.info("%s of %s, attempt %d, on %s", task.kind, label, task.attempt, platform.node())
    engine = load_engine(task.engine)
    record = to_json(_STAGES[task.kind](engine, task, progress))
    logger.info("%s of %s ended well after %.1f s", task.kind, label, time.monotonic() - began_s)
    return record


def _run_baseline(engine: Engine, task: StageTask, progress: Progress | None) -> BaselineResult:
    with _load(engine, replace(task.config, speculation=NO_SPECULATION), task) as loaded:
        measured = measure_loads(loaded, task.prompts, task.limits, task.loads, progress)
        results = {
            load: BaselineResult(measurement=one, verify=_time_verify(loaded, task.timing, load))
            for load, one in measured.items()
        }
        return replace(results.pop(task.concurrency), at_load=results)


def _time_verify(loaded: LoadedEngine, timing: StepTiming | None, batch: int) -> TimedSteps | None:
    if timing is None or not isinstance(loaded, Replayable):
        return None
    return loaded.time_verify(timing.verify_widths, timing.repeats, batch)


def _run_trace(engine: Engine, task: StageTask, progress: Progress | None) -> TraceResult:
    if task.timing is None:
        return _trace_without_engine(engine, task, progress)
    with _load(engine, task.config, task) as loaded:
        if not isinstance(loaded, Replayable) or task.timing is None:
            raise UnsupportedConfigurationError(
                f"engine {task.engine!r} cannot replay drafts", "measure configurations instead of predicting them"
            )
        timing = task.timing
        steps = loaded.time_draft(timing.draft_lengths, timing.repeats, task.concurrency)
        prefill = loaded.time_draft_prefill(timing.prefill_tokens, timing.prefill_repeats)
        trace = loaded.trace(task.outputs, task.sampling) if task.outputs else _trace_of_nothing(task)
        if progress is not None:
            progress(len(task.outputs), len(task.outputs))
        at_load = {load: loaded.time_draft(timing.draft_lengths, timing.repeats, load) for load in task.loads}
        return TraceResult(trace=trace, draft_steps=steps, draft_prefill=prefill, draft_steps_at_load=at_load)


def _trace_without_engine(engine: Engine, task: StageTask, progress: Progress | None) -> TraceResult:
    """For engines that cannot replay: a transferred trace, and limits of the steps that were not timed."""
    config, abilities = task.config, engine.capabilities
    target = read_model_config(Path(config.target_model))
    draft = config.speculation.draft_model
    limits = step_limits(
        target,
        None if draft is None else read_model_config(Path(draft)),
        most_drafted_tokens=config.speculation.drafted_tokens,
        device=abilities.device,
        wasted_draft_passes=abilities.wasted_draft_passes,
        most_requests=max((task.concurrency, *task.loads)),
    )
    if not task.outputs:
        return TraceResult(trace=_trace_of_nothing(task), limits=limits)
    if config.speculation.method in FEATURE_METHODS and not abilities.needs_compile:
        return TraceResult(trace=_trace_of_a_run(engine, task, progress), limits=limits)
    trace = trace_without_engine(
        config,
        task.outputs,
        task.sampling,
        drafts_are_sampled=abilities.drafts_are_sampled,
        with_gaps=weight_count(target) <= MOST_WEIGHTS_FOR_GAPS,
        progress=progress,
    )
    return TraceResult(trace=trace, limits=limits)


def _trace_of_a_run(engine: Engine, task: StageTask, progress: Progress | None) -> Trace:
    """What the rounds of a run at the largest k show of a draft that only the engine can run."""
    if task.sampling.temperature > 0:
        raise UnsupportedConfigurationError(
            "the log of a run tells nothing of sampled outputs, which are others in every run",
            "measure configurations instead of predicting them, or search with temperature 0",
        )
    alone = {output.prompt.prompt_id: output.token_ids for output in task.outputs}
    with _load(engine, task.config, task) as loaded:
        limits = replace(task.limits, concurrency=1)
        run = measure(loaded, [output.prompt for output in task.outputs], limits, progress=progress)
    speculation = task.config.speculation
    return logged_trace(speculation.draft_name, speculation.drafted_tokens, logged_requests(run, alone))


def _trace_of_nothing(task: StageTask) -> Trace:
    speculation = task.config.speculation
    return Trace(draft_name=speculation.draft_name, max_drafted_tokens=speculation.drafted_tokens, prompts=())


def _run_compile(engine: Engine, task: StageTask, progress: Progress | None) -> BuiltArtifact:
    own_key = artifact_key(engine.compile_key(task.config), task.compile_facts)
    if own_key != task.key:
        raise DispatchError(
            f"{task.config.speculation.label} has compile key {task.key} where the search runs and {own_key} here: "
            "the engine or its compiler differs",
            "install the same versions on all machines",
        )
    built = _artifacts(task).build(task.key, lambda folder: engine.compile(task.config, folder), about=task.about)
    if progress is not None:
        progress(1, 1)
    return built


def _run_measure(engine: Engine, task: StageTask, progress: Progress | None) -> MeasureResult:
    if engine.capabilities.loads_at_once < 2:
        with _load(engine, task.config, task) as candidate:
            measured = measure_loads(candidate, task.prompts, task.limits, task.loads, progress)
            return MeasureResult(candidate=measured.pop(task.concurrency), anchor=None, at_load=measured)
    with ExitStack() as stack:
        candidate = stack.enter_context(_load(engine, task.config, task))
        alone = process_tree_bytes()
        baseline = stack.enter_context(_load(engine, replace(task.config, speculation=NO_SPECULATION), task))
        return measure_with_anchor(
            baseline,
            candidate,
            task.prompts,
            task.limits,
            loads=task.loads,
            anchor_bytes=process_tree_bytes() - alone,
            progress=progress,
        )


def _run_certify(engine: Engine, task: StageTask, progress: Progress | None) -> CertifyResult:
    if engine.capabilities.loads_at_once < 2:
        return _certify_in_passes(engine, task, progress)
    with ExitStack() as stack:
        baseline, candidate = _load_both(engine, task, stack)
        result = measure_blocks(baseline, candidate, task.prompts, task.limits, progress=progress)
        return _with_gaps(result, baseline, task)


def _load_both(engine: Engine, task: StageTask, stack: ExitStack) -> Sequence[LoadedEngine]:
    configs = (replace(task.config, speculation=NO_SPECULATION), task.config)
    return [stack.enter_context(_load(engine, config, task)) for config in configs]


def _certify_in_passes(engine: Engine, task: StageTask, progress: Progress | None) -> CertifyResult:
    """Baseline, candidate twice, baseline again, each over all prompts: what drifts steadily hits both sides alike."""
    plain = replace(task.config, speculation=NO_SPECULATION)
    count = len(task.prompts)

    def passes(loaded: LoadedEngine, name: str, times: int, already: int) -> Measurement:
        return measure(
            loaded,
            task.prompts,
            task.limits,
            name=name,
            passes=times,
            progress=None if progress is None else lambda done, _: progress(already * count + done, 4 * count),
        )

    with _load(engine, plain, task) as loaded:
        first = passes(loaded, "baseline-first", 1, already=0)
    with _load(engine, task.config, task) as loaded:
        candidate = passes(loaded, "candidate", 2, already=1)
    with _load(engine, plain, task) as loaded:
        baseline = first + passes(loaded, "baseline-last", 1, already=3)
        result = CertifyResult(baseline=baseline, candidate=candidate, order="ABBA", sampling=task.sampling, loads=3)
        return _with_gaps(result, loaded, task)


def _with_gaps(result: CertifyResult, baseline: LoadedEngine, task: StageTask) -> CertifyResult:
    """The result with the logit gap wherever greedy outputs differ that should not, where the engine has logits."""
    sides = (result.baseline.environment, result.candidate.environment)
    if task.sampling.temperature > 0 or any(side.get("lossless") == "no" for side in sides):
        return result
    paths = divergences(result.baseline, result.candidate)
    if not paths or not isinstance(baseline, Replayable):
        return result
    prompts = {prompt.prompt_id: prompt for prompt in task.prompts}
    outputs = [
        TargetOutput(prompt=prompts[one.prompt_id], token_ids=path, max_output_tokens=len(path))
        for one, path in paths.items()
    ]
    gaps = baseline.top2_gaps(outputs)
    found = [replace(one, gap=along[one.position]) for one, along in zip(paths, gaps, strict=True)]
    return replace(result, divergences=tuple(found))


def _load(engine: Engine, config: EngineConfig, task: StageTask) -> LoadedEngine:
    engine.check(config)
    key = artifact_key(engine.compile_key(config), task.compile_facts)
    path = _artifacts(task).find(key) if engine.capabilities.needs_compile else None
    began_s = time.monotonic()
    loaded = engine.load(config, Artifact(key=key, path=path))
    logger.info(
        "loaded %s with %s in %.1f s", config.target_model, config.speculation.label, time.monotonic() - began_s
    )
    return loaded


def _artifacts(task: StageTask) -> ArtifactCache:
    if task.artifacts is None:
        raise DispatchError(f"stage {task.name} was given no place for compiled artifacts")
    return ArtifactCache(task.artifacts)


_STAGES: dict[StageKind, Callable[[Engine, StageTask, Progress | None], object]] = {
    StageKind.BASELINE: _run_baseline,
    StageKind.TRACE: _run_trace,
    StageKind.COMPILE: _run_compile,
    StageKind.MEASURE: _run_measure,
    StageKind.CERTIFY: _run_certify,
}
