"""What changed between two definitions of a tool, told to the person who is to accept it.

Complete by construction: every part that differs is in what is shown, whether or not anybody knows
what it means. `schema_diff` says of most parts of a schema which way they moved.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from enum import StrEnum
from typing import Any, Final, NamedTuple

from counterseal.canonical import at, pointer
from counterseal.contract.schema_diff import Side, compare_schemas, same
from counterseal.contract.sources.mcp.characters import visible
from counterseal.contract.sources.mcp.definition import HINTS, Definition

__all__ = ["Change", "Kind", "describe", "visible"]

_TOKEN: Final = re.compile(r"\s+|\w+|[^\w\s]")
_MOST_TOKENS: Final = 2_000
_CONTEXT: Final = 6
_UNIONS: Final = ("allOf", "anyOf", "oneOf")
_UNSAID: Final = {"readOnlyHint": False, "idempotentHint": False}
_SIDES: Final[dict[str, Side]] = {"inputSchema": "input", "outputSchema": "output"}

Path = tuple[str | int, ...]


class Kind(StrEnum):
    LOOSER = "looser"
    """It takes, returns or does more than before."""
    TIGHTER = "tighter"
    OTHER = "other"
    """Which way it moved can't be told."""
    WORDS = "words"
    """What people and models read; no value passes or fails by it."""


class Change(NamedTuple):
    """One difference. `pointer` leads into the newer record, or the older for what is gone."""

    pointer: str
    kind: Kind
    before: Any
    after: Any
    text: str
    """One line for people. Nothing in it is invisible."""


def describe(before: Definition, after: Definition) -> list[Change]:
    """Every difference, in the order of the record. Empty exactly when the hashes are equal."""
    old, new = before.record(), after.record()
    changes: list[Change] = []
    for name in {**old, **new}:
        if same(old.get(name), new.get(name)):
            continue
        if name in _SIDES and name in old and name in new:
            changes += _schema_changes(name, old[name], new[name])
        elif name == "annotations":
            changes += _hint_changes(old.get(name, {}), new.get(name, {}))
        else:
            changes.append(_change((name,), Kind.OTHER, old, new))
    return changes


# --- schemas --------------------------------------------------------------------------------------


def _schema_changes(name: str, old: Any, new: Any) -> Iterator[Change]:
    """What is known of the moves first, then whatever that did not show."""
    shown: set[Path] = set()
    for path, kind, told in _moves(old, new, _SIDES[name]):
        if not path:
            continue  # of the whole: its parts say more
        place = _whole_unions(path)
        was, now = at(old, pointer(*place)), at(new, pointer(*place))
        words = _words_changed(was, now)
        text = f"{visible(told)}: {words}" if words else visible(told)
        yield Change(pointer(name, *place), kind, was, now, text)
        shown.add(place)
    for path in _differences(old, new, ()):
        if not any(path[: len(place)] == place for place in shown):
            yield _change((name, *path), Kind.OTHER, {name: old}, {name: new})


def _moves(old: Any, new: Any, side: Side) -> Iterator[tuple[Path, Kind, str]]:
    # To a caller more is harmless, to a reader less is: asked for both, it says which it was.
    callers = compare_schemas(old, new, side="input")
    readers = compare_schemas(old, new, side="output")
    for one, other in zip(callers, readers, strict=True):
        told = one if side == "input" else other
        yield told.path, _kind(told.path, told.message, one.breaking, other.breaking), told.message


def _kind(path: Path, message: str, calls_break: bool, reads_break: bool) -> Kind:  # noqa: FBT001 - a table's two columns
    if path[-1:] == ("default",):
        return Kind.OTHER
    if message.endswith("was added"):
        return Kind.LOOSER
    if calls_break and reads_break:
        return Kind.OTHER
    if calls_break or reads_break:
        return Kind.TIGHTER if calls_break else Kind.LOOSER
    return Kind.WORDS


def _whole_unions(path: Path) -> Path:
    """Alternatives may have changed places, so they are shown together."""
    for index, step in enumerate(path):
        named = index > 0 and path[index - 1] in ("properties", "$defs", "definitions")
        if step in _UNIONS and not named:
            return path[: index + 1]
    return path


def _differences(old: Any, new: Any, path: Path) -> Iterator[Path]:
    if same(old, new):
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in {**old, **new}:
            if key in old and key in new:
                yield from _differences(old[key], new[key], (*path, key))
            else:
                yield (*path, key)
    else:
        yield path


# --- annotations ----------------------------------------------------------------------------------


def _hint_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    for name in {**old, **new}:
        if not same(old.get(name), new.get(name)):
            kind = _hint_kind(name, old, new) if name in HINTS else Kind.OTHER
            yield _change(("annotations", name), kind, {"annotations": old}, {"annotations": new})


def _hint_kind(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Kind:
    """What is not said counts as the protocol says: able to destroy, open to the world."""
    unsaid = _UNSAID.get(name, True)
    before, after = old.get(name, unsaid), new.get(name, unsaid)
    if before == after:
        return Kind.WORDS
    reassures = after is not unsaid
    return Kind.TIGHTER if reassures else Kind.LOOSER


# --- words ----------------------------------------------------------------------------------------


def _change(path: Path, kind: Kind, old: Any, new: Any) -> Change:
    place = pointer(*path)
    was, now = at(old, place), at(new, place)
    words = _words_changed(was, now)
    if isinstance(was, str | None) and isinstance(now, str | None):
        kind = Kind.WORDS
    name = visible(".".join(map(str, path)))
    return Change(place, kind, was, now, f"{name}: {words or _step(was, now)}")


def _step(was: Any, now: Any) -> str:
    if was is None:
        return f"is {_brief(now)} now"
    return f"was {_brief(was)}" + ("" if now is None else f", is {_brief(now)}")


def _brief(value: Any) -> str:
    text = visible(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= 200 else f"{text[:199]}…"


def _words_changed(was: Any, now: Any) -> str:
    """Two texts as one: `the [-old-]{+new+} words`. Empty for what are no texts, or too long."""
    if not isinstance(was, str) or not isinstance(now, str):
        return ""
    old, new = _TOKEN.findall(visible(was)), _TOKEN.findall(visible(now))
    if len(old) > _MOST_TOKENS or len(new) > _MOST_TOKENS:
        return ""
    out: list[str] = []
    steps = SequenceMatcher(None, old, new).get_opcodes()
    for index, (what, first, last, start, end) in enumerate(steps):
        if what == "equal":
            at_end = (index == 0, index == len(steps) - 1)
            out.append(_context(old[first:last], *at_end))
            continue
        gone, come = "".join(old[first:last]), "".join(new[start:end])
        out.append((f"[-{gone}-]" if gone else "") + (f"{{+{come}+}}" if come else ""))
    return " ".join("".join(out).split())


def _context(kept: list[str], first: bool, last: bool) -> str:  # noqa: FBT001 - where it stands
    """As much of what stayed as it takes to find the place."""
    head = [] if first else kept[:_CONTEXT]
    tail = [] if last else kept[-_CONTEXT:]
    if len(head) + len(tail) >= len(kept):
        return "".join(kept)
    return "".join((*head, " … ", *tail))
