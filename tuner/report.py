"""What a study found and what a search would do, as tables and sentences for people."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from functools import partial

from rich.table import Table
from rich.text import Text

from tuner.comparison import Comparison, comparisons
from tuner.decide import Verdict
from tuner.documents import StudyResult
from tuner.estimate import PLAIN_MACHINE, PlanDescription, PlannedMachines, PlannedModel
from tuner.export import own_format
from tuner.objective import figures_at
from tuner.store import ParetoEntry, TrialRecord, TrialState
from tuner.tables import ABSENT, WIDE, Cell, Column, fitted_table, number, plain_table, row, with_limits
from tuner.verdict import spoken_load

ALARM = "ALARM"
"""What a note begins with that casts doubt on the measurement."""

_STATES = {TrialState.RUNNING: "unfinished", TrialState.INFEASIBLE: "cannot run", TrialState.LOST: "lost"}


# ── text ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def result_tables(result: StudyResult, width: int = WIDE) -> Iterator[tuple[str, Table]]:
    """All tables of a study, each with its heading; the first needs none."""
    yield "", trial_table(result, width)
    if (compared := comparison_table(result, width)) is not None:
        yield "Predicted, each before it was measured, and measured:", compared
    if (front := front_table(result)) is not None:
        yield "Pareto front, each with the chance of being on the true one:", front


def trial_table(result: StudyResult, width: int = WIDE) -> Table:
    """One row per configuration that was tried, the recommended one marked; repeats are left out.

    Figures are those of the number of requests in flight that the verdict is about.
    """
    chosen = None if result.recommended is None else result.recommended.number
    load = None if result.decision is None else result.decision.concurrency
    rows = [
        row(partial(_cells, trial, load), "bold green" if trial.number == chosen else "")
        for trial in result.trials
        if trial.duplicate_of is None
    ]
    caption = spoken_load(load).strip()
    return fitted_table(_COLUMNS, rows, width, dispensable=("predicted", "waste", "length"), caption=caption)


_COLUMNS = (
    Column(name="number", title="#", narrow_title="#"),
    Column(name="name", title="configuration", narrow_title="draft", justify="left"),
    Column(name="drafted", title="drafted\ntokens", narrow_title="draft\ntokens"),
    Column(name="rate", title="acceptance\nrate", narrow_title="accept.\nrate"),
    Column(name="length", title="mean\nacceptance\nlength", narrow_title="mean\naccept.\nlength"),
    Column(name="tpot", title="TPOT\nms", narrow_title="TPOT\nms"),
    Column(name="speedup", title="speed-up\n(95 % interval)", narrow_title="speed-up\n(95 %)"),
    Column(name="predicted", title="predicted\nspeed-up", narrow_title="pre-\ndicted"),
    Column(name="waste", title="waste\nper\ntoken", narrow_title="waste"),
    Column(name="identical", title="identical\noutputs", narrow_title="same\noutput"),
)


def _cells(trial: TrialRecord, load: int | None, *, is_wide: bool) -> tuple[Cell, ...]:
    speculation, metrics = trial.speculation, figures_at(trial.metrics, load)
    name = "no speculation" if speculation.is_baseline and is_wide else speculation.draft_name
    tokens = ABSENT if speculation.is_baseline else str(speculation.drafted_tokens)
    predicted = number(figures_at(trial.predicted, load).get("speedup"), ".2f")
    if trial.state is not TrialState.COMPLETE:
        state = Text(_STATES[trial.state], style="yellow")
        return (str(trial.number), name, tokens, ABSENT, ABSENT, ABSENT, state, predicted, ABSENT, ABSENT)
    return (
        str(trial.number),
        name,
        tokens,
        number(metrics.get("acceptance_rate"), ".0%"),
        ABSENT if speculation.is_baseline else number(metrics.get("mean_acceptance_length"), ".2f"),
        with_limits(metrics, "tpot_ms_mean", "tpot_ms", ".1f", is_wide=is_wide),
        with_limits(metrics, "speedup", "speedup", ".2f", is_wide=is_wide),
        predicted,
        number(metrics.get("waste_tokens_per_output_token"), ".2f"),
        number(metrics.get("identical_share"), ".0%"),
    )


_COMPARED = (
    Column(name="number", title="#", narrow_title="#"),
    Column(name="name", title="configuration", narrow_title="draft", justify="left"),
    Column(name="drafted", title="drafted\ntokens", narrow_title="draft\ntokens"),
    Column(name="predicted", title="predicted speed-up\n(95 % interval)", narrow_title="pre-\ndicted"),
    Column(name="measured", title="measured\n(95 % interval)", narrow_title="mea-\nsured"),
    Column(name="difference", title="difference", narrow_title="differ-\nence"),
    Column(name="tpot", title="TPOT ms\npredicted /\nmeasured", narrow_title="TPOT\npred. /\nmeas."),
    Column(name="length", title="acc. length\nreplayed /\nmeasured", narrow_title="length\nrepl. /\nmeas."),
)


def comparison_table(result: StudyResult, width: int = WIDE) -> Table | None:
    """What was predicted of each measured configuration beside what was measured; None where nothing was."""
    found = comparisons(result.trials, result.decision.concurrency if result.decision else None)
    rows = [row(partial(_compared, one), "" if one.agrees is not False else "yellow") for one in found]
    if not rows:
        return None
    told = [one.agrees for one in found if one.agrees is not None]
    caption = f"{sum(told)} of {len(told)} agree within their intervals" if told else ""
    return fitted_table(_COMPARED, rows, width, dispensable=("length", "tpot"), caption=caption)


def _compared(one: Comparison, *, is_wide: bool) -> tuple[Cell, ...]:
    limited = [
        with_limits(side, "speedup", "speedup", ".2f", is_wide=is_wide) for side in (one.predicted, one.measured)
    ]
    return (
        str(one.trial),
        one.speculation.draft_name,
        str(one.speculation.drafted_tokens),
        *limited,
        number(one.difference("speedup"), "+.1%"),
        _pair(one, "tpot_ms_mean", ".1f", is_wide=is_wide),
        _pair(one, "mean_acceptance_length", ".2f", is_wide=is_wide),
    )


def _pair(one: Comparison, name: str, form: str, *, is_wide: bool) -> str:
    separator = " / " if is_wide else "\n"
    return separator.join(number(side.get(name), form) for side in (one.predicted, one.measured))


FRONT_ROWS = 8


def front_table(result: StudyResult) -> Table | None:
    """The Pareto front: measured members, and the predicted ones most likely on it; None where there is no front."""
    if not result.pareto:
        return None
    shown = _shown_members(result.pareto)
    objectives = list(dict.fromkeys(name for entry in shown for name in entry.values))
    table = plain_table()
    table.add_column("configuration", overflow="fold")
    table.add_column("known by")
    for title in (*objectives, "chance"):
        table.add_column(title, justify="right")
    for entry in shown:
        known_by = "prediction" if entry.trial_number is None else f"trial {entry.trial_number}"
        values = [_figure(entry.values.get(name)) for name in objectives]
        table.add_row(entry.speculation.label, known_by, *values, number(entry.probability, ".0%"))
    more = len(result.pareto) - len(shown)
    table.caption = f"and {more} predicted members that are less likely; --json has all" if more else None
    return table


def _shown_members(front: Sequence[ParetoEntry]) -> list[ParetoEntry]:
    """All measured members, and as many predicted ones as there is room for, in the front's own order."""
    predicted = sorted((one for one in front if not one.is_measured), key=lambda one: -(one.probability or 0.0))
    room = max(0, FRONT_ROWS - (len(front) - len(predicted)))
    kept = predicted[:room]
    return [one for one in front if one.is_measured or one in kept]


def stop_sentence(result: StudyResult) -> str | None:
    """Why no further configuration was tried; None where that is not known."""
    return None if result.stopped is None else f"The search stopped: {result.stopped.text}."


def reasons(trials: Sequence[TrialRecord]) -> tuple[str, ...]:
    """Why trials did not end well, one line each."""
    return tuple(
        f"trial {trial.number}, {trial.speculation.label}, {_STATES[trial.state]}: {_first_line(trial.error)}"
        for trial in trials
        if trial.state in (TrialState.INFEASIBLE, TrialState.LOST) and trial.duplicate_of is None
    )


def _first_line(text: str | None) -> str:
    return next(iter((text or "no reason was kept").splitlines()), "")


def verdict_notes(result: StudyResult) -> tuple[Text, ...]:
    """What a reader must know beside the verdict: alarms, identical outputs, and what the interval does not contain."""
    decision = result.decision
    if decision is None:
        return ()
    alarms = [note for note in decision.notes if note.startswith(ALARM)]
    others = [note for note in decision.notes if not note.startswith(ALARM)]
    agreement = decision.agreement
    if agreement is not None and agreement.share_identical is not None:
        share = number(agreement.share_identical, ".0%")
        others.insert(0, f"{share} of {agreement.pairs} outputs identical to those without speculation")
    return (*(Text(note, style="bold red") for note in alarms), *(Text(note) for note in others))


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
    table = plain_table()
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
    table = plain_table()
    table.add_column("stage")
    for title in ("times", "requests in each", "at most"):
        table.add_column(title, justify="right")
    table.add_column("each holds")
    for stage in plan.stages:
        requests = str(stage.requests) if stage.requests else ABSENT
        table.add_row(str(stage.kind), str(stage.count), requests, duration(stage.seconds), stage.holds)
    return table


def plan_sentences(plan: PlanDescription) -> tuple[str, ...]:
    """What a search would do, how long it would take, and what it would fetch and keep."""
    study = () if plan.study is None else (f"study {plan.study}",)
    return (
        *study,
        f"{plan.workload}: {plan.max_trials} of the {plan.configurations} configurations of {plan.space} would be "
        "measured at most, no speculation among them",
        *_machine_sentences(plan),
        *(_model_sentence(model) for model in plan.models),
        f"to fetch: {size(plan.download_bytes)}, to keep on disk: {size(plan.disk_bytes)}{_artifacts(plan)}",
        *(f"note: {notice}" for notice in plan.notices),
    )


def _machine_sentences(plan: PlanDescription) -> Iterator[str]:
    machines = plan.machines
    if plan.compiles:
        each = f"each about {duration(plan.compile_s)} by the size of the models; what was compiled earlier is taken"
        yield f"compiles: {plan.compiles} at most, {each}"
    flight = "" if machines.parallel == 1 else f" with {machines.parallel} configurations in flight"
    yield f"about {duration(machines.wall_s)} at most{flight}, {_assumption(plan)}, models fetched beforehand"
    if machines.device is not None:
        blocks = f"{machines.block_hours:.1f} hours of blocks of {machines.block}"
        yield f"devices: {machines.device_hours:.1f} hours of {machines.device} at most, {blocks}"
    further = f" and {machines.compile_machine_hours:.1f} hours of others that compile"
    held = f"{machines.count} of {machines.hardware} for {duration(machines.wall_s)} at most"
    yield f"machines: {held}{further if machines.compile_machine_hours else ''}, {_cost(machines)}"


def _assumption(plan: PlanDescription) -> str:
    if plan.models[0].disk_bytes is None:
        return "the time of tokens left out, as the size of the target is not known"
    if plan.assumed_device == PLAIN_MACHINE:
        return "as on a plain machine of two cores"
    return f"by published times of {plan.assumed_device}"


def _cost(machines: PlannedMachines) -> str:
    if machines.cost is not None:
        return f"{machines.cost:,.2f} {machines.currency}"
    missing = "--price-per-hour" if machines.price_per_hour is None else "compile_price_per_hour in the hardware file"
    return f"cost not known without {missing}"


def _artifacts(plan: PlanDescription) -> str:
    machines = plan.machines
    if not plan.compiles:
        return ""
    place = "on each machine" if machines.artifacts is None else f"in {machines.artifacts}"
    known = (
        "of a size that is not known" if machines.artifact_bytes is None else f"up to {size(machines.artifact_bytes)}"
    )
    return f", and compiled artifacts {known} {place}"


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
