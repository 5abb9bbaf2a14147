"""What a search tells its observer of trials and time, against stages that take as long as they are told to."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.bench import Bench, a_plan, a_world
from tests.support.simulated import SimulatedEngine
from tuner.dispatch import InlineDispatcher, StageStatus
from tuner.driver import Search
from tuner.errors import WorkerLostError
from tuner.estimate import estimate_stages
from tuner.hardware import read_hardware
from tuner.observer import SilentObserver
from tuner.plan import SearchPlan
from tuner.records import StageKind
from tuner.stopping import Budget, StopKind
from tuner.store import utc_now
from tuner.timetable import SearchOutlook
from tuner.trial import StageTask

TAKES_S = {StageKind.BASELINE: 1000.0, StageKind.TRACE: 300.0, StageKind.MEASURE: 2000.0, StageKind.CERTIFY: 5000.0}
ESTIMATES = {StageKind.BASELINE: 500.0, StageKind.TRACE: 150.0, StageKind.MEASURE: 600.0, StageKind.CERTIFY: 2000.0}
SOON_S = 60.0
"""What the test itself may take."""


class TellingDispatcher(InlineDispatcher):
    """Says that stages took as long as ``TAKES_S`` has it."""

    def poll(self, task: StageTask) -> StageStatus:
        return replace(super().poll(task), ran_s=TAKES_S[task.kind])


class LosingDispatcher(InlineDispatcher):
    """Loses the worker of each stage's first attempt."""

    def poll(self, task: StageTask) -> StageStatus:
        if task.attempt == 0:
            return StageStatus(has_started=True, error=WorkerLostError("the worker is gone"))
        return super().poll(task)


class Attempts(SilentObserver):
    """Keeps which attempt of the baseline began, or ended and whether by an error."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int, bool]] = []

    def stage_began(self, task: StageTask) -> None:
        if task.kind is StageKind.BASELINE:
            self.heard.append(("began", task.attempt, False))

    def stage_ended(self, task: StageTask, status: StageStatus | None) -> None:
        if task.kind is StageKind.BASELINE and status is not None:
            self.heard.append(("ended", task.attempt, status.error is not None))


class Listener(SilentObserver):
    """Keeps how far the search was each time, and the seconds until its end."""

    def __init__(self) -> None:
        self.outlooks: list[SearchOutlook] = []
        self.left_s: list[float | None] = []

    @property
    def counts(self) -> list[tuple[int, int, int]]:
        return [(one.trials, one.most_trials, one.running) for one in self.outlooks]

    def outlook(self, outlook: SearchOutlook) -> None:
        self.outlooks.append(outlook)
        self.left_s.append(None if outlook.ends_at is None else (outlook.ends_at - utc_now()) / timedelta(seconds=1))


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench(a_world())
    bench.dispatcher = TellingDispatcher()
    monkeypatch.setattr("tuner.intervals.RESAMPLES", 199)
    monkeypatch.setattr("tuner.trial.load_engine", lambda _name: SimulatedEngine(bench.world))
    return bench


@pytest.fixture
def estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.lookout.estimate_stages", lambda **_settings: ESTIMATES)


def a_search(bench: Bench, heard: SilentObserver, plan: SearchPlan) -> Search:
    return Search(plan, bench.store, bench.ledger(plan), bench.dispatcher, heard)


@pytest.mark.usefixtures("estimated")
def test_the_end_comes_nearer_with_every_stage(bench: Bench) -> None:
    heard = Listener()
    a_search(bench, heard, a_plan(sampler="random", budget=Budget(max_trials=3))).run()
    assert heard.counts[:3] == [(0, 3, 0), (1, 3, 0), (1, 3, 1)]
    assert heard.counts[-1] == (3, 3, 0)
    assert heard.left_s[0] is None  # a rule of thumb is no ground for a time of day
    # the baseline took twice its estimate, so do the two traces, the two trials and the final comparison
    assert heard.left_s[1] == pytest.approx(2 * (2 * 150 + 2 * 600 + 2000), abs=SOON_S)
    assert heard.left_s[2] == pytest.approx(2 * (2 * 600 + 2000), abs=SOON_S)
    second = heard.counts.index((2, 3, 1))
    assert heard.left_s[second] == pytest.approx(2000 + 2 * 2000, abs=SOON_S)
    assert heard.left_s[-1] == pytest.approx(2 * 2000, abs=SOON_S)
    assert heard.outlooks[-1].expected_s[StageKind.MEASURE] == 2000


@pytest.mark.usefixtures("estimated")
def test_what_the_sampler_leaves_open_limits_what_may_still_come(bench: Bench) -> None:
    bench.world.draft_ms = {"good": 3.0, "bad": 3.0}
    heard = Listener()
    result = a_search(bench, heard, a_plan(epsilon=0.0001, budget=Budget(max_trials=13))).run()
    assert result.stopped.kind is StopKind.NOTHING_WORTH_IT
    mosts = [most for _trials, most, _running in heard.counts]
    assert mosts[2] == 13
    assert mosts[-1] == len(result.trials) < 13
    assert mosts == sorted(mosts, reverse=True)


@pytest.mark.usefixtures("estimated")
def test_a_prediction_ends_with_the_traces(bench: Bench) -> None:
    heard = Listener()
    a_search(bench, heard, a_plan()).predict()
    assert heard.counts == [(0, 0, 0), (1, 1, 0)]
    assert heard.left_s[-1] == pytest.approx(2 * 2 * 150, abs=SOON_S)


@pytest.mark.usefixtures("estimated")
def test_a_search_that_goes_on_knows_what_its_stages_took(bench: Bench) -> None:
    a_search(bench, Listener(), a_plan()).predict()
    heard = Listener()
    a_search(bench, heard, a_plan()).run()
    assert heard.outlooks[0].expected_s[StageKind.TRACE] == 300
    assert heard.left_s[0] == pytest.approx(2 * (5 * 600 + 2000), abs=SOON_S)


def test_without_any_estimate_there_is_no_end_before_all_kinds_have_ended(bench: Bench) -> None:
    heard = Listener()
    a_search(bench, heard, a_plan()).run()
    assert set(heard.left_s) == {None}
    assert heard.outlooks[-1].expected_s == {kind: TAKES_S[kind] for kind in TAKES_S if kind is not StageKind.CERTIFY}


def test_each_attempt_of_a_stage_is_heard_to_begin_and_to_end(bench: Bench) -> None:
    bench.dispatcher = LosingDispatcher()
    heard = Attempts()
    a_search(bench, heard, a_plan()).predict()
    assert heard.heard == [("began", 0, False), ("ended", 0, True), ("began", 1, False), ("ended", 1, False)]


def test_stages_are_estimated_by_the_sizes_of_the_models(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tuner.estimate.load_engine", lambda _name: SimulatedEngine(bench.world))

    def estimate(size: int) -> dict[StageKind, float]:
        (tmp_path / "model.safetensors").write_bytes(b"\0" * size)
        return estimate_stages(
            models=[tmp_path, tmp_path / "absent"],
            engine="simulated",
            workload=a_plan().workload,
            hardware=read_hardware("cpu"),
        )

    small, large = estimate(1_000_000), estimate(50_000_000)
    assert set(small) == {StageKind.BASELINE, StageKind.TRACE, StageKind.MEASURE, StageKind.CERTIFY}
    assert all(0 < small[kind] < large[kind] for kind in small)
    assert small[StageKind.TRACE] < small[StageKind.MEASURE]
    assert estimate(0) == {}
