"""Tables for people: figures as text, and the widest of several layouts that fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

ABSENT = "–"
"""A figure that does not exist, such as the acceptance rate of no speculation."""

WIDE = 120
"""Characters of a table in files and pipes, where nothing says how wide it may be."""
_UNLIMITED = 1000

Cell = str | Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column, with a short name, a title for a wide table and one for a narrow table."""

    name: str
    title: str
    narrow_title: str
    justify: Literal["left", "right"] = "right"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row: its cells for a wide and for a narrow table, in the order of the columns."""

    wide: tuple[Cell, ...]
    narrow: tuple[Cell, ...]
    style: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """How much room a table takes: whole titles, the longest name in one line, and columns left out."""

    is_wide: bool = False
    name_width: int = 40
    left_out: tuple[str, ...] = ()


def fitted_table(
    columns: Sequence[Column],
    rows: Sequence[Row],
    width: int = WIDE,
    *,
    dispensable: Sequence[str] = (),
    caption: str = "",
) -> Table:
    """The widest layout that fits.

    Where ``width`` is too small for it titles are shorter and intervals stand below their estimates, then long names
    are folded, and at last columns are left out, which the caption says.

    Args:
        columns: The one called ``name`` is folded.
        rows: Made for both layouts.
        width: Characters.
        dispensable: Names of columns that may be left out, the first one first.
        caption: Below the table.
    """
    layouts = (
        _Layout(is_wide=True),
        *(_Layout(name_width=room) for room in (40, 14, 8)),
        *(_Layout(name_width=8, left_out=tuple(dispensable[: count + 1])) for count in range(len(dispensable))),
    )
    *others, last = (_table(columns, rows, layout, caption) for layout in layouts)
    console = Console(width=_UNLIMITED)
    return next((table for table in others if console.measure(table).maximum <= width), last)


def _table(columns: Sequence[Column], rows: Sequence[Row], layout: _Layout, caption: str) -> Table:
    table = plain_table(gap=1 if layout.is_wide else 0)
    shown = [index for index, column in enumerate(columns) if column.name not in layout.left_out]
    for column in (columns[index] for index in shown):
        room = layout.name_width if column.name == "name" else None
        table.add_column(
            column.title if layout.is_wide else column.narrow_title,
            justify=column.justify,
            max_width=room,
            no_wrap=room is None,
            overflow="fold",
            vertical="bottom",
        )
    for row in rows:
        cells = row.wide if layout.is_wide else row.narrow
        table.add_row(*(cells[index] for index in shown), style=row.style)
    left_out = f"no room for: {', '.join(layout.left_out)}; --json has all" if layout.left_out else ""
    table.caption = "; ".join(text for text in (caption, left_out) if text) or None
    return table


def plain_table(*, gap: int = 1) -> Table:
    """An empty table in the style of all of them."""
    return Table(
        box=SIMPLE_HEAD,
        pad_edge=False,
        header_style="bold",
        padding=(0, 0, 0, gap),
        caption_justify="left",
    )


def number(value: float | None, form: str) -> str:
    """The figure in that format; "–" where there is none."""
    return ABSENT if value is None or not math.isfinite(value) else f"{value:{form}}".replace("%", " %")


def with_limits(metrics: Mapping[str, float | None], name: str, limits: str, form: str, *, is_wide: bool) -> str:
    """The figure, with its interval where there is one: ``limits`` is what their names begin with."""
    low, high = metrics.get(f"{limits}_low"), metrics.get(f"{limits}_high")
    text = number(metrics.get(name), form)
    if low is None or high is None:
        return text
    interval = f"{low:{form}}–{high:{form}}"
    return f"{text} ({interval})" if is_wide else f"{text}\n{interval}"


def row(cells: Callable[..., tuple[Cell, ...]], style: str = "") -> Row:
    """A row from a function of ``is_wide``."""
    return Row(wide=cells(is_wide=True), narrow=cells(is_wide=False), style=style)
