"""What a study found and what a search would do, as tables, sentences and a plot for people."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tuner.charts import ChartPoint, DraftCurve, SpeedChart
from tuner.decide import Verdict
from tuner.documents import StudyResult, verdict_sentence
from tuner.estimate import PlanDescription, PlannedModel
from tuner.export import own_format
from tuner.store import StudyRecord, TrialRecord, TrialState

ABSENT = "–"
"""A figure that does not exist, such as the acceptance rate of no speculation."""

WIDE = 120
"""Characters of a table in files and pipes, where nothing says how wide it may be."""
_UNLIMITED = 1000

_STATES = {TrialState.RUNNING: "unfinished", TrialState.INFEASIBLE: "cannot run", TrialState.LOST: "lost"}


# ── text ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def trial_table(result: StudyResult, width: int = WIDE) -> Table:
    """One row per configuration that was tried, the recommended one marked; repeats are left out.

    Where ``width`` is too small for it titles are shorter and intervals stand below their estimates, then long names
    are folded, and at last columns are left out, which the caption says.
    """
    *others, last = (_trial_table(result, layout) for layout in _LAYOUTS)
    console = Console(width=_UNLIMITED)
    return next((table for table in others if console.measure(table).maximum <= width), last)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """How much room a table takes: whole titles, the longest name in one line, and columns left out."""

    is_wide: bool = False
    name_width: int = 40
    left_out: tuple[str, ...] = ()


_LAYOUTS = (
    _Layout(is_wide=True),
    _Layout(),
    _Layout(name_width=14),
    _Layout(name_width=8),
    _Layout(name_width=8, left_out=("predicted",)),
    _Layout(name_width=8, left_out=("predicted", "waste")),
    _Layout(name_width=8, left_out=("predicted", "waste", "length")),
)

# Short name, title in a wide and in a narrow table, justification.
_COLUMNS: tuple[tuple[str, str, str, Literal["left", "right"]], ...] = (
    ("number", "#", "#", "right"),
    ("name", "configuration", "draft", "left"),
    ("drafted", "drafted\ntokens", "draft\ntokens", "right"),
    ("rate", "acceptance\nrate", "accept.\nrate", "right"),
    ("length", "mean\nacceptance\nlength", "mean\naccept.\nlength", "right"),
    ("tpot", "TPOT\nms", "TPOT\nms", "right"),
    ("speedup", "speed-up\n(95 % interval)", "speed-up\n(95 %)", "right"),
    ("predicted", "predicted\nspeed-up", "pre-\ndicted", "right"),
    ("waste", "waste\nper\ntoken", "waste", "right"),
    ("identical", "identical\noutputs", "same\noutput", "right"),
)


def _trial_table(result: StudyResult, layout: _Layout) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold", padding=(0, 0, 0, 1 if layout.is_wide else 0))
    shown = [index for index, column in enumerate(_COLUMNS) if column[0] not in layout.left_out]
    for name, wide, narrow, justify in (_COLUMNS[index] for index in shown):
        room = layout.name_width if name == "name" else None
        title = wide if layout.is_wide else narrow
        table.add_column(
            title, justify=justify, max_width=room, no_wrap=room is None, overflow="fold", vertical="bottom"
        )
    chosen = None if result.recommended is None else result.recommended.number
    for trial in result.trials:
        if trial.duplicate_of is None:
            cells = _row(trial, is_wide=layout.is_wide)
            table.add_row(*(cells[index] for index in shown), style="bold green" if trial.number == chosen else "")
    if layout.left_out:
        table.caption = f"no room for: {', '.join(layout.left_out)}; --json has all"
    return table


def _row(trial: TrialRecord, *, is_wide: bool) -> tuple[str | Text, ...]:
    speculation, metrics = trial.speculation, trial.metrics
    name = "no speculation" if speculation.is_baseline and is_wide else speculation.draft_name
    tokens = ABSENT if speculation.is_baseline else str(speculation.drafted_tokens)
    predicted = _number(trial.predicted.get("speedup"), ".2f")
    if trial.state is not TrialState.COMPLETE:
        state = Text(_STATES[trial.state], style="yellow")
        return (str(trial.number), name, tokens, ABSENT, ABSENT, ABSENT, state, predicted, ABSENT, ABSENT)
    return (
        str(trial.number),
        name,
        tokens,
        _number(metrics.get("acceptance_rate"), ".0%"),
        ABSENT if speculation.is_baseline else _number(metrics.get("mean_acceptance_length"), ".2f"),
        _with_limits(metrics, "tpot_ms_mean", "tpot_ms", ".1f", is_wide=is_wide),
        _with_limits(metrics, "speedup", "speedup", ".2f", is_wide=is_wide),
        predicted,
        _number(metrics.get("waste_tokens_per_output_token"), ".2f"),
        _number(metrics.get("identical_share"), ".0%"),
    )


def _number(value: float | None, form: str) -> str:
    return ABSENT if value is None or not math.isfinite(value) else f"{value:{form}}".replace("%", " %")


def _with_limits(metrics: Mapping[str, float | None], name: str, limits: str, form: str, *, is_wide: bool) -> str:
    """The figure, with its interval where there is one."""
    low, high = metrics.get(f"{limits}_low"), metrics.get(f"{limits}_high")
    text = _number(metrics.get(name), form)
    if low is None or high is None:
        return text
    interval = f"{low:{form}}–{high:{form}}"
    return f"{text} ({interval})" if is_wide else f"{text}\n{interval}"


def reasons(trials: Sequence[TrialRecord]) -> tuple[str, ...]:
    """Why trials did not end well, one line each."""
    return tuple(
        f"trial {trial.number}, {trial.speculation.label}, {_STATES[trial.state]}: {_first_line(trial.error)}"
        for trial in trials
        if trial.state in (TrialState.INFEASIBLE, TrialState.LOST) and trial.duplicate_of is None
    )


def _first_line(text: str | None) -> str:
    return next(iter((text or "no reason was kept").splitlines()), "")


def verdict_notes(result: StudyResult) -> tuple[str, ...]:
    """What a reader must know beside the verdict: identical outputs, and what the interval does not contain."""
    decision = result.decision
    if decision is None:
        return ()
    agreement = decision.agreement
    if agreement is None or agreement.share_identical is None:
        return decision.notes
    share = _number(agreement.share_identical, ".0%")
    return (f"{share} of {agreement.pairs} outputs identical to those without speculation", *decision.notes)


def next_steps(result: StudyResult) -> tuple[str, ...]:
    """Commands that follow from the verdict."""
    name = shlex.quote(result.study.name)
    if result.decision is None:
        return ()
    if result.decision.recommends:
        return (f"tuner export {name} {_export_options(result)}", f"tuner show {name}")
    if result.decision.verdict is Verdict.DO_NOT_SPECULATE:
        return (f"tuner show {name}", f"tuner export {name} --format json")
    return ("search again with more prompts: without --quick, or with your own --prompts", f"tuner show {name}")


def _export_options(result: StudyResult) -> str:
    """For vLLM where it can serve the recommended draft, else JSON."""
    draft = None if result.recommended is None else result.recommended.speculation.draft_model
    folder = None if draft is None else result.study.provenance.get("models", {}).get(draft)
    return "--format vllm --output vllm.yaml" if own_format(folder) is None else "--format json --output tuned.json"


def metric_table(trial: TrialRecord) -> Table:
    """Every figure of one trial, measured beside predicted."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("figure")
    table.add_column("measured", justify="right")
    table.add_column("predicted", justify="right")
    figures: dict[str, float | None] = {**trial.values, **trial.metrics}
    for name in dict.fromkeys((*figures, *trial.predicted)):
        table.add_row(name, _figure(figures.get(name)), _figure(trial.predicted.get(name)))
    return table


def _figure(value: float | None) -> str:
    return ABSENT if value is None else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


# ── a plan ────────────────────────────────────────────────────────────────────────────────────────────────────────


def plan_table(plan: PlanDescription) -> Table:
    """The stages that a search would run, with prompts and seconds at most."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("stage")
    for title in ("times", "requests in each", "at most"):
        table.add_column(title, justify="right")
    for stage in plan.stages:
        table.add_row(str(stage.kind), str(stage.count), str(stage.requests), duration(stage.seconds))
    return table


def plan_sentences(plan: PlanDescription) -> tuple[str, ...]:
    """What a search would do, how long it would take, and what it would fetch and keep."""
    study = () if plan.study is None else (f"study {plan.study}",)
    return (
        *study,
        f"{plan.workload}: {plan.max_trials} of the {plan.configurations} configurations of {plan.space} would be "
        "measured at most, no speculation among them",
        f"about {duration(plan.seconds)} at most on a plain machine of two cores, models fetched beforehand",
        *(_model_sentence(model) for model in plan.models),
        f"to fetch: {size(plan.download_bytes)}, to keep on disk: {size(plan.disk_bytes)}",
        *(f"note: {notice}" for notice in plan.notices),
    )


def _model_sentence(model: PlannedModel) -> str:
    if model.is_here:
        return f"model {model.name}: is here"
    known = model.download_bytes is not None
    return f"model {model.name}: would be fetched, {size(model.download_bytes or 0) if known else 'size not known'}"


def duration(seconds: float) -> str:
    """Seconds in the unit that a person would say."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def size(num_bytes: int) -> str:
    """Bytes in the unit that a person would say."""
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"


# ── the plot ──────────────────────────────────────────────────────────────────────────────────────────────────────


def speed_chart(result: StudyResult) -> SpeedChart:
    """Speed-up over drafted tokens, per draft: predicted, measured and certified."""
    curves = [
        DraftCurve(
            draft_name=name,
            predicted=tuple(_predicted_points(result, name)),
            measured=tuple(_point(one) for one in _measured(result) if one.speculation.draft_name == name),
            certified=_certified_point(result, name),
        )
        for name in _draft_names(result)
    ]
    return SpeedChart(title=_title(result.study), verdict=verdict_sentence(result), curves=tuple(curves))


def _draft_names(result: StudyResult) -> tuple[str, ...]:
    tried = {trial.speculation.draft_name for trial in result.trials if not trial.speculation.is_baseline}
    return tuple(sorted(tried | {name for name, _ in result.predictions.by_configuration}))


def _predicted_points(result: StudyResult, draft_name: str) -> Iterator[ChartPoint]:
    for (name, tokens), prediction in sorted(result.predictions.by_configuration.items()):
        if name == draft_name:
            yield ChartPoint(
                drafted_tokens=tokens,
                speedup=prediction.speedup,
                low=prediction.speedup_low,
                high=prediction.speedup_high,
            )


def _measured(result: StudyResult) -> Iterator[TrialRecord]:
    for trial in result.trials:
        is_first = trial.state is TrialState.COMPLETE and trial.duplicate_of is None
        if is_first and not trial.speculation.is_baseline and trial.metrics.get("speedup") is not None:
            yield trial


def _point(trial: TrialRecord) -> ChartPoint:
    metrics = trial.metrics
    rate = _number(metrics.get("acceptance_rate"), ".0%")
    length = _number(metrics.get("mean_acceptance_length"), ".2f")
    return ChartPoint(
        drafted_tokens=trial.speculation.drafted_tokens,
        speedup=metrics["speedup"] or 0.0,
        low=metrics.get("speedup_low"),
        high=metrics.get("speedup_high"),
        note=f"trial {trial.number}: acceptance rate {rate}, mean acceptance length {length}",
    )


def _certified_point(result: StudyResult, draft_name: str) -> ChartPoint | None:
    decision = result.decision
    if decision is None or decision.candidate is None or decision.speedup is None:
        return None
    if decision.candidate.draft_name != draft_name:
        return None
    return ChartPoint(
        drafted_tokens=decision.candidate.drafted_tokens,
        speedup=decision.speedup.estimate,
        low=decision.speedup.low,
        high=decision.speedup.high,
        note=f"alternating blocks with no speculation, {decision.speedup.n} prompts",
    )


def _title(study: StudyRecord) -> str:
    workload = study.spec.get("workload")
    name = workload.get("name") if isinstance(workload, Mapping) else None
    target = study.spec.get("target")
    return " on ".join(str(part) for part in (name, target) if part) or study.name
