"""The plot, as data and as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tuner.charts import (
    AccuracyChart,
    AccuracyPoint,
    ChartPoint,
    DraftCurve,
    SpeedChart,
    accuracy_figure,
    colours_of,
    speed_figure,
    write_charts,
)
from tuner.errors import ConfigurationError

MEASURED = ChartPoint(drafted_tokens=3, speedup=1.2, low=1.1, high=1.35, note="trial 1")
CHART = SpeedChart(
    title="code-gen on <model>",
    verdict="Use eagle k=3.",
    curves=(
        DraftCurve(
            draft_name="eagle",
            predicted=tuple(ChartPoint(drafted_tokens=k, speedup=1.1, low=1.0, high=1.2) for k in (1, 2, 3)),
            measured=(MEASURED,),
            certified=ChartPoint(drafted_tokens=3, speedup=1.18),
        ),
        DraftCurve(draft_name="ngram", measured=(ChartPoint(drafted_tokens=5, speedup=0.9),)),
    ),
)


def traces() -> dict[str, Any]:
    return {trace.name: trace for trace in speed_figure(CHART).data if trace.name is not None}


def test_every_draft_has_its_prediction_measurements_and_certified_point() -> None:
    assert sorted(traces()) == ["eagle, final comparison", "eagle, measured", "eagle, predicted", "ngram, measured"]


def test_the_band_of_a_prediction_has_no_dots_that_look_like_measurements() -> None:
    (band,) = [trace for trace in speed_figure(CHART).data if trace.fill == "toself"]
    assert band.mode == "lines"


def test_error_bars_reach_to_the_limits() -> None:
    bars = traces()["eagle, measured"].error_y
    assert bars.array == pytest.approx((0.15,))
    assert bars.arrayminus == pytest.approx((0.1,))


def test_a_measurement_without_limits_has_no_bar() -> None:
    bars = traces()["ngram, measured"].error_y
    assert (bars.array, bars.arrayminus) == ((0.0,), (0.0,))


def test_all_traces_of_a_draft_have_its_colour() -> None:
    shown = traces()
    assert shown["eagle, predicted"].line.color == shown["eagle, measured"].marker.color
    assert shown["eagle, measured"].marker.color != shown["ngram, measured"].marker.color


def test_the_hover_text_says_draft_tokens_gain_interval_and_note() -> None:
    (text,) = traces()["eagle, measured"].text
    assert text == "<b>eagle</b>, k = 3<br>measured: 1.20 ×<br>interval 1.10 to 1.35 ×<br>trial 1"


def test_axes_have_units_and_no_speculation_has_its_line() -> None:
    figure = speed_figure(CHART)
    assert figure.layout.xaxis.title.text == "drafted tokens per round, k"
    assert figure.layout.yaxis.title.text == "speed-up over no speculation (×)"
    assert [(line.y0, line.y1) for line in figure.layout.shapes] == [(1.0, 1.0)]


def test_a_prediction_of_one_k_is_a_dash_with_its_band() -> None:
    only = ChartPoint(drafted_tokens=3, speedup=1.1, low=1.0, high=1.2)
    chart = SpeedChart(title="t", verdict="v", curves=(DraftCurve(draft_name="eagle", predicted=(only,)),))
    (trace,) = [one for one in speed_figure(chart).data if one.name == "eagle, predicted"]
    assert trace.marker.symbol == "line-ew-open"
    assert trace.error_y.array == pytest.approx((0.1,))


def test_no_limit_and_no_line_of_the_plot_is_cut() -> None:
    low, high = speed_figure(CHART).layout.yaxis.range
    assert low < 0.9
    assert high > 1.35
    alone = SpeedChart(title="t", verdict="v", curves=())
    low, high = speed_figure(alone).layout.yaxis.range
    assert low < 1 < high


COMPARED = AccuracyChart(
    points=(
        AccuracyPoint(
            draft_name="eagle", drafted_tokens=3, predicted=(1.1, 1.0, 1.3), measured=(1.2, 1.1, 1.35), note="trial 1"
        ),
        AccuracyPoint(draft_name="ngram", drafted_tokens=5, predicted=(0.9, None, None), measured=(0.8, None, None)),
    )
)


def test_predicted_against_measured_has_both_intervals_and_the_diagonal() -> None:
    diagonal, eagle, ngram = accuracy_figure(COMPARED, colours_of(CHART)).data
    assert diagonal.x == diagonal.y
    assert (eagle.x, eagle.y) == ((1.1,), (1.2,))
    assert (eagle.error_x.array, eagle.error_x.arrayminus) == (pytest.approx((0.2,)), pytest.approx((0.1,)))
    assert (eagle.error_y.array, eagle.error_y.arrayminus) == (pytest.approx((0.15,)), pytest.approx((0.1,)))
    assert (ngram.error_x.array, ngram.error_y.array) == ((0.0,), (0.0,))
    assert eagle.hovertext == (
        "<b>eagle</b>, k = 3<br>predicted: 1.10 ×, 1.00 to 1.30 ×<br>measured: 1.20 ×, 1.10 to 1.35 ×<br>trial 1",
    )


def test_a_draft_has_one_colour_on_the_whole_page() -> None:
    _, eagle, ngram = accuracy_figure(COMPARED, colours_of(CHART)).data
    shown = traces()
    assert eagle.marker.color == shown["eagle, measured"].marker.color
    assert ngram.marker.color == shown["ngram, measured"].marker.color


def test_the_second_plot_is_below_the_first_and_the_page_carries_plotly_once(tmp_path: Path) -> None:
    alone, both = tmp_path / "alone.html", tmp_path / "both.html"
    write_charts(CHART, alone)
    write_charts(CHART, both, COMPARED)
    page = both.read_text(encoding="utf-8")
    assert page.index("drafted tokens per round") < page.index("Predicted against measured")
    assert both.stat().st_size < alone.stat().st_size * 1.1


def test_the_page_needs_no_network_and_escapes_its_title(tmp_path: Path) -> None:
    path = tmp_path / "plot.html"
    write_charts(CHART, path)
    page = path.read_text(encoding="utf-8")
    assert "<script src=" not in page
    assert "<title>code-gen on &lt;model&gt;</title>" in page
    assert path.stat().st_mode & 0o444 != 0


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such folder"):
        write_charts(CHART, tmp_path / "absent" / "plot.html")
