"""What a study found, as a table, as sentences, as a plot and as one JSON document."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from tuner.charts import ChartPoint, DraftCurve, SpeedChart
from tuner.decide import Decision, Verdict
from tuner.export import Chosen
from tuner.predictions import Predictions
from tuner.records import to_json
from tuner.speculation import EngineConfig, Speculation
from tuner.store import ParetoEntry, StudyRecord, TrialRecord, TrialState

ABSENT = "–"
"""A figure that does not exist, such as the acceptance rate of no speculation."""

NO_VERDICT = "No verdict yet: this search has not ended; the command that started it goes on with it."

WIDE = 112
"""Characters that the table takes with whole words in its titles."""

_STATES = {TrialState.RUNNING: "unfinished", TrialState.INFEASIBLE: "cannot run", TrialState.LOST: "lost"}


class StudyResult(Protocol):
    """What a report needs of a study, finished or not; a search's own result is one.

    Attributes are read only. ``decision`` is None while there is no verdict, ``baseline`` while it is not measured.
    """

    @property
    def study(self) -> StudyRecord:
        """What was asked for."""
        ...

    @property
    def decision(self) -> Decision | None:
        """The verdict."""
        ...

    @property
    def baseline(self) -> TrialRecord | None:
        """Trial 0, no speculation."""
        ...

    @property
    def recommended(self) -> TrialRecord | None:
        """The trial to deploy, where the verdict is to speculate."""
        ...

    @property
    def trials(self) -> tuple[TrialRecord, ...]:
        """All trials by number."""
        ...

    @property
    def predictions(self) -> Predictions:
        """What replay said of every configuration."""
        ...

    @property
    def pareto(self) -> tuple[ParetoEntry, ...]:
        """The front."""
        ...


# ── text ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def trial_table(result: StudyResult, width: int = WIDE) -> Table:
    """One row per configuration that was tried, the recommended one marked; repeats are left out.

    Below ``WIDE`` characters titles are shorter and intervals stand below their estimates; no column is dropped.
    """
    is_wide = width >= WIDE
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold", padding=(0, 1 if is_wide else 0, 0, 1))
    for wide, narrow, justify in _COLUMNS:
        title, no_wrap = (wide if is_wide else narrow), wide != "configuration"
        table.add_column(title, justify=justify, no_wrap=no_wrap, overflow="fold", vertical="bottom")
    chosen = None if result.recommended is None else result.recommended.number
    for trial in result.trials:
        if trial.duplicate_of is None:
            cells = _row(trial, is_wide=is_wide)
            table.add_row(*cells, style="bold green" if trial.number == chosen else "")
    return table


_COLUMNS: tuple[tuple[str, str, Literal["left", "right"]], ...] = (
    ("#", "#", "right"),
    ("configuration", "draft", "left"),
    ("drafted\ntokens", "draft\ntokens", "right"),
    ("acceptance\nrate", "accept.\nrate", "right"),
    ("mean\nacceptance\nlength", "mean\naccept.\nlength", "right"),
    ("TPOT\nms", "TPOT\nms", "right"),
    ("speed-up\n(95 % interval)", "speed-up\n(95 %)", "right"),
    ("predicted\nspeed-up", "pre-\ndicted", "right"),
    ("wasted per\noutput\ntoken", "waste", "right"),
    ("identical\noutputs", "same\noutput", "right"),
)


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


def verdict_sentence(result: StudyResult) -> str:
    """The verdict, in one sentence."""
    return NO_VERDICT if result.decision is None else result.decision.sentence


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
    name = result.study.name
    if result.decision is None:
        return ()
    if result.decision.verdict is Verdict.RECOMMEND:
        return (f"tuner export {name} --format vllm --output vllm.yaml", f"tuner show {name}")
    if result.decision.verdict is Verdict.DO_NOT_SPECULATE:
        return (f"tuner show {name}", f"tuner export {name} --format json")
    return ("tuner search --workload … with more prompts, or without --quick", f"tuner show {name}")


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


# ── JSON ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def result_document(result: StudyResult) -> dict[str, Any]:
    """Everything about a study, as one strict JSON object: finite numbers only, null for what does not exist."""
    decision = result.decision
    return {
        "study": result.study.name,
        "verdict": None if decision is None else str(decision.verdict),
        "sentence": verdict_sentence(result),
        "decision": None if decision is None else _finite(json.loads(to_json(decision))),
        "baseline": None if result.baseline is None else trial_document(result.baseline),
        "recommended": None if result.recommended is None else trial_document(result.recommended),
        "pareto": [_member_document(entry) for entry in result.pareto],
        "trials": [trial_document(trial) for trial in result.trials],
        "created_at": result.study.created_at.isoformat(),
        "spec": _finite(result.study.spec),
        "provenance": _finite(result.study.provenance),
    }


def export_document(result: StudyResult, config: EngineConfig, chosen: Chosen) -> dict[str, Any]:
    """A configuration with everything that stands behind it: decision, intervals, conditions, provenance."""
    decision = result.decision
    return {
        "study": result.study.name,
        "trial": chosen.trial.number,
        "is_certified": chosen.is_certified,
        "verdict": None if decision is None else str(decision.verdict),
        "sentence": verdict_sentence(result),
        "configuration": {
            **speculation_document(config.speculation),
            "target_model": config.target_model,
            "max_num_seqs": config.max_num_seqs,
            "max_model_len": config.max_model_len,
            "weight_format": config.weight_format,
            "num_threads": config.num_threads,
        },
        "measured": trial_document(chosen.trial),
        "baseline": None if result.baseline is None else trial_document(result.baseline),
        "decision": None if decision is None else _finite(json.loads(to_json(decision))),
        "conditions": _finite(result.study.spec),
        "provenance": _finite(result.study.provenance),
    }


def speculation_document(speculation: Speculation) -> dict[str, Any]:
    """A configuration under the names that vLLM and the search space use."""
    return {
        "configuration": speculation.label,
        "method": str(speculation.method),
        "draft": speculation.draft_name,
        "model": speculation.draft_model,
        "num_speculative_tokens": speculation.drafted_tokens,
        "prompt_lookup_max": speculation.prompt_lookup_max,
        "prompt_lookup_min": speculation.prompt_lookup_min,
    }


def trial_document(trial: TrialRecord) -> dict[str, Any]:
    """A trial with everything known of it."""
    return {
        "trial": trial.number,
        **speculation_document(trial.speculation),
        "state": str(trial.state),
        "values": _finite(trial.values),
        "metrics": _finite(trial.metrics),
        "predicted": _finite(trial.predicted),
        "duplicate_of": trial.duplicate_of,
        "error_type": trial.error_type,
        "error": trial.error,
    }


def _member_document(entry: ParetoEntry) -> dict[str, Any]:
    return {
        **speculation_document(entry.speculation),
        "trial": entry.trial_number,
        "is_measured": entry.is_measured,
        "values": _finite(entry.values),
    }


def _finite(value: Any) -> Any:
    """The value with every number that JSON cannot hold replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return value
