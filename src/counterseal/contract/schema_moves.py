"""How one keyword of a JSON Schema moved: does it let more values through than before, or fewer?

Schemas may be malformed: a comparison must have an answer for whatever it is given.
`schema_diff` walks two schemas with these and says what a move breaks.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from counterseal.canonical import canonical
from counterseal.contract.schemas import types_of

__all__ = ["DEFINITIONS", "INNER", "Move", "core", "equal", "is_note", "move", "same"]

Schema = Mapping[str, Any]


class Move(Enum):
    TIGHTER = "tighter"
    LOOSER = "looser"
    OTHER = "other"
    SAME = "same"


NOTES = frozenset(
    {
        "$comment",
        "$schema",
        "deprecated",
        "description",
        "discriminator",
        "examples",
        "readOnly",
        "title",
        "writeOnly",
    }
)
"""Words to a reader; no value passes or fails by them. Neither by what starts with `x-`."""

DEFINITIONS = frozenset({"$defs", "definitions"})
"""Looked at where they are used."""

INNER = frozenset(
    {
        "additionalProperties",
        "items",
        "propertyNames",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
"""One schema inside; leaving it out means "anything"."""

_LOWER = frozenset(
    {"exclusiveMinimum", "minContains", "minItems", "minLength", "minProperties", "minimum"}
)
_UPPER = frozenset(
    {"exclusiveMaximum", "maxContains", "maxItems", "maxLength", "maxProperties", "maximum"}
)
_UNSAID = {"minContains": 1, "minItems": 0, "minLength": 0, "minProperties": 0}
"""The bounds that hold when nothing is said."""

_RESTRICTIONS = frozenset(
    {
        "allOf",
        "anyOf",
        "contains",
        "contentEncoding",
        "contentMediaType",
        "dependentRequired",
        "dependentSchemas",
        "format",
        "multipleOf",
        "not",
        "oneOf",
        "pattern",
        "uniqueItems",
    }
)
"""Can only keep values out: there or not there is clear, one against another is not.

`patternProperties` and `prefixItems` are no such words: what they no longer speak of falls to
`additionalProperties` or `items`, which may be stricter.
"""

_ABSENT = object()


def move(word: str, old: Schema, new: Schema) -> Move:
    """What a keyword's change did. Unknown keywords may do anything."""
    if word in _LOWER or word in _UPPER:
        return _bound(word, old, new)
    if word == "type":
        return _subset(_types(old), _types(new))
    if word in ("const", "enum"):
        return _subset(_values(old), _values(new))
    return _presence(word, old, new) if word in _RESTRICTIONS else Move.OTHER


def _bound(word: str, old: Schema, new: Schema) -> Move:
    before, after = old.get(word, _UNSAID.get(word)), new.get(word, _UNSAID.get(word))
    if before is None or after is None:
        return Move.TIGHTER if before is None else Move.LOOSER
    if not (_is_number(before) and _is_number(after)):
        return Move.OTHER
    if before == after:
        return Move.SAME
    return Move.TIGHTER if (after > before) is (word in _LOWER) else Move.LOOSER


def _presence(word: str, old: Schema, new: Schema) -> Move:
    was_there, is_there = _restricts(word, old), _restricts(word, new)
    if was_there and is_there:
        return Move.OTHER
    if not was_there and not is_there:
        return Move.SAME
    return Move.TIGHTER if is_there else Move.LOOSER


def _restricts(word: str, schema: Schema) -> bool:
    return word in schema and not (word == "uniqueItems" and schema[word] is False)


def _subset(before: frozenset[Any] | None, after: frozenset[Any] | None) -> Move:
    """None is everything."""
    if before == after:
        return Move.SAME
    if before is None or (after is not None and after < before):
        return Move.TIGHTER
    return Move.LOOSER if after is None or before < after else Move.OTHER


def _types(schema: Schema) -> frozenset[str] | None:
    if "type" not in schema:
        return None
    named = frozenset(types_of(schema))
    return named | {"integer"} if "number" in named else named


def _values(schema: Schema) -> frozenset[bytes] | None:
    """`enum` and `const` together: a constant is an enumeration of one."""
    sets = []
    if "const" in schema:
        sets.append(frozenset({canonical(schema["const"])}))
    if "enum" in schema:
        listed = schema["enum"] if isinstance(schema["enum"], list | tuple) else ()
        sets.append(frozenset(map(canonical, listed)))
    return frozenset.intersection(*sets) if sets else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def same(old: Any, new: Any) -> bool:
    """Equality of JSON values. Unlike Python's, it tells true from 1."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return old.keys() == new.keys() and all(same(old[key], new[key]) for key in old)
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        return len(old) == len(new) and all(map(same, old, new))
    return isinstance(old, bool) is isinstance(new, bool) and bool(old == new)


def equal(word: str, old: Schema, new: Schema) -> bool:
    """Whether a keyword says the same in both, or is missing in both."""
    before, after = old.get(word, _ABSENT), new.get(word, _ABSENT)
    return before is after or same(before, after)


def is_note(word: str) -> bool:
    """Whether a keyword only informs."""
    return word in NOTES or word.startswith("x-")


def core(schema: Schema) -> dict[str, Any]:
    """The keywords that let values through or keep them out."""
    return {
        word: value
        for word, value in schema.items()
        if word != "default" and word not in DEFINITIONS and not is_note(word)
    }
