"""A definition: what an upstream says of one of its tools, taken in with care, hashed for its pin.

A stranger wrote it, so it is checked and bounded before anybody looks at it. Fields that nobody
here reads (icons, `_meta`, what a later protocol adds) are left out, and not part of the hash.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from enum import StrEnum
from typing import Any, Final, NamedTuple

from counterseal.canonical import at, canonical, digest, freeze, pointer, thaw
from counterseal.contract.schema_diff import Side, compare_schemas, same
from counterseal.contract.sources.foreign_text import visible

__all__ = ["HINTS", "MAX_BYTES", "Change", "ChangeKind", "Definition", "describe", "visible"]


MAX_BYTES: Final = 256 * 1024
"""Of the canonical record. What is longer serves no model."""

HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
"""The annotations that speak of what a tool does. A stranger's word: they can only tighten."""

_NAME = re.compile(r"[A-Za-z0-9_./-]{1,128}")


@dataclass(frozen=True, slots=True, eq=False)
class Definition:
    """One tool as its upstream describes it. Two are equal when their hashes are."""

    name: str
    title: str | None
    description: str
    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None
    annotations: Mapping[str, Any]
    hash: str = field(init=False)
    """`sha256:…` of the canonical record: neither key order nor the spelling of numbers counts."""

    def __post_init__(self) -> None:
        _check(self)
        for name in ("input_schema", "output_schema", "annotations"):
            object.__setattr__(self, name, _frozen(name, getattr(self, name)))
        if any("\0" in text for text in _texts(self.record())):
            raise ValueError("it holds a NUL character")
        size = len(canonical(self.record()))
        if size > MAX_BYTES:
            raise ValueError(f"it is {size:,} bytes long; at most {MAX_BYTES:,} are taken")
        object.__setattr__(self, "hash", digest(self.record()))

    @classmethod
    def of(cls, wire: Mapping[str, Any]) -> Definition:
        """One item of tools/list, as JSON. ValueError says what is wrong with it."""
        if not isinstance(wire, Mapping):
            raise ValueError("a tool's definition is an object")
        hints = wire.get("annotations")
        if isinstance(hints, Mapping):
            # To leave a hint out and to say null is the same; some libraries always write it.
            hints = {key: value for key, value in hints.items() if value is not None}
        return cls(
            name=wire.get("name"),  # type: ignore[arg-type]  # checked when it is made
            title=wire.get("title"),
            description="" if wire.get("description") is None else wire["description"],
            input_schema=wire.get("inputSchema"),  # type: ignore[arg-type]  # likewise
            output_schema=wire.get("outputSchema"),
            annotations={} if hints is None else hints,
        )

    def record(self) -> dict[str, Any]:
        """As it is pinned: camelCase JSON, without what was not said."""
        made = {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": thaw(self.input_schema),
            "outputSchema": thaw(self.output_schema),
            "annotations": thaw(self.annotations),
        }
        unsaid: dict[str, Any] = {"title": None, "outputSchema": None, "annotations": {}}
        return {key: made[key] for key in made if key not in unsaid or made[key] != unsaid[key]}

    def hint(self, name: str) -> bool | None:
        """What an annotation says; None when it says nothing."""
        value = self.annotations.get(name)
        return value if isinstance(value, bool) else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Definition) and self.hash == other.hash

    def __hash__(self) -> int:
        return hash(self.hash)


def _check(given: Definition) -> None:
    """Whether everything is of the kind that the protocol says."""
    if not isinstance(given.name, str):
        raise ValueError("name is missing" if given.name is None else "name is not a text")
    if not _NAME.fullmatch(given.name):
        raise ValueError(
            f"name {ascii(given.name)[:80]} is not 1 to 128 letters, digits, '_', '.', '-' and '/'"
        )
    _check_text("title", "" if given.title is None else given.title)
    _check_text("description", given.description)
    if not isinstance(given.input_schema, Mapping):
        raise ValueError("inputSchema is not an object")
    if given.input_schema.get("type") != "object":
        raise ValueError('inputSchema is not of "type": "object"')
    if given.output_schema is not None and not isinstance(given.output_schema, Mapping):
        raise ValueError("outputSchema is not an object")
    _check_hints(given.annotations)


def _check_hints(annotations: object) -> None:
    if not isinstance(annotations, Mapping):
        raise ValueError("annotations is not an object")
    for hint in HINTS:
        if hint in annotations and not isinstance(annotations[hint], bool):
            raise ValueError(f"annotations.{hint} is not true or false")


def _check_text(name: str, text: object) -> None:
    if not isinstance(text, str):
        raise ValueError(f"{name} is not a text")
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise ValueError(f"{name} holds a lone surrogate, which is not text")


_WIRE = {"input_schema": "inputSchema", "output_schema": "outputSchema"}


def _frozen(name: str, value: Any) -> Any:
    try:
        return freeze(value)
    except ValueError as error:
        raise ValueError(f"{_WIRE.get(name, name)}: {error}") from None


def _texts(value: Any) -> Iterator[str]:
    """Every text in a JSON value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


# --- changes between definitions ------------------------------------------------------------------


_TOKEN: Final = re.compile(r"\s+|\w+|[^\w\s]")
_MOST_TOKENS: Final = 2_000
_CONTEXT: Final = 6
_UNIONS: Final = ("allOf", "anyOf", "oneOf")
_UNSAID: Final = {"readOnlyHint": False, "idempotentHint": False}
_SIDES: Final[dict[str, Side]] = {"inputSchema": "input", "outputSchema": "output"}

Path = tuple[str | int, ...]


class ChangeKind(StrEnum):
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
    kind: ChangeKind
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
            changes.append(_change((name,), ChangeKind.OTHER, old, new))
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
            yield _change((name, *path), ChangeKind.OTHER, {name: old}, {name: new})


def _moves(old: Any, new: Any, side: Side) -> Iterator[tuple[Path, ChangeKind, str]]:
    # To a caller more is harmless, to a reader less is: asked for both, it says which it was.
    callers = compare_schemas(old, new, side="input")
    readers = compare_schemas(old, new, side="output")
    for one, other in zip(callers, readers, strict=True):
        told = one if side == "input" else other
        yield told.path, _kind(told.path, told.message, one.breaking, other.breaking), told.message


def _kind(path: Path, message: str, calls_break: bool, reads_break: bool) -> ChangeKind:  # noqa: FBT001 - a table's two columns
    if path[-1:] == ("default",):
        return ChangeKind.OTHER
    if message.endswith("was added"):
        return ChangeKind.LOOSER
    if calls_break and reads_break:
        return ChangeKind.OTHER
    if calls_break or reads_break:
        return ChangeKind.TIGHTER if calls_break else ChangeKind.LOOSER
    return ChangeKind.WORDS


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
            kind = _hint_kind(name, old, new) if name in HINTS else ChangeKind.OTHER
            yield _change(("annotations", name), kind, {"annotations": old}, {"annotations": new})


def _hint_kind(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> ChangeKind:
    """What is not said counts as the protocol says: able to destroy, open to the world."""
    unsaid = _UNSAID.get(name, True)
    before, after = old.get(name, unsaid), new.get(name, unsaid)
    if before == after:
        return ChangeKind.WORDS
    reassures = after is not unsaid
    return ChangeKind.TIGHTER if reassures else ChangeKind.LOOSER


# --- words ----------------------------------------------------------------------------------------


def _change(path: Path, kind: ChangeKind, old: Any, new: Any) -> Change:
    place = pointer(*path)
    was, now = at(old, place), at(new, place)
    words = _words_changed(was, now)
    if isinstance(was, str | None) and isinstance(now, str | None):
        kind = ChangeKind.WORDS
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
