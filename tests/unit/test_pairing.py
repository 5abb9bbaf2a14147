from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.support.observed import a_failed_request, a_measurement, a_request, timed
from tuner.intervals import ratio_interval
from tuner.pairing import anchored_speedup, paired, paired_speedup
from tuner.records import Measurement, MeasureResult


def side(*seconds: float, start: int = 0) -> Measurement:
    return a_measurement(*(timed(f"p{start + number}", value) for number, value in enumerate(seconds)))


def test_pairs_are_matched_by_prompt_in_any_order():
    baseline = side(1.0, 2.0, 3.0)
    candidate = a_measurement(timed("p2", 1.5), timed("p0", 0.5), timed("p9", 7.0))
    pairs = paired(baseline, candidate)
    assert pairs.prompt_ids == ("p0", "p2")
    assert pairs.baseline.tolist() == pytest.approx([1000, 3000])
    assert pairs.candidate.tolist() == pytest.approx([500, 1500])


def test_the_gain_is_the_ratio_of_sums_and_not_the_mean_of_ratios():
    interval = paired_speedup(side(10.0, 1.0, 1.0), side(10.0, 0.25, 0.25))
    assert interval.estimate == pytest.approx(12 / 10.5)


def test_repeats_are_averaged_and_count_as_one_prompt():
    baseline = a_measurement(timed("p0", 1.0), timed("p0", 3.0), timed("p1", 2.0), timed("p2", 2.0))
    interval = paired_speedup(baseline, side(1.0, 1.0, 1.0))
    assert interval.n == 3
    assert interval.estimate == pytest.approx(2)


def test_a_request_that_failed_on_either_side_leaves_the_pair_out():
    baseline = a_measurement(a_failed_request("p0"), timed("p1", 2.0), timed("p2", 2.0))
    candidate = a_measurement(timed("p0", 1.0), a_failed_request("p1"), timed("p2", 1.0))
    pairs = paired(baseline, candidate)
    assert pairs.prompt_ids == ("p2",)
    assert pairs.failed == ("p0", "p1")


def test_one_failed_repeat_leaves_the_pair_out():
    baseline = a_measurement(timed("p0", 1.0), a_failed_request("p0"), timed("p1", 2.0))
    assert paired(baseline, side(1.0, 1.0)).failed == ("p0",)


def test_prompts_left_out_are_not_compared():
    assert paired(side(1.0, 2.0), side(1.0, 1.0), left_out={"p0"}).prompt_ids == ("p1",)


def test_an_answer_without_a_token_is_no_pair():
    assert paired(a_measurement(a_request("p0", chunks=())), side(1.0)).prompt_ids == ()


def test_time_per_token_is_weighted_by_the_answer_of_the_baseline():
    baseline = a_measurement(timed("p0", 1.0, tokens=11), timed("p1", 4.0, tokens=41))  # 100 ms a token each
    candidate = a_measurement(timed("p0", 0.5, tokens=11), timed("p1", 2.0, tokens=21))  # 50 and 100
    pairs = paired(baseline, candidate, "tpot_ms")
    assert pairs.baseline.tolist() == pytest.approx([1000, 4000])
    assert pairs.candidate.tolist() == pytest.approx([500, 4000])


def slowed(measurement: Measurement, factor: float) -> Measurement:
    return replace(
        measurement,
        requests=tuple(
            replace(one, chunks=tuple((at * factor, count) for at, count in one.chunks)) for one in measurement.requests
        ),
    )


def test_an_anchor_takes_out_the_drift_of_the_machine():
    baseline = side(*np.linspace(1.0, 2.0, 12))
    candidate = slowed(baseline, 1 / 1.5)
    result = MeasureResult(candidate=slowed(candidate, 1.2), anchor=slowed(side(*np.linspace(1.0, 2.0, 12)[:4]), 1.2))
    assert paired_speedup(baseline, result.candidate).estimate == pytest.approx(1.25)
    assert anchored_speedup(baseline, result).estimate == pytest.approx(1.5)


def test_the_uncertainty_of_the_anchor_is_in_the_interval():
    baseline = side(*[1.0] * 12)
    candidate = side(*np.tile([0.5, 0.7], 6))
    anchor = side(1.0, 1.1, 0.9, 1.0)
    direct = paired_speedup(baseline, candidate)
    drift = ratio_interval(np.array([1.0, 1.1, 0.9, 1.0]), np.ones(4), skewed=False)
    whole = anchored_speedup(baseline, MeasureResult(candidate=candidate, anchor=anchor))
    widths = [math.log(one.high / one.estimate) for one in (direct, drift, whole)]
    assert widths[2] == pytest.approx(math.hypot(widths[0], widths[1]))


def test_without_an_anchor_the_machine_is_taken_as_it_was():
    baseline, candidate = side(1.0, 2.0, 3.0, 4.0), side(0.5, 1.5, 2.0, 2.0)
    result = MeasureResult(candidate=candidate, anchor=None)
    assert anchored_speedup(baseline, result) == paired_speedup(baseline, candidate)


def test_an_anchor_of_one_prompt_still_corrects():
    baseline = side(1.0, 2.0, 3.0)
    result = MeasureResult(candidate=slowed(baseline, 1.2), anchor=slowed(side(1.0), 1.2))
    assert anchored_speedup(baseline, result).estimate == pytest.approx(1)


def test_an_anchor_that_failed_corrects_nothing():
    baseline = side(1.0, 2.0, 3.0)
    result = MeasureResult(candidate=slowed(baseline, 0.5), anchor=a_measurement(a_failed_request("p0")))
    assert anchored_speedup(baseline, result).estimate == pytest.approx(2)
