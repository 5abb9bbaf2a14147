"""A page of plots: the speed-up of each draft over the number of drafted tokens, and predicted against measured.

The page carries plotly.js, so that it opens without a network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from textwrap import wrap
from typing import Any

import plotly.graph_objects as go

from tuner.text_files import replace_text

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
"""Okabe and Ito's colours, told apart with any colour vision."""

INK, GRID, PAPER = "#24292f", "#e5e8eb", "#ffffff"
VERDICT_WIDTH = 120
LINE_PX, TITLE_PX = 22, 75
BESIDE = 0.18
"""How far right of its k the final comparison stands, so that it does not cover the measurement."""

FINAL = "final comparison"
HOW_TO_READ = "What lies on the line was measured as it had been predicted; bars are 95 % intervals."
AXIS = {"gridcolor": GRID, "zeroline": False, "linecolor": INK, "ticks": "outside", "tickcolor": GRID}
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"
STYLE = {
    "font": {"family": FONT, "size": 14, "color": INK},
    "paper_bgcolor": PAPER,
    "plot_bgcolor": PAPER,
    "hoverlabel": {"bgcolor": PAPER},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartPoint:
    """The speed-up of one configuration over no speculation.

    Attributes:
        drafted_tokens: k.
        speedup: 1 is as fast as no speculation.
        low: Lower limit; None where there is no interval.
        high: Upper limit; None where there is no interval.
        note: One line more for the hover text.
        before: Likewise, what was predicted of a measured one.
    """

    drafted_tokens: int
    speedup: float
    low: float | None = None
    high: float | None = None
    note: str = ""
    before: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftCurve:
    """One draft: predictions for many k, measurements of a few, and the final comparison of one."""

    draft_name: str
    predicted: tuple[ChartPoint, ...] = ()
    measured: tuple[ChartPoint, ...] = ()
    certified: ChartPoint | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedChart:
    """What the plot shows. ``verdict`` is the sentence under the title."""

    title: str
    verdict: str
    curves: tuple[DraftCurve, ...]


Gain = tuple[float, float | None, float | None]
"""A speed-up over no speculation and its limits; None where there is no interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyPoint:
    """What was predicted of one configuration before it was measured, and what was measured."""

    draft_name: str
    drafted_tokens: int
    predicted: Gain
    measured: Gain
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyChart:
    """What the second plot shows; there is at least one point."""

    points: tuple[AccuracyPoint, ...]


# ── speed-up over drafted tokens ──────────────────────────────────────────────────────────────────────────────────


def speed_figure(chart: SpeedChart) -> go.Figure:
    """The plot: dashed lines with bands are predicted, points with bars measured, a star is the final comparison."""
    figure, colours = go.Figure(), colours_of(chart)
    for curve in chart.curves:
        colour = colours[curve.draft_name]
        figure.add_traces([*_band(curve, colour), *_prediction(curve, colour), *_measurements(curve, colour)])
    figure.add_hline(y=1.0, line={"color": INK, "width": 1.5})
    figure.add_annotation(
        x=0, xref="paper", y=1.0, yanchor="top", xanchor="left", yshift=-2, text="no speculation", showarrow=False
    )
    figure.update_layout(**_layout(chart))
    return figure


def colours_of(chart: SpeedChart) -> dict[str, str]:
    """Each draft's colour, the same in every plot of the page."""
    return {curve.draft_name: PALETTE[index % len(PALETTE)] for index, curve in enumerate(chart.curves)}


def _band(curve: DraftCurve, colour: str) -> list[go.Scatter]:
    limits = [(point.drafted_tokens, point.low, point.high) for point in curve.predicted]
    if not limits or any(low is None or high is None for _, low, high in limits):
        return []
    tokens = [k for k, _, _ in limits]
    outline = [high for _, _, high in limits] + [low for _, low, _ in reversed(limits)]
    return [
        go.Scatter(
            x=tokens + tokens[::-1],
            y=outline,
            mode="lines",  # few points would be drawn as dots, like measurements
            fill="toself",
            fillcolor=_faded(colour),
            line={"width": 0},
            hoverinfo="skip",
            showlegend=False,
            legendgroup=curve.draft_name,
        )
    ]


def _prediction(curve: DraftCurve, colour: str) -> list[go.Scatter]:
    if not curve.predicted:
        return []
    line = {"color": colour, "width": 2, "dash": "dash"}
    if len(curve.predicted) > 1:
        return [_trace(curve, curve.predicted, "predicted", mode="lines", line=line)]
    dash = {"color": colour, "size": 24, "symbol": "line-ew-open", "line": {"color": colour, "width": 2}}
    trace = _with_bars(_trace(curve, curve.predicted, "predicted", mode="markers", marker=dash), _faded(colour))
    trace.error_y.update(thickness=16, width=0)  # a band as narrow as its one point
    return [trace]


def _measurements(curve: DraftCurve, colour: str) -> list[go.Scatter]:
    traces = []
    if curve.measured:
        marker = {"color": colour, "size": 10, "line": {"color": PAPER, "width": 1.5}}
        traces.append(_with_bars(_trace(curve, curve.measured, "measured", mode="markers", marker=marker), colour))
    if curve.certified is not None:
        marker = {"color": colour, "size": 18, "symbol": "star", "line": {"color": INK, "width": 1.5}}
        trace = _trace(curve, (curve.certified,), FINAL, mode="markers", marker=marker)
        trace.x = [curve.certified.drafted_tokens + BESIDE]
        traces.append(_with_bars(trace, INK))
    return traces


def _trace(curve: DraftCurve, points: Sequence[ChartPoint], kind: str, **style: Any) -> go.Scatter:
    return go.Scatter(
        x=[point.drafted_tokens for point in points],
        y=[point.speedup for point in points],
        name=f"{curve.draft_name}, {kind}",
        legendgroup=curve.draft_name,
        text=[_hover(curve.draft_name, kind, point) for point in points],
        hoverinfo="text",
        customdata=[[point.low, point.high] for point in points],
        **style,
    )


def _with_bars(trace: go.Scatter, colour: str) -> go.Scatter:
    limits = zip(trace.y, trace.customdata, strict=True)
    trace.error_y = _bars([(speedup, low, high) for speedup, (low, high) in limits], colour)
    return trace


def _bars(gains: Sequence[Gain], colour: str) -> dict[str, Any]:
    return {
        "type": "data",
        "symmetric": False,
        "array": [0.0 if high is None else high - speedup for speedup, _, high in gains],
        "arrayminus": [0.0 if low is None else speedup - low for speedup, low, _ in gains],
        "color": colour,
        "thickness": 1.5,
    }


def _hover(draft_name: str, kind: str, point: ChartPoint) -> str:
    lines = [f"<b>{escape(draft_name)}</b>, k = {point.drafted_tokens}", f"{kind}: {point.speedup:.2f} ×"]
    if point.low is not None and point.high is not None:
        lines.append(f"interval {point.low:.2f} to {point.high:.2f} ×")
    lines += [escape(line) for line in (point.before, point.note) if line]
    return "<br>".join(lines)


def _layout(chart: SpeedChart) -> dict[str, Any]:
    points = [point for curve in chart.curves for point in (*curve.predicted, *curve.measured)]
    points += [curve.certified for curve in chart.curves if curve.certified is not None]
    tokens = [point.drafted_tokens for point in points] or [1]
    beside = 0.4 if len(set(tokens)) > 1 else 1.5
    gains = [value for one in points for value in (one.speedup, one.low, one.high) if value is not None]
    lines = [escape(line) for line in wrap(chart.verdict, VERDICT_WIDTH)]
    verdict = "<br>".join(lines)
    return {
        "title": {
            "text": f"<b>{escape(chart.title)}</b><br><span style='font-size:14px'>{verdict}</span>",
            "x": 0.01,
            "xanchor": "left",
            "font": {"size": 20},
        },
        "xaxis": AXIS
        | {"title": "drafted tokens per round, k", "dtick": 1, "range": [min(tokens) - beside, max(tokens) + beside]},
        "yaxis": AXIS | {"title": "speed-up over no speculation (×)", "tickformat": ".2f", "range": _extent(gains)},
        "legend": {"title": {"text": "draft"}, "groupclick": "togglegroup"},
        "margin": {"t": TITLE_PX + LINE_PX * len(lines), "r": 30, "b": 60, "l": 80},
        **STYLE,
    }


def _faded(colour: str) -> str:
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.12)"


# ── predicted against measured ────────────────────────────────────────────────────────────────────────────────────


def accuracy_figure(chart: AccuracyChart, colours: Mapping[str, str]) -> go.Figure:
    """Measured over predicted speed-up, both with limits, and the diagonal on which a right prediction lies.

    Args:
        chart: One point per measured configuration.
        colours: Of the drafts.
    """
    figure = go.Figure()
    shown = [value for point in chart.points for value in (*point.predicted, *point.measured) if value is not None]
    low, high = _extent(shown)
    figure.add_trace(
        go.Scatter(
            x=[low, high],
            y=[low, high],
            mode="lines",
            line={"color": INK, "width": 1.5},
            hoverinfo="skip",
            name="as predicted",
        )
    )
    for name in dict.fromkeys(point.draft_name for point in chart.points):
        mine = [point for point in chart.points if point.draft_name == name]
        figure.add_trace(_compared(name, mine, colours[name]))
    heading = f"<b>Predicted against measured</b><br><span style='font-size:14px'>{HOW_TO_READ}</span>"
    title = {"text": heading, "x": 0.01, "xanchor": "left", "font": {"size": 20}}
    span = {"range": [low, high], "tickformat": ".2f", "constrain": "domain"}
    figure.update_layout(
        title=title,
        xaxis=AXIS | span | {"title": "speed-up predicted before the measurement (×)"},
        yaxis=AXIS | span | {"title": "speed-up measured (×)", "scaleanchor": "x"},
        margin={"t": TITLE_PX + LINE_PX, "r": 30, "b": 60, "l": 80},
        **STYLE,
    )
    return figure


def _extent(gains: Sequence[float]) -> tuple[float, float]:
    """Limits of an axis that shows these speed-ups and no speculation, with a little room."""
    shown = [1.0, *gains]
    room = 0.06 * (max(shown) - min(shown)) or 0.05
    return min(shown) - room, max(shown) + room


def _compared(draft_name: str, points: Sequence[AccuracyPoint], colour: str) -> go.Scatter:
    return go.Scatter(
        x=[point.predicted[0] for point in points],
        y=[point.measured[0] for point in points],
        error_x=_bars([point.predicted for point in points], colour),
        error_y=_bars([point.measured for point in points], colour),
        mode="markers+text",
        marker={"color": colour, "size": 10, "line": {"color": PAPER, "width": 1.5}},
        text=[f"k = {point.drafted_tokens}" for point in points],
        textposition="top left",
        textfont={"color": colour},
        hovertext=[_comparison_hover(point) for point in points],
        hoverinfo="text",
        name=draft_name,
    )


def _comparison_hover(point: AccuracyPoint) -> str:
    name = f"<b>{escape(point.draft_name)}</b>, k = {point.drafted_tokens}"
    lines = [name, f"predicted: {_spoken(point.predicted)}", f"measured: {_spoken(point.measured)}"]
    return "<br>".join([*lines, escape(point.note)] if point.note else lines)


def _spoken(gain: Gain) -> str:
    speedup, low, high = gain
    limits = "" if low is None or high is None else f", {low:.2f} to {high:.2f} ×"
    return f"{speedup:.2f} ×{limits}"


# ── the page ──────────────────────────────────────────────────────────────────────────────────────────────────────


def write_charts(chart: SpeedChart, path: Path, below: AccuracyChart | None = None) -> None:
    """Write the plots as one HTML page, at once or not at all.

    Raises:
        ConfigurationError: The folder does not exist or cannot be written.
    """
    parts = [_html(speed_figure(chart), height="96vh", carries_plotly=True)]
    if below is not None:
        parts.append(_html(accuracy_figure(below, colours_of(chart)), height="90vh"))
    style = "html { overflow-y: scroll } body { margin: 0 }"  # no plot is wider than what a scroll bar leaves
    head = f'<meta charset="utf-8"><title>{escape(chart.title)}</title><style>{style}</style>'
    replace_text(path, f"<!DOCTYPE html>\n<html><head>{head}</head>\n<body>{''.join(parts)}</body></html>\n")


def _html(figure: go.Figure, *, height: str, carries_plotly: bool = False) -> str:
    html: str = figure.to_html(
        full_html=False,
        include_plotlyjs=carries_plotly,
        default_height=height,
        config={"displaylogo": False, "responsive": True},
    )
    return html
