from __future__ import annotations

import json

import numpy as np
import pytest

from tests.support.observed import a_failed_request, a_measurement, a_request
from tuner.errors import ConfigurationError, MeasurementError
from tuner.objective import DEFAULT_OBJECTIVES, OBJECTIVES, finite_values, losses, parse_objectives, values

NAN, INF = float("nan"), float("inf")


def names(*written: str) -> list[str]:
    return [objective.name for objective in parse_objectives(written)]


def test_latency_and_waste_are_the_default():
    assert names() == ["e2e_ms", "waste"]
    assert parse_objectives([]) == DEFAULT_OBJECTIVES


def test_percentiles_of_one_latency_are_two_objectives():
    assert names("ttft_ms_p50", "ttft_ms_p99") == ["ttft_ms_p50", "ttft_ms_p99"]


def test_the_mean_may_be_written_out():
    assert names("tpot_ms_mean", "memory") == ["tpot_ms", "memory"]


def test_an_unknown_name_gets_the_nearest_one():
    with pytest.raises(ConfigurationError, match="no objective named 'e2e_p90'") as caught:
        parse_objectives(["e2e_p90"])
    assert caught.value.hint == "did you mean 'e2e_ms_p90'?"


def test_a_name_like_no_other_gets_the_list():
    with pytest.raises(ConfigurationError) as caught:
        parse_objectives(["beauty"])
    assert "e2e_ms, " in caught.value.hint


def test_acceptance_is_no_objective_and_the_error_says_why():
    with pytest.raises(ConfigurationError, match="falls with every further drafted token") as caught:
        parse_objectives(["acceptance_rate"])
    assert "waste" in caught.value.hint


@pytest.mark.parametrize("latency", ["e2e_ms", "e2e_ms_p90", "tpot_ms", "tpot_ms_p99"])
@pytest.mark.parametrize("flipped", [False, True])
def test_throughput_and_latency_are_one_objective_in_disguise(latency, flipped):
    pair = ["output_tokens_per_s", latency]
    with pytest.raises(ConfigurationError, match="Little's law"):
        parse_objectives(pair[::-1] if flipped else pair)


def test_throughput_goes_with_time_to_first_token():
    assert names("output_tokens_per_s", "ttft_ms") == ["output_tokens_per_s", "ttft_ms"]


def test_an_objective_given_twice_is_refused():
    with pytest.raises(ConfigurationError, match="'e2e_ms' is given twice"):
        parse_objectives(["e2e_ms", "e2e_ms_mean"])


def test_only_throughput_is_maximised():
    assert [one.name for one in OBJECTIVES.values() if one.direction == "maximize"] == ["output_tokens_per_s"]


def test_values_by_name():
    measured = a_measurement(
        a_request("p0", chunks=((0.1, 1), (0.3, 3)), rounds=2, drafted_tokens=6, accepted_tokens=1),
        a_request("p1", chunks=((0.1, 1), (0.5, 5)), rounds=3, drafted_tokens=9, accepted_tokens=2),
    )
    assert values(measured, DEFAULT_OBJECTIVES) == pytest.approx({"e2e_ms": 400, "waste": 12 / 10})


def test_a_missing_counter_is_an_error_that_names_the_reason():
    with pytest.raises(MeasurementError, match="'waste' has no value: the engine does not count drafted tokens"):
        values(a_measurement(a_request()), DEFAULT_OBJECTIVES)


def test_a_missing_counter_that_no_objective_needs_is_no_error():
    assert values(a_measurement(a_request()), parse_objectives(["e2e_ms"])) == pytest.approx({"e2e_ms": 200})


def test_when_all_requests_failed_the_error_says_so():
    with pytest.raises(MeasurementError, match="all 2 requests failed, the first with: broken"):
        values(a_measurement(a_failed_request("p0"), a_failed_request("p1")), DEFAULT_OBJECTIVES)


# Rows as they came from elsewhere: only finite numbers may be told to a study.
ROWS = [(NAN, 10.0), (INF, 10.0), (0.5, -INF), (None, 10.0), (0.5,), ("0.5", "10"), (True, 10.0)]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_what_is_no_finite_number_is_refused(row):
    found = dict(zip(("e2e_ms", "waste"), row, strict=False))
    with pytest.raises(MeasurementError, match="not a finite number"):
        finite_values(found, DEFAULT_OBJECTIVES)


@pytest.mark.parametrize("row", [(np.float32(0.5), np.float64(10.0)), (0.75, 12), (np.int64(1), 2)], ids=str)
def test_numbers_of_every_kind_are_numbers(row):
    checked = finite_values(dict(zip(("e2e_ms", "waste"), row, strict=True)), DEFAULT_OBJECTIVES)
    assert checked == {"e2e_ms": float(row[0]), "waste": float(row[1])}
    json.loads(json.dumps(checked), parse_constant=pytest.fail)


def test_losses_turn_what_is_maximised():
    objectives = parse_objectives(["output_tokens_per_s", "waste"])
    rows = [{"output_tokens_per_s": 30.0, "waste": 1.0}, {"output_tokens_per_s": 20.0, "waste": 0.5}]
    assert losses(rows, objectives).tolist() == [[-30.0, 1.0], [-20.0, 0.5]]
    assert losses([], objectives).shape == (0, 2)
