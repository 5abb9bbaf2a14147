"""``tuner advise`` from the command line, over a study that a search made."""

from __future__ import annotations

import json

import pytest

from tests.support.cli import RunCli, check_text, run_main
from tests.support.simulated_studies import a_plan, study_into
from tests.support.study_results import BASELINE, a_result
from tuner.store import StudyRecord
from tuner_storage import open_store


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A study with two drafts, one without any stage, and one that has not measured anything."""
    url = f"sqlite:///{tmp_path_factory.mktemp('advise') / 'studies.sqlite'}"
    store = open_store(url)
    store.add_study(a_result().study)
    store.save_trial(BASELINE)
    store.add_study(StudyRecord(name="math", spec=a_plan("math").spec))
    study_into(store, a_plan("code"), {"light": 0.6, "heavy": 0.9})
    store.close()
    return url


@pytest.fixture
def tuner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], database: str) -> RunCli:
    monkeypatch.delenv("TUNER_DEBUG", raising=False)
    monkeypatch.setenv("TUNER_STORAGE", database)
    return lambda *arguments: run_main(monkeypatch, capsys, *arguments)


def test_the_newest_study_that_ended_is_taken(tuner: RunCli) -> None:
    lines = tuner("advise").stdout.splitlines()
    assert lines[0] == "study code"
    assert [line.split(":")[0] for line in lines[1:3]] == ["light pays off", "heavy pays off"]


def test_the_document_has_what_is_needed_beside_what_there_is(tuner: RunCli) -> None:
    document = json.loads(tuner("advise", "code", "--json").stdout)
    heavy = next(one for one in document["drafts"] if one["draft"] == "heavy")
    needed = [one["acceptance"] for one in heavy["requirements"]]
    assert needed == sorted(needed)
    assert needed[0] < heavy["traced"]["acceptance"]
    assert document["study"] == "code"


def test_gains_and_costs_can_be_asked_for(tuner: RunCli) -> None:
    asked = ("--speedup", "1.3", "--draft-cost", "0.02", "--draft-cost", "0.3")
    document = json.loads(tuner("advise", "code", *asked, "--json").stdout)
    assert [one["speedup"] for one in document["drafts"][0]["requirements"]] == [1.02, 1.3]
    assert [one["cost_share"] for one in document["drafts"] if one["draft"] is None] == pytest.approx([0.02, 0.3])


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("no-share", ("code", "--draft-cost", "-0.1")),
        ("a-loss", ("code", "--speedup", "0.9")),
        ("nothing-measured", ("math",)),
        ("unknown-study", ("cod",)),
    ],
)
def test_errors_of_advice_say_what_is_wrong_and_what_to_do(
    tuner: RunCli, name: str, arguments: tuple[str, ...]
) -> None:
    said = tuner("advise", *arguments)
    assert (said.exit_code, said.stdout) == (2, "")
    check_text(f"error-advise-{name}", said.stderr)


def test_a_study_whose_stages_are_not_kept_is_refused(tuner: RunCli) -> None:
    said = tuner("advise", a_result().study.name)
    assert (said.exit_code, said.stdout) == (2, "")
    assert "has no measured baseline yet" in said.stderr
