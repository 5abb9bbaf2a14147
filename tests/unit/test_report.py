"""What a study looks like to a person and to a program."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.support.study_results import (
    BASELINE,
    BROKEN,
    EAGLE,
    GOOD,
    NGRAM,
    REPEATED,
    AResult,
    a_decision,
    a_prediction,
    a_result,
    a_trial,
)
from tuner.comparison import Comparison, comparisons
from tuner.decide import Verdict
from tuner.documents import NO_VERDICT, result_document, verdict_sentence
from tuner.predictions import Predictions
from tuner.report import (
    comparison_table,
    front_table,
    metric_table,
    next_steps,
    reasons,
    result_tables,
    stop_sentence,
    trial_table,
    verdict_notes,
)
from tuner.stopping import Reason, StopKind
from tuner.store import ParetoEntry, TrialState
from tuner.study_charts import accuracy_chart, speed_chart


def text_of(renderable: object, width: int) -> str:
    written = StringIO()
    Console(file=written, width=width, color_system=None).print(renderable)
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines()).strip("\n")


def strict(document: object) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return json.loads(json.dumps(document, allow_nan=False), parse_constant=refuse)


def test_the_table_shows_the_load_that_the_verdict_is_about() -> None:
    at_eight = {"speedup@8": 1.17, "speedup_low@8": 1.11, "speedup_high@8": 1.23, "tpot_ms_mean@8": 77.7}
    trial = replace(GOOD, metrics={**GOOD.metrics, **at_eight}, predicted={**GOOD.predicted, "speedup@8": 1.19})
    result = a_result(trials=(BASELINE, trial), decision=replace(a_decision(), concurrency=8))
    text = text_of(trial_table(result), 120)
    assert "1.17 (1.11–1.23)" in text
    assert "77.7" in text
    assert "1.19" in text
    assert text.endswith("with 8 requests in flight")


def test_the_table_has_a_row_per_configuration_with_every_figure() -> None:
    rows = [line.split() for line in text_of(trial_table(a_result()), 120).splitlines()]
    assert [row for row in rows if row and row[0].isdigit()] == [
        ["0", "no", "speculation", "–", "–", "–", "23.4", "1.00", "–", "0.00", "–"],
        ["1", "eagle", "3", "37", "%", "1.92", "20.1", "1.15", "(1.10–1.20)", "1.18", "0.81", "100", "%"],
        ["2", "shallow", "12", "–", "–", "–", "cannot", "run", "–", "–", "–"],
    ]


def test_no_title_of_the_table_is_cut() -> None:
    for width in (80, 120):
        text = text_of(trial_table(a_result(), width), width)
        assert "…" not in text
        assert max(len(line) for line in text.splitlines()) <= width


def test_a_narrow_table_keeps_every_column_and_puts_intervals_below() -> None:
    lines = text_of(trial_table(a_result(), 80), 80).splitlines()
    first = next(index for index, line in enumerate(lines) if "eagle" in line)
    assert lines[first - 1].split() == ["1.15"]
    assert lines[first].split() == [
        "1",
        "eagle",
        "3",
        "37",
        "%",
        "1.92",
        "20.1",
        "1.10–1.20",
        "1.18",
        "0.81",
        "100",
        "%",
    ]


def named(draft_name: str) -> AResult:
    trial = a_trial(1, replace(EAGLE, draft_name=draft_name), metrics=GOOD.metrics, predicted=GOOD.predicted)
    return a_result(trials=(BASELINE, trial))


def test_where_whole_titles_have_no_room_a_long_name_still_stands_in_one_line() -> None:
    assert "no speculation" in text_of(trial_table(named("shallow"), 120), 120)
    long = text_of(trial_table(named("smollm2-135m-shallow"), 110), 110)
    assert "smollm2-135m-shallow" in long
    assert "no speculation" not in long


def test_a_very_narrow_table_folds_names_and_says_which_columns_have_no_room() -> None:
    text = text_of(trial_table(named("smollm2-135m-shallow"), 60), 60)
    assert max(len(line) for line in text.splitlines()) <= 60
    assert "1.10–1.20" in text
    assert text.splitlines()[-1].strip() == "no room for: predicted, waste; --json has all"


def test_commands_to_run_next_are_quoted_for_the_shell() -> None:
    result = a_result()
    odd = replace(result, study=replace(result.study, name="my study; rm x"))
    assert next_steps(odd)[0].startswith("tuner export 'my study; rm x' ")


def test_the_interval_of_tpot_is_shown_where_there_is_one() -> None:
    trial = a_trial(0, EAGLE, metrics={"tpot_ms_mean": 20.0, "tpot_ms_low": 19.5, "tpot_ms_high": 20.6})
    assert "20.0 (19.5–20.6)" in text_of(trial_table(a_result(trials=(trial,))), 140)


def test_a_trial_that_cannot_run_is_named_with_the_first_line_of_its_reason() -> None:
    assert reasons(a_result().trials) == ("trial 2, shallow k=12, cannot run: 2.0 GiB needed, 1.0 GiB free on cpu",)


def test_notes_say_how_many_outputs_are_identical() -> None:
    assert verdict_notes(a_result())[0].plain == "100 % of 16 outputs identical to those without speculation"


def test_alarms_come_first_and_are_marked() -> None:
    alarm = "ALARM: the measured mean acceptance length lies outside the replayed interval"
    first, *others = verdict_notes(a_result(a_decision(notes=("one load per side", alarm))))
    assert (first.plain, first.style) == (alarm, "bold red")
    assert [one.plain for one in others][1:] == ["one load per side"]
    assert {str(one.style) for one in others} == {""}


def test_an_unfinished_study_has_no_verdict_and_says_how_it_goes_on() -> None:
    result = a_result(decision=None)
    unfinished = type(result)(
        study=result.study, decision=None, baseline=BASELINE, recommended=None, trials=(BASELINE,)
    )
    assert verdict_sentence(unfinished) == NO_VERDICT
    assert next_steps(unfinished) == ()
    assert result_document(unfinished)["verdict"] is None


def test_next_steps_lead_to_an_export_only_where_something_is_certified() -> None:
    assert next_steps(a_result())[0] == "tuner export code-gen-1a2b3c --format vllm --output vllm.yaml"
    inconclusive = next_steps(a_result(a_decision(Verdict.INCONCLUSIVE)))
    assert not any("export" in step for step in inconclusive)


def test_the_document_has_what_scripts_read() -> None:
    document = strict(result_document(a_result()))
    assert document["study"] == "code-gen-1a2b3c"
    assert document["verdict"] == "recommend"
    assert document["baseline"]["method"] == "none"
    assert document["recommended"]["num_speculative_tokens"] == 3
    assert [member["trial"] for member in document["pareto"]] == [1, None, 0]
    assert [trial["state"] for trial in document["trials"]] == ["complete", "complete", "infeasible", "complete"]
    assert document["decision"]["speedup"]["one_sided_99_low"] == 1.08


def test_figures_that_json_cannot_hold_become_null() -> None:
    odd = a_trial(0, EAGLE, metrics={"speedup": float("nan"), "tpot_ms_mean": float("inf"), "acceptance_rate": None})
    metrics = strict(result_document(a_result(trials=(odd,))))["trials"][0]["metrics"]
    assert metrics == {"speedup": None, "tpot_ms_mean": None, "acceptance_rate": None}


def test_one_trial_is_shown_with_every_figure_beside_its_prediction() -> None:
    rows = [line.split() for line in text_of(metric_table(GOOD), 80).splitlines()]
    assert ["speedup", "1.154", "1.18"] in rows
    assert ["e2e_ms_mean", "–", "1,700"] in rows


def test_the_plot_has_predictions_measurements_and_the_certified_point_of_each_draft() -> None:
    chart = speed_chart(a_result())
    assert chart.title == "code-gen on SmolLM2-135M-Instruct"
    assert [curve.draft_name for curve in chart.curves] == ["eagle", "shallow"]
    eagle, shallow = chart.curves
    assert [point.drafted_tokens for point in eagle.predicted] == [1, 2, 3, 4]
    assert [(point.drafted_tokens, point.speedup, point.low) for point in eagle.measured] == [(3, 1.154, 1.101)]
    assert eagle.certified is not None
    assert eagle.certified.speedup == 1.15
    assert (shallow.predicted, shallow.measured, shallow.certified) == ((), (), None)


def test_every_measured_configuration_stands_beside_its_prediction() -> None:
    table = comparison_table(a_result())
    rows = [line.split() for line in text_of(table, 120).splitlines() if "eagle" in line]
    assert rows == [
        [
            *("1", "eagle", "3", "1.18", "(1.06–1.31)", "1.15", "(1.10–1.20)", "-2.2", "%"),
            *("–", "/", "20.1", "–", "/", "1.92"),
        ]
    ]
    assert "1 of 1 agree within their intervals" in text_of(table, 120)


def test_the_comparison_fits_a_narrow_terminal() -> None:
    text = text_of(comparison_table(a_result(), 60), 60)
    assert max(len(line) for line in text.splitlines()) <= 60
    assert "-2.2 %" in text


def test_without_a_measured_prediction_there_is_no_comparison() -> None:
    assert comparison_table(a_result(trials=(BASELINE,))) is None
    headings = [heading for heading, _ in result_tables(a_result(trials=(BASELINE,), pareto=()))]
    assert headings == [""]


def surprising(measured: float) -> Comparison:
    (one,) = comparisons((replace(GOOD, metrics={**GOOD.metrics, "speedup": measured}),))
    return one


def test_a_measurement_agrees_unless_it_differs_by_more_than_both_intervals_allow() -> None:
    assert [surprising(value).agrees for value in (0.9, 1.1, 1.3, 1.5)] == [False, True, True, False]
    (bare,) = comparisons((replace(GOOD, predicted={"speedup": 1.18}),))
    assert bare.agrees is None


def test_comparisons_leave_out_repeats_failures_and_what_was_not_predicted() -> None:
    unpredicted = replace(GOOD, number=5, predicted={})
    found = comparisons((BASELINE, GOOD, BROKEN, REPEATED, unpredicted))
    assert [one.trial for one in found] == [1]
    assert found[0].difference("speedup") == pytest.approx(1.154 / 1.18 - 1)
    assert found[0].difference("ttft_ms_mean") is None


def test_a_study_of_several_loads_is_compared_at_the_one_that_its_verdict_is_about() -> None:
    at_eight = {"speedup@8": 0.9, "speedup_low@8": 0.85, "speedup_high@8": 0.95}
    busy = replace(GOOD, metrics={**GOOD.metrics, **at_eight}, predicted={**GOOD.predicted, "speedup@8": 0.8})
    predictions = Predictions(
        by_configuration={("eagle", 3): a_prediction("eagle", 3, 1.2)},
        at_load={8: Predictions(by_configuration={("eagle", 3): a_prediction("eagle", 3, 0.8)})},
    )
    result = a_result(a_decision(concurrency=8), trials=(BASELINE, busy, GOOD), predictions=predictions)
    (compared,) = strict(result_document(result))["predicted_against_measured"]
    assert compared["figures"]["speedup"]["difference"] == pytest.approx(0.9 / 0.8 - 1)
    assert "+12.5 %" in text_of(comparison_table(result), 120)
    (curve,) = speed_chart(result).curves
    assert [point.speedup for point in curve.predicted] == [0.8]
    assert [(point.speedup, point.low) for point in curve.measured] == [(0.9, 0.85)]
    chart = accuracy_chart(result.trials, 8)
    assert chart is not None
    assert [(one.predicted[0], one.measured[0]) for one in chart.points] == [(0.8, 0.9)]


def members(count: int) -> tuple[ParetoEntry, ...]:
    measured = a_result().pareto[0]
    return (
        replace(measured, probability=0.25),
        *(
            ParetoEntry(
                speculation=replace(NGRAM, drafted_tokens=k),
                values={"e2e_ms": 1900.0 + k, "waste": 0.1},
                trial_number=None,
                is_measured=False,
                probability=k / 100,
            )
            for k in range(1, count)
        ),
    )


def test_the_front_says_what_is_measured_what_is_predicted_and_how_likely_each_is() -> None:
    rows = [line.split() for line in text_of(front_table(a_result(pareto=members(3))), 120).splitlines()]
    assert ["eagle", "k=3", "trial", "1", "1,733", "0.81", "25", "%"] in rows
    assert ["ngram", "k=2", "prediction", "1,902", "0.1", "2", "%"] in rows


def test_of_a_long_front_the_least_likely_predictions_are_left_out() -> None:
    text = text_of(front_table(a_result(pareto=members(12))), 120)
    assert [f"ngram k={k} " in text for k in (1, 4, 5, 11)] == [False, False, True, True]
    assert "eagle k=3" in text
    assert "and 4 predicted members that are less likely; --json has all" in " ".join(text.split())


def test_why_a_search_stopped_is_said_where_it_is_known() -> None:
    reason = Reason(kind=StopKind.MAX_TRIALS, text="6 configurations were tried, the limit is 6")
    stopped = a_result(stopped=reason)
    assert stop_sentence(stopped) == "The search stopped: 6 configurations were tried, the limit is 6."
    assert strict(result_document(stopped))["stopped"] == {"kind": "max_trials", "text": reason.text}
    assert stop_sentence(a_result()) is None
    assert strict(result_document(a_result()))["stopped"] is None


def test_the_document_has_predicted_and_measured_figures_with_their_difference() -> None:
    (compared,) = strict(result_document(a_result()))["predicted_against_measured"]
    assert (compared["trial"], compared["draft"], compared["agrees"]) == (1, "eagle", True)
    figure = compared["figures"]["speedup"]
    assert (figure["predicted"], figure["measured"]) == (1.18, 1.154)
    assert figure["difference"] == pytest.approx(-0.022, abs=0.001)
    assert "e2e_ms_mean" not in compared["figures"]


def test_a_measured_point_of_the_plot_says_what_was_predicted_of_it() -> None:
    eagle, _ = speed_chart(a_result()).curves
    assert eagle.measured[0].before == "predicted before: 1.18 ×, 1.06 to 1.31"
    bare = replace(GOOD, predicted={})
    assert speed_chart(a_result(trials=(BASELINE, bare))).curves[0].measured[0].before == ""


def test_the_second_plot_has_a_point_per_measured_prediction() -> None:
    chart = accuracy_chart(a_result().trials)
    assert chart is not None
    assert [(one.predicted, one.measured) for one in chart.points] == [((1.18, 1.06, 1.31), (1.154, 1.101, 1.203))]
    assert accuracy_chart((BASELINE,)) is None


def test_an_unfinished_trial_is_neither_measured_nor_failed() -> None:
    running = a_trial(1, EAGLE, state=TrialState.RUNNING, values={})
    result = a_result(trials=(BASELINE, running))
    assert "unfinished" in text_of(trial_table(result), 120)
    assert reasons(result.trials) == ()


def test_a_draft_that_vllm_cannot_serve_is_exported_as_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "tuner_eagle"}')
    result = a_result()
    assert result.recommended is not None
    models = {str(result.recommended.speculation.draft_model): str(tmp_path)}
    own = replace(result, study=replace(result.study, provenance={"models": models}))
    assert next_steps(own)[0] == "tuner export code-gen-1a2b3c --format json --output tuned.json"
