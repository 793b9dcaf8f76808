"""Characters that a reader can't see, or takes for others: found, shown, or taken out.

`visible` is for people who review a stranger's text: it writes them by name. `plain` is for models:
it takes them out. Neither looks at what the text says.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Container
from functools import lru_cache
from typing import Final

__all__ = [
    "argument_name",
    "clean",
    "is_hidden",
    "one_line",
    "plain",
    "slug",
    "tool_name",
    "unique",
    "visible",
    "words",
]


_KEPT: Final = "\n\t"
_INVISIBLE_CATEGORIES: Final = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs")
# Letters, marks and signs that show nothing. Written as code points: nobody could review the rest.
_INVISIBLE_OTHERS: Final = (
    (0x34F, 0x34F),  # combining grapheme joiner
    (0x115F, 0x1160),  # Hangul fillers
    (0x17B4, 0x17B5),  # Khmer inherent vowels
    (0x180B, 0x180F),  # Mongolian selectors
    (0x2800, 0x2800),  # Braille pattern blank
    (0x3164, 0x3164),  # Hangul filler
    (0xFE00, 0xFE0F),  # variation selectors
    (0xFFA0, 0xFFA0),  # half-width Hangul filler
    (0x1D159, 0x1D159),  # musical symbol null notehead
    (0xE0100, 0xE01EF),  # ideographic variation selectors
)
_UNNAMED: Final = {
    0x00: "NULL",
    0x07: "BELL",
    0x08: "BACKSPACE",
    0x0B: "LINE TABULATION",
    0x0C: "FORM FEED",
    0x0D: "CARRIAGE RETURN",
    0x1B: "ESCAPE",
    0x7F: "DELETE",
    0x85: "NEXT LINE",
}
_KINDS: Final = {"Cc": "CONTROL", "Cs": "SURROGATE", "Co": "PRIVATE USE", "Cn": "UNASSIGNED"}
_ALIKE: Final = ("ARMENIAN", "CHEROKEE", "COPTIC", "CYRILLIC", "GREEK", "LISU")
"""The alphabets whose letters pass for Latin ones."""
_WORD: Final = re.compile(r"[^\W\d_]+")


@lru_cache(maxsize=4096)
def is_hidden(char: str) -> bool:
    """Whether a character shows nothing of itself. Space, newline and tab are no secret."""
    if char == " " or char in _KEPT:
        return False
    if unicodedata.category(char) in _INVISIBLE_CATEGORIES:
        return True
    point = ord(char)
    return any(first <= point <= last for first, last in _INVISIBLE_OTHERS)


@lru_cache(maxsize=4096)
def _poses(char: str) -> bool:
    """Whether it is a Latin letter in disguise: full-width, mathematical, the Kelvin sign."""
    if char <= "\xff":
        return False
    meant = unicodedata.normalize("NFKC", char)
    return len(meant) == 1 and meant.isascii() and meant.isalnum()


def visible(text: str) -> str:
    """The text with every such character written by name: `⟨U+200B ZERO WIDTH SPACE⟩`."""
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    suspects = _lookalikes(text)
    return "".join(
        _named(char) if is_hidden(char) or _poses(char) or at in suspects else char
        for at, char in enumerate(text)
    )


def plain(text: str, limit: int) -> str:
    """The text without what can't be seen, cut to a length."""
    shown = re.sub("\r\n|[\u2028\u2029]", "\n", text[: 4 * limit])
    kept = "".join(_kept(char) for char in shown).strip()
    return kept if len(kept) <= limit else kept[: limit - 1].rstrip() + "…"


def _kept(char: str) -> str:
    if not is_hidden(char):
        return char
    return " " if unicodedata.category(char) == "Zs" else ""


def _lookalikes(text: str) -> set[int]:
    """Where letters of another alphabet stand inside a Latin word."""
    found: set[int] = set()
    for word in _WORD.finditer(text):
        letters = word.group()
        if letters.isascii():
            continue
        if any(_alphabet(char) == "LATIN" for char in letters):
            others = (at for at, char in enumerate(letters) if _alphabet(char) in _ALIKE)
            found.update(word.start() + at for at in others)
    return found


@lru_cache(maxsize=4096)
def _alphabet(char: str) -> str:
    return "LATIN" if char.isascii() else unicodedata.name(char, "").partition(" ")[0]


def _named(char: str) -> str:
    point = ord(char)
    name = unicodedata.name(char, "") or _UNNAMED.get(point, "")
    shown = name or _KINDS.get(unicodedata.category(char), "")
    return f"⟨U+{point:04X} {shown}⟩".replace(" ⟩", "⟩")


# --- names and sentences --------------------------------------------------------------------------


_MARKUP = re.compile(r"<!--.{0,2000}?-->|</?[A-Za-z][^<>]{0,300}>", re.DOTALL)
_LINK = re.compile(r"!?\[([^\[\]]{0,300})\]\([^()]{0,500}\)")
_MARKS = re.compile(r"[*`]+|~~|^[ \t]*(?:#{1,6}|>|[-=]{3,})(?=\s|$)|(?<=\s)\|(?=\s)", re.MULTILINE)
_PART_OF_NAME = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Cn")
_LONGEST_READ = 20_000


def clean(text: object, limit: int) -> str:
    """One paragraph of plain text: no markup, no link targets, nothing invisible."""
    if not isinstance(text, str):
        return ""
    plain = _MARKS.sub("", _LINK.sub(r"\1", _MARKUP.sub(" ", text[:_LONGEST_READ])))
    line = one_line(unicodedata.normalize("NFC", plain))
    if len(line) <= limit:
        return line
    return line[: limit - 1].rpartition(" ")[0].rstrip(" .,;:") + "…"


def one_line(text: str) -> str:
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
    return [word.lower() for word in _PART_OF_NAME.findall(plain)]


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
