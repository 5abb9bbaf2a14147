"""What a check of an installation or a machine found, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tuner.errors import TunerError


class State(StrEnum):
    """How a check ended. Only a failed one stops a search."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check.

    Attributes:
        subject: What was looked at, in a word or two.
        message: What was found.
        hint: What to do; empty where all is well.
    """

    subject: str
    state: State
    message: str
    hint: str = ""


def fine(subject: str, message: str) -> Finding:
    """All is well."""
    return Finding(subject, State.OK, message)


def doubtful(subject: str, message: str, hint: str) -> Finding:
    """A search can begin, and may suffer."""
    return Finding(subject, State.WARNING, message, hint)


def failed(subject: str, message: str, hint: str) -> Finding:
    """A search cannot be run."""
    return Finding(subject, State.FAILED, message, hint)


def failed_by(subject: str, error: TunerError) -> Finding:
    """A search would end with this error."""
    return failed(subject, error.message, error.hint)
