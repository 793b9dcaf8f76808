"""A JSON Schema's fields as rows for people: name, type, whether required, bounds, description.

For reading only: what a schema means exactly is said by the schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from counterseal.contract.schemas import resolve_local, types_of

__all__ = ["Parameter", "parameters"]

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
