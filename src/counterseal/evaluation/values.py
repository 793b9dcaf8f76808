"""Values from JSON Schema: one that fits, those at a boundary, and those that break one rule.

The same schema always gives the same values. A value that can't be made, such as a text for a
difficult pattern, is a NoValueError, so that the author can give an example instead.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from typing import Any, Final, NamedTuple

from counterseal.canonical import canonical, pointer, thaw
from counterseal.contract.schemas import (
    Path,
    Schema,
    compile_schema,
    listed,
    properties_of,
    types_of,
    without_refs,
)
from counterseal.errors import CountersealError

_DEPTH: Final = 4
"""Nesting levels in which violations are made."""
_DEEPEST: Final = 12
"""Nesting levels of a value; a schema that needs more contains itself."""
_MOST: Final = 20_000
"""Longer texts and lists are not made."""
_FORMATS: Final = {
    "date": "2026-01-15",
    "date-time": "2026-01-15T12:00:00Z",
    "time": "12:00:00Z",
    "duration": "P1D",
    "email": "someone@example.org",
    "hostname": "example.org",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.org/",
    "uuid": "123e4567-e89b-42d3-a456-426614174000",
}
_LATER: Final = {"date": "2031-12-31", "date-time": "2031-12-31T12:00:00Z", "time": "23:00:00Z"}
_OF_TYPE: Final[dict[str, Any]] = {
    "string": "text",
    "integer": 7,
    "number": 7.5,
    "boolean": True,
    "null": None,
    "array": ["item"],
    "object": {"key": "value"},
}


class NoValueError(CountersealError):
    """No value that fits a schema could be made."""


class Variant(NamedTuple):
    """A value with a name for what is special about it."""

    name: str
    place: str
    """JSON Pointer to the changed part."""
    value: Any


def fitting(schema: Schema) -> Any:
    """Return the smallest value made here that fits the schema. NoValueError if there is none."""
    value = _fitting(schema, schema, 0)
    error = next(compile_schema(schema).iter_errors(value), None)
    if error is not None:
        place = pointer(*error.instance_path) or "the whole value"
        raise NoValueError(f"no value could be made for {place}: {error.message}")
    return value


def boundaries(schema: Schema, good: Mapping[str, Any]) -> Iterator[Variant]:
    """Yield objects that fit, each with one property at a boundary, as a choice, or left out."""
    fits = compile_schema(schema).is_valid
    required = listed(schema, "required")
    for name, inner in properties_of(schema).items():
        for label, value in _edges(schema, inner):
            changed = {**good, name: value}
            if fits(changed):
                yield Variant(f"{name} {label}", pointer(name), changed)
        if name in good and name not in required:
            yield Variant(f"{name} left out", pointer(name), _without(good, name))


def single_violations(schema: Schema, good: Mapping[str, Any]) -> Iterator[Variant]:
    """Yield objects that do not fit, each because of one change of a good one."""
    fits = compile_schema(schema).is_valid
    for name, path, value in _breaks(schema, schema, good, 0):
        if not fits(value):
            yield Variant(name, pointer(*path), value)


def choices(schema: Schema, name: str) -> list[Any]:
    """Return values of one property that are worth trying, for a search."""
    inner = properties_of(schema).get(name, {})
    return [value for _, value in _edges(schema, inner)]


# --- values that fit ------------------------------------------------------------------------------


def _fitting(root: Schema, raw: Any, depth: int) -> Any:
    schema = _whole(root, raw)
    for word in ("const", "default"):
        if word in schema:
            return thaw(schema[word])
    for word in ("examples", "enum"):
        if listed(schema, word):
            return thaw(listed(schema, word)[0])
    for option in (*listed(schema, "anyOf"), *listed(schema, "oneOf")):
        return _fitting(root, {**_without(schema, "anyOf", "oneOf"), **_whole(root, option)}, depth)
    if depth > _DEEPEST:
        raise NoValueError("the schema contains itself, and every value would be endless")
    kind = next(iter(types_of(schema)), "object" if "properties" in schema else "string")
    make = _MAKERS.get(kind)
    return _OF_TYPE[kind] if make is None else make(root, schema, depth)


def _object(root: Schema, schema: Schema, depth: int) -> dict[str, Any]:
    named, wanted = properties_of(schema), listed(schema, "required")
    return {name: _fitting(root, named.get(name, {}), depth + 1) for name in wanted}


def _list(root: Schema, schema: Schema, depth: int) -> list[Any]:
    count = max(schema.get("minItems", 0), min(1, schema.get("maxItems", 1)))
    return _items(root, schema, count, depth)


def _whole(root: Schema, raw: Any) -> dict[str, Any]:
    """Return a schema with its references and the schemas of its `allOf` merged into it."""
    schema = dict(without_refs(root, raw))
    for part in listed(schema, "allOf"):
        inner = _whole(root, part)
        both = {**properties_of(schema), **properties_of(inner)}
        required = [*listed(schema, "required"), *listed(inner, "required")]
        schema = {**inner, **schema, "properties": both, "required": required}
    return schema


def _items(root: Schema, schema: Schema, count: int, depth: int) -> list[Any]:
    first = listed(schema, "prefixItems")
    rest = schema.get("items", {})
    made = [
        _fitting(root, first[n] if n < len(first) else rest, depth + 1)
        for n in range(min(count, _MOST))
    ]
    if not schema.get("uniqueItems") or len(made) < 2:
        return made
    different = {canonical(value): value for _, value in _edges(root, rest)}
    return [*different.values()][:count]


def _number(schema: Schema, *, whole: bool) -> Any:
    least, most = schema.get("minimum"), schema.get("maximum")
    step = schema.get("multipleOf") or (1 if whole else 0.5)
    if least is None and "exclusiveMinimum" in schema:
        least = schema["exclusiveMinimum"] + step
    if most is None and "exclusiveMaximum" in schema:
        most = schema["exclusiveMaximum"] - step
    value = least if least is not None else 1 if most is None else min(1, most)
    if "multipleOf" in schema:
        value = -(-value // step) * step
    return int(value) if whole else value


def _text(schema: Schema) -> str:
    least, most = schema.get("minLength", 0), schema.get("maxLength", _MOST)
    if "pattern" in schema:
        return _matching(schema["pattern"], least, most)
    if schema.get("format") in _FORMATS:
        return _FORMATS[schema["format"]]
    return _length("text", max(least, min(4, most)))


def _length(text: str, count: int) -> str:
    return (text * (count // len(text) + 1))[:count]


_MAKERS: Final[Mapping[str, Callable[[Schema, Schema, int], Any]]] = {
    "object": _object,
    "array": _list,
    "string": lambda _root, schema, _depth: _text(schema),
    "integer": lambda _root, schema, _depth: _number(schema, whole=True),
    "number": lambda _root, schema, _depth: _number(schema, whole=False),
}


# --- boundaries -----------------------------------------------------------------------------------


def _edges(root: Schema, raw: Any) -> Iterator[tuple[str, Any]]:
    """Yield values of one schema: its choices, its smallest, its largest, the usual one."""
    schema = _whole(root, raw)
    options = (*listed(schema, "anyOf"), *listed(schema, "oneOf"))
    if options:
        yield from chain.from_iterable(_edges(root, option) for option in options)
        return
    if listed(schema, "enum"):
        yield from ((f"is {value!r}", value) for value in schema["enum"])
        return
    types = types_of(schema)
    yield from (edge for kind, edge in _CONSTANTS if kind in types)
    if schema.get("format") in _LATER:
        yield "much later", _LATER[schema["format"]]
    for word, (most, make) in _LIMITS.items():
        limit = schema.get(word)
        if limit is not None and limit <= most:
            yield f"at its {word}", make(root, schema, limit)
    with suppress(NoValueError):
        yield "with a usual value", _fitting(root, schema, 0)


_CONSTANTS: Final = (
    ("boolean", ("is true", True)),
    ("boolean", ("is false", False)),
    ("null", ("is null", None)),
)
_TEXT_LIMIT: Final = (_MOST, lambda _root, _schema, limit: _length("text", limit))
_LIST_LIMIT: Final = (1000, lambda root, schema, limit: _items(root, schema, limit, 0))
_LIMITS: Final[Mapping[str, tuple[float, Callable[[Schema, Schema, Any], Any]]]] = {
    "minimum": (math.inf, lambda _root, _schema, limit: limit),
    "maximum": (math.inf, lambda _root, _schema, limit: limit),
    "minLength": _TEXT_LIMIT,
    "maxLength": _TEXT_LIMIT,
    "minItems": _LIST_LIMIT,
    "maxItems": _LIST_LIMIT,
}
"""Keywords with a boundary, the largest one that is tried, and what makes a value at it."""


# --- violations -----------------------------------------------------------------------------------

Break = tuple[str, Path, Any]


def _breaks(root: Schema, raw: Any, good: Any, depth: int) -> Iterator[Break]:
    """Yield (name, path, changed value) for each single change that may break the schema."""
    schema = _whole(root, raw)
    options = [_whole(root, one) for one in (*listed(schema, "anyOf"), *listed(schema, "oneOf"))]
    if options:
        schema = next((one for one in options if "null" not in types_of(one)), options[0])
    wrong = (_wrong_type, _wrong_number, _wrong_text, _wrong_list)
    for label, value in chain.from_iterable(make(schema, good) for make in wrong):
        yield label, (), value
    if isinstance(good, Mapping):
        yield from _broken_objects(root, schema, good, depth)
    elif isinstance(good, Sequence) and not isinstance(good, str) and good and depth < _DEPTH:
        for label, path, changed in _breaks(root, schema.get("items", {}), good[0], depth + 1):
            yield _at("[0]", label), (0, *path), [changed, *good[1:]]


def _broken_objects(
    root: Schema, schema: Schema, good: Mapping[str, Any], depth: int
) -> Iterator[Break]:
    for name in listed(schema, "required"):
        yield f"{name} is missing", (name,), _without(good, name)
    yield "an unknown property", ("not_a_property",), {**good, "not_a_property": 1}
    for name, inner in properties_of(schema).items() if depth < _DEPTH else ():
        with suppress(NoValueError):
            usual = good[name] if name in good else _fitting(root, inner, 0)
            for label, path, changed in _breaks(root, inner, usual, depth + 1):
                yield _at(name, label), (name, *path), {**good, name: changed}


def _at(name: str, label: str) -> str:
    return f"{name}{label}" if label.startswith("[") else f"{name} {label}"


def _wrong_type(schema: Schema, _good: Any) -> Iterator[tuple[str, Any]]:
    types = types_of(schema)
    if types:
        numeric = "number" in types
        others = (kind for kind in _OF_TYPE if kind not in types and kind != "null")
        kind = next(one for one in others if not (numeric and one == "integer"))
        yield f"is of the type {kind}", _OF_TYPE[kind]
        if "null" not in types:
            yield "is null", None
    if "enum" in schema or "const" in schema:
        yield "is not one of its choices", "not a choice"


def _wrong_number(schema: Schema, good: Any) -> Iterator[tuple[str, Any]]:
    types, step = types_of(schema), schema.get("multipleOf", 1)
    if "integer" in types and "number" not in types:
        yield "is a fraction", 1.5
    for word, change in (("minimum", -step), ("maximum", step)):
        if word in schema:
            yield f"is beyond its {word}", schema[word] + change
    for word in ("exclusiveMinimum", "exclusiveMaximum"):
        if word in schema:
            yield f"is its {word}", schema[word]
    if "multipleOf" in schema and isinstance(good, int | float):
        yield "is no multiple", good + step / 2


def _wrong_text(schema: Schema, _good: Any) -> Iterator[tuple[str, Any]]:
    if schema.get("minLength", 0) > 0:
        yield "is too short", _length("text", schema["minLength"] - 1)
    if schema.get("maxLength", _MOST) < _MOST:
        yield "is too long", _length("text", schema["maxLength"] + 1)
    if "pattern" in schema or "format" in schema:
        yield "has another form", "\N{SNOWMAN} not this form"


def _wrong_list(schema: Schema, good: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(good, Sequence) or isinstance(good, str):
        return
    if schema.get("minItems", 0) > 0:
        yield "has too few items", list(good[: schema["minItems"] - 1])
    if schema.get("maxItems", 1000) < 1000 and good:
        yield "has too many items", [good[0]] * (schema["maxItems"] + 1)
    if schema.get("uniqueItems") and good:
        yield "has an item twice", [*good, good[0]]


def _without(value: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: item for key, item in value.items() if key not in names}


# --- texts for a pattern --------------------------------------------------------------------------


@lru_cache(maxsize=1000)
def _matching(pattern: str, least: int, most: int) -> str:
    """Return a text that matches, with as few repetitions as the length allows."""
    for more in (0, 1, 2, 4, 8, 16, 32, 64, 128):
        try:
            text, rest = _alternatives(pattern, 0, more)
            compiled = re.compile(pattern)
        except (IndexError, ValueError, re.error):
            break
        if rest == len(pattern) and least <= len(text) <= most and compiled.search(text):
            return text
    raise NoValueError(f"no text could be made for the pattern {pattern}")


def _alternatives(pattern: str, at: int, more: int) -> tuple[str, int]:
    """Return a text for the first alternative of a group, and where the group ends."""
    text, at = _sequence(pattern, at, more)
    while at < len(pattern) and pattern[at] == "|":
        _, at = _sequence(pattern, at + 1, more)
    return text, at


def _sequence(pattern: str, at: int, more: int) -> tuple[str, int]:
    text = ""
    while at < len(pattern) and pattern[at] not in "|)":
        atom, at = _atom(pattern, at, more)
        low, high, at = _repetition(pattern, at)
        text += atom * min(high, low + more)
    return text, at


def _atom(pattern: str, at: int, more: int) -> tuple[str, int]:
    char = pattern[at]
    if char in "^$":
        return "", at + 1
    if char == "(":
        start = at + 1
        if pattern.startswith("?", start):
            start = pattern.index(":", start) + 1  # lookarounds and named groups are refused below
            if pattern[at + 2] != ":":
                raise ValueError(pattern)
        text, end = _alternatives(pattern, start, more)
        return text, end + 1
    if char == "[":
        return _one_of(pattern, at + 1)
    if char == "\\":
        known = {"d": "1", "w": "a", "s": " ", "b": "", "D": "a", "W": "-", "S": "a"}
        return known.get(pattern[at + 1], pattern[at + 1]), at + 2
    return ("a" if char == "." else char), at + 1


def _one_of(pattern: str, at: int) -> tuple[str, int]:
    """Return a character of a class, and where the class ends."""
    end = pattern.index("]", at + (2 if pattern[at] == "^" else 1))
    inside = pattern[at:end]
    if inside.startswith("^"):
        allowed = re.compile(f"[{inside}]")
        return next(char for char in "a1 -_A.~" if allowed.match(char)), end + 1
    text, _ = _atom(inside, 0, 0) if inside[0] == "\\" else (inside[0], 0)
    return text, end + 1


def _repetition(pattern: str, at: int) -> tuple[int, int, int]:
    """Return the fewest and the most repetitions of what is before, and where they end."""
    rest = pattern[at:]
    found = re.match(r"\{(\d+)(,(\d*))?\}", rest)
    if found:
        low = int(found[1])
        high = low if found[2] is None else int(found[3]) if found[3] else low + 128
    elif rest[:1] in ("*", "+", "?"):
        low, high = {"*": (0, 128), "+": (1, 128), "?": (0, 1)}[rest[0]]
    else:
        return 1, 1, at
    at += found.end() if found else 1
    return low, high, at + (1 if pattern[at : at + 1] == "?" else 0)
