"""Converts an upstream's schema to the form that contracts need.

The result is JSON Schema 2020-12: closed, typed, bounded, and with a description for each argument.
It accepts nothing that the upstream's schema refuses, and refuses only

- properties that no schema of their object names, because objects are closed. Objects that say
  what else they take (`unevaluatedProperties`, or a schema for the rest) stay as they are. Other
  arguments are closed, unless they are open and none is named; objects inside them, unless the
  upstream says that they are open (`additionalProperties`) or names no properties. Inside
  `oneOf`, `not`, `if` and `contains` objects stay as they are: closing them there would change
  which alternative applies.
- texts and lists that are longer than all arguments of a call may be together.

Patterns that can't be run safely are removed, and only the upstream checks them. A schema that
can't be converted is left for lint to reject.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from counterseal.canonical import canonical, thaw
from counterseal.contract.lint.schema_rules import MAX_BYTES, is_type, says_type
from counterseal.contract.schemas import (
    DIALECT,
    applied,
    direct_parts,
    inner_values,
    listed,
    parts,
    properties_of,
    subschemas,
    target,
    types_of,
    without_refs,
)
from counterseal.contract.sources.foreign_text import plain
from counterseal.contract.sources.openapi.schemas import drop_bad_defaults, is_usable

Node = dict[str, Any]

MAX_LENGTH: Final = 256 * 1024
"""The default bound of strings and arrays: longer arguments are refused before (`gates/parse`)."""
_LONGEST_TEXT: Final = 4_000
_TYPES: Final = ("string", "number", "integer", "boolean", "object", "array", "null")
_ANY_TYPE: Final = [name for name in _TYPES if name != "integer"]
_SHARED: Final[tuple[str, ...]] = ("$defs", "definitions")
_LIMITS: Final = (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum"))
_SINCE_2019: Final = frozenset(
    {"dependentRequired", "dependentSchemas", "maxContains", "minContains", "prefixItems"}
    | {"unevaluatedItems", "unevaluatedProperties"}
)
_OPEN: Final[tuple[Any, ...]] = (True, {})


def fit_input(schema: Mapping[str, Any]) -> Node:
    """Return an input schema for a contract. Raise ValueError if there is none."""
    own: Node = thaw(schema)
    _modernise(own)
    name = "Anything"
    named = {str(inner.get("$ref")) for _, inner in subschemas(own)}
    while name in _mapping(own, "$defs") or f"#/$defs/{name}" in named:
        name += "_"
    anything = f"#/$defs/{name}"
    shared = applied(own)
    _type(own, anything, shared)
    for place in _places(own, shared):
        _close(own, place, anything)
        if not place.kept:
            _bound(place.node)
    if any(inner.get("$ref") == anything for _, inner in subschemas(own)):
        own.setdefault("$defs", {})[name] = _any_value({"$ref": anything})
    _describe(own)
    size = len(canonical(own))
    if size > MAX_BYTES:
        raise ValueError(f"its input takes {size:,} bytes to describe; at most {MAX_BYTES:,} do")
    drop_bad_defaults(own)
    # Clients may depend on the `$schema` of a schema that already was of this dialect.
    return {"$schema": DIALECT, **own} if schema.get("$schema") == DIALECT else own


def _any_value(itself: Node) -> Node:
    """Return a schema for any JSON value."""
    return {
        "anyOf": [
            {"type": "string", "maxLength": MAX_LENGTH},
            {"type": ["number", "boolean", "null"]},
            {"type": "array", "items": itself, "maxItems": MAX_LENGTH},
            {"type": "object", "additionalProperties": dict(itself)},
        ]
    }


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
    if "type" not in own:  # it may describe an object all the same
        full = without_refs(own, own)
        options = [without_refs(own, one) for one in listed(full, "anyOf") or listed(full, "oneOf")]
        all_objects = options and all(types_of(option) == ("object",) for option in options)
        if types_of(full) == ("object",) or "properties" in full or all_objects:
            return {"type": "object", **own}
    shared = {word: own.pop(word) for word in _SHARED if word in own}
    result = {"type": "object", "properties": {"result": own}, "required": ["result"]}
    return {**result, "additionalProperties": False, **shared}


def _modernise(root: Node) -> None:
    """Rewrite keywords of older drafts, and clean the texts."""
    is_old = "draft-0" in str(root.get("$schema"))
    known = {"$ref", "title", "description", "default", *_SHARED}
    for _, inner in subschemas(root):
        if isinstance(inner, dict):
            if is_old:  # keywords that mean nothing there, like all others beside a reference
                unknown = set(inner) - known if "$ref" in inner else _SINCE_2019 & set(inner)
                for word in unknown:
                    del inner[word]
            _fix_texts(inner, formats=not is_old)
            _fix_types(inner)
            _fix_keywords(inner)


def _fix_texts(schema: Node, *, formats: bool) -> None:
    for word in ("$schema", "$id", "id", "$comment"):
        if isinstance(schema.get(word), str):
            del schema[word]
    for word in ("title", "description"):
        if isinstance(schema.get(word), str):
            schema[word] = plain(schema[word], _LONGEST_TEXT)
    if formats and isinstance(schema.get("format"), str):
        # Since 2019-09 it is a remark for readers, and here it would be a condition.
        texts = (schema.get("description"), f"Format: {plain(schema.pop('format'), 40)}.")
        schema["description"] = " ".join(filter(None, texts))
    if isinstance(schema.get("pattern"), str) and not is_usable(schema["pattern"]):
        del schema["pattern"]


def _fix_types(schema: Node) -> None:
    known = [word for word in types_of(schema) if word in _TYPES]
    if "type" in schema and len(known) < len(types_of(schema)):
        schema.pop("type")
        if known:
            schema["type"] = known
    if isinstance(schema.get("required"), bool):
        del schema["required"]
    if schema.get("additionalProperties") == {}:
        schema["additionalProperties"] = True


def _fix_keywords(schema: Node) -> None:
    if isinstance(schema.get("items"), list):
        schema["prefixItems"] = schema.pop("items")
        if "additionalItems" in schema:
            schema["items"] = schema["additionalItems"]
    schema.pop("additionalItems", None)
    needed = schema.pop("dependencies", None)
    for name, value in needed.items() if isinstance(needed, dict) else ():
        word = "dependentRequired" if isinstance(value, list) else "dependentSchemas"
        schema.setdefault(word, {})[name] = value
    # The exclusive limits of draft 4 are booleans beside the inclusive ones.
    for word, beside in _LIMITS:
        excludes = isinstance(schema.get(word), bool) and schema.pop(word)
        if excludes and beside in schema:
            schema[word] = schema.pop(beside)


# --- closed ---------------------------------------------------------------------------------------

_MOST_PLACES: Final = 20_000
_NOT_NARROWED: Final = frozenset({"not", "if", "oneOf"})
"""A schema inside these that accepts less can make the schema around it accept more."""
_REST: Final = ("additionalProperties", "unevaluatedProperties")

_Part = tuple[Node, bool]
"""A schema, and whether it has to be kept as it is, because it decides on an alternative."""


@dataclass(eq=False, slots=True)
class _Place:
    """A schema that describes values, with everything that is said of those values beside it."""

    node: Node
    kept: bool = False
    names: dict[str, None] = field(default_factory=dict)
    patterns: dict[str, None] = field(default_factory=dict)
    stays_open: bool = False


def _places(root: Node, shared: set[int]) -> list[_Place]:
    """Return the places of a schema whose objects can be closed.

    Several schemas may describe one value: `x` in two branches of an `anyOf`. Each of them must let
    the properties pass that the others name. Schemas that references apply in several ways
    (`shared`) are no places: what refers to them is.
    """
    places: dict[int, _Place] = {}
    visited: set[frozenset[tuple[int, bool]]] = set()
    waiting: list[list[_Part]] = [[(root, False)]]
    for _, inner in subschemas(root):
        named = [schema for word in _SHARED for schema in _mapping(inner, word).values()]
        waiting += ([(schema, False)] for schema in named if isinstance(schema, dict))
    while waiting:
        group = [(_followed(root, node, shared), kept) for node, kept in waiting.pop()]
        key = frozenset((id(node), kept) for node, kept in group)
        if not group or key in visited:
            continue
        visited.add(key)
        if len(visited) > _MOST_PLACES:
            raise ValueError("its arguments are put together from too many parts")
        every = list(_all_parts(root, group))
        for node, kept in group:
            if id(node) not in shared:
                place = places.setdefault(id(node), _Place(node))
                place.kept |= kept
                for part, _ in every:
                    place.names |= dict.fromkeys(_names(part))
                    place.patterns |= dict.fromkeys(_mapping(part, "patternProperties"))
                    place.stays_open |= any(part.get(word, False) is not False for word in _REST)
        waiting += _inner_groups(every)
    return list(places.values())


def _followed(root: Node, node: Node, shared: set[int]) -> Node:
    """Return the schema that a mere reference leads to."""
    for _ in range(16):
        aim = target(root, node)
        if not isinstance(aim, dict) or id(aim) in shared:
            break
        node = aim
    return node


def _all_parts(root: Node, group: Sequence[_Part]) -> Iterator[_Part]:
    waiting, visited = list(group), set[tuple[int, bool]]()
    while waiting:
        node, kept = waiting.pop()
        if (id(node), kept) not in visited:
            visited.add((id(node), kept))
            yield node, kept
            waiting += [
                (part, kept or word in _NOT_NARROWED)
                for word, part in direct_parts(root, node)
                if isinstance(part, dict)
            ]


def _names(part: Node) -> Iterator[str]:
    """Yield every property that a schema speaks of."""
    yield from properties_of(part)
    needed = _mapping(part, "dependentRequired")
    names = [*listed(part, "required"), *needed, *_mapping(part, "dependentSchemas")]
    names += [name for held in needed.values() if isinstance(held, list) for name in held]
    for value in (part.get("const"), *listed(part, "enum")):
        names += value if isinstance(value, dict) else ()
    yield from (name for name in names if isinstance(name, str))


def _mapping(part: Mapping[str, Any], word: str) -> Mapping[str, Any]:
    value = part.get(word)
    return value if isinstance(value, dict) else {}


def _inner_groups(every: Sequence[_Part]) -> Iterator[list[_Part]]:
    """Yield the schemas inside an object or a list, grouped by the values that they may meet at."""
    patterns = ((_mapping(part, "patternProperties"), kept) for part, kept in every)
    some = _schemas([(schema, kept) for held, kept in patterns for schema in held.values()])
    rest = _schemas([(part.get(word), kept) for part, kept in every for word in _REST])
    if len(every) == 1:
        yield from ([schema] for schema in rest)
    else:
        some += rest
    for name in dict.fromkeys(name for part, _ in every for name in properties_of(part)):
        named = [(properties_of(part).get(name), kept) for part, kept in every]
        yield [*_schemas(named), *some]
    yield some
    items = [(item, kept) for part, kept in every for item in listed(part, "prefixItems")]
    items += [(part.get("items"), kept) for part, kept in every]
    counted = [(part.get("contains"), True) for part, _ in every]
    counted += [(part.get("unevaluatedItems"), kept) for part, kept in every]
    if len(every) == 1 and not _schemas(counted):
        yield from ([schema] for schema in _schemas(items))
    else:
        yield _schemas([*items, *counted])


def _schemas(values: Sequence[tuple[Any, bool]]) -> list[_Part]:
    return [(value, kept) for value, kept in values if isinstance(value, dict)]


def _close(root: Node, place: _Place, anything: str) -> None:
    """Close the objects of a place, or let them take anything where they are to stay open."""
    node = place.node
    words = {"items", "prefixItems", "unevaluatedItems"}
    says_items = any(not words.isdisjoint(part) for part in parts(root, node))
    if is_type("array", root, node) and not says_items:
        node["items"] = {"$ref": anything}
    stated = any(node.get(word, True) not in _OPEN for word in _REST)
    if stated or not is_type("object", root, node):
        return
    if node is root:
        stays_open = place.stays_open and not place.names and not place.patterns
    else:
        named = any(
            properties_of(part) or part.get("patternProperties") for part in parts(root, node)
        )
        stays_open = place.kept or place.stays_open or not named
    if stays_open:
        node["additionalProperties"] = {"$ref": anything}
        return
    for word, names in (("properties", place.names), ("patternProperties", place.patterns)):
        missing = [name for name in names if name not in _mapping(node, word)]
        if missing:
            node[word] = {**_mapping(node, word), **{name: {"$ref": anything} for name in missing}}
    node["additionalProperties"] = False


# --- typed, bounded, described --------------------------------------------------------------------


def _type(root: Node, anything: str, shared: set[int]) -> None:
    """Give every value inside the arguments a type, without refusing any."""
    for _, inner in subschemas(root):
        for step, value in list(inner_values(inner)):
            if says_type(value):
                continue
            if isinstance(value, dict):
                bare = not value.keys() - {"title", "description", "default"}
                alone = bare and id(value) not in shared
                value.update({"$ref": anything} if alone else {"type": [*_ANY_TYPE]})
            elif value is True:
                holder: Any = inner if len(step) == 1 else inner[str(step[0])]
                holder[step[-1]] = {"$ref": anything}


def _bound(node: Node) -> None:
    for kind, most, least in (
        ("string", "maxLength", "minLength"),
        ("array", "maxItems", "minItems"),
    ):
        says = {"maxLength", "enum", "const"} if kind == "string" else {"maxItems"}
        if kind in types_of(node) and not says & set(node) and node.get("items") is not False:
            smallest = node.get(least)
            node[most] = max(MAX_LENGTH, smallest if type(smallest) is int else 0)


def _describe(root: Node) -> None:
    for name, value in properties_of(root).items():
        others = [properties_of(part).get(name) for part in parts(root, root)]
        texts = [without_refs(root, each).get("description") for each in (value, *others)]
        if isinstance(value, dict) and not any(isinstance(t, str) and t.strip() for t in texts[:1]):
            title = value.get("title")
            label = title if isinstance(title, str) and title.strip() else name
            described = next((t for t in texts if isinstance(t, str) and t.strip()), "")
            value["description"] = described or f"{label} (its author gave no description)"
