"""What a strict mode takes of JSON Schema: which keywords, and how much of them.

The subset is that of OpenAI's structured outputs. Going over a size makes the provider refuse the
whole request, all its other tools included. Nesting is counted as written: a reference is not
followed, or no recursive schema would have a depth.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = [
    "ARRAY_ONLY",
    "BOUNDS",
    "INEXPRESSIBLE",
    "NOTES",
    "OBJECT_ONLY",
    "READ_ELSEWHERE",
    "SHAPING",
    "beyond_limits",
    "is_expressible",
]

_NUMBER_BOUNDS = frozenset(
    {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
)
ARRAY_ONLY: Final = frozenset(
    {"items", "minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains"}
)
OBJECT_ONLY: Final = frozenset(
    {
        "properties",
        "required",
        "additionalProperties",
        "minProperties",
        "maxProperties",
        "propertyNames",
    }
)
_TAKEN: Final[Mapping[str, frozenset[str]]] = {
    "string": frozenset({"pattern", "format"}),
    "number": _NUMBER_BOUNDS,
    "integer": _NUMBER_BOUNDS,
    "array": frozenset({"minItems", "maxItems"}),
}
"""The bounds that strict mode takes, by JSON type."""

_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
)
_LOOKAROUND = re.compile(r"\(\?<?[=!]")
BOUNDS: Final = (
    (ARRAY_ONLY | OBJECT_ONLY | _NUMBER_BOUNDS)
    | {"minLength", "maxLength", "pattern", "format"}
    | {"contentEncoding", "contentMediaType", "contentSchema"}
)
"""Keywords that only narrow what a value may be: without them, more calls reach the gate."""

NOTES: Final = frozenset({"title", "description"})
SHAPING: Final = frozenset({"type", "enum", "const", "anyOf", "oneOf"})
READ_ELSEWHERE: Final = frozenset({"$ref", "$defs", "definitions"})
INEXPRESSIBLE: Final[Mapping[str, str]] = {
    "allOf": "allOf combines schemas",
    "if": "if/then/else makes one argument depend on another",
    "then": "if/then/else makes one argument depend on another",
    "else": "if/then/else makes one argument depend on another",
    "not": "not excludes by schema",
    "dependentRequired": "dependentRequired makes one argument depend on another",
    "dependentSchemas": "dependentSchemas makes one argument depend on another",
    "dependencies": "dependencies makes one argument depend on another",
    "patternProperties": "patternProperties leaves the names of properties open",
    "prefixItems": "prefixItems gives each place of an array its own schema",
    "additionalItems": "additionalItems gives each place of an array its own schema",
    "unevaluatedProperties": "unevaluatedProperties depends on other keywords",
    "unevaluatedItems": "unevaluatedItems depends on other keywords",
    "$dynamicRef": "$dynamicRef has no fixed target",
    "$recursiveRef": "$recursiveRef has no fixed target",
}

PROPERTIES: Final = 5_000
NESTING: Final = 10
ENUM_VALUES: Final = 1_000
TEXT: Final = 120_000
"""Characters of all property names, definition names, enum and const values together."""
LARGE_ENUM: Final = 250
LARGE_ENUM_TEXT: Final = 15_000


def is_expressible(key: str, value: Any, types: tuple[str, ...]) -> bool:
    """Whether strict mode takes this bound for one of these JSON types."""
    if not any(key in _TAKEN.get(name, ()) for name in types):
        return False
    if key == "format":
        return value in _FORMATS
    return key != "pattern" or not _LOOKAROUND.search(value)


@dataclass(slots=True)
class _Count:
    properties: int = 0
    nesting: int = 0
    enum_values: int = 0
    text: int = 0
    large_enums: list[int] = field(default_factory=list)


def beyond_limits(schema: dict[str, Any]) -> Iterator[str]:
    """A sentence for each limit that a strict schema exceeds."""
    count = _Count()
    _measure(schema, 0, count)
    for name, definition in schema.get("$defs", {}).items():
        count.text += len(name)
        _measure(definition, 0, count)
    measured = (
        ("properties", count.properties, PROPERTIES),
        ("levels of nested objects", count.nesting, NESTING),
        ("enum values", count.enum_values, ENUM_VALUES),
        ("characters in names and fixed values", count.text, TEXT),
        ("characters in one large enum", max(count.large_enums, default=0), LARGE_ENUM_TEXT),
    )
    for what, size, limit in measured:
        if size > limit:
            yield f"#: {size} {what}, of which strict mode takes {limit}"


def _measure(schema: dict[str, Any], level: int, count: _Count) -> None:
    properties = schema.get("properties", {})
    inner = level + 1 if "properties" in schema else level
    count.nesting = max(count.nesting, inner)
    count.properties += len(properties)
    count.text += sum(len(name) for name in properties)
    values = schema.get("enum", [])
    length = sum(len(str(value)) for value in values)
    count.enum_values += len(values)
    count.text += length + len(str(schema.get("const", "")))
    if len(values) > LARGE_ENUM:
        count.large_enums.append(length)
    for child in (*properties.values(), *schema.get("anyOf", ())):
        _measure(child, inner, count)
    if "items" in schema:
        _measure(schema["items"], inner, count)
