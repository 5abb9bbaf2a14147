from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.observed import a_failed_request, a_measurement, a_request
from tuner.errors import MeasurementError
from tuner.metric_definitions import METRICS
from tuner.metrics import (
    acceptance_by_position,
    acceptance_rate,
    conditional_acceptance_by_position,
    cost_per_million_tokens,
    e2e_ms,
    failed_requests,
    goodput_requests_per_s,
    inter_chunk_ms,
    latency_summary,
    mean_acceptance_length,
    metrics_markdown,
    output_tokens_per_s,
    round_time_ms,
    summarize,
    tpot_ms,
    ttft_ms,
    waste_tokens_per_output_token,
)
from tuner.records import Counters

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"

SPECULATING = a_request(sent_s=10.0, chunks=((10.5, 2), (10.7, 3), (10.8, 1)))


def test_latencies_of_a_request_that_speculates():
    assert ttft_ms(SPECULATING) == pytest.approx(500)
    assert e2e_ms(SPECULATING) == pytest.approx(800)
    assert tpot_ms(SPECULATING) == pytest.approx(300 / 4)  # four tokens came after the first chunk of two
    assert inter_chunk_ms(SPECULATING) == pytest.approx((200, 100))


def test_a_one_token_answer_has_no_tpot():
    answer = a_request(chunks=((0.1, 1),))
    assert tpot_ms(answer) is None
    assert e2e_ms(answer) == pytest.approx(100)
    assert inter_chunk_ms(answer) == ()


def test_an_answer_without_a_token_has_no_latency():
    answer = a_request(chunks=())
    assert (ttft_ms(answer), e2e_ms(answer), tpot_ms(answer)) == (None, None, None)


def test_an_event_without_tokens_is_not_the_first_token():
    role_first = a_request(chunks=((0.1, 0), (0.3, 1), (0.4, 1), (0.9, 0)))
    assert ttft_ms(role_first) == pytest.approx(300)
    assert e2e_ms(role_first) == pytest.approx(400)


def test_a_failed_request_has_no_latency_and_is_counted():
    measured = a_measurement(a_request("p0", chunks=((0.2, 1), (0.4, 1))), a_failed_request("p1"))
    assert (ttft_ms(measured.requests[1]), e2e_ms(measured.requests[1])) == (None, None)
    assert latency_summary(measured, "ttft_ms", "mean") == pytest.approx(200)
    assert failed_requests(measured) == 1


def test_token_counts_that_disagree_are_an_error():
    with pytest.raises(MeasurementError, match="says 7 output tokens, its chunks carry 2"):
        summarize(a_measurement(a_request(output_tokens=7, token_ids=())))


def test_token_ids_that_disagree_are_an_error():
    with pytest.raises(MeasurementError, match="3 token ids for 2 output tokens"):
        e2e_ms(a_request(token_ids=(1, 2, 3)))


def test_percentiles_are_over_requests():
    measured = a_measurement(*(a_request(f"p{s}", chunks=((s / 10, 1),)) for s in range(1, 12)))
    assert latency_summary(measured, "e2e_ms", "p50") == pytest.approx(600)
    assert latency_summary(measured, "e2e_ms", "p90") == pytest.approx(1000)
    assert latency_summary(measured, "e2e_ms", "p99") == pytest.approx(1090)


# ── known wrong ways ──────────────────────────────────────────────────────────────────────────────────────────


def test_tpot_does_not_include_the_time_to_the_first_token():
    late = a_request(chunks=((9.1, 1), (9.2, 1), (9.3, 1)))
    early = a_request(chunks=((0.1, 1), (0.2, 1), (0.3, 1)))
    assert tpot_ms(late) == pytest.approx(100)
    assert tpot_ms(early) == pytest.approx(100)


def test_end_to_end_time_over_chunks_is_no_metric():
    wrong = (10.8 - 10.0) * 1000 / 3  # per line of the stream, time to the first token included
    assert tpot_ms(SPECULATING) != pytest.approx(wrong)
    assert not [metric.name for metric in METRICS if "itl" in metric.name or "inter_token" in metric.name]


def test_gaps_between_chunks_are_not_time_per_token():
    gaps = inter_chunk_ms(SPECULATING)
    assert sum(gaps) / len(gaps) == pytest.approx(150)
    assert tpot_ms(SPECULATING) == pytest.approx(75)


def test_mean_tpot_is_the_ratio_of_sums():
    short = a_request("short", chunks=((0.0, 1), (0.1, 1)))  # 100 ms for one token
    long = a_request("long", chunks=((0.0, 1), (0.9, 90)))  # 10 ms for each of 90
    assert latency_summary(a_measurement(short, long), "tpot_ms", "mean") == pytest.approx(1000 / 91)


def test_mean_acceptance_length_is_the_ratio_of_sums():
    quick = a_request("quick", chunks=((0.0, 1), (0.1, 4)), rounds=1)  # τ 4
    slow = a_request("slow", chunks=((0.0, 1), (0.1, 11)), rounds=11)  # τ 1
    assert mean_acceptance_length(a_measurement(quick, slow)) == pytest.approx(15 / 12)


def test_a_missing_counter_is_none_and_not_zero():
    measured = a_measurement(a_request())
    names = ("mean_acceptance_length", "acceptance_rate", "waste_tokens_per_output_token", "round_time_ms")
    assert {summarize(measured)[name] for name in names} == {None}
    assert summarize(measured)["peak_memory_bytes"] is None
    assert acceptance_by_position(measured) == ()


# ── acceptance ────────────────────────────────────────────────────────────────────────────────────────────────


def test_acceptance_of_hand_counted_rounds():
    measured = a_measurement(
        a_request("p0", chunks=((0.0, 1), (0.1, 9)), rounds=3, drafted_tokens=12, accepted_tokens=6),
        a_request("p1", chunks=((0.0, 1), (0.1, 4)), rounds=2, drafted_tokens=8, accepted_tokens=2),
    )
    assert acceptance_rate(measured) == pytest.approx(8 / 20)
    assert mean_acceptance_length(measured) == pytest.approx(13 / 5)
    assert waste_tokens_per_output_token(measured) == pytest.approx(12 / 15)


def test_the_baseline_wastes_nothing_and_has_no_acceptance_rate():
    measured = a_measurement(a_request(rounds=1, drafted_tokens=0, accepted_tokens=0))
    assert waste_tokens_per_output_token(measured) == 0
    assert acceptance_rate(measured) is None
    assert mean_acceptance_length(measured) == 1


def test_rounds_of_failed_requests_do_not_count():
    good = a_request("p0", chunks=((0.0, 1), (0.1, 4)), rounds=2, drafted_tokens=6, accepted_tokens=2)
    failed = a_failed_request("p1", rounds=50, drafted_tokens=150, accepted_tokens=0)
    engine = Counters(rounds=52, drafted_tokens=156, accepted_tokens=2)
    assert mean_acceptance_length(a_measurement(good, failed, counters=engine)) == 2


def test_totals_of_the_engine_stand_in_unless_a_request_failed():
    good, counters = a_request("p0", chunks=((0.0, 1), (0.1, 4))), Counters(rounds=2)
    assert mean_acceptance_length(a_measurement(good, counters=counters)) == 2
    assert mean_acceptance_length(a_measurement(good, a_failed_request("p1"), counters=counters)) is None


def test_acceptance_by_position_counts_only_rounds_that_drafted_it():
    counters = Counters(rounds=20, rounds_with_draft=10, drafted_at=(10, 10, 5), accepted_at=(8, 6, 3))
    measured = a_measurement(a_request(), counters=counters)
    assert acceptance_by_position(measured) == pytest.approx((0.8, 0.6, 0.6))
    first, second, third = conditional_acceptance_by_position(measured)
    assert (first, second) == pytest.approx((0.8, 0.75))
    assert third is None  # five rounds did not draft it, and nobody counted whether those accepted the second


def test_a_position_that_was_never_drafted_has_no_acceptance():
    counters = Counters(drafted_at=(4, 0), accepted_at=(0, 0))
    measured = a_measurement(a_request(), counters=counters)
    assert acceptance_by_position(measured) == (0.0, None)
    assert conditional_acceptance_by_position(measured) == (0.0, None)


# ── rates ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_round_time_is_decode_time_over_rounds():
    measured = a_measurement(
        a_request("p0", sent_s=0.0, chunks=((0.1, 1), (0.4, 6)), rounds=3),
        a_request("p1", sent_s=0.4, chunks=((0.5, 1), (0.6, 2)), rounds=1),
    )
    assert round_time_ms(measured) == pytest.approx(100)


def test_round_time_does_not_exist_when_requests_overlap():
    measured = a_measurement(
        a_request("p0", sent_s=0.0, chunks=((0.1, 1), (0.4, 6)), rounds=3),
        a_request("p1", sent_s=0.2, chunks=((0.5, 1), (0.6, 2)), rounds=1),
    )
    assert round_time_ms(measured) is None


def test_output_tokens_per_second_counts_completed_requests():
    measured = a_measurement(a_request("p0", chunks=((0.1, 5),)), a_failed_request("p1"), wall_s=2.0)
    assert output_tokens_per_s(measured) == 2.5


def test_goodput_counts_requests_that_met_every_limit():
    quick = a_request("p0", chunks=((0.1, 1), (0.2, 1)))
    late = a_request("p1", chunks=((0.9, 1), (1.0, 1)))
    slow = a_request("p2", chunks=((0.1, 1), (0.9, 1)))
    measured = a_measurement(quick, late, slow, a_failed_request("p3"), wall_s=4.0)
    assert goodput_requests_per_s(measured, {"ttft_ms": 200, "tpot_ms": 150}) == 0.25
    assert goodput_requests_per_s(measured, {}) is None


@pytest.mark.parametrize(
    ("tokens_per_s", "price", "cost"), [(100.0, 3.6, 10.0), (None, 3.6, None), (100.0, None, None)]
)
def test_a_million_tokens_cost_the_price_of_the_time_they_take(tokens_per_s, price, cost):
    assert cost_per_million_tokens(tokens_per_s, price) == (None if cost is None else pytest.approx(cost))


# ── documentation ─────────────────────────────────────────────────────────────────────────────────────────────


def test_every_scalar_column_is_a_documented_metric():
    documented = {metric.name for metric in METRICS}
    columns = summarize(a_measurement(a_request()))
    assert {
        name.rsplit("_", 1)[0] if name[-3] == "p" or name.endswith("_mean") else name for name in columns
    } <= documented


def test_the_document_is_up_to_date():
    assert DOCUMENT.read_text(encoding="utf-8") == metrics_markdown(), "python -m tuner.metrics > docs/metrics.md"
