"""The few shapes that readable output is made of: headings, labelled fields, tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from counterseal.cli.output import safe

__all__ = ["fields", "heading", "paragraph", "table"]

LABEL_WIDTH = 16


def heading(text: str) -> Text:
    """A title, set off by an empty line."""
    return Text(f"\n{text}", style="bold cyan")


def paragraph(text: str, *, style: str = "", indent: int = 2) -> Padding:
    """Running text, wrapped where the line ends."""
    return Padding(Text(safe(text), style=style), (0, 0, 0, indent))


def fields(rows: Iterable[tuple[str, str]]) -> Padding:
    """A label and its text on each row; rows without a text are left out."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=LABEL_WIDTH, style="dim")
    grid.add_column(overflow="fold")
    for label, text in rows:
        if text:
            grid.add_row(label, Text(safe(text)))
    return Padding(grid, (0, 0, 0, 2))


def table(rows: Iterable[Sequence[str | Text]], *, titles: Sequence[str] = ()) -> Padding:
    """Columns as wide as their texts; the last one takes what is left."""
    cells = [[Text(safe(cell)) if isinstance(cell, str) else cell for cell in row] for row in rows]
    made = Table(
        box=None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
        show_header=bool(titles),
        header_style="dim",
    )
    width = max([len(titles), *map(len, cells)])
    for index in range(width):
        title = titles[index] if titles else ""
        made.add_column(title, overflow="fold", no_wrap=False, min_width=min(len(title), 8) or None)
    for row in cells:
        made.add_row(*row)
    return Padding(made, (0, 0, 0, 2))
