"""Removes characters that a reader can't see but that a model or a terminal acts on.

Terminal escapes, controls, bidirectional controls, tag characters, zero-width characters and
variation selectors are removed: none of them carries meaning as data. Kept are newline and tab;
joiners inside scripts and emoji that need them; one variation selector after a character that has
variants; the three flags that are written with tags. Line and paragraph separators become newlines,
and unpaired surrogates the replacement character.

Secrets are `redact`'s business.
"""

from __future__ import annotations

import re
import unicodedata

# Written as code points, because a reviewer can't see the characters.
_ALWAYS = (
    (0x00, 0x08),
    (0x0B, 0x1F),
    (0x7F, 0x9F),  # DEL and the C1 controls
    (0xAD, 0xAD),  # soft hyphen
    (0x34F, 0x34F),  # combining grapheme joiner
    (0x61C, 0x61C),  # Arabic letter mark
    (0x115F, 0x1160),  # Hangul fillers
    (0x17B4, 0x17B5),  # Khmer inherent vowels
    (0x180B, 0x180F),  # Mongolian selectors and vowel separator
    (0x200B, 0x200B),  # zero-width space
    (0x200E, 0x200F),  # direction marks
    (0x2028, 0x202E),  # separators, embeddings, overrides
    (0x2060, 0x206F),  # word joiner, invisible operators, isolates
    (0x3164, 0x3164),  # Hangul filler
    (0xD800, 0xDFFF),  # surrogates
    (0xFEFF, 0xFEFF),  # byte order mark
    (0xFFA0, 0xFFA0),  # half-width Hangul filler
    (0xFFF0, 0xFFFB),  # interlinear annotation
    (0xFFFE, 0xFFFF),  # noncharacters
    (0x1BCA0, 0x1BCA3),  # shorthand controls
    (0x1D173, 0x1D17A),  # musical controls
    (0xE0000, 0xE00FF),  # tags
    (0xE01F0, 0xE0FFF),  # default-ignorable, unassigned
)
_BY_CONTEXT = (
    (0x200C, 0x200D),  # non-joiner, joiner
    (0xFE00, 0xFE0F),  # variation selectors
    (0xE0100, 0xE01EF),  # ideographic variation selectors
)


def _class(ranges: tuple[tuple[int, int], ...]) -> str:
    return "".join(
        f"{re.escape(chr(first))}-{re.escape(chr(last))}" if first != last else chr(first)
        for first, last in ranges
    )


# Only the forms in use: a broader pattern would remove letters of the text behind an escape.
_ESCAPES = (
    r"\x1b\[[0-?]*[@-~]"  # colours, cursor movement; then titles and links; then charsets
    r"|\x1b[\]PX^_][^\x07\x1b\x9c]{0,4096}(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[()*+][0-9AB]|\x1b[=>78]"
)
_FLAG = "\U0001f3f4"
_FLAGS = "|".join(
    _FLAG + "".join(chr(0xE0000 + ord(letter)) for letter in region) + "\U000e007f"
    for region in ("gbeng", "gbsct", "gbwls")
)
_INVISIBLE = re.compile(
    f"(?P<flag>{_FLAGS})|(?P<escape>{_ESCAPES})|(?P<newline>\r\n|[\u2028\u2029])"
    f"|(?P<half>[\ud800-\udfff])|(?P<always>[{_class(_ALWAYS)}])"
)
_JOINED = re.compile(f"[{_class(_BY_CONTEXT)}]")
_ANY = re.compile(f"[{_class(_ALWAYS + _BY_CONTEXT)}]")

SUSPECT = (
    # As in JSON text: controls are escaped there, all other characters are literal.
    r"\\[bfru]|["
    + "".join(
        f"\\x{{{first:x}}}-\\x{{{last:x}}}"
        for first, last in (*_ALWAYS, *_BY_CONTEXT)
        if first >= 0x7F and first != 0xD800
    )
    + "]"
)
"""An RE2 pattern that matches every JSON text that `neutralise` would change."""

_JOINING_SCRIPTS = (
    (0x0600, 0x08FF),  # Arabic, Syriac, N'Ko and their neighbours
    (0x0900, 0x0DFF),  # the Indic scripts
    (0x0E80, 0x109F),  # Lao, Tibetan, Myanmar
    (0x1780, 0x18AF),  # Khmer, Mongolian
    (0x1900, 0x1CFF),  # South and South-East Asia
    (0xA800, 0xABFF),
    (0xFB50, 0xFDFF),  # Arabic presentation forms
    (0xFE70, 0xFEFC),
    (0x11000, 0x11FFF),
)
_IDEOGRAPHS = ((0x2E80, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))


def neutralise(text: str) -> tuple[str, int]:
    """Return the text without invisible characters, and the number of changes."""
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text, 0
    if not _ANY.search(text):
        return text, 0
    changes = 0

    def replacement(match: re.Match[str]) -> str:
        nonlocal changes
        kind, part = match.lastgroup, match.group()
        if kind == "flag":
            return part
        changes += part != "\r\n"
        if kind == "half":
            return "\ufffd"
        return "\n" if kind == "newline" else ""

    kept = _INVISIBLE.sub(replacement, text)
    if not _JOINED.search(kept):
        return kept, changes
    out: list[str] = []
    for index, char in enumerate(kept):
        if _JOINED.match(char) and not _belongs(char, out, kept[index + 1 : index + 2]):
            changes += 1
        else:
            out.append(char)
    return "".join(out), changes


def _belongs(char: str, before: list[str], after: str) -> bool:
    """Return whether a joiner or selector has its proper use at this place.

    The character before it must be visible, so that a run of them can't encode a message.
    """
    previous = before[-1] if before else ""
    if not previous:
        return False
    if char == "\u200d" and _pictured(before) and _is_picture(after):
        return True
    if char in "\u200c\u200d":
        return _in(previous, _JOINING_SCRIPTS) and (not after or _in(after, _JOINING_SCRIPTS))
    if _in(previous, _IDEOGRAPHS):
        return True
    if char not in "\ufe0e\ufe0f":
        return False
    is_keycap = previous in "0123456789#*" and after == "\u20e3"
    return is_keycap or previous in "©®" or _is_picture(previous)


def _pictured(before: list[str]) -> bool:
    last = before[-1]
    if last in "\ufe0e\ufe0f":
        return True
    return _is_picture(last) or "\U0001f3fb" <= last <= "\U0001f3ff"


def _is_picture(char: str) -> bool:
    return bool(char) and ord(char) > 0xFF and unicodedata.category(char) in ("So", "Sm", "Po")


def _in(char: str, ranges: tuple[tuple[int, int], ...]) -> bool:
    point = ord(char)
    return any(first <= point <= last for first, last in ranges)
