"""The notebooks run from the first cell to the last."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.speculation import NO_SPECULATION, Method, Speculation
from tuner.store import StudyRecord, TrialRecord, TrialState
from tuner_storage import open_store

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "notebooks" / "explore_study.ipynb"


def _execute(notebook: Path, storage_url: str, output: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "TUNER_STORAGE": storage_url,
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "storage"))),
    }
    program = "import sys; from nbclient.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", program, str(notebook), "--output", str(output)]
    return subprocess.run(command, env=environment, cwd=output.parent, capture_output=True, text=True, check=False)


def _trials() -> tuple[TrialRecord, ...]:
    def a_trial(number: int, speculation: Speculation, **figures: float | None) -> TrialRecord:
        return TrialRecord(
            study_name="a-study",
            number=number,
            speculation=speculation,
            state=TrialState.COMPLETE if figures else TrialState.INFEASIBLE,
            metrics=figures,
            predicted={"speedup": 1.25} if speculation.drafted_tokens else {},
        )

    def ngram(drafted_tokens: int) -> Speculation:
        return Speculation(method=Method.NGRAM, draft_name="ngram", drafted_tokens=drafted_tokens)

    return (
        a_trial(0, NO_SPECULATION, speedup=1.0),
        a_trial(1, ngram(3), speedup=1.5, speedup_low=1.25, speedup_high=1.75),
        a_trial(2, ngram(5), speedup=1.125, speedup_low=None, speedup_high=None),
        a_trial(3, ngram(12)),
    )


def test_a_study_is_explored(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tuner.db"
    store = open_store(url)
    store.add_study(StudyRecord(name="a-study", spec={"workload": "code-gen"}))
    for trial in _trials():
        store.save_trial(trial)
    store.close()

    executed = _execute(NOTEBOOK, url, tmp_path / "executed.ipynb")

    assert executed.returncode == 0, executed.stderr
    shown = (tmp_path / "executed.ipynb").read_text()
    assert "a-study" in shown
    assert "ngram, predicted" in shown


def test_without_a_database_the_notebook_says_so(tmp_path: Path) -> None:
    executed = _execute(NOTEBOOK, f"sqlite:///{tmp_path}/absent.db", tmp_path / "executed.ipynb")
    assert executed.returncode != 0
    assert "StorageError" in executed.stderr
    assert not (tmp_path / "absent.db").exists()
