"""A stranger's words: cleaned and bounded for a model to read, taken apart, made into names."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Container

__all__ = ["argument_name", "clean", "slug", "tool_name", "unique", "visible", "words"]

_MARKUP = re.compile(r"<!--.{0,2000}?-->|</?[A-Za-z][^<>]{0,300}>", re.DOTALL)
_LINK = re.compile(r"!?\[([^\[\]]{0,300})\]\([^()]{0,500}\)")
_MARKS = re.compile(r"[*`]+|~~|^[ \t]*(?:#{1,6}|>|[-=]{3,})(?=\s|$)|(?<=\s)\|(?=\s)", re.MULTILINE)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Cn")
_LONGEST_READ = 20_000


def clean(text: object, limit: int) -> str:
    """One paragraph of plain text: no markup, no link targets, nothing invisible."""
    if not isinstance(text, str):
        return ""
    plain = _MARKS.sub("", _LINK.sub(r"\1", _MARKUP.sub(" ", text[:_LONGEST_READ])))
    line = visible(unicodedata.normalize("NFC", plain))
    if len(line) <= limit:
        return line
    return line[: limit - 1].rpartition(" ")[0].rstrip(" .,;:") + "…"


def visible(text: str) -> str:
    """One line, without what nobody would see."""
    seen = (
        " " if char.isspace() else char
        for char in text
        if char.isspace() or unicodedata.category(char) not in _INVISIBLE
    )
    return " ".join("".join(seen).split())


def words(text: object) -> list[str]:
    """The words of a name or a sentence, in small letters: `getUser_byID` is get, user, by, id."""
    plain = text[:_LONGEST_READ] if isinstance(text, str) else ""
    return [word.lower() for word in _WORD.findall(plain)]


def slug(text: object, *, most: int = 4) -> str:
    """The first words of a text as one name."""
    return "_".join(words(text)[:most])


def tool_name(operation_id: object, method: str, path: str) -> str:
    """The operation's own name as far as a contract takes it, else one made of its request."""
    given = operation_id if isinstance(operation_id, str) else ""
    name = re.sub(r"[^a-zA-Z0-9_.-]+", "_", given).strip("._-")
    return name[:64] or f"{method.lower()}_{slug(path, most=12)}".strip("_")[:64]


def argument_name(name: str) -> str:
    """A name that every provider takes as the key of an argument."""
    return re.sub(r"[^a-zA-Z0-9_]+", "_", name).strip("_")[:60] or "argument"


def unique(name: str, taken: Container[str]) -> str:
    """The name, or the first of name_2, name_3, … that is free, whatever its case."""
    number, candidate = 1, name
    while candidate.lower() in taken:
        number += 1
        candidate = f"{name}_{number}"
    return candidate
