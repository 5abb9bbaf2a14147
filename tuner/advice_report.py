"""What the drafts of a study must reach, as sentences, a table and JSON."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from tuner.advice import Advice, DraftAdvice, TracedAcceptance
from tuner.payoff import Requirement

ABSENT = "–"
MODEL = "every drafted token is right with one probability, whatever came before; the draft always proposes k tokens"


def advice_sentences(advice: Advice) -> tuple[str, ...]:
    """The answer: one sentence for each draft that was traced, else one for the cheapest draft that could be had."""
    traced = [one for one in advice.drafts if one.traced is not None]
    return tuple(_sentence(one) for one in traced or advice.drafts[:1])


def _sentence(one: DraftAdvice) -> str:
    needs = ", ".join(_need(need) for need in one.requirements)
    if one.traced is None:
        return f"{_name(one)} of a plain round per token: {needs}."
    pays = one.traced.speedup >= one.requirements[0].speedup
    verdict = "pays off" if pays else "does not pay off"
    predicted = f"{one.traced.speedup:.2f} times the speed predicted at k={one.traced.drafted_tokens}"
    return f"{one.draft_name} {verdict}: {predicted}. Its acceptance is {_percent(one.traced.equivalent)}; {needs}."


def _name(one: DraftAdvice) -> str:
    return one.draft_name or f"any draft at {_percent(one.cost_share)}"


def _need(need: Requirement) -> str:
    takes = "is out of reach" if need.acceptance is None else f"takes {_percent(need.acceptance)}"
    return f"{need.speedup:.2f} times {takes}"


def _percent(share: float | None) -> str:
    return ABSENT if share is None else f"{100 * share:.0f} %"


def advice_table(advice: Advice) -> Table:
    """One row per draft: what each speed-up takes, and what the draft has."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("draft", vertical="bottom")
    titles = ("cost of\na token", *(f"{one:.2f} ×\ntakes" for one in advice.speedups), "at most")
    for title in (*titles, "has", "first\ntoken", "speed-up\npredicted"):
        table.add_column(title, justify="right", vertical="bottom")
    for one in advice.drafts:
        needs = (_cell(need) for need in one.requirements)
        table.add_row(_name(one), _percent(one.cost_share), *needs, f"{one.most_speedup:.2f} ×", *_has(one.traced))
    return table


def _cell(need: Requirement) -> str:
    return "never" if need.acceptance is None else f"{_percent(need.acceptance)} k={need.drafted_tokens}"


def _has(traced: TracedAcceptance | None) -> tuple[str, str, str]:
    if traced is None:
        return ABSENT, ABSENT, ABSENT
    return (
        _percent(traced.equivalent),
        _percent(traced.first_token),
        f"{traced.speedup:.2f} k={traced.drafted_tokens}",
    )


def advice_notes(advice: Advice) -> tuple[str, ...]:
    """How to read the figures."""
    rarely = [
        f"{one.draft_name} proposes something at {_percent(one.traced.proposing_share)} of the positions only"
        for one in advice.drafts
        if one.traced is not None and one.traced.proposing_share < 0.995
    ]
    return (
        f"a model: {MODEL}",
        f"{_percent(advice.first_token_share)} of the latency without speculation comes before the first token: no "
        "draft shortens it",
        f"k up to {advice.most_drafted_tokens}, as far as rounds are priced; costs are shares of a plain round",
        *rarely,
    )


def advice_document(advice: Advice) -> dict[str, Any]:
    """Everything about the advice, as one strict JSON object."""
    return {
        "sentences": list(advice_sentences(advice)),
        "model": MODEL,
        "first_token_share": advice.first_token_share,
        "most_drafted_tokens": advice.most_drafted_tokens,
        "drafts": [_draft_document(one) for one in advice.drafts],
    }


def _draft_document(one: DraftAdvice) -> dict[str, Any]:
    return {
        "draft": one.draft_name,
        "cost_share": one.cost_share,
        "requirements": [
            {"speedup": need.speedup, "acceptance": need.acceptance, "num_speculative_tokens": need.drafted_tokens}
            for need in one.requirements
        ],
        "most_speedup": one.most_speedup,
        "traced": None if one.traced is None else _traced_document(one.traced),
    }


def _traced_document(traced: TracedAcceptance) -> dict[str, Any]:
    return {
        "acceptance": traced.equivalent,
        "first_token_acceptance": traced.first_token,
        "proposing_share": traced.proposing_share,
        "num_speculative_tokens": traced.drafted_tokens,
        "predicted_speedup": traced.speedup,
    }
