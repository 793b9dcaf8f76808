"""A stranger's schemas as contracts want them: 2020-12, closed, typed, bounded, described.

What a schema lets through stays what it was, as far as arguments are declared at all: closing an
object takes away what nobody declared, a bound takes away what nobody sends. Words of older drafts
are rewritten, patterns that can't be run safely are left to the upstream to check. What can't be
made to fit is left as it is, for lint to refuse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from counterseal.canonical import canonical, thaw
from counterseal.contract.lint.regex import is_catastrophic
from counterseal.contract.lint.schema_rules import MAX_BYTES, fields, says_type
from counterseal.contract.schemas import (
    DIALECT,
    compile_schema,
    listed,
    properties_of,
    subschemas,
    types_of,
    without_refs,
)
from counterseal.contract.sources.mcp.characters import plain
from counterseal.contract.sources.mcp.joining import Anything, join
from counterseal.contract.sources.openapi.keywords import types_in

__all__ = ["MAX_ITEMS", "MAX_LENGTH", "fit_input", "fit_output"]

MAX_LENGTH: Final = 100_000
MAX_ITEMS: Final = 10_000
"""Where a definition has no bound of its own."""
_MOST_COMPILED: Final = 4_000_000
_LONGEST_TEXT: Final = 4_000
_LONGEST_PATTERN: Final = 1_000
_TYPES: Final = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_SHARED: Final[tuple[str, ...]] = ("$defs", "definitions")
_LIMITS: Final = (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum"))
_CONDITIONS: Final = frozenset(
    {"allOf", "anyOf", "oneOf", "if", "then", "else", "not", "dependentSchemas"}
)
_OPEN: Final[tuple[Any, ...]] = (True, {})

Node = dict[str, Any]


def fit_input(schema: Mapping[str, Any]) -> Node:
    """An input schema that lint lets pass, if there is one. ValueError says why there is none."""
    own: Node = thaw(schema)
    _modernise(own)
    anything = Anything(own, max_length=MAX_LENGTH, max_items=MAX_ITEMS)
    join(own, anything)
    _close(own, anything)
    _type(own, anything)
    anything.define()
    _bound(own)
    _describe(own)
    size = len(canonical(own))
    if size > MAX_BYTES:
        raise ValueError(f"its input takes {size:,} bytes to describe; at most {MAX_BYTES:,} do")
    _drop_bad_defaults(own)
    # Said of a schema of this dialect, it stays: clients may go by it.
    return {"$schema": DIALECT, **own} if schema.get("$schema") == DIALECT else own


def fit_output(schema: Mapping[str, Any]) -> Node:
    """An output schema. It stays as open as it was: third parties add fields.

    By the rules of 2020-12 a format is a note; upstreams are careless with them.
    """
    own: Node = thaw(schema)
    _modernise(own)
    for _, inner in subschemas(own):
        if isinstance(inner, dict):
            inner.pop("format", None)
    if types_of(own) == ("object",):
        return own
    if "type" not in own and _is_object(own, own):
        return {"type": "object", **own}
    shared = {word: own.pop(word) for word in _SHARED if word in own}
    result = {"type": "object", "properties": {"result": own}, "required": ["result"]}
    return {**result, "additionalProperties": False, **shared}


def _is_object(root: Node, schema: Any) -> bool:
    """Whether a schema without a type speaks of an object all the same."""
    full = without_refs(root, schema)
    if types_of(full) == ("object",) or "properties" in full:
        return True
    options = listed(full, "anyOf") or listed(full, "oneOf")
    return bool(options) and all(
        types_of(without_refs(root, option)) == ("object",) for option in options
    )


# --- older drafts ---------------------------------------------------------------------------------


def _modernise(root: Node) -> None:
    """Rewrite what older drafts have other words for, and clean the texts."""
    for _, inner in subschemas(root):
        if not isinstance(inner, dict):
            continue
        for word in ("$schema", "$id", "id", "$comment"):
            if isinstance(inner.get(word), str):
                del inner[word]
        for word in ("title", "description"):
            if isinstance(inner.get(word), str):
                inner[word] = plain(inner[word], _LONGEST_TEXT)
        _mend_types(inner)
        _mend_lists(inner)
        _mend_limits(inner)
        _mend_patterns(inner)


def _mend_types(schema: Node) -> None:
    known = [word for word in types_of(schema) if word in _TYPES]
    if "type" in schema and len(known) < len(types_of(schema)):
        schema.pop("type")
        if known:
            schema["type"] = known
    if schema.get("nullable") is True and known and "null" not in known:
        schema["type"] = [*known, "null"]
    if isinstance(schema.get("required"), bool):
        del schema["required"]


def _mend_lists(schema: Node) -> None:
    if isinstance(schema.get("items"), list):
        schema["prefixItems"] = schema.pop("items")
        if "additionalItems" in schema:
            schema["items"] = schema["additionalItems"]
    schema.pop("additionalItems", None)
    needed = schema.pop("dependencies", None)
    for name, value in needed.items() if isinstance(needed, dict) else ():
        word = "dependentRequired" if isinstance(value, list) else "dependentSchemas"
        schema.setdefault(word, {})[name] = value


def _mend_limits(schema: Node) -> None:
    """In draft 4 the exclusive ones are booleans beside the plain ones."""
    for word, beside in _LIMITS:
        excludes = isinstance(schema.get(word), bool) and schema.pop(word)
        if excludes and beside in schema:
            schema[word] = schema.pop(beside)


def _mend_patterns(schema: Node) -> None:
    if isinstance(schema.get("pattern"), str) and not _usable(schema["pattern"]):
        del schema["pattern"]


@lru_cache(maxsize=1024)
def _usable(pattern: str) -> bool:
    if len(pattern) > _LONGEST_PATTERN or is_catastrophic(pattern):
        return False
    try:
        compile_schema({"type": "string", "pattern": pattern})
    except ValueError:
        return False
    return True


# --- closed, typed, bounded -----------------------------------------------------------------------


def _close(root: Node, anything: Anything) -> None:
    """No argument that nobody declared; inside of one, whatever its author left open on purpose."""
    if root.get("additionalProperties", True) in _OPEN:
        free = not root.get("properties") and "additionalProperties" in root
        root["additionalProperties"] = anything.ref() if free else False
    for path, inner in subschemas(root):
        if not path or not isinstance(inner, dict):
            continue
        named = inner.get("properties") or inner.get("patternProperties")
        delegates = "$ref" in inner and not named
        if "object" not in types_of(inner) and "properties" not in inner:
            continue
        stated = "additionalProperties" in inner
        if inner.get("unevaluatedProperties") is False or delegates:
            continue
        if (inner["additionalProperties"] in _OPEN) if stated else not named:
            inner["additionalProperties"] = anything.ref()
        elif not stated:
            inner["additionalProperties"] = False


def _type(root: Node, anything: Anything) -> None:
    for path, inner in subschemas(root):
        if not isinstance(inner, dict):
            continue
        if "array" in types_of(inner) and not {"items", "prefixItems"} & set(inner):
            inner["items"] = anything.ref()
        plainly = _CONDITIONS.isdisjoint(path)
        for holder, key in _holders(inner):
            holder[key] = _typed(holder[key], anything, plainly=plainly)


def _holders(schema: Node) -> Iterator[tuple[Any, Any]]:
    """Where the schemas of values inside a value stand."""
    for word in ("properties", "patternProperties"):
        held = schema.get(word)
        if isinstance(held, dict):
            yield from ((held, name) for name in held)
    for word in ("items", "additionalProperties"):
        if schema.get(word) is True or isinstance(schema.get(word), dict):
            yield schema, word
    if isinstance(schema.get("prefixItems"), list):
        yield from ((schema["prefixItems"], at) for at in range(len(schema["prefixItems"])))


def _typed(value: Any, anything: Anything, *, plainly: bool) -> Any:
    """A schema that says its type. One that is meant can be seen, where nothing hangs on it."""
    if says_type(value):
        return value
    if not isinstance(value, dict):
        return anything.ref()
    seen = types_in(value)
    options = value.get("anyOf") or value.get("oneOf")
    if seen and plainly:
        value["type"] = seen[0]
    elif isinstance(options, list):
        options[:] = [_typed(option, anything, plainly=False) for option in options]
    else:
        value |= anything.ref()
    return value


def _bound(root: Node) -> None:
    for _, inner in subschemas(root):
        if not isinstance(inner, dict):
            continue
        types = types_of(inner)
        if "string" in types and not {"maxLength", "enum", "const"} & set(inner):
            inner["maxLength"] = max(MAX_LENGTH, _count(inner, "minLength"))
        if "array" in types and "maxItems" not in inner and inner.get("items") is not False:
            inner["maxItems"] = max(MAX_ITEMS, _count(inner, "minItems"))


def _count(schema: Node, word: str) -> int:
    value = schema.get(word)
    return value if type(value) is int else 0


def _describe(root: Node) -> None:
    for name, value in properties_of(root).items():
        if isinstance(value, dict):
            told = without_refs(root, value).get("description")
            if not isinstance(told, str) or not told.strip():
                title = value.get("title")
                said = title if isinstance(title, str) and title.strip() else name
                value["description"] = f"{said} (its author gave no description)"


def _drop_bad_defaults(root: Node) -> None:
    """Take out defaults that break their own schema, or that are too many to find that out."""
    shared = {word: root[word] for word in _SHARED if word in root}
    said = [value for _, _, value in fields(root) if isinstance(value, dict) and "default" in value]
    # Each is checked by itself, with all definitions at hand; here and wherever contracts are read.
    too_much = len(said) * len(canonical(shared)) > _MOST_COMPILED
    for value in said:
        if too_much or not _fits(value, shared):
            del value["default"]


def _fits(value: Node, shared: Node) -> bool:
    try:
        return compile_schema({**value, **shared}).is_valid(value["default"])
    except ValueError:
        return False
