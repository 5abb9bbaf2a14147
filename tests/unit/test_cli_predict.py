"""``tuner predict``, from the command line to the text on stdout."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import RunCli, run_main
from tests.support.study_results import BASELINE, EAGLE, NGRAM, a_prediction, a_result
from tuner.api import SearchOptions
from tuner.driver import PredictedStudy
from tuner.predictions import Predictions

COLUMNS = {
    "acceptance_rate": 0.37,
    "mean_acceptance_length": 1.92,
    "mean_acceptance_length_low": 1.8,
    "mean_acceptance_length_high": 2.1,
    "ttft_ms_mean": 120.0,
    "tpot_ms_mean": 20.0,
    "e2e_ms_mean": 1700.0,
    "waste_tokens_per_output_token": 0.8,
}
PREDICTED = PredictedStudy(
    study=a_result().study,
    trials=(BASELINE,),
    predictions=Predictions(by_configuration={("eagle", 3): replace(a_prediction("eagle", 3, 1.2), columns=COLUMNS)}),
    configurations=(EAGLE, NGRAM),
    gaps={NGRAM: "the draft could not be replayed"},
)
SENTENCE = (
    "Predicted fastest: eagle k=3, 1.20 times the speed of no speculation end to end (95 % interval 1.14 to 1.26). "
    "This is a prediction and no recommendation: only no speculation was measured."
)
OPTIONS = (
    *("-w", "mine.yaml", "--target", "t", "--draft", "a", "--draft", "b c", "--prompts", "p.jsonl"),
    *("--space", "s.yaml", "--quick", "--objective", "ttft_ms", "--name", "n", "--threads", "1"),
    *("--weight-format", "fp32", "--storage", "sqlite://", "--stage-deadline", "60", "--ray-address", "auto"),
    *("--price-per-hour", "1.34", "--dispatch", "inline"),
)


@pytest.fixture
def tuner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> RunCli:
    monkeypatch.delenv("TUNER_DEBUG", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return lambda *arguments: run_main(monkeypatch, capsys, *arguments)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[SearchOptions]:
    """What predictions and searches were asked for; both end at once."""
    options: list[SearchOptions] = []

    def run_prediction(one: SearchOptions, _observer: Any) -> PredictedStudy:
        options.append(one)
        return PREDICTED

    def run_search(one: SearchOptions, _observer: Any) -> Any:
        options.append(one)
        return a_result()

    monkeypatch.setattr("tuner.api.run_prediction", run_prediction)
    monkeypatch.setattr("tuner.api.run_search", run_search)
    return options


@pytest.mark.usefixtures("asked")
def test_the_answer_comes_first_then_the_table_the_gaps_and_the_search(tuner: RunCli) -> None:
    said = tuner("predict", "-w", "code-gen", "--quick")
    lines = [line.strip() for line in said.stdout.splitlines()]
    assert (said.exit_code, lines[0]) == (0, SENTENCE)
    (row,) = (line.split() for line in lines if line.startswith("eagle"))
    assert row == [
        *("eagle", "3", "37", "%", "1.92", "(1.80–2.10)", "120.0", "20.0", "1700", "1.20", "(1.14–1.26)", "–", "0.80"),
    ]
    assert "no prediction for ngram k=4: the draft could not be replayed" in lines
    assert lines[-1] == "next: tuner search --workload code-gen --quick"


@pytest.mark.usefixtures("asked")
def test_with_json_there_is_one_document(tuner: RunCli) -> None:
    document = json.loads(tuner("predict", "-w", "code-gen", "--json").stdout)
    assert document["sentence"] == SENTENCE
    assert document["predictions"][0]["predicted"]["speedup"] == 1.2
    assert document["gaps"][0]["reason"] == "the draft could not be replayed"
    assert document["next"] == "tuner search --workload code-gen"
    assert Path(document["plot"]).is_file()


def test_a_search_with_the_same_options_is_the_same_study(tuner: RunCli, asked: list[SearchOptions]) -> None:
    tuner("predict", *OPTIONS)
    tuner("search", *OPTIONS)
    predicted, searched = asked
    assert predicted == searched
    assert (predicted.drafts, predicted.num_threads, predicted.stage_deadline_s) == (("a", "b c"), 1, 60.0)


def test_the_search_that_comes_next_is_asked_for_with_the_same_options(
    tuner: RunCli, asked: list[SearchOptions]
) -> None:
    said = tuner("predict", *OPTIONS)
    program, *words = shlex.split(said.stdout.splitlines()[-1].removeprefix("next: "))
    assert program == "tuner"
    tuner(*words)
    assert asked[0] == asked[1]


@pytest.mark.usefixtures("asked")
def test_a_password_does_not_get_into_the_next_command(tuner: RunCli) -> None:
    said = tuner("predict", "-w", "code-gen", "--storage", "postgresql://ann:s3cret@db.example/tuner")
    assert "s3cret" not in said.stdout
    assert "--storage postgresql://ann:***@db.example/tuner" in said.stdout


def test_a_plot_that_cannot_be_placed_is_refused_before_anything_runs(
    tuner: RunCli, asked: list[SearchOptions], tmp_path: Path
) -> None:
    said = tuner("predict", "-w", "code-gen", "--plot", str(tmp_path / "absent" / "plot.html"))
    assert (said.exit_code, said.stdout, asked) == (2, "", [])


def test_ctrl_c_says_how_to_go_on(tuner: RunCli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_options: SearchOptions, _observer: Any) -> PredictedStudy:
        raise KeyboardInterrupt

    monkeypatch.setattr("tuner.api.run_prediction", interrupted)
    said = tuner("predict", "-w", "code-gen")
    assert (said.exit_code, said.stdout) == (130, "")
    assert "the same command goes on from there" in said.stderr
