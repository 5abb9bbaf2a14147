"""What a search says on stderr while it runs, in lines and in bars."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from rich.console import Console, Group

from tests.support.study_results import BASELINE, BROKEN, EAGLE, GOOD, NGRAM
from tests.support.watching import NOON, Clock, a_task
from tuner.cli.bars import BarObserver, StageBars
from tuner.cli.progress import LineObserver, observing
from tuner.cli.words import duration_words, outlook_words, standing_words, trial_words
from tuner.dispatch import StageStatus
from tuner.errors import WorkerLostError
from tuner.records import StageKind
from tuner.stopping import Standing
from tuner.store import TrialState
from tuner.timetable import SearchOutlook

MEASURING = a_task(StageKind.MEASURE, EAGLE)
COMPILING = a_task(StageKind.COMPILE, NGRAM)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lines(clock: Clock) -> LineObserver:
    return LineObserver(clock, clock.now)


def a_standing(**changes: Any) -> Standing:
    promising = {"most_promising": NGRAM, "most_promising_speedup": 1.304, "most_promising_bound": 1.461}
    return Standing(**({"best": EAGLE, "best_speedup": 1.152, "num_open": 3} | promising | changes))


def an_outlook(**changes: Any) -> SearchOutlook:
    known = {
        "trials": 3,
        "most_trials": 6,
        "running": 2,
        "expected_s": {StageKind.MEASURE: 180.0, StageKind.COMPILE: 1200.0},
        "ends_at": NOON + timedelta(hours=2, minutes=32),
    }
    return SearchOutlook(**(known | changes))


# ── words ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_line_of_a_trial_says_what_became_of_it() -> None:
    assert trial_words(BASELINE) == "trial 0, no speculation: 23.4 ms per output token"
    assert trial_words(BROKEN) == "trial 2, shallow k=12: cannot run: 2.0 GiB needed, 1.0 GiB free on cpu"
    assert trial_words(replace(BROKEN, state=TrialState.LOST)) == "trial 2, shallow k=12: lost"


@pytest.mark.parametrize(
    ("standing", "words"),
    [
        (
            a_standing(),
            "best so far: eagle k=3, 1.15×; 3 others could beat it, first ngram k=4: 1.30× expected, 1.46× at most",
        ),
        (
            a_standing(num_open=1),
            "best so far: eagle k=3, 1.15×; 1 other could beat it, first ngram k=4: 1.30× expected, 1.46× at most",
        ),
        (
            a_standing(best=None, best_speedup=1.0, num_unpredicted=6),
            "best so far: no speculation; 3 others could beat it, first ngram k=4: 1.30× expected, 1.46× at most; "
            "6 cannot be predicted",
        ),
        (
            Standing(best=EAGLE, best_speedup=1.152, num_open=0, num_unpredicted=6),
            "best so far: eagle k=3, 1.15×; 6 cannot be predicted",
        ),
        (
            Standing(best=None, best_speedup=1.0, num_open=0),
            "best so far: no speculation; no other is worth a trial",
        ),
    ],
)
def test_the_standing_says_what_is_best_and_what_could_beat_it(standing: Standing, words: str) -> None:
    assert standing_words(standing) == f"  {words}"


@pytest.mark.parametrize(
    ("outlook", "words"),
    [
        (an_outlook(), "trials 3 of at most 6, 2 running, ends by 14:32 at the latest"),
        (an_outlook(running=0), "trials 3 of at most 6, ends by 14:32 at the latest"),
        (an_outlook(ends_at=None), "trials 3 of at most 6, 2 running"),
        (
            an_outlook(ends_at=NOON + timedelta(hours=14)),
            "trials 3 of at most 6, 2 running, ends by Mon 30 Nov, 02:00 at the latest",
        ),
        (an_outlook(ends_at=NOON - timedelta(minutes=1)), "trials 3 of at most 6, 2 running, was to end by 11:59"),
        (an_outlook(trials=1, most_trials=1, running=0), "ends by 14:32 at the latest"),
        (an_outlook(trials=0, most_trials=0, running=0, ends_at=None), ""),
    ],
    ids=range(7),
)
def test_the_outlook_says_how_many_trials_and_when_the_search_ends(outlook: SearchOutlook, words: str) -> None:
    assert outlook_words(outlook, NOON) == words


@pytest.mark.parametrize(("seconds", "words"), [(0, "0:00"), (130.9, "2:10"), (3730, "1:02:10"), (-1, "0:00")])
def test_durations_are_minutes_and_seconds(seconds: float, words: str) -> None:
    assert duration_words(seconds) == words


# ── lines ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_without_a_terminal_there_is_a_line_per_stage_trial_and_notice(capsys: pytest.CaptureFixture[str]) -> None:
    with observing() as observer:
        for task in (
            a_task(StageKind.BASELINE),
            a_task(StageKind.TRACE, EAGLE),
            replace(a_task(StageKind.TRACE, EAGLE), outputs=()),
            a_task(StageKind.COMPILE, EAGLE),
            replace(a_task(StageKind.MEASURE, EAGLE), attempt=1),
            a_task(StageKind.CERTIFY, EAGLE),
        ):
            observer.stage_began(task)
            observer.stage_seen(task, StageStatus(has_started=True, done=1, total=2))
            observer.stage_ended(task, None)
        observer.trial_ended(GOOD)
        observer.standing(Standing(best=EAGLE, best_speedup=1.15, num_open=0))
        observer.notice("every configuration of the space was tried")
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.splitlines() == [
        "measuring no speculation: 2 prompts",
        "replaying eagle along the outputs: 1 prompt",
        "timing eagle",
        "compiling eagle k=3",
        "measuring eagle k=3: 2 prompts, attempt 2",
        "certifying eagle k=3: 2 prompts",
        "trial 1, eagle k=3: 20.1 ms per output token, 1.15 times the speed of no speculation (1.18 predicted)",
        "  best so far: eagle k=3, 1.15×; no other is worth a trial",
        "note: every configuration of the space was tried",
    ]


def test_at_most_one_line_a_minute_says_what_runs_for_long(
    lines: LineObserver, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    lines.outlook(an_outlook(ends_at=None))
    lines.stage_began(MEASURING)
    lines.stage_began(COMPILING)
    capsys.readouterr()
    for seconds in range(0, 150, 10):
        clock.seconds = 1000.0 + seconds
        here = StageStatus(has_started=True, ran_s=seconds, node=platform.node(), done=seconds // 75, total=2)
        lines.stage_seen(MEASURING, here)
        lines.stage_seen(COMPILING, StageStatus(has_started=True, ran_s=seconds + 700, node="farm-3"))
    assert capsys.readouterr().err.splitlines() == [
        "  running: measuring eagle k=3 1:00 of ~3:00, 0 of 2 prompts; compiling ngram k=4 12:40 of ~20:00, on farm-3",
        "  running: measuring eagle k=3 2:00 of ~3:00, 1 of 2 prompts; compiling ngram k=4 13:40 of ~20:00, on farm-3",
    ]


def test_of_many_long_stages_four_are_named(
    lines: LineObserver, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    many = [replace(MEASURING, key=str(number)) for number in range(6)]
    for task in many:
        lines.stage_seen(task, StageStatus(has_started=True, ran_s=90))
    clock.seconds += 60
    lines.stage_seen(many[0], StageStatus(has_started=True, ran_s=150))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.count("measuring eagle k=3 2:30") == 4
    assert line.endswith("; 2 more")


def test_a_stage_that_waits_says_so_after_ten_seconds_and_every_five_minutes(
    lines: LineObserver, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    lines.stage_began(MEASURING)
    capsys.readouterr()
    for seconds in range(0, 620, 5):
        clock.seconds = 1000.0 + seconds
        lines.stage_seen(
            MEASURING, StageStatus(waiting_for="8 neuron_cores; free:\n  trn-7: 4" if seconds < 600 else None)
        )
    assert capsys.readouterr().err.splitlines() == [
        "measuring eagle k=3 has waited 0:10 for 8 neuron_cores; free: trn-7: 4",
        "measuring eagle k=3 has waited 5:10 for 8 neuron_cores; free: trn-7: 4",
        "measuring eagle k=3 has waited 10:10",
    ]


def test_the_end_is_told_after_the_baseline_the_traces_and_each_trial(
    lines: LineObserver, capsys: pytest.CaptureFixture[str]
) -> None:
    lines.outlook(an_outlook(trials=0, running=0, ends_at=None))
    lines.outlook(an_outlook(trials=1, running=0))
    for trials in (1, 1, 2):  # the second of the same is silent
        lines.outlook(an_outlook(trials=trials, running=1))
    assert capsys.readouterr().err.splitlines() == [
        "  trials 1 of at most 6, ends by 14:32 at the latest",
        "  trials 1 of at most 6, 1 running, ends by 14:32 at the latest",
        "  trials 2 of at most 6, 1 running, ends by 14:32 at the latest",
    ]


# ── bars ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def written() -> StringIO:
    return StringIO()


@pytest.fixture
def bars(clock: Clock, written: StringIO) -> Iterator[StageBars]:
    console = Console(
        file=written, force_terminal=True, width=110, height=8, color_system=None, highlight=False, markup=False
    )
    with StageBars(console, clock, clock.now, auto_refresh=False) as bars:
        yield bars


def drawn(bars: StageBars) -> list[str]:
    """The lines of one drawing, without the spinner and the bars."""
    paper = Console(file=StringIO(), width=bars.console.width, color_system=None, highlight=False, markup=False)
    paper.print(Group(*bars.get_renderables()))
    written = paper.file.getvalue()  # type: ignore[attr-defined]
    return [words for line in written.splitlines() if (words := " ".join(re.sub(r"[^ -~]+", " ", line).split()))]


def test_in_a_terminal_trials_standings_and_notices_stay_above_the_bars(bars: StageBars, written: StringIO) -> None:
    observer = BarObserver(bars)
    observer.trial_ended(GOOD)
    observer.standing(a_standing())
    observer.notice("[bold] is no markup")
    shown = written.getvalue()
    assert "trial 1, eagle k=3: 20.1 ms per output token" in shown
    assert "3 others could beat it" in shown
    assert "note: [bold] is no markup" in shown


def test_a_bar_has_prompts_time_and_the_machine_where_it_is_another_one(bars: StageBars, clock: Clock) -> None:
    observer = BarObserver(bars)
    observer.outlook(an_outlook())
    observer.stage_began(MEASURING)
    observer.stage_seen(MEASURING, StageStatus(has_started=True, ran_s=120, node="trn-7", done=1, total=2))
    clock.seconds += 10
    assert drawn(bars) == [
        "measuring eagle k=3 1/2 prompts, 2:10 of ~3:00, on trn-7",
        "trials 3 of at most 6, 2 running, ends by 14:32 at the latest",
    ]
    observer.stage_ended(MEASURING, StageStatus(error=WorkerLostError("the worker died")))
    assert drawn(bars) == ["trials 3 of at most 6, 2 running, ends by 14:32 at the latest"]


def test_a_stage_that_runs_in_this_process_is_timed_from_its_beginning(bars: StageBars, clock: Clock) -> None:
    BarObserver(bars).stage_began(COMPILING)
    clock.seconds += 65
    assert drawn(bars) == ["compiling ngram k=4 1:05"]


def test_stages_that_wait_come_last_and_say_for_what(bars: StageBars, clock: Clock) -> None:
    observer = BarObserver(bars)
    for task in (COMPILING, MEASURING):
        observer.stage_began(task)
    observer.stage_seen(COMPILING, StageStatus(waiting_for="a stage\n  before it"))
    observer.stage_seen(MEASURING, StageStatus(has_started=True))
    clock.seconds += 30
    assert drawn(bars) == [
        "measuring eagle k=3 0/2 prompts, 0:30",
        "compiling ngram k=4 0:30 waiting for a stage before it",
    ]


def test_more_stages_than_there_is_room_for_are_counted(bars: StageBars) -> None:
    observer = BarObserver(bars)
    observer.outlook(an_outlook())
    for number in range(9):
        observer.stage_began(replace(MEASURING, key=str(number)))
    assert drawn(bars)[5:] == ["4 more stages", "trials 3 of at most 6, 2 running, ends by 14:32 at the latest"]
