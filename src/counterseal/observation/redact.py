"""Takes secrets, named classes of personal data and invisible characters out of a JSON value.

Says what it took by rule, place and count, never by value. What counts as a secret stands in
`rules`, what counts as invisible in `text`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import re2

from counterseal.canonical import pointer
from counterseal.observation.rules import Rule, rules_for, secret_name
from counterseal.observation.text import SUSPECT, neutralise

__all__ = ["NEUTRALISED", "Redaction", "Redactor"]

NEUTRALISED = "neutralised"
"""The rule that invisible and control characters are listed under."""

_DONE = re.compile(r"(?:\[redacted:[a-z_-]+\])+")
_PASSES = 4
_PLENTY = 64 * 1024 * 1024
"""Bytes for the states of the quick search, which would miss something if it ran out of them."""
Counts = dict[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class Redaction:
    rule: str
    pointer: str
    """Where, in the value as it is shown."""
    count: int = 1

    def record(self) -> dict[str, Any]:
        return {"rule": self.rule, "pointer": self.pointer, "count": self.count}


class Redactor:
    """Built once, used by every call. One combined pattern, run in linear time."""

    __slots__ = ("_inner", "_pattern", "_rules", "suspects")

    suspects: Callable[[bytes], Any]
    """Whether `redact` could find anything in the value that this is the JSON of.

    One quick search, so that the common answer costs no walk.
    """

    def __init__(self, *, pii: Collection[str] = ()) -> None:
        self._rules = rules_for(pii)
        named = (
            f"(?P<r{i}>{rule.pattern.replace('?P<v>', f'?P<v{i}>')})"
            for i, rule in enumerate(self._rules)
        )
        self._pattern = re2.compile("|".join(named).encode())
        groups = self._pattern.groupindex
        self._inner: tuple[tuple[Rule, int, int], ...] = tuple(
            (rule, groups[f"r{i}".encode()], groups.get(f"v{i}".encode(), 0))
            for i, rule in enumerate(self._rules)
        )
        options = re2.Options()
        options.never_capture = True
        options.max_mem = _PLENTY
        hints = dict.fromkeys((*(rule.hint for rule in self._rules), SUSPECT))
        # Only whether, not where: a set is asked for a third of what a search costs.
        suspect = re2.Set.SearchSet(options)
        suspect.Add("|".join(hints))
        suspect.Compile()
        self.suspects = suspect.Match

    def redact(self, value: Any) -> tuple[Any, tuple[Redaction, ...]]:
        """The value without what must not be shown, and a list of what was taken out."""
        counts: Counts = {}
        clean = self._walk(value, "", counts)
        return clean, tuple(Redaction(rule, at, count) for (rule, at), count in counts.items())

    def _walk(self, value: Any, at: str, counts: Counts) -> Any:
        if isinstance(value, str):
            return self._text(value, at, counts)
        if isinstance(value, Mapping):
            return self._object(value, at, counts)
        if isinstance(value, list | tuple):
            return [self._walk(item, f"{at}/{i}", counts) for i, item in enumerate(value)]
        return value

    def _object(self, value: Mapping[str, Any], at: str, counts: Counts) -> dict[str, Any]:
        clean: dict[str, Any] = {}
        for key, item in value.items():
            found: Counts = {}
            shown = _unused(self._text(key, "", found), clean)
            here = at + pointer(shown)
            for (rule, _), count in found.items():
                counts[rule, here] = counts.get((rule, here), 0) + count
            if secret_name(key) and _holds_something(item):
                counts["password", here] = counts.get(("password", here), 0) + 1
                clean[shown] = "[redacted:password]"
            else:
                clean[shown] = self._walk(item, here, counts)
        return clean

    def _text(self, text: str, at: str, counts: Counts) -> str:
        shown, changes = neutralise(text)
        if changes:
            # Invisible characters can hide a secret, and taking them out can eat into one: so the
            # text is looked at both before and after.
            before = self._secrets(text.encode(errors="surrogatepass"), at, counts)
            shown, changes = neutralise(before.decode(errors="surrogatepass"))
            counts[NEUTRALISED, at] = counts.get((NEUTRALISED, at), 0) + changes
        return self._secrets(shown.encode(), at, counts).decode()

    def _secrets(self, raw: bytes, at: str, counts: Counts) -> bytes:
        # What is left of a text can form a new match with its new neighbours; so once more.
        for _ in range(_PASSES):
            clean = self._once(raw, at, counts)
            if clean is None:
                return raw
            raw = clean
        return raw if self._once(raw, at, counts) is None else b"[redacted:text]"

    def _once(self, raw: bytes, at: str, counts: Counts) -> bytes | None:
        """One pass over a text; None when there was nothing to do."""
        pieces: list[bytes] = []
        end = position = 0
        while match := self._pattern.search(raw, position):
            rule, first, last = self._matched(match)
            value = raw[first:last].decode()
            if rule.within:
                last = first + rule.within(value)
            if first == last or _DONE.fullmatch(value) or (rule.check and not rule.check(value)):
                # The rejected match may hide a good one that starts inside it.
                position = _after(raw, match.start())
                continue
            pieces += (raw[end:first], b"[redacted:%s]" % rule.id.encode())
            counts[rule.id, at] = counts.get((rule.id, at), 0) + 1
            end = last
            position = max(last, match.start() + 1)
        return b"".join((*pieces, raw[end:])) if pieces else None

    def _matched(self, match: Any) -> tuple[Rule, int, int]:
        for rule, whole, inner in self._inner:
            if match.start(whole) >= 0:
                group = inner or whole
                return rule, match.start(group), match.end(group)
        raise LookupError("a match belongs to none of the rules")


def _after(raw: bytes, position: int) -> int:
    """The start of the next character."""
    position += 1
    while position < len(raw) and raw[position] & 0xC0 == 0x80:
        position += 1
    return position


def _unused(key: str, taken: Mapping[str, Any]) -> str:
    """Two keys can look alike once they are clean; the second is numbered."""
    shown, number = key, 2
    while shown in taken:
        shown, number = f"{key} ({number})", number + 1
    return shown


def _holds_something(item: Any) -> bool:
    """Whether there is a value to be hidden: a text, a number, or a list of such."""
    if isinstance(item, bool) or item is None:
        return False
    if isinstance(item, str):
        return item != "" and not _DONE.fullmatch(item)
    if isinstance(item, list | tuple):
        return any(_holds_something(inner) for inner in item)
    return isinstance(item, int | float)
