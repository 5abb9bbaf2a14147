"""Running the command line as a person does, and walking all its commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from tuner.cli.main import app, main

TEXTS = Path(__file__).parents[1] / "data" / "cli"
RENEW = "TUNER_RENEW_TEXTS=1 python -m pytest tests/unit -k 'cli or report'"


@dataclass(frozen=True, slots=True)
class Said:
    """What a command wrote, and how it ended."""

    exit_code: int
    stdout: str
    stderr: str


RunCli = Callable[..., Said]


def run_main(patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str], *arguments: str) -> Said:
    """Run ``tuner ARGUMENTS`` in this process, through the same function as the installed command."""
    patch.setattr(sys, "argv", ["tuner", *arguments])
    patch.setenv("COLUMNS", "80")
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    else:
        code = 0
    written = capture.readouterr()
    return Said(code, written.out, written.err)


def commands() -> Iterator[tuple[str, ...]]:
    """Every command and group, as the words after ``tuner``; the empty tuple is ``tuner`` itself."""
    root: Any = typer.main.get_command(app)
    yield from _below(root, ())


def _below(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield words
    for name in getattr(command, "commands", {}):
        yield from _below(command.get_command(None, name), (*words, name))


def check_text(name: str, text: str) -> None:
    """What a person sees, against the text that is kept for it; renews the kept one when asked to."""
    path = TEXTS / f"{name}.txt"
    if os.environ.get("TUNER_RENEW_TEXTS"):
        path.write_text(text, encoding="utf-8")
    kept = path.read_text(encoding="utf-8") if path.is_file() else ""
    assert text == kept, f"{path.name} differs from what is kept; if that is wanted: {RENEW}"
