"""Templates over a call, what they are filled with, and how what was found is compared."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal.contract.fill import (
    ConsequenceSlot,
    StateDifference,
    TemplateError,
    ValueReference,
    compensation_arguments,
    compensation_problems,
    consequence_references,
    consequence_slots,
    differences,
    expected_state,
    fill,
    references,
    resource_of,
    verification_of,
)
from counterseal.contract.model import Contract
from counterseal.contract.schemas import Presence, presence
from counterseal.errors import Severity

TEXT = {"type": "string", "maxLength": 40, "description": "A text."}
WHO = {"name": "Kim", "tags": ["a"]}
ARGUMENTS = {"case_id": "case_7", "copies": 2, "urgent": True, "who": WHO}
OUTPUT = {"draft_id": "drf_1", "box": {"row": 4, "label": None}, "price": 1.5}


def contract(name="draft_notice", *, takes=("case_id",), optional=(), gives=("draft_id",), **more):
    output = {
        "type": "object",
        "properties": {field: {"type": "string"} for field in gives},
        "required": list(gives),
        "additionalProperties": False,
    }
    return Contract.model_validate(
        {
            "effect": "draft",
            "identity": {"name": name, "version": "1.0.0", "owner": "cases"},
            "affordance": {
                "model_description": f"What {name} does.",
                "input_schema": {
                    "type": "object",
                    "properties": dict.fromkeys((*takes, *optional), TEXT),
                    "required": list(takes),
                    "additionalProperties": False,
                },
                "output_schema": more.pop("output_schema", output),
            },
            "usage": "When a notice is due.",
            **more,
        }
    )


# --- filling --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("{case_id}", "case_7"),
        ("{copies}", 2),
        ("{urgent}", True),
        ("{who}", WHO),
        ("{who.name}", "Kim"),
        ("{output.draft_id}", "drf_1"),
        ("{output.box.row}", 4),
        ("{output.box.label}", None),
        ("{output.price}", 1.5),
        ("case:{case_id}", "case:case_7"),
        ("{case_id}/{output.draft_id}", "case_7/drf_1"),
        ("{copies} copies, urgent: {urgent}", "2 copies, urgent: true"),
        (" {copies}", " 2"),
        ("{{case_id}}", "{case_id}"),
        ("{{{case_id}}}", "{case_7}"),
        ("", ""),
        ("sent", "sent"),
        (3, 3),
        (None, None),
        (False, False),
        ({"a": {"b": "{copies}"}, "{case_id}": 1}, {"a": {"b": 2}, "{case_id}": 1}),
        (["{copies}", {"c": "{case_id}"}], [2, {"c": "case_7"}]),
    ],
)
def test_a_template_is_filled_with_values_that_keep_their_type(template, filled):
    made = fill(template, ARGUMENTS, OUTPUT)
    assert made == filled
    assert type(made) is type(filled)


@pytest.mark.parametrize(
    ("template", "missing"),
    [
        ("{note}", ValueReference("argument", ("note",))),
        ("Because of {note}", ValueReference("argument", ("note",))),
        ({"deep": ["{output.number}"]}, ValueReference("output", ("number",))),
        ("{output.box.row.cell}", ValueReference("output", ("box", "row", "cell"))),
        ("{who.tags.0}", ValueReference("argument", ("who", "tags", "0"))),
        ("{output}", ValueReference("argument", ("output",))),
    ],
)
def test_what_is_missing_is_named(template, missing):
    with pytest.raises(TemplateError) as caught:
        fill(template, ARGUMENTS, OUTPUT)
    assert str(caught.value).startswith(f"{missing} can't be filled")


@pytest.mark.parametrize("output", [None, {}])
def test_a_call_without_output_fills_no_output_field(output):
    with pytest.raises(TemplateError, match=r"^\{output\.draft_id\} can't be filled"):
        fill("{output.draft_id}", ARGUMENTS, output)


@pytest.mark.parametrize(
    "text", ["{", "}", "{a", "{}", "{a.}", "{.a}", "{output.}", "{secret:key}", "{call:key}"]
)
def test_a_text_that_cannot_be_read_fills_and_refers_to_nothing(text):
    with pytest.raises(TemplateError):
        fill({"a": text}, {"a": 1}, {"a": 1})
    with pytest.raises(TemplateError):
        list(references({"a": text}))


def test_references_are_told_wherever_they_stand():
    template = {"a": "{case_id}", "b": [{"c": "x{output.box.row}{{y}}"}, 3], "d": "{{no}}"}
    assert list(references(template)) == [
        ("argument", ("case_id",)),
        ("output", ("box", "row")),
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


def escaped(value):
    if isinstance(value, str):
        return value.replace("{", "{{").replace("}", "}}")
    if isinstance(value, list):
        return [escaped(item) for item in value]
    if isinstance(value, dict):
        return {key: escaped(item) for key, item in value.items()}
    return value


@given(JSON)
def test_whatever_is_constant_is_filled_with_itself(value):
    assert fill(escaped(value), {}, None) == value
    assert list(references(escaped(value))) == []


@given(JSON)
def test_a_value_passes_through_a_reference_as_it_is_and_as_a_copy(value):
    filled = fill({"there": "{here}"}, {"here": value}, None)
    assert json.dumps(filled["there"]) == json.dumps(value)
    if isinstance(value, dict | list):
        assert filled["there"] is not value


# --- comparing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        ({}, {"status": "open"}),
        ({"status": "open"}, {"status": "open", "version": 3}),
        ({"count": 1}, {"count": 1.0}),
        ({"box": {"row": 4}}, {"box": {"row": 4, "label": "x"}}),
        ({"list": [1, {"a": 2}]}, {"list": (1.0, {"a": 2, "b": 3})}),
        ({"gone": None}, {"gone": None}),
    ],
)
def test_only_what_is_expected_is_compared(expected, found):
    assert differences(expected, found) == []


@pytest.mark.parametrize(
    ("expected", "found", "differs"),
    [
        ({"status": "open"}, {"status": "Open"}, [("/status", "open", "Open")]),
        ({"status": "open"}, {}, [("/status", "open", None)]),
        ({"gone": None}, {}, [("/gone", None, None)]),
        ({"on": True}, {"on": 1}, [("/on", True, 1)]),
        ({"count": 0}, {"count": False}, [("/count", 0, False)]),
        ({"count": 1}, {"count": "1"}, [("/count", 1, "1")]),
        ({"box": {"row": 4}}, {"box": 4}, [("/box", {"row": 4}, 4)]),
        (
            {"a": {"b/c": 1, "d": 2, "e": 3}},
            {"a": {"b/c": 9, "d": 2}},
            [("/a/b~1c", 1, 9), ("/a/e", 3, None)],
        ),
        ({"list": [1, 2]}, {"list": [1, 3]}, [("/list/1", 2, 3)]),
        ({"list": [1, 2]}, {"list": [1]}, [("/list", [1, 2], [1])]),
        ({"status": "open"}, None, [("", {"status": "open"}, None)]),
    ],
)
def test_every_difference_is_told_with_its_place(expected, found, differs):
    assert differences(expected, found) == [StateDifference(*one) for one in differs]


@given(JSON, JSON)
def test_comparing_is_exact_for_values_without_objects(one, other):
    assert differences(one, one) == []
    if "{" not in json.dumps([one, other]):
        same = differences(one, other) == []
        assert same is (differences(other, one) == [])


# --- verification ---------------------------------------------------------------------------------


def test_the_expected_state_is_made_of_arguments_and_output():
    made = contract(
        resource="case:{case_id}",
        probe="read_case",
        expected={"case": "{case_id}", "draft": "{output.draft_id}", "state": "drafted"},
        verify_after=90,
    )
    state = {"case": "case_7", "draft": "drf_1", "state": "drafted"}
    assert expected_state(made, ARGUMENTS, OUTPUT) == state
    assert verification_of(made, ARGUMENTS, OUTPUT) == ("case:case_7", state, 90)


def test_a_contract_that_expects_nothing_has_no_expected_state():
    assert expected_state(contract(), ARGUMENTS, OUTPUT) is None
    assert verification_of(contract(), ARGUMENTS, OUTPUT) == (None, None, 0)


def test_an_expected_state_that_cannot_be_filled_is_none_in_the_hint():
    made = contract(resource="case:{case_id}", expected={"draft": "{output.draft_id}"})
    with pytest.raises(TemplateError, match="draft_id"):
        expected_state(made, ARGUMENTS, None)
    assert verification_of(made, ARGUMENTS, None) == ("case:case_7", None, 0)
    assert verification_of(made, {}, OUTPUT) == (None, {"draft": "drf_1"}, 0)


@given(
    st.sampled_from(["{a}", "{a.b}", "{output.a}", "{output.a.b}", "{", "{secret:a}", "x{a}"]),
    st.sampled_from(["{a}", "{a.b}", "{a[b]}", "{a!r:x}", "{", "{}", "{0}"]),
    st.dictionaries(st.sampled_from("ab"), JSON),
    st.none() | st.dictionaries(st.sampled_from("ab"), JSON),
)
def test_the_hint_never_raises(text, resource, arguments, output):
    made = contract(expected={"x": text}, resource=resource)
    target, expected, delay = verification_of(made, arguments, output)
    assert target is None or isinstance(target, str)
    assert expected is None or set(expected) == {"x"}
    assert delay == 0


def test_a_resource_whose_argument_was_left_out_has_no_name():
    assert resource_of(contract(), ARGUMENTS) is None
    assert resource_of(contract(resource="note:{note}"), ARGUMENTS) is None


# --- compensation ---------------------------------------------------------------------------------


def test_arguments_are_taken_by_name_from_the_output_before_the_call():
    undo = contract("void_draft", takes=("draft_id", "case_id"), optional=("reason", "price"))
    made = compensation_arguments(contract(), undo, {**ARGUMENTS, "draft_id": "other"}, OUTPUT)
    assert made == {"draft_id": "drf_1", "case_id": "case_7", "price": 1.5}


def test_what_compensation_says_goes_before_names():
    made = contract(compensation={"case_id": "{output.draft_id}", "reason": "for {case_id}"})
    undo = contract("void_draft", takes=("case_id", "draft_id"), optional=("reason",))
    assert compensation_arguments(made, undo, ARGUMENTS, OUTPUT) == {
        "case_id": "drf_1",
        "draft_id": "drf_1",
        "reason": "for case_7",
    }


def test_an_argument_that_nothing_gives_is_named():
    undo = contract("void_draft", takes=("notice_id",))
    with pytest.raises(TemplateError, match=r"void_draft needs notice_id"):
        compensation_arguments(contract(), undo, ARGUMENTS, OUTPUT)
    given = contract(compensation={"notice_id": "{output.number}"})
    with pytest.raises(TemplateError, match=r"\{output\.number\}"):
        compensation_arguments(given, undo, ARGUMENTS, OUTPUT)


def problems(source, undo):
    return [(p.pointer, p.severity, p.message) for p in compensation_problems(source, undo)]


def test_a_compensation_that_is_covered_has_no_problem():
    undo = contract("void_draft", takes=("draft_id", "case_id"), optional=("reason",))
    assert problems(contract(), undo) == []
    named = contract("void_draft", takes=("notice_id",))
    assert problems(contract(compensation={"notice_id": "{output.draft_id}"}), named) == []


def test_a_compensation_that_can_never_be_called_is_an_error():
    undo = contract("void_draft", takes=("notice_id",))
    assert problems(contract(compensation={"case": "{case_id}"}), undo) == [
        (
            "/compensation/case",
            Severity.ERROR,
            "case is not an argument of void_draft 1.0.0",
        ),
        (
            "/compensation",
            Severity.ERROR,
            "void_draft 1.0.0 needs notice_id, which is neither in the output nor in the arguments",
        ),
    ]
    (by_name,) = problems(contract(), undo)
    assert by_name[0] == "/transactional/compensation_tool"


@pytest.mark.parametrize(
    "source",
    [
        contract(optional=("notice_id",)),
        contract(output_schema={"type": "object"}),
        contract(output_schema={"type": "object", "properties": {"notice_id": TEXT}}),
    ],
)
def test_a_compensation_that_may_lack_something_is_warned_about(source):
    (problem,) = problems(source, contract("void_draft", takes=("notice_id",)))
    assert problem[1:] == (
        Severity.WARNING,
        "void_draft 1.0.0 needs notice_id, which may be missing",
    )


# --- what a schema says of a field ----------------------------------------------------------------

NESTED = {
    "type": "object",
    "properties": {
        "case": {"$ref": "#/$defs/Case"},
        "note": {"type": "string"},
        "last": {"anyOf": [{"$ref": "#/$defs/Case"}, {"type": "null"}]},
        "first": {"type": ["object", "null"], "properties": {"id": {}}, "required": ["id"]},
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
        "open": {"type": "object"},
        "loop": {"$ref": "#/$defs/Loop"},
    },
    "required": ["case", "last", "first", "counts", "open", "loop"],
    "additionalProperties": False,
    "$defs": {
        "Case": {"$ref": "#/$defs/Real"},
        "Real": {
            "type": "object",
            "properties": {"id": {"type": "string"}, "title": {"type": "string"}},
            "required": ["id"],
            "additionalProperties": False,
        },
        "Loop": {"$ref": "#/$defs/Loop"},
    },
}


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("case", Presence.ALWAYS),
        ("case.id", Presence.ALWAYS),
        ("case.title", Presence.SOMETIMES),
        ("case.owner", Presence.NEVER),
        ("case.id.part", Presence.NEVER),
        ("note", Presence.SOMETIMES),
        ("last.id", Presence.SOMETIMES),
        ("first.id", Presence.SOMETIMES),
        ("counts.any", Presence.SOMETIMES),
        ("open.any", Presence.UNDECLARED),
        ("loop.any", Presence.UNDECLARED),
        ("other", Presence.NEVER),
    ],
)
def test_a_schema_tells_whether_a_field_is_there(path, told):
    assert presence(NESTED, path.split(".")) is told


# Consequence -------------------------------------------------------------------------------------


def test_a_consequence_comes_in_pieces_that_tell_whose_they_are():
    told = contract(consequence="{{Case}} {case_id} of {state.box.row}, {copies}; {state.gone}.")
    pieces = list(consequence_slots(told, {"case_id": "case_7"}, {"box": {"row": 4}}))
    assert pieces == [
        "{Case} ",
        ConsequenceSlot(ValueReference("argument", ("case_id",)), present=True, value="case_7"),
        " of ",
        ConsequenceSlot(ValueReference("state", ("box", "row")), present=True, value=4),
        ", ",
        ConsequenceSlot(ValueReference("argument", ("copies",)), present=False, value=None),
        "; ",
        ConsequenceSlot(ValueReference("state", ("gone",)), present=False, value=None),
        ".",
    ]
    assert str(pieces[3].reference) == "{state.box.row}"


def test_state_is_an_argument_unless_it_goes_deeper():
    told = contract(consequence="{state} and {state.row} and {output.row}")
    assert list(consequence_references(told)) == [
        ValueReference("argument", ("state",)),
        ValueReference("state", ("row",)),
        ValueReference("argument", ("output", "row")),
    ]
    assert list(consequence_references(contract())) == []


def test_an_amount_of_a_consequence_names_its_currency():
    told = contract(consequence="{copies|money:EUR} of {state.cents|money:JPY} for {case_id}")
    assert list(consequence_references(told)) == [
        ValueReference("argument", ("copies",)),
        ValueReference("state", ("cents",)),
        ValueReference("argument", ("case_id",)),
    ]
    slots = [
        one for one in consequence_slots(told, {"copies": 2}, None) if not isinstance(one, str)
    ]
    assert [slot.currency for slot in slots] == ["EUR", "JPY", None]


@pytest.mark.parametrize(
    "form", ["money", "money:", "money:eur", "money:EURO", "cash:EUR", "", "|"]
)
def test_another_form_of_a_value_is_refused_with_the_one_that_is_known(form):
    told = contract(consequence=f"{{copies|{form}}} go.")
    with pytest.raises(TemplateError, match=r"unknown form; write \{copies\|money:EUR\}"):
        list(consequence_references(told))
