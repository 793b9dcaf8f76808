import copy

import jsonschema_rs
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from counterseal.canonical import canonical
from counterseal.contract.schema_diff import compare_schemas
from counterseal.contract.schemas import subschemas


def obj(properties=None, required=(), **more):
    return {
        "type": "object",
        "properties": properties or {},
        "required": list(required),
        "additionalProperties": False,
        **more,
    }


def judged(old, new, side="input"):
    return [(change.breaking, change.message) for change in compare_schemas(old, new, side=side)]


TEXT = {"type": "string", "maxLength": 20}


def of_field(before, after, side="input", *, required=True):
    names = ["x"] if required else []
    return judged(obj({"x": before}, names), obj({"x": after}, names), side)


# --- the table ------------------------------------------------------------------------------------

TIGHTER = [
    ({"type": "string"}, {"type": "string", "maxLength": 5}),
    (TEXT, {"type": "string", "maxLength": 19}),
    ({"type": "integer", "minimum": 1}, {"type": "integer", "minimum": 2}),
    ({"type": "array"}, {"type": "array", "minItems": 1}),
    ({"type": "array"}, {"type": "array", "uniqueItems": True}),
    ({"type": "array", "items": TEXT}, {"type": "array", "items": {**TEXT, "maxLength": 3}}),
    ({"type": "number"}, {"type": "integer"}),
    ({"type": ["string", "null"]}, {"type": "string"}),
    ({"type": "string"}, {"type": "string", "enum": ["a"]}),
    ({"enum": ["a", "b"]}, {"enum": ["a"]}),
    ({"enum": ["a", "b"]}, {"const": "b"}),
    ({"type": "string"}, {"type": "string", "pattern": "^a"}),
    ({"type": "string"}, {"type": "string", "format": "date"}),
    ({}, {"type": "string"}),
    (True, False),
    ({"anyOf": [TEXT, {"type": "null"}]}, {"anyOf": [TEXT]}),
    ({"anyOf": [TEXT, {"type": "null"}]}, TEXT),
    ({"type": ["string", "null"], "maxLength": 20}, {"anyOf": [TEXT]}),
    (obj({}, additionalProperties=True), obj({})),
    (obj({"y": TEXT}), obj({"y": TEXT}, ["y"])),
    ({"oneOf": [TEXT, {"type": "null"}]}, {"oneOf": [TEXT]}),
]


@pytest.mark.parametrize(("wide", "narrow"), TIGHTER)
def test_tightening_breaks_callers_and_loosening_breaks_readers(wide, narrow):
    assert any(breaking for breaking, _ in of_field(wide, narrow, "input"))
    assert any(breaking for breaking, _ in of_field(narrow, wide, "output"))


@pytest.mark.parametrize(("wide", "narrow"), TIGHTER)
def test_loosening_suits_callers_and_tightening_suits_readers(wide, narrow):
    for found in (of_field(narrow, wide, "input"), of_field(wide, narrow, "output")):
        assert found
        assert not any(breaking for breaking, _ in found)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"type": "string"}, {"type": "integer"}),
        ({"enum": ["a", "b"]}, {"enum": ["b", "c"]}),
        ({"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "^b"}),
        ({"type": "integer", "multipleOf": 2}, {"type": "integer", "multipleOf": 3}),
        ({"not": {"type": "string"}}, {"not": {"type": "null"}}),
        ({"enum": [True]}, {"enum": [1]}),
        ({"madeUp": 1}, {"madeUp": 2}),
        ({"$ref": "https://example.org/a"}, {"$ref": "https://example.org/b"}),
        ({"type": "array", "prefixItems": [TEXT]}, {"type": "array", "prefixItems": []}),
        ({"allOf": [TEXT, {"minLength": 1}]}, {"allOf": [{"minLength": 2}]}),
        ({"minimum": "one"}, {"minimum": 1}),
        ({"properties": 3}, {"properties": 4}),
    ],
)
def test_what_can_not_be_called_harmless_breaks_both_sides(before, after):
    for side in ("input", "output"):
        assert any(breaking for breaking, _ in of_field(before, after, side))


@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (TEXT, {**TEXT, "description": "A name."}),
        (TEXT, {**TEXT, "x-unit": "letters"}),
        ({"enum": ["a", "b"]}, {"enum": ["b", "a"]}),
        ({"const": "a"}, {"enum": ["a"]}),
        ({"type": "array"}, {"type": "array", "uniqueItems": False}),
        ({"type": "string"}, {"type": "string", "minLength": 0}),
        ({"type": ["string", "null"]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        ({"anyOf": [TEXT, {"type": "null"}]}, {"anyOf": [{"type": "null"}, TEXT]}),
        (True, {}),
        (1, 1.0),
    ],
)
def test_another_way_to_say_the_same_is_no_break(before, after, side):
    assert not any(breaking for breaking, _ in of_field(before, after, side))


# --- fields ---------------------------------------------------------------------------------------


def test_added_fields():
    grown = obj({"x": TEXT}, ["x"]), obj({"x": TEXT, "y": TEXT}, ["x"])
    demanded = obj({"x": TEXT}, ["x"]), obj({"x": TEXT, "y": TEXT}, ["x", "y"])
    assert judged(*grown) == [(False, "input y was added")]
    assert judged(*demanded) == [(True, "input y was added, and is required")]
    assert judged(*grown, "output") == judged(*demanded, "output")
    assert judged(*grown, "output") == [(False, "output y was added")]


@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize("required", [[], ["x"]])
def test_removed_field_breaks(side, required):
    assert judged(obj({"x": TEXT}, required), obj(), side) == [(True, f"{side} x was removed")]


def test_requirement_of_a_field_that_was_there():
    free, demanded = obj({"x": TEXT}), obj({"x": TEXT}, ["x"])
    assert judged(free, demanded) == [(True, "input now requires x")]
    assert judged(demanded, free) == [(False, "input no longer requires x")]
    assert judged(demanded, free, "output") == [(True, "output no longer requires x")]


def test_default_breaks_only_those_who_relied_on_it():
    before, after = {**TEXT, "default": "a"}, {**TEXT, "default": "b"}
    assert of_field(before, after, required=False) == [(True, 'input x has default "b", had "a"')]
    assert of_field(before, after, required=True)[0][0] is False
    assert of_field(before, after, "output", required=False)[0][0] is False


def test_place_is_said_as_a_path_and_as_words():
    before = obj({"order": obj({"lines": {"type": "array", "items": obj({"amount": TEXT})}})})
    after = obj({"order": obj({"lines": {"type": "array", "items": obj({"amount": {}})}})})
    (change,) = compare_schemas(before, after, side="output")
    assert change.message == "output order.lines[].amount is wider"
    place = after
    for step in change.path:
        place = place[step]
    assert place == {}


# --- references -----------------------------------------------------------------------------------


def with_definition(name, definition, site=None):
    reference = {"$ref": f"#/$defs/{name}", **(site or {})}
    return obj({"a": reference, "b": reference}, **{"$defs": {name: definition}})


def test_change_in_a_definition_is_told_once_and_where_it_stands():
    before, after = with_definition("Name", TEXT), with_definition("Name", {"type": "string"})
    (change,) = compare_schemas(before, after, side="output")
    assert change.path == ("$defs", "Name", "maxLength")
    assert change.breaking


def test_renamed_definition_is_compatible():
    assert judged(with_definition("Name", TEXT), with_definition("Title", TEXT)) == [
        (False, "input is written differently, with the same meaning")
    ]


def test_definition_written_out_in_place_is_compatible():
    inline = obj({"a": {**TEXT, "description": "A."}, "b": TEXT})
    referring = with_definition("Name", TEXT, site={"description": "A."})
    for found in (judged(inline, referring), judged(referring, inline)):
        assert found == [(False, "input b has a different description")] or not any(
            breaking for breaking, _ in found
        )


def test_notes_beside_each_reference_are_seen():
    before = with_definition("Name", TEXT, site={"description": "Old."})
    after = with_definition("Name", TEXT, site={"description": "New."})
    assert [message for _, message in sorted(judged(before, after))] == [
        "input a has a different description",
        "input b has a different description",
    ]


def test_definition_used_only_where_no_one_can_walk_is_compared_too():
    before = obj({"a": {"not": {"$ref": "#/$defs/Name"}}}, **{"$defs": {"Name": TEXT}})
    after = obj({"a": {"not": {"$ref": "#/$defs/Name"}}}, **{"$defs": {"Name": {}}})
    assert judged(before, after) == [(True, "input Name has a different definition")]


def test_definition_that_restricts_beside_its_reference_is_not_guessed_at():
    before = with_definition("Name", TEXT, site={"maxLength": 5})
    after = obj({"a": {**TEXT, "maxLength": 9}, "b": TEXT})
    assert any(breaking for breaking, _ in judged(before, after))


def test_schemas_that_refer_to_themselves_come_to_an_end():
    def tree(**leaf):
        node = obj({"value": {"type": "string", **leaf}, "next": {"$ref": "#/$defs/Node"}})
        return obj({"root": {"$ref": "#/$defs/Node"}}, **{"$defs": {"Node": node}})

    assert judged(tree(), tree(maxLength=5)) == [(True, "input Node.value now has maxLength 5")]
    assert judged(tree(), obj({"root": {}})) == [(False, "input root is wider")]
    loop = {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}
    assert judged(loop, TEXT)


def chain(length, leaf):
    definitions = {f"D{i}": {"$ref": f"#/$defs/D{i + 1}"} for i in range(length)}
    return {"$ref": "#/$defs/D0", "$defs": {**definitions, f"D{length}": leaf}}


def test_chain_of_references_longer_than_the_stack_is_followed():
    (change,) = compare_schemas(chain(3000, TEXT), chain(3000, {"type": "string"}), side="input")
    assert change.path == ("$defs", "D3000", "maxLength")


def ring(length):
    definitions = {
        f"D{i}": obj({"next": {"$ref": f"#/$defs/D{(i + 1) % length}"}, "text": TEXT})
        for i in range(length)
    }
    return {"$ref": "#/$defs/D0", "$defs": definitions}


@pytest.mark.slow
def test_comparison_that_would_not_end_is_given_up_as_breaking():
    assert (True, "input is too complex to compare") in judged(ring(149), ring(151))


# --- properties -----------------------------------------------------------------------------------

bounds = st.integers(0, 4)
texts = st.fixed_dictionaries(
    {"type": st.just("string")},
    optional={
        "minLength": bounds,
        "maxLength": bounds,
        "pattern": st.sampled_from(["a", "^b"]),
        "enum": st.lists(st.sampled_from(["", "a", "ab", "b"]), min_size=1, unique=True),
        "const": st.sampled_from(["a", "b"]),
        "title": st.just("A text."),
    },
)
numbers = st.fixed_dictionaries(
    {"type": st.sampled_from(["integer", "number", ["integer", "null"]])},
    optional={
        "minimum": bounds,
        "maximum": bounds,
        "exclusiveMinimum": bounds,
        "multipleOf": st.integers(1, 3),
    },
)
references = st.sampled_from(["A", "B"]).map(lambda name: {"$ref": f"#/$defs/{name}"})
leaves = st.one_of(
    texts, numbers, references, st.just({}), st.booleans(), st.just({"type": "null"})
)


def nest(inner):
    arrays = st.fixed_dictionaries(
        {"type": st.just("array")},
        optional={
            "items": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "contains": inner,
            "minItems": bounds,
            "maxItems": bounds,
            "uniqueItems": st.booleans(),
        },
    )
    objects = st.builds(
        lambda properties, required: obj(properties, sorted(required)),
        st.dictionaries(st.sampled_from("xyz"), inner, max_size=2),
        st.sets(st.sampled_from("xyz"), max_size=1),
    )
    options = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        arrays,
        objects,
        options.map(lambda items: {"anyOf": items}),
        options.map(lambda items: {"allOf": items}),
        inner.map(lambda item: {"not": item}),
        st.tuples(texts, options).map(lambda both: {**both[0], "anyOf": both[1]}),
    )


parts = st.recursive(leaves, nest, max_leaves=5)
roots = st.builds(
    lambda root, one, other: {**obj({"x": root}), "$defs": {"A": one, "B": other}},
    parts,
    st.one_of(texts, numbers, nest(st.one_of(texts, references))),
    st.one_of(texts, numbers),
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(0, 5), st.sampled_from(["", "a", "ab", "b"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("xyz"), inner, max_size=2)
    ),
    max_leaves=5,
)


@st.composite
def steps(draw):
    """A schema and a version of it with a few places changed."""
    old = draw(roots)
    new = copy.deepcopy(old)
    for _ in range(draw(st.integers(1, 3))):
        places = [new["properties"], *(inner for _, inner in subschemas(new) if inner is not new)]
        place = places[draw(st.integers(0, len(places) - 1))]
        if place is new["properties"]:
            wider = {"anyOf": [place["x"], {"type": "null"}]}
            place["x"] = copy.deepcopy(draw(parts)) if draw(st.booleans()) else wider
        elif place and draw(st.booleans()):
            del place[draw(st.sampled_from(sorted(place)))]
        else:
            place.update(copy.deepcopy(draw(st.one_of(texts, numbers, nest(texts)))))
    return old, new


@pytest.mark.slow
@given(steps(), st.lists(values, min_size=10, max_size=20), st.sampled_from(["input", "output"]))
@settings(max_examples=100, deadline=None)
def test_schemas_not_said_to_break_keep_their_promise(step, asked, side):
    old, new = step
    changes = compare_schemas(old, new, side=side)
    # Readers are expected to pass over fields that they don't know.
    grown = side == "output" and any("was added" in change.message for change in changes)
    if grown or any(change.breaking for change in changes):
        return
    promised, delivered = map(validator, (old, new) if side == "input" else (new, old))
    for value in ({"x": value} for value in asked):
        assert not promised.is_valid(value) or delivered.is_valid(value)


def validator(schema):
    try:
        return jsonschema_rs.Draft202012Validator(schema)
    except (ValueError, jsonschema_rs.ValidationError):
        reject()  # a change left a reference without its definition


words = ["type", "properties", "required", "items", "anyOf", "allOf", "enum", "const", "$ref"]
words += ["$defs", "minimum", "maxLength", "default", "title", "not", "prefixItems", "x-a"]
junk = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from(["", "string", "#"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(words), inner, max_size=4),
    ),
    max_leaves=12,
)


@pytest.mark.slow
@given(junk, junk, st.sampled_from(["input", "output"]))
@settings(max_examples=100)
def test_any_two_values_can_be_compared_and_only_equal_ones_show_no_change(old, new, side):
    assert bool(compare_schemas(old, new, side=side)) is (canonical(old) != canonical(new))
    assert not compare_schemas(old, copy.deepcopy(old), side=side)
