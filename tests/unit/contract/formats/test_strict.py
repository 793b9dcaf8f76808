"""What becomes of a schema under strict mode, case by case."""

import pytest

from counterseal.canonical import freeze
from counterseal.contract.formats.strict_schema import convert


def closed(properties, *required, **more):
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
        **more,
    }


def strict_property(schema, *, required=False, **more):
    conversion = convert(freeze(closed({"x": schema}, *(["x"] if required else []), **more)))
    assert conversion.schema is not None, conversion.warnings
    return conversion.schema["properties"]["x"]


STRING = {"type": "string"}
OPTIONAL = closed({"a": STRING})


# --- absence --------------------------------------------------------------------------------------


def test_an_optional_property_becomes_nullable_and_null_means_absent():
    conversion = convert(closed({"x": {"type": "string"}}))
    assert conversion.schema == closed({"x": {"type": ["string", "null"]}}, "x")
    assert conversion.to_strict({}) == {"x": None}
    assert conversion.restore({"x": None}) == {}
    assert conversion.restore({"x": "y"}) == {"x": "y"}


def test_a_null_default_makes_null_and_absence_the_same():
    conversion = convert(closed({"x": {"type": ["string", "null"], "default": None}}))
    assert conversion.schema == closed({"x": {"type": ["string", "null"]}}, "x")
    assert conversion.to_strict({"x": None}) == {"x": None}
    assert conversion.restore({"x": None}) == {}


def test_the_model_is_told_the_default_that_null_stands_for():
    converted = strict_property({"type": "integer", "default": 20, "description": "How many."})
    assert converted == {
        "type": ["integer", "null"],
        "description": "How many. Null stands for the default, 20.",
    }


def test_a_required_null_is_a_value():
    conversion = convert(closed({"x": {"type": ["string", "null"]}}, "x"))
    assert conversion.restore({"x": None}) == {"x": None}


@pytest.mark.parametrize(
    ("schema", "converted"),
    [
        (
            {"enum": ["a", "b"], "description": "D."},
            {
                "anyOf": [{"type": "string", "enum": ["a", "b"]}, {"type": "null"}],
                "description": "D.",
            },
        ),
        (
            {"const": 1},
            {"anyOf": [{"type": "integer", "const": 1}, {"type": "null"}]},
        ),
        (
            {"type": ["string", "integer"]},
            {"type": ["string", "integer", "null"]},
        ),
        (
            {"anyOf": [{"type": "string"}, {"type": "boolean"}], "description": "D."},
            {
                "anyOf": [{"type": "string"}, {"type": "boolean"}, {"type": "null"}],
                "description": "D.",
            },
        ),
        (
            {"$ref": "#/$defs/D", "description": "D."},
            {"anyOf": [{"$ref": "#/$defs/D"}, {"type": "null"}], "description": "D."},
        ),
        (
            {"$ref": "#/$defs/N", "default": None},
            {"$ref": "#/$defs/N"},
        ),
        (
            {"type": "array", "items": {"type": "string"}, "title": "T"},
            {
                "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}],
                "title": "T",
            },
        ),
    ],
)
def test_every_kind_of_schema_can_be_made_nullable(schema, converted):
    definitions = {"D": {"type": "string"}, "N": {"type": ["string", "null"]}}
    assert strict_property(schema, **{"$defs": definitions}) == converted


# --- unions and references ------------------------------------------------------------------------

CARD = closed({"kind": {"const": "card"}, "number": {"type": "string"}}, "kind")
CASH = closed({"kind": {"const": "cash"}, "number": {"type": ["string", "null"]}}, "kind")


def test_a_union_with_one_object_is_mapped_by_its_type():
    variants = [{"$ref": "#/$defs/Cash"}, {"type": "array", "items": OPTIONAL}, {"type": "null"}]
    conversion = convert(closed({"by": {"oneOf": variants}}, "by", **{"$defs": {"Cash": OPTIONAL}}))
    inner = closed({"a": {"type": ["string", "null"]}}, "a")
    assert conversion.schema["properties"]["by"] == {
        "anyOf": [{"$ref": "#/$defs/Cash"}, {"type": "array", "items": inner}, {"type": "null"}]
    }
    assert conversion.to_strict({"by": {}}) == {"by": {"a": None}}
    for call in ({"by": {}}, {"by": None}, {"by": [{}, {"a": "b"}]}):
        assert conversion.restore(conversion.to_strict(call)) == call


def test_variants_that_are_written_the_same_way_need_not_be_told_apart():
    pair = [closed({"a": {"type": "string"}}, "a"), closed({"b": {"type": "string"}}, "b")]
    conversion = convert(closed({"x": {"anyOf": pair}}, "x"))
    assert conversion.schema is not None
    assert conversion.restore({"x": {"b": "c"}}) == {"x": {"b": "c"}}


def test_a_union_of_numbers_is_decidable():
    assert strict_property({"anyOf": [{"type": "integer"}, {"type": "number"}]}, required=True)


def test_a_schema_may_refer_to_itself_as_a_whole():
    schema = closed(
        {"name": {"type": "string"}, "parts": {"type": "array", "items": {"$ref": "#"}}}
    )
    conversion = convert(schema)
    assert conversion.schema["properties"]["parts"]["anyOf"][0]["items"] == {"$ref": "#"}
    call = {"parts": [{"name": "a", "parts": [{}]}, {}]}
    assert conversion.restore(conversion.to_strict(call)) == call


def test_definitions_of_both_spellings_are_kept_under_defs():
    properties = {"a": {"$ref": "#/definitions/A"}, "b": {"$ref": "#/$defs/B"}}
    conversion = convert(
        closed(
            properties, "a", "b", definitions={"A": OPTIONAL}, **{"$defs": {"B": STRING, "C": True}}
        )
    )
    assert conversion.schema["properties"] == {
        "a": {"$ref": "#/$defs/A"},
        "b": {"$ref": "#/$defs/B"},
    }
    assert list(conversion.schema["$defs"]) == ["A", "B"]
    assert conversion.restore({"a": {"a": None}, "b": "c"}) == {"a": {}, "b": "c"}


# --- what is left out -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "string", "minLength": 1}, "minLength"),
        ({"type": "string", "maxLength": 9}, "maxLength"),
        ({"type": "string", "format": "uri"}, "format 'uri'"),
        ({"type": "string", "contentEncoding": "base64"}, "contentEncoding"),
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, "uniqueItems"),
        ({"type": "array", "items": {"type": "string"}, "contains": {}}, "contains"),
        (closed({}, minProperties=0), "minProperties"),
        (closed({}, propertyNames={"maxLength": 3}), "propertyNames"),
        ({"anyOf": [{"type": "string"}], "maxLength": 3}, "maxLength"),
        ({"$ref": "#/$defs/D", "pattern": "^a"}, "pattern"),
    ],
)
def test_a_bound_that_strict_mode_has_not_is_left_out_with_a_warning(schema, keyword):
    conversion = convert(closed({"x": schema}, "x", **{"$defs": {"D": {"type": "string"}}}))
    assert conversion.warnings == (
        f"#/properties/x: strict mode has no {keyword}; the schema gate still enforces it",
    )
    assert keyword.split()[0] not in conversion.schema["properties"]["x"]


@pytest.mark.parametrize(
    ("keyword", "value"),
    [("examples", []), ("deprecated", True), ("$comment", "c"), ("x-own", 1), ("default", "d")],
)
def test_a_keyword_that_no_call_depends_on_is_left_out_with_a_warning(keyword, value):
    conversion = convert(closed({"x": {"type": "string", keyword: value}}, "x"))
    assert conversion.warnings == (
        f"#/properties/x: strict mode has no {keyword}; left out, as no call depends on it",
    )


def test_bounds_that_strict_mode_has_are_kept():
    for schema in (
        {"type": "string", "pattern": "^a+$", "format": "email"},
        {"type": "number", "minimum": 0, "exclusiveMaximum": 9, "multipleOf": 0.5},
        {"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 2},
    ):
        assert strict_property(schema, required=True) == schema


# --- what cannot be converted ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "object", "additionalProperties": STRING}, "names of properties are data"),
        ({"type": "object", "properties": {}}, "names of properties are open"),
        (closed({}, patternProperties={"^x": STRING}), "patternProperties"),
        ({"allOf": [STRING]}, "allOf"),
        (closed({"a": STRING}, **{"if": {}, "then": {}}), "if makes one argument depend on"),
        ({"not": STRING}, "not excludes"),
        (closed({"a": STRING}, dependentRequired={"a": []}), "dependentRequired"),
        (closed({"a": STRING}, dependentSchemas={"a": {}}), "dependentSchemas"),
        ({"type": "array", "prefixItems": [STRING], "items": STRING}, "prefixItems"),
        ({"type": "array"}, "without items"),
        ({"type": "array", "items": STRING, "unevaluatedItems": False}, "unevaluatedItems"),
        (True, "true or false"),
        ({}, "no type"),
        ({"description": "anything"}, "no type"),
        ({"enum": [{"a": 1}]}, "fixed objects or arrays"),
        ({"const": [1]}, "fixed objects or arrays"),
        ({"enum": [[1], "a"]}, "fixed objects or arrays"),
        ({"type": "string", "enum": [1]}, "no value is possible"),
        ({"type": ["object", "string"], "properties": {}}, "mixed with other types"),
        ({"anyOf": [OPTIONAL, closed({"b": STRING})]}, "several variants are objects"),
        ({"anyOf": [{"type": "array", "items": OPTIONAL}, {"type": "array", "items": STRING}]},
         "several variants are arrays"),
        ({"anyOf": [CARD, CASH]}, "several variants are objects"),
        ({"anyOf": [closed({"a": OPTIONAL}, "a"), closed({"b": STRING}, "b")]},
         "several variants are objects"),
        ({"type": "object", "anyOf": [CARD, CASH]}, "anyOf beside other constraints"),
        ({"$ref": "#/$defs/D", "type": "string"}, "a reference beside other constraints"),
        ({"$ref": "#/$defs/none"}, "leads to no definition"),
        ({"$ref": "https://example.org/schema"}, "leads to no definition"),
        ({"$ref": "#anchor"}, "leads to no definition"),
        ({"$ref": "#/properties/x~1y"}, "leads to no definition"),
        ({"$dynamicRef": "#x"}, "$dynamicRef"),
        ({"type": "string", "$id": "https://example.org/x"}, "$id"),
        ({"type": "object", "required": ["b"], "properties": {}, "additionalProperties": False},
         "required that is not declared"),
    ],
)  # fmt: skip
def test_what_strict_mode_cannot_express_is_said_with_its_place(schema, reason):
    definitions = {"D": {"type": "string"}}
    conversion = convert(closed({"x/y": schema}, "x/y", **{"$defs": definitions}))
    assert conversion.schema is None
    (warning,) = conversion.warnings
    assert warning.startswith("#/properties/x~1y: ")
    assert reason in warning
    assert conversion.restore({"x/y": None}) == {"x/y": None}
    assert conversion.to_strict({}) == {}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": ["string", "null"]},
        {"type": ["string", "null"], "default": "y"},
        {"anyOf": [{"$ref": "#/$defs/N"}, {"type": "integer"}]},
        {"enum": ["a", None]},
    ],
)
def test_an_optional_property_that_takes_null_is_refused_unless_null_is_its_default(schema):
    definitions = {"$defs": {"N": {"type": ["string", "null"]}}}
    conversion = convert(closed({"x": schema}, **definitions))
    assert conversion.schema is None
    (warning,) = conversion.warnings
    assert warning.startswith("#/properties/x: it can be null or absent (make it required, or ")
    assert convert(closed({"x": {**schema, "default": None}}, **definitions)).schema is not None
    assert convert(closed({"x": schema}, "x", **definitions)).schema is not None


@pytest.mark.parametrize(
    "root",
    [
        {"type": "array", "items": STRING},
        {"anyOf": [OPTIONAL]},
        {**OPTIONAL, "anyOf": [{"required": ["a"]}]},
        {"$ref": "#/$defs/A", "$defs": {"A": OPTIONAL}},
        {},
    ],
)
def test_a_root_that_is_no_plain_object_is_not_converted(root):
    conversion = convert(root)
    assert conversion.schema is None
    assert conversion.warnings == (
        "#: the root is not a plain object, which strict mode cannot express",
    )


def test_every_problem_is_told_at_once():
    problems = {
        "a": True,
        "b": {"type": "array", "items": {"not": {}}},
        "c": {"anyOf": [{"type": "string"}, True]},
    }
    assert [warning.split(":")[0] for warning in convert(closed(problems)).warnings] == [
        "#/properties/a",
        "#/properties/b/items",
        "#/properties/c/anyOf/1",
    ]


@pytest.mark.parametrize("definition", [{"$ref": "#/$defs/B"}, {"$ref": "#/$defs/A"}])
def test_a_definition_that_refers_only_to_itself_is_not_converted(definition):
    definitions = {"A": definition, "B": {"$ref": "#/$defs/A"}}
    conversion = convert(closed({"x": {"$ref": "#/$defs/B"}}, **{"$defs": definitions}))
    assert conversion.schema is None
    assert "leads in a circle" in conversion.warnings[0]


@pytest.mark.parametrize("broken", [{"type": "object", "properties": []}, {"type": "thing"}])
def test_a_broken_schema_is_a_warning_and_no_crash(broken):
    conversion = convert(broken)
    assert conversion.schema is None
    assert conversion.warnings[0].startswith("#: not a valid schema")


# --- sizes ----------------------------------------------------------------------------------------


def nested(levels):
    schema = STRING
    for _ in range(levels):
        schema = closed({"x": schema}, "x")
    return schema


@pytest.mark.parametrize(
    ("fits", "exceeds", "what"),
    [
        (nested(10), nested(11), "11 levels of nested objects"),
        (
            closed({f"p{i}": STRING for i in range(5_000)}),
            closed({f"p{i}": STRING for i in range(5_001)}),
            "5001 properties",
        ),
        (
            closed({"x": {"enum": list(range(1_000))}}),
            closed({"x": {"enum": list(range(1_001))}}),
            "1001 enum values",
        ),
        (
            closed({"x": {"enum": [f"{i:060}" for i in range(250)]}}),
            closed({"x": {"enum": [f"{i:060}" for i in range(251)]}}),
            "15060 characters in one large enum",
        ),
        (
            closed({"x": {"const": "x" * 119_999}}),
            closed({"x": {"const": "x" * 120_000}}),
            "120001 characters in names and fixed values",
        ),
    ],
    ids=["nesting", "properties", "enum values", "large enum", "text"],
)
def test_a_schema_beyond_a_documented_size_is_not_converted(fits, exceeds, what):
    assert convert(fits).schema is not None
    conversion = convert(exceeds)
    assert conversion.schema is None
    assert any(what in warning for warning in conversion.warnings)


def test_a_wide_net_of_definitions_is_read_without_following_every_path():
    # Sixty forks in a row have 2^60 paths: what follows each of them does not end.
    net = {
        f"N{i}": {"anyOf": [{"$ref": f"#/$defs/N{i + 1}"}, {"$ref": f"#/$defs/N{i + 1}"}]}
        for i in range(60)
    }
    fan = {
        f"F{i}": closed({"a": {"$ref": f"#/$defs/F{i + 1}"}, "b": {"$ref": f"#/$defs/F{i + 1}"}})
        for i in range(60)
    }
    ends = {"N60": STRING, "F60": STRING}
    properties = {name: {"$ref": f"#/$defs/{name}0"} for name in "NF"}
    conversion = convert(closed(properties, **{"$defs": {**net, **fan, **ends}}))
    assert conversion.schema is not None
    call = {"N": "x", "F": {"b": {"a": {}}}}
    assert conversion.restore(conversion.to_strict(call)) == call


def test_a_call_that_is_nested_too_deep_is_passed_on_and_not_followed():
    tree = closed({"next": {"$ref": "#"}})
    conversion = convert(tree)
    call = {}
    for _ in range(50_000):
        call = {"next": call}
    assert conversion.restore(call)["next"]["next"] is not None
    deepest_allowed = {}
    for _ in range(63):
        deepest_allowed = {"next": deepest_allowed}
    assert conversion.restore(conversion.to_strict(deepest_allowed)) == deepest_allowed
    while call:  # taken apart by hand: the interpreter would recurse
        call = call.pop("next", None)
