"""``tuner mix`` from the command line, over studies that a search made."""

from __future__ import annotations

import json

import pytest

from tests.support.cli import RunCli, Said, check_text, run_main
from tests.support.simulated_studies import a_plan, study_into
from tuner.store import StudyRecord
from tuner_storage import open_store

CODE = {"light": 0.6, "heavy": 0.9}
CHAT = {"light": 0.4, "heavy": 0.5}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two workloads under the same conditions, and one with other numerics."""
    url = f"sqlite:///{tmp_path_factory.mktemp('mix') / 'studies.sqlite'}"
    store = open_store(url)
    study_into(store, a_plan("code"), CODE, measured=[("heavy", 6), ("heavy", 2)])
    study_into(store, a_plan("chat"), CHAT, measured=[("light", 2), ("heavy", 2)])
    study_into(store, a_plan("chat", name="chat-int8", weight_format="int8"), CHAT)
    store.close()
    return url


@pytest.fixture
def tuner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], database: str) -> RunCli:
    monkeypatch.delenv("TUNER_DEBUG", raising=False)
    monkeypatch.setenv("TUNER_STORAGE", database)
    return lambda *arguments: run_main(monkeypatch, capsys, *arguments)


def test_the_answer_comes_first_then_the_table(tuner: RunCli) -> None:
    lines = tuner("mix", "code=3", "chat").stdout.splitlines()
    assert "for this mix: " in lines[0]
    assert "separate deployments would add " in lines[0]
    assert any(line.split()[-4:] == ["75", "%", "25", "%"] for line in lines)


def test_weights_decide(tuner: RunCli) -> None:
    heavy = json.loads(tuner("mix", "code=99", "chat=1", "--json").stdout)
    light = json.loads(tuner("mix", "code=1", "chat=99", "--json").stdout)
    assert heavy["recommended"]["draft"] == "heavy"
    assert light["recommended"]["draft"] == "light"
    assert [one["share"] for one in heavy["workloads"]] == [0.99, 0.01]


def test_what_was_measured_everywhere_is_used_and_what_was_not_is_tried(tuner: RunCli) -> None:
    document = json.loads(tuner("mix", "code", "chat", "--json").stdout)
    marks = {one["configuration"]: one["is_measured"] for one in document["configurations"]}
    assert {name for name, is_measured in marks.items() if is_measured} == {"no speculation", "heavy k=2"}
    assert document["sentence"].startswith("Use heavy k=2 for this mix: ")
    assert json.loads(tuner("mix", "code=99", "chat", "--json").stdout)["sentence"].startswith("Try heavy k=")


def test_a_variable_k_adds_at_most_what_a_draft_that_knows_would(tuner: RunCli) -> None:
    document = json.loads(tuner("mix", "code", "chat", "--json").stdout)
    assert document["variable_k"]["draft"] == "heavy"
    assert 0.1 < document["variable_k"]["gain_at_most"] < 0.6


def test_a_mix_of_one_kind_of_traffic_gains_what_that_workload_gains(tuner: RunCli) -> None:
    document = json.loads(tuner("mix", "code=1", "chat=1e-9", "--json").stdout)
    best = max(document["configurations"], key=lambda one: one["workloads"][0]["speedup"])
    assert document["recommended"]["configuration"] == best["configuration"]
    assert best["speedup"] == pytest.approx(best["workloads"][0]["speedup"])
    assert document["separate_gain"] == pytest.approx(0.0, abs=1e-6)


def test_no_speculation_is_a_configuration_of_every_mix(tuner: RunCli) -> None:
    document = json.loads(tuner("mix", "code", "chat", "--json").stdout)
    idle = next(one for one in document["configurations"] if one["method"] == "none")
    assert (idle["speedup"], idle["is_measured"]) == (1.0, True)
    assert len(document["configurations"]) == 13


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("one-study", ("code",)),
        ("unknown-study", ("code", "cheat")),
        ("no-number", ("code=half", "chat")),
        ("not-positive", ("code=0", "chat")),
        ("twice", ("code=1", "chat", "code=2")),
        ("other-conditions", ("code", "chat-int8")),
    ],
)
def test_errors_of_a_mix_say_what_is_wrong_and_what_to_do(tuner: RunCli, name: str, arguments: tuple[str, ...]) -> None:
    said: Said = tuner("mix", *arguments)
    assert (said.exit_code, said.stdout) == (2, "")
    check_text(f"error-mix-{name}", said.stderr)


def test_a_study_that_has_not_measured_anything_yet_is_refused(tuner: RunCli, database: str) -> None:
    store = open_store(database)
    store.add_study(StudyRecord(name="math", spec=a_plan("math").spec))
    store.close()
    said = tuner("mix", "code", "math")
    assert said.exit_code == 2
    assert "study 'math' has no measured baseline yet" in said.stderr
