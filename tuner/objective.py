"""What a study optimises: named figures of a measurement, each with a direction."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tuner.errors import ConfigurationError, MeasurementError
from tuner.metrics import LATENCIES, METRICS, STATISTICS, summarize
from tuner.records import Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """One figure to optimise.

    Attributes:
        name: As a person writes it: ``"e2e_ms"`` is the mean, ``"e2e_ms_p90"`` a percentile.
        column: The figure's name in ``metrics.summarize``.
        metric: The metric behind it, as in ``metrics.METRICS``.
    """

    name: str
    column: str
    metric: str
    direction: Literal["minimize", "maximize"] = "minimize"


def _latency_objectives() -> dict[str, Objective]:
    named = {
        f"{metric}_{statistic}": Objective(name=f"{metric}_{statistic}", column=f"{metric}_{statistic}", metric=metric)
        for metric in LATENCIES
        for statistic in STATISTICS
        if statistic != "mean"
    }
    means = {metric: Objective(name=metric, column=f"{metric}_mean", metric=metric) for metric in LATENCIES}
    return means | named


OBJECTIVES: dict[str, Objective] = _latency_objectives() | {
    "waste": Objective(name="waste", column="waste_tokens_per_output_token", metric="waste_tokens_per_output_token"),
    "memory": Objective(name="memory", column="peak_memory_bytes", metric="peak_memory_bytes"),
    "output_tokens_per_s": Objective(
        name="output_tokens_per_s",
        column="output_tokens_per_s",
        metric="output_tokens_per_s",
        direction="maximize",
    ),
}

DEFAULT_OBJECTIVES: tuple[Objective, ...] = (OBJECTIVES["e2e_ms"], OBJECTIVES["waste"])
"""End-to-end latency, and the draft tokens wasted for it: the price of a latency bought with a large k."""


def parse_objectives(names: Sequence[str]) -> tuple[Objective, ...]:
    """The objectives of these names, in their order; the default pair for no name.

    A latency's ``_mean`` may be written out.

    Raises:
        ConfigurationError: A name is unknown or written twice, or two are one objective in disguise.
    """
    if not names:
        return DEFAULT_OBJECTIVES
    chosen = tuple(_objective(name) for name in names)
    _refuse_repeated(chosen)
    _refuse_disguised(chosen)
    return chosen


def _objective(name: str) -> Objective:
    found = OBJECTIVES.get(name.strip().removesuffix("_mean"))
    if found is not None:
        return found
    if name.startswith("acceptance"):
        raise ConfigurationError(
            f"{name!r} is no objective: it falls with every further drafted token, whatever that gains",
            "use waste, which says what rejected tokens cost; the acceptance rate is a column of every table",
        )
    close = difflib.get_close_matches(name, OBJECTIVES, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(OBJECTIVES)}"
    raise ConfigurationError(f"no objective named {name!r}", hint)


def _refuse_repeated(chosen: Sequence[Objective]) -> None:
    names = [objective.name for objective in chosen]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ConfigurationError(f"objective {repeated[0]!r} is given twice", "name each objective once")


def _refuse_disguised(chosen: Sequence[Objective]) -> None:
    """Little's law: at a fixed number of requests in flight, throughput × latency is constant."""
    throughput = [objective.name for objective in chosen if objective.metric == "output_tokens_per_s"]
    latency = [objective.name for objective in chosen if objective.metric in ("e2e_ms", "tpot_ms")]
    if throughput and latency:
        raise ConfigurationError(
            f"{throughput[0]!r} and {latency[0]!r} are one objective in disguise: with a fixed number of requests in "
            "flight, tokens per second is that number divided by the time per token (Little's law)",
            f"keep one of them and pair it with waste, e.g. {latency[0]} and waste",
        )


def values(measurement: Measurement, objectives: Sequence[Objective]) -> dict[str, float]:
    """The measurement's value of each objective by name; all finite.

    Raises:
        MeasurementError: A figure does not exist, with the reason; or it is not a finite number.
    """
    columns = summarize(measurement)
    missing = [objective for objective in objectives if columns[objective.column] is None]
    if missing:
        raise MeasurementError(
            f"objective {missing[0].name!r} has no value: {_why_absent(measurement, missing[0])}",
            "choose another --objective, or an engine that reports it",
        )
    return finite_values({objective.name: columns[objective.column] for objective in objectives}, objectives)


def _why_absent(measurement: Measurement, objective: Objective) -> str:
    errors = [record.error for record in measurement.requests if record.error is not None]
    if errors and len(errors) == len(measurement.requests):
        return f"all {len(errors)} requests failed, the first with: {errors[0]}"
    return next(metric.absent for metric in METRICS if metric.name == objective.metric)


def finite_values(found: Mapping[str, object], objectives: Sequence[Objective]) -> dict[str, float]:
    """Exactly the objectives' values, as finite floats; NumPy's numbers are numbers, texts are not.

    Raises:
        MeasurementError: One is missing, not a number, NaN or infinite; names it and what it was.
    """
    checked: dict[str, float] = {}
    for objective in objectives:
        value = found.get(objective.name)
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            raise MeasurementError(
                f"objective {objective.name!r} is {value!r}, not a finite number",
                "the trial counts as failed; its measurement is kept",
            )
        checked[objective.name] = float(value)
    return checked


def losses(rows: Sequence[Mapping[str, float]], objectives: Sequence[Objective]) -> NDArray[np.float64]:
    """The rows' values with every objective turned so that lower is better: [rows, objectives]."""
    signs = np.array([-1.0 if objective.direction == "maximize" else 1.0 for objective in objectives])
    table = np.array([[row[objective.name] for objective in objectives] for row in rows], dtype=np.float64)
    turned: NDArray[np.float64] = table.reshape(len(rows), len(objectives)) * signs
    return turned
