"""Masks known secrets: replaces each by its name, in every form in which it may occur.

The forms that JSON, Python and URLs give to a value are searched for directly, and so are its hex
and its base64, also inside a longer encoded text. Beyond that, percent escapes, backslash escapes
and line breaks are decoded a few times, and a match in decoded text is replaced in the original.
That covers values that were encoded twice, or more than necessary.

Text that only looks like a secret is found by `observation.redact`.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain
from typing import Any, Final, NamedTuple
from urllib.parse import quote, quote_plus

from counterseal.canonical import FrozenDict, unused_key

SHORTEST: Final = 8
"""The shortest secret, in characters. A shorter one would match ordinary text."""

_LONG_LINE = 16
_READINGS = 3
_PASSES = 4
_SURROGATES = "surrogatepass"


class _Needle(NamedTuple):
    form: bytes
    label: bytes
    beside: tuple[int, int] | None = None
    """For base64: how many characters before and after contain bits of the secret."""


_Form = tuple[bytes, tuple[int, int] | None]
_Span = tuple[int, int, _Needle]


class Mask:
    """Replaces the secrets of a call by their names, in every form."""

    __slots__ = ("_needles",)

    def __init__(self, secrets: Mapping[str, str]) -> None:
        forms: dict[_Form, str] = {}
        for name, value in secrets.items():
            if len(value) < SHORTEST:
                raise ValueError(f"the secret {name} has fewer than {SHORTEST} characters")
            for form in _forms(value):
                forms.setdefault(form, name)
        self._needles = [_Needle(form, b"") for form, _ in forms]
        labels = {name: self._label(name) for name in secrets}
        self._needles = [
            _Needle(form, labels[name], beside) for (form, beside), name in forms.items()
        ]

    def __bool__(self) -> bool:
        """Return False if there is nothing to mask."""
        return bool(self._needles)

    def found(self, text: str | bytes) -> bool:
        """Return whether the text contains a secret in any form."""
        if not self._needles:
            return False
        raw = text.encode(errors=_SURROGATES) if isinstance(text, str) else text
        return any(needle.form in view for view in _views(raw) for needle in self._needles)

    def text(self, text: str) -> str:
        """Return the text with `[secret.NAME]` for every secret; the same object if none."""
        if not self._needles:
            return text
        raw = text.encode(errors=_SURROGATES)
        clean = self.raw(raw)
        return text if clean is raw else clean.decode(errors=_SURROGATES)

    def raw(self, raw: bytes) -> bytes:
        """Return the bytes, which need not be text, with every secret masked."""
        # A name and its neighbours can form a secret again, so the search is repeated.
        for _ in range(_PASSES):
            if not self.found(raw):
                return raw
            raw = self._once(raw)
        return b"***" if self.found(raw) else raw

    def data(self, value: Any) -> Any:
        """Return JSON-like data with every secret masked, in keys and numbers too."""
        # One search over the whole text is much faster than one for each string.
        return self._walk(value) if self.found(b"\0".join(_leaves(value))) else value

    def _walk(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, bytes):
            return self.raw(value)
        if isinstance(value, int | float):
            text = _json_number(value)
            shown = self.text(text)
            return value if shown is text else shown
        if isinstance(value, Mapping):
            return self._object(value)
        if isinstance(value, list | tuple):
            items = [self._walk(item) for item in value]
            if all(new is old for new, old in zip(items, value, strict=True)):
                return value
            return items if isinstance(value, list) else tuple(items)
        return value

    def _object(self, value: Mapping[Any, Any]) -> Mapping[Any, Any]:
        clean: dict[Any, Any] = {}
        same = True
        for key, item in value.items():
            shown, masked = self._walk(key), self._walk(item)
            same = same and shown is key and masked is item
            clean[unused_key(shown, clean)] = masked
        if same:
            return value
        return FrozenDict(clean) if isinstance(value, FrozenDict) else clean

    def _label(self, name: str) -> bytes:
        """Return the replacement of a secret: valid in JSON and URLs, and not a secret itself."""
        label = f"[secret.{re.sub(r'[^A-Za-z0-9._-]', '_', name)}]"
        return next((text for text in (label, "[secret]") if not self.found(text)), "***").encode()

    def _once(self, raw: bytes) -> bytes:
        views = list(_views(raw))
        hits = (_origins(views[:i], list(self._hits(view))) for i, view in enumerate(views))
        pieces: list[bytes] = []
        done = 0
        for start, end, needle in _united(chain.from_iterable(hits)):
            pieces += (raw[done:start], needle.label)
            done = end
        return b"".join((*pieces, raw[done:]))

    def _hits(self, raw: bytes) -> Iterator[_Span]:
        for needle in self._needles:
            end = 0
            while (start := raw.find(needle.form, end)) >= 0:
                before, end = end, start + len(needle.form)
                if needle.beside is not None:
                    start, end = _token(raw, start, end, before, needle.beside)
                yield start, end, needle


def _united(spans: Iterable[_Span]) -> list[_Span]:
    """Return the spans in order; overlapping ones are joined under the longest one's name."""
    united: list[_Span] = []
    for span in sorted(spans, key=lambda span: span[:2]):
        if united and span[0] < united[-1][1]:
            last = united.pop()
            longest = max(last, span, key=lambda other: (other[1] - other[0], len(other[2].form)))
            span = (last[0], max(last[1], span[1]), longest[2])  # noqa: PLW2901 - it grew
        united.append(span)
    return united


def _leaves(value: Any) -> Iterator[bytes]:
    """Yield every string in the data, and every number as a string."""
    if isinstance(value, str):
        yield value.encode(errors=_SURROGATES)
    elif isinstance(value, bytes):
        yield value
    elif isinstance(value, int | float):
        yield _json_number(value).encode()
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(key)
            yield from _leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)


def _json_number(number: float) -> str:
    try:
        return json.dumps(number)
    except ValueError:  # Python refuses to convert integers of thousands of digits
        return ""


# --- the forms of a value -------------------------------------------------------------------------


def _forms(value: str) -> Iterator[_Form]:
    """Return every form in which the value is searched for."""
    raw = value.encode(errors=_SURROGATES)
    for part in {value, value.strip()} if len(value.strip()) >= SHORTEST else {value}:
        for text in {part, json.dumps(part)[1:-1], json.dumps(part, ensure_ascii=False)[1:-1]}:
            yield from _encoded(text.encode(errors=_SURROGATES))
            yield text.replace("/", "\\/").encode(errors=_SURROGATES), None
    for line in _long_lines(value):
        yield from _encoded(line.encode(errors=_SURROGATES))
    yield raw.replace(b" ", b"+"), None
    yield repr(value)[1:-1].encode(errors=_SURROGATES), None
    yield repr(raw)[2:-1].encode(), None
    for quoted in (quote(raw, safe=""), quote(raw), quote_plus(raw)):
        yield quoted.encode(), None
        yield re.sub("%..", lambda found: found[0].lower(), quoted).encode(), None
    # A value that contains escapes looks like this in decoded text.
    for view in _views(raw):
        if len(view.strip()) >= SHORTEST:
            yield view, None


def _long_lines(value: str) -> Iterator[str]:
    """Return the body of a key file, which may be wrapped or sent without line breaks.

    A line may end with a backslash and an n, as in environment variables and JSON. The first and
    last line are only headings.
    """
    lines = re.split(r"[\r\n]+|\\[rn]", value)
    if len(lines) > 1:
        for line in map(str.strip, lines):
            if len(line) >= _LONG_LINE and not line.startswith("-----"):
                yield line


_URL_SAFE = bytes.maketrans(b"+/", b"-_")


def _encoded(raw: bytes) -> Iterator[_Form]:
    """Return the value itself, its hex forms, and the parts of its base64 forms that are fixed.

    There are three base64 forms, because base64 encodes three bytes at a time.
    """
    yield raw, None
    yield raw.hex().encode(), None
    yield raw.hex().upper().encode(), None
    for before in range(3):
        first, last = (before * 8 + 5) // 6, (before + len(raw)) * 8 // 6
        middle = b64encode(bytes(before) + raw)[first:last]
        beside = (min(before, 1), min((before + len(raw)) % 3, 1))
        yield middle, beside
        yield middle.translate(_URL_SAFE), beside


_ALPHABET = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_")


def _token(
    raw: bytes, start: int, end: int, before: int, beside: tuple[int, int]
) -> tuple[int, int]:
    """Return the span of the whole base64 text around a match, starting not before `before`.

    Beyond the match it ends at a slash, which may belong to a URL that must stay readable.
    """
    first, last = start - beside[0], end + beside[1]
    while start > before and raw[start - 1] in _ALPHABET:
        if start <= first and raw[start - 1] == ord("/"):
            break
        start -= 1
    while end < len(raw) and raw[end] in _ALPHABET:
        if end >= last and raw[end] == ord("/"):
            break
        end += 1
    while end < len(raw) and raw[end] == ord("="):
        end += 1
    return start, end


# --- decoding a text ------------------------------------------------------------------------------

_WRAP = rb"(?<=[A-Za-z0-9+/_=-]%b)[ \t]*(?=[A-Za-z0-9+/_=-])"
# Every branch begins with its own character, so that the search can skip all others.
_HIDDEN = re.compile(
    rb"%%[0-9A-Fa-f]{2}|\\u[dD][89abAB][0-9A-Fa-f]{2}\\u[dD][c-fC-F][0-9A-Fa-f]{2}"
    rb"|\\u[0-9A-Fa-f]{4}|\\U00(?:0[0-9A-Fa-f]|10)[0-9A-Fa-f]{4}|\\x[0-9A-Fa-f]{2}"
    rb"|\\[\"'\\/abfnrt]|\n%b|\r\n%b" % (_WRAP % rb"\n", _WRAP % rb"\r\n")
)
_CONTROL = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}


@lru_cache(maxsize=1024)
def _shown(hidden: bytes) -> bytes:
    """Return what an escape stands for; nothing for a line break that wraps a word."""
    kind, digits = hidden[1:2], hidden[2:]
    if hidden.isspace():
        return b""
    if hidden[:1] == b"%":
        return bytes((int(hidden[1:], 16),))
    if not digits:
        return _CONTROL.get(kind, kind)
    if kind == b"x":
        return bytes((int(digits, 16),))
    if kind == b"U":
        return chr(int(digits, 16)).encode(errors=_SURROGATES)
    units = bytes.fromhex(digits.replace(b"\\u", b"").decode())
    return units.decode("utf-16-be", _SURROGATES).encode(errors=_SURROGATES)


def _views(raw: bytes) -> Iterator[bytes]:
    """Return the text, and the text decoded once, twice and so on."""
    yield raw
    for _ in range(_READINGS):
        if not (b"%" in raw or b"\\" in raw or b"\n" in raw):
            return
        read = _HIDDEN.sub(lambda found: _shown(found[0]), raw)
        if read == raw:
            return
        yield read
        raw = read


def _origins(above: list[bytes], spans: list[_Span]) -> list[_Span]:
    """Return where spans of a decoded text are in the original text."""
    for raw in reversed(above) if spans else ():
        undone: list[tuple[int, int, int, int]] = []
        shrunk = 0
        for found in _HIDDEN.finditer(raw):
            first, last = found.span()
            begin = first - shrunk
            end = begin + len(_shown(found[0]))
            undone.append((begin, end, first, last))
            shrunk = last - end
        begins = [begin for begin, *_ in undone]
        spans = [
            (_place(undone, begins, start)[0], _place(undone, begins, end - 1)[1], needle)
            for start, end, needle in spans
        ]
    return spans


def _place(undone: list[tuple[int, int, int, int]], begins: list[int], at: int) -> tuple[int, int]:
    """Return where the byte at this place is in the text before decoding."""
    index = bisect_right(begins, at) - 1
    if index < 0:
        return at, at + 1
    _, end, first, last = undone[index]
    return (first, last) if at < end else (last + at - end, last + at - end + 1)


NO_MASK: Final = Mask({})
