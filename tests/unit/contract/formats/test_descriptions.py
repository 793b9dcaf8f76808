"""What a model reads about a tool."""

import pytest

from counterseal.contract.effects import EFFECTS, Effect
from counterseal.contract.formats import describe
from counterseal.contract.model import Contract


def contract(**changes):
    affordance = {
        "model_description": "Sends a notice.",
        "input_schema": {"type": "object", "properties": {}, "additionalProperties": False},
        **changes.pop("affordance", {}),
    }
    given = {
        "effect": Effect.EXTERNAL_NOTIFICATION,
        "usage": "When a draft is approved.",
        **changes,
    }
    return Contract(identity={"name": "send_notice"}, affordance=affordance, **given)


def test_everything_that_faces_the_model_is_told_in_order():
    told = contract(
        affordance={
            "allowed_use_cases": ["approved notices", "a second\n  copy."],
            "forbidden_use_cases": ["marketing"],
            "examples": [
                {"description": "A notice", "arguments": {"b": ["ü", 1.5], "a": {"c": None}}}
            ],
        },
        invariants=[
            {"id": "one", "rule": "The draft must be approved.", "check": "true"},
            {"id": "two", "rule": "The recipient is on the file.", "check": "true"},
        ],
    )
    assert describe(told) == (
        "Sends a notice.\n"
        "\n"
        "When a draft is approved.\n"
        "\n"
        "Side effects: Reaches people or systems outside. A person must approve each call.\n"
        "\n"
        "Use for: approved notices; a second copy.\n"
        "\n"
        "Do not use for: marketing.\n"
        "\n"
        "Rules:\n"
        "- The draft must be approved.\n"
        "- The recipient is on the file.\n"
        "\n"
        "Examples:\n"
        '- A notice: {"a":{"c":null},"b":["ü",1.5]}'
    )


def test_what_is_not_declared_leaves_no_empty_heading():
    text = describe(contract(effect=Effect.READ_ONLY, usage=""))
    assert text == "Sends a notice.\n\nSide effects: Reads only; changes nothing."


@pytest.mark.parametrize(
    ("description", "usage", "told"),
    [
        ("Sends a notice.", "Sends a notice.", "Sends a notice."),
        ("Sends a\nnotice. Once.", "Sends a notice.", "Sends a\nnotice. Once."),
        ("Sends a notice.", "Sends a notice. Not for drafts.", "Sends a notice. Not for drafts."),
        ("Sends a notice.", "Call it last.", "Sends a notice.\n\nCall it last."),
    ],
)
def test_usage_and_description_never_say_the_same_twice(description, usage, told):
    text = describe(contract(affordance={"model_description": description}, usage=usage))
    assert text.split("\n\nSide effects:")[0] == told


@pytest.mark.parametrize("effect", Effect)
@pytest.mark.parametrize(
    ("approvers", "sentence"),
    [
        (1, "A person must approve each call."),
        (2, "Two people must approve each call."),
        (3, "3 people must approve each call."),
    ],
)
def test_the_number_of_approvers_is_the_contracts_own(effect, approvers, sentence):
    text = describe(contract(effect=effect, approvers=approvers))
    assert sentence in text
    assert text.count("approve each call") == 1


@pytest.mark.parametrize("effect", Effect)
def test_no_approval_is_claimed_where_none_is_needed(effect):
    text = describe(contract(effect=effect, approvers=0))
    assert "must approve" not in text
    assert ("only where policy says so" in text) is EFFECTS[effect].mutates


def test_a_contract_without_effect_is_told_as_the_strictest():
    told = contract(effect=None)
    assert "Hard or impossible to undo. Two people must approve each call." in describe(told)


def test_nothing_system_facing_is_told():
    told = Contract(
        identity={"name": "name-x", "owner": "owner-x"},
        affordance={
            "model_description": "Sends a notice.",
            "input_schema": {"type": "object", "additionalProperties": False},
        },
        security={"required_scopes": ["scope-x"]},
        secrets=["secret-x"],
        config_params=[{"key": "config-x"}],
        state_reads=[{"key": "state-x"}],
        resource="resource-x:{draft_id}",
        consequence="consequence-x",
        invariants=[{"id": "id-x", "rule": "Be kind.", "check": "'check-x' == 'check-x'"}],
    )
    assert "-x" not in describe(told)


def test_equal_contracts_are_told_in_equal_words():
    first = contract(affordance={"examples": [{"description": "e", "arguments": {"a": 1, "b": 2}}]})
    second = contract(
        affordance={"examples": [{"description": "e", "arguments": {"b": 2, "a": 1}}]}
    )
    assert first == second
    assert describe(first) == describe(second)
