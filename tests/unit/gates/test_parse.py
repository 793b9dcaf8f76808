"""The parse gate: one JSON object that every reader reads alike, or a refusal."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterseal import Principal, Proposal, Registry
from counterseal.codes import Code
from counterseal.execution.executor import Executor
from counterseal.gates.base import GateContext, Learned, Verdict
from counterseal.gates.parse import MAX_BYTES, check
from counterseal.ledger.records import RunRecord


def parse(arguments, **more):
    return check(
        GateContext(
            proposal=Proposal(tool="t", arguments=arguments, **more),
            principal=Principal(tenant="acme", agent="a"),
            call_id="call_1",
            now=0.0,
            run=RunRecord(tenant="acme", run_id="r", started_at=0.0),
            registry=Registry(),
            executor=Executor(),
        )
    )


def read(answer):
    """What a passing answer hands on."""
    assert answer.decision.verdict is Verdict.ALLOW
    return answer.facts["arguments"]


def test_a_mapping_is_measured_as_json_however_plain_it_is():
    most = MAX_BYTES - len('{"a":""}')
    assert read(parse({"a": "x" * most})) == {"a": "x" * most}
    refused = [
        {"a": "x" * (most + 1)},
        {"a": "\x01" * (most // 5)},
        dict.fromkeys("ab", "x" * most),
    ]
    for arguments in refused:
        assert parse(arguments).code is Code.SYNTACTIC_PARSE_FAIL


REFUSED = {
    "duplicate keys": '{"a": 1, "a": 2}',
    "nested duplicate keys": '{"a": {"b": 1, "b": 2}}',
    "NaN": '{"a": NaN}',
    "Infinity": '{"a": -Infinity}',
    "a float that overflows": '{"a": 1e999}',
    "a very long integer": '{"a": ' + "9" * 400 + "}",
    "text before": 'Sure! {"a": 1}',
    "text behind": '{"a": 1} Hope that helps.',
    "a Markdown fence": '```json\n{"a": 1}\n```',
    "two objects": '{"a": 1}{"a": 2}',
    "single quotes": "{'a': 1}",
    "a trailing comma": '{"a": 1,}',
    "a comment": '{"a": 1} // yes',
    "bad UTF-8": b'{"a": "\xff\xfe"}',
    "an overlong encoding": b'{"a": "\xc0\x80"}',
    "a lone surrogate, escaped": '{"a": "\\ud800"}',
    "a lone surrogate": '{"a": "\ud800"}',
    "a lone surrogate in a key": {"\udfff": 1},
    "depth": '{"a":' * 200 + "1" + "}" * 200,
    "depth in a dict": None,
    "size": '{"a": "' + "x" * MAX_BYTES + '"}',
    "too many values": '{"a": [' + "0," * 60_000 + "0]}",
    "a list": "[1, 2]",
    "a number": "3",
    "nothing": "",
    "null": "null",
    "not text at all": 3,
    "a set inside": {"a": {1, 2}},
    "NaN inside a dict": {"a": float("nan")},
    "a key that is no string": {1: "a"},
    "bytes inside a dict": {"a": b"x"},
}
deep = {}
for _ in range(200):
    deep = {"a": deep}
REFUSED["depth in a dict"] = deep


@pytest.mark.parametrize("case", REFUSED)
def test_what_readers_could_take_differently_is_refused(case):
    decision = parse(REFUSED[case])
    assert decision.verdict is Verdict.DENY
    assert decision.code is Code.SYNTACTIC_PARSE_FAIL
    assert decision.field_errors[0].message


@pytest.mark.parametrize("seen", [1.5, True, b"v", ["v"], "\ud800", "v\0", "v" * 513, 2**63])
def test_an_expected_version_that_could_not_have_been_seen_is_refused(seen):
    decision = parse({}, expected_version=seen)
    assert decision.code is Code.SYNTACTIC_PARSE_FAIL
    assert "expected version" in decision.field_errors[0].message


@pytest.mark.parametrize("seen", [0, -1, 2**63 - 1, "", 'W/"7"', "é" * 512])
def test_an_expected_version_is_a_number_or_a_text(seen):
    assert read(parse({}, expected_version=seen)) == {}


def test_a_refusal_names_the_place():
    assert parse({"a": [1, {"b": float("inf")}]}).field_errors[0].field == "/a/1/b"
    assert "line 1 column" in parse('{"a": oops}').field_errors[0].message


@pytest.mark.parametrize("text", ['{"pw": hunter2}', '{"hunter2": 1, "hunter2": 2}', "hunter2"])
def test_a_refusal_never_quotes_the_text(text):
    decision = parse(text)
    assert "hunter2" not in repr(decision)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), JSON, max_size=5))
def test_every_sound_object_passes_unchanged_as_text_bytes_or_mapping(value):
    text = json.dumps(value, ensure_ascii=False)
    for form in (text, text.encode(), value):
        assert read(parse(form)) == value


@given(st.text() | st.binary())
def test_any_text_is_either_refused_or_read_as_the_standard_reader_does(raw):
    answer = parse(raw)
    if isinstance(answer, Learned):
        assert json.loads(raw) == read(answer)
    else:
        assert answer.code is Code.SYNTACTIC_PARSE_FAIL


def test_the_callers_own_dict_is_not_the_one_that_goes_on():
    given_arguments = {"a": 1}
    assert read(parse(given_arguments)) is not given_arguments


VALUES = st.one_of(
    JSON.map(json.dumps),
    JSON.map(lambda value: json.dumps(value, ensure_ascii=False)),
    st.integers().map(str),
    st.sampled_from(
        ['"\\ud800"', '"\\u0041"', "1e999", "9007199254740993", "-0", "1.0", "[]", "{}"]
    ),
)


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "\\u0061", "é"]), VALUES), max_size=4))
def test_a_text_is_judged_as_its_bytes_are(pairs):
    text = "{" + ", ".join(f'"{name}": {value}' for name, value in pairs) + "}"
    assert parse(text) == parse(text.encode())
