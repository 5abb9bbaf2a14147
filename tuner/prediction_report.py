"""What is predicted of every configuration, as a sentence, a table and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from rich.table import Table

from tuner.documents import PredictedResult, finite, speculation_document, trial_document
from tuner.objective import parse_objectives
from tuner.prediction import Prediction
from tuner.predictions import Predictions
from tuner.speculation import Speculation
from tuner.store import TrialState
from tuner.tables import ABSENT, WIDE, Cell, Column, fitted_table, number, row, with_limits
from tuner.verdict import spoken_load

FASTEST_SHOWN = 10


class PredictedSpace(PredictedResult, Protocol):
    """A study of which every configuration was predicted, as far as that goes."""

    @property
    def configurations(self) -> tuple[Speculation, ...]:
        """Of the search space, no speculation not among them."""
        ...

    @property
    def gaps(self) -> Mapping[Speculation, str]:
        """Those without a prediction, each with the reason."""
        ...

    @property
    def concurrency(self) -> int | None:
        """Requests in flight at which a search would decide; None for the workload's own number."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedRow:
    """One configuration with what is predicted of it.

    Attributes:
        chance: Of being the fastest of all, end to end, no speculation among them; None where it is not known.
    """

    speculation: Speculation
    prediction: Prediction
    chance: float | None

    @property
    def figures(self) -> dict[str, float | None]:
        """All of them, by the names of ``metrics.summarize``, with the speed-up and its limits."""
        one = self.prediction
        limits = {"speedup": one.speedup, "speedup_low": one.speedup_low, "speedup_high": one.speedup_high}
        return {**one.columns, **limits}


def predicted_rows(result: PredictedSpace) -> tuple[PredictedRow, ...]:
    """Every configuration of the space that has a prediction, fastest first."""
    predictions = result.predictions.at(result.concurrency)
    chances = _chances(predictions, result.configurations)
    found = [
        PredictedRow(
            speculation=one,
            prediction=prediction,
            chance=chances.get((one.draft_name, one.drafted_tokens)),
        )
        for one in result.configurations
        if (prediction := predictions.of_configuration(one)) is not None
    ]
    return tuple(sorted(found, key=lambda one: -one.prediction.speedup))


def _chances(predictions: Predictions, configurations: Sequence[Speculation]) -> dict[tuple[str, int], float]:
    """Of each configuration to be the fastest of these; a trace may reach further than the space."""
    if predictions.costs is None:
        return {}
    asked = {(one.draft_name, one.drafted_tokens) for one in configurations}
    for forecast in predictions.forecasts(parse_objectives(["e2e_ms"])).values():
        among = replace(forecast, candidates=tuple(one for one in forecast.candidates if one.key in asked))
        outlook = among.outlook({})
        return {key: float(chance) for key, chance in zip(outlook.keys, outlook.probabilities_of_best(), strict=True)}
    return {}


def chance_of_none(rows: Sequence[PredictedRow]) -> float | None:
    """That no configuration is faster than no speculation; None where chances are not known."""
    chances = [one.chance for one in rows if one.chance is not None]
    return max(0.0, 1 - sum(chances)) if chances else None


def prediction_sentence(result: PredictedSpace, rows: Sequence[PredictedRow]) -> str:
    """The answer, and that it is none to deploy by."""
    if not rows:
        reason = next(iter(result.gaps.values()), "the space has no configuration with speculation")
        return f"Nothing can be predicted: {reason}."
    best = rows[0].prediction
    name, gain = rows[0].speculation.label, f"{best.speedup:.2f} times the speed"
    limits = f"(95 % interval {best.speedup_low:.2f} to {best.speedup_high:.2f})"
    limits = f"{spoken_load(result.concurrency).lstrip()} {limits}".lstrip()
    told = (
        f"Predicted fastest: {name}, {gain} of no speculation end to end {limits}"
        if best.speedup > 1
        else f"No speculation is predicted to be the fastest: the best of {len(rows)} others, {name}, has {gain} "
        f"end to end {limits}"
    )
    return f"{told}. {_caution(result)}"


def _caution(result: PredictedResult) -> str:
    measured = sum(
        trial.state is TrialState.COMPLETE and trial.duplicate_of is None and not trial.speculation.is_baseline
        for trial in result.trials
    )
    known = "only no speculation was measured" if not measured else f"{measured} were measured, none is certified here"
    return f"This is a prediction and no recommendation: {known}."


# ── the table ─────────────────────────────────────────────────────────────────────────────────────────────────────

_COLUMNS = (
    Column(name="name", title="configuration", narrow_title="draft", justify="left"),
    Column(name="drafted", title="drafted\ntokens", narrow_title="draft\ntokens"),
    Column(name="rate", title="acceptance\nrate", narrow_title="accept.\nrate"),
    Column(name="length", title="mean acceptance\nlength (95 %)", narrow_title="mean\naccept.\nlength"),
    Column(name="ttft", title="TTFT\nms", narrow_title="TTFT\nms"),
    Column(name="tpot", title="TPOT\nms", narrow_title="TPOT\nms"),
    Column(name="e2e", title="end to\nend ms", narrow_title="end to\nend ms"),
    Column(name="speedup", title="speed-up\n(95 % interval)", narrow_title="speed-up\n(95 %)"),
    Column(name="chance", title="chance\nto be\nfastest", narrow_title="fastest"),
    Column(name="waste", title="waste\nper\ntoken", narrow_title="waste"),
)


def prediction_table(
    result: PredictedSpace, rows: Sequence[PredictedRow], width: int = WIDE, *, all_rows: bool = False
) -> Table:
    """No speculation as it was measured, then the fastest configurations and the best of each draft.

    Args:
        result: The study.
        rows: Of ``predicted_rows``.
        width: Characters.
        all_rows: Every configuration instead, draft by draft with rising numbers of drafted tokens.
    """
    shown = _in_order(result, rows) if all_rows else _foremost(rows)
    caption = "" if len(shown) == len(rows) else f"{len(shown)} of {len(rows)} configurations; --all shows every one"
    lines = [row(partial(_cells, one), "bold" if one is rows[0] else "") for one in shown]
    plain = row(partial(_plain_cells, result.predictions.at(result.concurrency), chance_of_none(rows)))
    return fitted_table(_COLUMNS, [plain, *lines], width, dispensable=("rate", "waste", "ttft", "e2e"), caption=caption)


def _foremost(rows: Sequence[PredictedRow]) -> list[PredictedRow]:
    seen: set[str] = set()
    kept = []
    for index, one in enumerate(rows):
        if index < FASTEST_SHOWN or one.speculation.draft_name not in seen:
            kept.append(one)
        seen.add(one.speculation.draft_name)
    return kept


def _in_order(result: PredictedSpace, rows: Sequence[PredictedRow]) -> list[PredictedRow]:
    by_speculation = {one.speculation: one for one in rows}
    return [by_speculation[one] for one in result.configurations if one in by_speculation]


def _cells(one: PredictedRow, *, is_wide: bool) -> tuple[Cell, ...]:
    figures = one.figures
    return (
        one.speculation.draft_name,
        str(one.speculation.drafted_tokens),
        number(figures["acceptance_rate"], ".0%"),
        with_limits(figures, "mean_acceptance_length", "mean_acceptance_length", ".2f", is_wide=is_wide),
        number(figures["ttft_ms_mean"], ".1f"),
        number(figures["tpot_ms_mean"], ".1f"),
        number(figures["e2e_ms_mean"], ".0f"),
        with_limits(figures, "speedup", "speedup", ".2f", is_wide=is_wide),
        number(one.chance, ".0%"),
        number(figures["waste_tokens_per_output_token"], ".2f"),
    )


def _plain_cells(predictions: Predictions, chance: float | None, *, is_wide: bool) -> tuple[Cell, ...]:
    figures = predictions.baseline
    return (
        "no speculation" if is_wide else "none",
        ABSENT,
        ABSENT,
        ABSENT,
        number(figures.get("ttft_ms_mean"), ".1f"),
        number(figures.get("tpot_ms_mean"), ".1f"),
        number(figures.get("e2e_ms_mean"), ".0f"),
        number(1.0, ".2f"),
        number(chance, ".0%"),
        number(figures.get("waste_tokens_per_output_token"), ".2f"),
    )


def prediction_notes(result: PredictedSpace) -> tuple[str, ...]:
    """Which configurations have no prediction and why, and how to read the figures."""
    by_reason: dict[tuple[str, str], list[int]] = {}
    for speculation, reason in result.gaps.items():
        by_reason.setdefault((speculation.draft_name, reason), []).append(speculation.drafted_tokens)
    gaps = [f"no prediction for {name} k={_runs(tokens)}: {reason}" for (name, reason), tokens in by_reason.items()]
    return (
        *gaps,
        "acceptance and waste are counted along the target's own outputs; the limits of the mean acceptance length "
        "are for other prompts of the workload",
        "no speculation is as measured; times of the others are computed from timed steps",
    )


def _runs(numbers: Sequence[int]) -> str:
    """Numbers that follow each other as a range: 1–3, 5."""
    runs: list[list[int]] = []
    for one in sorted(numbers):
        if runs and one == runs[-1][-1] + 1:
            runs[-1].append(one)
        else:
            runs.append([one])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


# ── JSON ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def prediction_document(result: PredictedSpace, rows: Sequence[PredictedRow]) -> dict[str, Any]:
    """Every configuration with every predicted figure, as one strict JSON object."""
    return {
        "study": result.study.name,
        "sentence": prediction_sentence(result, rows),
        "baseline": trial_document(result.trials[0]) if result.trials else None,
        "probability_of_no_speculation": chance_of_none(rows),
        "predictions": [
            {
                **speculation_document(one.speculation),
                "predicted": finite(one.figures),
                "probability_of_best": one.chance,
            }
            for one in rows
        ],
        "gaps": [{**speculation_document(one), "reason": reason} for one, reason in result.gaps.items()],
        "measured": [trial_document(trial) for trial in result.trials[1:] if trial.state is TrialState.COMPLETE],
        "spec": finite(result.study.spec),
    }
