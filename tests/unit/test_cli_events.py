"""What a search writes to stderr with ``--json`` while it runs: an object per line, as docs/events.md says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from tests.support.study_results import BROKEN, EAGLE, GOOD, NGRAM
from tests.support.watching import NOON, Clock, a_task
from tuner.cli.events import EventObserver
from tuner.cli.progress import observing
from tuner.dispatch import StageStatus
from tuner.errors import OutOfDeviceMemoryError, WorkerLostError
from tuner.records import StageKind
from tuner.stopping import Standing
from tuner.timetable import SearchOutlook

MEASURING = replace(a_task(StageKind.MEASURE, EAGLE), attempt=1)
NAMED = {"kind": "measure", "key": "key of eagle k=3", "label": "eagle k=3", "attempt": 1}
AT_NOON = "2026-11-29T12:00:00.000+00:00"
OUTLOOK = SearchOutlook(
    trials=3,
    most_trials=6,
    running=2,
    expected_s={StageKind.MEASURE: 180.0},
    ends_at=NOON + timedelta(hours=2, minutes=32),
)
STANDING = Standing(
    best=EAGLE,
    best_speedup=1.15,
    num_open=2,
    most_promising=NGRAM,
    most_promising_speedup=1.3,
    most_promising_bound=float("inf"),
)
Event = dict[str, Any]


class Events(EventObserver):
    """Writes into memory, by a clock that stands."""

    def __init__(self) -> None:
        self.written, self.clock = StringIO(), Clock()
        super().__init__(self.written, self.clock, self.clock.now)

    @property
    def all(self) -> list[Event]:
        return [json.loads(line) for line in self.written.getvalue().splitlines()]

    @property
    def last(self) -> Event:
        return self.all[-1]


@pytest.fixture
def events() -> Events:
    return Events()


def test_a_stage_begins_with_what_is_expected_of_it(events: Events) -> None:
    events.stage_began(MEASURING)
    assert events.last == {
        "event": "stage_began", "at": AT_NOON, **NAMED, "total": 2, "expected_s": None,
    }  # fmt: skip
    events.outlook(OUTLOOK)
    events.stage_began(MEASURING)
    assert events.last["expected_s"] == 180


def test_the_progress_of_a_stage_is_told_at_most_every_five_seconds(events: Events) -> None:
    events.outlook(OUTLOOK)
    events.stage_began(MEASURING)
    for tenths in range(0, 120, 5):
        events.clock.seconds = 1000.0 + tenths / 10
        events.stage_seen(MEASURING, StageStatus(has_started=True, ran_s=tenths / 10, node="trn-7", done=1, total=2))
    told = [event for event in events.all if event["event"] == "stage_progress"]
    assert [event["elapsed_s"] for event in told] == [0, 5, 10]
    assert told[1] == {
        "event": "stage_progress", "at": "2026-11-29T12:00:05.000+00:00", **NAMED,
        "node": "trn-7", "elapsed_s": 5, "expected_s": 180, "done": 1, "total": 2,
    }  # fmt: skip


def test_a_stage_that_waits_is_told_with_what_it_waits_for(events: Events) -> None:
    events.stage_began(MEASURING)
    for seconds in range(0, 400, 5):
        events.clock.seconds = 1000.0 + seconds
        awaited = "a stage before it" if seconds < 20 else "1 CPU (0 free)"
        events.stage_seen(MEASURING, StageStatus(waiting_for=awaited))
    told = [event for event in events.all if event["event"] == "stage_waiting"]
    assert [(event["waited_s"], event["waiting_for"]) for event in told] == [
        (10, "a stage before it"),
        (20, "1 CPU (0 free)"),
        (320, "1 CPU (0 free)"),
    ]
    assert {name: told[0][name] for name in NAMED} == NAMED


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (StageStatus(has_started=True, ran_s=12.3456, node="trn-7", result=b"{}"), "done"),
        (StageStatus(has_started=True, ran_s=12.3456, node="trn-7", error=OutOfDeviceMemoryError("x", "y")), "failed"),
        (StageStatus(has_started=True, ran_s=12.3456, node="trn-7", error=WorkerLostError("x", "y")), "lost"),
    ],
    ids=["done", "failed", "lost"],
)
def test_a_stage_ends_with_how_it_went(events: Events, status: StageStatus, outcome: str) -> None:
    events.stage_began(MEASURING)
    events.stage_ended(MEASURING, status)
    error = status.error and {"type": type(status.error).__name__, "message": "x", "hint": "y"}
    assert events.last == {
        "event": "stage_ended", "at": AT_NOON, **NAMED,
        "outcome": outcome, "node": "trn-7", "elapsed_s": 12.346, "error": error,
    }  # fmt: skip


def test_a_stage_that_was_given_up_has_no_end_to_tell(events: Events) -> None:
    events.stage_ended(MEASURING, None)
    assert (events.last["outcome"], events.last["node"], events.last["elapsed_s"]) == ("abandoned", None, None)


def test_a_trial_is_told_as_the_final_document_has_it(events: Events) -> None:
    events.trial_ended(GOOD)
    told = events.last
    assert (told["event"], told["trial"], told["configuration"], told["state"]) == (
        "trial_ended", 1, "eagle k=3", "complete",
    )  # fmt: skip
    assert told["metrics"]["speedup"] == GOOD.metrics["speedup"]
    events.trial_ended(BROKEN)
    assert (events.last["state"], events.last["error_type"]) == ("infeasible", BROKEN.error_type)


def test_the_standing_names_configurations_and_has_finite_numbers(events: Events) -> None:
    events.standing(STANDING)
    assert events.last == {
        "event": "standing", "at": AT_NOON, "best": "eagle k=3", "best_speedup": 1.15, "num_open": 2,
        "most_promising": "ngram k=4", "most_promising_speedup": 1.3, "most_promising_bound": None,
        "num_unpredicted": 0,
    }  # fmt: skip


def test_the_outlook_has_the_end_at_the_latest(events: Events) -> None:
    events.outlook(OUTLOOK)
    assert events.last == {
        "event": "outlook", "at": AT_NOON, "trials": 3, "most_trials": 6, "running": 2,
        "expected_s": {"measure": 180}, "ends_at": "2026-11-29T14:32:00.000+00:00",
    }  # fmt: skip
    events.outlook(replace(OUTLOOK, ends_at=None))
    assert events.last["ends_at"] is None


def test_a_notice_is_one_line_and_hides_passwords(events: Events) -> None:
    events.notice("postgresql://ann:s3cret@db/tuner\nis away")
    (line,) = events.written.getvalue().splitlines()
    assert json.loads(line)["text"] == "postgresql://ann:***@db/tuner\nis away"


def test_what_others_write_meanwhile_becomes_notices(capsys: pytest.CaptureFixture[str]) -> None:
    with observing(as_json=True) as observer:
        sys.stderr.write("fetching mo")
        sys.stderr.write("del …\n\nhalf a line")
        observer.notice("known")
    sys.stderr.write("after\n")
    *lines, last = capsys.readouterr().err.splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["fetching model …", "known", "half a line"]
    assert last == "after"


def test_processes_that_inherit_stderr_can_still_be_started() -> None:
    with observing(as_json=True):
        subprocess.run([sys.executable, "-c", ""], stderr=sys.stderr, check=True)


def test_every_event_and_field_is_documented(events: Events) -> None:
    events.stage_began(MEASURING)
    events.stage_seen(MEASURING, StageStatus(has_started=True))
    events.clock.seconds += 20
    events.stage_seen(MEASURING, StageStatus(waiting_for="a node"))
    events.stage_ended(MEASURING, StageStatus(error=WorkerLostError("x", "y")))
    events.trial_ended(GOOD)
    events.standing(STANDING)
    events.outlook(OUTLOOK)
    events.notice("x")
    page = (Path(__file__).parents[2] / "docs" / "events.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL))
    assert set(sections) == {event["event"] for event in events.all}
    assert len(sections) == 8
    common = page.partition("\n### ")[0]
    for event in events.all:
        for name in event:
            assert f"`{name}`" in common + sections[event["event"]], (event["event"], name)
