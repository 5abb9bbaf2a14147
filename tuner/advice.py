"""What the drafts of a study must reach to pay off, and what they have: for those who train one, or look for one.

By the model of ``payoff``, on the study's workload, target and engine. Of traced drafts the α is told that has their
replayed tokens per round, so that it compares with the α that is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tuner.errors import ConfigurationError
from tuner.observed_costs import draft_costs, longest
from tuner.payoff import Requirement, RoundCosts, equivalent_acceptance, required_acceptance
from tuner.prediction import Prediction
from tuner.predictions import Predictions
from tuner.records import Measurement, Trace
from tuner.replay import replay_nearest

COST_SHARES = (0.05, 0.1, 0.2)
"""Of drafts that do not exist yet: a head of one layer, and models of a tenth and a fifth of the target's depth."""

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
        cost_share: One drafted token over one round of no speculation.
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
        most_drafted_tokens: Largest k that is priced.
    """

    speedups: tuple[float, ...]
    drafts: tuple[DraftAdvice, ...]
    first_token_share: float
    most_drafted_tokens: int


def advise(
    baseline: Measurement,
    traces: Sequence[Trace],
    predictions: Predictions,
    *,
    margin: float,
    speedups: Sequence[float] = TARGET_SPEEDUPS,
    cost_shares: Sequence[float] = COST_SHARES,
) -> Advice:
    """What the drafts that were timed must reach, and those of a given cost.

    Args:
        baseline: No speculation.
        traces: Of the drafts that were replayed along it.
        predictions: Of the same study, with the cost model.
        margin: Least gain worth having.
        speedups: Other gains to reach.
        cost_shares: Drafts that do not exist yet: one drafted token over one round of no speculation. Their prefill
            is taken to cost the same share of the target's.

    Raises:
        ConfigurationError: No draft is priced, a share is negative, or a speed-up is below 1.
    """
    bad = [share for share in cost_shares if not (math.isfinite(share) and share >= 0)]
    if bad:
        raise ConfigurationError(f"a draft cost of {bad[0]} is no share", "give 0 or more, e.g. 0.05 for a twentieth")
    wanted = tuple(sorted({1 + margin, *speedups}))
    priced = [(one, costs) for one in traces if (costs := draft_costs(baseline, predictions, one)) is not None]
    target = longest([costs for _, costs in priced])
    return Advice(
        speedups=wanted,
        drafts=(
            *(_traced_draft(costs, trace, predictions, wanted) for trace, costs in priced),
            *(_advice(_with_share(target, share), wanted) for share in sorted(set(cost_shares))),
        ),
        first_token_share=target.first_token_share,
        most_drafted_tokens=target.most_drafted_tokens,
    )


def _with_share(target: RoundCosts, share: float) -> RoundCosts:
    one = share * target.target_ms[0]
    return replace(
        target,
        draft_ms=tuple(one * k for k in range(1, len(target.target_ms))),
        draft_prefill_share=share * target.first_token_share,
    )


def _traced_draft(costs: RoundCosts, trace: Trace, predictions: Predictions, wanted: Sequence[float]) -> DraftAdvice:
    predicted = (one for (draft, _), one in predictions.by_configuration.items() if draft == trace.draft_name)
    best = max(predicted, key=lambda one: one.speedup)
    return replace(_advice(costs, wanted), draft_name=trace.draft_name, traced=_traced(trace, best))


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
        first_token=replay_nearest(trace, [1])[0].acceptance_rate,
        proposing_share=sum(count > 0 for count in proposals) / len(proposals) if proposals else 0.0,
        equivalent=equivalent_acceptance(best.mean_acceptance_length or 1.0, best.drafted_tokens),
        drafted_tokens=best.drafted_tokens,
        speedup=best.speedup,
    )
