"""What a study optimises: named figures of a measurement, each with a direction.

A name may end in ``@N``: the figure at N requests in flight. Without it, it is that of the workload's own number.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from numbers import Real
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tuner.errors import ConfigurationError, MeasurementError
from tuner.metric_definitions import METRICS
from tuner.metrics import LATENCIES, STATISTICS, cost_per_million_tokens, summarize
from tuner.records import Measurement

THROUGHPUT, COST = "output_tokens_per_s", "cost_per_million_tokens"
SPEED = frozenset({"e2e_ms", "tpot_ms", THROUGHPUT, COST})
"""Metrics that speculation is for. At one number of requests in flight they go together, by Little's law."""

MOST_LOAD = 64
WITHOUT_LOAD = ("waste", "memory")
"""Objectives that are the same, or nearly, however many requests are in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """One figure to optimise.

    Attributes:
        name: As a person writes it: ``"e2e_ms"`` is the mean, ``"e2e_ms_p90"`` a percentile, ``"e2e_ms@4"`` the mean
            at four requests in flight.
        column: The figure's name in ``metrics.summarize``.
        metric: The metric behind it, as in ``metrics.METRICS``.
        load: Requests in flight; None for the workload's own number.
        price_per_hour: Of the machines, for a cost.
    """

    name: str
    column: str
    metric: str
    direction: Literal["minimize", "maximize"] = "minimize"
    load: int | None = None
    price_per_hour: float | None = None

    def value_in(self, columns: Mapping[str, float | None]) -> float | None:
        """The objective's value from figures by column, all of its own load; None where it has none."""
        if self.metric == COST:
            return cost_per_million_tokens(columns.get(THROUGHPUT), self.price_per_hour)
        return columns.get(self.column)


def at_load(column: str, load: int | None) -> str:
    """The name of a column of tables at that many requests in flight; None for the workload's own number."""
    return column if load is None else f"{column}@{load}"


def figures_at(columns: Mapping[str, float | None], load: int | None) -> Mapping[str, float | None]:
    """The figures at that many requests in flight under their plain names; what has none there stays as it is."""
    suffix = at_load("", load)
    if not suffix:
        return columns
    there = {name.removesuffix(suffix): value for name, value in columns.items() if name.endswith(suffix)}
    return {**columns, **there}


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
    THROUGHPUT: Objective(name=THROUGHPUT, column=THROUGHPUT, metric=THROUGHPUT, direction="maximize"),
    "cost": Objective(name="cost", column=COST, metric=COST),
}

DEFAULT_OBJECTIVES: tuple[Objective, ...] = (OBJECTIVES["e2e_ms"], OBJECTIVES["waste"])
"""End-to-end latency, and the draft tokens wasted for it: the price of a latency bought with a large k."""


def parse_objectives(
    names: Sequence[str], *, concurrency: int | None = None, price_per_hour: float | None = None
) -> tuple[Objective, ...]:
    """The objectives of these names, in their order; the default pair for no name.

    A latency's ``_mean`` may be written out.

    Args:
        names: As a person writes them.
        concurrency: The workload's own number of requests in flight, which is no further load.
        price_per_hour: Of the machines, for costs.

    Raises:
        ConfigurationError: A name is unknown or written twice, two are one objective in disguise, a load is none, or
            a cost has no price.
    """
    if not names:
        return DEFAULT_OBJECTIVES
    chosen = tuple(_objective(name.strip(), concurrency, price_per_hour) for name in names)
    _refuse_repeated(chosen)
    _refuse_disguised(chosen)
    return chosen


def further_loads(objectives: Sequence[Objective]) -> tuple[int, ...]:
    """Numbers of requests in flight that objectives ask for beside the workload's own, smallest first."""
    return tuple(sorted({objective.load for objective in objectives if objective.load is not None}))


def deciding(objectives: Sequence[Objective]) -> Objective:
    """The objective that says which configuration is deployed: the first about speed, else end-to-end latency.

    Waste, memory and the time to the first token are best without speculation, so they choose no configuration.
    """
    return next((objective for objective in objectives if objective.metric in SPEED), OBJECTIVES["e2e_ms"])


def _objective(written: str, concurrency: int | None, price_per_hour: float | None) -> Objective:
    name, at, number = written.partition("@")
    found = _named(name)
    load = _load(found, written, number) if at else None
    if found.metric == COST and price_per_hour is None:
        raise ConfigurationError(
            f"objective {written!r} needs a price", "give --price-per-hour, what the machines cost"
        )
    return replace(
        found,
        name=at_load(found.name, load),
        load=None if load == concurrency else load,
        price_per_hour=price_per_hour if found.metric == COST else None,
    )


def _load(objective: Objective, written: str, number: str) -> int:
    """The requests in flight after the ``@``."""
    if objective.name in WITHOUT_LOAD:
        raise ConfigurationError(
            f"objective {written!r}: {objective.name} does not depend on the requests in flight",
            f"write {objective.name}, without {'@' + number}",
        )
    if not (number.isascii() and number.isdecimal() and 1 <= int(number) <= MOST_LOAD):
        raise ConfigurationError(
            f"objective {written!r}: {number!r} is no number of requests in flight",
            f"write a whole number from 1 to {MOST_LOAD}, e.g. {objective.name}@8",
        )
    return int(number)


def _named(name: str) -> Objective:
    found = OBJECTIVES.get(name.removesuffix("_mean"))
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
    seen: dict[tuple[str, int | None], Objective] = {}
    for objective in chosen:
        if (first := seen.setdefault((objective.column, objective.load), objective)) is not objective:
            same = "" if first.name == objective.name else f", as {first.name!r}: the workload's own load is no other"
            raise ConfigurationError(f"objective {objective.name!r} is given twice{same}", "name each objective once")


def _refuse_disguised(chosen: Sequence[Objective]) -> None:
    """Little's law: at a fixed number of requests in flight, throughput × latency is constant, and so is cost's."""
    for one, other in combinations(chosen, 2):
        metrics = {one.metric, other.metric}
        if one.load == other.load and metrics <= SPEED and metrics & {THROUGHPUT, COST}:
            raise ConfigurationError(
                f"{one.name!r} and {other.name!r} are one objective in disguise: with a fixed number of requests in "
                "flight, tokens per second is that number divided by the time per token (Little's law), and a token "
                "costs a second's price divided by tokens per second",
                f"pair {one.name} with waste, or take the two at different numbers of requests in flight, e.g. "
                "e2e_ms@1 and output_tokens_per_s@8",
            )


def values(
    measurement: Measurement,
    objectives: Sequence[Objective],
    at_loads: Mapping[int, Measurement] = MappingProxyType({}),
) -> dict[str, float]:
    """The value of each objective by name; all finite.

    Args:
        measurement: At the workload's own number of requests in flight.
        objectives: Of the study.
        at_loads: At each of their ``further_loads``.

    Raises:
        MeasurementError: A figure does not exist, with the reason; or it is not a finite number.
    """
    found = {}
    for objective in objectives:
        measured = measurement if objective.load is None else at_loads[objective.load]
        found[objective.name] = objective.value_in(summarize(measured))
        if found[objective.name] is None:
            raise MeasurementError(
                f"objective {objective.name!r} has no value: {_why_absent(measured, objective)}",
                "choose another --objective, or an engine that reports it",
            )
    return finite_values(found, objectives)


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
