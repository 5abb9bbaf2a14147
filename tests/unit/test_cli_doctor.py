from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from tests.support.cli import RunCli, run_main


@pytest.fixture
def tuner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> RunCli:
    monkeypatch.setenv("TUNER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TUNER_STORAGE", f"sqlite:///{tmp_path / 'studies.sqlite'}")
    return lambda *arguments: run_main(monkeypatch, capsys, *arguments)


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.cpu_percent", lambda interval: 2.0)


def test_a_machine_that_is_well_ends_with_0_and_a_line_for_each_check(tuner: RunCli) -> None:
    said = tuner("doctor", "--no-ray")
    assert (said.exit_code, said.stderr) == (0, "")
    lines = said.stdout.splitlines()
    assert lines[0].startswith("ok       python        Python 3.")
    assert "checks: " in lines[-1]
    assert "failed" not in lines[-1]


def test_a_machine_that_lacks_devices_ends_with_the_code_of_the_machines(tuner: RunCli) -> None:
    said = tuner("doctor", "--no-ray", "--hardware", "trn2.48xlarge")
    assert said.exit_code == 5
    assert "can never fit" in said.stdout
    assert "→ send stages to a cluster with --ray-address" in said.stdout


def test_as_json_it_is_one_document(tuner: RunCli, tmp_path: Path) -> None:
    well = json.loads(tuner("doctor", "--no-ray", "--json").stdout)
    assert well["ok"] is True
    assert {"check", "state", "message", "hint"} == set(well["checks"][0])
    (database,) = (one for one in well["checks"] if one["check"] == "database")
    assert database["message"].endswith("studies.sqlite is not there yet; the first search makes it")
    assert not (tmp_path / "studies.sqlite").exists()
    ill = tuner("doctor", "--no-ray", "--json", "--hardware", "gpu")
    assert (ill.exit_code, json.loads(ill.stdout)["ok"]) == (5, False)


def test_a_database_is_right_after_an_upgrade_and_refused_where_it_is_of_others(tuner: RunCli, tmp_path: Path) -> None:
    tuner("db", "upgrade")
    assert "which is the newest" in tuner("doctor", "--no-ray").stdout
    with sqlite3.connect(tmp_path / "studies.sqlite") as connection:
        connection.execute("UPDATE tuner_alembic_version SET version_num = '9999'")
    connection.close()
    unknown = tuner("doctor", "--no-ray")
    assert unknown.exit_code == 5
    assert "schema 9999, which this program does not know" in unknown.stdout


def test_an_empty_database_is_right_and_one_that_does_not_answer_is_not(tuner: RunCli, tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "empty.sqlite").close()
    empty = tuner("doctor", "--no-ray", "--storage", f"sqlite:///{tmp_path / 'empty.sqlite'}")
    assert empty.exit_code == 0
    away = tuner("doctor", "--no-ray", "--storage", "postgresql://me:secret@127.0.0.1:1/none")
    assert away.exit_code == 5
    assert "secret" not in away.stdout


@pytest.mark.parametrize(("option", "value"), [("--hardware", "none"), ("--space", "none"), ("--storage", " ")])
def test_what_cannot_be_meant_is_refused_before_anything_is_checked(tuner: RunCli, option: str, value: str) -> None:
    said = tuner("doctor", "--no-ray", option, value)
    assert (said.exit_code, said.stdout) == (2, "")
