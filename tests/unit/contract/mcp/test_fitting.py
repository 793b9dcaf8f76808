"""A stranger's schemas are made to fit, and keep what they mean."""

import copy
import re

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterseal.contract.lint import examine
from counterseal.contract.schemas import compile_schema
from counterseal.contract.sources.mcp.fitting import MAX_LENGTH, fit_input, fit_output
from counterseal.errors import Severity


def errors(schema, output=None):
    data = {
        "effect": "retrieve",
        "identity": {"name": "get_it"},
        "affordance": {
            "model_description": "Gets it.",
            "input_schema": schema,
            "output_schema": output or {"type": "object"},
        },
        "usage": "When it is wanted.",
        "runs_code": False,
    }
    return [str(one) for one in examine(data)[1] if one.severity is Severity.ERROR]


def obj(properties, **more):
    return {"type": "object", "properties": properties, **more}


def fitted(schema):
    made = fit_input(schema)
    assert errors(made) == []
    return made


def takes(schema, value):
    return compile_schema(schema).is_valid(value)


# --- one by one -----------------------------------------------------------------------------------


def test_undeclared_arguments_are_refused():
    for said in ({}, {"additionalProperties": True}, {"additionalProperties": {}}):
        made = fitted(obj({"a": {"type": "integer"}}, **said))
        assert takes(made, {"a": 1})
        assert not takes(made, {"a": 1, "b": 1})
    assert not takes(fitted({"type": "object"}), {"a": 1})


def test_what_is_open_on_purpose_inside_an_argument_stays_open():
    made = fitted(
        obj(
            {
                "map": {"type": "object"},
                "block": obj({"kind": {"type": "string"}}, additionalProperties=True),
                "record": obj({"kind": {"type": "string"}}),
                "any": {"description": "Any JSON."},
                "list": {"type": "array"},
            }
        )
    )
    deep = {"x": [1, None, {"y": "z"}]}
    for value in (
        {"map": deep},
        {"block": {"kind": "k", **deep}},
        {"any": deep},
        {"any": "text"},
        {"list": [deep, 1]},
        {"record": {"kind": "k"}},
    ):
        assert takes(made, value)
    assert not takes(made, {"block": {"kind": 1}})
    assert not takes(made, {"record": {"kind": "k", "more": 1}})


def test_a_free_form_tool_keeps_taking_anything():
    assert takes(fitted({"type": "object", "additionalProperties": True}), {"a": {"b": 1}})


def test_texts_and_lists_are_bounded_where_they_are_not():
    made = fitted(
        obj(
            {
                "text": {"type": "string"},
                "short": {"type": "string", "maxLength": 3},
                "word": {"type": "string", "enum": ["x"]},
                "list": {"type": "array", "items": {"type": "string"}},
            }
        )
    )["properties"]
    assert made["text"]["maxLength"] == made["list"]["items"]["maxLength"] == MAX_LENGTH
    assert made["short"]["maxLength"] == 3
    assert "maxLength" not in made["word"]
    assert made["list"]["maxItems"] == MAX_LENGTH


def test_arguments_without_a_description_say_so():
    made = fitted(obj({"a": {"type": "string"}, "b": {"type": "string", "title": "The B"}}))
    assert made["properties"]["a"]["description"] == "a (its author gave no description)"
    assert made["properties"]["b"]["description"] == "The B (its author gave no description)"


def test_hidden_characters_are_taken_out_of_what_a_model_reads_and_nowhere_else():
    schema = obj({"a": {"enum": ["x\u200b"], "description": "The\u200b a.", "title": "\u202eA"}})
    made = fitted(schema)["properties"]["a"]
    assert made == {"enum": ["x\u200b"], "description": "The a.", "title": "A"}


def test_defaults_that_break_their_own_schema_are_dropped():
    made = fitted(
        obj(
            {
                "a": {"type": "string", "default": None},
                "b": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
                "c": {"$ref": "#/$defs/C", "default": 3},
            },
            **{"$defs": {"C": {"type": "string"}}},
        )
    )["properties"]
    assert "default" not in made["a"]
    assert made["b"]["default"] is None
    assert "default" not in made["c"]


def test_defaults_that_are_too_many_to_check_are_dropped():
    parts = {f"D{n}": {"type": "string", "description": "x" * 500} for n in range(100)}
    named = {f"a{n}": {"$ref": f"#/$defs/D{n % 100}", "default": "x"} for n in range(300)}
    made = fitted(obj(named, **{"$defs": parts}))["properties"]
    assert not any("default" in value for value in made.values())


def test_an_input_that_takes_too_much_to_describe_is_refused():
    with pytest.raises(ValueError, match="bytes to describe"):
        fit_input(obj({f"argument_{n}": {"type": "string"} for n in range(3000)}))


def test_words_of_older_drafts_are_rewritten():
    made = fitted(
        obj(
            {
                "pair": {
                    "type": "array",
                    "items": [{"type": "string"}, {"type": "integer"}],
                    "additionalItems": False,
                },
                "count": {"type": "integer", "minimum": 0, "exclusiveMinimum": True},
                "old": {"type": "string", "required": True},
                "odd": {"type": "any"},
                "mail": {"type": "string", "format": "email"},
                "same": {"$ref": "#/definitions/Text", "maxLength": 1},
                "date": {"type": "string", "format": "uint32"},
            },
            **{
                "$schema": "http://json-schema.org/draft-07/schema#",
                "$id": "https://example.org/x",
                "definitions": {"Text": {"type": "string"}},
                "dependencies": {"count": ["old"]},
            },
        )
    )
    assert takes(made, {"pair": ["x", 1]})
    assert not takes(made, {"pair": [1, "x"]})
    assert not takes(made, {"pair": ["x", 1, 2]})
    assert not takes(made, {"count": 0, "old": "x"})
    assert not takes(made, {"count": 1})
    assert not takes(made, {"mail": "nobody"})
    assert takes(made, {"count": 1, "old": "x", "odd": [1], "same": "xyz", "date": "7"})


def test_a_format_is_a_remark_for_readers_as_the_newest_draft_says():
    made = fitted(obj({"at": {"type": "string", "format": "date", "description": "When."}}))
    assert takes(made, {"at": "tomorrow"})
    assert made["properties"]["at"]["description"] == "When. Format: date."


def test_null_is_not_taken_for_a_word_that_json_schema_does_not_know():
    made = fitted(obj({"a": {"type": "string", "nullable": True}}))
    assert not takes(made, {"a": None})


@pytest.mark.parametrize("pattern", ["^(?=x)", "(", "a" * 2000])
def test_a_pattern_that_can_not_be_run_safely_is_left_to_the_upstream(pattern):
    made = fitted(obj({"a": {"type": "string", "pattern": pattern}}))
    assert "pattern" not in made["properties"]["a"]


def test_a_value_without_a_type_gets_every_type():
    made = fitted(obj({"a": {"pattern": "^x$"}, "b": {"items": {"type": "string"}}}))
    for value in ({"a": "x"}, {"a": 1}, {"b": ["x"]}, {"b": "x"}):
        assert takes(made, value)
    for value in ({"a": "y"}, {"b": [1]}):
        assert not takes(made, value)


def test_parts_of_an_object_do_not_refuse_each_others_fields():
    shape = {
        "allOf": [{"$ref": "#/$defs/Base"}, obj({"b": {"type": "integer"}}, required=["b"])],
    }
    base = obj({"a": {"type": "string"}}, required=["a"])
    made = fitted(obj({"shape": shape}, **{"$defs": {"Base": base}}))
    assert takes(made, {"shape": {"a": "x", "b": 1}})
    assert not takes(made, {"shape": {"a": "x"}})
    assert not takes(made, {"shape": {"a": "x", "b": 1, "c": 1}})


def test_alternatives_let_each_others_fields_pass_and_no_others():
    branches = [
        obj({"mail": {"type": "string"}}, required=["mail"]),
        obj({"user": {"type": "string"}}, required=["user"]),
    ]
    made = fitted(obj({"to": {"anyOf": branches}}))
    for value in ({"mail": "x"}, {"user": "y"}, {"mail": "x", "user": "y"}):
        assert takes(made, {"to": value})
    for value in ({}, {"mail": 1}, {"mail": "x", "phone": "z"}):
        assert not takes(made, {"to": value})


def test_what_is_put_together_from_itself_is_refused():
    node = {"allOf": [{"$ref": "#/$defs/Node"}, obj({"a": {"type": "string"}})]}
    made = fit_input(obj({"node": {"$ref": "#/$defs/Node"}}, **{"$defs": {"Node": node}}))
    assert "schema-ref-cycle" in " ".join(errors(made))


def test_the_word_for_what_no_part_has_described_keeps_its_meaning():
    base = obj({"a": {"type": "string"}})
    closed = {"$ref": "#/$defs/Base", "properties": {"b": {}}, "unevaluatedProperties": False}
    typed = {
        "type": "object",
        "properties": {"b": {}},
        "unevaluatedProperties": {"type": "integer"},
    }
    choice = {
        "type": "object",
        "anyOf": [obj({"a": {"const": 1}}), obj({"c": {"type": "string"}}, required=["c"])],
        "unevaluatedProperties": False,
    }
    shapes = {"closed": closed, "typed": typed, "choice": choice, "plain": {"$ref": "#/$defs/Base"}}
    made = fitted(obj(shapes, **{"$defs": {"Base": base}}))
    assert takes(made, {"closed": {"a": "x", "b": 1}, "plain": {"a": "x"}})
    assert not takes(made, {"closed": {"c": 1}})
    assert takes(made, {"typed": {"b": "x", "n": 1}})
    assert not takes(made, {"typed": {"n": "x"}})
    assert takes(made, {"choice": {"a": 1}})
    assert not takes(made, {"choice": {"a": 1, "c": 1}})
    assert not takes(made, {"plain": {"a": "x", "b": 1}})


def test_the_word_for_items_that_no_part_has_described_keeps_its_meaning():
    pair = {
        "type": "array",
        "anyOf": [{"prefixItems": [{"type": "string"}]}, {"contains": {"const": 7}}],
        "unevaluatedItems": {"type": "boolean"},
    }
    made = fitted(obj({"pair": pair, "none": {"type": "array", "unevaluatedItems": False}}))
    assert takes(made, {"pair": ["x", True], "none": []})
    assert takes(made, {"pair": [7, True]})
    assert not takes(made, {"pair": ["x", "y"]})
    assert not takes(made, {"none": [1]})


# In the style of JSON-Schema-Test-Suite: what the word says, a schema, what it takes and refuses.
STRING, NUMBER = {"type": "string"}, {"type": "number"}
A, B = {"properties": {"a": STRING}}, {"properties": {"b": NUMBER}}
NO_MORE, NO_ITEMS = {"unevaluatedProperties": False}, {"unevaluatedItems": False}
FIRST = {"prefixItems": [STRING]}
UNEVALUATED = {
    "properties beside it": ({**A, **NO_MORE}, [{}, {"a": "x"}], [{"b": 1}, {"a": "x", "b": 1}]),
    "a schema for the rest": (
        {**A, "unevaluatedProperties": {"type": "string", "minLength": 3}},
        [{"a": "x"}, {"a": "x", "z": "long"}],
        [{"z": "x"}, {"z": 1}],
    ),
    "patternProperties": (
        {"patternProperties": {"^x": STRING}, **NO_MORE},
        [{}, {"xa": "t"}],
        [{"xa": 1}, {"a": "t"}],
    ),
    "additionalProperties beside it": (
        {**A, "additionalProperties": True, **NO_MORE},
        [{"a": "x"}, {"a": "x", "z": 1}],
        [{"a": 1}],
    ),
    "allOf": ({"allOf": [A], **B, **NO_MORE}, [{"a": "x", "b": 1}], [{"z": 1}, {"b": "x"}]),
    "allOf with additionalProperties": (
        {"allOf": [{**A, "additionalProperties": True}], **NO_MORE},
        [{"a": "x", "z": 1}],
        [{"a": 1}],
    ),
    "anyOf that applies": (
        {"anyOf": [{**A, "required": ["a"]}, {**B, "required": ["b"]}], **NO_MORE},
        [{"a": "x"}, {"b": 1}, {"a": "x", "b": 1}],
        [{}, {"a": "x", "b": "y"}, {"a": "x", "z": 1}],
    ),
    "oneOf that applies": (
        {"oneOf": [{**A, "required": ["a"]}, {**B, "required": ["b"]}], **NO_MORE},
        [{"a": "x"}, {"b": 1}],
        [{"a": "x", "b": 1}, {"a": "x", "b": "y"}],
    ),
    "not describes nothing": (
        {**A, "not": {"not": {**B, "required": ["b"]}}, **NO_MORE},
        [],
        [{"a": "x"}, {"a": "x", "b": 1}],
    ),
    "if and then": (
        {"if": {**A, "required": ["a"]}, "then": B, "else": {"properties": {"c": {}}}, **NO_MORE},
        [{"a": "x", "b": 1}, {"c": 1}],
        [{"a": "x", "c": 1}, {"b": 1}],
    ),
    "if without then": ({"if": A, **NO_MORE}, [{"a": "x"}], [{"a": 1}, {"b": 1}]),
    "dependentSchemas": (
        {"properties": {"a": {}}, "dependentSchemas": {"a": B}, **NO_MORE},
        [{"a": 1, "b": 1}, {"a": 1}],
        [{"b": 1}],
    ),
    "$ref": (
        {"$ref": "#/$defs/A", **B, **NO_MORE, "$defs": {"A": A}},
        [{"a": "x", "b": 1}],
        [{"z": 1}, {"a": 1}],
    ),
    "a cousin does not see": ({"allOf": [A, NO_MORE]}, [{}], [{"a": "x"}]),
    "an inner word that takes all": (
        {**A, "allOf": [{"unevaluatedProperties": True}], **NO_MORE},
        [{"a": "x", "z": 1}],
        [{"a": 1}],
    ),
    "nested objects apart": (
        {"properties": {"a": {"type": "object", **B, **NO_MORE}}, **NO_MORE},
        [{"a": {"b": 1}}],
        [{"a": {"c": 1}}, {"b": 1}],
    ),
    "prefixItems": (
        {**FIRST, **NO_ITEMS},
        [[], ["x"]],
        [[1], ["x", 1]],
    ),
    "items take the rest": ({**FIRST, "items": NUMBER, **NO_ITEMS}, [["x", 1]], [["x", "y"]]),
    "a schema for more items": (
        {**FIRST, "unevaluatedItems": NUMBER},
        [["x"], ["x", 1, 2]],
        [["x", "y"]],
    ),
    "allOf of items": (
        {**FIRST, "allOf": [{"prefixItems": [True, NUMBER]}], **NO_ITEMS},
        [["x", 1]],
        [["x", 1, 2], ["x", "y"]],
    ),
    "anyOf of items": (
        {**FIRST, "anyOf": [{"prefixItems": [True, {"const": 2}]}, {"items": False}], **NO_ITEMS},
        [["x", 2], []],
        [["x", 3], ["x", 2, 4]],
    ),
    "if of items": (
        {**FIRST, "if": {"prefixItems": [True, {"const": 2}]}, "then": {}, **NO_ITEMS},
        [["x"], ["x", 2]],
        [["x", 3]],
    ),
    "not of items": (
        {**FIRST, "not": {"not": {"prefixItems": [True, {"const": 2}]}}, **NO_ITEMS},
        [["x"]],
        [["x", 2]],
    ),
    "contains": (
        {**FIRST, "contains": {"const": 2}, **NO_ITEMS},
        [["x", 2, 2]],
        [["x"], ["x", 2, 3]],
    ),
    "$ref to items": (
        {"$ref": "#/$defs/Pair", **NO_ITEMS, "$defs": {"Pair": {"prefixItems": [STRING, NUMBER]}}},
        [["x", 1]],
        [["x", 1, 2]],
    ),
    "a cousin does not see items": ({"allOf": [FIRST, NO_ITEMS]}, [[]], [["x"]]),
}


@pytest.mark.parametrize("case", UNEVALUATED)
def test_what_no_part_has_described_is_taken_and_refused_as_the_upstream_does(case):
    schema, taken, refused = UNEVALUATED[case]
    kind = "array" if isinstance([*taken, *refused][0], list) else "object"
    inner = {"type": kind, **{word: said for word, said in schema.items() if word != "$defs"}}
    shared = {"$defs": schema.get("$defs", {})}
    made, upstream = fitted(obj({"x": inner}, **shared)), jsonschema_rs.Draft202012Validator(schema)
    for value in taken + refused:
        assert upstream.is_valid(value) is takes(made, {"x": value}) is (value in taken), value
    if kind == "object":  # also as the arguments themselves
        made = fitted({**inner, **shared})
        for value in taken + refused:
            assert takes(made, value) is (value in taken), value


def test_alternatives_inside_alternatives_are_taken_as_the_upstream_takes_them():
    inner = {"anyOf": [obj({"a": {"type": "string"}}), {"anyOf": [{"type": "null"}]}]}
    made = fitted(obj({"x": {"anyOf": [inner, obj({"b": obj({"c": {"type": "integer"}})})]}}))
    for value in (None, {"a": "t"}, {"b": {"c": 1}}, {"a": "t", "b": {"c": 1}}, {"a": 1, "b": {}}):
        assert takes(made, {"x": value})
    for value in (1, {"a": 1, "b": 1}, {"z": 1}, {"a": 1, "b": {"d": 1}}):
        assert not takes(made, {"x": value})


def test_an_object_that_decides_between_alternatives_is_not_closed():
    shape = {"not": {"properties": {"a": obj({"b": {"const": 1}})}, "required": ["a"]}}
    made = fitted(
        obj(
            {
                "shape": {**shape, "type": "object"},
                "either": {
                    "oneOf": [
                        obj({"a": obj({"b": {"type": "string"}})}),
                        obj({"a": obj({"c": {"type": "string"}})}),
                    ]
                },
            }
        )
    )
    assert not takes(made, {"shape": {"a": {"b": 1, "more": 2}}})
    assert not takes(made, {"either": {"a": {"b": "x"}}})  # both alternatives match


def test_a_recursive_type_stays_recursive():
    node = obj({"next": {"$ref": "#/$defs/Node"}})
    made = fitted(obj({"node": {"$ref": "#/$defs/Node"}}, **{"$defs": {"Node": node}}))
    assert takes(made, {"node": {"next": {"next": {}}}})
    assert not takes(made, {"node": {"next": {"last": {}}}})


def test_the_definition_for_anything_takes_no_name_from_another():
    made = fitted(
        obj(
            {"a": {}, "b": {"$ref": "#/$defs/Anything"}},
            **{"$defs": {"Anything": {"type": "string"}}},
        )
    )
    assert takes(made, {"a": [1], "b": "x"})
    assert not takes(made, {"b": 1})


def test_the_given_schema_is_not_changed():
    schema = obj({"a": {"anyOf": [{}, {"type": "string"}]}})
    before = copy.deepcopy(schema)
    fit_input(schema)
    fit_output(schema)
    assert schema == before


# --- outputs --------------------------------------------------------------------------------------


def test_an_output_stays_as_open_as_it_was_and_formats_are_notes():
    schema = obj({"at": {"type": "string", "format": "uri"}}, required=["at"])
    made = fit_output({"$schema": "http://json-schema.org/draft-07/schema#", **schema})
    assert errors(obj({}, additionalProperties=False), made) == []
    assert takes(made, {"at": "not a uri", "more": 1})
    assert not takes(made, {})


def test_an_output_that_is_no_object_stands_under_result():
    made = fit_output(
        {"type": "array", "items": {"$ref": "#/$defs/N"}, "$defs": {"N": {"type": "integer"}}}
    )
    assert errors(obj({}, additionalProperties=False), made) == []
    assert takes(made, {"result": [1]})
    assert not takes(made, {"result": ["x"]})


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/N"},
        {"properties": {"a": {"type": "integer"}}},
        {"oneOf": [{"$ref": "#/$defs/N"}, {"type": "object"}]},
    ],
)
def test_an_output_that_is_an_object_without_saying_so_is_one(schema):
    made = fit_output({**schema, "$defs": {"N": obj({"a": {"type": "integer"}})}})
    assert made["type"] == "object"
    assert errors(obj({}, additionalProperties=False), made) == []


# --- every shape ----------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "c"])
LEAF = st.sampled_from(
    [
        True,
        {},
        {"type": "string"},
        {"type": "integer"},
        {"enum": [1, "x"]},
        {"const": {"a": 1}},
        {"type": ["string", "null"]},
        {"type": "object"},
        {"type": "array"},
        {"minLength": 1},
        {"not": {"type": "string"}},
        {"anyOf": [{"type": "string"}, {}]},
        {"$ref": "#/$defs/Text"},
        {"$ref": "#/$defs/Part"},
    ]
)


def shapes(inner):
    """Schemas of objects and lists whose values have the inner schemas."""
    named = st.dictionaries(NAMES, inner, max_size=2)
    branches = st.lists(inner, min_size=1, max_size=2)
    word = {
        "type": st.sampled_from(["object", "array", ["object", "array", "string"]]),
        "properties": named,
        "patternProperties": st.dictionaries(st.sampled_from(["a", "^[bc]$"]), inner, max_size=1),
        "required": st.lists(NAMES, max_size=1),
        "additionalProperties": st.sampled_from([True, False, {}, {"type": "integer"}]),
        "unevaluatedProperties": st.sampled_from([True, False, {"type": "string"}]),
        "allOf": branches,
        "anyOf": branches,
        "oneOf": branches,
        "if": inner,
        "then": inner,
        "else": inner,
        "not": inner,
        "dependentSchemas": st.dictionaries(NAMES, inner, max_size=1),
        "items": inner,
        "prefixItems": branches,
        "contains": inner,
        "unevaluatedItems": st.sampled_from([True, False, {"type": "string"}]),
    }
    return st.fixed_dictionaries({}, optional=word)


SCHEMA = st.recursive(LEAF, shapes, max_leaves=8)
SCHEMAS = st.builds(
    lambda shape, part, more: {**shape, "type": "object", "$defs": {"Text": more, "Part": part}},
    shapes(SCHEMA),
    shapes(LEAF.filter(lambda leaf: "Part" not in str(leaf))),
    st.sampled_from([{"type": "string"}, {"properties": {"a": {"type": "integer"}}}]),
)
SIMPLE = st.sampled_from([1, "x", "", None, True])
VALUES = st.dictionaries(
    NAMES | st.just("z"),
    st.recursive(
        SIMPLE,
        lambda v: st.lists(v, max_size=2) | st.dictionaries(NAMES, v, max_size=2),
        max_leaves=4,
    ),
    max_size=3,
)
IN_PLACE = ("allOf", "anyOf", "oneOf", "if", "then", "else", "not", "dependentSchemas")


def together(root, schemas):
    """Every schema that may apply to the same value as these."""
    every, waiting = [], list(schemas)
    while waiting:
        schema = waiting.pop()
        if isinstance(schema, dict) and not any(schema is each for each in every):
            every.append(schema)
            if "$ref" in schema:
                waiting.append(root["$defs"][schema["$ref"].rpartition("/")[2]])
            for word in IN_PLACE:
                held = schema.get(word, [])
                waiting += (
                    held.values()
                    if word == "dependentSchemas" and held
                    else held
                    if isinstance(held, list)
                    else [held]
                )
    return every


def undeclared(root, schemas, value):
    """Whether a value has a property, at any depth, that no schema of its object speaks of."""
    every = together(root, schemas)
    if isinstance(value, list):
        words = ("items", "contains", "unevaluatedItems")
        inner = [schema[word] for schema in every for word in words if word in schema]
        inner += [item for schema in every for item in schema.get("prefixItems", ())]
        return any(undeclared(root, inner, item) for item in value)
    if not isinstance(value, dict):
        return False
    names = {
        name
        for schema in every
        for word in ("properties", "dependentSchemas")
        for name in schema.get(word, ())
    }
    names |= {name for schema in every for name in schema.get("required", ())}
    names |= {name for schema in every for name in schema.get("const", ())}
    patterns = [key for schema in every for key in schema.get("patternProperties", ())]
    for name, item in value.items():
        if name not in names and not any(re.search(pattern, name) for pattern in patterns):
            return True
        inner = [
            schema["properties"][name] for schema in every if name in schema.get("properties", ())
        ]
        for schema in every:
            inner += schema.get("patternProperties", {}).values()
            inner += [
                schema[word]
                for word in ("additionalProperties", "unevaluatedProperties")
                if word in schema
            ]
        if undeclared(root, inner, item):
            return True
    return False


@pytest.mark.slow
@settings(max_examples=50)
@given(schema=SCHEMAS, values=st.lists(VALUES, min_size=1, max_size=8))
def test_fitting_loosens_nothing_and_takes_away_only_what_no_schema_declares(schema, values):
    made = fit_input(copy.deepcopy(schema))
    before, after = jsonschema_rs.Draft202012Validator(schema), compile_schema(made)
    assert errors(made) == []
    for value in values:
        if after.is_valid(value):
            assert before.is_valid(value)
        elif before.is_valid(value):
            assert undeclared(schema, [schema], value)


def test_a_reference_to_a_definition_that_is_missing_is_not_given_one():
    made = fit_input(obj({"a": {}, "b": {"$ref": "#/$defs/Anything"}}))
    assert list(made["$defs"]) == ["Anything_"]
    assert made["properties"]["b"]["$ref"] == "#/$defs/Anything"
    assert errors(made)
