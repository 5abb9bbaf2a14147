"""What stages are expected to take, what may still come, and when a search ends at the latest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from tuner.records import StageKind
from tuner.stopping import Budget, Spent
from tuner.store import StageRecord, StageState
from tuner.timetable import Part, Underway, ends_in_s, expected_seconds, most_to_come

BEGAN_AT = datetime(2025, 6, 1, 12, 0, tzinfo=UTC)
ESTIMATES = {
    StageKind.BASELINE: 100.0,
    StageKind.TRACE: 40.0,
    StageKind.COMPILE: 300.0,
    StageKind.MEASURE: 120.0,
    StageKind.CERTIFY: 400.0,
}
TAKES = {StageKind.COMPILE: 1200.0, StageKind.MEASURE: 180.0, StageKind.CERTIFY: 600.0}


def ended(kind: StageKind, seconds: float, state: StageState = StageState.DONE) -> StageRecord:
    return StageRecord(
        study_name="s",
        kind=kind,
        key=f"{kind} {seconds}",
        state=state,
        started_at=BEGAN_AT,
        ended_at=BEGAN_AT + timedelta(seconds=seconds),
    )


def test_before_anything_ended_stages_take_what_was_estimated() -> None:
    assert expected_seconds(ESTIMATES, []) == ESTIMATES


def test_a_stage_takes_the_median_of_those_of_its_kind() -> None:
    rows = [ended(StageKind.MEASURE, seconds) for seconds in (100, 10, 40)]
    assert expected_seconds({}, rows) == {StageKind.MEASURE: 40}


def test_estimates_are_corrected_by_how_right_those_of_ended_kinds_were() -> None:
    rows = [ended(StageKind.BASELINE, 50), ended(StageKind.TRACE, 10)]
    expected = expected_seconds(ESTIMATES, rows)
    assert expected[StageKind.BASELINE] == 50
    assert expected[StageKind.MEASURE] == pytest.approx(120 * (50 / 100 + 10 / 40) / 2)
    assert expected[StageKind.CERTIFY] == pytest.approx(150)


def test_compiles_and_the_other_kinds_say_nothing_of_each_other() -> None:
    of_others = expected_seconds(ESTIMATES, [ended(StageKind.BASELINE, 50)])
    assert of_others[StageKind.COMPILE] == 300
    of_compiles = expected_seconds(ESTIMATES, [ended(StageKind.COMPILE, 30)])
    assert of_compiles == {**ESTIMATES, StageKind.COMPILE: 30}


def test_stages_that_failed_do_not_count() -> None:
    assert expected_seconds(ESTIMATES, [ended(StageKind.MEASURE, 3, StageState.FAILED)]) == ESTIMATES


@pytest.mark.parametrize(
    ("stage", "left_s"),
    [
        (Underway(kind=StageKind.MEASURE), 180),
        (Underway(kind=StageKind.MEASURE, ran_s=30), 150),
        (Underway(kind=StageKind.MEASURE, ran_s=30, done=1, total=12), 150),
        (Underway(kind=StageKind.MEASURE, ran_s=200), 0),
        (Underway(kind=StageKind.MEASURE, ran_s=200, done=8, total=12), 100),
    ],
)
def test_what_is_left_of_a_stage(stage: Underway, left_s: float) -> None:
    assert stage.left_s(180) == pytest.approx(left_s)


def spent(**changes: float) -> Spent:
    return Spent(**({"trials": 3, "compiles": 3, "seconds": 600.0} | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("budget", "in_flight", "most"),
    [
        (Budget(), 2, 20),
        (Budget(max_trials=6), 2, 3),
        (Budget(max_trials=3), 2, 0),
        (Budget(max_trials=2), 0, 0),
        (Budget(max_trials=6, max_compiles=4), 2, 1),
        (Budget(max_minutes=20), 2, 5),  # 600 s are left: trials that end at 100 … 500 s let another begin
        (Budget(max_minutes=20), 0, 7),  # and two begin at once
        (Budget(max_minutes=10), 1, 0),
        (Budget(max_cost=2, price_per_hour=6), 2, 5),
        (Budget(max_cost=2), 2, 20),
    ],
)
def test_what_may_still_come_is_limited_by_what_is_left_to_use(budget: Budget, in_flight: int, most: int) -> None:
    assert most_to_come(budget, spent(), untried=20, in_flight=in_flight, slots=2, trial_s=100) == most


def test_minutes_limit_nothing_while_nobody_knows_how_long_a_trial_takes() -> None:
    assert most_to_come(Budget(max_minutes=1), spent(), untried=20, in_flight=0, slots=1, trial_s=None) == 20


def a_search(
    to_begin: int,
    underway: Sequence[Underway] = (),
    *,
    slots: int = 1,
    lanes: Mapping[StageKind, int] | None = None,
    has_compiles: bool = False,
    takes: Mapping[StageKind, float] = TAKES,
) -> float | None:
    parts = [
        Part(kind=StageKind.MEASURE, to_begin=to_begin, slots=slots, has_compiles=has_compiles),
        Part(kind=StageKind.CERTIFY, to_begin=1),
    ]
    return ends_in_s(parts, underway, lanes or {}, takes)


def test_trials_and_the_final_comparison_come_one_after_the_other() -> None:
    running = Underway(kind=StageKind.MEASURE, ran_s=80)
    assert a_search(2, [running]) == 100 + 2 * 180 + 600


def test_trials_share_the_slots() -> None:
    lanes = {StageKind.MEASURE: 2}
    assert a_search(3, slots=2, lanes=lanes) == 2 * 180 + 600
    running = [Underway(kind=StageKind.MEASURE, ran_s=seconds) for seconds in (80, 170)]
    assert a_search(1, running, slots=2, lanes=lanes) == 10 + 180 + 600


def test_few_trials_in_flight_leave_machines_idle() -> None:
    assert a_search(4, slots=1, lanes={StageKind.MEASURE: 4}) == 4 * 180 + 600


def test_measurements_wait_for_their_compiles_and_compiles_for_a_machine() -> None:
    lanes = {StageKind.MEASURE: 1, StageKind.COMPILE: 1}
    assert a_search(3, slots=2, lanes=lanes, has_compiles=True) == 3 * 1200 + 180 + 600
    lanes = {StageKind.MEASURE: 1, StageKind.COMPILE: 3}
    assert a_search(3, slots=4, lanes=lanes, has_compiles=True) == 1200 + 3 * 180 + 600


def test_a_trial_that_is_being_compiled_is_measured_then() -> None:
    running = [Underway(kind=StageKind.COMPILE, ran_s=1100), Underway(kind=StageKind.MEASURE, ran_s=30)]
    assert a_search(0, running, slots=2, has_compiles=True) == 150 + 180 + 600


def test_traces_are_made_side_by_side_before_anything_is_tried() -> None:
    parts = [
        Part(kind=StageKind.BASELINE, to_begin=0),
        Part(kind=StageKind.TRACE, to_begin=3, slots=3),
        Part(kind=StageKind.MEASURE, to_begin=2),
    ]
    running = [Underway(kind=StageKind.BASELINE, ran_s=90)]
    assert ends_in_s(parts, running, {StageKind.TRACE: 2}, ESTIMATES) == 10 + 2 * 40 + 2 * 120


def test_where_nothing_is_known_of_a_kind_of_stage_there_is_no_end() -> None:
    assert a_search(1, takes={StageKind.MEASURE: 180.0}) is None
    assert a_search(0, takes={StageKind.CERTIFY: 600.0}) == 600


def test_at_the_end_nothing_is_left() -> None:
    assert ends_in_s([Part(kind=StageKind.CERTIFY, to_begin=0)], [], {}, {}) == 0
