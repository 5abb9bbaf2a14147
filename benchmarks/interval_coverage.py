"""Count how often the product's intervals hold the true value, over simulated data sets whose truth is known.

Each data set is what one measurement would see: some prompts, their answers, rounds and times. No model is run. The
last line of standard output is one JSON object with ``--json``; the table goes to standard error. See README.md beside
this file.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from harness.machine import versions
from harness.population import Floats, PromptLaw, Prompts, Timing, half_width_over_rounds
from harness.shares import share_with_limits
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tuner.intervals import Interval, ratio_interval

SIZES = (60, 15, 30, 150)
"""Prompts of a data set; the first is the one that the headline figures are of."""

DATA_SETS, QUICK_DATA_SETS = 2000, 1000
POPULATION, QUICK_POPULATION = 2_000_000, 500_000
"""The truth is the ratio over so many prompts: its own error is a hundredth of the narrowest interval's width."""

LAWS: Mapping[str, PromptLaw] = {
    "typical": PromptLaw(acceptance=0.65, concentration=12, drafted_tokens=5),
    "accepted": PromptLaw(acceptance=0.85, concentration=12, drafted_tokens=7),
    "uneven": PromptLaw(acceptance=0.5, concentration=3, drafted_tokens=5),
}
"""Headline figures are of the first; ``--quick`` runs it alone."""

TIMING = Timing(round_cost=1.35)
TABLE_WIDTH = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A ratio of sums that the product gives an interval for.

    Attributes:
        sides: Numerators and denominators of each prompt; noise comes from the generator.
    """

    name: str
    sides: Callable[[np.random.Generator, Prompts], tuple[Floats, Floats]]


def acceptance_sides(_: np.random.Generator, prompts: Prompts) -> tuple[Floats, Floats]:
    """τ = Σ(N − 1) / Σ rounds."""
    return prompts.decoded, prompts.rounds


def latency_sides(generator: np.random.Generator, prompts: Prompts) -> tuple[Floats, Floats]:
    """Gain of speculation: latency without over with it, paired by prompt, each with its own noise."""
    noises = [TIMING.noises(generator, len(prompts)) for _ in range(2)]
    return TIMING.plain(prompts) * noises[0], TIMING.speculated(prompts) * noises[1]


QUANTITIES = (
    Quantity(name="mean_acceptance_length", sides=acceptance_sides),
    Quantity(name="latency_ratio", sides=latency_sides),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What one interval was worth.

    Attributes:
        interval: None where the product says that the prompts are too few.
        naive_covers: Whether the interval over rounds holds the truth.
    """

    interval: Interval | None
    truth: float
    naive_covers: bool


def score(drawn: Prompts, quantity: Quantity, generator: np.random.Generator, truth: float) -> Score:
    """One data set, judged."""
    numerators, denominators = quantity.sides(generator, drawn)
    estimate = numerators.sum() / denominators.sum()
    return Score(
        interval=ratio_interval(numerators, denominators, int(generator.integers(2**31))),
        truth=truth,
        naive_covers=abs(math.log(estimate / truth)) <= half_width_over_rounds(drawn),
    )


def summarize(scores: Sequence[Score]) -> dict[str, Any]:
    """Shares over the data sets of one cell."""
    given = [(one.interval, one.truth) for one in scores if one.interval is not None]
    covered = sum(interval.low <= truth <= interval.high for interval, truth in given)
    below = sum(interval.one_sided_99_low <= truth for interval, truth in given)
    widths = [math.log(interval.high / interval.low) / 2 for interval, _ in given]
    return {
        "coverage": share_with_limits(covered, len(given)),
        "naive_coverage": share_with_limits(sum(one.naive_covers for one in scores), len(scores)),
        "one_sided_99_coverage": share_with_limits(below, len(given)),
        "truth_below": sum(truth < interval.low for interval, truth in given),
        "truth_above": sum(truth > interval.high for interval, truth in given),
        "too_few_prompts": len(scores) - len(given),
        "median_half_width": round(float(np.median(widths)), 4),
        "methods": dict(Counter(interval.method for interval, _ in given)),
    }


def measure(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Run everything, show the table, and return the JSON document."""
    names = list(LAWS)[:1] if arguments.quick else list(LAWS)
    laws = []
    for number, name in enumerate(names):
        console.print(f"the truth of {name!r} prompts …", highlight=False)
        laws.append(describe_law(arguments, console, name, number))
    console.print(table(laws))
    cells = [cell for law in laws for cell in law["cells"]]
    headline = {cell["quantity"]: cell for cell in cells[: len(QUANTITIES)]}
    tau, latency = headline["mean_acceptance_length"], headline["latency_ratio"]
    return {
        "coverage": tau["coverage"]["share"],
        "naive_coverage": tau["naive_coverage"]["share"],
        "latency_ratio_coverage": latency["coverage"]["share"],
        "latency_ratio_naive_coverage": latency["naive_coverage"]["share"],
        "lowest_coverage": min(cell["coverage"]["share"] for cell in cells),
        "highest_coverage": max(cell["coverage"]["share"] for cell in cells),
        "lowest_one_sided_99_coverage": min(cell["one_sided_99_coverage"]["share"] for cell in cells),
        "data_sets": arguments.data_sets,
        "prompts": SIZES[0],
        "laws": laws,
        "versions": versions(),
    }


def describe_law(arguments: argparse.Namespace, console: Console, name: str, number: int) -> dict[str, Any]:
    """The truth of one distribution of prompts, and every cell scored against it."""
    law, generator = LAWS[name], np.random.default_rng([arguments.seed, number])
    population = law.draw(generator, QUICK_POPULATION if arguments.quick else POPULATION)
    truths = {quantity: _ratio(quantity.sides(generator, population)) for quantity in QUANTITIES}
    cells = []
    for size in SIZES:
        drawn = law.draw(generator, size * arguments.data_sets)
        data_sets = [drawn[start : start + size] for start in range(0, len(drawn), size)]
        for quantity, truth in truths.items():
            shown = track(data_sets, f"{name}, {size} prompts", console=console, transient=True)
            scores = [score(data_set, quantity, generator, truth) for data_set in shown]
            cells.append({"prompts": size, "quantity": quantity.name, "truth": truth} | summarize(scores))
    return {"name": name, "law": asdict(law), "timing": asdict(TIMING), "cells": cells}


def _ratio(sides: tuple[Floats, Floats]) -> float:
    numerators, denominators = sides
    return float(numerators.sum() / denominators.sum())


def table(laws: Sequence[Mapping[str, Any]]) -> Table:
    """One line for each distribution, number of prompts and quantity."""
    shown = Table(title="coverage of 95 % intervals; of the one-sided 99 % limit; of intervals over rounds")
    for heading in ("prompts like", "quantity"):
        shown.add_column(heading)
    for heading in ("prompts", "95 %", "99 %", "naive 95 %", "half-width", "method"):
        shown.add_column(heading, justify="right")
    for law in laws:
        for cell in law["cells"]:
            shares = [f"{cell[key]['share']:.1%}" for key in ("coverage", "one_sided_99_coverage", "naive_coverage")]
            methods = cell["methods"]
            width = f"±{cell['median_half_width']:.1%}"
            row = (cell["quantity"], str(cell["prompts"]), *shares, width, max(methods, key=methods.get))
            shown.add_row(str(law["name"]), *row)
    return shown


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry point; the exit code."""
    arguments = _parse(argv)
    console = Console(stderr=True, width=None if sys.stderr.isatty() else TABLE_WIDTH)
    document = measure(arguments, console)
    if arguments.json:
        print(json.dumps(document, allow_nan=False))
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one distribution of prompts, fewer data sets")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line of stdout")
    parser.add_argument("--data-sets", type=int, help=f"of each cell ({DATA_SETS}; quick {QUICK_DATA_SETS})")
    parser.add_argument("--seed", type=int, default=0, help="of everything drawn (%(default)s)")
    arguments = parser.parse_args(argv)
    arguments.data_sets = arguments.data_sets or (QUICK_DATA_SETS if arguments.quick else DATA_SETS)
    return arguments


if __name__ == "__main__":
    sys.exit(main())
