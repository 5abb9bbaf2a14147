"""The prompts that come with the package: complete, distinct, of a size for a small model, unknown to the drafts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tuner.workload import read_workload, workload_names

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "tools" / "train_draft" / "prompts.py"
MIN_PROMPTS = 48
# Prompts are English: about 4 characters a token and hardly ever below 2.5, so this stays below 250 tokens.
MAX_PROMPT_CHARACTERS = 625

each_workload = pytest.mark.parametrize("name", workload_names())


def test_the_workloads_of_the_documentation_are_there() -> None:
    assert workload_names() == (
        "code-gen",
        "config-synthesis",
        "json-extraction",
        "number-sequences",
        "open-prose",
        "structured-repetition",
        "templated-report",
    )


@each_workload
def test_a_shipped_workload_is_named_after_its_file_and_states_its_reasons(name: str) -> None:
    workload = read_workload(name)

    assert workload.name == name
    assert len(workload.limits_reason) > 100
    assert workload.max_output_tokens == 96
    assert workload.quick().max_output_tokens == 64


@each_workload
def test_shipped_prompts_are_many_distinct_and_short(name: str) -> None:
    prompts = read_workload(name).prompts
    texts = [prompt.text or prompt.messages[-1].content for prompt in prompts]

    assert len(prompts) >= MIN_PROMPTS
    assert [prompt.prompt_id for prompt in prompts] == [f"{name}-{n:03d}" for n in range(1, len(prompts) + 1)]
    assert len({" ".join(text.lower().split()) for text in texts}) == len(texts)
    assert max(map(len, texts)) <= MAX_PROMPT_CHARACTERS


@each_workload
def test_every_described_class_has_prompts_in_both_samples(name: str) -> None:
    workload = read_workload(name)

    for sample in (workload.search_sample(), workload.certify_sample()):
        assert set(Counter(prompt.prompt_class for prompt in sample)) == set(workload.classes)


@each_workload
def test_search_and_certification_share_no_prompt(name: str) -> None:
    for workload in (read_workload(name), read_workload(name).quick()):
        search = {prompt.prompt_id for prompt in workload.search_sample()}
        certify = {prompt.prompt_id for prompt in workload.certify_sample()}

        assert len(search) == workload.search_prompts
        assert len(certify) == workload.certify_prompts
        assert not search & certify


@each_workload
def test_repetition_is_expected_of_copies_and_number_sequences_alone(name: str) -> None:
    workload = read_workload(name)
    expected = name in {"structured-repetition", "number-sequences"}

    assert {workload.repetition_expected(prompt_class) for prompt_class in workload.classes} == {expected}


in_a_checkout = pytest.mark.skipif(
    not RECIPE.is_file(), reason="the training recipe is in a checkout, not in an installed package"
)


def training_overlap(workloads: Path) -> subprocess.CompletedProcess[str]:
    """What the recipe says of prompts that are both trained on and in ``workloads``; it exits with 1 for any."""
    command = [sys.executable, RECIPE.name, "--workloads", str(workloads), "--show", "1"]
    return subprocess.run(command, cwd=RECIPE.parent, capture_output=True, text=True, check=False)


@in_a_checkout
def test_no_shipped_prompt_was_used_to_train_a_draft() -> None:
    checked = training_overlap(ROOT / "workloads")

    assert checked.returncode == 0, checked.stdout + checked.stderr


@in_a_checkout
def test_a_prompt_used_for_training_would_be_noticed(tmp_path: Path) -> None:
    shown = training_overlap(tmp_path).stdout.partition("] ")[2]
    trained = shown.partition("\ntraining:")[0]
    (tmp_path / "mine.jsonl").write_text(json.dumps({"prompt": trained}) + "\n", "utf-8")

    assert training_overlap(tmp_path).returncode == 1
