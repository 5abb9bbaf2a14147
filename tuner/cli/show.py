"""``tuner show``: a study's trials and verdict, one trial with all its figures, or the plot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.arguments import AsJson, Storage, StudyName, TrialNumber, new_app

if TYPE_CHECKING:
    from tuner.documents import StudyResult
    from tuner.store import TrialRecord

app = new_app()


@app.command("show")
def show(
    study: StudyName = None,
    trial: TrialNumber = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Write the plot as a page that opens offline.")
    ] = None,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Show a study: its trials and its verdict, or one trial with every figure."""
    from tuner import documents
    from tuner.api import open_result
    from tuner.cli.output import print_json
    from tuner.cli.stored import find_trial, print_result
    from tuner.study_charts import write_study

    result = open_result(study, storage)
    chosen = None if trial is None else find_trial(result, trial)
    if plot is not None:
        write_study(result, plot)
    if as_json:
        print_json(documents.result_document(result) if chosen is None else documents.trial_document(chosen))
    elif chosen is not None:
        _print_trial(result, chosen)
    else:
        print_result(result, plot)


def _print_trial(result: StudyResult, trial: TrialRecord) -> None:
    from tuner import report
    from tuner.cli.output import stdout_console

    console = stdout_console()
    console.print(f"study {result.study.name}, trial {trial.number}: {trial.speculation.label}", soft_wrap=True)
    for line in report.reasons((trial,)):
        console.print(line, style="yellow")
    if trial.duplicate_of is not None:
        console.print(f"repeats trial {trial.duplicate_of}; it was not measured again")
    console.print(report.metric_table(trial))
