"""Show foreign values as text that can't pretend to be anything else.

A value is shown as JSON, so that a text is in quotes; a page that marks values in another way shows
text as text. Characters that a reader could not see, or
that a terminal would obey, are written as code points: `[U+202E]`.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from counterseal.canonical import pointer, thaw
from counterseal.contract.money import from_smallest, money_text
from counterseal.proposal import is_hidden

_MARKS: Final = frozenset({"Mn", "Me"})
_MOST_MARKS: Final = 2
"""Accents on one letter. More of them would run into the lines above and below."""
_BLANKS: Final = re.compile(" {9,}")
"""Enough blanks to push something out of sight."""
_EMPTY_LINES: Final = re.compile("\n{4,}")
_WORD: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:@/+-]{0,78}[A-Za-z0-9])?")
_LONGEST_NAME: Final = 60
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,62}")


_EXECUTED: Final = ("spent", "executed")
"""The status of an approval whose call was executed: in the store and the API, and for people."""


class Part(NamedTuple):
    """A piece of displayed text. `value` marks foreign data."""

    text: str
    value: bool = False


def shown_status(status: str) -> str:
    """Return the word for an approval's status that people see."""
    stored, word = _EXECUTED
    return word if status == stored else status


def stored_status(word: str) -> str:
    """Return the stored status of an approval for a word that a person typed."""
    stored, shown = _EXECUTED
    return stored if word == shown else word


def visible(text: str) -> str:
    """Return the text on one line, with invisible and active characters as code points."""
    if text.isascii() and text.isprintable():
        return text
    shown: list[str] = []
    marks = 0
    for char in text:
        marks = marks + 1 if unicodedata.category(char) in _MARKS else 0
        alone = marks > 0 and (not shown or shown[-1] == " ")
        if is_hidden(char) or alone or marks > _MOST_MARKS:
            shown.append(f"[U+{ord(char):04X}]")
        else:
            shown.append(char)
    return "".join(shown)


def shown(value: Any) -> str:
    """Return a value as JSON, with invisible characters as code points."""
    text = visible(json.dumps(thaw(value), ensure_ascii=False, default=repr))
    return _BLANKS.sub(lambda match: f"[{len(match[0])} blanks]", text)


def shown_text(text: str) -> str:
    """Return a text without quotes, on several lines if it has them.

    Where it could be taken for another value (a number, null, nothing), it stays in quotes.
    """
    if text != text.strip() or not text or _reads_as_json(text):
        return shown(text)
    lines = (visible(line.replace("\t", "    ")) for line in text.split("\n"))
    written = _BLANKS.sub(lambda match: f"[{len(match[0])} blanks]", "\n".join(lines))
    return _EMPTY_LINES.sub(lambda match: f"\n[{len(match[0]) - 1} empty lines]\n", written)


def _reads_as_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def value_parts(value: Any, limit: int, *, quoted: bool = True) -> list[Part]:
    """Return a value cut to `limit` characters, and how much is not shown.

    Without `quoted`, a text is shown as text: then the part may have several lines.
    """
    write = shown if quoted or not isinstance(value, str) else shown_text
    rest = len(value) - limit if isinstance(value, str) else 0
    if rest <= 0:
        return [Part(write(value), value=True)]
    more = f" … and {rest:,} more character{'' if rest == 1 else 's'}, not shown"
    return [Part(write(value[:limit]), value=True), Part(more)]


def fill(value: Any, limit: int = 200) -> list[Part]:
    """Return a value for use in a sentence: a plain word as it is, anything else as JSON."""
    if isinstance(value, str) and _WORD.fullmatch(value):
        return [Part(value, value=True)]
    if isinstance(value, Mapping | list | tuple):
        value = json.dumps(thaw(value), ensure_ascii=False, default=repr)
        if len(value) <= limit:
            return [Part(visible(value), value=True)]
    return value_parts(value, limit)


def money(amount: Any, currency: str) -> list[Part]:
    """Return an amount in a currency's smallest unit: 60000 in EUR is 600.00 EUR."""
    if isinstance(amount, bool) or not isinstance(amount, int):
        return [*fill(amount), Part(f" (smallest unit of {currency})")]
    return [Part(money_text(from_smallest(amount, currency), currency), value=True)]


def name_of(text: str) -> str:
    """Return a field's name, quoted if it is unusual, and cut if it is long."""
    if _NAME.fullmatch(text):
        return text
    return "".join(part.text for part in value_parts(text, _LONGEST_NAME))


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield every scalar or empty value with its JSON Pointer."""
    inside: Iterator[tuple[str | int, Any]]
    if isinstance(value, Mapping) and value:
        inside = iter(value.items())
    elif isinstance(value, list | tuple) and value:
        inside = iter(enumerate(value))
    else:
        yield pointer(*path), value
        return
    for key, item in inside:
        yield from leaves(item, (*path, key))


def span(seconds: float) -> str:
    """Return a duration in its two largest units."""
    left = max(0, int(seconds))
    parts: list[str] = []
    for size, word in ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second")):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {word}{'' if count == 1 else 's'}")
    return " ".join(parts[:2]) or "0 seconds"


def stamp(moment: float) -> str:
    """Return a time for programs, in UTC and whole seconds."""
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%dT%H:%M:%SZ}"


def clock(moment: float) -> str:
    """Return a time for people, in UTC and whole seconds."""
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M:%S UTC}"
