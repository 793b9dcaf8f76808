"""What changed in a stranger's definition of a tool, so that a person sees every letter. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any, Final, NamedTuple

from counterseal.canonical import thaw
from counterseal.contract.sources.mcp.definition import ChangeKind, visible
from counterseal.views.tools import DefinitionChangeRow

__all__ = ["Piece", "Shown", "shown"]

_TOKEN: Final = re.compile(r"⟨[^⟩]*⟩|\s+|\w+|[^\w\s]")
_MOST_TOKENS: Final = 2_000
_TONES: Final = {
    ChangeKind.LOOSER: ("bad", "wider"),
    ChangeKind.TIGHTER: ("info", "stricter"),
    ChangeKind.OTHER: ("warn", "different"),
    ChangeKind.WORDS: ("warn", "words"),
}


class Piece(NamedTuple):
    """Of a text: as before, gone, or come."""

    how: str
    """same, gone, come."""
    text: str


class Shown(NamedTuple):
    """One change."""

    pointer: str
    tone: str
    kind: str
    text: str
    pieces: tuple[Piece, ...]
    """Both texts in one, where there are two, and they are not too long for it."""
    before: str
    after: str


def shown(changes: Sequence[DefinitionChangeRow]) -> list[Shown]:
    """Every change, in its order. Nothing in it is invisible."""
    return [_shown(one) for one in changes]


def _shown(change: DefinitionChangeRow) -> Shown:
    tone, kind = _TONES[ChangeKind(change.kind)]
    texts = isinstance(change.before, str) and isinstance(change.after, str)
    pieces = tuple(_pieces(change.before, change.after)) if texts else ()
    return Shown(
        visible(change.pointer),
        tone,
        kind,
        change.text,
        pieces,
        _written(change.before),
        _written(change.after),
    )


def _written(value: Any) -> str:
    if value is None:
        return ""
    text = (
        value if isinstance(value, str) else json.dumps(thaw(value), ensure_ascii=False, indent=2)
    )
    return visible(text)


def _pieces(before: str, after: str) -> Iterator[Piece]:
    old, new = _TOKEN.findall(visible(before)), _TOKEN.findall(visible(after))
    if len(old) > _MOST_TOKENS or len(new) > _MOST_TOKENS:
        return
    for what, first, last, start, end in SequenceMatcher(None, old, new).get_opcodes():
        if what == "equal":
            yield Piece("same", "".join(old[first:last]))
            continue
        if first < last:
            yield Piece("gone", "".join(old[first:last]))
        if start < end:
            yield Piece("come", "".join(new[start:end]))
