"""Latency of one request against throughput of four, on the real engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.projects import Project

pytestmark = pytest.mark.slow

OBJECTIVES = ("e2e_ms@1", "output_tokens_per_s@4", "cost@2")


def test_one_search_measures_one_request_and_four_in_flight(tmp_path: Path) -> None:
    asked = [word for name in OBJECTIVES for word in ("--objective", name)]
    document: dict[str, Any] = Project(tmp_path).finish(
        *asked, "--price-per-hour", "0.5", "--sampler", "replay", "--trials", "3", "--dispatch", "inline"
    )
    baseline, *tried = document["trials"]
    assert tried
    for trial in (baseline, *tried):
        assert set(trial["values"]) == set(OBJECTIVES)
        assert trial["metrics"]["e2e_ms_mean"] == trial["values"]["e2e_ms@1"]
        assert trial["metrics"]["failed_requests@4"] == 0
    # a round has a time of its own only where no two requests overlap
    assert baseline["metrics"]["round_time_ms"] > 0
    assert baseline["metrics"]["round_time_ms@4"] is baseline["metrics"]["round_time_ms@2"] is None
    predicted = [trial["predicted"] for trial in tried]
    assert all({"speedup", "speedup@4", "output_tokens_per_s@2"} <= set(one) for one in predicted)
    assert all(one["probability"] is not None for one in document["pareto"])
