"""What the drafts of a study must reach to pay off, and what they have: for those who train one, or look for one.

By the model of ``payoff``, on the study's workload, target and engine. Of traced drafts the α is told that has their
replayed tokens per round, so that it compares with the α that is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tuner.cost_model import Prediction
from tuner.errors import ConfigurationError
from tuner.metrics import MS_PER_S, completed, e2e_ms, summarize
from tuner.payoff import Requirement, RoundCosts, equivalent_acceptance, required_acceptance
from tuner.predictions import Predictions
from tuner.records import BaselineResult, Measurement, TimedSteps, Trace, TraceResult
from tuner.replay import replay

COST_SHARES = (0.05, 0.1, 0.2)
"""Of drafts that do not exist yet: a head of one layer, and draft models of a tenth and a fifth of the target."""

TARGET_SPEEDUPS = (1.5, 2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedAcceptance:
    """What a draft that was replayed really has.

    Attributes:
        first_token: Share of rounds with a proposal whose first token is right; None where nothing was proposed.
        proposing_share: Share of output positions at which it proposes anything; 1 but for lookups.
        equivalent: The α that yields the replayed tokens per round at ``drafted_tokens``.
        drafted_tokens: Its best k.
        speedup: As predicted by replay at that k.
    """

    first_token: float | None
    proposing_share: float
    equivalent: float
    drafted_tokens: int
    speedup: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftAdvice:
    """What one draft, or one that costs as much, must reach.

    Attributes:
        draft_name: None for a draft that does not exist yet.
        cost_share: One drafted token over one target pass.
        requirements: One for each wanted speed-up, the smallest first.
        most_speedup: If every drafted token were right.
        traced: What it has; None where it was not replayed.
    """

    draft_name: str | None
    cost_share: float
    requirements: tuple[Requirement, ...]
    most_speedup: float
    traced: TracedAcceptance | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What drafts must reach on one workload, with one target and engine.

    Attributes:
        speedups: Wanted ones, the smallest first: that of the margin, then those asked for.
        drafts: Timed ones in the order of their traces, then those of a given cost, the cheapest first.
        first_token_share: Of no speculation's latency, before the first token: no draft shortens it.
        most_drafted_tokens: Largest k whose verify pass was timed.
    """

    speedups: tuple[float, ...]
    drafts: tuple[DraftAdvice, ...]
    first_token_share: float
    most_drafted_tokens: int


def advise(
    baseline: BaselineResult,
    traces: Sequence[TraceResult],
    predictions: Predictions,
    *,
    margin: float,
    speedups: Sequence[float] = TARGET_SPEEDUPS,
    cost_shares: Sequence[float] = COST_SHARES,
) -> Advice:
    """What the drafts that were timed must reach, and those of a given cost.

    Args:
        baseline: With the verify curve.
        traces: Of the drafts that were timed and replayed.
        predictions: Of the same study.
        margin: Least gain worth having.
        speedups: Other gains to reach.
        cost_shares: Drafts that do not exist yet: one drafted token over one target pass. Their prefill is taken to
            cost the same share of the target's.

    Raises:
        ConfigurationError: The verify curve was not timed, a share is negative, or a speed-up is below 1.
    """
    bad = [share for share in cost_shares if not (math.isfinite(share) and share >= 0)]
    if bad:
        raise ConfigurationError(f"a draft cost of {bad[0]} is no share", "give 0 or more, e.g. 0.05 for a twentieth")
    target, scale = _target_costs(baseline)
    wanted = tuple(sorted({1 + margin, *speedups}))
    timed = [_timed_draft(target, scale, one, predictions, wanted, baseline.measurement) for one in traces]
    given = [_advice(_with_share(target, share), wanted) for share in sorted(set(cost_shares))]
    return Advice(
        speedups=wanted,
        drafts=(*(one for one in timed if one is not None), *given),
        first_token_share=target.first_token_share,
        most_drafted_tokens=len(target.verify_ms) - 1,
    )


def _target_costs(baseline: BaselineResult) -> tuple[RoundCosts, float]:
    """The target's part, such that no speculation takes what it was measured to take, and the scale of timed steps.

    Where the baseline decoded faster than the timed steps, the machine was slower when they were timed, and all of
    them are scaled.
    """
    verify = None if baseline.verify is None else _by_size(baseline.verify)
    if verify is None or len(verify) < 2:
        raise ConfigurationError(
            "the cost of verifying several tokens was not timed, so nothing can be said of drafts",
            "search with an engine that times single steps; tuner engines says which",
        )
    columns = summarize(baseline.measurement)
    token, first, whole = (columns.get(name) for name in ("tpot_ms_mean", "ttft_ms_mean", "e2e_ms_mean"))
    if not token or not whole or first is None:
        raise ConfigurationError(
            "the baseline answered with single tokens, so there is nothing to draft", "raise max_output_tokens"
        )
    scale = min(1.0, token / verify[0])
    costs = RoundCosts(
        verify_ms=tuple(scale * one for one in verify),
        draft_ms=(),
        overhead_ms=max(0.0, token - verify[0]),
        first_token_share=first / whole,
    )
    return costs, scale


def _by_size(steps: TimedSteps) -> tuple[float, ...]:
    """Medians of sizes 1, 2, … to the largest timed one; sizes between timed ones are interpolated."""
    sizes = sorted(size for size, seconds in steps.seconds.items() if seconds)
    medians = [float(np.median(steps.seconds[size])) * MS_PER_S for size in sizes]
    if not sizes or sizes[0] != 1:
        return ()
    return tuple(float(one) for one in np.interp(np.arange(1, sizes[-1] + 1), sizes, medians))


def _with_share(target: RoundCosts, share: float) -> RoundCosts:
    one = share * target.verify_ms[0]
    return replace(
        target,
        draft_ms=tuple(one * k for k in range(1, len(target.verify_ms))),
        draft_prefill_share=share * target.first_token_share,
    )


def _timed_draft(
    target: RoundCosts,
    scale: float,
    result: TraceResult,
    predictions: Predictions,
    wanted: Sequence[float],
    baseline: Measurement,
) -> DraftAdvice | None:
    """None for a draft whose single steps were not timed, or that is not predicted."""
    name, steps = result.trace.draft_name, _by_size(result.draft_steps)
    predicted = [one for (draft, _), one in predictions.by_configuration.items() if draft == name]
    if not steps or not predicted:
        return None
    best = max(predicted, key=lambda one: one.speedup)
    costs = replace(
        target,
        draft_ms=tuple(scale * one for one in steps),
        draft_prefill_share=scale * _prefill_share(result.draft_prefill, baseline),
    )
    return replace(_advice(costs, wanted), draft_name=name, traced=_traced(result.trace, best))


def _prefill_share(prefill: TimedSteps | None, baseline: Measurement) -> float:
    """The draft's reading of the prompts over the baseline's latency; 0 where it reads none."""
    if prefill is None:
        return 0.0
    sizes = np.array(sorted(prefill.seconds))
    medians = np.array([float(np.median(prefill.seconds[int(size)])) * MS_PER_S for size in sizes])
    records = completed(baseline.requests)
    tokens = np.array([record.prompt_tokens or 0 for record in records])
    within = np.interp(tokens, [0, *sizes], [0.0, *medians])
    reading = np.where(tokens > sizes[-1], medians[-1] * tokens / sizes[-1], within)
    return float(reading.sum()) / sum(e2e_ms(record) or 0.0 for record in records)


def _advice(costs: RoundCosts, wanted: Sequence[float]) -> DraftAdvice:
    return DraftAdvice(
        draft_name=None,
        cost_share=costs.cost_share,
        requirements=tuple(required_acceptance(costs, speedup) for speedup in wanted),
        most_speedup=float(costs.speedups(1.0).max()),
    )


def _traced(trace: Trace, best: Prediction) -> TracedAcceptance:
    proposals = [count for prompt in trace.prompts for count in prompt.proposed[1:]]  # none at the prefill's token
    return TracedAcceptance(
        first_token=replay(trace, 1).acceptance_rate,
        proposing_share=sum(count > 0 for count in proposals) / len(proposals) if proposals else 0.0,
        equivalent=equivalent_acceptance(best.mean_acceptance_length or 1.0, best.drafted_tokens),
        drafted_tokens=best.drafted_tokens,
        speedup=best.speedup,
    )
