"""Schemas of both versions become closed and bounded inputs, and outputs that stay open."""

import json
import re

import pytest

from counterseal.contract.schemas import compile_schema
from counterseal.contract.sources.openapi import contracts_from_openapi

from .conftest import body, document, said, schema_of

TEXT = {"type": "string", "maxLength": 9, "description": "A text."}

PET = {
    "type": "object",
    "required": ["id", "name"],
    "properties": {
        "id": {"type": "integer", "readOnly": True},
        "name": {"type": "string", "maxLength": 9, "description": "Its name.", "example": "Rex"},
        "parent": {"$ref": "#/components/schemas/Pet"},
    },
}


def argument(tool, name="x"):
    return schema_of(tool)["properties"][name]


@pytest.fixture
def one(taking):
    """What becomes of one field, without its description."""

    def one(schema, **more):
        tool = taking({"type": "object", "properties": {"x": schema}}, **more)
        made = dict(argument(tool))
        made.pop("description")
        return made

    return one


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ({"type": "boolean", "title": "X", "x-own": 1, "example": True}, {"type": "boolean"}),
        (
            {"type": "string", "maxLength": 5, "nullable": True},
            {"type": ["string", "null"], "maxLength": 5},
        ),
        (
            {"type": "string", "enum": ["a", "b"], "nullable": True},
            {"type": ["string", "null"], "enum": ["a", "b", None]},
        ),
        ({"type": "string", "enum": [1, 2]}, {"type": "string", "enum": ["1", "2"]}),
        (
            {"type": "integer", "minimum": 1, "exclusiveMinimum": True, "maximum": 9},
            {"type": "integer", "maximum": 9, "exclusiveMinimum": 1},
        ),
        (
            {"type": "number", "exclusiveMaximum": 3.5},
            {"type": "number", "exclusiveMaximum": 3.5},
        ),
        (
            {"type": "integer", "maximum": 2**63 - 1, "minimum": 0},
            {"type": "integer", "minimum": 0},
        ),
        ({"type": "string", "format": "date"}, {"type": "string", "format": "date"}),
        ({"type": "string"}, {"type": "string", "maxLength": 2000}),
        (
            {"type": "string", "minLength": 5000},
            {"type": "string", "minLength": 5000, "maxLength": 5000},
        ),
        (
            {"type": "string", "pattern": "^(?=x)", "maxLength": 3},
            {"type": "string", "maxLength": 3},
        ),
        (
            {"type": "string", "pattern": "^(a+)+$", "maxLength": 3},
            {"type": "string", "pattern": "^(a+)+$", "maxLength": 3},
        ),
        (
            {"type": "array", "items": {"type": "integer"}},
            {"type": "array", "items": {"type": "integer"}, "maxItems": 100},
        ),
        ({"maxLength": 3}, {"type": "string", "maxLength": 3}),
        ({"type": "integer", "default": "many"}, {"type": "integer"}),
        ({"type": "integer", "default": 3}, {"type": "integer", "default": 3}),
        ({"allOf": [{"type": "integer"}], "default": 3}, {"type": "integer", "default": 3}),
        (
            {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        ),
        ({"oneOf": [{"type": "integer"}, {"type": "integer"}]}, {"type": "integer"}),
        (
            {"oneOf": [{"type": "integer"}], "nullable": True},
            {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        ),
    ],
)
def test_a_keyword_is_written_as_2020_12_has_it(one, given, made):
    assert one(given) == made


def test_types_of_3_1_stay_as_they_are(one):
    given = {"type": ["string", "null"], "maxLength": 3, "examples": ["a"]}
    assert one(given, openapi="3.1.0") == {"type": ["string", "null"], "maxLength": 3}


def test_an_object_is_closed_at_every_level(one):
    inner = {"type": "object", "properties": {"a": {"type": "integer"}}}
    made = one({"type": "object", "properties": {"in": inner}, "additionalProperties": True})
    assert made["additionalProperties"] is False
    assert made["properties"]["in"]["additionalProperties"] is False


def test_an_object_of_anything_becomes_a_map_of_plain_values(taking):
    schema = {"type": "object", "properties": {"meta": {"type": "object"}, "any": {}}}
    tool = taking(schema)
    plain = {"type": ["string", "number", "boolean", "null"], "maxLength": 2000}
    assert argument(tool, "meta")["additionalProperties"] == plain
    assert argument(tool, "any").items() >= plain.items()
    here = "/affordance/input_schema/properties/meta"
    assert said(tool, here)[1:] == ["the document says no type: plain values are taken"]


def test_read_only_fields_are_no_arguments(taking):
    tool = taking({"$ref": "#/components/schemas/Pet"}, Pet=PET)
    assert list(schema_of(tool)["properties"]) == ["name", "parent"]
    assert schema_of(tool)["required"] == ["name"]


def test_a_recursive_type_is_kept(taking):
    tool = taking({"$ref": "#/components/schemas/Pet"}, Pet=PET)
    schema = schema_of(tool)
    assert schema["properties"]["parent"]["$ref"] == "#/$defs/Pet"
    assert schema["$defs"]["Pet"]["properties"]["parent"] == {"$ref": "#/$defs/Pet"}
    validator = compile_schema(schema)
    assert validator.is_valid({"name": "a", "parent": {"name": "b", "parent": {"name": "c"}}})
    assert not validator.is_valid({"name": "a", "parent": {"name": "b", "parent": {"x": "c"}}})


def test_what_a_type_is_made_of_is_laid_together_and_closed(taking):
    dog = {
        "allOf": [
            {"$ref": "#/components/schemas/Pet"},
            {
                "type": "object",
                "required": ["bark"],
                "properties": {
                    "bark": {"type": "integer", "description": "How loud."},
                    "name": {"minLength": 2},
                },
            },
        ]
    }
    tool = taking({"$ref": "#/components/schemas/Dog"}, Pet=PET, Dog=dog)
    assert list(schema_of(tool)["properties"]) == ["name", "parent", "bark"]
    assert argument(tool, "name").items() >= {"minLength": 2, "maxLength": 9}.items()
    assert schema_of(tool)["required"] == ["name", "bark"]


def test_what_alternatives_share_is_laid_under_each(taking):
    schema = {
        "type": "object",
        "properties": {"amount": {"type": "integer"}},
        "required": ["amount"],
        "oneOf": [
            {"properties": {"card": {"type": "integer"}}, "required": ["card"]},
            {"properties": {"bank": {"type": "integer"}}, "required": ["bank"]},
        ],
    }
    validator = compile_schema(schema_of(taking(schema)))
    assert validator.is_valid({"body": {"amount": 1, "card": 2}})
    assert validator.is_valid({"body": {"amount": 1, "bank": 2}})
    assert not validator.is_valid({"body": {"amount": 1}})
    assert not validator.is_valid({"body": {"card": 2}})
    assert not validator.is_valid({"body": {"amount": 1, "card": 2, "more": 3}})


def test_references_to_anywhere_in_the_document_are_followed(taking):
    deep = {"$ref": "#/components/schemas/Pet/properties/name"}
    tool = taking({"type": "object", "properties": {"x": deep}}, Pet=PET)
    assert schema_of(tool)["$defs"]["name"] == {
        "type": "string",
        "maxLength": 9,
        "description": "Its name.",
    }


def test_a_type_that_is_made_of_itself_is_refused(refusing):
    loop = {"allOf": [{"$ref": "#/components/schemas/Loop"}]}
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Loop"}}}
    root = {"components": {"schemas": {"Loop": loop}}}
    assert "made of itself" in refusing("post", root=root, requestBody={"content": content})


def test_types_that_unfold_without_end_are_refused(refusing):
    grows = {
        "properties": {"a": {"type": "integer"}},
        "oneOf": [{"$ref": "#/components/schemas/Grows"}],
    }
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Grows"}}}
    root = {"components": {"schemas": {"Grows": grows}}}
    reason = refusing("post", root=root, requestBody={"required": True, "content": content})
    assert "nested too deeply" in reason


# --- outputs --------------------------------------------------------------------------------------


def answering(schema, kind="application/json", status="200"):
    return {status: {"description": "x", "content": {kind: {"schema": schema}}}}


@pytest.fixture
def returning(importing):
    def returning(responses, **schemas):
        tool = importing(responses=responses, root={"components": {"schemas": schemas}})
        return tool.data["affordance"]["output_schema"]

    return returning


def test_an_output_stays_open_and_is_judged_by_type_only(returning):
    schema = {
        "type": "object",
        "required": ["id", "at"],
        "additionalProperties": False,
        "properties": {
            "id": {"type": "integer", "minimum": 5},
            "at": {"type": "string", "format": "date-time", "pattern": "^x"},
            "kind": {"type": "string", "enum": ["a"]},
            "secret_word": {"type": "string", "writeOnly": True},
        },
    }
    made = returning(answering(schema))
    assert made == {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "at": {"type": "string"},
            "kind": {"type": "string"},
        },
        "required": ["id", "at"],
    }


def test_what_is_no_object_stands_under_result(returning):
    listed = {"type": "array", "items": {"$ref": "#/components/schemas/Pet"}}
    made = returning(answering(listed), Pet=PET)
    assert made["required"] == ["result"]
    assert made["properties"] == {"result": {"type": "array", "items": {"$ref": "#/$defs/Pet"}}}
    assert list(made["$defs"]) == ["Pet"]


def test_the_first_success_that_answers_in_json_is_the_output(returning):
    responses = {
        "default": answering({"type": "object", "properties": {"no": {}}})["200"],
        "404": answering({"type": "object", "properties": {"no": {}}})["200"],
        "204": {"description": "nothing"},
        **answering({"type": "object", "properties": {"yes": {"type": "integer"}}}, status="201"),
    }
    assert list(returning(responses)["properties"]) == ["yes"]


def test_an_answer_without_words_is_any_object(returning):
    for responses in ({}, {"204": {}}, answering({}), answering({}, "image/png"), {"2XX": {}}):
        assert returning(responses) == {"type": "object"}


def test_an_answer_in_plain_text_has_a_place(returning):
    assert returning(answering({"type": "string"}, "text/csv"))["required"] == ["text"]


def test_an_output_too_large_to_describe_is_any_object(importing):
    many = {f"field_{i}": {"type": "string", "description": "x" * 200} for i in range(400)}
    tool = importing(responses=answering({"type": "object", "properties": many}))
    assert tool.data["affordance"]["output_schema"] == {"type": "object"}
    assert "at great length" in said(tool, "/affordance/output_schema")[0]
    assert len(json.dumps(tool.data)) < 5_000


# --- more than anybody can wait for ---------------------------------------------------------------


def ref(name):
    return {"$ref": f"#/components/schemas/{name}"}


def asking(schema, place):
    if place == "form":
        fields = {"type": "object", "properties": {"a": schema}}
        return {"requestBody": body(fields, "application/x-www-form-urlencoded")}
    if place == "body":
        return {"requestBody": body(schema)}
    return {"parameters": [{"name": "a", "in": "query", "required": True, "schema": schema}]}


def tower(height, keyword, **more):
    """Types of which each names the next one twice."""
    made = {f"T{i}": {**more, keyword: [ref(f"T{i + 1}")] * 2} for i in range(height)}
    return {**made, f"T{height}": {"type": "string"}}


@pytest.mark.parametrize("place", ["query", "form", "body"])
@pytest.mark.parametrize("more", [{}, {"minLength": 1}])
def test_a_type_that_is_an_alternative_to_itself_is_left_out(refusing, place, more):
    schemas = {"A": {"anyOf": [{**ref("A"), **more}, {"type": "string"}]}}
    reason = refusing("post", root={"components": {"schemas": schemas}}, **asking(ref("A"), place))
    assert re.search("refers to itself|unfold|too deeply", reason)


def test_what_is_named_twice_at_every_level_is_read_once(taking):
    made = taking({"type": "object", "properties": {"a": ref("T0")}}, **tower(26, "allOf"))
    assert schema_of(made)["$defs"]["T0"] == {"type": "string", "maxLength": 2000}


def test_what_is_required_at_every_level_is_required_once(taking):
    levels = {f"T{i}": {"allOf": [ref(f"T{i + 1}")] * 2} for i in range(26)}
    last = {"type": "object", "properties": {"a": TEXT}, "required": ["a"]}
    assert schema_of(taking(ref("T0"), **levels, T26=last))["required"] == ["a"]


@pytest.mark.slow
@pytest.mark.parametrize("place", ["query", "body"])
def test_alternatives_that_unfold_into_too_much_are_left_out(refusing, place):
    schemas = tower(28, "anyOf", minLength=1)
    reason = refusing("post", root={"components": {"schemas": schemas}}, **asking(ref("T0"), place))
    assert reason == "its types unfold into too much"


def test_equal_types_that_share_their_parts_are_compared_in_bounded_time(refusing):
    schemas = {}
    for x in "BC":
        for i in range(28):
            both = [ref(f"{x}{i + 1}"), ref(f"{x}x{i + 1}")]
            schemas |= {f"{x}{i}": {"allOf": both}, f"{x}x{i}": {"allOf": both[::-1]}}
        schemas |= {
            f"{x}28": {"type": "object", "properties": {"a": {"type": "string"}}},
            f"{x}x28": {"type": "object", "properties": {"a": {"type": "string", "minLength": 1}}},
        }
    whole = {"allOf": [ref("B0"), ref("C0")]}
    reason = refusing("post", root={"components": {"schemas": schemas}}, **asking(whole, "body"))
    assert reason == "its types unfold into too much"


@pytest.mark.parametrize("keyword", ["allOf", "anyOf"])
def test_a_type_that_is_nested_too_deeply_is_left_out(refusing, keyword):
    schemas = {f"T{i}": {keyword: [ref(f"T{i + 1}")], "title": "x"} for i in range(3000)}
    schemas["T3000"] = {"type": "string"}
    deep = {"type": "string"}
    for _ in range(3000):
        deep = {keyword: [deep]}
    for schema in (ref("T0"), deep):
        for place in ("query", "body"):
            reason = refusing(
                "post", root={"components": {"schemas": schemas}}, **asking(schema, place)
            )
            assert re.search("too deeply|more than 250 types|leads back", reason)


@pytest.mark.slow
def test_one_operation_that_is_too_much_does_not_spoil_the_others():
    made = document(method="post", operation=asking(ref("T0"), "body"))
    made["components"] = {"schemas": tower(28, "anyOf", minLength=1)}
    made["paths"]["/others"] = {"get": {"operationId": "listOthers"}}
    imported = contracts_from_openapi(made)
    assert [tool.name for tool in imported.tools] == ["listOthers"]
    assert [one.what for one in imported.left_out] == ["POST /things"]
