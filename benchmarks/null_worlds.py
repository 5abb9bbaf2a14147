"""Count how often the product recommends speculation in simulated worlds in which it gains nothing.

Every world has a target, a draft, prompts, and a noisy machine that grows slower in the second half of the
measurement. How the sides take turns and what the verdict is are the product's own. No model is run. The last line of
standard output is one JSON object with ``--json``; the table goes to standard error. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from harness.certified_worlds import (
    POWER_DRAFT,
    POWER_GAIN,
    Order,
    World,
    best_of_sixty,
    certify,
    draft_populations,
    gains_five_percent,
    loses,
    never_hits,
    spread,
    with_gain,
)
from harness.machine import versions
from harness.population import Prompts
from harness.shares import share_with_limits
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tuner.decide import DEFAULT_MARGIN, Decision, decide
from tuner.intervals import Interval, prompts_needed

Drafts = Sequence[tuple[int, Prompts]]

MakeWorld = Callable[[np.random.Generator, Drafts], World]

NULL_FAMILIES: Mapping[str, MakeWorld] = {
    "never_hits": never_hits,
    "loses_0_to_5_percent": loses,
    "best_of_sixty": best_of_sixty,
}

SIZES = (10, 16, 24, 60, 240)
"""Prompts to certify with, a fifth of the worlds each: the shipped workloads' quick and full samples, and more."""

ORDERS = (Order.BLOCKS, Order.PASSES)
"""Half of the worlds each: machines that hold both engines, and those that hold one."""

WORLDS, QUICK_WORLDS, QUICK_POWER_WORLDS = 1000, 100, 30

WANTED_POWER, PLANNED_POWER = 0.8, 0.85
"""What must be reached, and what the number of prompts is planned for: its formula knows neither the machine's drift
nor the skew of answers, which took 1-3 points of 80 % away."""

ONE_SIDED_99 = 0.98
"""As the confidence of a two-sided interval."""

FEW_PROMPTS = 16
"""What the shipped workloads certify with, for the power that they have."""

TABLE_WIDTH = 140


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One world with what was said of it.

    Attributes:
        candidate_first: The verdict when the candidate ran before the baseline; None where that was not tried.
    """

    world: World
    prompts: int
    order: Order
    decision: Decision
    candidate_first: Decision | None = None


def judge(world: World, generator: np.random.Generator, prompts: int, order: Order) -> Decision:
    """The product's verdict after certification on so many prompts."""
    certified = certify(world, generator, prompts=prompts, order=order)
    return decide(certified, seed=int(generator.integers(2**31)))


def run_null(make: MakeWorld, drafts: Drafts, generators: Iterable[np.random.Generator]) -> list[Judged]:
    """One world for each generator; numbers of prompts and orders in turn."""
    found = []
    for number, generator in enumerate(generators):
        world = make(generator, drafts)
        prompts, order = SIZES[number % len(SIZES)], ORDERS[number // len(SIZES) % len(ORDERS)]
        decision = judge(world, generator, prompts, order)
        wrong_way = judge(world, generator, prompts, Order.CANDIDATE_FIRST)
        found.append(Judged(world=world, prompts=prompts, order=order, decision=decision, candidate_first=wrong_way))
    return found


def run_power(prompts: int, order: Order, drafts: Drafts, generators: Iterable[np.random.Generator]) -> list[Judged]:
    """Worlds in which speculation gains 5 %."""
    found = []
    for generator in generators:
        world = gains_five_percent(generator, drafts)
        decision = judge(world, generator, prompts, order)
        found.append(Judged(world=world, prompts=prompts, order=order, decision=decision))
    return found


def describe(judged: Sequence[Judged]) -> dict[str, Any]:
    """What one family came to."""
    recommended = sum(one.decision.recommends for one in judged)
    gains = [one.world.candidate.true_gain for one in judged]
    shares = share_with_limits(recommended, len(judged))
    return {
        "worlds": len(judged),
        "recommended": recommended,
        "share": shares["share"],
        "share_limits_95": [shares["low"], shares["high"]],
        "verdicts": dict(Counter(one.decision.verdict.value for one in judged)),
        "true_gain": {"lowest": round(min(gains), 4), "highest": round(max(gains), 4)},
    }


def describe_null(judged: Sequence[Judged]) -> dict[str, Any]:
    """The same with its parts, and with what less careful rules would have recommended."""
    return describe(judged) | {
        "by_prompts": {str(size): _counts([one for one in judged if one.prompts == size]) for size in SIZES},
        "by_order": {order.value: _counts([one for one in judged if one.order is order]) for order in ORDERS},
        "careless_rules": careless_rules(judged),
    }


def _counts(judged: Sequence[Judged]) -> dict[str, int]:
    return {"worlds": len(judged), "recommended": sum(one.decision.recommends for one in judged)}


def careless_rules(judged: Sequence[Judged]) -> dict[str, float]:
    """Shares of worlds in which a simpler rule would have recommended the candidate.

    ``estimate_alone``: the certified gain exceeds the margin. ``candidate_first``: the product's verdict, had the
    candidate run before the baseline. Where a search chose the candidate, ``search_estimate`` and ``search_limit``:
    its gain on the prompts that chose it, and the product's one-sided limit of that.
    """
    searched = [one.world.searched for one in judged if one.world.searched is not None]
    first = [one.candidate_first for one in judged if one.candidate_first is not None]
    hits = {
        "estimate_alone": [_pays(one.decision.speedup, "estimate") for one in judged],
        "candidate_first": [decision.recommends for decision in first],
        "search_estimate": [_pays(interval, "estimate") for interval in searched],
        "search_limit": [_pays(interval, "one_sided_99_low") for interval in searched],
    }
    return {name: sum(found) / len(found) for name, found in hits.items() if found}


def _pays(interval: Interval | None, limit: Literal["estimate", "one_sided_99_low"]) -> bool:
    return interval is not None and getattr(interval, limit) > 1 + DEFAULT_MARGIN


def describe_power(arguments: argparse.Namespace, drafts: Drafts, console: Console) -> dict[str, Any]:
    """How often a gain of 5 % is recommended: at the number of prompts that should do, and at the workloads' own.

    In whole passes a machine that slows gradually cannot be told from a draft that pays, so those are shown apart.
    """
    generator = np.random.default_rng([arguments.seed, len(NULL_FAMILIES)])
    variation = spread(with_gain(POWER_GAIN, *drafts[POWER_DRAFT]), generator)
    distance = math.log(POWER_GAIN / (1 + DEFAULT_MARGIN))
    needed = prompts_needed(variation, distance, ONE_SIDED_99, power=PLANNED_POWER)

    def share(prompts: int, order: Order, worlds: int) -> dict[str, Any]:
        generators = _generators(arguments, (len(NULL_FAMILIES), prompts), worlds)
        shown = track(generators, f"a gain of 5 %, {prompts} prompts", console=console, transient=True)
        return {"prompts": prompts, **describe(run_power(prompts, order, drafts, shown))}

    return {
        "gain": POWER_GAIN,
        "wanted": WANTED_POWER,
        "planned": PLANNED_POWER,
        "coefficient_of_variation": round(variation, 4),
        **share(needed, Order.BLOCKS, arguments.power_worlds),
        f"at_{FEW_PROMPTS}_prompts": share(FEW_PROMPTS, Order.BLOCKS, arguments.power_worlds),
        "in_passes": share(needed, Order.PASSES, max(10, arguments.power_worlds // 5)),
    }


def _generators(arguments: argparse.Namespace, family: tuple[int, ...], worlds: int) -> list[np.random.Generator]:
    return [np.random.default_rng([arguments.seed, *family, number]) for number in range(worlds)]


def measure(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Run everything, show the table, and return the JSON document."""
    console.print("drafting for every prompt there is …")
    drafts = draft_populations(arguments.seed)
    families = {}
    for index, (name, make) in enumerate(NULL_FAMILIES.items()):
        generators = _generators(arguments, (index,), arguments.worlds)
        shown = track(generators, name, console=console, transient=True)
        families[name] = describe_null(run_null(make, drafts, shown))
    power = describe_power(arguments, drafts, console)
    console.print(table(families, power))
    shares = {name: family["share"] for name, family in families.items()}
    return {
        "worlds": arguments.worlds * len(families),
        "wrong_recommendations": max(shares.values()),
        "wrong_recommendations_by_family": shares,
        "families": families,
        "power": power,
        "margin": DEFAULT_MARGIN,
        "versions": versions(),
    }


def table(families: Mapping[str, Mapping[str, Any]], power: Mapping[str, Any]) -> Table:
    """One line for each family."""
    shown = Table(title="worlds in which the product recommends speculation")
    shown.add_column("family")
    headings = ("true gain", "prompts", "worlds", "recommended", "95 % limits", "verdicts", "careless rules")
    for heading in headings:
        shown.add_column(heading, justify="right")
    sizes = f"{min(SIZES)} to {max(SIZES)}"
    for name, family in families.items():
        rules = "\n".join(f"{rule} {share:.1%}" for rule, share in family["careless_rules"].items())
        shown.add_row(name, *_cells(family, sizes), rules)
    rows = {"power": power, "power, few prompts": power[f"at_{FEW_PROMPTS}_prompts"]}
    for name, part in {**rows, "power, in passes": power["in_passes"]}.items():
        shown.add_row(name, *_cells(part, str(part["prompts"])), "")
    return shown


def _cells(family: Mapping[str, Any], prompts: str) -> tuple[str, ...]:
    gain, limits = family["true_gain"], family["share_limits_95"]
    verdicts = "\n".join(f"{verdict} {count}" for verdict, count in family["verdicts"].items())
    return (
        f"{gain['lowest'] - 1:+.0%} to {gain['highest'] - 1:+.0%}",
        prompts,
        str(family["worlds"]),
        f"{family['share']:.1%}",
        f"{limits[0]:.1%} to {limits[1]:.1%}",
        verdicts,
    )


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
    parser.add_argument("--quick", action="store_true", help="fewer worlds")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line of stdout")
    parser.add_argument("--worlds", type=int, help=f"of each null family ({WORLDS}; quick {QUICK_WORLDS})")
    parser.add_argument("--power-worlds", type=int, help=f"in which it gains ({WORLDS}; quick {QUICK_POWER_WORLDS})")
    parser.add_argument("--seed", type=int, default=0, help="of everything drawn (%(default)s)")
    arguments = parser.parse_args(argv)
    arguments.worlds = arguments.worlds or (QUICK_WORLDS if arguments.quick else WORLDS)
    arguments.power_worlds = arguments.power_worlds or (QUICK_POWER_WORLDS if arguments.quick else WORLDS)
    return arguments


if __name__ == "__main__":
    sys.exit(main())
