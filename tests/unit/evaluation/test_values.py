"""Values made from JSON Schema."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterseal.contract.schemas import compile_schema
from counterseal.evaluation.values import NoValueError, boundaries, fitting, single_violations

SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["id", "amount", "lines"],
    "properties": {
        "id": {"type": "string", "pattern": r"^(drf|case)_[0-9a-f]{8}$"},
        "amount": {"type": "integer", "minimum": 1, "maximum": 100},
        "kind": {"enum": ["a", "b"]},
        "note": {"anyOf": [{"type": "string", "maxLength": 5}, {"type": "null"}]},
        "lines": {
            "type": "array",
            "minItems": 1,
            "maxItems": 3,
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["sku"],
                "properties": {"sku": {"type": "string", "minLength": 2}},
            },
        },
    },
}


def test_the_smallest_value_has_the_required_parts_only():
    assert fitting(SCHEMA) == {"id": "drf_00000000", "amount": 1, "lines": [{"sku": "text"}]}


def test_boundaries_fit_and_reach_both_ends():
    found = list(boundaries(SCHEMA, fitting(SCHEMA)))
    assert all(compile_schema(SCHEMA).is_valid(one.value) for one in found)
    assert {1, 100} <= {one.value["amount"] for one in found}
    assert {1, 3} <= {len(one.value["lines"]) for one in found}
    assert {"a", "b"} <= {one.value.get("kind") for one in found}


def test_each_violation_breaks_one_place():
    found = list(single_violations(SCHEMA, fitting(SCHEMA)))
    assert not any(compile_schema(SCHEMA).is_valid(one.value) for one in found)
    names = {one.name for one in found}
    assert {
        "id is missing",
        "id has another form",
        "amount is beyond its minimum",
        "amount is beyond its maximum",
        "amount is a fraction",
        "kind is not one of its choices",
        "lines has too few items",
        "lines has too many items",
        "lines[0] sku is too short",
        "an unknown property",
    } <= names


@pytest.mark.parametrize(
    "pattern",
    [
        r"^[A-Z]{2}\d{4,}$",
        r"^(?:ab|cd)+x?$",
        r"\w+@\w+\.org",
        r"^[^a]b*$",
        r"^[\w.-]{3,9}$",
        "^.+$",
    ],
)
def test_a_text_is_made_for_a_usual_pattern(pattern):
    schema = {"type": "string", "pattern": pattern, "minLength": 3}
    assert compile_schema(schema).is_valid(fitting(schema))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^a$", "minLength": 5},
        {"type": "string", "pattern": "(?=x)y"},
        {"type": "integer", "minimum": 5, "maximum": 4},
        {"type": "object", "required": ["me"], "properties": {"me": {"$ref": "#"}}},
    ],
)
def test_where_no_value_can_be_made_it_says_so(schema):
    with pytest.raises(NoValueError):
        fitting(schema)


_NUMBERS = st.integers(-50, 50)


@settings(max_examples=60, deadline=None)
@given(low=_NUMBERS, span=st.integers(0, 20), short=st.integers(0, 9), more=st.integers(0, 9))
def test_what_is_made_fits_and_what_is_broken_does_not(low, span, short, more):
    schema = {
        "type": "object",
        "additionalProperties": False,
        "required": ["n"],
        "properties": {
            "n": {"type": "integer", "minimum": low, "maximum": low + span},
            "t": {"type": "string", "minLength": short, "maxLength": short + more},
        },
    }
    valid, good = compile_schema(schema).is_valid, fitting(schema)
    assert valid(good)
    assert all(valid(one.value) for one in boundaries(schema, good))
    assert not any(valid(one.value) for one in single_violations(schema, good))
    assert fitting(schema) == good
