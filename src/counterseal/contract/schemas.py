"""JSON Schema 2020-12, as contracts use it: walk, close, compile, generate.

Nothing is ever fetched: a schema that points outside itself does not compile. Patterns run on a
linear-time engine, and validation errors never show the value that failed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

import jsonschema_rs
from pydantic import BaseModel
from referencing import Registry, Specification
from referencing.exceptions import Unresolvable

from counterseal.canonical import pointer

__all__ = [
    "DIALECT",
    "Parameter",
    "Presence",
    "Validator",
    "check_schema",
    "close",
    "compile_schema",
    "listed",
    "model_schema",
    "parameters",
    "presence",
    "properties_of",
    "resolve_local",
    "subschemas",
    "tidy",
    "types_of",
    "without_refs",
]


DIALECT = "https://json-schema.org/draft/2020-12/schema"

Validator = jsonschema_rs.Draft202012Validator
Schema = Mapping[str, Any]
Path = tuple[str | int, ...]

_ONE = ("additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then")
_MORE = ("unevaluatedItems", "unevaluatedProperties", "contentSchema")
_MANY = ("allOf", "anyOf", "oneOf", "prefixItems")
_UNTOLD = ("allOf", "anyOf", "dependentSchemas", "if", "oneOf", "patternProperties")
_NAMED = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")


def children(schema: Schema) -> Iterator[tuple[Path, Any]]:
    """The schemas directly inside one, with their paths."""
    for word in (*_ONE, *_MORE):
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


def subschemas(schema: Any, path: Path = ()) -> Iterator[tuple[Path, Schema]]:
    """A schema and every schema inside it, outermost first.

    Values that are no schemas are passed over, so that a property called `title` is not mistaken
    for a title.
    """
    waiting: list[tuple[Path, Any]] = [(path, schema)]
    while waiting:
        here, current = waiting.pop()
        if isinstance(current, Mapping):
            yield here, current
            waiting.extend(((*here, *step), child) for step, child in children(current))


def types_of(schema: Schema) -> tuple[str, ...]:
    """The types that a schema names itself."""
    named = schema.get("type", ())
    listed = (named,) if isinstance(named, str) else named
    return tuple(map(str, listed)) if isinstance(listed, list | tuple) else ()


def resolve_local(root: Schema, reference: str) -> Any:
    """Return the value at `#/…` in the document, or None. Nothing outside of it is looked up."""
    registry = Registry[Any]().with_resource("", Specification.OPAQUE.create_resource(root))
    try:
        return registry.resolver().lookup(reference).contents
    except (Unresolvable, ValueError):
        return None


def properties_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema's own properties; none where they are not even a mapping."""
    properties = schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def listed(schema: Mapping[str, Any], word: str) -> tuple[Any, ...]:
    """What stands under a keyword that takes a list; nothing where it is no list."""
    value = schema.get(word)
    return tuple(value) if isinstance(value, list | tuple) else ()


def without_refs(root: Schema, schema: Any) -> Schema:
    """A schema laid over what it refers to; empty where that can't be found."""
    for _ in range(16):
        if not isinstance(schema, Mapping):
            return {}
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        target = resolve_local(root, reference)
        own = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**target, **own} if isinstance(target, Mapping) else own
    return {}  # references in a circle


class Presence(Enum):
    """Whether a value that fits a schema holds a field."""

    ALWAYS = "always"
    SOMETIMES = "sometimes"
    UNDECLARED = "undeclared"
    NEVER = "never"


def presence(root: Schema, path: Sequence[str]) -> Presence:
    """What a schema says of the field that a path of names leads to.

    Where it can't be told without a value, as in a union, that is `SOMETIMES`.
    """
    current: Any = root
    found = Presence.ALWAYS
    for name in path:
        here = without_refs(root, current)
        types = types_of(here)
        if types and "object" not in types:
            return Presence.NEVER
        if name not in properties_of(here):
            return _undeclared(here)
        if name not in listed(here, "required") or len(types) > 1:
            found = Presence.SOMETIMES
        current = properties_of(here)[name]
    return found


def _undeclared(schema: Schema) -> Presence:
    rest = schema.get("additionalProperties")
    if any(word in schema for word in _UNTOLD) or (isinstance(rest, Mapping) and rest):
        return Presence.SOMETIMES
    closed = rest is False or schema.get("unevaluatedProperties") is False
    return Presence.NEVER if closed else Presence.UNDECLARED


def close(schema: dict[str, Any]) -> dict[str, Any]:
    """Set `additionalProperties: false` wherever an object leaves it open. Changes its argument."""
    for _, inner in subschemas(schema):
        is_object = "object" in types_of(inner) or "properties" in inner
        open_ended = "additionalProperties" not in inner and "unevaluatedProperties" not in inner
        # An allOf branch that closed itself would refuse the fields of its siblings.
        if is_object and open_ended and "allOf" not in inner and isinstance(inner, dict):
            inner["additionalProperties"] = False
    return schema


def tidy(schema: dict[str, Any], *, drop: tuple[str, ...] = ("title",)) -> dict[str, Any]:
    """Take out annotations that only cost a model tokens. Changes its argument."""
    for _, inner in list(subschemas(schema)):
        for word in drop:
            if word in inner and isinstance(inner, dict):
                del inner[word]
    return schema


def compile_schema(schema: Schema) -> Validator:
    """A validator. ValueError says where the schema is wrong, and how."""
    with _explained():
        return Validator(
            schema,  # type: ignore[arg-type]
            offline=True,
            pattern_options=jsonschema_rs.RegexOptions(),
            validate_formats=True,
            mask="(hidden)",
        )


def check_schema(schema: Schema) -> None:
    """Whether a schema is well-formed, without following its references."""
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


def model_schema(model: type[BaseModel], *, title: str) -> dict[str, Any]:
    """The JSON Schema of one of our own models, self-contained and without noise."""
    schema = model.model_json_schema(mode="serialization")
    definitions = schema.pop("$defs", {})
    inlined = _rewrite(schema, lambda node: definitions.get(str(node.get("$ref"))[8:], node))
    tidy(inlined, drop=("title", "description", "default"))
    for _, inner in subschemas(inlined):
        if inner.get("maximum") == 2**53 - 1 and isinstance(inner, dict):
            del inner["maximum"]  # what JSON can keep exact anyway
    return {
        "$schema": DIALECT,
        "title": title,
        **inlined,
    }


def _rewrite(node: Any, resolve: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """References replaced by what they name, and `anyOf [X, null]` by a nullable type."""
    if isinstance(node, list):
        return [_rewrite(item, resolve) for item in node]
    if not isinstance(node, dict):
        return node
    resolved = {key: _rewrite(item, resolve) for key, item in resolve(node).items()}
    variants = resolved.get("anyOf", [])
    if len(variants) == 2 and variants[1] == {"type": "null"} and "type" in variants[0]:
        del resolved["anyOf"]
        resolved.update(variants[0], type=[variants[0]["type"], "null"])
    return resolved


# --- parameters ---


MAX_DEPTH = 3
"""Deeper fields are part of their parent's type; a schema shows them all."""

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
    """The fields of an object schema, each followed by the fields inside it."""
    return list(_rows(schema, schema, "", MAX_DEPTH))


def _rows(
    root: Mapping[str, Any], schema: Mapping[str, Any], prefix: str, depth: int
) -> Iterator[Parameter]:
    required = schema.get("required", ())
    properties = schema.get("properties")
    for name, raw in properties.items() if isinstance(properties, Mapping) else ():
        value = _resolved(root, raw)
        yield Parameter(
            name=f"{prefix}{name}",
            type=_type(root, value, MAX_DEPTH),
            required=name in required,
            bounds=_bounds(root, value),
            description=str(value.get("description", "")),
        )
        inner, mark = _inside(root, value)
        if depth > 1 and inner is not None:
            yield from _rows(root, inner, f"{prefix}{name}{mark}.", depth - 1)


def _resolved(root: Mapping[str, Any], schema: Any) -> Mapping[str, Any]:
    """A schema laid over what it refers to. References to references are followed a little way."""
    for _ in range(MAX_DEPTH):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        target = resolve_local(root, reference) if isinstance(reference, str) else None
        if not isinstance(target, Mapping):
            break
        schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
    return schema if isinstance(schema, Mapping) else {}


def _inside(
    root: Mapping[str, Any], schema: Mapping[str, Any]
) -> tuple[Mapping[str, Any] | None, str]:
    """The object whose fields a parameter consists of, and how its name goes on."""
    if "properties" in schema:
        return schema, ""
    items = _resolved(root, schema.get("items"))
    return (items, "[]") if "properties" in items else (None, "")


def _type(root: Mapping[str, Any], schema: Mapping[str, Any], depth: int) -> str:
    variants = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(variants, list | tuple) and depth:
        named = [_type(root, _resolved(root, variant), depth - 1) for variant in variants]
        return " or ".join(dict.fromkeys(named))
    words = [
        f"list of {_type(root, _resolved(root, schema['items']), depth - 1)}"
        if word == "array" and isinstance(schema.get("items"), Mapping) and depth
        else word
        for word in types_of(schema)
    ]
    if words:
        return " or ".join(words)
    return "choice" if "enum" in schema or "const" in schema else "any"


def _bounds(root: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """What limits a value, those of a list's items and of variants included."""
    parts = [shape.format(schema[word]) for word, shape in _BOUNDS if word in schema]
    if "enum" in schema:
        parts.append("one of " + ", ".join(_value(value) for value in schema["enum"]))
    if "const" in schema:
        parts.append(f"always {_value(schema['const'])}")
    items = _resolved(root, schema.get("items"))
    if items and "properties" not in items and (inner := _bounds(root, {**items, "items": None})):
        parts.append(f"each: {inner}")
    for variant in schema.get("anyOf") or schema.get("oneOf") or ():
        plain = {**_resolved(root, variant), "anyOf": None, "oneOf": None}
        parts += [part for part in [_bounds(root, plain)] if part]
    if "default" in schema:
        parts.append(f"default {_value(schema['default'])}")
    return "; ".join(dict.fromkeys(parts))


def _value(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
