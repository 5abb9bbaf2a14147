"""What commands write: results to stdout, everything else to stderr, and no password anywhere.

With ``--json`` stdout holds one JSON document and nothing else; where the command fails stdout stays empty, and
the last line of stderr is ``{"error": {"type": …, "message": …, "hint": …, "exit_code": …}}``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tuner.errors import TunerError
from tuner.redact import hide_passwords

if TYPE_CHECKING:
    from rich.console import Console

INTERNAL_ERROR = 70
"""Exit code of a fault of our own: ``EX_SOFTWARE`` of sysexits.h."""

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 + SIGINT."""


def print_json(document: Mapping[str, Any]) -> None:
    """Write one strict JSON document to stdout.

    Raises:
        ValueError: A number in it is not finite.
    """
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    sys.stdout.write(hide_passwords(text) + "\n")


def report_error(error: TunerError, *, as_json: bool) -> None:
    """Say on stderr what went wrong and what to do next."""
    message, hint = hide_passwords(error.message), hide_passwords(error.hint)
    if as_json:
        _write_error(type(error).__name__, message, hint, error.exit_code)
        return
    sys.stderr.write(f"error: {message}\n")
    if hint:
        sys.stderr.write(f"hint: {hint}\n")


def report_internal_error(error: Exception, *, as_json: bool) -> None:
    """Say on stderr, in one line, that the fault is ours."""
    name, message = type(error).__name__, hide_passwords(" ".join(str(error).split()))
    hint = "please report it; TUNER_DEBUG=1 shows where it happened"
    if as_json:
        _write_error(name, message, hint, INTERNAL_ERROR)
        return
    sys.stderr.write(f"internal error: {name}: {message} ({hint})\n")


def report_interruption(what_now: str, *, as_json: bool) -> None:
    """Say on stderr that Ctrl-C ended the command, and what that means for its work."""
    if as_json:
        _write_error("Interrupted", "interrupted", what_now, INTERRUPTED)
        return
    sys.stderr.write(f"interrupted; {what_now}\n")


def is_usage_error(error: Exception) -> bool:
    """Whether typer raised it for a command line that it cannot read; its class is typer's or click's, by version."""
    return hasattr(error, "format_message") and hasattr(error, "exit_code")


def report_usage_error(error: Any) -> int:
    """Say as JSON on stderr what is wrong with the command line, and give back the exit code."""
    exit_code = int(error.exit_code)
    _write_error("UsageError", hide_passwords(error.format_message()), "tuner --help", exit_code)
    return exit_code


def _write_error(name: str, message: str, hint: str, exit_code: int) -> None:
    error = {"type": name, "message": message, "hint": hint, "exit_code": exit_code}
    sys.stderr.write(json.dumps({"error": error}, ensure_ascii=False) + "\n")


NOT_A_TERMINAL = 120
"""Width of tables in files and pipes, where rich would assume 80."""


def stdout_console() -> Console:
    """Where tables and sentences for people go."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else NOT_A_TERMINAL
    return Console(width=width, highlight=False, markup=False, soft_wrap=False)
