"""``tuner export``: a study's configuration in the words of the server that will run it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli.arguments import AsJson, Storage, StudyName, new_app

if TYPE_CHECKING:
    from tuner.export import Chosen, Export
    from tuner.stored import StoredStudy

app = new_app()


@app.command("export")
def export(
    study: StudyName = None,
    export_format: Annotated[
        str,
        typer.Option("--format", metavar="vllm|json", help="vllm: YAML for `vllm serve --config`; json: all facts."),
    ] = "vllm",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where it goes; else to stdout.")
    ] = None,
    trial: Annotated[
        int | None,
        typer.Option("--trial", metavar="N", min=0, help="A measured trial of your choice, marked as not certified."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that the tuner did not write.")] = False,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Write the configuration that a study certified, for vLLM or as JSON.

    Where the verdict is not to speculate, that is what is written. Where there is no verdict, nothing is.
    """
    from tuner.api import open_result
    from tuner.export import choose_trial, write_export

    result = open_result(study, storage)
    chosen = choose_trial(result.trials, result.decision, trial)
    made = _make(result, chosen, export_format)
    if output is not None:
        write_export(output, made, force=force)
    _report(result, chosen, made, output, as_json=as_json)


def _make(result: StoredStudy, chosen: Chosen, export_format: str) -> Export:
    from tuner.documents import export_document
    from tuner.export import ExportFormat, json_export, parse_format, vllm_export, vllm_settings

    config = result.config(chosen.trial.speculation)
    if parse_format(export_format) is ExportFormat.JSON:
        return json_export(export_document(result, config, chosen))
    return vllm_export(vllm_settings(config), chosen.comments)


def _report(result: StoredStudy, chosen: Chosen, made: Export, output: Path | None, *, as_json: bool) -> None:
    from tuner.cli.output import print_json

    if as_json:
        facts: dict[str, Any] = {
            "study": result.study.name,
            "trial": chosen.trial.number,
            "is_certified": chosen.is_certified,
            "format": str(made.export_format),
            "path": None if output is None else str(output),
            "configuration": made.document,
        }
        print_json(facts)
    elif output is None:
        sys.stdout.write(made.text)
    else:
        sys.stdout.write(f"{output}: {chosen.trial.speculation.label} of study {result.study.name}\n")
    if not chosen.is_certified:
        sys.stderr.write("note: this configuration is not certified; whether it pays off was not confirmed\n")
