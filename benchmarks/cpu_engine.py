"""Compare the CPU engine with ``transformers`` and with the machine's memory bandwidth.

All contenders answer the same prompts in turn, in one process, with the same caps and threads. The last line of
standard output is one JSON object with ``--json``; the table goes to standard error. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from harness.command import run_command
from harness.comparison import Comparison, Task, run_in_turn
from harness.contender import Contender, load_tuner, speculations
from harness.machine import load_average, machine_facts, versions
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tuner.engines.cpu.threads import available_threads
from tuner.errors import EngineNotInstalledError
from tuner.models.resolve import resolve_models
from tuner.settings import DEFAULT_TARGET, read_settings
from tuner.workload import read_workload

WORKLOADS = ("number-sequences", "json-extraction", "structured-repetition", "code-gen", "open-prose")
EAGLE, SHALLOW = "smollm2-135m-eagle", "smollm2-135m-shallow"

PROMPTS = 5
QUICK_PROMPTS, QUICK_TOKENS = 1, 48
WARMUP_TOKENS = 8

# Processes that want a CPU before this one starts: with more, memory is shared and only ratios mean something.
QUIET_LOAD = 0.5
GB = 1e9
TABLE_WIDTH = 160


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry point; the exit code."""
    return run_command(measure, _parse(argv), TABLE_WIDTH)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one prompt of each workload, shorter answers")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line of stdout")
    parser.add_argument("--target", default=DEFAULT_TARGET, help="name or folder of the model (%(default)s)")
    parser.add_argument("--threads", type=int, default=available_threads(), help="of every contender (%(default)s)")
    parser.add_argument("--prompts", type=int, help=f"prompts of each workload ({PROMPTS}; quick {QUICK_PROMPTS})")
    parser.add_argument("--workload", action="append", choices=WORKLOADS, help="only this one; may be repeated")
    return parser.parse_args(argv)


def measure(arguments: argparse.Namespace, console: Console) -> dict[str, object]:
    """Run everything, show the table, and return the JSON document.

    Raises:
        EngineNotInstalledError: What is compared with is not installed.
    """
    _check_installed()
    from harness.bandwidth import read_bandwidths

    load = load_average()
    if load > QUIET_LOAD:
        console.print(f"[yellow]load average {load:.1f}: this machine is busy, trust ratios only[/yellow]")
    tasks = read_tasks(arguments)
    console.print("measuring memory bandwidth, loading models …")
    bandwidths = read_bandwidths(arguments.threads)
    contenders, facts = load_contenders(arguments, tasks)
    comparison = compare(contenders, tasks, console)
    document = describe(comparison, facts, bandwidths) | {
        "threads": arguments.threads,
        "load_average_at_start": round(load, 2),
        "contended": load > QUIET_LOAD,
        "machine": machine_facts(),
        "versions": versions(),
    }
    console.print(table(comparison))
    console.print(
        f"{document['share_of_limit']:.0%} of the memory limit: {document['weight_bytes']} bytes of weights a token, "
        f"{document['bandwidth_gb_per_s']} GB/s, {arguments.threads} threads",
        highlight=False,
        soft_wrap=True,
    )
    return document


def _check_installed() -> None:
    for package in ("torch", "transformers"):
        if find_spec(package) is None:
            raise EngineNotInstalledError(
                f"this benchmark needs the package {package!r}, which is not installed",
                "pip install -e '.[cpu]' --group bench",
            )


def read_tasks(arguments: argparse.Namespace) -> list[Task]:
    """Prompts of the shipped workloads, none of which was used to train a draft."""
    count = arguments.prompts or (QUICK_PROMPTS if arguments.quick else PROMPTS)
    tasks = []
    for name in arguments.workload or WORKLOADS:
        workload = read_workload(name)
        for prompt in islice(workload.search_sample(), count):
            cap = workload.output_cap(prompt)
            cap = min(cap, QUICK_TOKENS) if arguments.quick else cap
            tasks.append(Task(workload=name, prompt=prompt, max_output_tokens=cap))
    return tasks


def load_contenders(arguments: argparse.Namespace, tasks: Sequence[Task]) -> tuple[list[Contender], dict[str, object]]:
    """Everyone who takes part, and what is to be known of them."""
    from harness.generate import load_transformers

    folders = resolve_models([arguments.target, EAGLE, SHALLOW], settings=read_settings())
    target, shallow = folders[arguments.target], folders[SHALLOW]
    configured = speculations(eagle=folders[EAGLE], shallow=shallow)
    ours = [load_tuner(target, name, chosen, arguments.threads) for name, chosen in configured.items()]
    theirs = load_transformers(target, shallow, arguments.threads, tasks[0].prompt)
    facts = {
        "target": Path(target).name,
        "weight_format": ours[0].loaded.environment()["weight_format"],
        "weight_bytes": int(ours[0].loaded.environment()["weight_bytes"]),
        "transformers_modes": {contender.name: contender.mode.label for contender in theirs},
    }
    return [*ours, *theirs], facts


def compare(contenders: Sequence[Contender], tasks: Sequence[Task], console: Console) -> Comparison:
    """Warm everyone up, then run everything with a bar."""
    for contender in contenders:
        contender.run(tasks[0].prompt, WARMUP_TOKENS)
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("answers", total=len(contenders) * len(tasks))
        rows = run_in_turn(contenders, tasks, lambda: progress.advance(bar))
    references = {contender.name: contender.reference for contender in contenders}
    return Comparison(references=references, tasks=tasks, rows=rows)


def describe(comparison: Comparison, facts: Mapping[str, object], bandwidths: Mapping[str, float]) -> dict[str, object]:
    """All figures as plain values."""
    names = list(comparison.references)
    speculating = [name for name, reference in comparison.references.items() if name != reference]
    limit = max(bandwidths.values())
    weight_bytes = facts["weight_bytes"]
    assert isinstance(weight_bytes, int)
    return {
        "tokens_per_s": {name: _figure(comparison.tokens_per_s(name)) for name in names},
        "ahead_of_transformers": ahead(comparison),
        "share_of_limit": _figure(weight_bytes / limit / comparison.seconds_per_token("tuner")),
        "bandwidth_gb_per_s": _figure(limit / GB),
        "bandwidth_gb_per_s_by_kernel": {kernel: _figure(value / GB) for kernel, value in bandwidths.items()},
        **facts,
        "tokens_per_s_with_prefill": {name: _figure(comparison.tokens_per_s_with_prefill(name)) for name in names},
        "speedup_over_no_speculation": {
            workload: {name: _figure(comparison.speedup(name, workload)) for name in speculating}
            for workload in comparison.workloads
        },
        "geometric_mean_speedup": {
            workload or "all": {name: _figure(comparison.mean_speedup(name, workload)) for name in speculating}
            for workload in (*comparison.workloads, None)
        },
        "mean_acceptance_length": {name: _figure(comparison.acceptance_length(name)) for name in speculating},
        "identical_outputs": {
            name: comparison.identical_share(name, reference) for name, reference in comparison.references.items()
        },
        "identical_to_tuner": {name: comparison.identical_share(name, "tuner") for name in names},
        "prompts": comparison.details(),
    }


def ahead(comparison: Comparison) -> dict[str, object]:
    """How many times as fast the engine is as the fastest of ``transformers``, of those that change no output.

    Outputs of ``transformers`` count as unchanged where they are those of its own plain fp32 generation.
    """
    theirs = [name for name in comparison.references if comparison.identical_share(name, "transformers") == 1]
    theirs = [name for name in theirs if name.startswith("transformers")]
    ours = [name for name in comparison.references if name.startswith("tuner")]
    plain = comparison.fastest(name for name in theirs if comparison.references[name] == name)
    own, rival = comparison.fastest(ours), comparison.fastest(theirs)
    return {
        "without_speculation": _figure(comparison.tokens_per_s("tuner") / comparison.tokens_per_s(plain)),
        "with_speculation": _figure(comparison.tokens_per_s(own) / comparison.tokens_per_s(rival)),
        "compared": {"without_speculation": ["tuner", plain], "with_speculation": [own, rival]},
    }


def _figure(value: float | None) -> float | None:
    """Four digits; None for what could not be measured, since JSON has no NaN."""
    return None if value is None or math.isnan(value) else float(f"{value:.4g}")


def table(comparison: Comparison) -> Table:
    """One line for each contender: speed, speed-up over itself without speculation, and sameness."""
    shown = Table(title="tokens/s of decoding; speed-up over the same without speculation")
    shown.add_column("contender")
    for heading in ("tokens/s", "with prefill", *comparison.workloads, "identical", "as tuner"):
        shown.add_column(heading, justify="right")
    for name, reference in comparison.references.items():
        speedups = [
            "" if name == reference else f"{comparison.speedup(name, workload):.2f}×"
            for workload in comparison.workloads
        ]
        shown.add_row(
            name,
            f"{comparison.tokens_per_s(name):.1f}",
            f"{comparison.tokens_per_s_with_prefill(name):.1f}",
            *speedups,
            f"{comparison.identical_share(name, reference):.0%}",
            f"{comparison.identical_share(name, 'tuner'):.0%}",
        )
    return shown


if __name__ == "__main__":
    sys.exit(main())
