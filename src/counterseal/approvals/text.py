"""A packet as a card for terminals. It has no right edge, which a wide character could break."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from counterseal.approvals.outline import Line, Row, outline
from counterseal.approvals.packet import Packet
from counterseal.approvals.plain import Part

__all__ = ["text"]

_LABEL = 13
_NAME = 24
_EDGE = 3
_NARROWEST = 40
_WORDS = re.compile(r" +|[^ ]+ *")
_ASCII = str.maketrans({"┌": "+", "└": "+", "│": "|", "─": "-", "→": "->", "…": "..."})


def text(
    packet: Packet,
    width: int = 80,
    *,
    now: float | None = None,
    plain: bool = False,
    characters: int = 600,
    values: int = 60,
) -> str:
    """The card. With `now` it counts down; `plain` draws it in ASCII, as far as that is ours."""
    width = max(width, _NARROWEST)
    told = outline(packet, now=now, characters=characters, values=values)
    body: list[str] = []
    for group in told.groups:
        body.append("")
        for row in group:
            body += _row(row, width - _EDGE, plain=plain)
    rule = "─" * (width - len(told.title) - len(told.risk) - 7)
    top, edge, bottom = f"┌─ {told.title} {rule} {told.risk} ─", "│  ", "└" + "─" * (width - 1)
    if plain:
        top, edge, bottom = (part.translate(_ASCII) for part in (top, edge, bottom))
    return "\n".join([top, *((edge + line).rstrip() for line in body), bottom, ""])


def _row(row: Row, width: int, *, plain: bool) -> Iterator[str]:
    names = [_cells(line.name) for line in row.lines]
    column = min(max(names), _NAME, (width - _LABEL) // 2)
    label = row.label
    for line in row.lines:
        for shown in _line(line, column, width - _LABEL, plain=plain):
            yield f"{label:<{_LABEL}}{shown}"
            label = ""


def _line(line: Line, column: int, width: int, *, plain: bool) -> Iterator[str]:
    said = _joined(line.parts, plain=plain)
    if not line.name:
        yield from _wrap(said, width)
        return
    indent = " " * (column + 2)
    first = line.name + " " * (column + 2 - _cells(line.name))
    if _cells(line.name) > column:  # too long to stand beside its value
        yield from _wrap(line.name, width)
        first = indent
    for shown in _wrap(said, width - column - 2):
        yield first + shown
        first = indent


def _joined(parts: Iterable[Part], *, plain: bool) -> str:
    """The parts as one text. Only our own words are put into ASCII: a value stays what it is."""
    return "".join(
        part.text.translate(_ASCII) if plain and not part.value else part.text for part in parts
    )


def _cells(shown: str) -> int:
    """How many columns a text takes. Never too few: what is joined may come out narrower."""
    return len(shown) if shown.isascii() else sum(map(_size, shown))


@lru_cache(maxsize=4096)
def _size(char: str) -> int:
    from rich.cells import get_character_cell_size  # noqa: PLC0415 - only beyond ASCII

    return get_character_cell_size(char)


def _wrap(said: str, width: int) -> Iterator[str]:
    """Lines of at most so many cells, broken between words where that is possible."""
    line, taken = "", 0
    for word in _words(said, width):
        if line and taken + _cells(word.rstrip(" ")) > width:
            yield line.rstrip(" ")
            line, taken = "", 0
        line, taken = line + word, taken + _cells(word)
    yield line.rstrip(" ")


def _words(said: str, width: int) -> Iterator[str]:
    """The words, each with the blanks behind it; one that is wider than a line in pieces."""
    for word in _WORDS.findall(said):
        piece, taken = "", 0
        for char in word:
            size = _cells(char)
            if piece and taken + size > width:
                yield piece
                piece, taken = "", 0
            piece, taken = piece + char, taken + size
        yield piece
