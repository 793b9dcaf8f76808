"""Converts OpenAPI schemas, 3.0 and 3.1, to self-contained JSON Schema 2020-12.

`allOf` is merged, so that inputs can be closed. References become `$defs`, which keeps recursive
types. Inputs are closed and bounded. Outputs stay open, because APIs add fields, and are checked by
type only, because APIs often violate their formats.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from counterseal.canonical import SAFE_INTEGER, canonical
from counterseal.contract.lint.dangerous_inputs import is_credential
from counterseal.contract.lint.schema_rules import fields
from counterseal.contract.schemas import compile_schema, types_of, word_set
from counterseal.contract.sources.foreign_text import clean, unique
from counterseal.contract.sources.openapi.document import (
    OpenApiDocument,
    UnsupportedError,
    listed,
    mapping,
)

ANNOTATIONS = word_set(
    "title description summary example examples default deprecated readOnly writeOnly nullable "
    "discriminator xml externalDocs"
)

_TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
_COUNTS = {
    "string": ("minLength", "maxLength"),
    "array": ("minItems", "maxItems"),
    "object": ("minProperties", "maxProperties"),
}
_LIMITS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_IMPLIED = (
    ("object", ("properties", "additionalProperties", "required", *_COUNTS["object"])),
    ("array", ("items", "prefixItems", *_COUNTS["array"])),
    ("string", ("pattern", *_COUNTS["string"])),
    ("number", _LIMITS),
)
"""Types with the keywords that imply them; the first one counts."""


def types_in(flat: Mapping[str, Any]) -> list[str]:
    """Return the types that a schema names or implies, with `null` if it is nullable."""
    named = [word for word in types_of(flat) if word in _TYPES]
    if not named:
        named = [word for word, keywords in _IMPLIED if not flat.keys().isdisjoint(keywords)][:1]
    if named and flat.get("nullable") is True and "null" not in named:
        named.append("null")
    return named


def values(flat: Mapping[str, Any], types: list[str]) -> dict[str, Any]:
    """Return `enum`, `const` and `default`, without values that JSON can't represent exactly."""
    only_texts = types and not set(types) - {"string", "null"}

    def value(given: Any) -> Any:
        # YAML reads `enum: [1, 2]` as numbers, even where only strings fit.
        return json.dumps(given) if only_texts and not isinstance(given, str | None) else given

    result: dict[str, Any] = {}
    allowed = [value(one) for one in listed(flat.get("enum")) if _is_exact(one)]
    if allowed:
        if "null" in types and None not in allowed:
            allowed.append(None)
        all_texts = all(isinstance(one, str) for one in allowed)
        result["enum"] = list(dict.fromkeys(allowed)) if all_texts else allowed
    for word in ("const", "default"):
        if word in flat and _is_exact(flat[word]) and flat[word] is not None:
            result[word] = value(flat[word])
    return result


def _is_exact(value: object) -> bool:
    """Return whether a value is a scalar that every JSON reader reads the same way."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return abs(value) <= SAFE_INTEGER
    return value is None or isinstance(value, str)


def bounds(flat: Mapping[str, Any], types: tuple[str, ...]) -> dict[str, Any]:
    """Return the keywords that limit a value of these types."""
    counts = [word for kind in types for word in _COUNTS.get(kind, ())]
    result = {
        word: flat[word]
        for word in counts
        if type(flat.get(word)) is int and 0 <= flat[word] <= SAFE_INTEGER
    }
    if "number" in types or "integer" in types:
        numbers = [word for word in _LIMITS if type(flat.get(word)) in (int, float)]
        result |= {word: flat[word] for word in numbers if _is_exact(flat[word])}
        # In 3.0 the exclusive limits are booleans beside the inclusive ones.
        for word, plain in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if flat.get(word) is True and plain in result:
                result[word] = result.pop(plain)
        if result.get("multipleOf", 1) <= 0:
            del result["multipleOf"]
    if "array" in types and flat.get("uniqueItems") is True:
        result["uniqueItems"] = True
    if "string" in types and isinstance(flat.get("format"), str):
        result["format"] = flat["format"][:40]
    return result


@lru_cache(maxsize=1024)
def is_usable(pattern: str) -> bool:
    """Return whether a pattern is short, and the linear-time engine of the gates can run it."""
    if len(pattern) > 1000:
        return False
    try:
        compile_schema({"type": "string", "pattern": pattern})
    except ValueError:
        return False
    return True


MAX_LENGTH = 2_000
MAX_ITEMS = 100
_MOST_COMPILED = 4_000_000
_MOST_TYPES = 250
_DEEPEST = 30
_DEEPEST_PARTS = 60
_MOST_STEPS = 100_000
_LONGEST_DESCRIPTION = 300
_ALTERNATIVES = ("anyOf", "oneOf")
_SHORT = frozenset({"date", "date-time", "time", "duration", "uuid", "email", "ipv4", "ipv6"})
"""Formats that limit the length of a string."""


class Converter:
    """Converts the schemas of one input or output. `notes` has what was changed or invented."""

    def __init__(self, document: OpenApiDocument, *, output: bool = False) -> None:
        self.notes: dict[str, None] = {}
        self._document = document
        self._output = output
        self._defs: dict[str, Any] = {}
        self._names: dict[str, str] = {}
        self._waiting: list[str] = []
        self._depth = 0
        self._left = _MOST_STEPS
        self._within: list[str] = []
        """The references that are being flattened, outermost first."""

    def convert(self, schema: object) -> dict[str, Any]:
        """Return a converted schema. `definitions` converts the types that it refers to."""
        given = mapping(schema)
        self._spend()
        self._depth += 1
        try:
            if self._depth > _DEEPEST:
                raise UnsupportedError("its types are nested too deeply")
            if "$ref" in given and not set(given) - {"$ref", *ANNOTATIONS}:
                return self._reference(given)
            return self._plain(self.flat(given))
        finally:
            self._depth -= 1

    def definitions(self) -> dict[str, Any]:
        """Return every type that converted schemas refer to, directly or not."""
        while self._waiting:
            reference = self._waiting.pop(0)
            self._defs[self._names[reference]] = self.convert(self._document.target(reference))
        return self._defs

    def flat(self, schema: object, depth: int = 0) -> dict[str, Any]:
        """Return a schema with its references and its `allOf` merged."""
        given = mapping(schema)
        self._spend()
        if depth > _DEEPEST_PARTS:
            raise UnsupportedError("its types are nested too deeply")
        parts = [self._target(given["$ref"], depth)] if "$ref" in given else []
        parts += [self.flat(branch, depth + 1) for branch in listed(given.get("allOf"))]
        own = {key: value for key, value in given.items() if key not in ("$ref", "allOf")}
        merged: dict[str, Any] = {}
        for part in (*parts, own):
            merged = self._merged(merged, part)
        return merged

    def _target(self, reference: object, depth: int) -> dict[str, Any]:
        """Return the flattened target of a reference, cached for the whole document."""
        target = self._document.target(reference)
        named = str(reference)
        known = self._document.flat
        if named in self._within:
            raise UnsupportedError("one of its types is made of itself")
        if named not in known:
            self._within.append(named)
            try:
                known[named] = self.flat(target, depth + 1)
            finally:
                self._within.pop()
        return known[named]

    def _spend(self, steps: int = 1) -> None:
        """Count steps. Raise UnsupportedError over the limit: references can expand without end."""
        self._left -= steps
        self._document.steps_left -= steps
        if self._left < 0 or self._document.steps_left < 0:
            raise UnsupportedError("its types unfold into too much")

    def kinds(self, schema: object) -> set[str]:
        """Return every type that a value may have."""
        kinds: set[str] = set()
        visited: set[str] = set()
        waiting = [schema]
        while waiting:
            given = mapping(waiting.pop())
            if not set(given) - {"$ref", *ANNOTATIONS}:
                reference = str(given.get("$ref"))
                if reference in visited:
                    continue
                visited.add(reference)
            flat = self.flat(given)
            kinds |= set(types_in(flat))
            waiting += [branch for word in _ALTERNATIVES for branch in listed(flat.get(word))]
        return kinds

    def _reference(self, given: Mapping[str, Any]) -> dict[str, Any]:
        reference = given["$ref"]
        self._document.target(reference)
        if reference not in self._names:
            if len(self._names) == _MOST_TYPES:
                raise UnsupportedError(f"it is made of more than {_MOST_TYPES} types")
            last = re.sub(r"[^A-Za-z0-9_.-]+", "_", str(reference).rpartition("/")[2]) or "type"
            taken = {name.lower() for name in self._names.values()}
            self._names[reference] = unique(last, taken)
            self._waiting.append(reference)
        result: dict[str, Any] = {"$ref": f"#/$defs/{self._names[reference]}"}
        if given.get("nullable") is True:
            result = {"anyOf": [result, {"type": "null"}]}
        return result | _described(given)

    def _plain(self, flat: Mapping[str, Any]) -> dict[str, Any]:
        alternatives = [listed(flat.get(word)) for word in _ALTERNATIVES if listed(flat.get(word))]
        if alternatives:
            return self._choice(flat, alternatives)
        types = types_in(flat)
        result = {} if self._output else values(flat, types)
        if not types and result.keys().isdisjoint(("enum", "const")):
            return self._anything() | _described(flat)
        if types:
            result = {"type": types[0] if len(types) == 1 else types, **result}
        if "object" in types:
            result |= self._object(flat)
        if "array" in types:
            prefix = [self.convert(item) for item in listed(flat.get("prefixItems"))]
            result |= {"prefixItems": prefix} if prefix else {}
            items = flat.get("items")
            result["items"] = False if items is False else self.convert(items)
        return self._bounded(result, flat) | _described(flat)

    def _choice(self, flat: Mapping[str, Any], alternatives: list[Any]) -> dict[str, Any]:
        """Return a choice of types. Shared keywords are merged into each, so that each closes."""
        if len(alternatives) > 1:
            raise UnsupportedError("a type offers two sets of alternatives at once")
        words = (*_ALTERNATIVES, "nullable", *ANNOTATIONS)
        shared = {key: value for key, value in flat.items() if key not in words}
        if shared == {"type": "object"} or self._output:
            shared = {}
        branches = [
            self.convert({"allOf": [shared, branch]} if shared else branch)
            for branch in alternatives[0]
        ]
        if flat.get("nullable") is True:
            branches.append({"type": "null"})
        kept = list({repr(branch): branch for branch in branches}.values())
        return ({"anyOf": kept} if len(kept) > 1 else kept[0]) | _described(flat)

    def _anything(self) -> dict[str, Any]:
        if self._output:
            return {}
        self.notes["the document says no type: plain values are taken"] = None
        return {"type": ["string", "number", "boolean", "null"], "maxLength": MAX_LENGTH}

    def _object(self, flat: Mapping[str, Any]) -> dict[str, Any]:
        required = [name for name in listed(flat.get("required")) if isinstance(name, str)]
        properties = {}
        for name, value in self.fields(flat):
            if self._output or not is_credential(name):
                properties[name] = self.convert(value)
            elif name in required:
                raise UnsupportedError(f"it wants {name}, a credential, deep in its body")
            else:
                self.notes[f"{name} was left out: a credential is for no model to write"] = None
        result: dict[str, Any] = {"properties": properties} if properties else {}
        if kept := [name for name in dict.fromkeys(required) if name in properties]:
            result["required"] = kept
        rest = flat.get("additionalProperties")
        if isinstance(rest, Mapping) and rest:
            result["additionalProperties"] = self.convert(rest)
        elif not self._output:
            result["additionalProperties"] = self._anything() if not properties else False
        return result

    def fields(self, flat: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield the properties of this direction: no readOnly inputs, no writeOnly outputs."""
        other_way = "writeOnly" if self._output else "readOnly"
        for name, value in mapping(flat.get("properties")).items():
            if mapping(value).get(other_way) is not True:
                yield name, value

    def _bounded(self, result: dict[str, Any], flat: Mapping[str, Any]) -> dict[str, Any]:
        """Return the schema with the document's bounds, and for inputs with default bounds."""
        if self._output:
            return result
        types = types_of(result)
        result |= bounds(flat, types)
        pattern = flat.get("pattern")
        if "string" in types and isinstance(pattern, str) and is_usable(pattern):
            result["pattern"] = pattern
        elif "string" in types and pattern is not None:
            self.notes["a pattern was left out that can't be run in linear time"] = None
        known = {"maxLength", "enum", "const"} & set(result)
        if "string" in types and not known and result.get("format") not in _SHORT:
            result["maxLength"] = max(MAX_LENGTH, result.get("minLength", 0))
            self.notes[f"a length of {MAX_LENGTH:,} was invented"] = None
        if "array" in types and "maxItems" not in result and result.get("items") is not False:
            result["maxItems"] = max(MAX_ITEMS, result.get("minItems", 0))
            self.notes[f"a length of {MAX_ITEMS} items was invented"] = None
        return result

    def _merged(self, under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
        """Return the merge of two schemas of one value."""
        if any(listed(under.get(word)) and listed(over.get(word)) for word in _ALTERNATIVES):
            raise UnsupportedError("a type offers two sets of alternatives at once")
        merged = {**under, **over}
        ours, theirs = mapping(under.get("properties")), mapping(over.get("properties"))
        required = [*listed(under.get("required")), *listed(over.get("required"))]
        self._spend(len(merged) + len(ours) + len(theirs) + len(required))
        if ours or theirs:
            merged["properties"] = {**ours, **theirs}
            for name in ours:
                if name in theirs and not self._same(ours[name], theirs[name]):
                    merged["properties"][name] = {"allOf": [ours[name], theirs[name]]}
        if required:
            merged["required"] = list(
                dict.fromkeys(name for name in required if isinstance(name, str))
            )
        return merged

    def _same(self, first: Any, second: Any) -> bool:
        """Return whether two schemas are equal, and count the steps: `==` could take too long."""
        waiting = [(first, second)]
        while waiting:
            left, right = waiting.pop()
            if left is right:
                continue
            self._spend()
            if isinstance(left, Mapping) and isinstance(right, Mapping):
                if left.keys() != right.keys():
                    return False
                waiting += [(left[key], right[key]) for key in left]
            elif isinstance(left, list) and isinstance(right, list):
                if len(left) != len(right):
                    return False
                waiting += list(zip(left, right, strict=True))
            elif type(left) is not type(right) or left != right:
                return False
        return True


def drop_bad_defaults(root: dict[str, Any]) -> None:
    """Remove defaults that violate their schema, and all of them if there are too many to check."""
    shared: dict[str, Any] = {word: root[word] for word in ("$defs", "definitions") if word in root}
    with_default = [
        value for _, _, value in fields(root) if isinstance(value, dict) and "default" in value
    ]
    # Each check compiles all definitions, here and wherever the contract is read.
    too_much = len(with_default) * len(canonical(shared)) > _MOST_COMPILED
    for value in with_default:
        try:
            fits = not too_much and compile_schema({**value, **shared}).is_valid(value["default"])
        except ValueError:
            fits = False
        if not fits:
            del value["default"]


def size_of(schema: Mapping[str, Any]) -> int:
    """Return the size of a finished schema in bytes."""
    try:
        return len(canonical(schema))
    except ValueError:
        raise UnsupportedError("it holds what JSON can't keep") from None


def _described(given: Mapping[str, Any]) -> dict[str, str]:
    text = clean(given.get("description"), _LONGEST_DESCRIPTION)
    return {"description": text} if text else {}
