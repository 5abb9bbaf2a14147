"""How far a long transfer or conversion is, told without knowing who shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

# Told: what is being done, bytes done, bytes in all (None where it is not known).
Report: TypeAlias = Callable[[str, int, int | None], None]


def silent(what: str, done_bytes: int, total_bytes: int | None) -> None:
    """Show nothing."""


@contextmanager
def progress_bars() -> Iterator[Report]:
    """Bars on stderr with size, speed and time left, one for each thing reported.

    Without a terminal nothing is drawn but the last state of each bar.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks = {}

        def report(what: str, done_bytes: int, total_bytes: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what)
            bars.update(tasks[what], completed=done_bytes, total=total_bytes)

        yield report
