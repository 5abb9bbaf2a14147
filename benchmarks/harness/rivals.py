"""Searches of a simulated world: the replay sampler to its own end, and every rival one evaluation after another."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler

from tuner.forecast import Key
from tuner.samplers import DRAFT, TOKENS, ReplaySampler, finished
from tuner.search_space import NO_DRAFT
from tuner.stopping import Budget, Spent

from .search_worlds import DRAFTED_TOKENS, World

MOST_EVALUATIONS = 40
"""Of one replay search; none was seen to come near it."""

MARGIN, CERTIFY_ERROR, Z_99 = 0.02, 0.007, 2.326
"""Recommended is what is faster by 2 % with 99 % confidence; paired blocks over held-out prompts leave 0.7 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one search of one world came to.

    Attributes:
        evaluations: Configurations compiled and measured, the baseline among them.
        regret: Share of the best speed that its choice gives away.
        is_loser: It recommends, after the final comparison, what is truly slower than no speculation.
    """

    evaluations: int
    regret: float
    is_loser: bool


def space_of(world: World) -> dict[str, BaseDistribution]:
    """The world's configurations as Optuna knows them."""
    drafts = sorted({draft for draft, _ in world.speedups})
    return {
        DRAFT: CategoricalDistribution((NO_DRAFT, *drafts)),
        TOKENS: IntDistribution(min(DRAFTED_TOKENS), max(DRAFTED_TOKENS)),
    }


def search_with_replay(
    world: World, rng: np.random.Generator, *, max_compiles: int | None = None, in_flight: int = 1
) -> Outcome:
    """Run the product's sampler until its own rule stops it, or its budget."""
    space = space_of(world)
    sampler = ReplaySampler({0: world.forecast}, space)
    study = optuna.create_study(sampler=sampler)
    _tell_baseline(study, space)
    budget = Budget(max_compiles=max_compiles or MOST_EVALUATIONS)
    done, running = 1, []
    while not (finished(study) or (budget.exhausted_by(_spent(done + len(running))) and not running)):
        while _may_start(study, sampler, budget, done + len(running), len(running) < in_flight):
            running.append(study.ask(space))
        trial = running.pop(0)
        study.tell(trial, world.measured((trial.params[DRAFT], trial.params[TOKENS]), done, rng))
        done += 1
    return outcome(world, done, sampler.outlooks(study)[0].incumbent_key, rng)


def _may_start(study: optuna.Study, sampler: ReplaySampler, budget: Budget, begun: int, has_slot: bool) -> bool:
    return has_slot and not budget.exhausted_by(_spent(begun)) and bool(sampler.worth_measuring(study))


def _spent(evaluations: int) -> Spent:
    return Spent(trials=evaluations, compiles=evaluations, seconds=0.0)


def _tell_baseline(study: optuna.Study, space: dict[str, BaseDistribution]) -> None:
    study.enqueue_trial({DRAFT: NO_DRAFT, TOKENS: min(DRAFTED_TOKENS)})
    study.tell(study.ask(space), 1.0)


def outcome(world: World, evaluations: int, choice: Key | None, rng: np.random.Generator) -> Outcome:
    """The regret of a choice, and whether the final comparison would let a loser through."""
    truth = world.true_speedup(choice)
    lower = math.log(truth) + rng.normal(0, CERTIFY_ERROR) - Z_99 * CERTIFY_ERROR
    recommends = choice is not None and lower > math.log(1 + MARGIN)
    return Outcome(evaluations=evaluations, regret=world.regret(choice), is_loser=recommends and truth < 1)


MakeSampler = Callable[[int, int], BaseSampler]
"""From a seed, and how many trials the sampler draws at random before it learns."""

STARTUP_TRIALS = 10
"""Optuna's own default."""

INFORMED_STARTUP_TRIALS = 2
"""Of samplers that are told the predicted best: the baseline and that one."""


def _tpe(seed: int, startup: int) -> BaseSampler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return TPESampler(multivariate=True, group=True, n_startup_trials=startup, seed=seed)


RIVALS: Mapping[str, MakeSampler] = {
    "gp": lambda seed, startup: GPSampler(seed=seed, n_startup_trials=startup),
    "tpe_multivariate_group": _tpe,
    "tpe_independent": lambda seed, startup: TPESampler(multivariate=False, n_startup_trials=startup, seed=seed),
    "nsga2": lambda seed, _startup: NSGAIISampler(population_size=16, seed=seed),
    "random": lambda seed, _startup: RandomSampler(seed=seed),
}
"""Optuna's samplers with one objective, which is their best case.

TPE is multivariate by default with one objective and takes each parameter alone with several: both are here.
"""


MOST_REPEATS = 3
"""Suggestions of what is known already, in a row, before a configuration is drawn at random instead."""


def regret_curve(world: World, make: MakeSampler, evaluations: int, seed: int, first: Key | None = None) -> list[float]:
    """Regret of a rival's best measured configuration after 1, 2, … evaluations, the baseline the first.

    A configuration that is suggested again is answered from memory and is no evaluation.

    Args:
        world: To be searched.
        make: Makes the sampler from a seed.
        evaluations: How far.
        seed: Of the sampler and of the noise.
        first: Tried right after the baseline: the predicted best, for informed rivals.
    """
    space, rng = space_of(world), np.random.default_rng(seed)
    study = optuna.create_study(sampler=make(seed, STARTUP_TRIALS if first is None else INFORMED_STARTUP_TRIALS))
    _tell_baseline(study, space)
    if first is not None:
        study.enqueue_trial({DRAFT: first[0], TOKENS: first[1]})
    known: dict[Key, float] = {}
    regrets, repeats = [world.regret(None)], 0
    while len(regrets) < min(evaluations, len(world.speedups) + 1):
        if repeats == MOST_REPEATS:
            _enqueue_random(study, [key for key in world.speedups if key not in known], rng)
        trial = study.ask(space)
        key = (trial.params[DRAFT], trial.params[TOKENS])
        is_new = key[0] != NO_DRAFT and key not in known
        repeats = 0 if is_new else repeats + 1
        if is_new:
            known[key] = world.measured(key, len(known) + 1, rng)
            regrets.append(world.regret(_best(known)))
        study.tell(trial, known.get(key, 1.0))
    return regrets


def _enqueue_random(study: optuna.Study, untried: Sequence[Key], rng: np.random.Generator) -> None:
    draft, tokens = untried[int(rng.integers(len(untried)))]
    study.enqueue_trial({DRAFT: draft, TOKENS: tokens})


def _best(known: Mapping[Key, float]) -> Key | None:
    """The fastest measured configuration; None where none is faster than no speculation."""
    best = min(known, key=known.__getitem__)
    return best if known[best] < 1 else None


def predicted_best(world: World) -> Key:
    """What replay and the guessed costs alone would choose."""
    outlook = world.forecast.outlook({})
    return outlook.keys[int(outlook.gains.mean(axis=0).argmax())]


def exhaustive(world: World, seed: int) -> Outcome:
    """Measure everything once and take the fastest."""
    rng = np.random.default_rng(seed)
    known = {key: world.measured(key, index + 1, rng) for index, key in enumerate(world.speedups)}
    return outcome(world, 1 + len(known), _best(known), rng)


def evaluations_for(curves: Sequence[Sequence[float]], regret: float) -> int | None:
    """Evaluations after which the mean regret over worlds is no larger; None where it never is."""
    means = np.asarray(curves).mean(axis=0)
    reached = np.flatnonzero(means <= regret)
    return int(reached[0]) + 1 if len(reached) else None
