"""Untrusted texts: invisible and lookalike characters, clean names and sentences.

`visible` is for reviewers: it replaces such characters with their names. `plain` is for models: it
removes invisible characters. Neither judges the content of the text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Container
from functools import lru_cache
from typing import Final

from counterseal import proposal

_KEPT: Final = " \n\t"
_LONGEST_READ: Final = 20_000
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
"""Alphabets with letters that look like Latin ones."""
_WORD: Final = re.compile(r"[^\W\d_]+")


@lru_cache(maxsize=4096)
def is_hidden(char: str) -> bool:
    """Return whether a character is invisible. Space, newline and tab do not count.

    The wide space of East Asian texts and the null notehead do.
    """
    return char not in _KEPT and (proposal.is_hidden(char) or char in "\u3000\U0001d159")


@lru_cache(maxsize=4096)
def _is_latin_variant(char: str) -> bool:
    """Return whether the character is a variant of a Latin letter or digit, like full-width A."""
    if char <= "\xff":
        return False
    normal = unicodedata.normalize("NFKC", char)
    return len(normal) == 1 and normal.isascii() and normal.isalnum()


def visible(text: str) -> str:
    """Return the text with names for invisible and lookalike characters.

    A name looks like `⟨U+200B ZERO WIDTH SPACE⟩`.
    """
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    suspects = _lookalikes(text)
    shown = []
    for at, char in enumerate(text):
        if is_hidden(char) or _is_latin_variant(char) or at in suspects:
            name = unicodedata.name(char, "") or _UNNAMED.get(ord(char), "")
            name = name or _KINDS.get(unicodedata.category(char), "")
            shown.append(f"⟨U+{ord(char):04X} {name}⟩".replace(" ⟩", "⟩"))
        else:
            shown.append(char)
    return "".join(shown)


def plain(text: str, limit: int) -> str:
    """Return the text without invisible characters, cut to a length."""
    shown = re.sub("\r\n|[\u2028\u2029]", "\n", text[: 4 * limit])
    letters = (
        (" " if unicodedata.category(char) == "Zs" else "") if is_hidden(char) else char
        for char in shown
    )
    kept = "".join(letters).strip()
    return kept if len(kept) <= limit else kept[: limit - 1].rstrip() + "…"


def _lookalikes(text: str) -> set[int]:
    """Return the positions of other alphabets' letters inside Latin words."""
    positions: set[int] = set()
    for word in _WORD.finditer(text):
        letters = word.group()
        if letters.isascii():
            continue
        if any(_alphabet(char) == "LATIN" for char in letters):
            others = (at for at, char in enumerate(letters) if _alphabet(char) in _ALIKE)
            positions.update(word.start() + at for at in others)
    return positions


@lru_cache(maxsize=4096)
def _alphabet(char: str) -> str:
    return "LATIN" if char.isascii() else unicodedata.name(char, "").partition(" ")[0]


# --- instructions ---------------------------------------------------------------------------------

_SECRETS: Final = (
    r"(\.ssh|\.env\b|id_rsa|mcp\.json|password|credential|api.?key|secret|system prompt)"
)
_USER: Final = r"\b(the )?(user|human|person|operator|anyone|anybody|them)\b"
_INSTRUCTIONS: Final = re.compile(
    r"\b(ignore|disregard|forget|override|bypass)\b[^.\n]{0,40}"
    r"\b(previous|prior|earlier|above|other|instructions?|rules|limits|polic(y|ies)|guidelines)\b"
    rf"|\b(do not|don't|never|must not|without)\b[^.\n]{{0,30}}"
    rf"\b(tell|mention|inform|reveal|ask|notify|warn)(ing)?\b[^.\n]{{0,30}}{_USER}"
    rf"|\b(read|open|send|pass|include|upload|forward|append|put)\b[^.\n]{{0,60}}{_SECRETS}"
    r"|\b(you|the (model|assistant|agent|llm|ai)) (must|shall|should|have to|has to|need to)\b"
    r"[^.\n]{0,30}\b(always|first|never|before|instead|secretly|silently|immediately)\b"
    r"|\b(always|never)\b[^.\n]{0,20}\b(call|use|invoke|run|choose|prefer)\b[^.\n]{0,20}\btools?\b"
    r"|<\s*/?\s*(important|system|instructions?|secret|hidden|admin)\b[^>\n]{0,40}>"
    r"|\byou are (now )?(a|an|in|no longer)\b",
    re.IGNORECASE,
)
"""Sentences that tell a model what to do, where a description should say what a tool does."""


def instructions_in(text: str) -> list[str]:
    """Return the parts of a text that read like instructions to a model."""
    return [
        match[0] for match in _INSTRUCTIONS.finditer(plain(text[:_LONGEST_READ], _LONGEST_READ))
    ]


# --- names and sentences --------------------------------------------------------------------------


_MARKUP = re.compile(r"<!--.{0,2000}?-->|</?[A-Za-z][^<>]{0,300}>", re.DOTALL)
_LINK = re.compile(r"!?\[([^\[\]]{0,300})\]\([^()]{0,500}\)")
_MARKS = re.compile(r"[*`]+|~~|^[ \t]*(?:#{1,6}|>|[-=]{3,})(?=\s|$)|(?<=\s)\|(?=\s)", re.MULTILINE)
_PART_OF_NAME = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Cn")


def clean(text: object, limit: int) -> str:
    """Return one paragraph of plain text, without markup, link targets and invisible characters."""
    if not isinstance(text, str):
        return ""
    plain = _MARKS.sub("", _LINK.sub(r"\1", _MARKUP.sub(" ", text[:_LONGEST_READ])))
    line = one_line(unicodedata.normalize("NFC", plain))
    if len(line) <= limit:
        return line
    return line[: limit - 1].rpartition(" ")[0].rstrip(" .,;:") + "…"


def one_line(text: str) -> str:
    """Return the text on one line, without invisible characters."""
    shown = (
        " " if char.isspace() else char
        for char in text
        if char.isspace() or unicodedata.category(char) not in _INVISIBLE
    )
    return " ".join("".join(shown).split())


def words(text: object) -> list[str]:
    """Return the lower-case words of a name or sentence: `getUser_byID` is get, user, by, id."""
    plain = text[:_LONGEST_READ] if isinstance(text, str) else ""
    return [word.lower() for word in _PART_OF_NAME.findall(plain)]


def tool_name(operation_id: object, method: str, path: str) -> str:
    """Return a valid tool name of the operation's id, or of its method and path without one."""
    given = operation_id if isinstance(operation_id, str) else ""
    name = re.sub(r"[^a-zA-Z0-9_.-]+", "_", given).strip("._-")
    return name[:64] or "_".join([method.lower(), *words(path)[:12]])[:64]


def argument_name(name: str) -> str:
    """Return a name that every model provider accepts for an argument."""
    return re.sub(r"[^a-zA-Z0-9_]+", "_", name).strip("_")[:60] or "argument"


def unique(name: str, taken: Container[str]) -> str:
    """Return the name, or the first free one of name_2, name_3, … (case-insensitive)."""
    number, candidate = 1, name
    while candidate.lower() in taken:
        number += 1
        candidate = f"{name}_{number}"
    return candidate
