"""The command as people run it: real Ray, real engine, real database, tiny models; and killed in the middle."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.support.postgres import running_postgres
from tests.support.projects import TRIALS, WAIT_S, Project
from tuner.store import StageState

pytestmark = pytest.mark.slow


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def wait_until(is_so: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not is_so():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def stage_workers(driver: subprocess.Popen[str]) -> list[psutil.Process]:
    """Processes of Ray that run a stage. Ray's own agents end by themselves some time after the driver."""
    below = psutil.Process(driver.pid).children(recursive=True)
    return [one for one in below if "StageActor" in command_of(one)]


def command_of(process: psutil.Process) -> str:
    """Its command line; nothing for one that ended since it was listed."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def test_a_search_prints_one_document_and_leaves_the_study_in_the_database(project: Project) -> None:
    document = project.finish()
    assert {"study", "verdict", "baseline", "recommended", "pareto", "trials"} <= set(document)
    trials = document["trials"]
    assert isinstance(trials, list)
    tried = [one for one in trials if one["duplicate_of"] is None]
    assert len(tried) == TRIALS
    assert all(one["metrics"]["identical_share"] == 1.0 for one in tried[1:] if one["state"] == "complete")
    assert "plotly" in (project.folder / "plot.html").read_text()


def test_the_replay_sampler_stops_by_itself_and_says_why(project: Project) -> None:
    document = project.finish("--sampler", "replay", "--trials", "9", "--dispatch", "inline")
    trials = document["trials"]
    assert isinstance(trials, list)
    assert len(trials) < 9
    stopped = document["stopped"]
    assert isinstance(stopped, dict)
    assert stopped["kind"] == "nothing_worth_it"
    assert stopped["text"].startswith("no other configuration can be more than 1 % faster than ")


def test_a_search_killed_in_the_middle_goes_on_and_runs_nothing_twice(project: Project) -> None:
    process = project.start()
    with process:
        wait_until(lambda: any(one.kind == "measure" for one in project.stages().values()), process)
        wait_until(lambda: bool(stage_workers(process)), process)
        workers = stage_workers(process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    done = {key: one for key, one in project.stages().items() if one.state is StageState.DONE}
    assert done
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive, "a local Ray dies with its driver, and the stage with it"
    document = project.finish()
    assert document["verdict"]
    after = project.stages()
    assert {key: after[key] for key in done} == done
    assert all(one.state is StageState.DONE for one in after.values())


def test_a_second_search_of_the_same_study_is_refused_while_the_first_runs(project: Project) -> None:
    with project.start() as first:
        wait_until(lambda: bool(project.stages()), first)
        with project.start() as second:
            _, errors = second.communicate(timeout=WAIT_S)
        first.kill()
        first.communicate()
    assert second.returncode == 4, errors
    assert "tiny" in errors
    assert "Traceback" not in errors


def test_a_search_keeps_its_study_and_optunas_in_one_postgresql_database(tmp_path: Path) -> None:
    with running_postgres() as server, server.database() as url:
        project = Project(tmp_path, url)
        document = project.finish("--dispatch", "inline")
        again = project.finish("--dispatch", "inline")
        assert again["trials"] == document["trials"]
        assert all(one.state is StageState.DONE for one in project.stages().values())
        with psycopg.connect(url) as connection:
            (told,) = connection.execute("SELECT count(*) FROM trials WHERE state = 'COMPLETE'").fetchone() or (0,)
    assert told == len(document["trials"])  # type: ignore[arg-type]
