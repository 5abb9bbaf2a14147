"""``tuner predict``: the speed of every configuration, with nothing run but no speculation and the drafts' traces."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli import search_options as options
from tuner.cli.arguments import AsJson, Storage, new_app

if TYPE_CHECKING:
    from pathlib import Path

    from tuner.driver import PredictedStudy
    from tuner.search_options import SearchOptions

app = new_app()

AllRows = Annotated[bool, typer.Option("--all", help="Every configuration in the table, draft by draft.")]


@app.command("predict")
def predict(
    *,
    workload: options.Workload,
    target: options.Target = None,
    draft: options.Drafts = None,
    prompts: options.Prompts = None,
    space: options.Space = "cpu-default",
    quick: options.Quick = False,
    objective: options.Objectives = None,
    price_per_hour: options.PricePerHour = None,
    name: options.Name = None,
    threads: options.Threads = None,
    weight_format: options.WeightFormat = "auto",
    stage_deadline: options.StageDeadline = None,
    hardware: options.Hardware = "cpu",
    artifacts: options.Artifacts = None,
    wait_for_nodes: options.WaitForNodes = None,
    ray_address: options.RayAddress = None,
    dispatch: options.Dispatch = "ray",
    storage: Storage = None,
    plot: options.Plot = None,
    all_rows: AllRows = False,
    as_json: AsJson = False,
) -> None:
    """Predict the speed of every configuration, without running any.

    Runs no speculation once, and each draft along its outputs. A search with the same options goes on from there.
    """
    given = dict(locals())
    from tuner.text_files import check_folder

    asked = options.asked(given)
    if plot is not None:
        check_folder(plot)
    _show(asked, _run(asked, as_json=as_json), plot, all_rows=all_rows, as_json=as_json)


def _run(asked: SearchOptions, *, as_json: bool) -> PredictedStudy:
    from tuner.api import run_prediction
    from tuner.cli.progress import run_observed

    return run_observed(lambda observer: run_prediction(asked, observer), "what was run", as_json=as_json)


def _show(asked: SearchOptions, result: PredictedStudy, plot: Path | None, *, all_rows: bool, as_json: bool) -> None:
    from tuner import prediction_report as report
    from tuner.cli.output import print_json, stdout_console
    from tuner.cli.stored import drawn
    from tuner.study_charts import write_prediction

    rows = report.predicted_rows(result)
    sentence = report.prediction_sentence(result, rows)
    write = partial(write_prediction, result, sentence, load=result.concurrency)
    path = drawn(result.study.name, plot, write, as_json=as_json)
    command = options.search_command(asked)
    if as_json:
        where = None if path is None else str(path)
        print_json({**report.prediction_document(result, rows), "plot": where, "next": command})
        return
    console = stdout_console()
    console.print(sentence, style="bold", soft_wrap=True)
    if rows:
        console.print(report.prediction_table(result, rows, console.width, all_rows=all_rows))
    for note in report.prediction_notes(result):
        console.print(f"  {note}", soft_wrap=True)
    if path is not None:
        console.print(f"plot: {path}", soft_wrap=True)
    console.print(f"next: {command}", soft_wrap=True)
