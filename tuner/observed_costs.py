"""What rounds take on a study's workload: its measured baseline and its cost model, draft by draft."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tuner.errors import ConfigurationError
from tuner.metrics import completed, e2e_ms, summarize
from tuner.payoff import RoundCosts
from tuner.prediction import within_reach
from tuner.predictions import Predictions
from tuner.records import Measurement, Trace


def draft_costs(baseline: Measurement, predictions: Predictions, trace: Trace) -> RoundCosts | None:
    """Rounds with a traced draft, as far as they are priced; None where nothing is.

    Raises:
        ConfigurationError: The baseline's answers have no second token, so there is nothing to draft.
    """
    costs, name = predictions.costs, trace.draft_name
    reached = [] if costs is None else within_reach(trace, costs, range(1, trace.max_drafted_tokens + 1))
    if costs is None or not reached:
        return None
    plain_ms, first_token_share = _plain(baseline)
    beyond = costs.round_ms(name, max(reached))  # [j], of a round that proposed j tokens of k
    return RoundCosts(
        target_ms=tuple(plain_ms + float(one - beyond[0]) for one in beyond),
        draft_ms=tuple(float(costs.round_ms(name, k)[0]) for k in range(1, max(reached) + 1)),
        first_token_share=first_token_share,
        draft_prefill_share=_prefill_share(baseline, predictions, name),
    )


def longest(costs: Sequence[RoundCosts]) -> RoundCosts:
    """The one that tells of the most drafted tokens.

    Raises:
        ConfigurationError: There is none.
    """
    if not costs:
        raise ConfigurationError(
            "what verifying several tokens costs is not known, so nothing can be said of drafts",
            "search with an engine that times single steps; tuner engines says which",
        )
    return max(costs, key=lambda one: one.most_drafted_tokens)


def _plain(baseline: Measurement) -> tuple[float, float]:
    """Time of a round without speculation, and the share of the latency before the first token."""
    columns = summarize(baseline)
    token, first, whole = (columns.get(name) for name in ("tpot_ms_mean", "ttft_ms_mean", "e2e_ms_mean"))
    if not token or not whole or first is None:
        raise ConfigurationError(
            "the baseline answered with single tokens, so there is nothing to draft", "raise max_output_tokens"
        )
    return token, first / whole


def _prefill_share(baseline: Measurement, predictions: Predictions, draft_name: str) -> float:
    """The draft's reading of the prompts over the baseline's latency."""
    records = completed(baseline.requests)
    if predictions.costs is None:
        return 0.0
    prompt_tokens = np.array([record.prompt_tokens or 0 for record in records], dtype=np.int64)
    reading = predictions.costs.draft_prefill_ms(draft_name, prompt_tokens)
    return float(reading.sum()) / sum(e2e_ms(record) or 0.0 for record in records)
