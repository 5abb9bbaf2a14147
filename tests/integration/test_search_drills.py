"""Searches as people run them, with whatever can die killed in the middle: nothing is lost and nothing runs twice."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.drill_projects import WAIT_S, DrillProject
from tests.support.drills import leftovers, read_journal
from tests.support.postgres import running_postgres
from tests.support.standing_ray import StandingRay, standing_ray
from tuner.store import StageState, TrialState

pytestmark = pytest.mark.slow

SLOW = {"compile_s": 1.0, "request_s": 0.4}
"""Long enough to be killed in the middle."""


@pytest.fixture
def project(tmp_path: Path) -> DrillProject:
    return DrillProject(tmp_path)


@pytest.fixture(scope="module")
def ray() -> Iterator[StandingRay]:
    with standing_ray(num_cpus=2) as cluster:
        yield cluster


def wait_until(is_so: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not is_so():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Its exit code and what it wrote."""
    output, errors = process.communicate(timeout=WAIT_S)
    return process.returncode, output, errors


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def is_measuring(project: DrillProject) -> bool:
    """Whether a configuration is being measured."""
    return any(one.drafted_tokens for one in read_journal(project.journal, "load") if ":measure:" in one.stage)


def assert_ended_well(project: DrillProject) -> None:
    rows = project.rows()
    assert sum(one.duplicate_of is None for one in rows) == project.trials
    assert all(one.state is TrialState.COMPLETE for one in rows), rows
    assert all(one.state is StageState.DONE for one in project.stages().values())


def assert_nothing_left(project: DrillProject, timeout_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while (left := leftovers(DRILL_JOURNAL=str(project.journal))) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert left == []


# ── child processes of this machine ───────────────────────────────────────────────────────────────────────────────


def test_a_search_in_child_processes_runs_each_stage_once_and_leaves_nothing(project: DrillProject) -> None:
    document = project.finish("--dispatch", "local")
    assert document["verdict"]
    assert_ended_well(project)
    assert {len(pids) for pids in project.starts().values()} == {1}
    assert_nothing_left(project)


def test_a_killed_search_takes_its_child_processes_along_and_goes_on(project: DrillProject) -> None:
    with project.start("--dispatch", "local", settings=SLOW) as process:
        wait_until(lambda: is_measuring(project), process)
        kill(process)
    assert_nothing_left(project)
    done = {key for key, one in project.stages().items() if one.state is StageState.DONE}
    before = project.starts()
    project.finish("--dispatch", "local")
    assert_ended_well(project)
    after = project.starts()
    repeated = {stage for stage in before if len(after[stage]) > len(before[stage])}
    assert not [stage for stage in repeated if any(key[1] in stage for key in done)]


def test_ctrl_c_once_waits_for_what_runs_and_says_how_to_go_on(project: DrillProject) -> None:
    with project.start("--dispatch", "local", settings=SLOW) as process:
        wait_until(lambda: is_measuring(project), process)
        process.send_signal(signal.SIGINT)
        code, output, errors = ended(process)
    assert (code, output) == (130, "")
    assert "goes on from there" in errors
    assert "Traceback" not in errors
    assert_nothing_left(project)
    assert any(kind == "measure" and one.state is StageState.DONE for (kind, _), one in project.stages().items())
    project.finish("--dispatch", "local")
    assert_ended_well(project)
    assert {len(pids) for pids in project.starts().values()} == {1}


def test_ctrl_c_twice_ends_at_once_and_loses_nothing(project: DrillProject) -> None:
    with project.start("--dispatch", "local", settings={**SLOW, "request_s": 20}) as process:
        wait_until(lambda: bool(read_journal(project.journal, "load")), process)
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        began_s = time.monotonic()
        process.send_signal(signal.SIGINT)
        code, _, errors = ended(process)
    assert code == 130, errors
    assert time.monotonic() - began_s < 15
    assert_nothing_left(project)
    project.finish("--dispatch", "local")
    assert_ended_well(project)


def test_a_cancelled_search_ends_its_stages_and_goes_on_when_it_is_asked_to(project: DrillProject) -> None:
    with project.start("--dispatch", "local", settings={**SLOW, "request_s": 20}) as process:
        wait_until(lambda: bool(read_journal(project.journal, "load")), process)
        cancel = [sys.executable, "-m", "tuner", "cancel", "drill", "--storage", project.url]
        done = subprocess.run(cancel, capture_output=True, text=True, check=False)
        code, _, errors = ended(process)
    assert done.returncode == 0, done.stderr
    assert code == 130, errors
    assert_nothing_left(project)
    project.finish("--dispatch", "local")
    assert_ended_well(project)


def test_what_does_not_compile_is_told_once_and_remembered_by_other_studies(project: DrillProject) -> None:
    faults = {"faults": "compile:2=fail"}
    project.finish("--dispatch", "local", settings=faults)
    (failed,) = [one for one in project.rows() if one.state is TrialState.INFEASIBLE]
    assert failed.speculation.label == "ngram k=2"
    compiles = len(read_journal(project.journal, "compile"))
    project.finish("--dispatch", "local", name="another", settings=faults)
    assert len(read_journal(project.journal, "compile")) == compiles
    (remembered,) = [one for one in project.rows("another") if one.state is TrialState.INFEASIBLE]
    assert "study 'drill'" in (remembered.error or "")
    project.finish("--dispatch", "local", "--retry-failed", name="another")
    assert project.rows("another")[-1].state is TrialState.COMPLETE


def test_a_measurement_that_hangs_in_grandchildren_is_ended_at_its_deadline(project: DrillProject) -> None:
    project.finish("--dispatch", "local", "--stage-deadline", "6", settings={"faults": "run:3=hang_below"})
    (ended_early,) = [one for one in project.rows() if one.state is TrialState.INFEASIBLE]
    assert ended_early.error_type == "StageTimeoutError"
    assert_nothing_left(project)


def test_a_crash_of_the_engine_is_one_configurations_fault_and_its_log_is_kept(project: DrillProject) -> None:
    project.finish("--dispatch", "local", settings={"faults": "run:3=segfault"})
    (crashed,) = [one for one in project.rows() if one.state is TrialState.INFEASIBLE]
    assert crashed.error_type == "EngineCrashedError"
    command = [sys.executable, "-m", "tuner", "logs", str(crashed.number), "--study", "drill", "--storage", project.url]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "about to read address 0" in shown.stdout


def test_a_bug_in_a_stage_ends_the_search_as_ours(project: DrillProject) -> None:
    with project.start("--dispatch", "local", settings={"faults": "run:*=bug"}) as process:
        code, _, errors = ended(process)
    assert code == 70
    assert "a bug of the drill" in errors
    assert_nothing_left(project)


def test_a_restarted_postgresql_stops_no_search(tmp_path: Path) -> None:
    with running_postgres() as server, server.database() as url:
        project = DrillProject(tmp_path, url)
        with project.start("--dispatch", "local", settings=SLOW) as process:
            wait_until(lambda: is_measuring(project), process)
            server.restart()
            code, output, errors = ended(process)
        assert code == 0, errors
        assert json.loads(output)["verdict"]
        assert_ended_well(project)
        assert {len(pids) for pids in project.starts().values()} == {1}


# ── a standing cluster ────────────────────────────────────────────────────────────────────────────────────────────


def test_stages_of_a_killed_driver_go_on_and_the_next_driver_collects_them(
    project: DrillProject, ray: StandingRay
) -> None:
    with project.start("--ray-address", ray.address, settings=SLOW) as process:
        wait_until(lambda: is_measuring(project), process)
        kill(process)
    running = {one.key for one in project.stages().values() if one.state is StageState.RUNNING}
    assert running
    project.finish("--ray-address", ray.address, settings=SLOW)
    assert_ended_well(project)
    assert {len(pids) for pids in project.starts().values()} == {1}
    assert_nothing_left(project)


def test_two_studies_at_once_compile_what_they_share_once(project: DrillProject, ray: StandingRay) -> None:
    names = ("one", "two")
    searches = [project.start("--ray-address", ray.address, name=name, settings=SLOW) for name in names]
    codes = [ended(process) for process in searches]
    assert [code for code, _, _ in codes] == [0, 0], codes
    compiles = [stage for stage in project.starts() if stage.startswith("compile:")]
    assert len(compiles) == len({one.speculation.key for name in names for one in project.rows(name)})
    assert {len(project.starts()[stage]) for stage in compiles} == {1}


def test_a_search_without_its_driver_can_be_cancelled(project: DrillProject, ray: StandingRay) -> None:
    with project.start("--ray-address", ray.address, settings={"request_s": 30}) as process:
        wait_until(lambda: bool(read_journal(project.journal, "load")), process)
        kill(process)
    assert leftovers(DRILL_JOURNAL=str(project.journal))
    cancel = [sys.executable, "-m", "tuner", "cancel", "drill", "--storage", project.url]
    subprocess.run(cancel, capture_output=True, text=True, check=True)
    assert_nothing_left(project)


def test_a_lost_cluster_loses_only_what_ran(project: DrillProject) -> None:
    with standing_ray(num_cpus=2) as cluster:
        with project.start("--ray-address", cluster.address, settings=SLOW) as process:
            wait_until(lambda: is_measuring(project), process)
            done = {key for key, one in project.stages().items() if one.state is StageState.DONE}
            cluster.kill()
            code, _, errors = ended(process)
        assert code == 5, errors
        assert "Traceback" not in errors
    assert_nothing_left(project)
    before = project.starts()
    with standing_ray(num_cpus=2) as cluster:
        project.finish("--ray-address", cluster.address)
    assert_ended_well(project)
    repeated = {stage for stage, pids in project.starts().items() if len(pids) > len(before.get(stage, pids))}
    assert not [stage for stage in repeated if any(key[1] in stage for key in done)]


def test_a_local_ray_dies_with_its_driver_and_the_search_goes_on(project: DrillProject) -> None:
    with project.start(settings=SLOW) as process:
        wait_until(lambda: is_measuring(project), process)
        kill(process)
    assert_nothing_left(project, timeout_s=60)
    project.finish()
    assert_ended_well(project)


def test_a_lost_stage_process_is_run_again(project: DrillProject, ray: StandingRay) -> None:
    with project.start("--ray-address", ray.address, settings=SLOW) as process:
        wait_until(lambda: is_measuring(project), process)
        victim = read_journal(project.journal, "load")[-1]
        psutil.Process(victim.pid).kill()
        code, _, errors = ended(process)
    assert code == 0, errors
    assert_ended_well(project)
    assert {stage: len(pids) for stage, pids in project.starts().items() if len(pids) > 1} == {
        victim.stage.rpartition(":")[0]: 2
    }
