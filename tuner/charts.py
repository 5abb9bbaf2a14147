"""One plot: the speed-up of each draft over the number of drafted tokens, predicted and measured.

The page carries plotly.js, so that it opens without a network.
"""

from __future__ import annotations

from collections.abc import Sequence
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
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartPoint:
    """The speed-up of one configuration over no speculation.

    Attributes:
        drafted_tokens: k.
        speedup: 1 is as fast as no speculation.
        low: Lower limit; None where there is no interval.
        high: Upper limit; None where there is no interval.
        note: One line more for the hover text.
    """

    drafted_tokens: int
    speedup: float
    low: float | None = None
    high: float | None = None
    note: str = ""


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


def speed_figure(chart: SpeedChart) -> go.Figure:
    """The plot: dashed lines with bands are predicted, points with bars measured, a star is the final comparison."""
    figure = go.Figure()
    for index, curve in enumerate(chart.curves):
        colour = PALETTE[index % len(PALETTE)]
        figure.add_traces([*_band(curve, colour), *_prediction(curve, colour), *_measurements(curve, colour)])
    figure.add_hline(y=1.0, line={"color": INK, "width": 1.5})
    figure.add_annotation(
        x=1, xref="paper", y=1.0, yanchor="bottom", xanchor="right", text="no speculation", showarrow=False
    )
    figure.update_layout(**_layout(chart))
    return figure


def write_chart(chart: SpeedChart, path: Path) -> None:
    """Write the plot as one HTML page, at once or not at all.

    Raises:
        ConfigurationError: The folder does not exist or cannot be written.
    """
    page = speed_figure(chart).to_html(
        include_plotlyjs=True, full_html=True, default_height="96vh", config={"displaylogo": False}
    )
    page = page.replace("<head>", f"<head><title>{escape(chart.title)}</title>", 1)
    replace_text(path, page)


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
    return [
        _trace(
            curve,
            curve.predicted,
            "predicted",
            mode="lines",
            line={"color": colour, "width": 2, "dash": "dash"},
        )
    ]


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
    up, down = [], []
    for speedup, (low, high) in zip(trace.y, trace.customdata, strict=True):
        up.append(0.0 if high is None else high - speedup)
        down.append(0.0 if low is None else speedup - low)
    trace.error_y = {
        "type": "data", "symmetric": False, "array": up, "arrayminus": down, "color": colour, "thickness": 1.5
    }  # fmt: skip
    return trace


def _hover(draft_name: str, kind: str, point: ChartPoint) -> str:
    lines = [f"<b>{escape(draft_name)}</b>, k = {point.drafted_tokens}", f"{kind}: {point.speedup:.2f} ×"]
    if point.low is not None and point.high is not None:
        lines.append(f"interval {point.low:.2f} to {point.high:.2f} ×")
    if point.note:
        lines.append(escape(point.note))
    return "<br>".join(lines)


def _layout(chart: SpeedChart) -> dict[str, Any]:
    axis = {"gridcolor": GRID, "zeroline": False, "linecolor": INK, "ticks": "outside", "tickcolor": GRID}
    tokens = [
        point.drafted_tokens for curve in chart.curves for point in (*curve.predicted, *curve.measured)
    ] or [1]  # fmt: skip
    lines = [escape(line) for line in wrap(chart.verdict, VERDICT_WIDTH)]
    verdict = "<br>".join(lines)
    return {
        "title": {
            "text": f"<b>{escape(chart.title)}</b><br><span style='font-size:14px'>{verdict}</span>",
            "x": 0.01,
            "xanchor": "left",
            "font": {"size": 20},
        },
        "xaxis": axis
        | {"title": "drafted tokens per round, k", "dtick": 1, "range": [min(tokens) - 0.4, max(tokens) + 0.4]},
        "yaxis": axis | {"title": "speed-up over no speculation (×)", "tickformat": ".2f", "rangemode": "normal"},
        "legend": {"title": {"text": "draft"}, "groupclick": "togglegroup"},
        "font": {"family": FONT, "size": 14, "color": INK},
        "paper_bgcolor": PAPER,
        "plot_bgcolor": PAPER,
        "margin": {"t": TITLE_PX + LINE_PX * len(lines), "r": 30, "b": 60, "l": 80},
        "hoverlabel": {"bgcolor": PAPER},
    }


def _faded(colour: str) -> str:
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.15)"
