"""Convert input schemas for providers whose strict mode supports a part of JSON Schema.

Strict mode requires every property. An optional one is therefore written as nullable, and null
stands for its absence; a `Conversion` maps calls in both directions. A mere bound on values is left
out with a warning, since the schema gate enforces it. Anything else that strict mode can't express
is refused: the conversion has no schema, and the warnings say where and why.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from counterseal.canonical import MAX_DEPTH, canonical, pointer, thaw
from counterseal.contract.schemas import check_schema, children, compile_schema, types_of, word_set

Json = dict[str, Any]
Path = tuple[str | int, ...]

# --- the supported subset, which is that of OpenAI's structured outputs ---------------------------

_NUMBER_BOUNDS = word_set("minimum maximum exclusiveMinimum exclusiveMaximum multipleOf")
_TAKEN: Final[Mapping[str, frozenset[str]]] = {
    "string": frozenset({"pattern", "format"}),
    "number": _NUMBER_BOUNDS,
    "integer": _NUMBER_BOUNDS,
    "array": frozenset({"minItems", "maxItems"}),
}
"""The bounds that strict mode supports, by JSON type."""
_FORMATS = word_set("date-time time date duration email hostname ipv4 ipv6 uuid")
_BOUNDS = _NUMBER_BOUNDS | word_set(
    "minLength maxLength pattern format contentEncoding contentMediaType contentSchema items "
    "minItems maxItems uniqueItems contains minContains maxContains properties required "
    "additionalProperties minProperties maxProperties propertyNames"
)
"""Keywords that only restrict values: without them, more calls reach the schema gate."""
_NOTES = frozenset({"title", "description"})
_SHAPING = word_set(
    "type enum const anyOf oneOf items properties required additionalProperties minProperties "
    "maxProperties propertyNames"
)
_INEXPRESSIBLE: Final = {
    word: f"{word} {why}"
    for why, words in {
        "combines schemas": "allOf",
        "excludes by schema": "not",
        "makes one argument depend on another": "if then else dependentRequired dependentSchemas "
        "dependencies",
        "leaves the names of properties open": "patternProperties",
        "gives each place of an array its own schema": "prefixItems additionalItems",
        "depends on other keywords": "unevaluatedProperties unevaluatedItems",
        "has no fixed target": "$dynamicRef $recursiveRef",
        "changes what references mean": "$id",
    }.items()
    for word in words.split()
}
"""Keywords that strict mode can't express, with the reasons."""
_REFERENCE = re.compile(r"#(?:/(\$defs|definitions)/([A-Za-z0-9_.-]+))?")
_MOST_HOPS: Final = 16
_LARGE_ENUM: Final = 250


def _beyond_limits(schema: Json) -> Iterator[str]:
    """Yield a sentence for each size limit that a strict schema exceeds.

    Exceeding one makes the provider refuse the whole request, with all its other tools. References
    are not followed when nesting is counted.
    """
    definitions = schema.get("$defs", {})
    properties = enum_values = nesting = largest_enum = 0
    text = sum(map(len, definitions))
    waiting = [(inner, 0) for inner in (schema, *definitions.values())]
    while waiting:
        current, level = waiting.pop()
        named, values = current.get("properties", {}), current.get("enum", [])
        length = sum(len(str(value)) for value in values)
        if len(values) > _LARGE_ENUM:
            largest_enum = max(largest_enum, length)
        level += "properties" in current
        nesting = max(nesting, level)
        properties += len(named)
        enum_values += len(values)
        text += sum(map(len, named)) + length + len(str(current.get("const", "")))
        waiting += [(inner, level) for path, inner in children(current) if path[0] != "$defs"]
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


# --- calls ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """A schema for strict mode, or None if there is none, and the mapping of calls."""

    schema: Json | None
    warnings: tuple[str, ...] = ()
    source: Json = field(default_factory=dict, repr=False, compare=False)
    """The contract's schema; empty if there is no strict one."""

    def to_strict(self, arguments: Mapping[str, Any]) -> Json:
        """Convert a call to the form of the strict schema."""
        return dict(self._mapped(self.source, arguments, MAX_DEPTH, restore=False))

    def restore(self, arguments: Mapping[str, Any]) -> Json:
        """Convert a call from the form of the strict schema to that of the contract."""
        return dict(self._mapped(self.source, arguments, MAX_DEPTH, restore=True))

    def _mapped(self, schema: Any, value: Any, depth: int, *, restore: bool) -> Any:
        """Return a value with null for absent properties, or without those nulls (`restore`).

        A value that does not fit is returned as it is, because the schema gate judges calls. So is
        one that is nested too deeply, which is refused elsewhere.
        """
        if depth == 0 or not isinstance(value, Mapping | list | tuple):
            return value
        kind = "object" if isinstance(value, Mapping) else "array"
        alike = [leaf for leaf in _leaves(self.source, schema) if kind in types_of(leaf)]
        if len(alike) != 1:
            return value  # none fits, or all are written like in the contract
        leaf = alike[0]
        if not isinstance(value, Mapping):
            return [
                self._mapped(leaf.get("items"), item, depth - 1, restore=restore) for item in value
            ]
        optional = dict.fromkeys(_optional(leaf))
        mapped = {} if restore else optional.copy()
        for name, item in value.items():
            if not (restore and item is None and name in optional):
                inner = leaf.get("properties", {}).get(name)
                mapped[name] = self._mapped(inner, item, depth - 1, restore=restore)
        return mapped


def _optional(schema: Json) -> list[str]:
    required = schema.get("required", ())
    return [name for name in schema.get("properties", ()) if name not in required]


def _leaves(root: Json, schema: Any) -> list[Json]:
    """Return the schemas that may describe a value: references and unions are resolved."""
    leaves, seen, waiting = [], set(), [schema]
    while waiting:
        current = waiting.pop()
        if not isinstance(current, dict) or id(current) in seen:
            continue  # a schema that is true or false is refused elsewhere
        seen.add(id(current))
        inner = [*current.get("anyOf", ()), *current.get("oneOf", ())]
        if "$ref" in current:
            inner.append(_target(root, current["$ref"]))
        waiting += inner
        leaves += [] if inner else [current]
    return leaves


def _target(root: Json, reference: Any) -> Any:
    """Return the definition of a reference, or None if it does not lead to one."""
    match = _REFERENCE.fullmatch(reference) if isinstance(reference, str) else None
    if match is None:
        return None
    return root.get(match[1], {}).get(match[2]) if match[1] else root


# --- schemas --------------------------------------------------------------------------------------


def convert(schema: Mapping[str, Any]) -> Conversion:
    """Return the strict form of an input schema."""
    try:
        check_schema(schema)
    except ValueError as error:
        return Conversion(schema=None, warnings=(f"#: not a valid schema: {error}",))
    writer = _StrictWriter(root=thaw(schema))
    strict = writer.write_all()
    problems = (*writer.problems, *_beyond_limits(strict))
    if problems:
        return Conversion(schema=None, warnings=tuple(dict.fromkeys(problems)))
    warnings = tuple(dict.fromkeys(writer.warnings))
    return Conversion(schema=strict, warnings=warnings, source=writer.root)


@dataclass(slots=True, kw_only=True)
class _StrictWriter:
    """Writes one schema, and continues after a problem in order to report all of them."""

    root: Json
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    used: dict[str, str] = field(default_factory=dict)
    """The definitions that references name, with the keyword that holds each."""

    def write_all(self) -> Json:
        plain = {"enum", "const", "anyOf", "oneOf"}.isdisjoint(self.root)
        if self.root.get("type") != "object" or not plain:
            return self.refuse((), "the root is not a plain object")
        strict = self.write(self.root, ())
        definitions: Json = {}
        while waiting := [name for name in self.used if name not in definitions]:
            for name in waiting:
                path = (self.used[name], name)
                definitions[name] = self.write(self.root[path[0]][name], path)
        return {**strict, "$defs": definitions} if definitions else strict

    def refuse(self, path: Path, reason: str) -> Json:
        self.problems.append(f"#{pointer(*path)}: {reason}, which strict mode cannot express")
        return {}

    def warn(self, path: Path, text: str) -> None:
        self.warnings.append(f"#{pointer(*path)}: {text}")

    def write(self, schema: Any, path: Path) -> Json:
        if not isinstance(schema, dict):
            return self.refuse(path, "a schema that is true or false takes anything or nothing")
        inexpressible = [word for word in schema if word in _INEXPRESSIBLE]
        if reasons := [_INEXPRESSIBLE[word] for word in inexpressible if word != "$id" or path]:
            return self.refuse(path, "; ".join(dict.fromkeys(reasons)))
        word = next((word for word in ("$ref", "anyOf", "oneOf") if word in schema), "")
        if not word:
            return self.typed(schema, path)
        if not (_SHAPING - {word}).isdisjoint(schema):
            what = "a reference" if word == "$ref" else word
            return self.refuse(path, f"{what} beside other constraints combines schemas")
        return self.reference(schema, path) if word == "$ref" else self.union(schema, word, path)

    def typed(self, schema: Json, path: Path) -> Json:
        values = [schema["const"]] if "const" in schema else schema.get("enum", [])
        if any(isinstance(value, dict | list) for value in values):
            return self.refuse(path, "fixed objects or arrays are listed")
        types = types_of(schema) or tuple(dict.fromkeys(_scalar_types(v)[0] for v in values))
        if not types:
            return self.refuse(path, "no type is given")
        if len(types) > 1 and not {"object", "array"}.isdisjoint(types):
            return self.refuse(path, "objects or arrays are mixed with other types in one schema")
        if types == ("object",):
            return self.object(schema, path)
        if types == ("array",):
            if "items" not in schema:
                return self.refuse(path, "an array without items holds anything")
            items = self.write(schema["items"], (*path, "items"))
            return {"type": "array", **self.keywords(schema, path, types), "items": items}
        strict: Json = {"type": types[0] if len(types) == 1 else list(types)}
        if "const" in schema or "enum" in schema:
            fitting = [value for value in values if {*types} & {*_scalar_types(value)}]
            if not fitting:
                return self.refuse(path, "no value is possible")
            strict |= {"const": fitting[0]} if "const" in schema else {"enum": fitting}
        return strict | self.keywords(schema, path, types)

    def reference(self, schema: Json, path: Path) -> Json:
        reference = schema["$ref"]
        target = _target(self.root, reference)
        if not isinstance(target, dict):
            return self.refuse(path, f"$ref {reference!r} leads to no definition in $defs")
        for _ in range(_MOST_HOPS):
            if not isinstance(target, dict) or "$ref" not in target:
                break
            target = _target(self.root, target["$ref"])
        else:
            return self.refuse(path, f"$ref {reference!r} leads in a circle")
        if reference != "#":
            _, word, name = reference.split("/")
            if self.used.setdefault(name, word) != word:
                return self.refuse(path, f"two definitions are called {name}")
            reference = f"#/$defs/{name}"
        keywords = self.keywords(schema, path)
        # Strict mode supports no keyword beside a reference.
        return {"anyOf": [{"$ref": reference}], **keywords} if keywords else {"$ref": reference}

    def union(self, schema: Json, keyword: str, path: Path) -> Json:
        if keyword == "oneOf":
            self.warn(path, "oneOf is sent as anyOf; the schema gate still enforces it")
        leaves = _leaves(self.root, schema)
        for kind in ("object", "array"):
            alike = [leaf for leaf in leaves if kind in types_of(leaf)]
            if len(alike) > 1 and any(self.has_optional(leaf) for leaf in alike):
                # It would not be known whose optional property a null is.
                return self.refuse(path, f"several variants are {kind}s, with optional properties")
        variants = [
            self.write(variant, (*path, keyword, i)) for i, variant in enumerate(schema[keyword])
        ]
        return {"anyOf": variants, **self.keywords(schema, path)}

    def has_optional(self, schema: Json) -> bool:
        """Return whether an object in this schema has an optional property."""
        seen: set[int] = set()
        waiting: list[Any] = [schema]
        while waiting:
            current = waiting.pop()
            if isinstance(current, dict) and id(current) not in seen:
                seen.add(id(current))
                if _optional(current):
                    return True
                waiting += [_target(self.root, current.get("$ref"))]
                waiting += [inner for _, inner in children(current)]
        return False

    def object(self, schema: Json, path: Path) -> Json:
        if schema.get("additionalProperties") is not False:
            typed = isinstance(schema.get("additionalProperties"), dict)
            return self.refuse(path, "the names of properties are " + ("data" if typed else "open"))
        properties, optional = schema.get("properties", {}), _optional(schema)
        if not set(schema.get("required", ())) <= set(properties):
            return self.refuse(path, "a property is required that is not declared")
        strict = {}
        for name, inner in properties.items():
            write = self.optional if name in optional else self.write
            strict[name] = write(inner, (*path, "properties", name))
        return {
            "type": "object",
            **self.keywords(schema, path, ("object",)),
            "properties": strict,
            "required": list(strict),
            "additionalProperties": False,
        }

    def optional(self, schema: Any, path: Path) -> Json:
        """Return the schema of an optional property, whose absence is written as null."""
        if not isinstance(schema, dict):
            return self.write(schema, path)
        default = schema.get("default")
        strict = self.write({key: schema[key] for key in schema if key != "default"}, path)
        own = ("type", "enum", "const")
        leaves = [
            {key: leaf[key] for key in own if key in leaf} for leaf in _leaves(self.root, schema)
        ]
        if any(leaf and compile_schema(leaf).is_valid(None) for leaf in leaves):
            if "default" in schema and default is None:
                return strict  # null and absence mean the same
            reason = "it can be null or absent (make it required, or give it the default null)"
            return self.refuse(path, reason)
        if strict:
            strict = _nullable(strict)
        if default is not None:
            self.warn(path, "strict mode has no default; the description tells it instead")
            note = f"Null stands for the default, {canonical(default).decode()}."
            strict["description"] = f"{strict.get('description', '')} {note}".lstrip()
        return strict

    def keywords(self, schema: Json, path: Path, types: tuple[str, ...] = ()) -> Json:
        """Return the other supported keywords, and warn about each unsupported one."""
        kept = {}
        written = {"$ref", "$defs", "definitions", "$id"} | (_SHAPING - _BOUNDS)
        if types == ("object",):
            written |= {"properties", "required", "additionalProperties"}
        elif types == ("array",):
            written |= {"items"}
        for key, value in schema.items():
            taken = any(key in _TAKEN.get(name, ()) for name in types)
            if key in _NOTES or (taken and (key != "format" or value in _FORMATS)):
                kept[key] = value
            elif key in _BOUNDS - written:
                text = f"{key} {value!r}" if key == "format" else key
                self.warn(path, f"strict mode has no {text}; the schema gate still enforces it")
            elif key not in written:
                self.warn(path, f"strict mode has no {key}; left out, as no call depends on it")
        return kept


_SCALARS: Final = {
    name: compile_schema({"type": name})
    for name in ("null", "boolean", "integer", "number", "string")
}


def _scalar_types(value: Any) -> list[str]:
    """Return the JSON types of a scalar, the narrowest first."""
    return [name for name, validator in _SCALARS.items() if validator.is_valid(value)]


def _nullable(schema: Json) -> Json:
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    if {"properties", "items", "enum", "const", "$ref"}.isdisjoint(schema):
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        return {**schema, "type": [*types, "null"]}
    notes = {key: schema[key] for key in _NOTES if key in schema}
    inner = {key: value for key, value in schema.items() if key not in notes}
    return {"anyOf": [inner, {"type": "null"}], **notes}
