"""Running the command line as a person does, and walking all its commands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import typer

from tuner.cli.main import app, main


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
