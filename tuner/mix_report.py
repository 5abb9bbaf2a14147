"""What a mix of workloads comes to: the answer as a sentence, the regrets as a table, all of it as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from tuner.documents import speculation_document
from tuner.mix import LatencyRatio, Mix, MixedConfiguration

SHOWN = 8
"""Fastest configurations in the table; those that are named elsewhere are added to them."""

NAMED = 5
"""Left-out configurations that are named."""

MEAN = "weighted mean of end-to-end latency relative to no speculation; weights are shares of requests"


def mix_sentence(found: Mix) -> str:
    """The answer: what to deploy, and what more than one deployment or a variable k would add."""
    parts = [_answer(found), f"separate deployments would add {_gain(found.separate_gain)}"]
    if found.variable_k is not None:
        parts.append(f"a k chosen anew in every round {_gain(found.variable_k.gain, 'at most ')}")
    return "; ".join(parts) + "."


def _answer(found: Mix) -> str:
    best, fastest = found.recommended, found.configurations[0]
    if not best.speculation.is_baseline:
        verb = "Use" if best.is_measured and best.high is not None and best.high < 1 else "Try"
        end = "" if best.is_measured else f", {_predicted_part(best)}"
        limits = "" if best.low is None or best.high is None else f" ({1 / best.high:.2f}–{1 / best.low:.2f})"
        name = best.speculation.label
        return f"{verb} {name} for this mix: {best.speedup:.2f} times the speed of no speculation{limits}{end}"
    if fastest.speculation.is_baseline:
        return "Do not speculate for this mix: no single configuration is faster"
    gain = f"gains {_gain(fastest.speedup - 1)} of the {_percent(found.margin)} asked for"
    return f"Do not speculate for this mix: the fastest, {fastest.speculation.label}, {gain}"


def _predicted_part(one: MixedConfiguration) -> str:
    return "partly predicted" if any(ratio.is_measured for ratio in one.ratios) else "as predicted"


def _gain(share: float, most: str = "") -> str:
    """A gain in whole per cent; what rounds to none is said so."""
    return f"{most}{_percent(share)}" if share >= 0.005 else "nothing"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def mix_notes(found: Mix) -> tuple[str, ...]:
    """What a reader must know beside the answer."""
    return tuple(_notes(found))


def _notes(found: Mix) -> Iterator[str]:
    best, safest = found.recommended, found.minimax
    worst = "nowhere slower than" if safest.worst_regret < 0.005 else f"at most {_percent(safest.worst_regret)} behind"
    yield f"smallest worst case: {safest.speculation.label}, {worst} the best of any workload"
    if not best.speculation.is_baseline and best.high is None:
        yield "too few prompts for an interval"
    elif best.high is not None and best.high >= 1 and not best.speculation.is_baseline:
        yield "the interval includes no gain"
    if not best.is_measured:
        labels = zip(_labels(found), best.ratios, strict=True)
        where = [label for label, ratio in labels if not ratio.is_measured]
        measured = found.best_measured
        yield f"{best.speculation.label} was predicted, not measured, on {', '.join(where)}; more --trials measure it"
        yield f"fastest of those measured everywhere: {measured.speculation.label}, {measured.speedup:.2f}"
    if found.left_out:
        more = "" if len(found.left_out) <= NAMED else f" and {len(found.left_out) - NAMED} more"
        names = ", ".join(one.label for one in found.left_out[:NAMED])
        yield f"left out, not known or not able to run on every workload: {names}{more}"


def _labels(found: Mix) -> tuple[str, ...]:
    """Names of the workloads, of the studies where two have one workload."""
    labels = [one.label for one in found.workloads]
    return tuple(one.study_name if labels.count(one.label) > 1 else one.label for one in found.workloads)


def mix_table(found: Mix) -> Table:
    """Speed-up and regret of configurations by workload: the fastest, and every one that the answer names."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("configuration", vertical="bottom")
    titles = ["mix\n(95 %)", "worst\nregret", "chance\nto be best"]
    titles += [f"{label}\n{_percent(share)}" for label, share in zip(_labels(found), found.shares, strict=True)]
    for title in titles:
        table.add_column(title, justify="right", vertical="bottom")
    rows = _shown(found)
    for one in rows:
        table.add_row(*_cells(one), style="bold green" if one is found.recommended else "")
    hidden = len(found.configurations) - len(rows)
    more = f"; slower ones left out: {hidden}, --json has them" if hidden else ""
    table.caption = (
        f"speed-up over no speculation and, in brackets, how much slower than the workload's best; ~ predicted{more}"
    )
    table.caption_justify = "left"
    return table


def _shown(found: Mix) -> list[MixedConfiguration]:
    named = {found.recommended.speculation, found.minimax.speculation, *found.separate}
    return [
        one
        for place, one in enumerate(found.configurations)
        if place < SHOWN or one.speculation in named or one.speculation.is_baseline
    ]


def _cells(one: MixedConfiguration) -> tuple[str, ...]:
    limits = "" if one.low is None or one.high is None else f" ({1 / one.high:.2f}–{1 / one.low:.2f})"
    return (
        one.speculation.label,
        f"{_mark(is_measured=one.is_measured)}{one.speedup:.2f}{limits}",
        _percent(one.worst_regret),
        _percent(one.probability_best),
        *(_cell(ratio, regret) for ratio, regret in zip(one.ratios, one.regrets, strict=True)),
    )


def _cell(ratio: LatencyRatio, regret: float) -> str:
    return f"{_mark(is_measured=ratio.is_measured)}{1 / ratio.estimate:.2f} [{_percent(regret)}]"


def _mark(*, is_measured: bool) -> str:
    return "" if is_measured else "~"


def mix_document(found: Mix) -> dict[str, Any]:
    """Everything about a mix, as one strict JSON object."""
    variable = found.variable_k
    return {
        "sentence": mix_sentence(found),
        "notes": list(mix_notes(found)),
        "mean": MEAN,
        "margin": found.margin,
        "workloads": [
            {"study": one.study_name, "workload": one.label, "share": share, "best": speculation_document(best)}
            for one, share, best in zip(found.workloads, found.shares, found.separate, strict=True)
        ],
        "recommended": _configuration_document(found, found.recommended),
        "minimax": _configuration_document(found, found.minimax),
        "separate_gain": found.separate_gain,
        "variable_k": None if variable is None else {"draft": variable.draft_name, "gain_at_most": variable.gain},
        "configurations": [_configuration_document(found, one) for one in found.configurations],
        "left_out": [speculation_document(one) for one in found.left_out],
    }


def _configuration_document(found: Mix, one: MixedConfiguration) -> dict[str, Any]:
    return {
        **speculation_document(one.speculation),
        "speedup": one.speedup,
        "speedup_low": None if one.high is None else 1 / one.high,
        "speedup_high": None if one.low is None else 1 / one.low,
        "latency_ratio": one.latency_ratio,
        "worst_regret": one.worst_regret,
        "probability_best": one.probability_best,
        "is_measured": one.is_measured,
        "workloads": [
            {"study": workload.study_name, **_ratio_document(ratio), "regret": regret}
            for workload, ratio, regret in zip(found.workloads, one.ratios, one.regrets, strict=True)
        ],
    }


def _ratio_document(ratio: LatencyRatio) -> dict[str, Any]:
    return {
        "speedup": 1 / ratio.estimate,
        "speedup_low": None if ratio.high is None else 1 / ratio.high,
        "speedup_high": None if ratio.low is None else 1 / ratio.low,
        "is_measured": ratio.is_measured,
    }
