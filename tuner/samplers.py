"""Which configuration is asked for next, and whether any is worth asking for."""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from typing import Any, Literal, get_args

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, GPSampler, GridSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from tuner.errors import EngineNotInstalledError
from tuner.forecast import Forecast, Key, Outlook
from tuner.search_space import NO_DRAFT
from tuner.stopping import Reason, StopKind

DRAFT = "draft"
TOKENS = "num_speculative_tokens"
"""What the dashboard shows, so it has the name that people know; the product's own k."""

REPLAY = "replay"
MEASUREMENT_ERROR = "measurement_error"
"""User attribute of a trial: relative sd of its measurement, where it is known."""

SamplerName = Literal["replay", "tpe", "gp", "nsga2", "random", "grid"]
SAMPLER_NAMES: tuple[SamplerName, ...] = get_args(SamplerName)

Space = Mapping[str, BaseDistribution]

TPE_STARTUP_TRIALS = 3
"""Below it TPE asks at random. The enqueued predictions already spread over the space, so it may start early."""


EPSILON = 0.01
"""A configuration that cannot be faster by more than this is not worth a compile."""

FALLBACK_TRIES = 8
"""Suggestions of the fallback that are looked at for a draft without a trace, before one is drawn at random."""


def finished(study: optuna.Study) -> Reason | None:
    """Why no further trial of the study is worth it; None while one is, or where its sampler cannot tell."""
    sampler = study.sampler
    return sampler.finished(study) if isinstance(sampler, ReplaySampler) else None


class ReplaySampler(BaseSampler):
    """Asks for the configuration most worth its compile, and says when none is.

    Replay predicts every configuration of a traced draft; each result sharpens the predictions of all. Asked for is
    the configuration with the largest expected gain over the best measured one, for its cost. Drafts without a trace
    are explored by a sampler of Optuna's, in turn with the others.

    A trial counts as measured when it is complete with no violated constraint, and as impossible when one is violated;
    neither is asked for again, and what runs is not asked for twice. A user attribute ``measurement_error``, a relative
    sd, says how sure a trial's values are where they are less sure than usual. In ``study.optimize`` the study is
    stopped once nothing is worth it; an ask-and-tell loop asks ``finished``.

    Args:
        forecasts: Of the objectives that can be predicted only within limits, by their position. Objectives that
            replay knows exactly, as waste, need none: no compile would teach anything of them.
        space: The parameters ``draft`` and ``num_speculative_tokens``, as the objective suggests them.
        epsilon: Gain over the best measured configuration that is not worth a compile.
        cost: Of measuring a configuration, in any unit; None takes all alike.
        fallback: Explores drafts without a trace; None takes TPE.
        has_unpredicted: Some objective can only be measured, so that no bound ever ends the search.
        seed: Of the fallback and of random choices.
    """

    def __init__(
        self,
        forecasts: Mapping[int, Forecast],
        space: Space,
        *,
        epsilon: float = EPSILON,
        cost: Callable[[Key], float] | None = None,
        fallback: BaseSampler | None = None,
        has_unpredicted: bool = False,
        seed: int = 0,
    ) -> None:
        self._forecasts = dict(forecasts)
        self._space = dict(space)
        self._epsilon = epsilon
        self._cost = cost or _all_alike
        self._fallback = fallback or _make_tpe(space, seed)
        self._has_unpredicted = has_unpredicted
        self._seed = seed
        self._keys = _keys_of(self._space)

    # ── what is believed ──────────────────────────────────────────────────────────────────────────────────────────

    def outlooks(self, study: optuna.Study) -> dict[int, Outlook]:
        """What is believed now of every traced configuration, by the objective's position."""
        return self._outlooks(study.get_trials(deepcopy=False))

    def worth_measuring(self, study: optuna.Study) -> list[Key]:
        """Configurations that are worth a measurement now, the most worth first; those that run are not among them."""
        return self._worth_measuring(study.get_trials(deepcopy=False))

    def unpredicted(self, study: optuna.Study) -> list[Key]:
        """Configurations, not tried yet, of which only a measurement can tell: untraced, or for an objective's sake."""
        return self._unpredicted(self._open_keys(study.get_trials(deepcopy=False)))

    def finished(self, study: optuna.Study) -> Reason | None:
        """Why nothing more is worth measuring; None while something is, or while something runs."""
        return self._finished(study.get_trials(deepcopy=False))

    def _outlooks(self, trials: Sequence[FrozenTrial]) -> dict[int, Outlook]:
        running = [key for trial in trials if trial.state is TrialState.RUNNING and (key := _key(trial))]
        measured = {key: trial for trial in trials if _is_measured(trial) and (key := _key(trial))}
        errors = {key: float(trial.user_attrs.get(MEASUREMENT_ERROR) or 0.0) for key, trial in measured.items()}
        values = {key: trial.values for key, trial in measured.items()}
        return {
            index: forecast.outlook(
                {key: row[index] for key, row in values.items() if 0 < row[index] < math.inf}, running, errors
            )
            for index, forecast in self._forecasts.items()
        }

    def _worth_measuring(self, trials: Sequence[FrozenTrial]) -> list[Key]:
        open_keys = self._open_keys(trials)
        worth: dict[Key, float] = {}
        for outlook in self._outlooks(trials).values():
            gains = outlook.expected_improvements()
            for index in np.flatnonzero(outlook.is_worth_measuring(self._epsilon)):
                key = outlook.keys[index]
                if key in open_keys:
                    worth[key] = worth.get(key, 0.0) + float(gains[index]) / self._cost(key)
        return sorted(worth, key=lambda key: -worth[key])

    def _finished(self, trials: Sequence[FrozenTrial]) -> Reason | None:
        if any(trial.state is TrialState.RUNNING and _key(trial) for trial in trials):
            return None
        open_keys = self._open_keys(trials)
        if not open_keys:
            return Reason(kind=StopKind.ALL_TRIED, text="every configuration of the space was tried")
        if self._unpredicted(open_keys) or self._worth_measuring(trials):
            return None
        best = next((one.incumbent_key for one in self._outlooks(trials).values()), None)
        name = "no speculation" if best is None else f"{best[0]} k={best[1]}"
        text = f"no other configuration can be more than {self._epsilon * 100:g} % faster than {name} (95 % sure)"
        return Reason(kind=StopKind.NOTHING_WORTH_IT, text=text)

    def _open_keys(self, trials: Sequence[FrozenTrial]) -> set[Key]:
        """Configurations of the space that neither were tried nor run."""
        return self._keys - {key for trial in trials if _is_taken(trial) and (key := _key(trial))}

    def _unpredicted(self, open_keys: set[Key]) -> list[Key]:
        untraced = [key for key in open_keys if self._is_untraced(key)]
        return sorted(untraced or (open_keys if self._has_unpredicted else ()))

    def _is_untraced(self, key: Key) -> bool:
        return not any(key in forecast.index_of for forecast in self._forecasts.values())

    # ── Optuna's questions ────────────────────────────────────────────────────────────────────────────────────────

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:  # noqa: ARG002
        """Both parameters, chosen together."""
        return dict(self._space)

    def sample_relative(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],  # noqa: ARG002 - it is always the sampler's own
    ) -> dict[str, Any]:
        """The configuration most worth its cost, or in its turn one that the fallback explores."""
        trials = [one for one in study.get_trials(deepcopy=False) if one.number != trial.number]
        worth, open_keys = self._worth_measuring(trials), self._open_keys(trials)
        unknown = self._unpredicted(open_keys)
        if unknown and (not worth or self._is_turn_of_unknown(trials)):
            chosen: Key | None = self._explored(study, trial, unknown)
        else:
            chosen = worth[0] if worth else self._nearest(trials, open_keys)
        if chosen is None:  # all were tried, and yet one is asked for: the fallback repeats some
            return {}
        return {DRAFT: chosen[0], TOKENS: chosen[1]}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Parameters that are not of this search space are the fallback's."""
        return self._fallback.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """See ``BaseSampler.before_trial``; the fallback's."""
        self._fallback.before_trial(study, trial)

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """Stop ``study.optimize`` once nothing is worth another trial beside those that run."""
        self._fallback.after_trial(study, trial, state, values)
        ended = copy(trial)  # Optuna stores its state only after this call
        ended.state, ended.values = state, values
        others = [one for one in study.get_trials(deepcopy=False) if one.number != trial.number]
        trials = [*others, ended]
        if not (self._unpredicted(self._open_keys(trials)) or self._worth_measuring(trials)):
            with suppress(RuntimeError):  # an ask-and-tell loop has nothing to stop
                study.stop()

    def reseed_rng(self) -> None:
        """Start other random choices."""
        self._seed = int(np.random.default_rng().integers(2**32))
        self._fallback.reseed_rng()

    def _explored(self, study: optuna.Study, trial: FrozenTrial, unknown: Sequence[Key]) -> Key:
        """What the fallback suggests of these; one at random where it keeps suggesting others."""
        space = self._fallback.infer_relative_search_space(study, trial)  # samplers rely on being asked this first
        for _ in range(FALLBACK_TRIES):
            suggested = self._fallback.sample_relative(study, trial, space)
            key = (suggested.get(DRAFT), suggested.get(TOKENS))
            if key in unknown:
                return unknown[unknown.index(key)]
        rng = np.random.default_rng([self._seed, trial.number])  # the same for whoever resumes the study
        return unknown[int(rng.integers(len(unknown)))]

    def _is_turn_of_unknown(self, trials: Sequence[FrozenTrial]) -> bool:
        """Whether fewer untraced configurations than others were tried; every other one if some must be measured."""
        taken = [key for trial in trials if _is_taken(trial) and (key := _key(trial))]
        if self._has_unpredicted:
            return len(taken) % 2 == 1
        return sum(map(self._is_untraced, taken)) * 2 < len(taken)

    def _nearest(self, trials: Sequence[FrozenTrial], open_keys: set[Key]) -> Key | None:
        """The most promising of what is left, for a caller who asks although nothing is worth it."""
        for outlook in self._outlooks(trials).values():
            for index in np.argsort(-outlook.improvement_bounds()):
                if outlook.keys[index] in open_keys:
                    return outlook.keys[index]
        return None


def _all_alike(_key: Key) -> float:
    return 1.0


def _keys_of(space: Space) -> set[Key]:
    drafts, tokens = _values(space[DRAFT]), _values(space[TOKENS])
    return {(str(draft), int(count)) for draft in drafts if draft != NO_DRAFT for count in tokens}


def _key(trial: FrozenTrial) -> Key | None:
    """The configuration of a trial; None for no speculation, and before Optuna knows its parameters."""
    draft, tokens = trial.params.get(DRAFT), trial.params.get(TOKENS)
    return None if tokens is None or draft in (None, NO_DRAFT) else (str(draft), int(tokens))


def _is_measured(trial: FrozenTrial) -> bool:
    return trial.state is TrialState.COMPLETE and not _is_impossible(trial)


def _is_impossible(trial: FrozenTrial) -> bool:
    return any(value > 0 for value in trial.constraints.values())


def _is_taken(trial: FrozenTrial) -> bool:
    """Whether its configuration is not to be asked for again. A failed trial was lost, not answered."""
    return trial.state in (TrialState.COMPLETE, TrialState.RUNNING, TrialState.PRUNED)


def make_sampler(
    name: SamplerName,
    space: Space,
    seed: int,
    *,
    forecasts: Mapping[int, Forecast],
    has_unpredicted: bool = False,
    epsilon: float = EPSILON,
) -> BaseSampler:
    """The sampler of that name, set up for a small flat space with several objectives.

    TPE is multivariate with groups: Optuna's own multi-objective default samples each parameter alone and takes
    twice as many trials on such spaces. The last three arguments are the replay sampler's own.

    Raises:
        EngineNotInstalledError: ``gp`` without torch.
    """
    if name == REPLAY:
        return ReplaySampler(forecasts, space, epsilon=epsilon, has_unpredicted=has_unpredicted, seed=seed)
    check_sampler(name)
    return _MAKERS[name](space, seed)


def check_sampler(name: SamplerName) -> None:
    """Refuse a sampler that cannot be used here.

    Raises:
        EngineNotInstalledError: ``gp`` without torch.
    """
    if name == "gp" and importlib.util.find_spec("torch") is None:
        raise EngineNotInstalledError(
            "sampler 'gp' needs torch, which is not installed",
            "pip install 'specdec-tuner[cpu]', or choose --sampler replay",
        )


def _make_tpe(_space: Space, seed: int) -> BaseSampler:
    with warnings.catch_warnings():  # `group` has been experimental since Optuna 2.8
        warnings.simplefilter("ignore", ExperimentalWarning)
        return TPESampler(multivariate=True, group=True, n_startup_trials=TPE_STARTUP_TRIALS, seed=seed)


def _make_gp(_space: Space, seed: int) -> BaseSampler:
    return GPSampler(seed=seed, n_startup_trials=TPE_STARTUP_TRIALS)


def _make_nsga2(_space: Space, seed: int) -> BaseSampler:
    return NSGAIISampler(population_size=8, seed=seed)


def _make_random(_space: Space, seed: int) -> BaseSampler:
    return RandomSampler(seed=seed)


class _Grid(GridSampler):
    """Optuna's, for ask and tell: the end of its grid ends no study, which here is the driver's to do.

    At each ``tell`` Optuna's compares all trials with all of the grid, and near its end it fails on those enqueued.
    """

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """Nothing."""


def _make_grid(space: Space, seed: int) -> BaseSampler:
    return _Grid({name: _values(distribution) for name, distribution in space.items()}, seed=seed)


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
