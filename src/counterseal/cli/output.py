"""What commands print, and how: safe text, JSON, colours, and the one way to fail.

Contracts and file names are other people's text. Nothing of it reaches a terminal before its
control and invisible characters are spelt out.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["Progress", "console", "fail", "note", "one_line", "print_json", "print_styled", "safe"]

MAX_WIDTH = 100
"""Longer lines are hard to read, however wide the terminal is."""

_UNSAFE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    r"\U000e0000-\U000e007f\ud800-\udfff]"
)


def safe(text: str) -> str:
    """The same text, with what a terminal would obey or hide written as an escape."""
    return _UNSAFE.sub(lambda found: ascii(found[0])[1:-1], text)


def one_line(text: str) -> str:
    """Safe, and without line breaks."""
    return safe(" ".join(text.split()))


def print_json(value: Any) -> None:
    """A result for programs, laid out so that people can read it too."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    print(_UNSAFE.sub(lambda found: json.dumps(found[0])[1:-1], text))


def note(text: str) -> None:
    """Something worth knowing that is not the result."""
    print(safe(text), file=sys.stderr)


def fail(message: str, fix: str = "", *, code: int = 2) -> NoReturn:
    """End the command with a line on what is wrong, and one on what to do."""
    note(f"Error: {message}")
    if fix:
        note(fix)
    raise typer.Exit(code)


def console() -> Console:
    """Writes to stdout as it is now; without colours where NO_COLOR is set or nobody looks."""
    from rich.console import Console

    plain = bool(os.environ.get("NO_COLOR"))
    made = Console(
        file=sys.stdout,
        color_system=None if plain else "auto",
        highlight=False,
        markup=False,
        emoji=False,
    )
    made.width = min(made.width, MAX_WIDTH)
    return made


def print_styled(*parts: RenderableType) -> None:
    """Laid out for people. Lines end where their text ends."""
    made = console()
    with made.capture() as captured:
        made.print(*parts, sep="\n")
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


class Progress:
    """Names the file at hand on stderr, where a person waits and only after a while."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._shown = False

    def __call__(self, path: Path) -> None:
        if sys.stderr.isatty() and time.monotonic() - self._started > 1:
            self._shown = True
            print(f"\r\x1b[KReading {safe(str(path))[:60]}", end="", file=sys.stderr, flush=True)

    def done(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
