"""Advice on drafts, as text and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace

from rich.console import Console

from tests.support.cli import check_text
from tuner.advice import Advice, DraftAdvice, TracedAcceptance
from tuner.advice_report import advice_document, advice_notes, advice_sentences, advice_table
from tuner.payoff import Requirement

TRACED = TracedAcceptance(first_token=0.66, proposing_share=1.0, equivalent=0.62, drafted_tokens=3, speedup=1.28)
EAGLE = DraftAdvice(
    draft_name="eagle",
    cost_share=0.07,
    requirements=(
        Requirement(speedup=1.02, acceptance=0.19, drafted_tokens=1),
        Requirement(speedup=1.5, acceptance=0.78, drafted_tokens=4),
        Requirement(speedup=2.0, acceptance=None, drafted_tokens=None),
    ),
    most_speedup=1.94,
    traced=TRACED,
)
NGRAM = replace(EAGLE, draft_name="ngram", cost_share=0.0, traced=replace(TRACED, proposing_share=0.31, speedup=1.01))
UNBORN = replace(EAGLE, draft_name=None, cost_share=0.05, traced=None)


def an_advice(*drafts: DraftAdvice) -> Advice:
    return Advice(speedups=(1.02, 1.5, 2.0), drafts=drafts, first_token_share=0.12, most_drafted_tokens=12)


def test_advice_reads_as_kept() -> None:
    advice = an_advice(EAGLE, NGRAM, UNBORN)
    console = Console(width=100, markup=False, highlight=False)
    with console.capture() as captured:
        for line in advice_sentences(advice):
            console.print(line, soft_wrap=True)
        console.print(advice_table(advice))
        for line in advice_notes(advice):
            console.print(f"  {line}", soft_wrap=True)
    check_text("advice", captured.get())


def test_whether_a_draft_pays_off_is_what_replay_says_of_it() -> None:
    assert advice_sentences(an_advice(EAGLE, NGRAM, UNBORN)) == (
        "eagle pays off: 1.28 times the speed predicted at k=3. Its acceptance is 62 %; "
        "1.02 times takes 19 %, 1.50 times takes 78 %, 2.00 times is out of reach.",
        "ngram does not pay off: 1.01 times the speed predicted at k=3. Its acceptance is 62 %; "
        "1.02 times takes 19 %, 1.50 times takes 78 %, 2.00 times is out of reach.",
    )


def test_without_a_traced_draft_the_cheapest_that_could_be_had_is_told() -> None:
    assert advice_sentences(an_advice(UNBORN, replace(UNBORN, cost_share=0.2))) == (
        "any draft at 5 % of a plain round per token: "
        "1.02 times takes 19 %, 1.50 times takes 78 %, 2.00 times is out of reach.",
    )


def test_the_document_is_strict_json_with_null_for_what_is_out_of_reach() -> None:
    document = json.loads(json.dumps(advice_document(an_advice(EAGLE, UNBORN)), allow_nan=False))
    eagle, unborn = document["drafts"]
    assert eagle["requirements"][2] == {"speedup": 2.0, "acceptance": None, "num_speculative_tokens": None}
    assert (eagle["traced"]["acceptance"], eagle["traced"]["first_token_acceptance"]) == (0.62, 0.66)
    assert (unborn["draft"], unborn["traced"]) == (None, None)
