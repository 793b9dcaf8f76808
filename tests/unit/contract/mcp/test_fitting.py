"""A stranger's schemas are made to fit, and keep what they mean."""

import copy

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


def test_arguments_that_nobody_declared_are_not_taken():
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
    assert made["list"]["maxItems"] == 10_000


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


def test_an_object_of_too_many_parts_is_refused():
    parts = [{"properties": {f"a{n}": {"type": "string"}}} for n in range(500)]
    with pytest.raises(ValueError, match="too many parts"):
        fit_input({"type": "object", "anyOf": parts})


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
                "maybe": {"type": "string", "nullable": True},
                "date": {"type": "string", "format": "uint32"},
            },
            **{
                "$schema": "http://json-schema.org/draft-07/schema#",
                "$id": "https://example.org/x",
                "dependencies": {"count": ["old"]},
            },
        )
    )
    assert takes(made, {"pair": ["x", 1]})
    assert not takes(made, {"pair": [1, "x"]})
    assert not takes(made, {"pair": ["x", 1, 2]})
    assert not takes(made, {"count": 0, "old": "x"})
    assert not takes(made, {"count": 1})
    assert takes(made, {"count": 1, "old": "x", "odd": [1], "maybe": None, "date": "7"})


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(?=x)", "(", "a" * 2000])
def test_a_pattern_that_can_not_be_run_safely_is_left_to_the_upstream(pattern):
    made = fitted(obj({"a": {"type": "string", "pattern": pattern}}))
    assert "pattern" not in made["properties"]["a"]


def test_a_type_that_can_be_seen_is_written_down():
    made = fitted(obj({"a": {"pattern": "^x$"}, "b": {"items": {"type": "string"}}}))["properties"]
    assert made["a"]["type"] == "string"
    assert made["b"]["type"] == "array"


def test_parts_of_an_object_do_not_refuse_each_others_fields():
    shape = {
        "allOf": [{"$ref": "#/$defs/Base"}, obj({"b": {"type": "integer"}}, required=["b"])],
    }
    base = obj({"a": {"type": "string"}}, required=["a"])
    made = fitted(obj({"shape": shape}, **{"$defs": {"Base": base}}))
    assert takes(made, {"shape": {"a": "x", "b": 1}})
    assert not takes(made, {"shape": {"a": "x"}})
    assert not takes(made, {"shape": {"a": "x", "b": 1, "c": 1}})


def test_alternatives_are_closed_each_for_itself():
    made = fitted(
        obj(
            {
                "to": {
                    "anyOf": [
                        obj({"mail": {"type": "string"}}, required=["mail"]),
                        obj({"user": {"type": "string"}}, required=["user"]),
                    ]
                }
            }
        )
    )
    assert takes(made, {"to": {"mail": "x"}})
    assert not takes(made, {"to": {"mail": "x", "user": "y"}})


def test_what_is_put_together_from_itself_is_refused():
    node = {"allOf": [{"$ref": "#/$defs/Node"}, obj({"a": {"type": "string"}})]}
    with pytest.raises(ValueError, match="can't be followed"):
        fit_input(obj({"node": {"$ref": "#/$defs/Node"}}, **{"$defs": {"Node": node}}))


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
        {"const": 1},
        {"type": ["string", "null"]},
        {"type": "object"},
        {"type": "array"},
        {"anyOf": [{"type": "string"}, {}]},
        {"$ref": "#/$defs/Text"},
    ]
)
PART = st.fixed_dictionaries(
    {},
    optional={
        "properties": st.dictionaries(NAMES, LEAF | st.just({"minLength": 1}), max_size=3),
        "required": st.lists(NAMES, max_size=1),
        "additionalProperties": st.sampled_from([True, False, {}]),
    },
)
BRANCH = PART | st.just({"$ref": "#/$defs/Part"})
BRANCHES = st.lists(BRANCH, min_size=1, max_size=2)
SCHEMAS = st.fixed_dictionaries(
    {
        "type": st.just("object"),
        "$defs": st.fixed_dictionaries({"Text": st.just({"type": "string"}), "Part": PART}),
    },
    optional={
        "properties": st.dictionaries(NAMES, LEAF, max_size=3),
        "required": st.lists(NAMES, max_size=1),
        "allOf": BRANCHES,
        "anyOf": BRANCHES,
        "oneOf": BRANCHES,
        "if": BRANCH,
        "then": BRANCH,
        "else": BRANCH,
        "not": BRANCH,
        "dependentSchemas": st.dictionaries(NAMES, BRANCH, max_size=1),
    },
)
VALUES = st.dictionaries(
    NAMES, st.sampled_from([1, "x", "", None, {}, [], {"k": [1]}, ["x"]]), max_size=3
)


def declared(schema):
    """The names that any part of the root speaks of."""
    names, waiting = set(), [schema, schema["$defs"]["Part"]]
    while waiting:
        part = waiting.pop()
        names |= set(part.get("properties", ()))
        for word in ("allOf", "anyOf", "oneOf"):
            waiting += part.get(word, ())
        waiting += [part[word] for word in ("if", "then", "else", "not") if word in part]
        waiting += part.get("dependentSchemas", {}).values()
    return names


@pytest.mark.slow
@settings(max_examples=150)
@given(schema=SCHEMAS, value=VALUES)
def test_fitting_loosens_nothing_and_takes_away_only_what_nobody_declared(schema, value):
    made = fit_input(copy.deepcopy(schema))
    assert errors(made) == []
    before, after = takes(schema, value), takes(made, value)
    if after:
        assert before
    elif before:
        mentioned = set(made["properties"]) if "properties" in made else set()
        assert not set(value) <= mentioned & declared(schema)
