from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from tuner.errors import NotFoundError, WorkloadError
from tuner.records import Message, Prompt, Sampling
from tuner.workload import Workload, read_workload

REQUIRED = "name: mine\ndescription: my prompts\nprompts: mine.jsonl\nlimits_reason: short answers\n"
CLASSES = "classes:\n  a: {description: first}\n  b: {description: second, repetition_expected: true}\n"


def a_prompt(prompt_id: str, prompt_class: str = "default", *, cap: int | None = None) -> Prompt:
    messages = (Message(role="user", content=f"Prompt {prompt_id}."),)
    return Prompt(prompt_id=prompt_id, prompt_class=prompt_class, messages=messages, max_output_tokens=cap)


def a_workload(*prompts: Prompt, search_prompts: int = 24, certify_prompts: int = 16) -> Workload:
    return Workload(
        name="mine",
        description="my prompts",
        limits_reason="short answers",
        prompts=prompts,
        search_prompts=search_prompts,
        certify_prompts=certify_prompts,
    )


def written(folder: Path, text: str = "", *rows: dict[str, object]) -> Path:
    """A workload file with its prompt file; by default one prompt of class a."""
    lines = rows or ({"id": "1", "class": "a", "prompt": "x"},)
    (folder / "mine.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in lines), "utf-8")
    path = folder / "mine.yaml"
    path.write_text(REQUIRED + text, "utf-8")
    return path


def ids(prompts: tuple[Prompt, ...]) -> str:
    return " ".join(prompt.prompt_id for prompt in prompts)


def test_a_workload_file_has_defaults_for_all_but_four_fields(tmp_path: Path) -> None:
    workload = read_workload(written(tmp_path))

    assert workload.name == "mine"
    assert ids(workload.prompts) == "1"
    assert (workload.max_output_tokens, workload.concurrency) == (96, 1)
    assert (workload.search_prompts, workload.certify_prompts) == (24, 16)
    assert workload.sampling == Sampling(temperature=0.0, top_p=1.0, top_k=0, seed=0)
    assert workload.slo is None


def test_what_a_workload_file_says_is_in_effect(tmp_path: Path) -> None:
    text = (
        "max_output_tokens: 1e2\nconcurrency: 4\nsampling: {temperature: 7e-1, top_p: .9, top_k: 40, seed: 1_000}\n"
        "slo: {tpot_ms: 5e1, reason: readers notice slower text}\n"
    )
    workload = read_workload(written(tmp_path, text))

    assert (workload.max_output_tokens, workload.concurrency) == (100, 4)
    assert workload.sampling == Sampling(temperature=0.7, top_p=0.9, top_k=40, seed=1000)
    assert workload.slo is not None
    assert (workload.slo.ttft_ms, workload.slo.tpot_ms) == (None, 50.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slo: {tpot_ms: 50}\n", "mine.yaml:5: slo.reason is missing"),
        ("slo: {reason: because}\n", "mine.yaml:5: slo: needs at least one of ttft_ms, tpot_ms, e2e_ms"),
        ("slo: {tpot_ms: 0, reason: because}\n", "mine.yaml:5: slo.tpot_ms: should be greater than 0, found 0"),
        ("sampling: {temprature: 1}\n", "mine.yaml:5: sampling.temprature is not a known key"),
        ("sampling: {top_p: 0}\n", "mine.yaml:5: sampling.top_p: should be greater than 0, found 0"),
        ("concurrency: 1.5\n", "mine.yaml:5: concurrency: should be a whole number, found 1.5"),
        ("classes: {a: {}}\n", "mine.yaml:5: classes.a.description is missing"),
        ("quick: {max_tokens: 3}\n", "mine.yaml:5: quick.max_tokens is not a known key"),
    ],
)
def test_a_wrong_workload_file_says_where_and_what(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        read_workload(written(tmp_path, text))

    assert caught.value.message.replace(f"{tmp_path}/", "").startswith(message)


def test_limits_need_a_written_reason(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_text(REQUIRED.replace("limits_reason: short answers\n", ""), "utf-8")

    with pytest.raises(WorkloadError, match=r"mine\.yaml:1: limits_reason is missing"):
        read_workload(path)


def test_a_prompt_file_that_is_not_there_is_told_at_its_line(tmp_path: Path) -> None:
    path = written(tmp_path)
    (tmp_path / "mine.jsonl").unlink()

    with pytest.raises(WorkloadError, match=r"mine\.yaml:3: prompts: no such file: .*mine\.jsonl"):
        read_workload(path)


def test_a_prompt_of_an_undescribed_class_is_told_at_its_line(tmp_path: Path) -> None:
    path = written(tmp_path, "classes: {letters: {description: letters}, lists: {description: lists}}\n")
    (tmp_path / "mine.jsonl").write_text('\n{"class": "leters", "prompt": "x"}\n', "utf-8")

    with pytest.raises(WorkloadError) as caught:
        read_workload(path)

    assert caught.value.message == f"{tmp_path}/mine.jsonl:2: class 'leters' is not described in the workload"
    assert caught.value.hint == "did you mean 'letters'?"


def test_prompts_without_a_class_belong_to_the_only_one(tmp_path: Path) -> None:
    path = written(tmp_path, "classes: {letters: {description: letters}}\n", {"prompt": "x"})

    assert read_workload(path).prompts[0].prompt_class == "letters"


def test_a_prompt_file_alone_gets_default_limits(tmp_path: Path) -> None:
    written(tmp_path, "", {"prompt": "x"}, {"prompt": "y"})

    workload = read_workload(tmp_path / "mine.jsonl")

    assert (workload.name, len(workload.prompts), workload.max_output_tokens) == ("mine", 2, 96)
    assert not workload.certify_is_held_out


def test_skipped_lines_travel_with_the_workload(tmp_path: Path) -> None:
    path = written(tmp_path, "", {"prompt": "x"}, {"prompt": ""})

    assert [item.line for item in read_workload(path, skip_invalid=True).skipped] == [2]
    with pytest.raises(WorkloadError, match=r"mine\.jsonl:2: prompt is empty"):
        read_workload(path)


def test_an_unknown_name_names_the_nearest() -> None:
    with pytest.raises(NotFoundError) as caught:
        read_workload("code-gne")

    assert str(caught.value) == "no workload named 'code-gne'\ndid you mean 'code-gen'?"


def test_samples_take_the_classes_in_turn_and_share_no_prompt() -> None:
    workload = a_workload(
        *(a_prompt(f"a{n}", "a") for n in range(4)),
        *(a_prompt(f"b{n}", "b") for n in range(2)),
        *(a_prompt(f"c{n}", "c") for n in range(3)),
        search_prompts=4,
        certify_prompts=5,
    )

    assert ids(workload.search_sample()) == "a0 b0 c0 a1"
    assert ids(workload.certify_sample()) == "b1 c1 a2 c2 a3"
    assert workload.certify_is_held_out


def test_too_few_prompts_are_used_twice_unseen_ones_first() -> None:
    workload = a_workload(*(a_prompt(str(n)) for n in range(5)), search_prompts=3, certify_prompts=4)

    assert ids(workload.search_sample()) == "0 1 2"
    assert ids(workload.certify_sample()) == "3 4 0 1"
    assert not workload.certify_is_held_out


def test_quick_keeps_the_prompts_and_takes_fewer_and_shorter_ones() -> None:
    workload = a_workload(*(a_prompt(str(n)) for n in range(40)))

    quick = workload.quick()

    assert ids(quick.search_sample()) == "0 1 2 3 4 5"
    assert ids(quick.certify_sample()) == "6 7 8 9 10 11 12 13 14 15"
    assert quick.max_output_tokens == 64
    assert quick.prompts == workload.prompts
    assert workload.max_output_tokens == 96


def test_quick_never_makes_a_small_workload_larger() -> None:
    quick = a_workload(a_prompt("0"), search_prompts=2, certify_prompts=3).quick()

    assert (quick.search_prompts, quick.certify_prompts) == (2, 3)


def test_a_prompt_may_lower_the_cap_but_not_raise_it() -> None:
    workload = a_workload(a_prompt("0"))

    assert workload.output_cap(a_prompt("a")) == 96
    assert workload.output_cap(a_prompt("b", cap=8)) == 8
    assert workload.output_cap(a_prompt("c", cap=500)) == 96


def test_repetition_is_expected_only_where_the_class_says_so(tmp_path: Path) -> None:
    workload = read_workload(written(tmp_path, CLASSES))

    assert [workload.repetition_expected(name) for name in ("a", "b", "unknown")] == [False, True, False]


def test_other_prompts_keep_the_limits(tmp_path: Path) -> None:
    workload = read_workload(written(tmp_path, CLASSES))

    other = workload.with_prompts([a_prompt("9", "z")])

    assert ids(other.search_sample()) == "9"
    assert other.limits_reason == workload.limits_reason
    assert other.prompts_sha256 != workload.prompts_sha256
    with pytest.raises(WorkloadError, match="no prompts for workload 'mine'"):
        workload.with_prompts([])


def test_the_key_depends_on_what_is_measured_and_not_on_how_it_is_described(tmp_path: Path) -> None:
    workload = a_workload(a_prompt("0"))

    assert workload.key == workload.model_copy(update={"description": "else", "limits_reason": "else"}).key
    assert workload.key != workload.quick().key
    assert workload.key != workload.with_prompts([a_prompt("1")]).key


def test_a_workload_travels_between_processes() -> None:
    workload = a_workload(a_prompt("0"))

    assert pickle.loads(pickle.dumps(workload)) == workload  # noqa: S301 - our own bytes
