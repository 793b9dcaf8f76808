"""One contract as each provider's tool."""

import copy

import pytest

from counterseal.contract.effects import Effect
from counterseal.contract.formats import (
    FORMATS,
    NameMap,
    UnknownNameError,
    anthropic,
    mcp,
    openai_chat,
    openai_responses,
)
from counterseal.contract.model import Contract

INPUT = {
    "type": "object",
    "properties": {
        "draft_id": {
            "type": "string",
            "pattern": "^drf_[0-9a-f]{8}$",
            "maxLength": 12,
            "description": "Draft to send.",
        },
        "recipient": {"$ref": "#/$defs/Recipient", "description": "Address on the case file."},
        "copies": {
            "type": "integer",
            "minimum": 0,
            "maximum": 5,
            "default": 1,
            "description": "How many.",
        },
        "delay": {"type": ["integer", "null"], "description": "Seconds; null is for ever."},
        "note": {
            "anyOf": [{"type": "string"}, {"type": "null"}],
            "default": None,
            "description": "Shown to the recipient.",
        },
        "tags": {
            "type": "array",
            "items": {"enum": ["urgent", "copy"]},
            "maxItems": 2,
            "description": "Labels.",
        },
    },
    "required": ["draft_id", "recipient", "delay"],
    "additionalProperties": False,
    "$defs": {
        "Recipient": {
            "type": "object",
            "properties": {"email": {"type": "string", "format": "email", "description": "Where."}},
            "required": ["email"],
            "additionalProperties": False,
        }
    },
}
OUTPUT = {
    "type": "object",
    "properties": {"notice_id": {"type": "string"}},
    "required": ["notice_id"],
    "additionalProperties": False,
}
CALL = {"draft_id": "drf_0a1b2c3d", "recipient": {"email": "a@example.org"}, "delay": None}
STRICT_CALL = {
    "draft_id": "drf_0a1b2c3d",
    "recipient": {"email": "a@example.org"},
    "copies": None,
    "delay": None,
    "note": None,
    "tags": None,
}
TEXT = (
    "Send an approved notice.\n"
    "\n"
    "Call it when the user asks for a notice to go out.\n"
    "\n"
    "Side effects: Reaches people or systems outside. A person must approve each call.\n"
    "\n"
    "Use for: approved drafts.\n"
    "\n"
    "Do not use for: marketing.\n"
    "\n"
    "Rules:\n"
    "- The draft is approved.\n"
    "\n"
    "Examples:\n"
    "- A notice that never expires: "
)
PLAIN_EXAMPLE = '{"delay":null,"draft_id":"drf_0a1b2c3d","recipient":{"email":"a@example.org"}}'
STRICT_EXAMPLE = (
    '{"copies":null,"delay":null,"draft_id":"drf_0a1b2c3d","note":null,'
    '"recipient":{"email":"a@example.org"},"tags":null}'
)
STRICT_SCHEMA = {
    "type": "object",
    "properties": {
        "draft_id": {
            "type": "string",
            "pattern": "^drf_[0-9a-f]{8}$",
            "description": "Draft to send.",
        },
        "recipient": {
            "anyOf": [{"$ref": "#/$defs/Recipient"}],
            "description": "Address on the case file.",
        },
        "copies": {
            "type": ["integer", "null"],
            "minimum": 0,
            "maximum": 5,
            "description": "How many. Null stands for the default, 1.",
        },
        "delay": {"type": ["integer", "null"], "description": "Seconds; null is for ever."},
        "note": {
            "anyOf": [{"type": "string"}, {"type": "null"}],
            "description": "Shown to the recipient.",
        },
        "tags": {
            "anyOf": [
                {
                    "type": "array",
                    "maxItems": 2,
                    "items": {"type": "string", "enum": ["urgent", "copy"]},
                },
                {"type": "null"},
            ],
            "description": "Labels.",
        },
    },
    "required": ["draft_id", "recipient", "copies", "delay", "note", "tags"],
    "additionalProperties": False,
    "$defs": {
        "Recipient": {
            "type": "object",
            "properties": {"email": {"type": "string", "format": "email", "description": "Where."}},
            "required": ["email"],
            "additionalProperties": False,
        }
    },
}
STRICT_WARNINGS = (
    "#/properties/draft_id: strict mode has no maxLength; the schema gate still enforces it",
    "#/properties/copies: strict mode has no default; the description tells it instead",
)


def notice(**changes):
    given = {
        "identity": {"name": "case.send_notice", "version": "1.0.0", "owner": "case-platform"},
        "affordance": {
            "model_description": "Send an approved notice.",
            "allowed_use_cases": ["approved drafts"],
            "forbidden_use_cases": ["marketing"],
            "input_schema": INPUT,
            "output_schema": OUTPUT,
            "examples": [{"description": "A notice that never expires", "arguments": CALL}],
        },
        "effect": Effect.EXTERNAL_NOTIFICATION,
        "usage": "Call it when the user asks for a notice to go out.",
        "invariants": [{"id": "approved", "rule": "The draft is approved.", "check": "true"}],
    }
    return Contract(**{**given, **changes})


def with_input(schema):
    affordance = {"model_description": "Does.", "input_schema": schema}
    return notice(affordance=affordance)


def test_mcp_tool():
    view = mcp(notice())
    assert view.tool == {
        "name": "case.send_notice",
        "title": "Case send notice",
        "description": TEXT + PLAIN_EXAMPLE,
        "inputSchema": INPUT,
        "outputSchema": OUTPUT,
        "annotations": {
            "readOnlyHint": False,
            "destructiveHint": True,
            "idempotentHint": True,
            "openWorldHint": True,
        },
    }
    assert view.warnings == ()
    assert view.to_arguments(CALL) == CALL
    assert view.from_arguments(CALL) == CALL


def test_anthropic_tool():
    view = anthropic(notice())
    assert view.tool == {
        "name": "case_send_notice_bb0edc9f",
        "description": TEXT + PLAIN_EXAMPLE,
        "input_schema": INPUT,
    }
    assert view.warnings == ()
    assert view.to_arguments(CALL) == CALL


def test_openai_chat_function():
    view = openai_chat(notice())
    assert view.tool == {
        "type": "function",
        "function": {
            "name": "case_send_notice_bb0edc9f",
            "description": TEXT + STRICT_EXAMPLE,
            "parameters": STRICT_SCHEMA,
            "strict": True,
        },
    }
    assert view.warnings == STRICT_WARNINGS
    assert view.from_arguments(CALL) == STRICT_CALL
    assert view.to_arguments(STRICT_CALL) == CALL


def test_openai_responses_function():
    view = openai_responses(notice())
    assert view.tool == {
        "type": "function",
        "name": "case_send_notice_bb0edc9f",
        "description": TEXT + STRICT_EXAMPLE,
        "parameters": STRICT_SCHEMA,
        "strict": True,
    }
    assert view.warnings == STRICT_WARNINGS
    assert view.to_arguments(STRICT_CALL) == CALL


@pytest.mark.parametrize("make", [openai_chat, openai_responses])
def test_without_strict_mode_openai_gets_the_contract_as_it_is(make):
    view = make(notice(), strict=False)
    function = view.tool.get("function", view.tool)
    assert function["strict"] is False
    assert function["parameters"] == INPUT
    assert function["description"] == TEXT + PLAIN_EXAMPLE
    assert view.to_arguments(CALL) == CALL
    assert view.warnings == ()


@pytest.mark.parametrize("make", [openai_chat, openai_responses])
def test_what_strict_mode_cannot_express_is_offered_without_it_and_with_a_warning(make):
    schema = {
        "type": "object",
        "properties": {"labels": {"type": "object", "additionalProperties": {"type": "string"}}},
        "additionalProperties": False,
    }
    view = make(with_input(schema))
    function = view.tool.get("function", view.tool)
    assert function["strict"] is False
    assert function["parameters"] == schema
    assert view.to_arguments({"labels": {"value": None}}) == {"labels": {"value": None}}
    assert view.warnings == (
        "#/properties/labels: the names of properties are data, which strict mode cannot express",
        "the tool is offered without strict mode, with its schema as it is",
    )


UNION_AT_THE_ROOT = {
    "type": "object",
    "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
    "additionalProperties": False,
    "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
}


def test_a_root_that_a_provider_refuses_is_warned_of():
    contract = with_input(UNION_AT_THE_ROOT)
    assert "#: OpenAI takes only a plain object at the root" in openai_chat(contract).warnings
    assert anthropic(contract).warnings == ("#: Anthropic takes only a plain object at the root",)
    assert mcp(contract).warnings == ()
    assert mcp(with_input({"anyOf": []})).warnings == (
        "#: MCP takes only input schemas of type object",
    )


def test_a_property_name_that_anthropic_refuses_is_warned_of():
    schema = {
        "type": "object",
        "properties": {"fine.x": {"type": "string"}, "filter[id]": {"type": "string"}},
        "additionalProperties": False,
    }
    (warning,) = anthropic(with_input(schema)).warnings
    assert warning.startswith("#/properties/filter[id]: ")


def test_an_output_schema_that_mcp_refuses_is_left_out_with_a_warning():
    output = {"type": "array", "items": {"type": "string"}}
    contract = notice(
        affordance={"model_description": "Lists.", "input_schema": INPUT, "output_schema": output}
    )
    view = mcp(contract)
    assert "outputSchema" not in view.tool
    assert len(view.warnings) == 1


def test_a_description_that_openai_may_refuse_is_warned_of_and_kept_whole():
    view = openai_chat(notice(usage="x" * 1_100))
    assert "x" * 1_100 in view.tool["function"]["description"]
    assert "some of OpenAI's models take 1024" in view.warnings[-1]


@pytest.mark.parametrize("name", FORMATS)
def test_a_tool_is_a_fresh_copy_each_time(name):
    view = FORMATS[name](notice())
    before = copy.deepcopy(view.tool)
    taken = view.tool
    schema = taken.get("function", taken)
    key = next(k for k in ("inputSchema", "input_schema", "parameters") if k in schema)
    schema[key]["properties"].clear()
    taken.clear()
    assert view.tool == before
    assert FORMATS[name](notice()).tool == before


@pytest.mark.parametrize("name", FORMATS)
def test_names_go_through_the_map_of_the_catalogue(name):
    names = NameMap(["case.send_notice", "other"])
    tool = FORMATS[name](notice(), names=names).tool
    provider_name = tool.get("function", tool)["name"]
    assert names.to_contract(provider_name) == "case.send_notice"
    with pytest.raises(UnknownNameError):
        FORMATS[name](notice(), names=NameMap(["other"]))


def test_the_formats_have_the_names_that_the_command_line_uses():
    assert list(FORMATS) == ["mcp", "openai", "openai-responses", "anthropic"]
    assert list(FORMATS.values()) == [mcp, openai_chat, openai_responses, anthropic]


HINTS = {  # read only, destructive, idempotent, open world
    Effect.READ_ONLY: (True, False, True, False),
    Effect.RETRIEVE: (True, False, True, True),
    Effect.COMPUTE: (True, False, True, False),
    Effect.DRAFT: (False, False, True, False),
    Effect.INTERNAL_MUTATION: (False, True, True, False),
    Effect.EXTERNAL_NOTIFICATION: (False, True, True, True),
    Effect.IRREVERSIBLE: (False, True, True, True),
    Effect.META: (False, True, True, False),
    None: (False, True, True, True),
}


@pytest.mark.parametrize("effect", [*Effect, None])
def test_mcp_hints_follow_from_the_effect(effect):
    hints = mcp(notice(effect=effect, trust="trusted")).tool["annotations"]
    names = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
    assert tuple(hints[name] for name in names) == HINTS[effect]


def test_mcp_hints_claim_no_more_than_the_contract_says():
    def hints(**changes):
        return mcp(notice(**changes)).tool["annotations"]

    raised = {"side_effect_class": "EPHEMERAL_WRITE"}
    assert not hints(effect=Effect.READ_ONLY, transactional=raised)["readOnlyHint"]
    assert not hints(effect=Effect.DRAFT, repeatable=True)["idempotentHint"]
    assert hints(effect=Effect.READ_ONLY, trust="untrusted")["openWorldHint"]


@pytest.mark.parametrize(
    ("name", "title"),
    [("send_notice", "Send notice"), ("case.v2-open", "Case v2 open"), ("___", "___")],
)
def test_mcp_titles_are_readable(name, title):
    assert mcp(notice(identity={"name": name})).tool["title"] == title
