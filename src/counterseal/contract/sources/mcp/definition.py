"""An upstream's definition of a tool, hashed for its pin.

It is untrusted, so it is checked and bounded first. Unused fields (icons, `_meta`) are dropped and
not hashed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any, Final, NamedTuple

from counterseal.canonical import at, canonical, digest, freeze, pointer, thaw
from counterseal.contract.schema_diff import ChangeKind, Side, compare_schemas, same
from counterseal.contract.schemas import subschemas
from counterseal.contract.sources.foreign_text import instructions_in, visible

MAX_BYTES: Final = 256 * 1024
"""Maximum size of the canonical record."""

HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
"""The annotations about a tool's effect. They are untrusted and can only make it stricter."""

_NAME = re.compile(r"[A-Za-z0-9_./-]{1,128}")
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""The escape of a NUL in JSON, and not an escaped backslash before `u0000`."""


@dataclass(frozen=True, slots=True, eq=False)
class Definition:
    """A tool as its upstream describes it. Two definitions are equal if their hashes are."""

    name: str
    title: str | None
    description: str
    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None
    annotations: Mapping[str, Any]
    hash: str = field(init=False)
    """`sha256:…` of the canonical record. Key order and number spelling make no difference."""

    def __post_init__(self) -> None:
        _check(self)
        wire = {"input_schema": "inputSchema", "output_schema": "outputSchema"}
        for name in ("input_schema", "output_schema", "annotations"):
            try:
                object.__setattr__(self, name, freeze(getattr(self, name)))
            except ValueError as error:
                raise ValueError(f"{wire.get(name, name)}: {error}") from None
        text = canonical(self.record())
        if _NUL.search(text):
            raise ValueError("it contains a NUL character")
        if len(text) > MAX_BYTES:
            raise ValueError(f"it is {len(text):,} bytes long, the limit is {MAX_BYTES:,}")
        object.__setattr__(self, "hash", digest(self.record()))

    @classmethod
    def of(cls, wire: Mapping[str, Any]) -> Definition:
        """Return the definition of an item of tools/list. Raise ValueError if it is invalid."""
        if not isinstance(wire, Mapping):
            raise ValueError("a tool's definition must be an object")
        hints = wire.get("annotations")
        if isinstance(hints, Mapping):
            # Some libraries write null for a missing hint.
            hints = {key: value for key, value in hints.items() if value is not None}
        return cls(
            name=wire.get("name"),  # type: ignore[arg-type]  # checked in __post_init__
            title=wire.get("title"),
            description="" if wire.get("description") is None else wire["description"],
            input_schema=wire.get("inputSchema"),  # type: ignore[arg-type]  # likewise
            output_schema=wire.get("outputSchema"),
            annotations={} if hints is None else hints,
        )

    def record(self) -> dict[str, Any]:
        """Return the definition as it is pinned: camelCase JSON without missing fields."""
        fields = {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": thaw(self.input_schema),
            "outputSchema": thaw(self.output_schema),
            "annotations": thaw(self.annotations),
        }
        missing: dict[str, Any] = {"title": None, "outputSchema": None, "annotations": {}}
        return {
            key: value
            for key, value in fields.items()
            if key not in missing or value != missing[key]
        }

    def hint(self, name: str) -> bool | None:
        """Return the value of an annotation, or None if it is missing."""
        value = self.annotations.get(name)
        return value if isinstance(value, bool) else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Definition) and self.hash == other.hash

    def __hash__(self) -> int:
        return hash(self.hash)


def read_listing(tools: Iterable[Any]) -> tuple[dict[str, Definition], list[tuple[str, str]]]:
    """Return the definitions of a listing by name, and the other tools with the reasons.

    Of two tools with one name the first counts, for all readers of a listing.
    """
    definitions: dict[str, Definition] = {}
    unusable: list[tuple[str, str]] = []
    for wire in tools:
        try:
            definition = Definition.of(wire)
        except ValueError as error:
            name = wire.get("name") if isinstance(wire, Mapping) else None
            unusable.append((str(name)[:128], str(error)))
            continue
        if definition.name in definitions:
            unusable.append((definition.name, "it is listed twice; only the first is used"))
        definitions.setdefault(definition.name, definition)
    return definitions, unusable


def instructions(definition: Definition) -> list[tuple[str, str]]:
    """Return what reads like an instruction to a model, with its place in the record."""
    record = definition.record()
    texts: dict[Path, Any] = {(name,): record.get(name) for name in ("title", "description")}
    for name in ("inputSchema", "outputSchema"):
        for path, schema in subschemas(record.get(name)):
            texts |= {(name, *path, word): schema.get(word) for word in ("title", "description")}
    return [
        (pointer(*path), part)
        for path, text in texts.items()
        if isinstance(text, str)
        for part in instructions_in(text)
    ]


def _check(given: Definition) -> None:
    """Raise ValueError if a field does not have the type that the protocol requires."""
    if not isinstance(given.name, str):
        raise ValueError("name is missing" if given.name is None else "name must be a string")
    if not _NAME.fullmatch(given.name):
        expected = "1 to 128 letters, digits, '_', '.', '-' and '/'"
        raise ValueError(f"name must be {expected}, got {ascii(given.name)[:80]}")
    title = "" if given.title is None else given.title
    for name, text in (("title", title), ("description", given.description)):
        if not isinstance(text, str):
            raise ValueError(f"{name} must be a string")
        if re.search("[\ud800-\udfff]", text):
            raise ValueError(f"{name} contains a lone surrogate, which is not valid text")
    output = {} if given.output_schema is None else given.output_schema
    objects = {"inputSchema": given.input_schema, "outputSchema": output}
    for name, value in (objects | {"annotations": given.annotations}).items():
        if not isinstance(value, Mapping):
            raise ValueError(f"{name} must be an object")
    if given.input_schema.get("type") != "object":
        raise ValueError('inputSchema must have "type": "object"')
    hints = [hint for hint in HINTS if not isinstance(given.annotations.get(hint, True), bool)]
    if hints:
        raise ValueError(f"annotations.{hints[0]} must be true or false")


# --- changes between definitions ------------------------------------------------------------------

_TOKEN: Final = re.compile(r"\s+|\w+|[^\w\s]")
_MOST_TOKENS: Final = 2_000
_CONTEXT: Final = 6
_UNIONS: Final = ("allOf", "anyOf", "oneOf")
_SIDES: Final[dict[str, Side]] = {"inputSchema": "input", "outputSchema": "output"}

Path = tuple[str | int, ...]


class Change(NamedTuple):
    """A difference. `pointer` is a place in the newer record; in the older one for a removal."""

    pointer: str
    kind: ChangeKind
    before: Any
    after: Any
    text: str
    """One line for people, without invisible characters."""


def describe(before: Definition, after: Definition) -> list[Change]:
    """Return every difference, in the order of the record. Empty only if the hashes are equal."""
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


def _schema_changes(name: str, old: Any, new: Any) -> Iterator[Change]:
    """Yield the changes with a known direction, then the remaining differences."""
    shown: set[Path] = set()
    roots = ({name: old}, {name: new})
    for change in compare_schemas(old, new, side=_SIDES[name]):
        if not change.path:
            continue  # the changes of its parts are more precise
        kind = change.kind
        if change.path[-1] == "default":
            kind = ChangeKind.OTHER
        elif change.message.endswith("was added"):
            kind = ChangeKind.LOOSER
        place = _whole_unions(change.path)
        yield _change((name, *place), kind, *roots, message=change.message)
        shown.add(place)
    for path in _differences(old, new, ()):
        if not any(path[: len(place)] == place for place in shown):
            yield _change((name, *path), ChangeKind.OTHER, *roots)


def _whole_unions(path: Path) -> Path:
    """Return the path up to the first union: its alternatives may only have been reordered."""
    for index, step in enumerate(path):
        named = index > 0 and path[index - 1] in ("properties", "$defs", "definitions")
        if step in _UNIONS and not named:
            return path[: index + 1]
    return path


def _differences(old: Any, new: Any, path: Path) -> Iterator[Path]:
    if same(old, new):
        return
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        yield path
        return
    for key in {**old, **new}:
        if key in old and key in new:
            yield from _differences(old[key], new[key], (*path, key))
        else:
            yield (*path, key)


def _hint_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    for name in {**old, **new}:
        if same(old.get(name), new.get(name)):
            continue
        # A missing hint has the protocol's default.
        default = name not in ("readOnlyHint", "idempotentHint")
        after = new.get(name, default)
        if name not in HINTS:
            kind = ChangeKind.OTHER
        elif old.get(name, default) == after:
            kind = ChangeKind.WORDS
        else:  # any other value than the default reassures
            kind = ChangeKind.LOOSER if after is default else ChangeKind.TIGHTER
        yield _change(("annotations", name), kind, {"annotations": old}, {"annotations": new})


def _change(path: Path, kind: ChangeKind, old: Any, new: Any, *, message: str = "") -> Change:
    """Return the change of a value. Without a message, the text says both values."""
    place = pointer(*path)
    was, now = at(old, place), at(new, place)
    words = _words_changed(was, now)
    if message:
        text = visible(message) + (f": {words}" if words else "")
    else:
        if isinstance(was, str | None) and isinstance(now, str | None):
            kind = ChangeKind.WORDS
        before, after = _brief(was), _brief(now)
        step = f"is {after} now" if was is None else f"was {before}"
        step += "" if was is None or now is None else f", is {after}"
        text = f"{visible('.'.join(map(str, path)))}: {words or step}"
    found = instructions_in(now) if isinstance(now, str) else []
    if found:
        text += f' (reads like an instruction to a model: "{visible(found[0])}")'
    return Change(place, kind, was, now, text)


def _brief(value: Any) -> str:
    text = visible(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= 200 else f"{text[:199]}…"


def _words_changed(was: Any, now: Any) -> str:
    """Return a word diff: `the [-old-]{+new+} words`. Empty for other types or long texts."""
    if not isinstance(was, str) or not isinstance(now, str):
        return ""
    old, new = _TOKEN.findall(visible(was)), _TOKEN.findall(visible(now))
    if len(old) > _MOST_TOKENS or len(new) > _MOST_TOKENS:
        return ""
    out: list[str] = []
    steps = SequenceMatcher(None, old, new).get_opcodes()
    for index, (step, first, last, start, end) in enumerate(steps):
        removed, added = old[first:last], new[start:end]
        if step != "equal":
            out += [f"[-{''.join(removed)}-]"] if removed else []
            out += [f"{{+{''.join(added)}+}}"] if added else []
            continue
        # The start and the end of an unchanged part are the context of the changes beside it.
        head = [] if index == 0 else added[:_CONTEXT]
        tail = [] if index == len(steps) - 1 else added[-_CONTEXT:]
        out += added if len(head) + len(tail) >= len(added) else [*head, " … ", *tail]
    return " ".join("".join(out).split())
