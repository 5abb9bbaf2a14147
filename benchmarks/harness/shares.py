"""A share of simulated runs with the limits that their number allows."""

from __future__ import annotations

from scipy.stats import binomtest


def share_with_limits(hits: int, of: int) -> dict[str, float | int]:
    """``share`` of ``of`` runs with its Clopper–Pearson 95 % limits; there must be a run."""
    limits = binomtest(hits, of).proportion_ci(0.95, method="exact")
    return {"hits": hits, "of": of, "share": hits / of, "low": round(limits.low, 5), "high": round(limits.high, 5)}
