"""Definitions: what is taken in, what is refused, and what the hash covers."""

import copy
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal.contract.sources.mcp.definition import MAX_BYTES, Definition

WIRE = {
    "name": "find/note.v2",
    "title": "Find a note",
    "description": "Find one note.",
    "inputSchema": {
        "type": "object",
        "properties": {"limit": {"type": "integer", "maximum": 10, "default": True}},
    },
    "outputSchema": {"type": "object", "properties": {"note": {"type": "string"}}},
    "annotations": {"readOnlyHint": True, "title": "Find"},
}

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.text("ab\u200b\u0430", max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner),
    max_leaves=8,
)


def changed(**changes):
    return {**copy.deepcopy(WIRE), **changes}


def test_what_is_pinned_is_exactly_the_six_fields():
    extra = changed(icons=[{"src": "x"}], _meta={"a": 1}, execution={"taskSupport": "forbidden"})
    definition = Definition.of(extra)
    assert definition.record() == WIRE
    assert definition == Definition.of(WIRE)
    assert definition.hash.startswith("sha256:")


def test_what_was_not_said_is_not_in_the_record():
    bare = Definition.of({"name": "a", "inputSchema": {"type": "object"}})
    assert bare.record() == {"name": "a", "description": "", "inputSchema": {"type": "object"}}
    nulls = {"title": None, "description": None, "outputSchema": None, "annotations": None}
    assert Definition.of({"name": "a", "inputSchema": {"type": "object"}, **nulls}) == bare
    hints = {"readOnlyHint": None, "title": None}
    said = Definition.of({"name": "a", "inputSchema": {"type": "object"}, "annotations": hints})
    assert said == bare


def test_a_record_reads_back_as_the_same_definition():
    definition = Definition.of(WIRE)
    assert Definition.of(json.loads(json.dumps(definition.record()))) == definition


def test_neither_the_order_of_keys_nor_the_spelling_of_numbers_counts():
    again = dict(reversed(WIRE.items()))
    again["inputSchema"] = {
        "properties": {"limit": {"default": True, "maximum": 10.0, "type": "integer"}},
        "type": "object",
    }
    assert Definition.of(again).hash == Definition.of(WIRE).hash


@pytest.mark.parametrize(
    "change",
    [
        {"name": "find/note.v3"},
        {"title": "Find a Note"},
        {"title": None},
        {"description": "Find one note. "},
        {"description": "Find one note\u200b."},
        {"description": "Find \u043ene note."},
        {"inputSchema": {"type": "object"}},
        {"outputSchema": None},
        {"outputSchema": {}},
        {"annotations": {"readOnlyHint": False, "title": "Find"}},
        {"annotations": {"readOnlyHint": True, "title": "Find", "more": 1}},
    ],
)
def test_everything_else_does(change):
    assert Definition.of(changed(**change)) != Definition.of(WIRE)


def test_true_is_not_one():
    one = changed()
    one["inputSchema"]["properties"]["limit"]["default"] = 1
    assert Definition.of(one) != Definition.of(WIRE)


@given(one=JSON, other=JSON)
def test_two_definitions_are_equal_exactly_when_their_json_is(one, other):
    both = [changed(inputSchema={"type": "object", "x": value}) for value in (one, other)]
    texts = [json.dumps(wire, sort_keys=True) for wire in both]
    first, second = map(Definition.of, both)
    assert (first == second) is (texts[0] == texts[1])
    assert (hash(first) == hash(second)) is (first == second)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": None}, "name is missing"),
        ({"name": 7}, "name must be a string"),
        ({"name": ""}, "1 to 128"),
        ({"name": "a" * 129}, "1 to 128"),
        ({"name": "a b"}, "1 to 128"),
        ({"name": "name\n"}, "1 to 128"),
        ({"name": "n\u0430me"}, "1 to 128"),
        ({"title": 0}, "title must be a string"),
        ({"description": ["x"]}, "description must be a string"),
        ({"description": "half \ud800"}, "description contains a lone surrogate"),
        ({"inputSchema": None}, "inputSchema must be an object"),
        ({"inputSchema": {}}, 'inputSchema must have "type": "object"'),
        ({"inputSchema": {"type": ["object"]}}, 'inputSchema must have "type": "object"'),
        ({"inputSchema": {"type": "object", "x": "\udfff"}}, "inputSchema: /x: a lone surrogate"),
        ({"inputSchema": {"type": "object", "x": float("nan")}}, "inputSchema: /x: NaN"),
        ({"inputSchema": {"type": "object", "x": 2**60 + 1}}, "inputSchema: /x: no double holds"),
        ({"inputSchema": {"type": "object", "x": {1, 2}}}, "inputSchema: /x: set is not"),
        ({"inputSchema": {"type": "object", 1: 2}}, "inputSchema: value: the key 1"),
        ({"inputSchema": {"type": "object", "a\0": 2}}, "contains a NUL"),
        ({"description": "a\0b"}, "contains a NUL"),
        ({"outputSchema": "any"}, "outputSchema must be an object"),
        ({"annotations": []}, "annotations must be an object"),
        ({"annotations": {"readOnlyHint": "true"}}, "annotations.readOnlyHint must be true or"),
        ({"description": "x" * MAX_BYTES}, "the limit is 262,144"),
    ],
)
def test_what_is_no_definition_is_refused_with_the_reason(change, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        Definition.of(changed(**change))


def test_a_backslash_before_the_letters_of_an_escape_is_no_nul():
    for text in ("\\u0000", "\\\\u0000"):
        assert Definition.of({**WIRE, "description": text}).description == text
    with pytest.raises(ValueError, match="NUL"):
        Definition.of({**WIRE, "description": "\\\0"})


def test_a_definition_can_not_nest_for_ever():
    deep = value = {}
    for _ in range(100_000):
        value["x"] = {}
        value = value["x"]
    with pytest.raises(ValueError, match="nested deeper"):
        Definition.of(changed(inputSchema={"type": "object", "x": deep}))


def test_what_is_not_even_an_object_is_refused():
    with pytest.raises(ValueError, match="must be an object"):
        Definition.of(["name"])


def test_a_definition_can_not_be_changed_afterwards():
    given = changed()
    definition = Definition.of(given)
    given["inputSchema"]["properties"]["more"] = {}
    assert definition == Definition.of(WIRE)
    with pytest.raises(TypeError):
        definition.input_schema["type"] = "string"
