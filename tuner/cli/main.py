"""The command ``tuner``: finds its commands by name, and is the one place where every error ends.

A command's module is imported when that command is called, so that ``tuner --help`` stays quick and a broken
optional package spoils only the commands that need it.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

import tuner
from tuner.cli.output import (
    INTERNAL_ERROR,
    is_usage_error,
    report_error,
    report_internal_error,
    report_usage_error,
)
from tuner.errors import TunerError

DEBUG_VARIABLE = "TUNER_DEBUG"


class LazyCommand(NamedTuple):
    """A command that is known by name and imported when it is called."""

    module: str
    help: str


COMMANDS = {
    "search": LazyCommand("tuner.cli.search", "Find the fastest speculation for a workload."),
    "predict": LazyCommand("tuner.cli.predict", "Predict the speed of every configuration, without running any."),
    "best": LazyCommand("tuner.cli.best", "Say what a study recommends."),
    "show": LazyCommand("tuner.cli.show", "Show a study: its trials, its verdict, one trial, or a plot."),
    "mix": LazyCommand("tuner.cli.mix", "Choose one configuration for several workloads."),
    "advise": LazyCommand("tuner.cli.advise", "Say what acceptance a draft must reach to pay off."),
    "studies": LazyCommand("tuner.cli.studies", "List the studies in the database."),
    "cancel": LazyCommand("tuner.cli.cancel", "Stop a search, wherever it runs; results are kept."),
    "logs": LazyCommand("tuner.cli.logs", "Show what the stages of a trial wrote."),
    "export": LazyCommand("tuner.cli.export", "Write a study's configuration for vLLM, or as JSON."),
    "models": LazyCommand("tuner.cli.models", "List, fetch, show and check models."),
    "traces": LazyCommand("tuner.cli.traces", "List, export and import acceptance traces."),
    "workloads": LazyCommand("tuner.cli.workloads", "List, show and check workloads."),
    "spaces": LazyCommand("tuner.cli.spaces", "List, show and check search spaces."),
    "hardware": LazyCommand("tuner.cli.hardware", "List, show and check hardware."),
    "engines": LazyCommand("tuner.cli.engines", "List the engines and what each can do."),
    "doctor": LazyCommand("tuner.cli.doctor", "Check what a search needs, and say what to do."),
    "cache": LazyCommand("tuner.cli.cache", "List, verify and prune compiled artifacts."),
    "db": LazyCommand("tuner.cli.db", "Create, upgrade and inspect the database."),
}


class LazyGroup(TyperGroup):
    """A group whose commands are imported when they are called.

    Contexts, commands and formatters are ``Any``: their classes are typer's own or click's, by typer's version.
    """

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        names: Any = dict.fromkeys(COMMANDS)  # the keys are all that "did you mean" looks at
        self.commands = names

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """The command of that name, imported; None where there is none."""
        if cmd_name not in COMMANDS:
            return None
        app: typer.Typer = importlib.import_module(COMMANDS[cmd_name].module).app
        return typer.main.get_command(app)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """List the commands in the help text without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help) for name, command in COMMANDS.items()])


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help: the same text in every terminal, and rich need not be imported
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tuner {tuner.__version__}")
        raise typer.Exit


@app.callback()
def _tuner(
    version: Annotated[  # noqa: ARG001
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", help=f"Log every step and show tracebacks; {DEBUG_VARIABLE}=1 does the same."),
    ] = False,
) -> None:
    """Find the speculative decoding that pays off: draft, method and number of drafted tokens, per workload."""
    if debug:
        os.environ[DEBUG_VARIABLE] = "1"
    level = logging.INFO if _is_debugging() else logging.ERROR
    logging.basicConfig(level=level, stream=sys.stderr, format="%(asctime)s %(name)s: %(message)s")


def _is_debugging() -> bool:
    return os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")


def main() -> None:
    """Run the command line; every error becomes a message on stderr and an exit code here."""
    as_json = "--json" in sys.argv[1:]
    try:
        # typer writes usage errors as text; with --json they are raised, and written below
        code = typer.main.get_command(app)(prog_name="tuner", standalone_mode=not as_json)
    except TunerError as error:
        if _is_debugging():
            raise
        report_error(error, as_json=as_json)
        sys.exit(error.exit_code)
    except Exception as error:  # the one broad catch: what nobody foresaw becomes one line
        if is_usage_error(error):
            sys.exit(report_usage_error(error))
        if _is_debugging():
            raise
        report_internal_error(error, as_json=as_json)
        sys.exit(INTERNAL_ERROR)
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
