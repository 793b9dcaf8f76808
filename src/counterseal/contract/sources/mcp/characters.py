"""Characters that a reader can't see, or takes for others: found, shown, or taken out.

`visible` is for people who review a stranger's text: it writes them by name. `plain` is for models:
it takes them out. Neither looks at what the text says.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Final

__all__ = ["is_hidden", "plain", "visible"]

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
