"""How many compiles a search needs, and what its choice loses, in simulated worlds whose truth is known.

The replay sampler with its own stop rule against Optuna's samplers, uninformed and given the predicted best as their
first trial, against measuring everything, and against taking the predicted best. The last line of standard output is
one JSON object with ``--json``; the table goes to standard error. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import optuna
from harness.rivals import (
    RIVALS,
    Outcome,
    evaluations_for,
    exhaustive,
    outcome,
    predicted_best,
    regret_curve,
    search_with_replay,
)
from harness.search_worlds import FAMILIES, LARGE, WELL_SPECIFIED, Family, World, worlds
from rich.console import Console
from rich.table import Table

TABLE_WIDTH = 160

FEWEST_WORLDS = 20
"""Whose mean regret means something: most of it comes from a few worlds in a hundred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is simulated: worlds, those that rivals search, and how far; GP takes long.

    Of families other than the well-specified one, rivals search a quarter of the worlds. Few worlds
    say little of a mean regret, which a handful of them decides: with 100 the evaluations that a rival needs came out
    up to two lower or higher than with 400.
    """

    worlds: int
    large_worlds: int
    rival_worlds: int
    gp_worlds: int
    rival_evaluations: int


FULL = Size(worlds=1000, large_worlds=100, rival_worlds=400, gp_worlds=40, rival_evaluations=40)
QUICK = Size(worlds=80, large_worlds=4, rival_worlds=40, gp_worlds=2, rival_evaluations=24)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry point; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer worlds and shorter rivals")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line of stdout")
    parser.add_argument("--seed", type=int, default=0, help="of the worlds (%(default)s)")
    arguments = parser.parse_args(argv)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    began_s = time.monotonic()
    size = QUICK if arguments.quick else FULL
    families = {family.name: run_family(family, size, arguments.seed) for family in FAMILIES}
    first = families[WELL_SPECIFIED.name]
    document = {
        "replay": first["replay"],
        "best_optuna": first["best_optuna"],
        "goals": goals(families),
        "families": families,
        "quick": arguments.quick,
        "seed": arguments.seed,
        "seconds": round(time.monotonic() - began_s, 1),
    }
    console = Console(stderr=True, width=None if sys.stderr.isatty() else TABLE_WIDTH)
    for family in FAMILIES:
        console.print(table(family, families[family.name]))
    if arguments.json:
        print(json.dumps(document, allow_nan=False))
    return 0


def run_family(family: Family, size: Size, seed: int) -> dict[str, object]:
    """Everything about the worlds of one family."""
    is_first = family is WELL_SPECIFIED
    count = size.large_worlds if family is LARGE else size.worlds
    drawn = list(worlds(family, count, seed))
    replay = search_all(drawn, search_with_replay)
    rivals = drawn[: size.rival_worlds if is_first else size.rival_worlds // 4]
    gp_worlds = size.gp_worlds if is_first else -(-size.gp_worlds // 3)
    samplers = {
        name: rival(rivals[:gp_worlds] if name == "gp" else rivals, name, size.rival_evaluations, replay)
        for name in RIVALS
    }
    return {
        "worlds": len(drawn),
        "configurations": len(drawn[0].speedups),
        "replay": summary(replay),
        "replay_at_most_3_compiles": summary(search_all(drawn, _at_most_3)),
        "replay_4_in_flight": summary(search_all(drawn, _4_in_flight)),
        "predicted_best": summary(search_all(drawn, take_predicted_best)),
        "exhaustive": summary([exhaustive(world, index) for index, world in enumerate(drawn)]),
        "samplers": {name: describe(one) for name, one in samplers.items()},
        "best_optuna": best_sampler(samplers),
    }


def search_all(drawn: Sequence[World], search: Callable[[World, np.random.Generator], Outcome]) -> list[Outcome]:
    """One search of each world, each with random numbers of its own."""
    return [search(world, np.random.default_rng(index)) for index, world in enumerate(drawn)]


def _at_most_3(world: World, rng: np.random.Generator) -> Outcome:
    return search_with_replay(world, rng, max_compiles=3)


def _4_in_flight(world: World, rng: np.random.Generator) -> Outcome:
    return search_with_replay(world, rng, in_flight=4)


def take_predicted_best(world: World, rng: np.random.Generator) -> Outcome:
    """Compile the predicted best, certify it, stop: two compiles."""
    key = predicted_best(world)
    choice = key if world.measured(key, 1, rng) < 1 else None
    return outcome(world, 2, choice, rng)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """Regret curves of one sampler, one for each world, and how many compiles replay needed in each.

    Attributes:
        informed: The same sampler with the predicted best as its first trial.
    """

    uninformed: Sequence[Sequence[float]]
    informed: Sequence[Sequence[float]]
    replay: Sequence[Outcome]

    @property
    def replay_regret(self) -> float:
        """Mean of replay over the same worlds."""
        return float(np.mean([one.regret for one in self.replay]))

    @property
    def needed(self) -> int | None:
        """Evaluations for the mean regret that replay has on the same worlds; None where they do not suffice."""
        return evaluations_for(self.uninformed, self.replay_regret)


def rival(drawn: Sequence[World], name: str, evaluations: int, replay: Sequence[Outcome]) -> Rival:
    """Let a sampler of Optuna's search the worlds."""
    make = RIVALS[name]
    plain = [regret_curve(world, make, evaluations, index) for index, world in enumerate(drawn)]
    told = [regret_curve(world, make, _SHORT, index, first=predicted_best(world)) for index, world in enumerate(drawn)]
    return Rival(uninformed=plain, informed=told, replay=replay[: len(drawn)])


_SHORT = 12
"""Evaluations of informed rivals: they are compared at the number of compiles that replay takes."""


def describe(one: Rival) -> dict[str, object]:
    """A rival's figures; regrets of the informed at replay's own number of compiles in each world, and at one less."""
    same = [curve[min(run.evaluations, _SHORT) - 1] for curve, run in zip(one.informed, one.replay, strict=True)]
    less = [curve[min(run.evaluations, _SHORT) - 2] for curve, run in zip(one.informed, one.replay, strict=True)]
    return {
        "worlds": len(one.replay),
        "evaluations_for_same_regret": one.needed,
        "evaluations_at_most": len(one.uninformed[0]),
        "regret_after_16_mean": _share(float(np.mean([curve[15] for curve in one.uninformed]))),
        "informed_regret_at_same_compiles_mean": _share(float(np.mean(same))),
        "informed_regret_at_one_compile_less_mean": _share(float(np.mean(less))),
        "informed_evaluations_for_same_regret": evaluations_for(one.informed, one.replay_regret),
        "replay_regret_mean": _share(one.replay_regret),
    }


def best_sampler(samplers: Mapping[str, Rival]) -> dict[str, object]:
    """The uninformed sampler that comes to replay's regret first; where none does, the one that comes nearest.

    Samplers that searched too few worlds for a mean regret, as GP does in the quick run, are passed over.
    """
    samplers = {name: one for name, one in samplers.items() if len(one.replay) >= FEWEST_WORLDS} or samplers
    needed = {name: one.needed for name, one in samplers.items()}
    last = {name: float(np.asarray(one.uninformed).mean(axis=0)[-1]) for name, one in samplers.items()}
    reached = [name for name, count in needed.items() if count is not None]
    best = min(reached, key=lambda name: needed[name] or 0) if reached else min(last, key=last.__getitem__)
    return {
        "sampler": best,
        "evaluations_for_same_regret": needed[best],
        "evaluations_at_most": len(samplers[best].uninformed[0]),
        "regret_at_most_evaluations": _share(last[best]),
    }


def summary(outcomes: Sequence[Outcome]) -> dict[str, object]:
    """Means and 90 % quantiles over worlds."""
    counts, regrets = [one.evaluations for one in outcomes], [one.regret for one in outcomes]
    return {
        "compiles_mean": round(float(np.mean(counts)), 2),
        "compiles_p90": float(np.quantile(counts, 0.9)),
        "regret_mean": _share(float(np.mean(regrets))),
        "regret_p90": _share(float(np.quantile(regrets, 0.9))),
        "recommended_losers": sum(one.is_loser for one in outcomes),
    }


def goals(families: Mapping[str, Mapping[str, object]]) -> dict[str, bool]:
    """Which of the project's goals this run meets."""
    well: dict[str, dict[str, float]] = families["well_specified"]  # type: ignore[assignment]
    wrong: dict[str, dict[str, float]] = families["misspecified"]  # type: ignore[assignment]
    best = well["best_optuna"]
    needed = best["evaluations_for_same_regret"] or best["evaluations_at_most"]
    return {
        "compiles_at_most_4": well["replay"]["compiles_mean"] <= 4,
        "regret_at_most_1_percent": well["replay"]["regret_mean"] <= 0.01,
        "evaluations_5_times_fewer": needed >= 5 * well["replay"]["compiles_mean"],
        "misspecified_regret_at_most_2_percent": wrong["replay"]["regret_mean"] <= 0.02,
        "no_recommended_loser": not any(
            family["replay"]["recommended_losers"]  # type: ignore[index]
            for family in families.values()
        ),
        "better_than_predicted_best_with_one_compile_more": all(
            family["replay_at_most_3_compiles"]["regret_mean"]  # type: ignore[index]
            < family["predicted_best"]["regret_mean"]  # type: ignore[index]
            for family in families.values()
        ),
        "better_than_informed_samplers": all(
            one["replay_regret_mean"] < one["informed_regret_at_one_compile_less_mean"]
            for family in families.values()
            for one in family["samplers"].values()  # type: ignore[attr-defined]
        ),
    }


def _share(value: float) -> float:
    return round(value, 5)


def table(family: Family, figures: Mapping[str, object]) -> Table:
    """Compiles and regret of everyone in one family."""
    shown = Table(title=f"{family.name}: {figures['worlds']} worlds of {figures['configurations']} configurations")
    for heading in ("search", "compiles", "p90", "mean regret", "p90 regret", "recommended losers"):
        shown.add_column(heading, justify="left" if heading == "search" else "right")
    for name in ("replay", "replay_at_most_3_compiles", "replay_4_in_flight", "predicted_best", "exhaustive"):
        one: Mapping[str, float] = figures[name]  # type: ignore[assignment]
        regrets = (f"{one['regret_mean']:.2%}", f"{one['regret_p90']:.2%}")
        shown.add_row(
            name.replace("_", " "),
            f"{one['compiles_mean']:.2f}",
            f"{one['compiles_p90']:.0f}",
            *regrets,
            f"{one['recommended_losers']}",
        )
    for name, rival_figures in figures["samplers"].items():  # type: ignore[attr-defined]
        needed = rival_figures["evaluations_for_same_regret"]
        count = f"more than {rival_figures['evaluations_at_most']}" if needed is None else str(needed)
        shown.add_row(
            f"{name}, to replay's regret", count, "", f"16: {rival_figures['regret_after_16_mean']:.2%}", "", ""
        )
        shown.add_row(
            f"{name}, told the predicted best",
            "as replay",
            "",
            f"{rival_figures['informed_regret_at_same_compiles_mean']:.2%}",
            "",
            "",
        )
    return shown


if __name__ == "__main__":
    sys.exit(main())
