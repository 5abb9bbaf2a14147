"""Which configuration is asked for next, once the predicted best have been enqueued."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, GPSampler, GridSampler, NSGAIISampler, RandomSampler, TPESampler

from tuner.errors import EngineNotInstalledError

SamplerName = Literal["tpe", "gp", "nsga2", "random", "grid"]
SAMPLER_NAMES: tuple[SamplerName, ...] = get_args(SamplerName)

Space = Mapping[str, BaseDistribution]

TPE_STARTUP_TRIALS = 3
"""Below it TPE asks at random. The enqueued predictions already spread over the space, so it may start early."""


def make_sampler(name: SamplerName, space: Space, seed: int) -> BaseSampler:
    """An Optuna sampler, set up for a small flat space with several objectives.

    TPE is multivariate with groups: Optuna's own multi-objective default samples each parameter alone and takes
    twice as many trials on such spaces.

    Raises:
        EngineNotInstalledError: ``gp`` without torch.
    """
    return _MAKERS[name](space, seed)


def _make_tpe(_space: Space, seed: int) -> BaseSampler:
    with warnings.catch_warnings():  # `group` has been experimental since Optuna 2.8
        warnings.simplefilter("ignore", ExperimentalWarning)
        return TPESampler(multivariate=True, group=True, n_startup_trials=TPE_STARTUP_TRIALS, seed=seed)


def _make_gp(_space: Space, seed: int) -> BaseSampler:
    if importlib.util.find_spec("torch") is None:
        raise EngineNotInstalledError(
            "sampler 'gp' needs torch, which is not installed",
            "pip install 'specdec-tuner[cpu]', or choose --sampler tpe",
        )
    return GPSampler(seed=seed, n_startup_trials=TPE_STARTUP_TRIALS)


def _make_nsga2(_space: Space, seed: int) -> BaseSampler:
    return NSGAIISampler(population_size=8, seed=seed)


def _make_random(_space: Space, seed: int) -> BaseSampler:
    return RandomSampler(seed=seed)


def _make_grid(space: Space, seed: int) -> BaseSampler:
    return GridSampler({name: _values(distribution) for name, distribution in space.items()}, seed=seed)


def _values(distribution: BaseDistribution) -> list[Any]:
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    if isinstance(distribution, IntDistribution):
        return list(range(distribution.low, distribution.high + 1, distribution.step))
    raise TypeError(f"no grid over {distribution}")


_MAKERS: dict[SamplerName, Callable[[Space, int], BaseSampler]] = {
    "tpe": _make_tpe,
    "gp": _make_gp,
    "nsga2": _make_nsga2,
    "random": _make_random,
    "grid": _make_grid,
}
