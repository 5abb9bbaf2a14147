from __future__ import annotations

import json

import numpy as np
import pytest

from tests.support.observed import a_failed_request, a_measurement, a_request
from tuner.errors import ConfigurationError, MeasurementError
from tuner.objective import (
    DEFAULT_OBJECTIVES,
    OBJECTIVES,
    at_load,
    deciding,
    figures_at,
    finite_values,
    further_loads,
    losses,
    parse_objectives,
    values,
)

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


@pytest.mark.parametrize(
    "pair", [("cost", "output_tokens_per_s"), ("cost", "e2e_ms_p90"), ("cost@4", "tpot_ms@4"), ("cost@4", "e2e_ms")]
)
def test_a_cost_is_latency_or_throughput_of_the_same_load_in_disguise(pair):
    with pytest.raises(ConfigurationError, match="one objective in disguise"):
        parse_objectives(pair, concurrency=4, price_per_hour=1.0)


# ── loads ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_number_after_the_name_is_that_of_requests_in_flight():
    alone, together = parse_objectives(["e2e_ms_mean@1", "output_tokens_per_s@8"])
    assert (alone.name, alone.column, alone.load) == ("e2e_ms@1", "e2e_ms_mean", 1)
    assert (together.name, together.metric, together.load) == ("output_tokens_per_s@8", "output_tokens_per_s", 8)
    assert further_loads([together, alone, *DEFAULT_OBJECTIVES]) == (1, 8)


def test_the_workloads_own_number_is_no_further_load():
    alone, together = parse_objectives(["e2e_ms@1", "output_tokens_per_s@8"], concurrency=1)
    assert (alone.name, alone.load) == ("e2e_ms@1", None)
    assert further_loads([alone, together]) == (8,)
    with pytest.raises(ConfigurationError, match="'e2e_ms@1' is given twice, as 'e2e_ms'"):
        parse_objectives(["e2e_ms", "e2e_ms@1"], concurrency=1)


def test_latency_goes_with_throughput_at_another_load():
    assert names("e2e_ms@1", "output_tokens_per_s@8") == ["e2e_ms@1", "output_tokens_per_s@8"]
    with pytest.raises(ConfigurationError, match="Little's law"):
        parse_objectives(["e2e_ms@8", "output_tokens_per_s@8"])


@pytest.mark.parametrize("number", ["0", "65", "-1", "1.5", "many", "", "²", "1@2"])
def test_a_load_is_a_whole_number_up_to_64(number):
    with pytest.raises(ConfigurationError, match="is no number of requests in flight") as caught:
        parse_objectives([f"e2e_ms@{number}"])
    assert caught.value.hint == "write a whole number from 1 to 64, e.g. e2e_ms@8"


@pytest.mark.parametrize("name", ["waste", "memory"])
def test_what_does_not_depend_on_the_load_takes_none(name):
    with pytest.raises(ConfigurationError, match=f"{name} does not depend on the requests in flight") as caught:
        parse_objectives([f"{name}@4"])
    assert caught.value.hint == f"write {name}, without @4"


def test_an_unknown_name_with_a_load_gets_the_nearest_one_too():
    with pytest.raises(ConfigurationError, match="no objective named 'e2e_sm'") as caught:
        parse_objectives(["e2e_sm@4"])
    assert caught.value.hint == "did you mean 'e2e_ms'?"


def test_columns_of_a_load_carry_its_number():
    assert (at_load("tpot_ms_mean", None), at_load("tpot_ms_mean", 4)) == ("tpot_ms_mean", "tpot_ms_mean@4")


def test_figures_of_a_load_stand_under_their_plain_names():
    columns = {"speedup": 2.0, "speedup@4": 1.5, "speedup@14": 1.1, "identical_share": 1.0}
    assert figures_at(columns, 4) == columns | {"speedup": 1.5}
    assert figures_at(columns, None) == columns


def test_each_objective_takes_the_measurement_of_its_load():
    fast, slow = (a_measurement(a_request(chunks=((0.1, 1), (0.1 * end, 1)))) for end in (2, 4))
    objectives = parse_objectives(["e2e_ms", "e2e_ms@4"])
    assert values(fast, objectives, {4: slow}) == pytest.approx({"e2e_ms": 200, "e2e_ms@4": 400})


# ── cost ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_cost_without_a_price_is_refused():
    with pytest.raises(ConfigurationError, match="objective 'cost@4' needs a price") as caught:
        parse_objectives(["cost@4"])
    assert "--price-per-hour" in caught.value.hint


def test_a_cost_is_the_price_of_a_million_tokens():
    two_tokens_a_second = a_measurement(a_request())
    objectives = parse_objectives(["cost", "waste"], price_per_hour=7.2)
    with_counters = a_measurement(a_request(drafted_tokens=0, accepted_tokens=0))
    assert values(with_counters, objectives)["cost"] == pytest.approx(1000.0)
    assert values(two_tokens_a_second, objectives[:1]) == pytest.approx({"cost": 1000.0})


def test_the_price_belongs_to_costs_alone():
    prices = [one.price_per_hour for one in parse_objectives(["cost@4", "e2e_ms@1"], price_per_hour=1.5)]
    assert prices == [1.5, None]


# ── what decides ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("written", "decides"),
    [
        ([], "e2e_ms"),
        (["waste", "tpot_ms_p90"], "tpot_ms_p90"),
        (["ttft_ms", "output_tokens_per_s@8", "e2e_ms@1"], "output_tokens_per_s@8"),
        (["memory", "waste", "ttft_ms@4"], "e2e_ms"),
    ],
)
def test_the_first_objective_about_speed_decides_what_is_deployed(written, decides):
    assert deciding(parse_objectives(written)).name == decides


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
