"""JSON Schema 2020-12, as contracts use it: walk, close, compile, generate, and list for people.

Nothing is ever fetched: a schema that refers outside itself does not compile. Patterns run on a
linear-time engine, and validation errors never show the value that failed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import jsonschema_rs
from pydantic import BaseModel

from counterseal.canonical import SAFE_INTEGER, pointer, thaw

DIALECT = "https://json-schema.org/draft/2020-12/schema"

Validator = jsonschema_rs.Draft202012Validator
Schema = Mapping[str, Any]
Path = tuple[str | int, ...]

_ONE = (
    *("additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then"),
    *("unevaluatedItems", "unevaluatedProperties", "contentSchema"),
)
_MANY = ("allOf", "anyOf", "oneOf", "prefixItems")
_CONDITIONAL = ("allOf", "anyOf", "dependentSchemas", "if", "oneOf", "patternProperties")
_NAMED = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")


def word_set(words: str) -> frozenset[str]:
    """Return the words of a text as a set."""
    return frozenset(words.split())


def children(schema: Schema) -> Iterator[tuple[Path, Any]]:
    """Yield the schemas directly inside one, with their paths."""
    for word in _ONE:
        if isinstance(schema.get(word), Mapping):
            yield (word,), schema[word]
    for word in _MANY:
        inner = schema.get(word)
        if isinstance(inner, list | tuple):
            yield from (((word, i), item) for i, item in enumerate(inner))
    for word in _NAMED:
        inner = schema.get(word)
        if isinstance(inner, Mapping):
            yield from (((word, name), item) for name, item in inner.items())


def inner_values(schema: Schema) -> Iterator[tuple[Path, Any]]:
    """Yield the schemas of a value's properties and items, with their paths."""
    for word in ("properties", "patternProperties"):
        named = schema.get(word)
        if isinstance(named, Mapping):
            yield from (((word, name), value) for name, value in named.items())
    if "items" in schema:
        yield ("items",), schema["items"]
    rest = schema.get("additionalProperties")
    if isinstance(rest, Mapping) and rest:
        yield ("additionalProperties",), rest
    yield from ((("prefixItems", i), item) for i, item in enumerate(listed(schema, "prefixItems")))


def subschemas(schema: Any) -> Iterator[tuple[Path, Schema]]:
    """Return a schema and every schema inside it, outermost first.

    Only places that hold schemas are walked, so that a property called `title` is not mistaken for
    a title.
    """
    return ((path, inner) for path, _, inner in _walk(schema))


_IN_PLACE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas")
_ANNOTATIONS = {"$ref", "title", "description", "default", "examples", "deprecated"}


def parts(root: Schema, schema: Any) -> Iterator[Schema]:
    """Yield a schema and every schema that applies to the same value, references included."""
    waiting, visited = [schema], set[int]()
    while waiting:
        current = waiting.pop()
        if isinstance(current, Mapping) and id(current) not in visited:
            visited.add(id(current))
            yield current
            waiting += [part for _, part in direct_parts(root, current)]


def direct_parts(root: Schema, schema: Schema) -> Iterator[tuple[str, Any]]:
    """Yield the schemas that one applies to the same value, each with its keyword."""
    if isinstance(schema.get("$ref"), str):
        yield "$ref", resolve_local(root, schema["$ref"])
    yield from ((str(step[0]), part) for step, part in children(schema) if step[0] in _IN_PLACE)


def target(root: Schema, schema: Schema) -> Any:
    """Return what a schema refers to if it says nothing else about the value, else None."""
    reference = schema.get("$ref") if _ANNOTATIONS.issuperset(schema) else None
    return resolve_local(root, reference) if isinstance(reference, str) else None


def applied(root: Schema) -> set[int]:
    """Return the ids of schemas that a reference applies to a value beside other schemas."""
    ids: set[int] = set()
    for _, is_part, schema in _walk(root):
        reference = schema.get("$ref")
        if isinstance(reference, str) and (is_part or target(root, schema) is None):
            ids.update(id(part) for part in parts(root, resolve_local(root, reference)))
    return ids


def places(root: Schema) -> Iterator[tuple[Path, Schema]]:
    """Yield the schemas that describe a value alone or with parts of their own.

    Those parts are left out, and so are mere references to a schema that is yielded itself.
    """
    shared = applied(root)
    for path, is_part, schema in _walk(root):
        alias = target(root, schema)
        if not is_part and id(schema) not in shared and (alias is None or id(alias) in shared):
            yield path, schema


def _walk(root: Any) -> Iterator[tuple[Path, bool, Schema]]:
    """Yield every schema with its path; True for a part of the schema around it."""
    waiting: list[tuple[Path, bool, Any]] = [((), False, root)]
    while waiting:
        path, is_part, schema = waiting.pop()
        if isinstance(schema, Mapping):
            yield path, is_part, schema
            waiting += [
                ((*path, *step), step[0] in _IN_PLACE, child) for step, child in children(schema)
            ]


def types_of(schema: Schema) -> tuple[str, ...]:
    """Return the types in a schema's own `type` keyword."""
    named = schema.get("type", ())
    listed = (named,) if isinstance(named, str) else named
    return tuple(map(str, listed)) if isinstance(listed, list | tuple) else ()


def is_scalar(schema: Schema) -> bool:
    """Return whether a schema is one of single texts, numbers or booleans."""
    types = types_of(schema)
    return bool(types) and {"string", "integer", "number", "boolean"}.issuperset(types)


def resolve_local(root: Schema, reference: str) -> Any:
    """Return the value at `#/…` in the document, or None. Nothing outside of it is looked up."""
    # Most schemas refer to nothing, and a command should not wait for an unused library.
    from referencing import Registry, Specification  # noqa: PLC0415 - see above
    from referencing.exceptions import Unresolvable  # noqa: PLC0415 - see above

    registry = Registry[Any]().with_resource("", Specification.OPAQUE.create_resource(root))
    try:
        return registry.resolver().lookup(reference).contents
    except (Unresolvable, ValueError, TypeError):  # TypeError: the path leads into a scalar
        return None


def properties_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema's own properties; empty when `properties` is not a mapping."""
    properties = schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def listed(schema: Mapping[str, Any], word: str) -> tuple[Any, ...]:
    """Return the values of a keyword that takes a list; empty when it is not a list."""
    value = schema.get(word)
    return tuple(value) if isinstance(value, list | tuple) else ()


def without_refs(root: Schema, schema: Any) -> Schema:
    """Return a schema merged with what it refers to; empty when that does not exist."""
    for _ in range(16):
        if not isinstance(schema, Mapping):
            return {}
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        target = resolve_local(root, reference)
        own = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**target, **own} if isinstance(target, Mapping) else own
    return {}  # circular references


class Presence(Enum):
    """Whether values of a schema have a certain field."""

    ALWAYS = "always"
    SOMETIMES = "sometimes"
    UNDECLARED = "undeclared"
    NEVER = "never"


def presence(root: Schema, path: Sequence[str]) -> Presence:
    """Return what a schema says about the field at a path of names.

    `SOMETIMES` where it depends on the value, as in a union.
    """
    current: Any = root
    result = Presence.ALWAYS
    for name in path:
        here = without_refs(root, current)
        types = types_of(here)
        if types and "object" not in types:
            return Presence.NEVER
        if name not in properties_of(here):
            rest = here.get("additionalProperties")
            if any(word in here for word in _CONDITIONAL) or (isinstance(rest, Mapping) and rest):
                return Presence.SOMETIMES
            closed = rest is False or here.get("unevaluatedProperties") is False
            return Presence.NEVER if closed else Presence.UNDECLARED
        if name not in listed(here, "required") or len(types) > 1:
            result = Presence.SOMETIMES
        current = properties_of(here)[name]
    return result


def close(schema: dict[str, Any]) -> dict[str, Any]:
    """Set `additionalProperties: false` on every open object. Changes its argument."""
    for _, inner in subschemas(schema):
        is_object = "object" in types_of(inner) or "properties" in inner
        open_ended = "additionalProperties" not in inner and "unevaluatedProperties" not in inner
        # An allOf branch that is closed would refuse the fields of its siblings.
        if is_object and open_ended and "allOf" not in inner and isinstance(inner, dict):
            inner["additionalProperties"] = False
    return schema


def tidy(schema: dict[str, Any], *, drop: tuple[str, ...] = ("title",)) -> dict[str, Any]:
    """Remove annotations that cost a model tokens and say nothing. Changes its argument."""
    for _, inner in list(subschemas(schema)):
        for word in drop:
            if word in inner and isinstance(inner, dict):
                del inner[word]
    return schema


def compile_schema(schema: Schema) -> Validator:
    """Return a validator. ValueError says what is wrong with the schema, and where."""
    with _explained():
        return Validator(
            schema,  # type: ignore[arg-type]
            offline=True,
            pattern_options=jsonschema_rs.RegexOptions(),
            validate_formats=True,
            mask="(hidden)",
        )


def exact_integers(schema: Schema) -> dict[str, Any] | None:
    """Return the schema with every integer limited to ±(2^53 - 1), or None if all of them are.

    JSON Schema counts 1e16 as an integer. JSON readers read it as a double, as which it may be any
    of several integers.
    """
    copy: dict[str, Any] = thaw(schema)
    changed = False
    for _, inner in subschemas(copy):
        types = types_of(inner)
        if "integer" not in types or "number" in types or not isinstance(inner, dict):
            continue
        for word, limit, stricter in (
            ("minimum", -SAFE_INTEGER, max),
            ("maximum", SAFE_INTEGER, min),
        ):
            bound = stricter(inner.get(word, limit), limit)
            changed = changed or bound != inner.get(word)
            inner[word] = bound
    return copy if changed else None


def check_schema(schema: Schema) -> None:
    """Raise ValueError if a schema is not well-formed. Does not follow references."""
    with _explained():
        jsonschema_rs.meta.validate({**schema, "$schema": DIALECT})


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except jsonschema_rs.ValidationError as error:
        place = pointer(*error.instance_path)
        raise ValueError(f"{place or 'the schema'}: {error.message}") from None
    except (jsonschema_rs.ReferencingError, ValueError) as error:
        raise ValueError(str(error).splitlines()[0]) from None


def model_schema(
    model: type[BaseModel],
    *,
    title: str,
    mode: Literal["serialization", "validation"] = "serialization",
) -> dict[str, Any]:
    """Return the JSON Schema of one of our models, self-contained and without annotations.

    `serialization` describes what we write, with every field; `validation` what we read.
    """
    schema = model.model_json_schema(mode=mode)
    definitions = schema.pop("$defs", {})
    inlined = _rewrite(schema, lambda node: definitions.get(str(node.get("$ref"))[8:], node))
    tidy(inlined, drop=("title", "description", "default"))
    for _, inner in subschemas(inlined):
        if inner.get("maximum") == 2**53 - 1 and isinstance(inner, dict):
            del inner["maximum"]  # the limit of exact integers in JSON, not a bound of the field
    return {"$schema": DIALECT, "title": title, **inlined}


def _rewrite(node: Any, resolve: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Replace references by what they refer to, and `anyOf [X, null]` by a nullable type."""
    if isinstance(node, list):
        return [_rewrite(item, resolve) for item in node]
    if not isinstance(node, dict):
        return node
    resolved = {key: _rewrite(item, resolve) for key, item in resolve(node).items()}
    variants = resolved.get("anyOf", [])
    if len(variants) == 2 and variants[1] == {"type": "null"} and "type" in variants[0]:
        del resolved["anyOf"]
        resolved.update(variants[0], type=[variants[0]["type"], "null"])
        if "enum" in resolved:
            resolved["enum"] = [*resolved["enum"], None]
    return resolved


# --- parameters, as people read them --------------------------------------------------------------


MAX_DEPTH = 3
"""Deeper fields are shown as part of their parent's type."""

_BOUNDS = (
    ("minimum", "≥ {}"),
    ("exclusiveMinimum", "> {}"),
    ("maximum", "≤ {}"),
    ("exclusiveMaximum", "< {}"),
    ("multipleOf", "a multiple of {}"),
    ("minLength", "at least {} characters"),
    ("maxLength", "at most {} characters"),
    ("minItems", "at least {} items"),
    ("maxItems", "at most {} items"),
    ("pattern", "matches {}"),
    ("format", "format {}"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    name: str
    type: str
    required: bool
    bounds: str
    description: str


def parameters(schema: Mapping[str, Any]) -> list[Parameter]:
    """Return the fields of an object schema, each followed by the fields inside it."""
    return list(_rows(schema, schema, "", MAX_DEPTH))


def _rows(root: Schema, schema: Schema, prefix: str, depth: int) -> Iterator[Parameter]:
    for name, raw in properties_of(schema).items():
        value = without_refs(root, raw)
        yield Parameter(
            name=f"{prefix}{name}",
            type=_type(root, value, MAX_DEPTH),
            required=name in listed(schema, "required"),
            bounds=_bounds(root, value),
            description=str(value.get("description", "")),
        )
        # The fields of an object, or of a list's items.
        own = "properties" in value
        inner = value if own else without_refs(root, value.get("items"))
        if depth > 1 and "properties" in inner:
            yield from _rows(root, inner, f"{prefix}{name}{'' if own else '[]'}.", depth - 1)


def _type(root: Mapping[str, Any], schema: Mapping[str, Any], depth: int) -> str:
    variants = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(variants, list | tuple) and depth:
        named = [_type(root, without_refs(root, variant), depth - 1) for variant in variants]
        return " or ".join(dict.fromkeys(named))
    words = [
        f"list of {_type(root, without_refs(root, schema['items']), depth - 1)}"
        if word == "array" and isinstance(schema.get("items"), Mapping) and depth
        else word
        for word in types_of(schema)
    ]
    if words:
        return " or ".join(words)
    return "choice" if "enum" in schema or "const" in schema else "any"


def _bounds(root: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Return the limits of a value, including those of a list's items and of variants."""
    parts = [shape.format(schema[word]) for word, shape in _BOUNDS if word in schema]
    if "enum" in schema:
        parts.append("one of " + ", ".join(_value(value) for value in schema["enum"]))
    if "const" in schema:
        parts.append(f"always {_value(schema['const'])}")
    items = without_refs(root, schema.get("items"))
    if items and "properties" not in items and (inner := _bounds(root, {**items, "items": None})):
        parts.append(f"each: {inner}")
    for variant in schema.get("anyOf") or schema.get("oneOf") or ():
        plain = {**without_refs(root, variant), "anyOf": None, "oneOf": None}
        parts += [part for part in [_bounds(root, plain)] if part]
    if "default" in schema:
        parts.append(f"default {_value(schema['default'])}")
    return "; ".join(dict.fromkeys(parts))


def _value(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
