"""How far a long transfer or conversion is, told without knowing who shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from rich.progress import TaskID

# Told: what is being done, bytes done, bytes in all (None where it is not known).
Report: TypeAlias = Callable[[str, int, int | None], None]


def silent(what: str, done_bytes: int, total_bytes: int | None) -> None:
    """Show nothing."""


@contextmanager
def progress_bars() -> Iterator[Report]:
    """Bars on stderr with size, speed and time left, one for each thing reported; they vanish at the end.

    Without a terminal each thing is named once, in a line. Nothing is drawn, and rich is not imported, before the
    first report.
    """
    with ExitStack() as stack:
        bars: list[_Bars] = []

        def report(what: str, done_bytes: int, total_bytes: int | None) -> None:
            if not bars:
                bars.append(_Bars(stack))
            bars[0].update(what, done_bytes, total_bytes)

        yield report


class _Bars:
    """The bars of one ``progress_bars`` block."""

    def __init__(self, stack: ExitStack) -> None:
        from rich import progress
        from rich.console import Console
        from rich.table import Column

        self._console = Console(stderr=True)
        self._progress = stack.enter_context(
            progress.Progress(
                progress.TextColumn(
                    "{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", max_width=32)
                ),
                progress.BarColumn(bar_width=10),
                progress.DownloadColumn(),
                progress.TransferSpeedColumn(),
                progress.TimeRemainingColumn(),
                console=self._console,
                transient=True,
                disable=not self._console.is_terminal,
            )
        )
        self._tasks: dict[str, TaskID] = {}

    def update(self, what: str, done_bytes: int, total_bytes: int | None) -> None:
        if what not in self._tasks:
            if not self._console.is_terminal:
                self._console.print(f"{what} …", highlight=False, soft_wrap=True)
            self._tasks[what] = self._progress.add_task(what)
        self._progress.update(self._tasks[what], completed=done_bytes, total=total_bytes)
