"""What every benchmark's command line does around its measurement."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable

from rich.console import Console

from tuner.errors import TunerError

Measure = Callable[[argparse.Namespace, Console], dict[str, object]]
"""Runs everything, shows its table on the console, and returns the JSON document."""


def run_command(measure: Measure, arguments: argparse.Namespace, table_width: int) -> int:
    """Measure, and print the document as the last line where ``--json`` was given; the exit code.

    The console is standard error; ``table_width`` is for files and pipes, where nothing says how wide a table may be.
    """
    console = Console(stderr=True, width=None if sys.stderr.isatty() else table_width)
    try:
        document = measure(arguments, console)
    except TunerError as error:
        console.print(f"error: {error.message}\nhint: {error.hint}", markup=False, highlight=False, soft_wrap=True)
        return error.exit_code
    if arguments.json:
        print(json.dumps(document, allow_nan=False))
    return 0
