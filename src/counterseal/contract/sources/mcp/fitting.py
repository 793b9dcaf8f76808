"""Converts an upstream's schema to the form that contracts need.

The result is JSON Schema 2020-12: closed, typed, bounded, and with a description for each argument.

Declared arguments keep their meaning. Closing an object removes undeclared properties, and missing
bounds get generous defaults. Keywords of older drafts are rewritten. Patterns that can't be run
safely are removed, and only the upstream checks them. A schema that can't be converted is left for
lint to reject.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, Final

from counterseal.canonical import canonical, thaw
from counterseal.contract.lint.schema_rules import MAX_BYTES, says_type
from counterseal.contract.schemas import (
    DIALECT,
    listed,
    properties_of,
    resolve_local,
    subschemas,
    types_of,
    without_refs,
)
from counterseal.contract.sources.foreign_text import plain
from counterseal.contract.sources.openapi.schemas import drop_bad_defaults, is_usable, types_in

# --- joining objects of several schemas -----------------------------------------------------------


Node = dict[str, Any]

_MANY: Final = ("allOf", "anyOf", "oneOf")
_ONE: Final = ("if", "then", "else", "not")
_MOST_COPIES: Final = 50
_MOST_NAMES: Final = 20_000
"""Maximum number of names that all parts of an object list together."""


class Anything:
    """A definition for any JSON value, added to a schema's `$defs` if it is used."""

    def __init__(self, root: Node, *, max_length: int, max_items: int) -> None:
        self._root = root
        self._limits = (max_length, max_items)
        self._used = False
        taken = root.get("$defs")
        names = taken if isinstance(taken, dict) else {}
        self._name = "Anything"
        while self._name in names:
            self._name += "_"

    def ref(self) -> Node:
        self._used = True
        return {"$ref": f"#/$defs/{self._name}"}

    def define(self) -> None:
        """Add the definition to the schema if it is used. Call it after the last `ref`."""
        if not self._used:
            return
        max_length, max_items = self._limits
        self._root.setdefault("$defs", {})[self._name] = {
            "anyOf": [
                {"type": "string", "maxLength": max_length},
                {"type": ["number", "boolean", "null"]},
                {"type": "array", "items": self.ref(), "maxItems": max_items},
                {"type": "object", "additionalProperties": self.ref()},
            ]
        }


def join(root: Node, anything: Anything) -> None:
    """Make all parts of each object list the same property names. Changes its argument.

    Raise ValueError if that is not possible.
    """
    copies = _Copies(root)
    for path, inner in subschemas(root):
        if not isinstance(inner, dict):
            continue
        if "$ref" in inner and "properties" in inner:
            inner.setdefault("allOf", []).append({"$ref": inner.pop("$ref")})
        if not path or _joins(inner):
            parts = list(_parts(inner, copies, ()))
            with_names = [part for part in parts if "properties" in part]
            if any("$ref" in part for part in parts) and (with_names or inner.get("properties")):
                raise ValueError("its arguments are put together in a way that can't be followed")
            _share(inner, with_names, anything)


def _joins(schema: Node) -> bool:
    """Return whether the schema's parts describe one object, and not just alternatives."""
    return bool(schema.get("properties")) or any(
        word in schema for word in ("allOf", "dependentSchemas", *_ONE)
    )


class _Copies:
    """Replaces references with copies of their targets."""

    def __init__(self, root: Node) -> None:
        self._root = root
        self._left = _MOST_COPIES

    def of(self, part: Node, followed: tuple[str, ...]) -> tuple[Node, tuple[str, ...]]:
        """Return a part with its reference inlined; unchanged if that is broken or circular."""
        reference = part.get("$ref")
        if not isinstance(reference, str) or reference in followed or not self._left:
            return part, followed
        target = resolve_local(self._root, reference)
        if not isinstance(target, dict):
            return part, followed
        self._left -= 1
        own = {key: value for key, value in part.items() if key != "$ref"}
        if own.keys() & target.keys() - {"title", "description", "default"}:
            return part, followed  # both apply, so neither may replace the other
        return {**deepcopy(target), **own}, (*followed, reference)


def _parts(schema: Node, copies: _Copies, followed: tuple[str, ...]) -> Iterator[Node]:
    """Yield the schemas that apply to the same value as this one."""
    for holder, key in _places(schema):
        if isinstance(holder[key], dict):
            holder[key], now_followed = copies.of(holder[key], followed)
            yield holder[key]
            yield from _parts(holder[key], copies, now_followed)


def _places(schema: Node) -> Iterator[tuple[Any, Any]]:
    for word in _MANY:
        if isinstance(schema.get(word), list):
            yield from ((schema[word], at) for at in range(len(schema[word])))
    yield from ((schema, word) for word in _ONE if word in schema)
    named = schema.get("dependentSchemas")
    if isinstance(named, dict):
        yield from ((named, name) for name in named)


def _share(schema: Node, parts: list[Node], anything: Anything) -> None:
    if not parts:
        return
    if len(parts) * sum(map(len, map(_names, (schema, *parts)))) > _MOST_NAMES:
        raise ValueError("its arguments are put together from too many parts")
    open_on_purpose = schema.get("additionalProperties") in _OPEN
    if "additionalProperties" in schema and not open_on_purpose:
        names = list(schema.get("properties") or ())
    else:
        names = list(dict.fromkeys(name for each in (schema, *parts) for name in _names(each)))
        own = schema.setdefault("properties", {})
        _list(own, names, anything)
        schema.setdefault("type", "object")
    for part in parts:
        if part.get("additionalProperties", True) in _OPEN:
            _list(part["properties"], names, anything)
            part.pop("additionalProperties", None)
            if open_on_purpose:
                part["additionalProperties"] = True


def _names(schema: Node) -> list[str]:
    held = schema.get("properties")
    return list(held) if isinstance(held, dict) else []


def _list(properties: Any, names: list[str], anything: Anything) -> None:
    for name in names if isinstance(properties, dict) else ():
        properties.setdefault(name, anything.ref())


MAX_LENGTH: Final = 100_000
MAX_ITEMS: Final = 10_000
"""The default bounds of strings and arrays."""
_LONGEST_TEXT: Final = 4_000
_TYPES: Final = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_SHARED: Final[tuple[str, ...]] = ("$defs", "definitions")
_LIMITS: Final = (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum"))
_CONDITIONS: Final = frozenset(
    {"allOf", "anyOf", "oneOf", "if", "then", "else", "not", "dependentSchemas"}
)
_OPEN: Final[tuple[Any, ...]] = (True, {})


def fit_input(schema: Mapping[str, Any]) -> Node:
    """Return an input schema for a contract. Raise ValueError if there is none."""
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
    drop_bad_defaults(own)
    # Clients may depend on the `$schema` of a schema that already was of this dialect.
    return {"$schema": DIALECT, **own} if schema.get("$schema") == DIALECT else own


def fit_output(schema: Mapping[str, Any]) -> Node:
    """Return an output schema for a contract. It stays open, because upstreams add fields.

    Formats are removed: in 2020-12 they are annotations, and upstreams do not keep to them.
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
    """Return whether a schema without a type describes an object."""
    full = without_refs(root, schema)
    if types_of(full) == ("object",) or "properties" in full:
        return True
    options = listed(full, "anyOf") or listed(full, "oneOf")
    return bool(options) and all(
        types_of(without_refs(root, option)) == ("object",) for option in options
    )


# --- older drafts ---------------------------------------------------------------------------------


def _modernise(root: Node) -> None:
    """Rewrite keywords of older drafts, and clean the texts."""
    for _, inner in subschemas(root):
        if not isinstance(inner, dict):
            continue
        for word in ("$schema", "$id", "id", "$comment"):
            if isinstance(inner.get(word), str):
                del inner[word]
        for word in ("title", "description"):
            if isinstance(inner.get(word), str):
                inner[word] = plain(inner[word], _LONGEST_TEXT)
        _fix_types(inner)
        _fix_lists(inner)
        _fix_limits(inner)
        if isinstance(inner.get("pattern"), str) and not is_usable(inner["pattern"]):
            del inner["pattern"]


def _fix_types(schema: Node) -> None:
    known = [word for word in types_of(schema) if word in _TYPES]
    if "type" in schema and len(known) < len(types_of(schema)):
        schema.pop("type")
        if known:
            schema["type"] = known
    if schema.get("nullable") is True and known and "null" not in known:
        schema["type"] = [*known, "null"]
    if isinstance(schema.get("required"), bool):
        del schema["required"]


def _fix_lists(schema: Node) -> None:
    if isinstance(schema.get("items"), list):
        schema["prefixItems"] = schema.pop("items")
        if "additionalItems" in schema:
            schema["items"] = schema["additionalItems"]
    schema.pop("additionalItems", None)
    needed = schema.pop("dependencies", None)
    for name, value in needed.items() if isinstance(needed, dict) else ():
        word = "dependentRequired" if isinstance(value, list) else "dependentSchemas"
        schema.setdefault(word, {})[name] = value


def _fix_limits(schema: Node) -> None:
    """Rewrite the exclusive limits of draft 4, which are booleans beside the inclusive ones."""
    for word, beside in _LIMITS:
        excludes = isinstance(schema.get(word), bool) and schema.pop(word)
        if excludes and beside in schema:
            schema[word] = schema.pop(beside)


# --- closed, typed, bounded -----------------------------------------------------------------------


def _close(root: Node, anything: Anything) -> None:
    """Close the arguments, and each object in them that is not explicitly open."""
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
    """Yield the places of the schemas of a value's properties and items."""
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
    """Return the schema with a type. A type is inferred only outside of conditions (`plainly`)."""
    if says_type(value):
        return value
    if not isinstance(value, dict):
        return anything.ref()
    inferred = types_in(value)
    options = value.get("anyOf") or value.get("oneOf")
    if inferred and plainly:
        value["type"] = inferred[0]
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
            description = without_refs(root, value).get("description")
            if not isinstance(description, str) or not description.strip():
                title = value.get("title")
                label = title if isinstance(title, str) and title.strip() else name
                value["description"] = f"{label} (its author gave no description)"
