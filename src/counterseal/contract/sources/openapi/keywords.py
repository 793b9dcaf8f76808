"""Single keywords of OpenAPI schemas as JSON Schema 2020-12 has them: types, values, bounds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from counterseal.contract.lint import dangerous_inputs
from counterseal.contract.lint.regex import is_catastrophic
from counterseal.contract.schemas import compile_schema, types_of
from counterseal.contract.sources.openapi.document import listed

__all__ = ["ANNOTATIONS", "bounds", "is_credential", "types_in", "values"]

ANNOTATIONS = frozenset({"title", "description", "summary", "example", "examples", "default"})
ANNOTATIONS |= {"deprecated", "readOnly", "writeOnly", "nullable", "discriminator", "xml"}
ANNOTATIONS |= {"externalDocs"}

_TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
_COUNTS = {
    "string": ("minLength", "maxLength"),
    "array": ("minItems", "maxItems"),
    "object": ("minProperties", "maxProperties"),
}
_LIMITS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_EXACT = 2**53 - 1


def is_credential(name: str) -> bool:
    """Whether lint would refuse it as an argument."""
    return dangerous_inputs.is_credential(name)


def types_in(flat: Mapping[str, Any]) -> list[str]:
    """The types that a schema names, or lets one see; `null` where it is nullable."""
    named = [word for word in types_of(flat) if word in _TYPES]
    if not named:
        named = list(_seen(flat))
    if named and flat.get("nullable") is True and "null" not in named:
        named.append("null")
    return named


def _seen(flat: Mapping[str, Any]) -> Iterator[str]:
    for word, keywords in (
        ("object", ("properties", "additionalProperties", "required", *_COUNTS["object"])),
        ("array", ("items", "prefixItems", *_COUNTS["array"])),
        ("string", ("pattern", *_COUNTS["string"])),
        ("number", _LIMITS),
    ):
        if any(keyword in flat for keyword in keywords):
            yield word
            return


def values(flat: Mapping[str, Any], types: list[str]) -> dict[str, Any]:
    """`enum`, `const` and `default`, as far as JSON keeps them exact."""
    made: dict[str, Any] = {}
    allowed = [_value(value, types) for value in listed(flat.get("enum")) if _is_plain(value)]
    if allowed:
        if "null" in types and None not in allowed:
            allowed.append(None)
        made["enum"] = list(dict.fromkeys(allowed)) if _all_texts(allowed) else allowed
    for word in ("const", "default"):
        if word in flat and _is_plain(flat[word]) and flat[word] is not None:
            made[word] = _value(flat[word], types)
    return made


def _all_texts(allowed: list[Any]) -> bool:
    return all(isinstance(value, str) for value in allowed)


def _value(value: Any, types: list[str]) -> Any:
    """YAML reads the values of `type: string, enum: [1, 2]` as numbers; texts are meant."""
    if types and not set(types) - {"string", "null"} and not isinstance(value, str | None):
        return json.dumps(value)
    return value


def _is_plain(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return abs(value) <= _EXACT
    return value is None or isinstance(value, str)


def bounds(flat: Mapping[str, Any], types: tuple[str, ...]) -> tuple[dict[str, Any], list[str]]:
    """What limits a value, and what had to be left out of that."""
    made: dict[str, Any] = {}
    said: list[str] = []
    for kind in types:
        for word in _COUNTS.get(kind, ()):
            if type(flat.get(word)) is int and 0 <= flat[word] <= _EXACT:
                made[word] = flat[word]
    if "number" in types or "integer" in types:
        made |= _limits(flat)
    if "array" in types and flat.get("uniqueItems") is True:
        made["uniqueItems"] = True
    if "string" in types:
        if isinstance(flat.get("format"), str):
            made["format"] = flat["format"][:40]
        pattern = flat.get("pattern")
        if isinstance(pattern, str) and _usable(pattern):
            made["pattern"] = pattern
        elif pattern is not None:
            said.append("a pattern was left out that not every engine can run safely")
    return made, said


def _limits(flat: Mapping[str, Any]) -> dict[str, Any]:
    made = {
        word: flat[word]
        for word in _LIMITS
        if isinstance(flat.get(word), int | float)
        and not isinstance(flat[word], bool)
        and _is_plain(flat[word])
    }
    # In 3.0 the exclusive ones are booleans beside the plain ones.
    for word, plain in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if flat.get(word) is True and plain in made:
            made[word] = made.pop(plain)
    if made.get("multipleOf", 1) <= 0:
        del made["multipleOf"]
    return made


@lru_cache(maxsize=1024)
def _usable(pattern: str) -> bool:
    if len(pattern) > 1000 or is_catastrophic(pattern):
        return False
    try:
        compile_schema({"type": "string", "pattern": pattern})
    except ValueError:
        return False
    return True
