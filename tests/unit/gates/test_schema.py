"""The schema gate: every misfit, with its place, in one pass."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal.codes import Code
from counterseal.contract.schemas import compile_schema
from counterseal.gates.base import Verdict
from counterseal.gates.schema import check, field_errors
from counterseal.testing import fake_tool

SCHEMA = {
    "type": "object",
    "properties": {
        "case_id": {"type": "string", "pattern": "^case_[0-9]{6}$", "description": "The case."},
        "limit": {"type": "integer", "minimum": 1, "maximum": 50, "description": "How many."},
        "kind": {"type": "string", "enum": ["letter", "email"], "description": "Which."},
        "note": {
            "anyOf": [{"type": "string", "maxLength": 5}, {"type": "null"}],
            "description": "A note.",
        },
        "tags": {
            "type": "array",
            "maxItems": 2,
            "uniqueItems": True,
            "items": {"type": "string", "maxLength": 5},
            "description": "Tags.",
        },
        "to": {
            "description": "Where.",
            "oneOf": [
                {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["street"],
                    "properties": {"street": {"type": "string", "maxLength": 9}},
                },
                {"type": "integer"},
            ],
        },
    },
    "required": ["case_id"],
    "additionalProperties": False,
}
TOOL = fake_tool("find_notices", input_schema=SCHEMA).tool
OK = {"case_id": "case_000001"}

# arguments, code, place, what the error says of it
MISFITS = {
    "missing": ({}, "STRUCTURAL_VIOLATION", "/case_id", "present", "missing"),
    "extra": ({**OK, "x": 1}, "STRUCTURAL_VIOLATION", "", "declared fields only", "object"),
    "type": ({"case_id": 7}, "TYPE_MISMATCH", "/case_id", "string", "integer"),
    "a boolean is no integer": (
        {**OK, "limit": True},
        "TYPE_MISMATCH",
        "/limit",
        "integer",
        "boolean",
    ),
    "pattern": ({"case_id": "7"}, "OUT_OF_BOUNDS", "/case_id", "a text that matches", "string"),
    "maximum": ({**OK, "limit": 51}, "OUT_OF_BOUNDS", "/limit", "at most 50", "integer"),
    "enum": ({**OK, "kind": "fax"}, "OUT_OF_BOUNDS", "/kind", "one of letter, email", "string"),
    "an item": ({**OK, "tags": ["a", 3]}, "TYPE_MISMATCH", "/tags/1", "string", "integer"),
    "too many items": ({**OK, "tags": list("abc")}, "OUT_OF_BOUNDS", "/tags", "at most 2", "array"),
    "no union member": ({**OK, "note": 3}, "TYPE_MISMATCH", "/note", "null or string", "integer"),
    "a bound in a union": (
        {**OK, "note": "too long"},
        "OUT_OF_BOUNDS",
        "/note",
        "at most 5",
        "string",
    ),
    "shape in a union": (
        {**OK, "to": {}},
        "STRUCTURAL_VIOLATION",
        "/to/street",
        "present",
        "missing",
    ),
}


@pytest.mark.parametrize("case", MISFITS)
def test_a_misfit_names_place_expectation_and_actual_type(case, context):
    arguments, code, field, expected, actual = MISFITS[case]
    decision = check(context(TOOL, arguments))
    assert decision.verdict is Verdict.DENY
    assert decision.code == code
    (error,) = decision.field_errors
    assert (error.field, error.code, error.actual) == (field, code, actual)
    assert expected in error.expected
    assert error.message


def test_all_misfits_are_listed_and_the_earliest_kind_names_the_code(context):
    arguments = {"limit": "many", "kind": "fax", "surplus": 1}
    decision = check(context(TOOL, arguments))
    assert decision.code is Code.STRUCTURAL_VIOLATION
    found = {(error.field, error.code) for error in decision.field_errors}
    assert found == {
        ("", "STRUCTURAL_VIOLATION"),
        ("/case_id", "STRUCTURAL_VIOLATION"),
        ("/limit", "TYPE_MISMATCH"),
        ("/kind", "OUT_OF_BOUNDS"),
    }
    without_structure = check(context(TOOL, {**OK, "limit": "many", "kind": "fax"}))
    assert without_structure.code is Code.TYPE_MISMATCH


def test_what_fits_passes(context):
    assert check(context(TOOL, {**OK, "limit": 3, "note": None})).verdict is Verdict.ALLOW


SECRET = "hunter2-s3cr3t"


@given(
    st.dictionaries(
        st.sampled_from(["case_id", "limit", "kind", "note", "tags", "to"]),
        st.sampled_from([SECRET, [SECRET] * 4, {"street": SECRET}, {SECRET: 1}, 99]),
    )
)
def test_no_error_ever_shows_a_value(arguments):
    validator = compile_schema(SCHEMA)
    errors = list(field_errors(validator, arguments))
    assert bool(errors) is not validator.is_valid(arguments)
    # A name that the model made up is its own word; a value may be somebody's secret.
    shown = repr([error for error in errors if "extra fields" not in error.message])
    assert SECRET not in shown


def test_a_flood_of_errors_is_cut_short(context):
    arguments = {**OK, **{f"x{n}": n for n in range(5000)}, "tags": [1] * 5000}
    decision = check(context(TOOL, arguments))
    assert len(decision.field_errors) <= 50
    assert len(repr(decision)) < 20_000
