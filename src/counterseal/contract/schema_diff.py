"""Compare two JSON Schemas, and say whether a change breaks users of the old one.

An input schema is a promise to accept: tightening it breaks callers. An output schema is a promise
to deliver: loosening it breaks readers. A change that is not known to be harmless counts as
breaking. References are followed inside each schema and never out of it. `diff` places the results
in a contract, and says what each id means.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from counterseal.canonical import canonical, steps
from counterseal.contract.schemas import listed, properties_of, resolve_local, types_of, word_set

Schema = Mapping[str, Any]


class ChangeKind(StrEnum):
    """What a change does to the values that a schema accepts."""

    LOOSER = "looser"
    """More values than before."""
    TIGHTER = "tighter"
    OTHER = "other"
    """The direction of the change is unknown."""
    WORDS = "words"
    """The same values: only text for people and models changed, or the way of writing."""


NOTES = word_set(
    "$comment $schema deprecated description discriminator examples readOnly title writeOnly"
)
"""Annotations, which accept or refuse no value. So are all keywords that begin with `x-`."""

DEFINITIONS = frozenset({"$defs", "definitions"})
"""Compared where they are used."""

INNER = word_set("additionalProperties items propertyNames unevaluatedItems unevaluatedProperties")
"""Keywords with one schema; an absent one accepts anything."""

_LOWER = word_set("exclusiveMinimum minContains minItems minLength minProperties minimum")
_UPPER = word_set("exclusiveMaximum maxContains maxItems maxLength maxProperties maximum")
_ABSENT_BOUNDS = {"minContains": 1, "minItems": 0, "minLength": 0, "minProperties": 0}
"""The bounds that hold without their keyword."""

_RESTRICTIONS = word_set(
    "allOf anyOf contains contentEncoding contentMediaType dependentRequired dependentSchemas "
    "format multipleOf not oneOf pattern uniqueItems"
)
"""Keywords that can only refuse values. Adding one tightens, and two values are not comparable.

`patternProperties` and `prefixItems` are not among them: values that they no longer cover fall to
`additionalProperties` or `items`, which may be stricter.
"""

_ABSENT = object()


def move(word: str, old: Schema, new: Schema) -> ChangeKind:
    """Return how a changed keyword moves the schema. An unknown keyword may do anything."""
    if word in _LOWER or word in _UPPER:
        bounds = (side.get(word, _ABSENT_BOUNDS.get(word)) for side in (old, new))
        return _bound(*bounds, lower=word in _LOWER)
    if word == "type":
        return _subset(_types(old), _types(new))
    if word in ("const", "enum"):
        return _subset(_values(old), _values(new))
    if word not in _RESTRICTIONS:
        return ChangeKind.OTHER
    idle = (_ABSENT, False) if word == "uniqueItems" else (_ABSENT,)
    before, after = (side.get(word, _ABSENT) not in idle for side in (old, new))
    if before is after:
        return ChangeKind.OTHER if before else ChangeKind.WORDS
    return ChangeKind.TIGHTER if after else ChangeKind.LOOSER


def _bound(before: Any, after: Any, *, lower: bool) -> ChangeKind:
    if before is None or after is None:
        return ChangeKind.TIGHTER if before is None else ChangeKind.LOOSER
    if not {type(before), type(after)} <= {int, float}:
        return ChangeKind.OTHER
    if before == after:
        return ChangeKind.WORDS
    return ChangeKind.TIGHTER if (after > before) is lower else ChangeKind.LOOSER


def _subset(before: frozenset[Any] | None, after: frozenset[Any] | None) -> ChangeKind:
    """Compare two sets of values; None stands for all values."""
    if before == after:
        return ChangeKind.WORDS
    if before is None or (after is not None and after < before):
        return ChangeKind.TIGHTER
    return ChangeKind.LOOSER if after is None or before < after else ChangeKind.OTHER


def _types(schema: Schema) -> frozenset[str] | None:
    if "type" not in schema:
        return None
    named = frozenset(types_of(schema))
    return named | {"integer"} if "number" in named else named


def _values(schema: Schema) -> frozenset[bytes] | None:
    """Return the values of `enum` and `const`; a constant is an enumeration of one."""
    lists = [listed(schema, "enum")] if "enum" in schema else []
    lists += [(schema["const"],)] if "const" in schema else []
    sets = [frozenset(map(canonical, values)) for values in lists]
    return frozenset.intersection(*sets) if sets else None


def same(old: Any, new: Any) -> bool:
    """Return whether two JSON values are equal. Unlike in Python, true does not equal 1."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return old.keys() == new.keys() and all(same(old[key], new[key]) for key in old)
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        return len(old) == len(new) and all(map(same, old, new))
    return isinstance(old, bool) is isinstance(new, bool) and bool(old == new)


def equal(word: str, old: Schema, new: Schema) -> bool:
    """Return whether a keyword has the same value in both schemas, or is missing in both."""
    before, after = old.get(word, _ABSENT), new.get(word, _ABSENT)
    return before is after or same(before, after)


def is_note(word: str) -> bool:
    """Return whether a keyword is an annotation."""
    return word in NOTES or word.startswith("x-")


def core(schema: Schema) -> dict[str, Any]:
    """Return the keywords that accept or refuse values."""
    return {
        word: value
        for word, value in schema.items()
        if word != "default" and word not in DEFINITIONS and not is_note(word)
    }


Side = Literal["input", "output"]
Path = tuple[str | int, ...]
Placed = tuple[Path, Any]
"""A schema with its path."""

MAX_PAIRS = 20_000
"""A limit for recursive schemas, whose parts can be paired in very many ways."""


class SchemaChange(NamedTuple):
    path: Path
    kind: ChangeKind
    breaking: bool
    message: str
    id: str
    """What happened to which side: `input-required-added`, `output-enum-widened`."""
    before: Any = None
    after: Any = None


DIRECTIONS = {
    ChangeKind.LOOSER: "widened",
    ChangeKind.TIGHTER: "narrowed",
    ChangeKind.OTHER: "changed",
}
"""How the id of a changed keyword ends. With the same values as before it is `rewritten`."""
SUBJECTS = ("", "type-", "enum-", "bound-")
"""What changed, in the id; an empty text stands for every other keyword."""


def _subject(word: str) -> str:
    if word in ("const", "enum"):
        return "enum-"
    if word in _LOWER or word in _UPPER:
        return "bound-"
    return "type-" if word == "type" else ""


def compare_schemas(old: Any, new: Any, *, side: Side) -> list[SchemaChange]:
    """Return every difference. Empty exactly when the two are the same JSON."""
    if same(old, new):
        return []
    comparison = _Comparison(old_root=old, new_root=new, side=side)
    comparison.run()
    if not comparison.changes:
        comparison.add((), ChangeKind.WORDS, "is written differently, with the same meaning")
    return comparison.changes


class _Pair(NamedTuple):
    """Two schemas for the same thing, each with its path."""

    old: Any
    new: Any
    old_path: Path = ()
    new_path: Path = ()
    omittable: bool = False
    """Whether old callers could leave the value out and rely on its default."""

    def inside(self, old: Any, new: Any, *steps: str | int, omittable: bool = False) -> _Pair:
        """Return a pair of schemas that are inside these."""
        paths = ((*self.old_path, *steps), (*self.new_path, *steps))
        return _Pair(old, new, *paths, omittable=omittable)


@dataclass(slots=True, kw_only=True)
class _Comparison:
    """Works off a list instead of recursing: references can nest deeper than Python's stack."""

    old_root: Any
    new_root: Any
    side: Side
    changes: list[SchemaChange] = field(default_factory=list)
    pending: list[_Pair] = field(default_factory=list)
    seen: set[tuple[Path, Path]] = field(default_factory=set)
    reached: set[Path] = field(default_factory=set)
    """The definitions that were compared."""

    def run(self) -> None:
        self.push(_Pair(self.old_root, self.new_root))
        while self.pending:
            if len(self.seen) > MAX_PAIRS:
                self.add((), ChangeKind.OTHER, "is too complex to compare")
                return
            self.compare(self.pending.pop())
        self.definitions()

    def add(
        self,
        path: Path,
        kind: ChangeKind,
        message: str,
        *,
        what: str = "",
        subject: str = "",
        values: tuple[Any, Any] = (None, None),
    ) -> None:
        """Add a change. `what` is the end of its id, unless the subject and the kind say it."""
        harmless = ChangeKind.LOOSER if self.side == "input" else ChangeKind.TIGHTER
        breaking = kind not in (harmless, ChangeKind.WORDS)
        text = f"{_label(self.side, path)} {message}"
        ending = what or (
            "rewritten" if kind is ChangeKind.WORDS else f"{subject}{DIRECTIONS[kind]}"
        )
        name = f"{self.side}-{ending}"
        self.changes.append(SchemaChange(path, kind, breaking, text, name, *values))

    def push(self, pair: _Pair) -> None:
        places = (pair.old_path, pair.new_path)
        if places not in self.seen:
            self.seen.add(places)
            self.pending.append(pair)

    def compare(self, raw: _Pair) -> None:
        pair = self.references(raw._replace(old=_plain(raw.old), new=_plain(raw.new)))
        old, new = core(pair.old), core(pair.new)
        self.notes(pair)
        if not old and not new:
            return
        # One side accepts everything or nothing, so there is nothing to compare inside.
        values = (pair.old, pair.new)
        if not old or (_never(new) and not _never(old)):
            self.add(pair.new_path, ChangeKind.TIGHTER, "is narrower", values=values)
        elif not new or (_never(old) and not _never(new)):
            self.add(pair.new_path, ChangeKind.LOOSER, "is wider", values=values)
        elif not self.alternatives(pair, old, new):
            self.keywords(pair, old, new)

    def references(self, pair: _Pair) -> _Pair:
        """Resolve the references of a pair.

        If both sides have one, their targets are compared at their own paths, and the rest here. If
        one side has one, its target is inlined.
        """
        refers = ("$ref" in pair.old, "$ref" in pair.new)
        if refers == (True, False):
            old_path, old = _inlined(self.old_root, pair.old_path, pair.old)
            pair = pair._replace(old=old, old_path=old_path)
        elif refers == (False, True):
            new_path, new = _inlined(self.new_root, pair.new_path, pair.new)
            pair = pair._replace(new=new, new_path=new_path)
        self.reached |= {pair.old_path[:2], pair.new_path[:2]}
        old_target = _target(self.old_root, pair.old)
        new_target = _target(self.new_root, pair.new)
        if old_target is None or new_target is None:
            return pair  # no references, or unresolvable ones, which count as keywords
        (old_path, old), (new_path, new) = old_target, new_target
        self.push(_Pair(old, new, old_path, new_path))
        return pair._replace(old=_without(pair.old, "$ref"), new=_without(pair.new, "$ref"))

    def notes(self, pair: _Pair) -> None:
        for word in {**pair.old, **pair.new}:
            if is_note(word) and not equal(word, pair.old, pair.new):
                self.add(
                    (*pair.new_path, word),
                    ChangeKind.WORDS,
                    f"has a different {word}",
                    what="reworded",
                    values=(pair.old.get(word), pair.new.get(word)),
                )
        if not equal("default", pair.old, pair.new):
            relied_on = self.side == "input" and pair.omittable
            text = _step("default", pair.old, pair.new)
            self.add(
                (*pair.new_path, "default"),
                ChangeKind.OTHER if relied_on else ChangeKind.WORDS,
                text,
                what="default-changed" if relied_on else "default-reworded",
                values=(pair.old.get("default"), pair.new.get("default")),
            )

    def alternatives(self, pair: _Pair, old: dict[str, Any], new: dict[str, Any]) -> bool:
        """Compare `anyOf` with what can be read as alternatives. Return False if nothing can."""
        olds, news = _options(pair.old_path, old), _options(pair.new_path, new)
        if ("anyOf" not in old and "anyOf" not in new) or olds is None or news is None:
            return False
        self.match(olds, news, gone=ChangeKind.TIGHTER, come=ChangeKind.LOOSER)
        return True

    def match(
        self, olds: list[Placed], news: list[Placed], *, gone: ChangeKind, come: ChangeKind
    ) -> None:
        """Pair the alternatives: first those that are equal, then those with the same signature."""
        for sign in (canonical, _signature):
            waiting: defaultdict[Any, list[Placed]] = defaultdict(list)
            for place, item in reversed(news):
                waiting[sign(item)].append((place, item))
            left = []
            for place, item in olds:
                if waiting[sign(item)]:
                    new_place, new = waiting[sign(item)].pop()
                    self.push(_Pair(item, new, place, new_place))
                else:
                    left.append((place, item))
            olds, news = left, [placed for rest in waiting.values() for placed in rest]
        for place, item in olds:
            text = f"no longer has the alternative {_signature(item)}"
            self.add(place, gone, text, values=(item, None))
        for place, item in news:
            text = f"has the new alternative {_signature(item)}"
            self.add(place, come, text, values=(None, item))

    def keywords(self, pair: _Pair, old: dict[str, Any], new: dict[str, Any]) -> None:
        for word in {**old, **new}:
            if word in ("properties", "required"):
                continue  # below
            if word in INNER:
                self.push(pair.inside(old.get(word, True), new.get(word, True), word))
            elif not self.inside(word, pair, old, new) and not equal(word, old, new):
                if word == "const" and not equal("enum", old, new):
                    continue  # reported with it
                self.add(
                    (*pair.new_path, word),
                    move(word, old, new),
                    _step(word, old, new),
                    subject=_subject(word),
                    values=(old.get(word), new.get(word)),
                )
        self.properties(pair, old, new)

    def inside(self, word: str, pair: _Pair, old: dict[str, Any], new: dict[str, Any]) -> bool:
        """Compare inside a keyword with several schemas. Return False if they can't be paired."""
        before, after = old.get(word), new.get(word)
        named = word in ("dependentSchemas", "patternProperties")
        if named and isinstance(before, Mapping) and isinstance(after, Mapping):
            if before.keys() != after.keys():
                return False
            for name in before:
                self.push(pair.inside(before[name], after[name], word, name))
            return True
        if not isinstance(before, list | tuple) or not isinstance(after, list | tuple):
            return False
        if word in ("allOf", "anyOf", "oneOf"):
            olds = [((*pair.old_path, word, i), item) for i, item in enumerate(before)]
            news = [((*pair.new_path, word, i), item) for i, item in enumerate(after)]
            # Fields of a removed allOf branch may be refused by `unevaluatedProperties: false`.
            # A oneOf is assumed to have alternatives that don't overlap.
            combined = (ChangeKind.OTHER, ChangeKind.TIGHTER)
            gone, come = combined if word == "allOf" else (ChangeKind.TIGHTER, ChangeKind.LOOSER)
            self.match(olds, news, gone=gone, come=come)
            return True
        if word == "prefixItems" and len(before) == len(after):
            for i, (one, other) in enumerate(zip(before, after, strict=True)):
                self.push(pair.inside(one, other, word, i))
            return True
        return False

    def properties(self, pair: _Pair, old: dict[str, Any], new: dict[str, Any]) -> None:
        """Compare the properties, and which of them are required."""
        was_required, is_required = (
            {name for name in listed(side, "required") if isinstance(name, str)}
            for side in (old, new)
        )
        before, after = properties_of(old), properties_of(new)
        if (before, after) != (old.get("properties", {}), new.get("properties", {})):
            self.add((*pair.new_path, "properties"), ChangeKind.OTHER, "has different properties")
        for name in before:
            if name not in after:
                place, gone = (*pair.old_path, "properties", name), (before[name], None)
                self.add(place, ChangeKind.OTHER, "was removed", what="removed", values=gone)
        for name in after:
            if name in before:
                omittable, step = name not in was_required, ("properties", name)
                self.push(pair.inside(before[name], after[name], *step, omittable=omittable))
                continue
            demanded = self.side == "input" and name in is_required
            text = "was added, and is required" if demanded else "was added"
            place = (*pair.new_path, "properties", name)
            kind = ChangeKind.TIGHTER if demanded else ChangeKind.WORDS
            what = "required-added" if demanded else "added"
            self.add(place, kind, text, what=what, values=(None, after[name]))
        # Properties that were added or removed have been reported as such.
        reported = before.keys() ^ after.keys()
        place = (*pair.new_path, "required")
        for name in sorted(is_required - was_required - reported):
            text = f"now requires {name}"
            self.add(place, ChangeKind.TIGHTER, text, what="now-required", values=(None, name))
        for name in sorted(was_required - is_required - reported):
            text = f"no longer requires {name}"
            self.add(place, ChangeKind.LOOSER, text, what="now-optional", values=(name, None))

    def definitions(self) -> None:
        """Report changed definitions that the comparison did not reach, as under `not` or `if`."""
        for word in sorted(DEFINITIONS):
            before, after = (_plain(root).get(word) for root in (self.old_root, self.new_root))
            if not isinstance(before, Mapping) or not isinstance(after, Mapping):
                continue
            for name in before.keys() & after.keys():
                place = (word, name)
                if place not in self.reached and not same(before[name], after[name]):
                    self.add(
                        place,
                        ChangeKind.OTHER,
                        "has a different definition",
                        values=(before[name], after[name]),
                    )


def _plain(schema: Any) -> Mapping[str, Any]:
    """Return a schema as a mapping. Anything else becomes an unknown keyword."""
    if isinstance(schema, bool):
        return {} if schema else {"not": {}}
    return schema if isinstance(schema, Mapping) else {"(no schema)": schema}


def _never(words: dict[str, Any]) -> bool:
    """Return whether a schema accepts nothing: the long form of `false`."""
    return same(words, {"not": {}})


def _target(root: Any, schema: Mapping[str, Any]) -> Placed | None:
    reference = schema.get("$ref")
    target = resolve_local(root, reference) if isinstance(reference, str) else None
    return None if target is None else (tuple(steps(str(reference))), target)


def _inlined(root: Any, path: Path, schema: Mapping[str, Any]) -> tuple[Path, Mapping[str, Any]]:
    """Return what a schema refers to, with the schema's own keywords over it.

    A reference stays when both restrict by the same keyword, since neither replaces the other.
    """
    followed: set[Path] = set()
    while (resolved := _target(root, schema)) is not None and resolved[0] not in followed:
        target, beside = _plain(resolved[1]), _without(schema, "$ref")
        if core(target).keys() & core(beside).keys():
            break
        path = resolved[0]
        followed.add(path)
        schema = {**target, **beside}
    return path, schema


def _without(schema: Mapping[str, Any], word: str) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != word}


def _options(path: Path, words: dict[str, Any]) -> list[Placed] | None:
    """Return the alternatives of a schema that has nothing else, or can be read that way."""
    options = words.get("anyOf")
    if options is None:
        kinds = types_of(words)
        typed = [(path, {**words, "type": kind}) for kind in kinds]
        return typed if len(kinds) > 1 else [(path, words)]
    if len(words) > 1 or not isinstance(options, list | tuple):
        return None
    return [((*path, "anyOf", i), option) for i, option in enumerate(options)]


def _signature(schema: Any) -> str:
    """Return what identifies an alternative whose details have changed."""
    for word in ("$ref", "const", "type"):
        if isinstance(schema, Mapping) and word in schema:
            return shown(schema[word])
    return "without a type"


def _label(side: Side, path: Path) -> str:
    """Return a path in the notation `order.items[].amount`."""
    label, names = "", False
    for part in path:
        if names:
            label += f".{part}"
            names = False
        elif part in ("properties", *DEFINITIONS):
            names = True
        elif part in INNER:
            label += "[]" if part == "items" else f"({part})"
    return f"{side} {label.removeprefix('.')}".rstrip()


def _step(word: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    if word not in old:
        return f"now has {word} {shown(new[word])}"
    if word not in new:
        return f"no longer has {word} {shown(old[word])}"
    return f"has {word} {shown(new[word])}, had {shown(old[word])}"


def shown(value: Any) -> str:
    """Return a JSON value in at most 60 characters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:59]}…"
