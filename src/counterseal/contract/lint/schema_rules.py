"""Rules on schemas: valid, self-contained, closed, typed, described and bounded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any
from urllib.parse import unquote

from counterseal.canonical import canonical, pointer
from counterseal.contract.lint.rule import Breach, rule
from counterseal.contract.model import Contract
from counterseal.contract.outputs import is_blocks
from counterseal.contract.schemas import (
    DIALECT,
    check_schema,
    compile_schema,
    direct_parts,
    inner_values,
    listed,
    parts,
    places,
    properties_of,
    resolve_local,
    subschemas,
    types_of,
    without_refs,
)

INPUT = ("affordance", "input_schema")
OUTPUT = ("affordance", "output_schema")
MAX_BYTES = 256 * 1024

_REST = ("additionalProperties", "unevaluatedProperties")
_ITEMS = frozenset({"items", "prefixItems", "unevaluatedItems"})
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


def both(contract: Contract) -> Iterator[tuple[tuple[str, str], Mapping[str, Any]]]:
    yield INPUT, contract.affordance.input_schema
    yield OUTPUT, contract.affordance.output_schema


def fields(schema: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str, Any]]:
    """Yield every named property in a schema: its path, name and schema."""
    for path, inner in subschemas(schema):
        for name, value in properties_of(inner).items():
            yield (*path, "properties", name), name, value


@rule("schema-invalid", "schemas are valid JSON Schema 2020-12")
def schema_invalid(contract: Contract) -> Iterator[Breach]:
    for place, schema in both(contract):
        # Broken references have their own rules; the rest is checked without following them.
        self_contained = not _remote(schema) and not list(_cycles(schema))
        try:
            (compile_schema if self_contained else check_schema)(schema)
        except ValueError as error:
            yield Breach(place, f"the schema is not valid: {error}", "Use JSON Schema 2020-12.")


@rule("schema-dialect", "schemas are written in JSON Schema 2020-12")
def schema_dialect(contract: Contract) -> Iterator[Breach]:
    for place, schema in both(contract):
        for path, inner in subschemas(schema):
            dialect = inner.get("$schema", DIALECT)
            if str(dialect).rstrip("#") != DIALECT:
                fault = "the dialect is not JSON Schema 2020-12"
                fix = f"Use {DIALECT}, or leave $schema out."
                yield Breach((*place, *path, "$schema"), fault, fix)


@rule("schema-not-object", "input and output are objects")
def schema_not_object(contract: Contract) -> Iterator[Breach]:
    for place, schema in both(contract):
        if types_of(schema) != ("object",):
            yield Breach(place, "the type is not object", 'Set "type": "object" at the top.')


@rule("schema-too-large", "schemas stay below 256 KiB")
def schema_too_large(contract: Contract) -> Iterator[Breach]:
    for place, schema in both(contract):
        size = len(canonical(schema))
        if size > MAX_BYTES:
            fault = f"the schema has {size:,} bytes; the limit is {MAX_BYTES:,}"
            yield Breach(place, fault, "Split the tool, or move closed lists into the tool itself.")


@rule("schema-ref-remote", "schemas are self-contained")
def schema_ref_remote(contract: Contract) -> Iterator[Breach]:
    for place, schema in both(contract):
        for path, reference in _remote(schema):
            fault = f"refers outside the contract: {reference[:80]}"
            fix = "Copy the definition into $defs and refer to it with #/$defs/…."
            yield Breach((*place, *path), fault, fix)


def _remote(schema: Mapping[str, Any]) -> list[tuple[tuple[str | int, ...], str]]:
    return [
        ((*path, word), str(inner[word]))
        for path, inner in subschemas(schema)
        for word in _REFERENCES
        if word in inner and not str(inner[word]).startswith("#")
    ]


@rule("schema-ref-cycle", "references are not circular")
def schema_ref_cycle(contract: Contract) -> Iterator[Breach]:
    for place, schema in both(contract):
        for reference in _cycles(schema):
            fault = f"{reference} refers to itself without describing anything"
            fix = "Break the cycle: a recursive type must pass through properties or items."
            yield Breach(f"{pointer(*place)}{reference[1:]}", fault, fix)


def _cycles(root: Mapping[str, Any]) -> Iterator[str]:
    """Yield references that reach themselves without going deeper into the value."""
    leads_to: dict[str, set[str]] = {}
    waiting = {str(inner["$ref"]) for _, inner in subschemas(root) if "$ref" in inner}
    while waiting:
        reference = waiting.pop()
        target = resolve_local(root, reference)
        # Without a root, the parts are those that apply to the same value, references unfollowed.
        beside = parts({}, target)
        leads_to[reference] = {str(part["$ref"]) for part in beside if "$ref" in part}
        waiting |= leads_to[reference] - leads_to.keys()
    for reference in sorted(leads_to):
        seen: set[str] = set()
        ahead = leads_to[reference]
        while ahead - seen:
            seen |= ahead
            ahead = {further for ref in ahead for further in leads_to.get(ref, ())}
        if reference in seen:
            yield reference


@rule("schema-open", "input schema is closed at every level")
def schema_open(contract: Contract) -> Iterator[Breach]:
    yield from _open_objects(INPUT, contract.affordance.input_schema)


@rule("output-open", "output schema is closed at every level", warning=True)
def output_open(contract: Contract) -> Iterator[Breach]:
    if not is_blocks(contract.affordance.output_schema):
        yield from _open_objects(OUTPUT, contract.affordance.output_schema)


def _open_objects(place: tuple[str, str], schema: Mapping[str, Any]) -> Iterator[Breach]:
    for path, inner in places(schema):
        if is_type("object", schema, inner) and not _is_closed(schema, inner, ()):
            fault = "the object accepts undeclared fields"
            yield Breach((*place, *path), fault, 'Set "additionalProperties": false.')


def is_type(name: str, root: Mapping[str, Any], schema: Mapping[str, Any]) -> bool:
    """Return whether a schema names a type, or leaves that to parts of which one does."""
    if "type" in schema:
        return name in types_of(schema)
    return any(
        name in types_of(part) or ("properties" in part and name == "object")
        for part in parts(root, schema)
    )


def _is_closed(root: Mapping[str, Any], schema: Any, within: tuple[int, ...]) -> bool:
    """Return whether a schema refuses, or describes, every field that an object could have."""
    if not isinstance(schema, Mapping) or id(schema) in within:
        return schema is False
    if not {"type", "enum", "const"}.isdisjoint(schema) and not is_type("object", root, schema):
        return True
    if any(schema.get(word, True) not in (True, {}) for word in _REST):
        return True
    here = (*within, id(schema))
    inner = list(direct_parts(root, schema))
    if any(_is_closed(root, part, here) for word, part in inner if word in ("allOf", "$ref")):
        return True
    choices = [[part for word, part in inner if word == choice] for choice in ("anyOf", "oneOf")]
    return any(
        branches and all(_is_closed(root, branch, here) for branch in branches)
        for branches in choices
    )


@rule("parameter-untyped", "parameters have a type")
def parameter_untyped(contract: Contract) -> Iterator[Breach]:
    schema = contract.affordance.input_schema
    for path, inner in subschemas(schema):
        for step, value in inner_values(inner):
            if says_type(value):
                continue
            if step[0] == "properties":
                fault, fix = f"{step[1]} has no type", 'Give it a "type", an "enum" or a "$ref".'
            else:
                fault, fix = "the value can be anything", 'Give it a "type".'
            yield Breach((*INPUT, *path, *step), fault, fix)
    for path, inner in places(schema):
        says_items = any(not _ITEMS.isdisjoint(part) for part in parts(schema, inner))
        if is_type("array", schema, inner) and not says_items:
            where = (*INPUT, *path, "items")
            yield Breach(where, "the value can be anything", 'Give it a "type".')


def says_type(schema: Any) -> bool:
    """Return whether a schema limits the type of its values."""
    if not isinstance(schema, Mapping):
        return schema is False
    if any(word in schema for word in ("type", "enum", "const", "$ref")):
        return True
    for word in ("anyOf", "oneOf"):
        branches = listed(schema, word)
        if branches:
            return all(says_type(branch) for branch in branches)
    return any(says_type(part) for part in listed(schema, "allOf"))


@rule("default-invalid", "defaults match their schema")
def default_invalid(contract: Contract) -> Iterator[Breach]:
    schema = contract.affordance.input_schema
    definitions: dict[str, Any] = {
        word: schema[word] for word in ("$defs", "definitions") if word in schema
    }
    if _remote(schema) or any(_cycles(schema)):
        return
    for path, name, value in fields(schema):
        if not isinstance(value, Mapping) or "default" not in value:
            continue
        try:
            fits = compile_schema({**value, **definitions}).is_valid(value["default"])
        except ValueError:
            continue  # reported by schema-invalid
        if not fits:
            fault = f"the default of {name} does not match its schema"
            yield Breach((*INPUT, *path, "default"), fault)


@rule("schema-ref-misplaced", "references point to existing definitions")
def schema_ref_misplaced(contract: Contract) -> Iterator[Breach]:
    for place, schema in both(contract):
        seen = {f"#{pointer(*path)}" for path, _ in subschemas(schema)}
        for path, inner in subschemas(schema):
            for word in _REFERENCES:
                reference = inner.get(word)
                local = isinstance(reference, str) and reference.startswith("#")
                if local and (word != "$ref" or unquote(str(reference)) not in seen):
                    fault = f"{str(reference)[:80]} does not point to a schema in this document"
                    fix = "Put the definition into $defs and refer to it with #/$defs/…."
                    yield Breach((*place, *path, word), fault, fix)


def _undescribed(contract: Contract, *, top: bool) -> Iterator[Breach]:
    schema = contract.affordance.input_schema
    for path, name, value in fields(schema):
        described = str(without_refs(schema, value).get("description", "")).strip()
        if (len(path) == 2) is top and isinstance(value, Mapping) and not described:
            fault = f"{name} has no description"
            yield Breach((*INPUT, *path), fault, "Say what it is and where its value comes from.")


rule("parameter-undescribed", "parameters have a description", strict=True)(
    partial(_undescribed, top=True)
)
rule("field-undescribed", "nested fields have a description", warning=True)(
    partial(_undescribed, top=False)
)


@rule("input-unbounded", "strings and arrays have a maximum length", warning=True)
def input_unbounded(contract: Contract) -> Iterator[Breach]:
    for path, inner in subschemas(contract.affordance.input_schema):
        types = types_of(inner)
        stated = any(word in inner for word in ("maxLength", "enum", "const", "format"))
        if "string" in types and not stated and not is_bounded(inner.get("pattern")):
            fault = "the text can have any length"
            fix = 'Give it a "maxLength", an "enum" or a bounded "pattern".'
            yield Breach((*INPUT, *path), fault, fix)
        if "array" in types and "maxItems" not in inner and inner.get("items") is not False:
            yield Breach((*INPUT, *path), "the list can have any length", 'Give it a "maxItems".')


_ONE_CHARACTER = re.compile(r"\\.|\[\^?\]?(?:\\.|[^]\\])*\]")


def is_bounded(pattern: Any) -> bool:
    """Return whether a pattern spans the whole text and has no endless repetition."""
    plain = _ONE_CHARACTER.sub("x", pattern) if isinstance(pattern, str) else ""
    endless = re.search(r"[*+]|\{\d*,\}", plain)
    while (outer := re.sub(r"\([^()]*\)", "x", plain)) != plain:
        plain = outer
    return not endless and re.fullmatch(r"\^[^|()]*\$", plain) is not None


@rule("example-invalid", "examples match its input schema")
def example_invalid(contract: Contract) -> Iterator[Breach]:
    schema = contract.affordance.input_schema
    if not contract.affordance.examples or list(_cycles(schema)):
        return
    try:
        validator = compile_schema(schema)
    except ValueError:
        return  # reported by schema-invalid
    for index, example in enumerate(contract.affordance.examples):
        for error in validator.iter_errors(example.arguments):
            yield Breach(
                ("affordance", "examples", index, "arguments", *error.instance_path),
                f"the example does not match the input schema: {error.message}",
                "Correct the example, or the schema.",
            )
