from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tuner.cli import spaces, workloads
from tuner.errors import SearchSpaceError, WorkloadError

BAD = Path(__file__).parents[1] / "data" / "cases" / "H1" / "bad.jsonl"
WIDE = {"COLUMNS": "200"}


def workloads_says(*arguments: str) -> str:
    result = CliRunner().invoke(workloads.app, arguments, env=WIDE, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def spaces_says(*arguments: str) -> str:
    result = CliRunner().invoke(spaces.app, arguments, env=WIDE, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_the_list_of_workloads_has_a_line_for_each() -> None:
    lines = workloads_says("list").splitlines()

    assert lines[0].split() == ["Workload", "What", "it", "is", "Prompts", "Classes", "Output", "cap"]
    assert [line.split()[0] for line in lines[1:]] == [
        "code-gen",
        "config-synthesis",
        "json-extraction",
        "number-sequences",
        "open-prose",
        "structured-repetition",
        "templated-report",
    ]


def test_the_list_of_workloads_as_json_counts_what_is_measured() -> None:
    listed = json.loads(workloads_says("list", "--json"))["workloads"]

    assert listed[2] == {
        "name": "json-extraction",
        "description": "A paragraph of facts that is to be returned as JSON with given keys.",
        "prompts": 48,
        "classes": {"single-object": 16, "array-of-objects": 16, "nested-object": 16},
        "max_output_tokens": 96,
        "search_prompts": 24,
        "certify_prompts": 16,
        "certify_is_held_out": True,
    }


def test_a_shown_workload_has_its_values_in_effect_and_its_classes() -> None:
    shown = workloads_says("show", "number-sequences")

    assert "48: 24 for the search, 16 for the final comparison" in shown
    assert "6 and 10, at most 64 output tokens" in shown
    assert "greedy" in shown
    assert "countdown  8        yes                  numbers downwards" in shown


def test_a_shown_workload_as_json_has_every_setting() -> None:
    shown = json.loads(workloads_says("show", "open-prose", "--json", "--prompts"))

    assert shown["sampling"] == {"temperature": 0, "top_p": 1, "top_k": 0, "seed": 0}
    assert shown["quick_sample"] == {"search_prompts": 6, "certify_prompts": 10, "max_output_tokens": 64}
    assert shown["class_counts"]["story"] == 8
    assert len(shown["prompts"]) == shown["num_prompts"] == 48
    assert "prompts" not in json.loads(workloads_says("show", "open-prose", "--json"))


def test_prompts_are_shown_with_their_ids_and_are_no_markup(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"id": "p1", "class": "[red]x[/red]", "prompt": "Say [bold]hi[/bold]."}\n', "utf-8")

    shown = workloads_says("show", str(path), "--prompts")

    assert "[red]x[/red]" in shown
    assert shown.endswith("\n[p1] [red]x[/red]\nSay [bold]hi[/bold].\n")


def test_a_sampled_workload_with_an_slo_shows_both(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('{"prompt": "x"}\n', "utf-8")
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: mine\ndescription: d\nprompts: mine.jsonl\nlimits_reason: r\n"
        "sampling: {temperature: 7e-1, seed: 3}\nslo: {ttft_ms: 200, tpot_ms: 5e1, reason: people read along}\n",
        "utf-8",
    )

    shown = workloads_says("show", str(path))

    assert "temperature 0.7, top_p 1, top_k 0, seed 3" in shown
    assert "ttft_ms 200, tpot_ms 50: people read along" in shown


def test_a_right_workload_is_checked_in_one_line() -> None:
    assert workloads_says("check", "json-extraction") == (
        "ok: prompts by class: single-object 16, array-of-objects 16, nested-object 16\n"
    )


def test_a_wrong_prompt_file_fails_the_check() -> None:
    with pytest.raises(WorkloadError, match=r"bad\.jsonl:4: not an object but a list"):
        workloads_says("check", str(BAD))


def test_skipped_lines_are_counted_on_stderr() -> None:
    result = CliRunner().invoke(workloads.app, ["check", str(BAD), "--skip-invalid"])

    assert result.stdout == "ok: prompts by class: default 2\n"
    assert result.stderr.splitlines()[0] == (
        "note: 5 lines skipped: 1 × not an object but a list; 1 × not valid JSON; 1 × no prompt column; "
        "1 × prompt is a number, not text; 1 × prompt is empty (lines 4, 5, 6, 7, 8)"
    )
    assert result.stderr.splitlines()[1].startswith("note: 2 prompts, but 40 are needed for a final comparison")


def test_skipped_lines_are_in_the_json_of_a_check() -> None:
    checked = json.loads(workloads_says("check", str(BAD), "--skip-invalid", "--json"))

    assert checked["ok"] is True
    assert checked["skipped"]["lines"] == [4, 5, 6, 7, 8]


def test_the_list_of_spaces_names_drafts_and_counts_configurations() -> None:
    lines = spaces_says("list").splitlines()

    assert lines[1].split()[0] == "cpu-default"
    assert lines[1].rstrip().endswith("ngram, eagle, shallow              37")
    assert json.loads(spaces_says("list", "--json"))["spaces"][1] == {
        "name": "cpu-ngram",
        "description": "Prompt lookup alone, for any target without a trained draft, with 1 to 12 drafted tokens.",
        "engine": "cpu",
        "drafts": ["ngram"],
        "num_speculative_tokens": {"min": 1, "max": 12},
        "num_configurations": 13,
    }


def test_a_shown_space_lists_each_draft() -> None:
    shown = spaces_says("show", "cpu-default")

    assert "num_speculative_tokens 1 to 12, 37 configurations" in shown
    assert "ngram    ngram        2 to 4 tokens of the text so far" in shown
    assert "eagle    eagle        smollm2-135m-eagle" in shown
    assert json.loads(spaces_says("show", "cpu-default", "--json"))["drafts"][0] == {
        "name": "ngram",
        "method": "ngram",
        "model": None,
        "prompt_lookup_max": 4,
        "prompt_lookup_min": 2,
        "suffix_decoding_max_tree_depth": None,
        "suffix_decoding_max_spec_factor": None,
        "suffix_decoding_min_token_prob": None,
    }


def test_a_space_is_checked_by_name_and_by_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: x\ndescription: y\ndrafts: [{name: a, method: ngrma}]\n", "utf-8")

    assert spaces_says("check", "cpu-ngram") == "ok: 13 configurations of none, ngram\n"
    assert json.loads(spaces_says("check", "cpu-ngram", "--json"))["ok"] is True
    with pytest.raises(SearchSpaceError, match=r"mine\.yaml:3: drafts\[0\]\.method: .*found 'ngrma'"):
        spaces_says("check", str(path))
