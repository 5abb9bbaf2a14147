"""Compare what replay says of speculation with speculation that really ran, on the CPU engine with real models.

Greedy and sampled, the engine's own rounds have to be the replayed ones, request by request. Where the draft samples
too, replayed rounds are expected values, and are held against rejection sampling with both models. The last line of
standard output is one JSON object with ``--json``; the table goes to standard error. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.command import run_command
from harness.comparison import Task
from harness.engine_replay import Compared, compare
from harness.expected_rounds import NORMAL_95, Cell, sample_cells
from harness.machine import load_average, machine_facts, versions
from harness.shared_target import SharedTarget, resolve_target_and_drafts
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tuner.engines.cpu.threads import available_threads
from tuner.outputs import LOGIT_NOISE
from tuner.records import GREEDY, Sampling
from tuner.settings import DEFAULT_TARGET
from tuner.speculation import Speculation
from tuner.workload import read_workload

WORKLOADS = ("number-sequences", "code-gen", "open-prose", "json-extraction")
"""``--quick`` takes the first three."""

SAMPLINGS = (Sampling(temperature=1.0), Sampling(temperature=0.7, top_p=0.9, top_k=50))

# Prompts of the shipped workloads with their answers and a round beyond them.
MAX_MODEL_LEN = 320
TABLE_WIDTH = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much is run.

    Attributes:
        greedy: Values of k; the deepest one is traced.
        sampled: Values of k of the engine where the target samples.
        expected: Values of k of rejection sampling.
        prompts: Of each workload, the shortest.
        tokens: Cap of every answer.
        sequences: Of each prompt under rejection sampling.
        sequence_tokens: Their cap.
        workloads: How many of them.
        samplings: How many of them the engine runs; rejection sampling runs all.
    """

    greedy: tuple[int, ...]
    sampled: tuple[int, ...]
    expected: tuple[int, ...]
    prompts: int
    tokens: int
    sequences: int
    sequence_tokens: int
    workloads: int
    samplings: int


FULL = Extent(
    greedy=tuple(range(1, 16)),
    sampled=(1, 3, 7, 15),
    expected=(1, 3, 7),
    prompts=2,
    tokens=48,
    sequences=48,
    sequence_tokens=20,
    workloads=len(WORKLOADS),
    samplings=len(SAMPLINGS),
)
QUICK = Extent(
    greedy=(1, 3, 7, 15),
    sampled=(3,),
    expected=(3,),
    prompts=1,
    tokens=8,
    sequences=4,
    sequence_tokens=8,
    workloads=3,
    samplings=1,
)


def measure(arguments: argparse.Namespace, console: Console) -> dict[str, object]:
    """Run everything, show the tables, and return the JSON document.

    Raises:
        TunerError: A model is missing or does not fit, or a request failed.
    """
    extent = QUICK if arguments.quick else FULL
    load = load_average()
    folder, drafts = resolve_target_and_drafts(arguments.target)
    console.print("loading models …")
    shared = SharedTarget.open(folder, threads=arguments.threads, max_model_len=MAX_MODEL_LEN, slots=extent.sequences)
    tasks = read_tasks(shared, extent, extent.tokens)
    with Progress(console=console, transient=True) as progress:
        greedy = compare_all(shared, drafts.values(), extent.greedy, tasks, GREEDY, progress)
        sampled = [
            one
            for sampling in SAMPLINGS[: extent.samplings]
            for one in compare_all(shared, drafts.values(), extent.sampled, tasks, sampling, progress)
        ]
        cells = expect_all(shared, drafts["shallow"], extent, arguments.seed, progress)
    console.print(engine_table(greedy, sampled))
    console.print(expected_table(cells))
    return describe(greedy, sampled, cells) | {
        "target": folder.name,
        "drafts": list(drafts),
        "workloads": list(WORKLOADS[: extent.workloads]),
        "drafted_tokens": list(extent.greedy),
        "logit_noise": LOGIT_NOISE,
        "threads": arguments.threads,
        "load_average_at_start": round(load, 2),
        "machine": machine_facts(),
        "versions": versions(),
    }


def read_tasks(shared: SharedTarget, extent: Extent, cap: int) -> list[Task]:
    """The shortest prompts of each workload: reading a long one takes most of the time and shows nothing."""
    tasks = []
    for name in WORKLOADS[: extent.workloads]:
        workload = read_workload(name)
        prompts = sorted(workload.search_sample(), key=lambda prompt: len(shared.tokenizer.encode(prompt)))
        tasks += [
            Task(workload=name, prompt=prompt, max_output_tokens=min(cap, workload.output_cap(prompt)))
            for prompt in prompts[: extent.prompts]
        ]
    return tasks


def compare_all(
    shared: SharedTarget,
    drafts: Collection[Speculation],
    drafted_tokens: Sequence[int],
    tasks: Sequence[Task],
    sampling: Sampling,
    progress: Progress,
) -> list[Compared]:
    """The engine against replay, with a bar."""
    bar = progress.add_task(
        "greedy" if sampling == GREEDY else f"temperature {sampling.temperature:g}",
        total=len(drafts) * len(drafted_tokens) * len(tasks),
    )
    found = []
    for one in compare(shared, drafts, drafted_tokens, tasks, sampling):
        found.append(one)
        progress.advance(bar)
    return found


def expect_all(shared: SharedTarget, draft: Speculation, extent: Extent, seed: int, progress: Progress) -> list[Cell]:
    """Rejection sampling against replay, with a bar."""
    assert draft.draft_model is not None
    tasks = read_tasks(shared, extent, extent.sequence_tokens)
    bar = progress.add_task("rejection sampling", total=len(tasks) * len(SAMPLINGS))
    return sample_cells(
        shared,
        shared.shallow(Path(draft.draft_model)),
        tasks,
        SAMPLINGS,
        extent.expected,
        sequences=extent.sequences,
        seed=seed,
        one_done=lambda: progress.advance(bar),
    )


def describe(greedy: Sequence[Compared], sampled: Sequence[Compared], cells: Sequence[Cell]) -> dict[str, object]:
    """All figures as plain values."""
    errors = [error for cell in cells for error in (cell.own_error(), cell.target_error())]
    return {
        "greedy_max_round_difference": most(greedy, 0),
        "greedy_max_drafted_difference": most(greedy, 1),
        "greedy_max_accepted_difference": most(greedy, 2),
        "sampled_max_error": round(max(error.beyond_its_limits for error in errors), 5),
        "sampled_max_relative_error": round(max(abs(error.relative) for error in errors), 5),
        "sampled_engine_max_round_difference": most(sampled, 0),
        "sampled_engine_max_drafted_difference": most(sampled, 1),
        "sampled_engine_max_accepted_difference": most(sampled, 2),
        "greedy": totals(greedy),
        "sampled_engine": totals(sampled),
        "expected_rounds": [cell.describe() for cell in cells],
    }


def most(compared: Sequence[Compared], count: int) -> int:
    """Largest difference of one of the counts (rounds, drafted, accepted) that no tie explains."""
    return max(abs(one.unexplained[count]) for one in compared)


def totals(compared: Sequence[Compared]) -> dict[str, object]:
    """What was compared, and every request whose output or counts were not the expected ones."""
    odd = [one for one in compared if one.diverged_at is not None or any(one.difference)]
    return {
        "requests": len(compared),
        "rounds": sum(one.counts[0] for one in compared),
        "drafted_tokens": sum(one.counts[1] for one in compared),
        "accepted_tokens": sum(one.counts[2] for one in compared),
        "same_output": sum(one.diverged_at is None for one in compared),
        "ties": sum(one.is_tie for one in compared),
        "listed": [one.describe() for one in odd],
    }


def engine_table(greedy: Sequence[Compared], sampled: Sequence[Compared]) -> Table:
    """One line for each draft and way of choosing."""
    shown = Table(title="rounds of the engine against replayed ones, request by request")
    for heading in ("target", "draft"):
        shown.add_column(heading)
    for heading in ("requests", "rounds", "other output", "of them ties", "largest difference"):
        shown.add_column(heading, justify="right")
    for label, compared in (("greedy", greedy), ("sampled", sampled)):
        for draft in dict.fromkeys(one.draft for one in compared):
            own = [one for one in compared if one.draft == draft]
            diverged = [one for one in own if one.diverged_at is not None]
            figures = (len(own), sum(one.counts[0] for one in own), len(diverged), sum(one.is_tie for one in own))
            shown.add_row(label, draft, *map(str, figures), str(max(most(own, count) for count in range(3))))
    return shown


def expected_table(cells: Sequence[Cell]) -> Table:
    """One line for each k and sampling."""
    shown = Table(title="tokens per round where the draft samples: measured, and replay's relative error ± 1.96 se")
    shown.add_column("sampling")
    for heading in ("k", "sequences", "measured", "along its own outputs", "along the target's"):
        shown.add_column(heading, justify="right")
    for cell in cells:
        facts = cell.describe()
        errors = [
            f"{error.relative:+.2%} ± {NORMAL_95 * error.standard_error:.2%}"
            for error in (cell.own_error(), cell.target_error())
        ]
        label = f"temperature {cell.sampling.temperature:g}, top-p {cell.sampling.top_p:g}"
        measured = f"{facts['measured_acceptance_length']:.3f}"
        shown.add_row(label, str(cell.drafted_tokens), str(facts["sequences"]), measured, *errors)
    return shown


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry point; the exit code."""
    return run_command(measure, _parse(argv), TABLE_WIDTH)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer prompts and values of k, short answers")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line of stdout")
    parser.add_argument("--target", default=DEFAULT_TARGET, help="name or folder of the model (%(default)s)")
    parser.add_argument("--threads", type=int, help="of the engine (all CPUs; quick 1)")
    parser.add_argument("--seed", type=int, default=0, help="of rejection sampling (%(default)s)")
    arguments = parser.parse_args(argv)
    # Nothing is timed here. One thread of short runs does not wait for another that a busy machine holds up.
    arguments.threads = arguments.threads or (1 if arguments.quick else available_threads())
    return arguments


if __name__ == "__main__":
    sys.exit(main())
