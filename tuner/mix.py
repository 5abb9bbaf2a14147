"""Several workloads served by one deployment: which configuration, and what one for each would add.

The mean over a mix is that of latency ratios: each workload's end-to-end latency relative to no speculation,
weighted by its share of the requests. A workload of long answers therefore counts by its requests, not by its time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tuner.decide import DEFAULT_MARGIN
from tuner.errors import ConfigurationError
from tuner.speculation import Speculation

DRAWS = 4000
"""Puts the standard error of a probability below 0.01."""

Z95 = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyRatio:
    """End-to-end latency of a configuration over that of no speculation, on one workload.

    Attributes:
        estimate: Below 1 where speculation gains.
        low: 95 % limit; None for too few prompts.
        is_measured: False where replay predicted it.
    """

    estimate: float
    low: float | None
    high: float | None
    is_measured: bool

    @property
    def log_error(self) -> float:
        """Standard error of its logarithm; 0 where there is no interval."""
        if self.low is None or self.high is None:
            return 0.0
        return math.log(self.high / self.low) / (2 * Z95)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixWorkload:
    """One workload of a mix.

    Attributes:
        label: Its name in tables.
        weight: Positive; shares follow by normalising.
        ratios: Every configuration that is known here, no speculation among them.
        oracle: Latency ratio of each draft if every round knew beforehand how many tokens to draft.
        replayed: Latency ratio of fixed configurations, from the same replay and the same round times as the oracle's.
        infeasible: Configurations that cannot run here.
    """

    study_name: str
    label: str
    weight: float
    ratios: Mapping[Speculation, LatencyRatio]
    oracle: Mapping[str, float] = field(default_factory=dict)
    replayed: Mapping[Speculation, float] = field(default_factory=dict)
    infeasible: frozenset[Speculation] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedConfiguration:
    """One configuration under the whole mix.

    Attributes:
        ratios: By workload.
        regrets: By workload: latency over that of the workload's best configuration, minus 1.
        latency_ratio: Weighted mean of the ratios.
        low: Weighted mean of the lower limits, as if all erred together: rather too wide. None where one has none.
        probability_best: That no other is faster under this mix, errors of configurations taken as independent.
    """

    speculation: Speculation
    ratios: tuple[LatencyRatio, ...]
    regrets: tuple[float, ...]
    latency_ratio: float
    low: float | None
    high: float | None
    probability_best: float

    @property
    def speedup(self) -> float:
        """Over no speculation, under the mix."""
        return 1 / self.latency_ratio

    @property
    def worst_regret(self) -> float:
        """The largest over workloads."""
        return max(self.regrets)

    @property
    def is_measured(self) -> bool:
        """Whether it was measured on every workload."""
        return all(ratio.is_measured for ratio in self.ratios)


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableK:
    """What a number of drafted tokens chosen anew in every round could add.

    Attributes:
        gain: Over the recommended configuration, both as replayed. An upper bound: the oracle knows
            what will be accepted.
    """

    draft_name: str
    gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """What a mix of workloads comes to.

    Attributes:
        shares: Of the requests, by workload; they sum to 1.
        configurations: Those known on every workload, fastest first.
        recommended: The fastest, or no speculation where that gains less than the margin.
        minimax: The one whose worst regret over workloads is smallest.
        separate: The best of each workload.
        separate_gain: Speed of one deployment for each workload over that of ``recommended``, minus 1. The best of
            several estimates looks better than it is, so it is rather too high.
        variable_k: None where no draft was replayed on every workload.
        left_out: Configurations that are known on some of the workloads only, or cannot run on one.
    """

    workloads: tuple[MixWorkload, ...]
    shares: tuple[float, ...]
    margin: float
    configurations: tuple[MixedConfiguration, ...]
    recommended: MixedConfiguration
    minimax: MixedConfiguration
    separate: tuple[Speculation, ...]
    separate_gain: float
    variable_k: VariableK | None
    left_out: tuple[Speculation, ...]

    @property
    def best_measured(self) -> MixedConfiguration:
        """The fastest that was measured on every workload; no speculation always was."""
        return next(one for one in self.configurations if one.is_measured)


def mix(workloads: Sequence[MixWorkload], *, margin: float = DEFAULT_MARGIN, seed: int = 0) -> Mix:
    """Weigh every configuration against every other, no speculation among them.

    Args:
        workloads: Two or more, measured under the same conditions.
        margin: Least gain over no speculation that is worth having.
        seed: Of the draws behind ``probability_best``.

    Raises:
        ConfigurationError: Fewer than two workloads, or a weight that is no positive number.
    """
    _check(workloads)
    total = sum(one.weight for one in workloads)
    shares = tuple(one.weight / total for one in workloads)
    known = {one for workload in workloads for one in workload.ratios}
    unable = {one for workload in workloads for one in workload.infeasible}
    common = [one for one in known if one not in unable and all(one in workload.ratios for workload in workloads)]
    ranked = tuple(sorted(_mixed(common, workloads, shares, seed), key=_by_latency))
    idle = next(one for one in ranked if one.speculation.is_baseline)
    recommended = ranked[0] if ranked[0].speedup >= 1 + margin else idle
    separate = tuple(_best(workload) for workload in workloads)
    apart = sum(
        share * workload.ratios[best].estimate
        for share, workload, best in zip(shares, workloads, separate, strict=True)
    )
    return Mix(
        workloads=tuple(workloads),
        shares=shares,
        margin=margin,
        configurations=ranked,
        recommended=recommended,
        minimax=min(ranked, key=lambda one: (one.worst_regret, *_by_latency(one))),
        separate=separate,
        separate_gain=recommended.latency_ratio / apart - 1,
        variable_k=_variable_k(recommended.speculation, workloads, shares),
        left_out=tuple(sorted((known | unable) - set(common), key=_order)),
    )


def _check(workloads: Sequence[MixWorkload]) -> None:
    if len(workloads) < 2:
        raise ConfigurationError("a mix needs two studies or more", "name several studies, each with its weight")
    for workload in workloads:
        if not (math.isfinite(workload.weight) and workload.weight > 0):
            raise ConfigurationError(
                f"the weight of study {workload.study_name!r} is {workload.weight}", "give a number above 0"
            )


def _order(speculation: Speculation) -> tuple[str, int]:
    return speculation.draft_name, speculation.drafted_tokens


def _by_latency(one: MixedConfiguration) -> tuple[float, bool, int, str]:
    """Fastest first; of equals the simplest: no speculation, then fewer drafted tokens."""
    speculation = one.speculation
    return one.latency_ratio, not speculation.is_baseline, speculation.drafted_tokens, speculation.draft_name


def _best(workload: MixWorkload) -> Speculation:
    able = [one for one in workload.ratios if one not in workload.infeasible]
    return min(able, key=lambda one: (workload.ratios[one].estimate, one.drafted_tokens, one.draft_name))


def _mixed(
    speculations: Sequence[Speculation], workloads: Sequence[MixWorkload], shares: Sequence[float], seed: int
) -> list[MixedConfiguration]:
    ordered = sorted(speculations, key=_order)  # sets have no order, and draws must not depend on one
    table = [tuple(workload.ratios[one] for workload in workloads) for one in ordered]
    least = [workload.ratios[_best(workload)].estimate for workload in workloads]
    probabilities = _probabilities_best(table, shares, seed)
    return [
        MixedConfiguration(
            speculation=speculation,
            ratios=ratios,
            regrets=tuple(ratio.estimate / best - 1 for ratio, best in zip(ratios, least, strict=True)),
            latency_ratio=sum(share * ratio.estimate for share, ratio in zip(shares, ratios, strict=True)),
            low=_mean_limit(shares, [ratio.low for ratio in ratios]),
            high=_mean_limit(shares, [ratio.high for ratio in ratios]),
            probability_best=float(probability),
        )
        for speculation, ratios, probability in zip(ordered, table, probabilities, strict=True)
    ]


def _mean_limit(shares: Sequence[float], limits: Sequence[float | None]) -> float | None:
    known = [limit for limit in limits if limit is not None]
    if len(known) < len(limits):
        return None
    return sum(share * limit for share, limit in zip(shares, known, strict=True))


def _probabilities_best(
    table: Sequence[Sequence[LatencyRatio]], shares: Sequence[float], seed: int
) -> NDArray[np.float64]:
    """Share of draws in which each configuration is the fastest.

    Args:
        table: [configurations][workloads].
        shares: [workloads].
        seed: Of the draws.
    """
    random = np.random.default_rng(seed)
    drawn = np.zeros((DRAWS, len(table)))
    for column, share in enumerate(shares):  # one workload at a time: a large space has thousands of configurations
        means = np.log([ratios[column].estimate for ratios in table])
        errors = np.array([ratios[column].log_error for ratios in table])
        drawn += share * np.exp(means + errors * random.standard_normal(drawn.shape))
    return np.bincount(drawn.argmin(axis=1), minlength=len(table)) / DRAWS


def _variable_k(
    recommended: Speculation, workloads: Sequence[MixWorkload], shares: Sequence[float]
) -> VariableK | None:
    """The draft that gains most from a variable k, against the fixed configuration as it is replayed."""
    drafts = set.intersection(*(set(workload.oracle) for workload in workloads))
    if not drafts or not all(recommended in workload.replayed for workload in workloads):
        return None
    fixed = sum(share * one.replayed[recommended] for share, one in zip(shares, workloads, strict=True))
    oracle = {
        name: sum(share * one.oracle[name] for share, one in zip(shares, workloads, strict=True)) for name in drafts
    }
    best = min(sorted(drafts), key=lambda name: oracle[name])
    return VariableK(draft_name=best, gain=max(0.0, fixed / oracle[best] - 1))
