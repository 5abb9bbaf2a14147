"""The answer about a mix, as text and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from rich.console import Console

from tests.support.cli import check_text
from tuner.mix import LatencyRatio, Mix, MixWorkload, mix
from tuner.mix_report import mix_document, mix_notes, mix_sentence, mix_table
from tuner.speculation import NO_SPECULATION, Method, Speculation


def ngram(drafted_tokens: int) -> Speculation:
    return Speculation(method=Method.NGRAM, draft_name="ngram", drafted_tokens=drafted_tokens)


def a_ratio(speedup: float, *, is_measured: bool = True) -> LatencyRatio:
    return LatencyRatio(estimate=1 / speedup, low=1 / (speedup * 1.05), high=1.05 / speedup, is_measured=is_measured)


def a_workload(label: str, weight: float, speedups: dict[int, float], **changes: Any) -> MixWorkload:
    workload = MixWorkload(
        study_name=f"{label}-1",
        label=label,
        weight=weight,
        ratios={
            NO_SPECULATION: LatencyRatio(estimate=1.0, low=1.0, high=1.0, is_measured=True),
            **{ngram(k): a_ratio(speedup) for k, speedup in speedups.items()},
        },
    )
    return replace(workload, **changes)


CODE = a_workload("code", 3, {2: 1.5, 4: 1.8, 6: 2.0}, replayed={ngram(6): 0.5}, oracle={"ngram": 0.45})
CHAT = a_workload("chat", 1, {2: 1.2, 4: 1.15, 6: 1.0}, replayed={ngram(6): 1.0}, oracle={"ngram": 0.8})


def text_of(found: Mix) -> str:
    console = Console(width=100, markup=False, highlight=False, record=True, file=None, quiet=False)
    with console.capture() as captured:
        console.print(mix_sentence(found), soft_wrap=True)
        for note in mix_notes(found):
            console.print(f"  {note}", soft_wrap=True)
        console.print(mix_table(found))
    return captured.get()


def test_a_measured_mix_reads_as_kept() -> None:
    check_text("mix", text_of(mix([CODE, CHAT])))


def test_a_predicted_mix_reads_as_kept() -> None:
    guessed = replace(CHAT, ratios={**CHAT.ratios, ngram(6): a_ratio(1.3, is_measured=False)})
    check_text("mix-predicted", text_of(mix([CODE, guessed])))


def test_the_answer_names_what_to_use_and_what_more_would_add() -> None:
    # 0.75 / 2 + 0.25 = 0.625; apart 0.75 / 2 + 0.25 / 1.2; oracle 0.75 · 0.45 + 0.25 · 0.8 against 0.625 predicted
    assert mix_sentence(mix([CODE, CHAT])) == (
        "Use ngram k=6 for this mix: 1.60 times the speed of no speculation (1.52–1.68); "
        "separate deployments would add 7 %; a k chosen anew in every round at most 16 %."
    )


def test_where_nothing_gains_the_answer_is_not_to_speculate() -> None:
    slow = [a_workload(name, 1, {2: 0.8}) for name in ("code", "chat")]
    assert mix_sentence(mix(slow)) == (
        "Do not speculate for this mix: no single configuration is faster; separate deployments would add nothing."
    )


def test_a_gain_below_the_margin_is_told_with_the_margin() -> None:
    small = [a_workload(name, 1, {2: 1.01}) for name in ("code", "chat")]
    assert mix_sentence(mix(small)).startswith(
        "Do not speculate for this mix: the fastest, ngram k=2, gains 1 % of the 2 % asked for;"
    )


def test_an_interval_that_includes_no_gain_is_said_so() -> None:
    unsure = mix([a_workload(one, 1, {2: 1.03}) for one in ("a", "b")])
    assert "the interval includes no gain" in mix_notes(unsure)
    assert mix_sentence(unsure).startswith("Try ngram k=2 for this mix: 1.03 times")


def test_without_an_interval_a_configuration_is_only_to_be_tried() -> None:
    few = LatencyRatio(estimate=0.5, low=None, high=None, is_measured=True)
    found = mix([replace(CODE, ratios={**CODE.ratios, ngram(6): few}), CHAT])
    assert "too few prompts for an interval" in mix_notes(found)
    assert mix_sentence(found).startswith("Try ngram k=6 for this mix: 1.60 times the speed of no speculation;")


def test_what_was_left_out_is_named() -> None:
    found = mix([CODE, a_workload("chat", 1, {2: 1.2})])
    assert mix_notes(found)[-1] == "left out, not known or not able to run on every workload: ngram k=4, ngram k=6"


def test_two_studies_of_one_workload_are_told_apart_by_their_names() -> None:
    again = replace(CODE, study_name="code-2")
    header = text_of(mix([CODE, again])).splitlines()
    assert any("code-1" in line and "code-2" in line for line in header)


def test_the_document_is_strict_json_with_every_configuration() -> None:
    document = json.loads(json.dumps(mix_document(mix([CODE, CHAT])), allow_nan=False))
    assert [one["configuration"] for one in document["configurations"]] == [
        "ngram k=6", "ngram k=4", "ngram k=2", "no speculation",
    ]  # fmt: skip
    assert [(one["study"], one["share"], one["best"]["configuration"]) for one in document["workloads"]] == [
        ("code-1", 0.75, "ngram k=6"),
        ("chat-1", 0.25, "ngram k=2"),
    ]
    recommended = document["recommended"]
    assert (recommended["num_speculative_tokens"], recommended["is_measured"]) == (6, True)
    assert recommended["workloads"][1]["regret"] == document["recommended"]["worst_regret"]
    assert document["variable_k"]["draft"] == "ngram"
    assert document["minimax"]["configuration"] == "ngram k=4"
