"""The one renderer of the command line: rows become text for people or JSON for programs.

A command builds its result, and hands it to `render` together with a page: the text and tables
that a person reads. Results go to stdout, notes, progress and errors to stderr.

Contracts, file names and arguments are other people's text, so control and invisible characters
are written as escapes before they reach a terminal. Rich is imported only when a page is printed:
`counterseal --help` must start fast.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Self, TextIO

import typer

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.padding import Padding
    from rich.progress import Progress as Bar
    from rich.text import Text

    from counterseal.audit import CallFields
    from counterseal.proposal import Principal

MAX_WIDTH: Final = 100
"""Longer lines are hard to read, however wide the terminal is."""
LABEL_WIDTH: Final = 16
_SECONDS_BETWEEN_LINES: Final = 10.0
"""How often progress is reported where there is no terminal."""
_MAX_NAMED: Final = 3
"""Files or tools that a message names."""

_UNSAFE: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    r"\U000e0000-\U000e007f\ud800-\udfff]"
)

Parts = Iterator["RenderableType"]
"""What a page is made of."""
Page = Callable[[], "Iterable[RenderableType]"]
"""Builds what a person reads: plain strings are printed as they are, Rich objects are laid out."""


# Text --------------------------------------------------------------------------------------------


def safe(text: str) -> str:
    """Return the text with control and invisible characters written as escapes."""
    return _UNSAFE.sub(lambda match: ascii(match[0])[1:-1], text)


def one_line(text: str) -> str:
    """Return the text on one line, with white space collapsed and escapes as in `safe`."""
    return safe(" ".join(text.split()))


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: `1 event`, `2,000 events`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def can_show(text: str) -> bool:
    """Return whether the encoding of stdout has these characters."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


# Results -----------------------------------------------------------------------------------------


def render(data: Any, page: Page, *, as_json: bool) -> None:
    """Print a result: the data as JSON, or the page."""
    if as_json:
        print_json(data)
    else:
        print_page(*page())


def print_json(value: Any) -> None:
    """Print indented JSON. Rows of `views` are printed with all their fields."""
    text = json.dumps(value, ensure_ascii=False, indent=2, default=_row_data)
    print(_UNSAFE.sub(lambda match: json.dumps(match[0])[1:-1], text))


def print_json_line(value: Any) -> None:
    """Print one line of a JSON Lines stream, at once."""
    print(json.dumps(value, default=_row_data), flush=True)


def _row_data(row: Any) -> Any:
    return row.model_dump(mode="json")


def print_page(*parts: RenderableType) -> None:
    """Print strings as they are, and Rich objects laid out to the width of the terminal."""
    if all(isinstance(part, str) for part in parts):  # no reason to import Rich
        sys.stdout.writelines(f"{safe(str(part))}\n" for part in parts)
        return
    terminal = console()
    for part in parts:
        if isinstance(part, str):
            sys.stdout.write(f"{safe(part)}\n")
            continue
        with terminal.capture() as captured:
            terminal.print(part)
        sys.stdout.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def console(stream: TextIO | None = None) -> Console:
    """Return a Rich console, on stdout if no stream is given: plain with NO_COLOR, or in a pipe."""
    from rich.console import Console

    colours: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    terminal = Console(
        file=stream or sys.stdout, color_system=colours, highlight=False, markup=False, emoji=False
    )
    terminal.width = min(terminal.width, MAX_WIDTH)
    return terminal


# Notes, errors, progress: stderr -----------------------------------------------------------------


def note(text: str) -> None:
    """Print a line that is not part of the result."""
    print(safe(text), file=sys.stderr)


def warn(*lines: str) -> None:
    """Print lines that must not be overlooked; in bold red on a terminal."""
    loud = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    text = safe("\n".join(lines))
    print(f"\x1b[1;31m{text}\x1b[0m" if loud else text, file=sys.stderr)


def fail(message: str, fix: str = "", *, code: int = 2) -> NoReturn:
    """End the command with a line that says what is wrong, and one that says what to do."""
    note(f"Error: {message}")
    if fix:
        note(fix)
    raise typer.Exit(code)


class ProgressBar:
    """Says on stderr how far long work is, from the second second on.

    On a terminal it is a bar with the rate, else a line now and then. stdout is left alone.
    """

    def __init__(self, noun: str = "", *, clock: Callable[[], float] = time.monotonic) -> None:
        self._noun = noun
        self._clock = clock
        self._began = clock()
        self._first: tuple[float, int] | None = None
        """When the first count was reported, and the count."""
        self._next_line = self._began + _SECONDS_BETWEEN_LINES
        self._bar: Bar | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.done()

    def __call__(self, path: Path) -> None:
        """Show the file that is being read."""
        self._show(f"Reading {path}", 0, None)

    def show(self, done: int, total: int | None = None, text: str = "") -> None:
        """Report how much is done, and of how much if that is known."""
        now = self._clock()
        if self._first is None:
            self._first = (now, done)
        began, before = self._first
        of = "" if total is None else f"{done:,} of "
        parts = [of + counted(done if total is None else total, self._noun), text]
        if now > began and done > before:
            rate = (done - before) / (now - began)
            parts.insert(1, f"{rate:,.0f} a second" if rate >= 1 else f"{rate * 60:.1f} a minute")
        self._show(", ".join(filter(None, parts)), done, total)

    def _show(self, text: str, done: int, total: int | None) -> None:
        now = self._clock()
        if now - self._began < 1:
            return
        if sys.stderr.isatty():
            self._bar = self._bar or _bar()
            task = self._bar.task_ids[0]
            self._bar.update(task, description=safe(text), completed=done, total=total)
        elif now >= self._next_line:
            self._next_line = now + _SECONDS_BETWEEN_LINES
            note(safe(text))

    def print(self, text: str) -> None:
        """Print a line on stderr, above the bar."""
        if self._bar is None:
            note(text)
        else:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def done(self) -> None:
        """Erase the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _bar() -> Bar:
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar
    from rich.table import Column

    rest = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    bar = Bar(
        TextColumn("{task.description}", markup=False, table_column=rest),
        BarColumn(bar_width=16),
        TimeRemainingColumn(),
        console=console(sys.stderr),
        transient=True,
        expand=True,
    )
    bar.add_task("", total=None)
    bar.start()
    return bar


# Parts of pages ----------------------------------------------------------------------------------


def heading(text: str) -> Text:
    """Return a section title with an empty line above it."""
    from rich.text import Text

    return Text(f"\n{text}", style="bold cyan")


def title_line(name: str, version: str, caller: Principal | CallFields) -> Text:
    """Return the first line of a page about a call or a plan: what it is, and who called."""
    of_user = f", user {caller.user}" if caller.user else ""
    return line(
        (one_line(name), "bold"),
        (f" {one_line(version)}" if version else "", "dim"),
        f"  as {one_line(caller.agent)} ",
        (one_line(f"(tenant {caller.tenant}{of_user})"), "dim"),
    )


def line(*parts: str | tuple[str, str]) -> Text:
    """Return one line of texts, each plain or with its style."""
    from rich.text import Text

    return Text.assemble(*parts)


def paragraph(text: str, *, style: str = "", indent: int = 2) -> Padding:
    """Return running text that wraps at the end of the line."""
    from rich.padding import Padding
    from rich.text import Text

    return Padding(Text(safe(text), style=style), (0, 0, 0, indent))


def fields(rows: Iterable[tuple[str, str]]) -> Padding:
    """Return labels with their texts, one a row. Rows without a text are left out."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=LABEL_WIDTH, style="dim")
    grid.add_column(overflow="fold")
    for label, text in rows:
        if text:
            grid.add_row(label, Text(safe(text)))
    return Padding(grid, (0, 0, 0, 2))


def table(
    rows: Iterable[Sequence[str | Text]], *, titles: Sequence[str] = (), whole: int = 0
) -> Padding:
    """Return columns as wide as their texts; the last one takes the remaining width.

    The texts of the first `whole` columns are never broken.
    """
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    cells = [[Text(safe(cell)) if isinstance(cell, str) else cell for cell in row] for row in rows]
    grid = Table(
        box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=bool(titles), header_style="dim"
    )
    for index in range(max([len(titles), *map(len, cells)])):
        title = titles[index] if titles else ""
        least = min(len(title), 8) or None
        grid.add_column(title, overflow="fold", no_wrap=index < whole, min_width=least)
    for row in cells:
        grid.add_row(*row)
    return Padding(grid, (0, 0, 0, 2))


# Files -------------------------------------------------------------------------------------------


def check_overwrite(files: Sequence[Path], *, force: bool, out: str) -> None:
    """End the command if a file exists and `force` is not given. `out` is the option's form."""
    existing = [relative(file) for file in files if os.path.lexists(file)]
    if existing and not force:
        fail(
            f"{named(existing)} already {'exists' if len(existing) == 1 else 'exist'}.",
            f"Nothing was written. Give --force to overwrite, or --out {out}.",
        )


def write_files(texts: Mapping[Path, str]) -> None:
    """Write all files. On an error, end the command and say which files were written.

    Each text is first written beside its file, so that a full disk leaves every file as it was.
    """
    folder = next((file for file in texts if file.is_dir()), None)
    if folder is not None:
        fail(f"{relative(folder)} is a folder.", "Nothing was written.")
    parents = {parent for file in texts for parent in file.parents}
    new_folders = sorted((one for one in parents if not one.exists()), reverse=True)
    mark = secrets.token_hex(4)
    beside = {file: file.with_name(f".{file.name}.{mark}.part") for file in texts}
    written: list[str] = []
    try:
        for file, text in texts.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            beside[file].write_text(text, encoding="utf-8")
        for file in texts:
            beside[file].replace(file)
            written.append(relative(file))
    except OSError as error:
        for part in beside.values():
            with suppress(OSError):
                part.unlink(missing_ok=True)
        for created in new_folders:
            with suppress(OSError):
                created.rmdir()  # deepest first; fails, as it should, if something is in it
        failed = error.filename or relative(next(iter(texts)))
        result = f"Written before: {named(written)}." if written else "Nothing was written."
        fail(f"Can't write {failed}: {error.strerror}.", result)


def relative(file: Path) -> str:
    """Return a path as seen from the current folder, if it is below it."""
    absolute = file.absolute()
    here = Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)


def named(names: Sequence[str]) -> str:
    """Return the first names of a list, and how many more there are."""
    more = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
