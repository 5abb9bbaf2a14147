"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else on stdout.")]
StudyName = Annotated[
    str | None,
    typer.Argument(metavar="STUDY", show_default=False, help="Name of a study; without it, the newest that ended."),
]
Storage = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="URL",
        help="Database of studies, sqlite:///FILE or postgresql://…; else TUNER_STORAGE, else a file of yours.",
    ),
]
TrialNumber = Annotated[int | None, typer.Option("--trial", metavar="N", min=0, help="One trial, by its number.")]


def new_app(**settings: Any) -> typer.Typer:
    """A command's app, with plain help and without typer's own tracebacks."""
    return typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        **settings,
    )
