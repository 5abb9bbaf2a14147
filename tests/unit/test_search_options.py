"""What is refused, or said, before a search spends anything."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import RunCli, run_main
from tests.support.tiny_models import write_model, write_perturbed
from tuner.api import SearchOptions, plan_search, search
from tuner.errors import ConfigurationError
from tuner.stopping import Budget

MORE_THAN_THERE_ARE = str((os.cpu_count() or 1) + 1)


@pytest.fixture
def tuner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> RunCli:
    monkeypatch.delenv("TUNER_DEBUG", raising=False)
    monkeypatch.setenv("TUNER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TUNER_STORAGE", f"sqlite:///{tmp_path / 'studies.sqlite'}")
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: run_main(monkeypatch, capsys, *arguments)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A target with a context of 512 tokens, a draft, a draft with another tokenizer, and three prompts."""
    target = write_model(tmp_path / "target")
    write_perturbed(tmp_path / "draft", target, noise=0.1)
    other = write_perturbed(tmp_path / "other", target, noise=0.1)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["!"], vocabulary["#"] = vocabulary["#"], vocabulary["!"]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    prompts = ["one", "two", "long " * 200]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps({"prompt": text, "raw": True}) + "\n" for text in prompts))
    return tmp_path


@pytest.mark.parametrize("plan", [(), ("--plan",)])
@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--seed", "-1", "--seed is -1"),
        ("--seed", str(2**32), "--seed is 4294967296"),
        ("--stage-deadline", "nan", "--stage-deadline is nan"),
        ("--stage-deadline", "inf", "--stage-deadline is inf"),
        ("--stage-deadline", "0", "--stage-deadline is 0.0"),
        ("--margin", "nan", "--margin is nan"),
        ("--epsilon", "-0.01", "--epsilon is -0.01"),
        ("--epsilon", "1", "--epsilon is 1.0"),
        ("--epsilon", "nan", "--epsilon is nan"),
        ("--trials", "0", "--trials is 0"),
        ("--max-compiles", "0", "--max-compiles is 0"),
        ("--max-minutes", "0", "--max-minutes is 0.0"),
        ("--max-minutes", "inf", "--max-minutes is inf"),
        ("--max-cost", "nan", "--max-cost is nan"),
        ("--max-cost", "5", "--max-cost needs a price"),
        ("--price-per-hour", "-1", "--price-per-hour is -1.0"),
        ("--threads", "0", "--threads is 0"),
        ("--threads", MORE_THAN_THERE_ARE, f"--threads is {MORE_THAN_THERE_ARE}"),
        ("--target", "", "--target is empty"),
        ("--prompts", " ", "--prompts is empty"),
        ("--storage", "", "--storage is empty"),
        ("--ray-address", "", "--ray-address is empty"),
        ("--hardware", "", "--hardware is empty"),
        ("--hardware", "trn2.48xlarg", "no hardware named 'trn2.48xlarg'"),
        ("--artifacts", " ", "--artifacts is empty"),
        ("--parallel", "0", "--parallel is 0"),
        ("--wait-for-nodes", "-1", "--wait-for-nodes is -1.0"),
        ("--wait-for-nodes", "nan", "--wait-for-nodes is nan"),
        ("--name", "", "the study name is empty"),
        ("--name", "two\nlines", "cannot be printed"),
        ("--name", "n" * 600, "600 characters, the limit is 512"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(
    tuner: RunCli, tmp_path: Path, plan: tuple[str, ...], option: str, value: str, said: str
) -> None:
    ended = tuner("search", "-w", "code-gen", option, value, *plan)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert said in ended.stderr
    assert "hint: " in ended.stderr
    assert not (tmp_path / "studies.sqlite").exists()


@pytest.mark.usefixtures("tuner", "project")
@pytest.mark.parametrize(
    ("options", "budget"),
    [
        ({}, Budget(max_trials=6)),
        ({"quick": True}, Budget(max_trials=4)),
        ({"max_trials": 9, "max_compiles": 12}, Budget(max_trials=9, max_compiles=12)),
        ({"max_compiles": 12}, Budget(max_compiles=12)),
        ({"max_minutes": 90.0, "quick": True}, Budget(max_minutes=90)),
        ({"max_cost": 5.0, "price_per_hour": 1.34}, Budget(max_cost=5, price_per_hour=1.34)),
        ({"price_per_hour": 1.34}, Budget(max_trials=6, price_per_hour=1.34)),
    ],
)
def test_a_limit_that_is_given_replaces_the_default_number_of_trials(options: dict[str, Any], budget: Budget) -> None:
    assert (
        plan_search(SearchOptions(workload="mine.jsonl", target="./target", drafts=("ngram",), **options)).budget
        == budget
    )


@pytest.mark.parametrize(
    ("options", "count"),
    [((), 6), (("--max-compiles", "3"), 3), (("--max-minutes", "90"), 13), (("--trials", "99"), 13)],
)
def test_a_plan_counts_what_is_measured_at_most(tuner: RunCli, options: tuple[str, ...], count: int) -> None:
    said = tuner("search", "-w", "code-gen", "--target", "acme/none", "--draft", "ngram", *options, "--plan")
    assert f"code-gen: {count} of the 13 configurations of cpu-default" in said.stdout


def test_an_address_of_another_ray_may_have_more_threads_than_this_machine(tuner: RunCli) -> None:
    options = ("--threads", MORE_THAN_THERE_ARE, "--ray-address", "host:6379")
    assert tuner("search", "-w", "code-gen", "--target", "acme/none", *options, "--plan").exit_code == 0


@pytest.mark.parametrize("command", ["studies", "show", "best", "export"])
def test_an_empty_address_of_the_database_is_not_taken_for_ones_own(tuner: RunCli, command: str) -> None:
    ended = tuner(command, "--storage", "")
    assert ended.exit_code == 2
    assert "--storage is empty" in ended.stderr


@pytest.mark.parametrize("command", ["studies", "show", "best", "export"])
def test_a_misspelt_database_is_not_created_by_looking_at_it(tuner: RunCli, tmp_path: Path, command: str) -> None:
    ended = tuner(command, "--storage", f"sqlite:///{tmp_path / 'typo.sqlite'}")
    assert ended.exit_code == 4
    assert "there is no database at" in ended.stderr
    assert not (tmp_path / "typo.sqlite").exists()


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("./nothing", "no model at"),
        ("SmolLM2-136M", "no model named 'SmolLM2-136M'"),
        ("mine.jsonl", "mine.jsonl is no model"),
        (".", "has no config.json"),
    ],
)
def test_a_plan_refuses_a_model_that_is_none(tuner: RunCli, project: Path, target: str, said: str) -> None:
    ended = tuner("search", "-w", "mine.jsonl", "--target", target, "--draft", "ngram", "--plan")
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert said in ended.stderr


def test_a_plan_with_all_models_here_refuses_what_the_search_would_refuse(tuner: RunCli, project: Path) -> None:
    plan = ("search", "-w", "mine.jsonl", "--target", "./target", "--plan")
    other = tuner(*plan, "--draft", "./other")
    assert other.exit_code == 2
    assert "does not share the tokenizer" in other.stderr
    weights = tuner(*plan, "--draft", "ngram", "--weight-format", "fp99")
    assert weights.exit_code == 3
    assert "fp99" in weights.stderr


def test_a_plan_with_all_models_here_names_the_study_and_counts_prompts_that_do_not_fit(
    tuner: RunCli, project: Path
) -> None:
    plan = ("search", "-w", "mine.jsonl", "--target", "./target", "--draft", "./draft", "--plan")
    document = json.loads(tuner(*plan, "--json").stdout)
    assert document["study"].startswith("mine-")
    left_out, reused = document["notices"]
    assert left_out == "prompts longer than the target's context are left out: 1 (mine-3)"
    assert reused.startswith("2 prompts, but 40 are needed")
    shown = tuner(*plan).stdout
    assert f"study {document['study']}\n" in shown
    assert "note: prompts longer" in shown


def test_a_plan_whose_models_are_not_here_fetches_nothing_and_names_no_study(tuner: RunCli, project: Path) -> None:
    plan = ("search", "-w", "mine.jsonl", "--target", "acme/none", "--draft", "ngram", "--plan", "--json")
    document = json.loads(tuner(*plan).stdout)
    assert document["study"] is None
    assert [(model["name"], model["is_here"]) for model in document["models"]] == [("acme/none", False)]


def test_a_folder_given_for_a_file_is_called_a_folder(tuner: RunCli, project: Path) -> None:
    for option in ("--workload", "--space", "--prompts"):
        ended = tuner("search", "-w", "mine.jsonl", option, "./target", "--plan")
        assert ended.exit_code == 2
        assert "target is a folder" in ended.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_trials": "many"}, "max_trials should be a valid integer"),
        ({"max_trials": 2.5}, "max_trials should be a valid integer"),
        ({"seed": None}, "seed should be a valid integer"),
        ({"drafts": "ngram"}, "drafts should be a valid tuple"),
        ({"objectives": "ttft_ms"}, "objectives should be a valid tuple"),
        ({"target": 3}, "target should be a valid string"),
        ({"draft": ["ngram"]}, "search() has no option 'draft'"),
    ],
)
def test_a_search_from_python_refuses_values_of_another_type(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        search("code-gen", **options)
    assert said in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("objectives", "said", "hint"),
    [
        (("e2e_ms@9", "waste"), "'e2e_ms@9': engine 'cpu' decodes at most 8 requests together", "8 or fewer in flight"),
        (("cost@4",), "'cost@4' needs a price", "--price-per-hour"),
        (("e2e_ms", "e2e_ms@1"), "'e2e_ms@1' is given twice, as 'e2e_ms'", "once"),
        (("output_tokens_per_s", "e2e_ms@1"), "one objective in disguise", "e2e_ms@1 and output_tokens_per_s@8"),
    ],
)
@pytest.mark.usefixtures("tuner", "project")
def test_objectives_at_a_load_are_refused_before_anything_is_loaded(
    objectives: tuple[str, ...], said: str, hint: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        plan_search(SearchOptions(workload="mine.jsonl", target="./target", drafts=("ngram",), objectives=objectives))
    assert said in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.usefixtures("tuner", "project")
def test_a_plan_has_slots_for_the_largest_load_and_counts_its_requests(tuner: RunCli) -> None:
    asked = ("-w", "mine.jsonl", "--target", "./target", "--draft", "ngram", "--objective", "e2e_ms@1")
    throughput = ("--objective", "output_tokens_per_s@4")
    alone, both = (json.loads(tuner("search", *asked, *more, "--plan", "--json").stdout) for more in ((), throughput))
    requests = [{stage["kind"]: stage["requests"] for stage in one["stages"]} for one in (alone, both)]
    # four slots are filled twice by eight requests at least: three prompts, three times
    assert [one["baseline"] for one in requests] == [3, 3 + 9]
    plan = plan_search(
        SearchOptions(
            workload="mine.jsonl",
            target="./target",
            drafts=("ngram",),
            objectives=("e2e_ms@1", "cost@4"),
            price_per_hour=1,
        )
    )
    assert plan.config(plan.space.speculation("ngram", 3)).max_num_seqs == 4


def test_a_search_from_python_takes_paths_and_lists(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[SearchOptions] = []
    monkeypatch.setattr("tuner.api.run_search", lambda options, _observer: asked.append(options))
    search(str(tmp_path / "mine.jsonl"), target=tmp_path / "target", drafts=["ngram"], num_threads=1)
    expected = SearchOptions(
        workload=str(tmp_path / "mine.jsonl"), target=str(tmp_path / "target"), drafts=("ngram",), num_threads=1
    )
    assert asked == [expected]
