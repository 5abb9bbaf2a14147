"""What the commands that show a study have in common."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.errors import ConfigurationError, NotFoundError, TunerError

if TYPE_CHECKING:
    from tuner.documents import StudyResult
    from tuner.store import StudyRecord, TrialRecord
    from tuner_storage import SqlTrialStore


@contextmanager
def opened_store(storage: str | None) -> Iterator[SqlTrialStore]:
    """The store in the database of that address, else in one's own, which may not be there yet."""
    from tuner.settings import read_settings
    from tuner_storage import open_store

    store = open_store(read_settings(storage_url=storage).storage_url, create=storage is None)
    try:
        yield store
    finally:
        store.close()


def newest_study(store: SqlTrialStore) -> StudyRecord:
    """The study that was started last.

    Raises:
        NotFoundError: There is none.
    """
    studies = store.studies()
    if not studies:
        raise NotFoundError("there is no study yet", "run `tuner search --workload code-gen --quick` to make one")
    return studies[-1]


def default_plot(study_name: str) -> Path:
    """Where a study's plot goes when nobody says: beside the database of this person, named after the study.

    Raises:
        ConfigurationError: The folder cannot be made.
    """
    import platformdirs

    folder = platformdirs.user_data_path("tuner") / "plots"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"cannot make the folder {folder}: {error.strerror}", "give --plot FILE") from error
    return folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', study_name).strip('.')[:100] or 'study'}.html"


def drawn(study_name: str, plot: Path | None, write: Callable[[Path], None], *, as_json: bool = False) -> Path | None:
    """Have the plot written and give back where, by default ``default_plot``.

    Where that fails the result is worth more than the plot, so it is said and None comes back.
    """
    try:
        path = plot or default_plot(study_name)
        write(path)
    except TunerError as error:
        text = f"{error.message}; `tuner show --plot FILE` writes the plot later"
        if as_json:
            from tuner.cli.events import write_notice

            write_notice(text)
        else:
            sys.stderr.write(f"note: {text}\n")
        return None
    return path


def print_result(result: StudyResult, plot: Path | None = None) -> None:
    """The tables, why trials failed, why it stopped, the verdict with what belongs to it, and what to do next."""
    from tuner import report
    from tuner.cli.output import stdout_console
    from tuner.documents import verdict_sentence

    console = stdout_console()
    for heading, table in report.result_tables(result, console.width):
        if heading:
            console.print(heading, style="bold")
        console.print(table)
    for line in report.reasons(result.trials):
        console.print(line, style="yellow", soft_wrap=True)
    stopped = report.stop_sentence(result)
    if stopped is not None:
        console.print(stopped, soft_wrap=True)
    console.print(verdict_sentence(result), style="bold", soft_wrap=True)
    for note in report.verdict_notes(result):
        console.print("  ", note, sep="", soft_wrap=True)
    if plot is not None:
        console.print(f"plot: {plot}", soft_wrap=True)
    for line in report.next_steps(result):
        console.print(f"next: {line}", soft_wrap=True)


def find_trial(result: StudyResult, number: int) -> TrialRecord:
    """The trial of that number.

    Raises:
        NotFoundError: There is none.
    """
    return trial_of(result.study.name, result.trials, number)


def trial_of(study_name: str, trials: Sequence[TrialRecord], number: int) -> TrialRecord:
    """The trial of that number among a study's.

    Raises:
        NotFoundError: There is none.
    """
    for trial in trials:
        if trial.number == number:
            return trial
    known = ", ".join(str(trial.number) for trial in trials)
    raise NotFoundError(f"study {study_name!r} has no trial {number}", f"there are: {known or 'none'}")
