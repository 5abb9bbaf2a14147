"""The commands that show, export and run studies, from the command line to the text on stdout."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cli import RunCli, run_main
from tests.support.study_results import BASELINE, BROKEN, GOOD, NGRAM, REPEATED, AResult, a_decision, a_result, a_trial
from tuner.decide import Verdict
from tuner.errors import WorkerLostError
from tuner.records import to_json
from tuner.store import StudyRecord
from tuner_storage import open_store

STUDY = "code-gen-1a2b3c"
FAST = a_trial(1, NGRAM, values=GOOD.values, metrics=GOOD.metrics, predicted=GOOD.predicted)


@pytest.fixture
def tuner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> RunCli:
    monkeypatch.delenv("TUNER_DEBUG", raising=False)
    monkeypatch.setenv("TUNER_STORAGE", f"sqlite:///{tmp_path / 'studies.sqlite'}")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return lambda *arguments: run_main(monkeypatch, capsys, *arguments)


Keep = Callable[..., None]


@pytest.fixture
def keep(tmp_path: Path) -> Keep:
    """Put a study with the n-gram as candidate into the database."""

    def put(verdict: Verdict | None = Verdict.RECOMMEND, name: str = STUDY) -> None:
        store = open_store(f"sqlite:///{tmp_path / 'studies.sqlite'}")
        store.add_study(a_study(name))
        for trial in (BASELINE, FAST, BROKEN):
            store.save_trial(replace(trial, study_name=name))
        if verdict is not None:
            decision = a_decision(verdict, candidate=NGRAM)
            conclusion = {
                "decision": json.loads(to_json(decision)),
                "trial": 1 if decision.recommends else None,
                "candidate": 1,
                "stopped": {"kind": "max_trials", "text": "6 configurations were tried, the limit is 6"},
            }
            store.conclude(name, conclusion, ())
        store.close()

    return put


def a_study(name: str) -> StudyRecord:
    return StudyRecord(
        name=name,
        spec={
            "target": "tiny",
            "workload": {"name": "code-gen", "concurrency": 2},
            "max_model_len": 512,
            "weight_format": "auto",
            "num_threads": None,
        },
        provenance={"models": {"tiny": "models/tiny"}},
    )


def document(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return json.loads(text, parse_constant=refuse)


def test_best_says_the_verdict_of_the_newest_study_that_ended(tuner: RunCli, keep: Keep) -> None:
    keep(name="older")
    keep(Verdict.DO_NOT_SPECULATE, name="newer")
    keep(None, name="unfinished")
    assert tuner("best").stdout.splitlines()[:2] == [
        "study newer",
        "Do not speculate: eagle k=3 does not gain 2% end to end.",
    ]
    assert document(tuner("best", "older", "--json").stdout)["recommended"]["method"] == "ngram"


def test_show_has_the_table_the_reasons_the_verdict_and_what_to_do_next(tuner: RunCli, keep: Keep) -> None:
    keep()
    lines = [line.strip() for line in tuner("show").stdout.splitlines()]
    compared = lines.index("Predicted, each before it was measured, and measured:")
    assert [line.split()[:3] for line in lines[:compared] if line[:2] in ("0 ", "1 ", "2 ")] == [
        ["0", "no", "speculation"],
        ["1", "ngram", "4"],
        ["2", "shallow", "12"],
    ]
    assert [line.split()[:6] for line in lines[compared:] if line.startswith("1  ngram")] == [
        ["1", "ngram", "4", "1.18", "(1.06–1.31)", "1.15"]
    ]
    assert "The search stopped: 6 configurations were tried, the limit is 6." in lines
    assert "trial 2, shallow k=12, cannot run: 2.0 GiB needed, 1.0 GiB free on cpu" in lines
    assert "Use eagle k=3: it answers faster than no speculation." in lines
    assert f"next: tuner export {STUDY} --format vllm --output vllm.yaml" in lines


def test_an_unfinished_study_is_shown_too(tuner: RunCli, keep: Keep) -> None:
    keep(None)
    said = tuner("show", STUDY)
    assert said.exit_code == 0
    assert "No verdict yet" in said.stdout
    assert document(tuner("show", STUDY, "--json").stdout)["verdict"] is None


def test_one_trial_can_be_shown(tuner: RunCli, keep: Keep) -> None:
    keep()
    assert "mean_acceptance_length" in tuner("show", "--trial", "1").stdout
    assert document(tuner("show", "--trial", "2", "--json").stdout)["state"] == "infeasible"
    said = tuner("show", "--trial", "7")
    assert (said.exit_code, said.stdout) == (2, "")
    assert f"error: study '{STUDY}' has no trial 7" in said.stderr


def test_the_plot_of_a_study_can_be_written_later(tuner: RunCli, keep: Keep, tmp_path: Path) -> None:
    keep()
    page = tmp_path / "plot.html"
    assert f"plot: {page}" in tuner("show", "--plot", str(page)).stdout
    assert "code-gen on tiny" in page.read_text(encoding="utf-8")


def test_studies_are_listed_with_their_verdicts(tuner: RunCli, keep: Keep) -> None:
    keep(name="first")
    keep(None, name="second")
    listed = document(tuner("studies", "--json").stdout)["studies"]
    assert [(one["study"], one["verdict"], one["workload"]) for one in listed] == [
        ("first", "recommend", "code-gen"),
        ("second", None, "code-gen"),
    ]
    assert "interrupted" in tuner("studies").stdout


def test_a_certified_configuration_is_exported_for_vllm(tuner: RunCli, keep: Keep, tmp_path: Path) -> None:
    keep()
    path = tmp_path / "vllm.yaml"
    said = tuner("export", "--output", str(path))
    assert (said.exit_code, said.stderr) == (0, "")
    written = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert (written["model"], written["max-num-seqs"]) == ("models/tiny", 2)
    assert json.loads(written["speculative-config"])["num_speculative_tokens"] == 4
    assert yaml.safe_load(tuner("export").stdout) == written


def test_do_not_speculate_is_exported_as_that(tuner: RunCli, keep: Keep) -> None:
    keep(Verdict.DO_NOT_SPECULATE)
    said = tuner("export")
    assert "# Do not speculate" in said.stdout
    assert "speculative-config" not in yaml.safe_load(said.stdout)


def test_without_a_verdict_the_export_is_refused_unless_a_trial_is_named(tuner: RunCli, keep: Keep) -> None:
    keep(Verdict.INCONCLUSIVE)
    said = tuner("export")
    assert (said.exit_code, said.stdout) == (2, "")
    assert "hint: measure more prompts, or give --trial N" in said.stderr
    chosen = tuner("export", "--trial", "1")
    assert "# NOT CERTIFIED" in chosen.stdout
    assert "not certified" in chosen.stderr


def test_the_export_as_json_holds_what_stands_behind_it(tuner: RunCli, keep: Keep) -> None:
    keep()
    exported = document(tuner("export", "--format", "json").stdout)
    assert exported["configuration"]["target_model"] == "models/tiny"
    assert exported["conditions"]["max_model_len"] == 512
    about = document(tuner("export", "--json").stdout)
    assert (about["format"], about["is_certified"]) == ("vllm", True)


def searching(monkeypatch: pytest.MonkeyPatch, outcome: AResult | BaseException) -> list[Any]:
    """Have the search end at once, and keep what it was asked."""
    asked = []

    def run_search(options: Any, observer: Any) -> AResult:
        asked.append(options)
        observer.notice("something a person should know")
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    monkeypatch.setattr("tuner.api.run_search", run_search)
    return asked


def test_a_search_with_json_writes_one_document_and_nothing_else(
    tuner: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    searching(monkeypatch, a_result())
    said = tuner("search", "--workload", "code-gen", "--json")
    found = document(said.stdout)
    assert {"study", "verdict", "baseline", "recommended", "pareto", "trials"} <= set(found)
    assert Path(found["plot"]).is_file()
    (event,) = map(json.loads, said.stderr.splitlines())
    assert (event["event"], event["text"]) == ("notice", "something a person should know")


def test_a_search_without_json_says_what_it_does_in_lines(tuner: RunCli, monkeypatch: pytest.MonkeyPatch) -> None:
    searching(monkeypatch, a_result())
    assert tuner("search", "--workload", "code-gen").stderr == "note: something a person should know\n"


def test_a_search_shows_table_verdict_plot_and_next_step(tuner: RunCli, monkeypatch: pytest.MonkeyPatch) -> None:
    searching(monkeypatch, a_result(trials=(BASELINE, GOOD, BROKEN, REPEATED)))
    text = tuner("search", "--workload", "code-gen").stdout
    assert "1.15 (1.10–1.20)" in text
    assert text.index("Use eagle k=3") < text.index("plot: ") < text.index("next: tuner export")


def test_a_plot_that_cannot_be_placed_is_refused_before_the_search(
    tuner: RunCli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = searching(monkeypatch, a_result())
    said = tuner("search", "--workload", "code-gen", "--plot", str(tmp_path / "absent" / "plot.html"))
    assert (said.exit_code, said.stdout, asked) == (2, "", [])


def test_a_plot_that_fails_after_the_search_does_not_hide_the_result(
    tuner: RunCli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    searching(monkeypatch, a_result())
    (tmp_path / "data").write_text("a file where the folder should be")
    said = tuner("search", "--workload", "code-gen", "--json")
    assert (said.exit_code, document(said.stdout)["plot"]) == (0, None)
    assert json.loads(said.stderr.splitlines()[-1])["text"].startswith("cannot make the folder")


def test_every_option_of_a_search_reaches_it(tuner: RunCli, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = searching(monkeypatch, a_result())
    tuner(
        *("search", "-w", "mine.yaml", "--target", "t", "--draft", "a", "--draft", "b", "--prompts", "p.jsonl"),
        *("--space", "s.yaml", "--quick", "--objective", "ttft_ms", "--sampler", "random", "--seed", "3"),
        *("--epsilon", "0.05", "--max-compiles", "5", "--max-minutes", "90.5"),
        *("--max-cost", "20", "--price-per-hour", "1.34", "--certify-loads", "2"),
        *("--name", "n", "--trials", "9", "--margin", "0.1", "--threads", "1", "--weight-format", "fp32"),
        *("--storage", "sqlite://", "--stage-deadline", "60", "--ray-address", "auto", "--dispatch", "inline"),
        *("--hardware", "gpu", "--parallel", "3", "--artifacts", "s3://bucket/x", "--wait-for-nodes", "0"),
        "--retry-failed",
    )
    options = {name: getattr(asked[0], name) for name in asked[0].__dataclass_fields__}
    assert options == {
        "workload": "mine.yaml",
        "target": "t",
        "space": "s.yaml",
        "drafts": ("a", "b"),
        "prompts": "p.jsonl",
        "quick": True,
        "objectives": ("ttft_ms",),
        "sampler": "random",
        "seed": 3,
        "name": "n",
        "epsilon": 0.05,
        "max_trials": 9,
        "max_compiles": 5,
        "max_minutes": 90.5,
        "max_cost": 20.0,
        "price_per_hour": 1.34,
        "certify_loads": 2,
        "margin": 0.1,
        "num_threads": 1,
        "weight_format": "fp32",
        "stage_deadline_s": 60.0,
        "storage": "sqlite://",
        "hardware": "gpu",
        "parallel": 3,
        "artifacts": "s3://bucket/x",
        "wait_for_nodes_s": 0.0,
        "retry_failed": True,
        "ray_address": "auto",
        "dispatch": "inline",
    }


@pytest.mark.parametrize("with_json", [(), ("--json",)])
def test_ctrl_c_says_how_to_go_on(tuner: RunCli, monkeypatch: pytest.MonkeyPatch, with_json: tuple[str, ...]) -> None:
    searching(monkeypatch, KeyboardInterrupt())
    said = tuner("search", "--workload", "code-gen", *with_json)
    assert (said.exit_code, said.stdout) == (130, "")
    assert "the same command goes on from there" in said.stderr
    if with_json:
        error = json.loads(said.stderr.splitlines()[-1])["error"]
        assert (error["type"], error["exit_code"]) == ("Interrupted", 130)
    assert "Traceback" not in said.stderr


def test_a_lost_worker_ends_with_the_exit_code_of_the_machines(tuner: RunCli, monkeypatch: pytest.MonkeyPatch) -> None:
    searching(monkeypatch, WorkerLostError("the worker is gone", "run the same command again"))
    said = tuner("search", "--workload", "code-gen")
    assert (said.exit_code, said.stdout) == (5, "")
    assert said.stderr.endswith("error: the worker is gone\nhint: run the same command again\n")


def test_a_plan_starts_nothing_and_says_how_long_it_would_take(tuner: RunCli, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = searching(monkeypatch, a_result())
    text = tuner("search", "--workload", "code-gen", "--draft", "ngram", "--plan").stdout
    planned = document(tuner("search", "--workload", "code-gen", "--draft", "ngram", "--plan", "--json").stdout)
    assert asked == []
    assert "6 of the 13 configurations of cpu-default" in text
    assert planned["seconds"] == pytest.approx(sum(stage["seconds"] for stage in planned["stages"]))
    assert [stage["kind"] for stage in planned["stages"]] == ["baseline", "trace", "measure", "certify"]
