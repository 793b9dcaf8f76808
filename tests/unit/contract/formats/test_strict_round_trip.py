"""Made-up schemas and calls through strict mode and back.

A `Made` is a schema with a strategy for pairs: a value that the schema takes, and what is expected
back. The two differ only where a null that is also the default comes back as nothing.
"""

import dataclasses
import json
import math
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from counterseal.canonical import freeze
from counterseal.contract.formats.strict_schema import convert

NAMES = st.sampled_from(["a", "b", "kind", "value", "type", "properties", "$ref", "ü/~ %", "x.y"])
TEXTS = st.text(max_size=5)
INTEGERS = st.integers(-(2**53) + 1, 2**53 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False).map(lambda x: 0.0 if x == 0 else x)
OBJECT = {"type": "object", "additionalProperties": False}


@dataclasses.dataclass
class Made:
    schema: dict
    pairs: st.SearchStrategy
    nullable: bool = False


def same(values):
    return values.map(lambda value: (value, value))


def constant(value):
    return st.just((value, value))


SCALARS = [
    Made({"type": "string", "maxLength": 5}, same(TEXTS)),
    Made({"type": "string", "format": "uuid"}, same(st.uuids().map(str))),
    Made({"type": "string", "format": "uri-reference", "minLength": 1}, same(st.just("#x"))),
    Made({"type": "integer", "maximum": 2**53 - 1}, same(INTEGERS)),
    Made({"type": "number"}, same(INTEGERS | FLOATS)),
    Made({"type": "boolean"}, same(st.booleans())),
    Made({"type": "null"}, constant(None), nullable=True),
    Made({"type": ["string", "integer"]}, same(TEXTS | INTEGERS)),
    Made({"type": ["boolean", "null"]}, same(st.booleans() | st.none()), nullable=True),
    Made(
        {"enum": ["x", 1, True, None]}, same(st.sampled_from(["x", 1, True, None])), nullable=True
    ),
    Made({"type": ["string", "null"], "enum": ["x", "y"]}, same(st.sampled_from(["x", "y"]))),
    Made({"type": "string", "enum": ["x", "y"]}, same(st.sampled_from(["x", "y"]))),
    Made({"const": 0}, constant(0)),
    Made({"anyOf": [{"type": "integer"}, {"type": "number"}]}, same(INTEGERS | FLOATS)),
]


@st.composite
def described(draw, made):
    if draw(st.booleans()):
        return dataclasses.replace(made, schema={**made.schema, "description": "Some words."})
    return made


@st.composite
def arrays(draw, inner):
    item = draw(inner)
    pairs = st.lists(item.pairs, max_size=3).map(
        lambda found: ([value for value, _ in found], [expected for _, expected in found])
    )
    return Made({"type": "array", "items": item.schema, "maxItems": 3}, pairs)


@dataclasses.dataclass
class Property:
    made: Made
    required: bool
    default: Any = math.nan  # no default

    def schema(self):
        return self.made.schema if self.bare else {**self.made.schema, "default": self.default}

    @property
    def bare(self):
        return isinstance(self.default, float) and math.isnan(self.default)


@st.composite
def properties(draw, inner):
    made = draw(inner)
    found = Property(made, required=draw(st.booleans()))
    kind = draw(st.sampled_from(["none", "null", "value"]))
    if made.nullable and (kind == "null" or not found.required):
        found.default = None  # strict mode cannot express an optional null that is a value
    elif kind == "value":
        found.default = draw(made.pairs)[0]
    return found


def object_of(fields):
    """A closed object. Optional fields come and go; a null default comes back as nothing."""

    @st.composite
    def pairs(draw):
        value, expected = {}, {}
        for name, field in fields.items():
            if not field.required and draw(st.booleans()):
                continue
            value[name], expected[name] = draw(field.made.pairs)
            if value[name] is None and not field.required and field.default is None:
                del expected[name]
        return value, expected

    schema = {
        **OBJECT,
        "properties": {name: field.schema() for name, field in fields.items()},
        "required": [name for name, field in fields.items() if field.required],
    }
    return Made(schema, pairs())


@st.composite
def objects(draw, inner):
    return object_of(draw(st.dictionaries(NAMES, properties(inner), max_size=4)))


@st.composite
def mixed_unions(draw, inner):
    """Variants that differ in JSON type."""
    choices = [objects(inner), arrays(inner), st.sampled_from(SCALARS), st.just(SCALARS[6])]
    variants = [draw(choice) for choice in choices if draw(st.booleans())] or [SCALARS[0]]
    return Made(
        {"anyOf": [variant.schema for variant in variants]},
        st.one_of([variant.pairs for variant in variants]),
        nullable=any(variant.nullable for variant in variants),
    )


@st.composite
def tagged_unions(draw, inner):
    """Several objects, without optional properties: the others are refused."""
    tags = [{"const": "one"}, {"enum": ["two", 2, True]}, {"const": 1}]
    variants = []
    for tag in tags[: draw(st.integers(2, 3))]:
        values = tag.get("enum", [tag.get("const")])
        marked = Property(Made(tag, same(st.sampled_from(values))), required=True)
        fields = draw(st.dictionaries(NAMES, st.sampled_from(SCALARS), max_size=3))
        required = {name: Property(made, required=True) for name, made in fields.items()}
        variants.append(object_of({**required, "kind": marked}))
    keyword = draw(st.sampled_from(["anyOf", "oneOf"]))
    return Made(
        {keyword: [variant.schema for variant in variants]},
        st.one_of([variant.pairs for variant in variants]),
    )


DEFINITIONS = {
    "Tree": {
        **OBJECT,
        "properties": {
            "label": {"type": "string"},
            "weight": {"type": ["number", "null"], "default": None},
            "left": {"anyOf": [{"$ref": "#/$defs/Tree"}, {"type": "null"}], "default": None},
            "children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}},
        },
        "required": ["label"],
    },
    "Json": {
        "anyOf": [
            {"type": "array", "items": {"$ref": "#/$defs/Json"}},
            {"$ref": "#/$defs/Tree", "description": "A tree."},
            {"type": ["string", "null"]},
        ]
    },
    "Alias": {"$ref": "#/$defs/Json"},
    "Level": {"type": "string", "enum": ["low", "high"]},
}


@st.composite
def _trees(draw):
    value, expected = {"label": "t"}, {"label": "t"}
    if draw(st.booleans()):
        value["weight"] = draw(st.none() | st.integers(0, 9))
        if value["weight"] is not None:
            expected["weight"] = value["weight"]
    if draw(st.integers(0, 3)) == 0:
        value["left"] = None
    elif draw(st.integers(0, 3)) == 0:
        value["left"], expected["left"] = draw(trees)
    if draw(st.integers(0, 2)) == 0:
        found = draw(st.lists(trees, max_size=2))
        value["children"], expected["children"] = [v for v, _ in found], [e for _, e in found]
    return value, expected


def _listed(found):
    return [value for value, _ in found], [expected for _, expected in found]


trees = st.deferred(_trees)
jsons = st.deferred(
    lambda: trees | same(TEXTS | st.none()) | st.lists(jsons, max_size=2).map(_listed)
)
REFERENCES = [
    Made({"$ref": "#/$defs/Tree"}, trees),
    Made({"$ref": "#/$defs/Json"}, jsons, nullable=True),
    Made({"$ref": "#/$defs/Alias", "description": "Anything."}, jsons, nullable=True),
    Made({"$ref": "#/$defs/Level"}, same(st.sampled_from(["low", "high"]))),
]


def _wider(inner):
    return st.one_of(objects(inner), arrays(inner), mixed_unions(inner), tagged_unions(inner))


anything = st.recursive(st.sampled_from([*SCALARS, *REFERENCES]), _wider, max_leaves=6).flatmap(
    described
)


@st.composite
def contracts(draw):
    """An input schema, and calls to it."""
    made = draw(objects(anything))
    return Made({**made.schema, "$defs": DEFINITIONS}, made.pairs)


# --- what strict mode asks of a schema ------------------------------------------------------------

TAKEN = {
    *("type", "title", "description", "enum", "const", "anyOf", "$ref", "$defs", "properties"),
    *("required", "additionalProperties", "items", "minItems", "maxItems", "pattern", "format"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}


def strictly(schema, root=None):
    """Hold a schema against the rules, written down here once more and on their own."""
    root = schema if root is None else root
    assert set(schema) <= TAKEN
    if "$ref" in schema:
        assert set(schema) == {"$ref"}
        assert schema["$ref"] == "#" or schema["$ref"].removeprefix("#/$defs/") in root["$defs"]
        return
    if "anyOf" in schema:
        assert schema is not root
        assert set(schema) <= {"anyOf", "title", "description"}
        for variant in schema["anyOf"]:
            strictly(variant, root)
        return
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    assert len(set(types)) == len(types)
    assert {"object", "array"}.isdisjoint(types) or len(types) == 1
    assert schema.get("format", "uuid") in FORMATS
    assert ("properties" in schema) == (types == ["object"])
    if types == ["object"]:
        assert schema["additionalProperties"] is False
        assert schema["required"] == list(schema["properties"])
    if types == ["array"]:
        strictly(schema["items"], root)
    for inner in (*schema.get("properties", {}).values(), *schema.get("$defs", {}).values()):
        strictly(inner, root)


def text(value):
    return json.dumps(value, sort_keys=True)


def takes(schema, value):
    validator = jsonschema_rs.Draft202012Validator(schema, offline=True, validate_formats=True)
    return validator.is_valid(value)


@pytest.mark.slow
@settings(max_examples=70, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_every_valid_call_survives_the_way_to_strict_mode_and_back(data):
    made = data.draw(contracts())
    conversion = convert(freeze(made.schema))
    assert conversion.schema is not None, conversion.warnings
    strictly(conversion.schema)
    for _ in range(3):
        call, expected = data.draw(made.pairs)
        assert takes(made.schema, call)
        written = conversion.to_strict(freeze(call))
        assert takes(conversion.schema, written), (conversion.schema, written)
        assert text(conversion.restore(written)) == text(expected)
        assert takes(made.schema, conversion.restore(written))


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(contracts())
def test_a_schema_is_converted_the_same_way_each_time(made):
    first, second = convert(freeze(made.schema)), convert(freeze(made.schema))
    assert json.dumps(first.schema) == json.dumps(second.schema)
    assert first.warnings == second.warnings


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(contracts(), st.dictionaries(NAMES, JSON, max_size=4))
def test_a_call_that_fits_no_schema_is_passed_on_without_an_error(made, call):
    conversion = convert(freeze(made.schema))
    assert isinstance(conversion.restore(call), dict)
    assert isinstance(conversion.to_strict(call), dict)
