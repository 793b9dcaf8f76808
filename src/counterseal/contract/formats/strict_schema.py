"""Convert input schemas for providers whose strict mode supports a part of JSON Schema.

`convert` reads a closed schema into a tree of shapes (`strict_shapes`), which gives the strict
schema and maps calls in both directions: every call that the original accepts survives the round
trip. Nothing is dropped silently. A mere bound on values is left out with a warning, since the
schema gate enforces it; anything else leaves the conversion without a schema, and the warnings say
where and why.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any, Final
from urllib.parse import unquote

from counterseal.canonical import MAX_DEPTH, canonical, pointer, steps, thaw
from counterseal.contract.formats.strict_shapes import (
    ROOT,
    Absence,
    Array,
    Json,
    Object,
    PropertySlot,
    SchemaReference,
    StrictShape,
    Union,
    Value,
    Way,
    converted_definitions,
    settle,
)
from counterseal.contract.schemas import check_schema, resolve_local, types_of, word_set

# --- the supported subset -------------------------------------------------------------------------
#
# That of OpenAI's structured outputs. Exceeding a size makes the provider refuse the whole request,
# with all its other tools. References are not followed when nesting is counted.


_NUMBER_BOUNDS = word_set("minimum maximum exclusiveMinimum exclusiveMaximum multipleOf")
ARRAY_ONLY: Final = word_set("items minItems maxItems uniqueItems contains minContains maxContains")
OBJECT_ONLY: Final = word_set(
    "properties required additionalProperties minProperties maxProperties propertyNames"
)
_TAKEN: Final[Mapping[str, frozenset[str]]] = {
    "string": frozenset({"pattern", "format"}),
    "number": _NUMBER_BOUNDS,
    "integer": _NUMBER_BOUNDS,
    "array": frozenset({"minItems", "maxItems"}),
}
"""The bounds that strict mode supports, by JSON type."""

_FORMATS = word_set("date-time time date duration email hostname ipv4 ipv6 uuid")
_LOOKAROUND = re.compile(r"\(\?<?[=!]")
BOUNDS: Final = (
    ARRAY_ONLY
    | OBJECT_ONLY
    | _NUMBER_BOUNDS
    | word_set("minLength maxLength pattern format contentEncoding contentMediaType contentSchema")
)
"""Keywords that only restrict values: without them, more calls reach the schema gate."""

NOTES: Final = frozenset({"title", "description"})
SHAPING: Final = frozenset({"type", "enum", "const", "anyOf", "oneOf"})
INEXPRESSIBLE: Final[Mapping[str, str]] = {
    "allOf": "allOf combines schemas",
    **dict.fromkeys(("if", "then", "else"), "if/then/else makes one argument depend on another"),
    "not": "not excludes by schema",
    **{
        word: f"{word} makes one argument depend on another"
        for word in ("dependentRequired", "dependentSchemas", "dependencies")
    },
    "patternProperties": "patternProperties leaves the names of properties open",
    "prefixItems": "prefixItems gives each place of an array its own schema",
    "additionalItems": "additionalItems gives each place of an array its own schema",
    "unevaluatedProperties": "unevaluatedProperties depends on other keywords",
    "unevaluatedItems": "unevaluatedItems depends on other keywords",
    "$dynamicRef": "$dynamicRef has no fixed target",
    "$recursiveRef": "$recursiveRef has no fixed target",
}

LARGE_ENUM: Final = 250


def is_expressible(key: str, value: Any, types: tuple[str, ...]) -> bool:
    """Return whether strict mode supports this bound for one of these JSON types."""
    if not any(key in _TAKEN.get(name, ()) for name in types):
        return False
    if key == "format":
        return value in _FORMATS
    return key != "pattern" or not _LOOKAROUND.search(value)


def beyond_limits(schema: Json) -> Iterator[str]:
    """Yield a sentence for each limit that a strict schema exceeds."""
    definitions = schema.get("$defs", {})
    properties = enum_values = nesting = largest_enum = 0
    text = sum(map(len, definitions))
    waiting = [(inner, 0) for inner in (schema, *definitions.values())]
    while waiting:
        current, level = waiting.pop()
        named, values = current.get("properties", {}), current.get("enum", [])
        length = sum(len(str(value)) for value in values)
        if len(values) > LARGE_ENUM:
            largest_enum = max(largest_enum, length)
        level += "properties" in current
        nesting = max(nesting, level)
        properties += len(named)
        enum_values += len(values)
        text += sum(map(len, named)) + length + len(str(current.get("const", "")))
        items = [current["items"]] if "items" in current else []
        inside = (*named.values(), *current.get("anyOf", ()), *items)
        waiting += [(inner, level) for inner in inside]
    measured = (
        ("properties", properties, 5_000),
        ("levels of nested objects", nesting, 10),
        ("enum values", enum_values, 1_000),
        ("characters in names and fixed values", text, 120_000),
        ("characters in one large enum", largest_enum, 15_000),
    )
    for what, size, limit in measured:
        if size > limit:
            yield f"#: {size} {what}, of which strict mode takes {limit}"


Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """A schema for strict mode, or None if there is none, and the mapping of calls."""

    schema: Json | None
    warnings: tuple[str, ...] = ()
    shape: StrictShape | None = field(default=None, repr=False, compare=False)

    # Values deeper than MAX_DEPTH are refused elsewhere, so they are passed on unchanged.

    def to_strict(self, arguments: Mapping[str, Any]) -> Json:
        """Convert a call to the form of the strict schema."""
        shape = self.shape
        return dict(shape.walk(arguments, Way.TO_STRICT, MAX_DEPTH) if shape else arguments)

    def restore(self, arguments: Mapping[str, Any]) -> Json:
        """Convert a call from the form of the strict schema to that of the contract."""
        shape = self.shape
        return dict(shape.walk(arguments, Way.RESTORE, MAX_DEPTH) if shape else arguments)


def convert(schema: Mapping[str, Any]) -> Conversion:
    """Return the strict form of an input schema."""
    try:
        check_schema(schema)
    except ValueError as error:
        return Conversion(schema=None, warnings=(f"#: not a valid schema: {error}",))
    reader = _StrictReader(root=thaw(schema))
    shape = reader.read_all()
    named = {name: inner for name, inner in reader.definitions.items() if name != ROOT}
    strict: Json = {} if reader.problems else shape.schema()
    if strict and named:
        strict["$defs"] = {name: inner.schema() for name, inner in named.items()}
    problems = (*reader.problems, *beyond_limits(strict))
    if problems:
        return Conversion(schema=None, warnings=tuple(dict.fromkeys(problems)))
    return Conversion(schema=strict, warnings=tuple(dict.fromkeys(reader.warnings)), shape=shape)


@dataclass(slots=True, kw_only=True)
class _StrictReader:
    """Reads one schema, and continues after a problem in order to report all of them."""

    root: Json
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    definitions: dict[str, StrictShape] = field(default_factory=dict)
    names: dict[Path, str] = field(default_factory=lambda: {(): ROOT})
    """The targets of references by their path in the original, with their new names."""
    taken: set[str] = field(default_factory=set)
    waiting: deque[Path] = field(default_factory=deque)
    """Targets of references that have not been read yet."""
    unions: list[tuple[Path, Union]] = field(default_factory=list)

    def read_all(self) -> StrictShape:
        if self.root.get("type") != "object" or not SHAPING.isdisjoint(self.root.keys() - {"type"}):
            return self.refuse((), "the root is not a plain object")
        shape = self.definitions[ROOT] = self.read(self.root, ())
        while self.waiting:
            path = self.waiting.popleft()
            self.definitions[self.names[path]] = self.read(self.at(path), path)
        self.check_references()
        converted = frozenset() if self.problems else converted_definitions(self.definitions)
        for path, union in () if self.problems else self.unions:
            if not settle(union, converted):
                self.refuse(
                    path,
                    "the variants differ neither in JSON type nor in a required property "
                    "with values of its own",
                )
        return shape

    def refuse(self, path: Path, reason: str) -> StrictShape:
        self.problems.append(f"#{pointer(*path)}: {reason}, which strict mode cannot express")
        return Value(keywords={})

    def warn(self, path: Path, text: str) -> None:
        self.warnings.append(f"#{pointer(*path)}: {text}")

    # --- one schema -------------------------------------------------------------------------------

    def read(self, schema: Any, path: Path) -> StrictShape:
        if not isinstance(schema, dict):
            return self.refuse(path, "a schema that is true or false takes anything or nothing")
        reasons = dict.fromkeys(INEXPRESSIBLE[key] for key in schema if key in INEXPRESSIBLE)
        if "$id" in schema and path:
            reasons["an $id of its own changes what references mean"] = None
        if reasons:
            return self.refuse(path, "; ".join(reasons))
        if "$ref" in schema:
            return self.reference(schema, path)
        if "anyOf" in schema or "oneOf" in schema:
            return self.union(schema, path)
        types = _types(schema)
        if not types:
            return self.refuse(path, "no type is given")
        if len(types) > 1 and not {"object", "array"}.isdisjoint(types):
            return self.mixture(schema, types, path)
        if types == ("object",):
            return self.object(schema, path)
        if types == ("array",):
            return self.array(schema, path)
        return self.value(schema, types, path)

    def reference(self, schema: Json, path: Path) -> StrictShape:
        target = _target(schema["$ref"])
        known = target in self.names
        if target is None or not (known or _is_schema(self.at(target))):
            return self.refuse(path, f"$ref {schema['$ref']!r} leads to no schema in here")
        if not (SHAPING | OBJECT_ONLY | {"items"}).isdisjoint(schema):
            return self.refuse(path, "a reference beside other constraints combines schemas")
        return SchemaReference(
            name=self.name_for(target),
            definitions=self.definitions,
            keywords=self.keywords(schema, path),
        )

    def name_for(self, target: Path) -> str:
        if target not in self.names:
            parts = target[1:] if target[0] in {"$defs", "definitions"} else target
            plain = re.sub(r"[^A-Za-z0-9_-]", "_", "_".join(map(str, parts))) or "definition"
            numbered = (f"{plain}_{number}" for number in count(2))
            name = next(name for name in chain([plain], numbered) if name not in self.taken)
            self.names[target] = name
            self.taken.add(name)
            self.waiting.append(target)
        return self.names[target]

    def at(self, path: Path) -> Any:
        return resolve_local(self.root, f"#{pointer(*path)}")

    def union(self, schema: Json, path: Path) -> StrictShape:
        keyword = "anyOf" if "anyOf" in schema else "oneOf"
        if not ((SHAPING | OBJECT_ONLY | {"items"}) - {keyword}).isdisjoint(schema):
            return self.refuse(path, f"{keyword} beside other constraints combines schemas")
        variants = schema[keyword]
        if keyword == "oneOf":
            self.warn(path, "oneOf is sent as anyOf; the schema gate still enforces it")
        return self.united(
            [self.read(variant, (*path, keyword, i)) for i, variant in enumerate(variants)],
            self.keywords(schema, path),
            path,
        )

    def mixture(self, schema: Json, types: tuple[str, ...], path: Path) -> StrictShape:
        """Read a list of types with object or array in it as a union of one schema each."""
        if not {"enum", "const"}.isdisjoint(schema):
            return self.refuse(path, "fixed objects or arrays are listed")
        own = {"object": OBJECT_ONLY, "array": ARRAY_ONLY}
        variants = [
            self.read({"type": name, **_only(schema, own[name])}, path)
            for name in types
            if name in own
        ]
        rest = _only(schema, schema.keys() - OBJECT_ONLY - ARRAY_ONLY)
        scalars = [name for name in types if name not in own]
        if not scalars:
            return self.united(variants, self.keywords(rest, path), path)
        variants.append(self.read({**_only(rest, rest.keys() - NOTES), "type": scalars}, path))
        return self.united(variants, _only(rest, NOTES), path)

    def united(self, variants: list[StrictShape], keywords: Json, path: Path) -> StrictShape:
        union = Union(variants=tuple(variants), keywords=keywords)
        self.unions.append((path, union))
        return union

    def array(self, schema: Json, path: Path) -> StrictShape:
        if not {"enum", "const"}.isdisjoint(schema):
            return self.refuse(path, "fixed arrays are listed")
        if "items" not in schema:
            return self.refuse(path, "an array without items holds anything")
        return Array(
            items=self.read(schema["items"], (*path, "items")),
            keywords=self.keywords(schema, path, ("array",), read=("items",)),
        )

    def value(self, schema: Json, types: tuple[str, ...], path: Path) -> StrictShape:
        keywords: Json = {"type": types[0] if len(types) == 1 else list(types)}
        values = None
        if not {"enum", "const"}.isdisjoint(schema):
            listed = _listed(schema, [])
            values = tuple(value for value in listed if any(_is(value, name) for name in types))
            if not values:
                return self.refuse(path, "no value is possible")
            keywords |= {"const": values[0]} if "const" in schema else {"enum": list(values)}
        return Value(keywords=keywords | self.keywords(schema, path, types), values=values)

    def keywords(
        self, schema: Json, path: Path, types: tuple[str, ...] = (), read: tuple[str, ...] = ()
    ) -> Json:
        """Return the other supported keywords, and warn about each unsupported one."""
        kept = {}
        elsewhere = SHAPING | {"$ref", "$defs", "definitions", *read}
        for key, value in _only(schema, schema.keys() - elsewhere).items():
            if key in NOTES or is_expressible(key, value, types):
                kept[key] = value
            elif key in BOUNDS:
                text = f"{key} {value!r}" if key == "format" else key
                self.warn(path, f"strict mode has no {text}; the schema gate still enforces it")
            else:
                self.warn(path, f"strict mode has no {key}; left out, as no call depends on it")
        return kept

    # --- objects ----------------------------------------------------------------------------------

    def object(self, schema: Json, path: Path) -> StrictShape:
        if not {"enum", "const"}.isdisjoint(schema):
            return self.refuse(path, "fixed objects are listed")
        if schema.get("additionalProperties") is not False:
            typed = isinstance(schema.get("additionalProperties"), dict)
            return self.refuse(path, "the names of properties are " + ("data" if typed else "open"))
        properties: Json = schema.get("properties", {})
        required = schema.get("required", [])
        if not set(required) <= set(properties):
            return self.refuse(path, "a property is required that is not declared")
        slots = {
            name: self.slot(inner, (*path, "properties", name), required=name in required)
            for name, inner in properties.items()
        }
        read = ("properties", "required", "additionalProperties")
        return Object(slots=slots, keywords=self.keywords(schema, path, ("object",), read=read))

    def slot(self, schema: Any, path: Path, *, required: bool) -> PropertySlot:
        if required or not isinstance(schema, dict):
            return PropertySlot(shape=self.read(schema, path), absence=Absence.NEVER)
        shape = self.read(_only(schema, schema.keys() - {"default"}), path)
        default = schema.get("default")
        takes_null = self.takes_null(schema)
        note = ""
        if default is not None:
            note = f"Null stands for the default, {canonical(default).decode()}."
            self.warn(path, "strict mode has no default; the description tells it instead")
        if not takes_null or ("default" in schema and default is None):
            return PropertySlot(shape=shape, absence=Absence.NULL, takes_null=takes_null, note=note)
        note = f'{note or "Null leaves it out."} A value, or a null that is meant, goes in "value".'
        return PropertySlot(shape=shape, absence=Absence.WRAPPED, takes_null=True, note=note)

    def takes_null(self, schema: Json) -> bool:
        seen: set[str] = set()
        waiting: list[Any] = [schema]
        while waiting:
            current = waiting.pop()
            if not isinstance(current, dict):
                continue  # refused elsewhere
            if "null" in _types(current) and None in _listed(current, [None]):
                return True
            waiting += [*current.get("anyOf", ()), *current.get("oneOf", ())]
            reference = current.get("$ref")
            if reference is not None and reference not in seen:
                seen.add(reference)
                waiting.append(self.at(_target(reference) or ()))
        return False

    # --- final checks -----------------------------------------------------------------------------

    def check_references(self) -> None:
        """Refuse definitions that refer only to themselves."""
        sound: set[str] = set()
        for path, name in self.names.items():
            trail = {name}
            shape = self.definitions[name]
            while isinstance(shape, SchemaReference) and shape.name not in sound:
                if shape.name in trail:
                    self.refuse(path, "the definition refers only to itself")
                    break
                trail.add(shape.name)
                shape = shape.target
            sound |= trail


def _types(schema: Json) -> tuple[str, ...]:
    """Return the JSON types of a schema, or those of the values that it lists."""
    known = ("null", "boolean", "integer", "number", "string", "array", "object")
    values = (next(name for name in known if _is(value, name)) for value in _listed(schema, []))
    return tuple(dict.fromkeys(types_of(schema) or values))


def _listed(schema: Json, otherwise: list[Any]) -> list[Any]:
    """Return the values that a schema lists."""
    listed: list[Any] = [schema["const"]] if "const" in schema else schema.get("enum", otherwise)
    return listed


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool) or value is None:
        return name == ("null" if value is None else "boolean")
    if name == "integer":
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    kinds = {"number": (int, float), "string": (str,), "array": (list,), "object": (dict,)}
    return isinstance(value, kinds.get(name, ()))


def _only(schema: Json, keys: AbstractSet[str]) -> Json:
    return {key: value for key, value in schema.items() if key in keys}


def _target(reference: Any) -> Path | None:
    """Return the path of a local reference, or None for any other."""
    if not isinstance(reference, str) or not re.match(r"#(/|$)", reference):
        return None
    return tuple(steps(unquote(reference[1:])))


def _is_schema(value: Any) -> bool:
    """Return whether a value is a schema: a reference may point into a default."""
    try:
        check_schema(value)
    except (TypeError, ValueError):
        return False
    return isinstance(value, dict)
