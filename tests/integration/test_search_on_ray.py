"""The command as people run it: real Ray, real engine, real database, tiny models; and killed in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.support.tiny_models import write_model, write_perturbed
from tuner.store import StageRecord, StageState
from tuner_storage import open_store

pytestmark = pytest.mark.slow

WAIT_S = 240
TRIALS = 4


class Project:
    """A folder with a target, a draft, prompts, a search space and a database."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder / 'tuner.db'}"
        target = write_model(folder / "target", layers=4)
        draft = write_perturbed(folder / "draft", target, noise=0.1)
        lines = [{"prompt": f"{number} is a number", "raw": True} for number in range(20)]
        (folder / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (folder / "workload.yaml").write_text(
            "name: tiny\ndescription: numbers\nprompts: prompts.jsonl\nmax_output_tokens: 24\n"
            "limits_reason: a test\nsearch_prompts: 10\ncertify_prompts: 10\n"
        )
        (folder / "space.yaml").write_text(
            "name: tiny\ndescription: a copy with noise, and n-gram\nengine: cpu\ndrafts:\n"
            f"  - {{name: noisy, method: draft_model, model: {draft}}}\n"
            "  - {name: ngram, method: ngram}\nnum_speculative_tokens: {min: 1, max: 4}\n"
        )

    def search(self, *arguments: str) -> list[str]:
        """The command line of a search of this project."""
        return [
            *(sys.executable, "-m", "tuner", "search", "--json"),
            *("--workload", "workload.yaml", "--space", "space.yaml", "--target", "target"),
            *("--name", "tiny", "--trials", str(TRIALS), "--threads", "1", "--storage", self.url),
            *("--plot", str(self.folder / "plot.html"), *arguments),
        ]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.search(*arguments),
            cwd=self.folder,
            env=os.environ | {"TUNER_CACHE": str(self.folder / "cache")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, *arguments: str) -> dict[str, object]:
        """Run the search to its end and read the one JSON document on its standard output."""
        with self.start(*arguments) as process:
            output, errors = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, errors
        document: dict[str, object] = json.loads(output)
        return document

    def stages(self) -> dict[tuple[str, str], StageRecord]:
        store = open_store(self.url)
        try:
            return {(one.kind, one.key): one for one in store.stages("tiny")} if store.studies() else {}
        finally:
            store.close()


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
    return [one for one in below if "StageActor" in " ".join(one.cmdline())]


def test_a_search_prints_one_document_and_leaves_the_study_in_the_database(project: Project) -> None:
    document = project.finish()
    assert {"study", "verdict", "baseline", "recommended", "pareto", "trials"} <= set(document)
    trials = document["trials"]
    assert isinstance(trials, list)
    assert [one["trial"] for one in trials if one["duplicate_of"] is None] == list(range(TRIALS))
    assert all(one["metrics"]["identical_share"] == 1.0 for one in trials[1:] if one["state"] == "complete")
    assert "plotly" in (project.folder / "plot.html").read_text()


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
    assert second.returncode == 4
    assert "tiny" in errors
    assert "Traceback" not in errors
