"""The plot, as data and as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tuner.charts import ChartPoint, DraftCurve, SpeedChart, speed_figure, write_charts
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
