"""Which measured configuration is certified: the simplest of those that cannot be told from the best."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar

from tuner.intervals import Interval
from tuner.pairing import compared_speedup
from tuner.records import Measurement, MeasureResult
from tuner.speculation import Speculation

DEFAULT_EPSILON = 0.01
"""Gains closer than this are equal: less than one load of a configuration differs from the next, with its noise."""

OTHER_MODEL_FREE, OTHER_HEAD = 3, 4
_COMPLEXITY: Mapping[str, int] = {
    "none": 0,
    "ngram": 1,
    "suffix": 2,
    "eagle": OTHER_HEAD,
    "mtp": OTHER_HEAD,
    "medusa": OTHER_HEAD,
    "draft_model": 5,
}


class Tried(Protocol):
    """A measured configuration."""

    @property
    def speculation(self) -> Speculation:
        """What was tried."""
        ...

    @property
    def metrics(self) -> Mapping[str, float | None]:
        """Its figures; ``"speedup"`` is the gain over no speculation, ``"speedup@4"`` that at four in flight."""
        ...


TriedT = TypeVar("TriedT", bound=Tried)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(Generic[TriedT]):
    """What is to be certified.

    Attributes:
        candidate: The simplest of the best; no speculation where nothing is told from that.
        tied_with: The others of the best, simplest first.
    """

    candidate: TriedT
    tied_with: tuple[TriedT, ...] = ()

    @property
    def tied_speculations(self) -> tuple[Speculation, ...]:
        """The configurations that the candidate is tied with."""
        return tuple(trial.speculation for trial in self.tied_with)


def simplicity(trial: Tried) -> tuple[int, int, float, str]:
    """Sorts the simplest first: what is easier to deploy, and costs less where it gains nothing.

    By what proposes: nothing, n-gram, suffix, another method without a model, a head on the target (EAGLE, MTP,
    Medusa and the like), a draft model. Then fewer drafted tokens, then less memory where it is known. The key of
    the configuration decides what is left, so that the order is total.
    """
    speculation = trial.speculation
    memory = trial.metrics.get("peak_memory_bytes")
    return (
        _complexity(speculation),
        speculation.drafted_tokens,
        float("inf") if memory is None else memory,
        speculation.key,
    )


def _complexity(speculation: Speculation) -> int:
    other = OTHER_MODEL_FREE if speculation.draft_model is None else OTHER_HEAD
    return _COMPLEXITY.get(str(speculation.method), other)


def choose_candidate(
    measured: Sequence[TriedT],
    results: Mapping[str, MeasureResult],
    baseline: Measurement,
    *,
    epsilon: float = DEFAULT_EPSILON,
    left_out: Collection[str] = (),
    speedup: str = "speedup",
    gains: Mapping[str, float] = MappingProxyType({}),
    seed: int = 0,
) -> Choice[TriedT]:
    """The configuration to certify.

    A configuration is tied with the best when its gain is within ``epsilon`` of the best one's, and their comparison
    prompt by prompt, both at the speed of the baseline's run by their anchors, covers 1. Where the best is tied with
    no speculation, no speculation is what is chosen: there is nothing to certify.

    Args:
        measured: Trials with a measurement, the baseline's among them.
        results: What they measured, by the key of their configuration; that of the baseline is not needed.
        baseline: The search's run of the target alone.
        epsilon: Relative, e.g. 0.01.
        left_out: Prompts that count for no configuration.
        speedup: Name of the gain among a trial's figures; the measurements are of its number of requests in flight.
        gains: Better estimates of gains than the measured ones, by the configuration's key.
        seed: Of the resampling.
    """

    def gain(trial: Tried) -> float:
        return gains.get(trial.speculation.key) or trial.metrics.get(speedup) or 0.0

    best = max(measured, key=lambda trial: (gain(trial), not trial.speculation.is_baseline))
    ties = [
        trial
        for trial in measured
        if trial is best
        or (
            gain(trial) * (1 + epsilon) >= gain(best)
            and _covers_one(_comparison(best, trial, results, baseline, left_out, seed))
        )
    ]
    simplest, *others = sorted(ties, key=simplicity)
    return Choice(candidate=simplest, tied_with=() if simplest.speculation.is_baseline else tuple(others))


def _comparison(
    best: Tried,
    other: Tried,
    results: Mapping[str, MeasureResult],
    baseline: Measurement,
    left_out: Collection[str],
    seed: int,
) -> Interval | None:
    """Gain of the best over another; no speculation stands as the baseline's own run, at whose speed all are."""
    pair = [
        MeasureResult(candidate=baseline, anchor=None)
        if trial.speculation.is_baseline
        else results[trial.speculation.key]
        for trial in (best, other)
    ]
    return compared_speedup(pair[0], pair[1], baseline, left_out=left_out, seed=seed)


def _covers_one(interval: Interval | None) -> bool:
    """Whether two configurations cannot be told apart; too few prompts cannot tell any."""
    return interval is None or interval.low <= 1 <= interval.high


__all__ = ["DEFAULT_EPSILON", "Choice", "Tried", "choose_candidate", "simplicity"]
