"""Numbers from 2^53 on: taken where the schema says number, refused where it says integer."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal import Budgets, Grant, Invariant, Proposal, Runtime
from counterseal.canonical import canonical, digest, freeze
from counterseal.codes import Code
from counterseal.contract.schemas import compile_schema, exact_integers
from counterseal.ledger.entry import request_hash
from counterseal.testing import approver, fake_tool, runtime_for, someone

SAFE = 2**53 - 1
LARGE = ["5.972e24", "1e16", "10000000000000000", "9007199254740992", "-9007199254740993", "1e308"]


def field(schema):
    return {
        "type": "object",
        "properties": {"value": {**schema, "description": "A value."}},
        "required": ["value"],
        "additionalProperties": False,
    }


def taking(schema, **more):
    return fake_tool("weigh", input_schema=field(schema), **more)


async def submit(tool, text, **more):
    raw = f'{{"value": {text}}}'
    answer = await runtime_for(tool).submit(
        Proposal(tool="weigh", arguments=raw, **more), someone()
    )
    mapped = await runtime_for(tool).submit(
        Proposal(tool="weigh", arguments=json.loads(raw), **more), someone()
    )
    assert mapped.code is answer.code, "text and mapping are read alike"
    return answer


# --- where the schema says number -----------------------------------------------------------------

NUMBERS = {
    "number": {"type": "number"},
    "number or null": {"type": ["number", "null"]},
    "union of both": {"anyOf": [{"type": "integer"}, {"type": "number"}]},
    "number with a bound": {"type": "number", "maximum": 1e308},
    "number or text": {"anyOf": [{"type": "number"}, {"type": "string", "maxLength": 9}]},
}


@pytest.mark.parametrize("text", LARGE)
@pytest.mark.parametrize("schema", NUMBERS.values(), ids=NUMBERS)
async def test_large_number_is_taken_as_the_double_that_every_reader_makes_of_it(schema, text):
    tool = taking(schema)
    assert (await submit(tool, text)).ok
    (value,) = {call["value"] for call in tool.calls}
    assert type(value) is float
    assert value == float(text)


@pytest.mark.parametrize("text", ["1e400", "9" * 400], ids=["float", "integer"])
async def test_number_that_no_double_holds_is_not_read(text):
    answer = await submit(taking({"type": "number"}), text)
    assert answer.code is Code.SYNTACTIC_PARSE_FAIL


# --- where the schema says integer ----------------------------------------------------------------

INTEGERS = {
    "integer": {"type": "integer"},
    "integer or null": {"type": ["integer", "null"]},
    "integer or text": {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 9}]},
    "one of": {"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": 9}]},
    "integer with a larger bound": {"type": "integer", "minimum": -1e308, "maximum": 1e308},
    "reference": {"$ref": "#/$defs/count", "$defs": {}},
}


def integer_tool(name):
    schema = INTEGERS[name]
    if name != "reference":
        return taking(schema)
    whole = field({"$ref": "#/$defs/count"})
    whole["$defs"] = {"count": {"type": "integer"}}
    return fake_tool("weigh", input_schema=whole)


@pytest.mark.parametrize("text", LARGE)
@pytest.mark.parametrize("name", INTEGERS)
async def test_integer_that_readers_would_round_is_out_of_bounds(name, text):
    tool = integer_tool(name)
    answer = await submit(tool, text)
    assert answer.code is Code.OUT_OF_BOUNDS
    assert tool.calls == []
    (error,) = [error for error in answer.errors if "value" in error.field]
    assert str(SAFE) in error.expected


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", [SAFE, -SAFE])
async def test_last_exact_integer_is_taken(name, value):
    tool = integer_tool(name)
    assert (await submit(tool, str(value))).ok
    assert {call["value"] for call in tool.calls} == {value}


async def test_corrector_can_not_bring_in_what_the_schema_refuses():
    checks = {"number": Code.SUCCESS, "integer": Code.SEMANTIC_INVALIDITY}
    for kind, code in checks.items():
        invariants = [
            Invariant(
                id="large",
                rule="Values are large.",
                check=lambda call, _state, _config: call["value"] > 5,
                correct=lambda call, _state, _config: call.replace(value=10**16),
            )
        ]
        tool = taking({"type": kind}, invariants=invariants)
        answer = await runtime_for(tool).submit(
            Proposal(tool="weigh", arguments={"value": 1}), someone()
        )
        assert answer.code is code


# --- one operation, one hash ----------------------------------------------------------------------

FINITE = st.floats(allow_nan=False, allow_infinity=False)
NUMBER = st.integers() | st.integers(-(2**70), 2**70) | FINITE | FINITE.map(lambda one: one * 2**60)
NUMBER = NUMBER.filter(lambda one: isinstance(one, int) or abs(one) != float("inf"))


def canonical_or_none(value):
    try:
        return canonical(value)
    except ValueError:
        return None


@given(NUMBER, NUMBER)
def test_two_numbers_have_one_canonical_form_only_if_they_are_equal(one, other):
    first, second = canonical_or_none(one), canonical_or_none(other)
    if first is not None and second is not None:
        assert (first == second) is (one == other)


@given(st.integers(-(2**1100), 2**1100))
def test_integer_has_a_canonical_form_exactly_if_a_double_holds_it(number):
    try:
        exact = float(number) == number
    except OverflowError:
        exact = False
    form = canonical_or_none(number)
    assert (form is not None) is exact
    if exact:
        assert form == canonical(float(number))
        assert freeze({"n": number}) == {"n": number}
        assert digest(freeze({"n": number})) == digest({"n": float(number)})
        assert float(form) == number


@given(NUMBER)
def test_canonical_form_is_read_back_as_the_same_number(number):
    form = canonical_or_none(number)
    if form is not None:
        assert json.loads(form, parse_int=float) == number


@given(st.integers(2**53, 2**200), st.integers(2**53, 2**200))
def test_arguments_that_a_tool_gets_as_different_numbers_have_different_hashes(one, other):
    first, second = {"value": float(one)}, {"value": float(other)}
    assert (request_hash(first) == request_hash(second)) is (first == second)


# --- the exact form of a schema -------------------------------------------------------------------

SCHEMA = st.recursive(
    st.sampled_from(
        [
            {"type": "integer"},
            {"type": "number"},
            {"type": "integer", "minimum": 3},
            {"type": ["integer", "string"]},
            {"type": "number", "multipleOf": 2},
            {"const": 4},
            {"type": "string"},
        ]
    ),
    lambda inner: (
        st.builds(
            lambda word, parts: {word: parts},
            st.sampled_from(["anyOf", "allOf", "oneOf"]),
            st.lists(inner, min_size=1, max_size=3),
        )
        | inner.map(lambda one: {"type": "array", "items": one})
        | inner.map(lambda one: {"properties": {"a": one}})
    ),
    max_leaves=6,
)
SMALL = st.integers(-SAFE, SAFE) | st.floats(-1e9, 1e9) | st.text(max_size=2)
VALUE = SMALL | st.lists(SMALL, max_size=2) | st.fixed_dictionaries({"a": SMALL})


@given(SCHEMA, VALUE)
def test_exact_form_judges_small_numbers_like_the_schema_itself(schema, value):
    exact = exact_integers(schema)
    if exact is not None:
        assert compile_schema(exact).is_valid(value) is compile_schema(schema).is_valid(value)


def test_schema_without_open_integers_needs_no_exact_form():
    assert exact_integers(field({"type": "number"})) is None
    bounded = {"type": "integer", "minimum": 0, "maximum": 10}
    assert exact_integers(field(bounded)) is None
    assert exact_integers(field({"type": "integer", "minimum": 0})) is not None


# --- all the way ----------------------------------------------------------------------------------


@pytest.mark.parametrize("text", LARGE)
async def test_large_number_survives_approval_store_and_replay(tmp_path, text):
    tool = fake_tool(
        "weigh",
        lambda value: {"value": value},
        effect="external_notification",
        input_schema=field({"type": "number"}),
        output_schema=field({"type": "number"}),
        consequence="{value} is weighed.",
        approval={"then": "resubmit"},
    )
    proposal = Proposal(
        tool="weigh", arguments=f'{{"value": {text}}}', run_id="run_1", key="order-1"
    )
    async with Runtime.open(f"sqlite:///{tmp_path}/store.db") as runtime:
        runtime.register(tool.tool, grants=[Grant(agent="agent", tool="weigh")])
        await runtime.run(someone(), "run_1", budgets=Budgets(external=5))
        assert (await runtime.submit(proposal, someone())).code is Code.CONFIRMATION_MISSING
        assert await runtime.approvals.answer(approver()) == 1
    async with Runtime.open(f"sqlite:///{tmp_path}/store.db") as again:
        again.register(tool.tool, grants=[Grant(agent="agent", tool="weigh")])
        answer = await again.submit(proposal, someone())
        assert answer.ok, answer
        assert answer.data == {"value": float(text)}
        repeated = await again.submit(proposal, someone())
        assert repeated.ok
        assert repeated.data == {"value": float(text)}
    assert tool.calls == [{"value": float(text)}]


async def test_same_number_in_two_spellings_is_one_operation(tmp_path):
    tool = taking({"type": "number"}, effect="draft")
    async with Runtime.open(f"sqlite:///{tmp_path}/store.db") as runtime:
        runtime.register(tool.tool, grants=[Grant(agent="agent", tool="weigh")])
        for text in ("1e16", "10000000000000000", "10000000000000000.0", "1E+16"):
            proposal = Proposal(tool="weigh", arguments=f'{{"value": {text}}}', run_id="run_1")
            assert (await runtime.submit(proposal, someone())).ok
    assert len(tool.calls) == 1
