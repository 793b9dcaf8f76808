"""A table of requests to `POST /v1/calls`: what is taken, and how what is not is refused."""

import json

import pytest

from counterseal.codes import RESPONSES, Code
from counterseal.observation import Observation
from counterseal.web.api.submit import observation_json

from .served import PUBLIC

ADD = {"tool": "add", "arguments": {"a": 1, "b": 2}}
NOTE = {"tool": "note", "arguments": {"text": "x"}}
TYPE = ("Content-Type", "application/json")
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OK, NO_JSON, INVALID = 200, "malformed-json", "invalid-request"

REQUESTS = {
    "a call": ([TYPE], ADD, OK),
    "its arguments as a text": ([TYPE], {**ADD, "arguments": '{"a": 1, "b": 2}'}, OK),
    "a run": ([TYPE], {**ADD, "run_id": "r_1"}, OK),
    "a key": ([TYPE, ("Idempotency-Key", '"k-1"')], NOTE, OK),
    "a malformed key": ([TYPE, ("Idempotency-Key", "a b")], NOTE, "idempotency-key-malformed"),
    "two keys": (
        [TYPE, ("Idempotency-Key", "a"), ("Idempotency-Key", "b")],
        NOTE,
        "idempotency-key-malformed",
    ),
    "no key where one is required": (
        [TYPE],
        {"tool": "tick", "arguments": {"text": "x"}},
        "idempotency-key-required",
    ),
    "a trace": ([TYPE, ("Traceparent", TRACE)], ADD, OK),
    "no trace": ([TYPE, ("Traceparent", "zz")], ADD, OK),
    "a wait": ([TYPE, ("Prefer", "wait=0")], ADD, OK),
    "a person is needed": ([TYPE], {"tool": "send", "arguments": {"to": "Ann"}}, 202),
    "wrong arguments": ([TYPE], {"tool": "add", "arguments": {"a": "x", "b": 2}}, "TYPE_MISMATCH"),
    "no arguments": ([TYPE], {"tool": "add"}, INVALID),
    "arguments in a list": ([TYPE], {"tool": "add", "arguments": [1]}, INVALID),
    "no tool": ([TYPE], {"arguments": {}}, INVALID),
    "a tool that is a number": ([TYPE], {"tool": 3, "arguments": {}}, INVALID),
    "a name without end": ([TYPE], {"tool": "x" * 513, "arguments": {}}, INVALID),
    "an unknown member": ([TYPE], {**ADD, "tenant": "globex"}, INVALID),
    "nothing": ([TYPE], b"", NO_JSON),
    "a list": ([TYPE], b"[]", NO_JSON),
    "half of it": ([TYPE], b'{"tool"', NO_JSON),
    "a member twice": ([TYPE], b'{"tool":"add","tool":"add","arguments":{}}', NO_JSON),
    "an argument twice": (
        [TYPE],
        b'{"tool":"add","arguments":{"a":1,"a":2}}',
        "SYNTACTIC_PARSE_FAIL",
    ),
    "no number": (
        [TYPE],
        b'{"tool":"add","arguments":{"a":NaN,"b":1}}',
        "SYNTACTIC_PARSE_FAIL",
    ),
    "no UTF-8": ([TYPE], b'\xff{"tool":"add"}', NO_JSON),
    "too much": ([TYPE], b" " * (1024 * 1024 + 1), "too-large"),
    "a cookie beside the key": ([TYPE, ("Cookie", "counterseal=x")], ADD, OK),
    "another page's origin": ([TYPE, ("Origin", "https://evil.example")], ADD, OK),
    "in UTF-8": ([("Content-Type", "application/json; charset=utf-8")], ADD, OK),
    "in Latin 1": (
        [("Content-Type", "application/json; charset=latin-1")],
        ADD,
        "unsupported-media-type",
    ),
    "a form": ([("Content-Type", "text/plain")], ADD, "unsupported-media-type"),
    "no type": ([], ADD, "unsupported-media-type"),
    "two types": ([TYPE, TYPE], ADD, "unsupported-media-type"),
    "two credentials": ([TYPE, ("Authorization", "Bearer x")], ADD, "unauthenticated"),
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_request_is_answered_as_the_table_says(api, name):
    headers, content, expected = REQUESTS[name]
    client = api.agent()
    given = [("Authorization", client.headers.pop("Authorization")), *headers]
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    answer = await client.post("/v1/calls", headers=given, content=body)
    if isinstance(expected, int):
        assert answer.status_code == expected, answer.text
    else:
        assert answer.json()["code"] == expected
        assert answer.headers["content-type"] == "application/problem+json"


OBSERVATION = Observation(
    tool="add",
    version="1.0.0",
    call_id='a"b\\',
    code=Code.SUCCESS,
    response=RESPONSES[Code.SUCCESS],
    next_action="continue",
    timestamp=1_700_000_000.25,
    data={"total": 3, "deep": {"of": [1, None, "ä\n\u2028"]}},
    trace_id="0" * 32,
)


async def test_an_observation_is_sent_as_json(api):
    async def observed(*_, **__):
        return OBSERVATION

    api.runtime.submit = observed
    answer = await api.agent().post("/v1/calls", json=ADD)
    record, text = OBSERVATION.record(), OBSERVATION.for_model()
    assert answer.json() == json.loads(json.dumps(observation_json(record, text, PUBLIC)))
    assert "decisions" not in answer.json()


async def test_numbers_that_json_lacks_are_sent_as_null(api):
    async def observed(*_, **__):
        return OBSERVATION._replace(data={"much": float("inf")})

    api.runtime.submit = observed
    answer = await api.agent().post("/v1/calls", json=ADD)
    assert answer.json()["result_payload"]["data"] == {"much": None}
