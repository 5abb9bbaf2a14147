"""``tuner advise``: what acceptance a draft must reach to pay off here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.arguments import AsJson, Storage, StudyName, new_app

if TYPE_CHECKING:
    from tuner.advice import Advice
    from tuner.stored import StoredStudy

app = new_app()


@app.command("advise")
def advise(
    study: StudyName = None,
    speedups: Annotated[
        list[float] | None,
        typer.Option("--speedup", metavar="X", help="A gain to reach, repeatable. Default: 1.5 and 2."),
    ] = None,
    cost_shares: Annotated[
        list[float] | None,
        typer.Option(
            "--draft-cost",
            metavar="SHARE",
            help="A draft that does not exist yet, by the cost of a drafted token over that of a round without "
            "speculation; repeatable. Default: 0.05, 0.1 and 0.2.",
        ),
    ] = None,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Say what acceptance a draft must reach to pay off, and what the drafts of a study have."""
    from tuner import advice_report
    from tuner.api import open_result
    from tuner.cli.output import print_json, stdout_console

    result = open_result(study, storage)
    advice = _advice(result, speedups, cost_shares)
    if as_json:
        print_json({"study": result.study.name, **advice_report.advice_document(advice)})
        return
    console = stdout_console()
    console.print(f"study {result.study.name}", soft_wrap=True)
    for line in advice_report.advice_sentences(advice):
        console.print(line, style="bold", soft_wrap=True)
    console.print(advice_report.advice_table(advice))
    for line in advice_report.advice_notes(advice):
        console.print(f"  {line}", soft_wrap=True)


def _advice(result: StoredStudy, speedups: list[float] | None, cost_shares: list[float] | None) -> Advice:
    from tuner.advice import COST_SHARES, TARGET_SPEEDUPS, advise
    from tuner.decide import DEFAULT_MARGIN
    from tuner.errors import NotFoundError

    if result.baseline_result is None:
        raise NotFoundError(
            f"study {result.study.name!r} has no measured baseline yet", "run its search again: it goes on where it was"
        )
    return advise(
        result.baseline_result.measurement,
        [one.trace for one in result.traces],
        result.predictions,
        margin=float(result.study.spec.get("margin", DEFAULT_MARGIN)),
        speedups=speedups or TARGET_SPEEDUPS,
        cost_shares=cost_shares or COST_SHARES,
    )
