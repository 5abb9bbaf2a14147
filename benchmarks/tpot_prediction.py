"""Compare the predicted time per output token of configurations with what they take when they run.

Predicted from the target alone, single steps, one pass of each draft, and one configuration of each draft that ran;
all others are then measured beside the baseline. On the CPU engine with real models. The last line of standard output
is one JSON object with ``--json``; the table goes to standard error. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from harness.command import run_command
from harness.comparison import Task, run_in_turn
from harness.contender import TunerContender
from harness.machine import load_average, machine_facts, versions
from harness.shared_target import SharedTarget, resolve_target_and_drafts
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tuner.engines.cpu.threads import available_threads
from tuner.errors import MeasurementError
from tuner.measure import MeasureLimits, measure
from tuner.metrics import summarize
from tuner.outcome import at_reference_speed, machine_slowdown
from tuner.plan import STEP_REPEATS
from tuner.predictions import Predictions, target_outputs
from tuner.records import BaselineResult, Measurement, TraceResult
from tuner.settings import DEFAULT_TARGET
from tuner.speculation import NO_SPECULATION, Speculation
from tuner.workload import read_workload

WORKLOADS = ("number-sequences", "code-gen", "open-prose", "json-extraction")
"""``--quick`` takes the first two."""

DRAFTS = ("ngram", "suffix", "eagle", "shallow")
"""``--quick`` leaves suffix decoding out."""

# Prompts of the shipped workloads with their answers and a round beyond them.
MAX_MODEL_LEN = 320

QUIET_LOAD = 0.5
"""Processes that want a CPU before this one starts: with more, the machine's speed changes within seconds."""

TABLE_WIDTH = 140
Key = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much is run.

    Attributes:
        drafted_tokens: Values of k.
        timed: The one of them that is measured before predictions are scored.
        prompts: Of each workload.
        tokens: Cap of every answer.
        repeats: Of every single step.
    """

    workloads: Sequence[str]
    drafts: Sequence[str]
    drafted_tokens: tuple[int, ...]
    timed: int
    prompts: int
    tokens: int
    repeats: int


FULL = Extent(
    workloads=WORKLOADS,
    drafts=DRAFTS,
    drafted_tokens=(1, 2, 4, 6, 8, 12),
    timed=4,
    prompts=4,
    tokens=96,
    repeats=STEP_REPEATS,
)
QUICK = Extent(
    workloads=WORKLOADS[:2],
    drafts=("ngram", "eagle", "shallow"),
    drafted_tokens=(2, 4, 6),
    timed=4,
    prompts=1,
    tokens=32,
    repeats=3,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One configuration on one workload: predicted and measured time per output token, ms.

    Attributes:
        from_steps: Predicted from single steps alone.
        predicted: Predicted after one configuration of each draft was measured.
        is_timed: Whether it is the one that was measured for that; it is not scored.
        slowdown: The machine's while it was measured, by which the measured time was divided.
    """

    workload: str
    draft: str
    drafted_tokens: int
    from_steps: float
    predicted: float
    measured: float
    is_timed: bool
    slowdown: float
    mean_acceptance_length: float

    @property
    def error(self) -> float:
        """Predicted over measured, minus one."""
        return self.predicted / self.measured - 1

    @property
    def error_from_steps(self) -> float:
        """The same without the measured configuration."""
        return self.from_steps / self.measured - 1

    def describe(self) -> dict[str, object]:
        """As the JSON lists it."""
        return {
            "workload": self.workload,
            "draft": self.draft,
            "drafted_tokens": self.drafted_tokens,
            "tpot_ms_measured": round(self.measured, 3),
            "tpot_ms_predicted": round(self.predicted, 3),
            "tpot_ms_from_steps": round(self.from_steps, 3),
            "relative_error": round(self.error, 4),
            "relative_error_from_steps": round(self.error_from_steps, 4),
            "is_timed": self.is_timed,
            "machine_slowdown": round(self.slowdown, 4),
            "mean_acceptance_length": round(self.mean_acceptance_length, 3),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of a workload before any configuration with speculation is measured."""

    baseline: BaselineResult
    traces: tuple[TraceResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One configuration's figures at the machine's speed of the baseline.

    Attributes:
        columns: As ``metrics.summarize`` names them.
        slowdown: The machine's during the measurement; times are divided by it.
    """

    columns: Mapping[str, float | None]
    slowdown: float

    def figure(self, column: str) -> float:
        """One of the columns.

        Raises:
            MeasurementError: It has no value.
        """
        return _known(self.columns[column])


def measure_all(arguments: argparse.Namespace, console: Console) -> dict[str, object]:
    """Run everything, show the table, and return the JSON document.

    Raises:
        TunerError: A model is missing or does not fit, or a request failed.
    """
    extent = QUICK if arguments.quick else FULL
    load = load_average()
    if load > QUIET_LOAD:
        console.print(f"[yellow]load average {load:.1f}: this machine is busy, times are not to be trusted[/yellow]")
    folder, drafts = resolve_target_and_drafts(arguments.target)
    console.print("loading models …")
    shared = SharedTarget.open(folder, threads=arguments.threads, max_model_len=MAX_MODEL_LEN)
    chosen = [drafts[name] for name in extent.drafts]
    scored: list[Scored] = []
    with Progress(console=console, transient=True) as progress:
        for workload in extent.workloads:
            scored += score(shared, chosen, workload, extent, progress)
    console.print(table(scored))
    return describe(scored) | {
        "target": folder.name,
        "workloads": list(extent.workloads),
        "drafts": list(extent.drafts),
        "timed_drafted_tokens": extent.timed,
        "prompts": extent.prompts,
        "threads": arguments.threads,
        "load_average_at_start": round(load, 2),
        "contended": load > QUIET_LOAD,
        "machine": machine_facts(),
        "versions": versions(),
    }


def score(
    shared: SharedTarget, drafts: Sequence[Speculation], workload: str, extent: Extent, progress: Progress
) -> list[Scored]:
    """Predict and measure every configuration on one workload."""
    tasks = read_tasks(workload, extent)
    known = learn(shared, drafts, tasks, extent)
    predictions = Predictions.of(known.baseline, known.traces)
    bar = progress.add_task(workload, total=len(tasks) * (2 + len(drafts) * len(extent.drafted_tokens)))

    def measured(ks: Sequence[int]) -> dict[Key, Measured]:
        configurations = [replace(draft, drafted_tokens=k) for draft in drafts for k in ks]
        return measure_in_turn(shared, configurations, tasks, known.baseline, lambda: progress.advance(bar))

    timed = measured([extent.timed])
    sharpened = predictions.sharpened({key: one.figure("e2e_ms_mean") for key, one in timed.items()})
    others = measured([k for k in extent.drafted_tokens if k != extent.timed])
    return [
        Scored(
            workload=workload,
            draft=key[0],
            drafted_tokens=key[1],
            from_steps=_known(predictions.by_configuration[key].tpot_ms),
            predicted=_known(sharpened.by_configuration[key].tpot_ms),
            measured=one.figure("tpot_ms_mean"),
            is_timed=key in timed,
            slowdown=one.slowdown,
            mean_acceptance_length=one.figure("mean_acceptance_length"),
        )
        for key, one in (timed | others).items()
    ]


def _known(value: float | None) -> float:
    if value is None:
        raise MeasurementError("a figure has no value: every answer is one token long", "raise the cap of the answers")
    return value


def read_tasks(workload: str, extent: Extent) -> list[Task]:
    """The first prompts of a shipped workload."""
    read = read_workload(workload)
    return [
        Task(workload=workload, prompt=prompt, max_output_tokens=min(extent.tokens, read.output_cap(prompt)))
        for prompt in read.search_sample()[: extent.prompts]
    ]


def learn(shared: SharedTarget, drafts: Sequence[Speculation], tasks: Sequence[Task], extent: Extent) -> Known:
    """What stages ``baseline`` and ``trace`` of a study observe."""
    deepest = max(extent.drafted_tokens)
    prompts = [task.prompt for task in tasks]
    alone = shared.engine(NO_SPECULATION)
    measurement = measure(alone, prompts, MeasureLimits(max_output_tokens=extent.tokens))
    verify = alone.time_verify(range(1, deepest + 2), extent.repeats)
    outputs = target_outputs(measurement, prompts)
    lengths = sorted({record.prompt_tokens or 1 for record in measurement.requests})
    traces = []
    for draft in drafts:
        loaded = shared.engine(replace(draft, drafted_tokens=deepest))
        steps = loaded.time_draft(range(1, deepest + 1), extent.repeats)
        prefill = loaded.time_draft_prefill(sorted({lengths[0], lengths[-1]}), extent.repeats)
        traces.append(TraceResult(trace=loaded.trace(outputs), draft_steps=steps, draft_prefill=prefill))
    return Known(baseline=BaselineResult(measurement=measurement, verify=verify), traces=tuple(traces))


def measure_in_turn(
    shared: SharedTarget,
    configurations: Sequence[Speculation],
    tasks: Sequence[Task],
    baseline: BaselineResult,
    one_done: Callable[[], None],
) -> dict[Key, Measured]:
    """Every configuration beside the target alone: each prompt is answered by all of them before the next."""
    contenders = [
        TunerContender(name=one.label, reference=NO_SPECULATION.label, loaded=shared.engine(one))
        for one in (NO_SPECULATION, *configurations)
    ]
    rows = run_in_turn(contenders, tasks, one_done)
    found = {
        contender.name: Measurement(requests=tuple(row[contender.name] for row in rows)) for contender in contenders
    }
    slowdown = machine_slowdown(baseline.measurement, found[NO_SPECULATION.label])
    return {
        (one.draft_name, one.drafted_tokens): Measured(
            columns=summarize(at_reference_speed(found[one.label], slowdown)), slowdown=slowdown
        )
        for one in configurations
    }


def describe(scored: Sequence[Scored]) -> dict[str, object]:
    """All figures as plain values; errors are of the configurations that were not timed."""
    untimed = [one for one in scored if not one.is_timed]
    errors = [one.error for one in untimed]
    return {
        "median_relative_error": _quantile(errors, 50),
        "p90_relative_error": _quantile(errors, 90),
        "mean_signed_error": round(float(np.mean(errors)), 5),
        "from_steps_alone": {
            "median_relative_error": _quantile([one.error_from_steps for one in scored], 50),
            "p90_relative_error": _quantile([one.error_from_steps for one in scored], 90),
            "mean_signed_error": round(float(np.mean([one.error_from_steps for one in scored])), 5),
        },
        "median_by_draft": _medians(untimed, "draft"),
        "median_by_workload": _medians(untimed, "workload"),
        "median_by_drafted_tokens": _medians(untimed, "drafted_tokens"),
        "configurations": [one.describe() for one in scored],
    }


def _quantile(errors: Sequence[float], percent: float) -> float:
    return round(float(np.percentile(np.abs(errors), percent)), 5)


def _medians(scored: Sequence[Scored], name: str) -> Mapping[str, float]:
    groups: dict[str, list[float]] = {}
    for one in scored:
        groups.setdefault(str(getattr(one, name)), []).append(one.error)
    return {group: _quantile(errors, 50) for group, errors in groups.items()}


def table(scored: Sequence[Scored]) -> Table:
    """One line for each workload and draft: signed errors by k, with and without the measured configuration."""
    ks = sorted({one.drafted_tokens for one in scored})
    shown = Table(title="predicted over measured time per output token, minus one; in brackets from single steps alone")
    for heading in ("workload", "draft"):
        shown.add_column(heading)
    for k in ks:
        shown.add_column(f"k = {k}", justify="right")
    groups: dict[tuple[str, str], list[Scored]] = {}
    for one in scored:
        groups.setdefault((one.workload, one.draft), []).append(one)
    for names, group in groups.items():
        cells = [
            f"{'timed' if one.is_timed else f'{one.error:+.1%}'} ({one.error_from_steps:+.1%})"
            for one in sorted(group, key=lambda one: one.drafted_tokens)
        ]
        shown.add_row(*names, *cells)
    return shown


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry point; the exit code."""
    return run_command(measure_all, _parse(argv), TABLE_WIDTH)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer workloads, prompts and values of k, short answers")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line of stdout")
    parser.add_argument("--target", default=DEFAULT_TARGET, help="name or folder of the model (%(default)s)")
    parser.add_argument("--threads", type=int, default=available_threads(), help="of the engine (%(default)s)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
