"""Real runs of Ray Tune with our searcher and our trainable."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.projects import Project

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
WAIT_S = 240
ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "storage"))),
    "RAY_ADDRESS": "local",  # whatever Ray runs on this machine, the tests have their own
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_GLOBAL_CHECKPOINT_S": "1",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
}


def documented_example(options: str) -> str:
    """The program in the documentation, with other options."""
    code = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "ray-tune.md").read_text(), flags=re.DOTALL)
    assert code is not None
    changed, count = re.subn(r"^OPTIONS = .*$", lambda _: f"OPTIONS = {options}", code[1], flags=re.MULTILINE)
    assert count == 1
    return changed


def start(program: Path, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(program), *arguments],
        cwd=folder,
        env=os.environ | ENVIRONMENT | {"TUNER_CACHE": str(folder / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, output
    return output


def test_the_documented_program_measures_every_configuration_that_is_worth_it(tmp_path: Path) -> None:
    project = Project(tmp_path)
    # Of memory only a measurement can tell, so that each of the four configurations is worth one.
    options = (
        'SearchOptions(workload="workload.yaml", space="space.yaml", target="target", drafts=("ngram",), '
        f'objectives=("e2e_ms", "memory"), num_threads=1, dispatch="inline", name="tiny", storage="{project.url}")'
    )
    program = tmp_path / "example.py"
    program.write_text(documented_example(options))
    output = finish(start(program, tmp_path))
    rows = re.findall(r"^\{'draft': 'ngram', 'num_speculative_tokens': (\d)\} [\d.]+ 0\.0$", output, flags=re.MULTILINE)
    assert sorted(rows) == ["1", "2", "3", "4"], output


def test_a_killed_run_is_restored_and_repeats_only_what_was_in_flight(tmp_path: Path) -> None:
    program, log = ROOT / "tests" / "support" / "tune_run.py", tmp_path / "log"
    killed = start(program, tmp_path, str(tmp_path), "5")
    wait_until(lambda: log.is_file() and log.read_text().count("began") == 3, killed)
    time.sleep(2)  # Tune writes its state every second
    killed.kill()
    killed.communicate()
    before = log.read_text().splitlines()
    output = finish(start(program, tmp_path, str(tmp_path), "1"))
    after = log.read_text().splitlines()[len(before) :]
    assert [line for line in before if line.startswith("ended")] == ["ended good 2", "ended good 1"]
    assert after == ["began bad 2", "ended bad 2", "began bad 1", "ended bad 1"]
    states = json.loads(output.splitlines()[-1])
    assert [state for _, state in states] == ["complete"] * 5


def wait_until(is_so: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not is_so():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline_s
        time.sleep(0.2)
