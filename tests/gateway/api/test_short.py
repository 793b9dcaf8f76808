"""The short way answers as the front does: each request of a table goes both ways."""

import json
import re

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from counterseal.codes import RESPONSES, Code
from counterseal.contract.effects import Trust
from counterseal.observation import FieldError, Observation, Redaction, VerificationHint
from counterseal.web.api.bodies import object_in
from counterseal.web.api.limits import Limits, Rate
from counterseal.web.api.problems import ProblemError
from counterseal.web.api.submitting import Submission, _is_plain, _proposal
from counterseal.web.api.writing import shown, written

from .served import BOT, PUBLIC, open_api

ADD = {"tool": "add", "arguments": {"a": 1, "b": 2}}
NOTE = {"tool": "note", "arguments": {"text": "x"}}
TYPE = ("Content-Type", "application/json")
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
VARIES = re.compile(
    r"(call_|req_|apr_|run_)[0-9a-z]+"
    r"|\b[0-9a-f]{16,32}\b"
    r"|\"latency_ms\":\d+"
    r"|\"timestamp\":[^,}]+"
    r"|\"approval_(id|url)\":\"[^\"]+\""
    r"|approval: \S+?\\n"
    r"|/v1/approvals/\S+"
)
"""What is another one with every call."""


def body(value):
    return value if isinstance(value, bytes) else json.dumps(value).encode()


SHORT = {
    "a call": ([TYPE], ADD),
    "its arguments as a text": ([TYPE], {**ADD, "arguments": '{"a": 1, "b": 2}'}),
    "a run": ([TYPE], {**ADD, "run_id": "r_1"}),
    "a key": ([TYPE, ("Idempotency-Key", '"k-1"')], NOTE),
    "the same key again": ([TYPE, ("Idempotency-Key", "k-1")], NOTE),
    "the key with another payload": (
        [TYPE, ("Idempotency-Key", "k-1")],
        {"tool": "note", "arguments": {"text": "y"}},
    ),
    "a malformed key": ([TYPE, ("Idempotency-Key", "a b")], NOTE),
    "a key that is wanted": ([TYPE], {"tool": "tick", "arguments": {"text": "x"}}),
    "a trace": ([TYPE, ("Traceparent", TRACE)], ADD),
    "no trace": ([TYPE, ("Traceparent", "zz")], ADD),
    "a wait": ([TYPE, ("Prefer", "wait=0")], ADD),
    "an id": ([TYPE, ("X-Request-Id", "mine.1")], ADD),
    "no id": ([TYPE, ("X-Request-Id", "not one")], ADD),
    "a person is needed": ([TYPE], {"tool": "send", "arguments": {"to": "Ann"}}),
    "wrong arguments": ([TYPE], {"tool": "add", "arguments": {"a": "x", "b": 2}}),
    "unknown tool": ([TYPE], {"tool": "nothing", "arguments": {}}),
    "no arguments": ([TYPE], {"tool": "add"}),
    "arguments in a list": ([TYPE], {"tool": "add", "arguments": [1]}),
    "no tool": ([TYPE], {"arguments": {}}),
    "a tool that is a number": ([TYPE], {"tool": 3, "arguments": {}}),
    "a name without end": ([TYPE], {"tool": "x" * 513, "arguments": {}}),
    "something else": ([TYPE], {**ADD, "tenant": "globex"}),
    "nothing": ([TYPE], b""),
    "a list": ([TYPE], b"[]"),
    "half of it": ([TYPE], b'{"tool"'),
    "a member twice": ([TYPE], b'{"tool":"add","tool":"add","arguments":{}}'),
    "an argument twice": ([TYPE], b'{"tool":"add","arguments":{"a":1,"a":2}}'),
    "no number": ([TYPE], b'{"tool":"add","arguments":{"a":NaN,"b":1}}'),
    "no text": ([TYPE], b'{"tool":"\\ud800","arguments":{}}'),
    "no UTF-8": ([TYPE], b'\xff{"tool":"add"}'),
    "too much": ([TYPE], b" " * (1024 * 1024 + 1)),
    "too much, as it says": ([TYPE, ("Content-Length", str(10**12))], ADD),
    "a cookie beside": ([TYPE, ("Cookie", "counterseal=x")], ADD),
    "a page of somebody's": ([TYPE, ("Origin", "https://evil.example")], ADD),
}
"""Requests that nobody but the short way answers."""
LONG = {
    "in UTF-8": ([("Content-Type", "application/json; charset=utf-8")], ADD),
    "in Latin 1": ([("Content-Type", "application/json; charset=latin-1")], ADD),
    "a form": ([("Content-Type", "text/plain")], ADD),
    "no type": ([], ADD),
    "two types": ([TYPE, TYPE], ADD),
    "two keys": ([TYPE, ("Idempotency-Key", "a"), ("Idempotency-Key", "b")], NOTE),
    "two credentials": ([TYPE, ("Authorization", "Bearer x")], ADD),
}
"""Those that it leaves to the front."""
STRANGERS = {
    "nobody": None,
    "no bearer": "Basic dTpw",
    "nothing borne": "Bearer ",
    "a strange key": "Bearer cs_key_0000000000000000_" + "x" * 43,
    "a token": "Bearer a.b.c",
}


@pytest.fixture
async def both():
    """Two of the same: one as it is, and one whose short way nobody takes."""
    async with open_api() as first, open_api() as second:
        first.fronted = []
        front = first.api.front

        async def watched(scope, receive, send):
            first.fronted.append(scope["path"])
            await front(scope, receive, send)

        first.api.entry._front = watched
        second.api.entry = second.api.front
        for one in (first, second):
            assert (await one.agent().post("/v1/calls", json=ADD)).status_code == 200
        first.fronted.clear()
        yield first, second


async def ask(served, headers, content, *, method="POST", path="/v1/calls"):
    transport = httpx.ASGITransport(served.api, client=("192.0.2.1", 40_000))
    async with httpx.AsyncClient(transport=transport, base_url=PUBLIC) as client:
        answer = await client.request(method, path, headers=headers, content=body(content))
    told = dict(answer.headers)
    told.pop("content-length", None)
    return (
        answer.status_code,
        {name: VARIES.sub("*", value) for name, value in told.items()},
        VARIES.sub("*", answer.text),
    )


def bearer(served, who=BOT):
    return ("Authorization", f"Bearer {served.keys[who]}")


@pytest.mark.parametrize("name", [*SHORT, *LONG])
async def test_a_request_is_answered_alike_either_way(both, name):
    headers, content = (SHORT | LONG)[name]
    if name in {"the same key again", "the key with another payload"}:
        for one in both:
            await ask(one, [bearer(one), *SHORT["a key"][0]], NOTE)
    answers = [await ask(one, [bearer(one), *headers], content) for one in both]
    assert answers[0] == answers[1]
    assert bool(both[0].fronted) is (name in LONG)


@pytest.mark.parametrize("name", STRANGERS)
async def test_whoever_is_not_known_is_refused_alike(both, name):
    given = STRANGERS[name]
    headers = [TYPE] if given is None else [TYPE, ("Authorization", given)]
    answers = [await ask(one, headers, ADD) for one in both]
    assert answers[0] == answers[1]
    assert answers[0][0] == 401


@pytest.mark.parametrize("who", ["vera", "root"])
async def test_a_person_makes_no_call_either_way(both, who):
    answers = [await ask(one, [TYPE, bearer(one, who)], ADD) for one in both]
    assert answers[0] == answers[1]
    assert answers[0][0] == 403


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/calls?a=1"),
        ("POST", "/v1/calls?a=1&a=2"),
        ("POST", "/v1/calls/"),
        ("PUT", "/v1/calls"),
        ("DELETE", "/v1/calls"),
        ("OPTIONS", "/v1/calls"),
        ("GET", "/v1/calls"),
        ("HEAD", "/v1/calls"),
    ],
)
async def test_another_method_or_path_is_the_fronts(both, method, path):
    content = b"" if method in ("GET", "HEAD", "OPTIONS") else ADD
    answers = [
        await ask(one, [TYPE, bearer(one)], content, method=method, path=path) for one in both
    ]
    if method in ("GET", "HEAD"):
        answers = [(status, headers.keys()) for status, headers, _ in answers]
    assert answers[0] == answers[1]
    assert both[0].fronted


async def test_a_rate_holds_either_way():
    found = []
    for short in (True, False):
        limits = Limits(credential=Rate(1.0, 4), steady=lambda: 7.0)
        async with open_api(limits=limits) as api:
            if not short:
                api.api.entry = api.api.front
            found.append([await ask(api, [TYPE, bearer(api)], ADD) for _ in range(6)])
    assert found[0] == found[1]
    assert [status for status, *_ in found[0]] == [200, 200, 200, 200, 429, 429]
    assert "ratelimit" in found[0][3][1]


async def test_a_fault_of_ours_is_told_either_way_and_nothing_of_it(both, caplog):
    async def broken(*_, **__):
        raise RuntimeError("the secret path /etc/x")

    for one in both:
        one.runtime.submit = broken
    answers = [await ask(one, [TYPE, bearer(one)], ADD) for one in both]
    assert answers[0] == answers[1]
    assert answers[0][0] == 500
    assert "/etc/x" not in answers[0][2]
    assert caplog.text.count("RuntimeError: the secret path") == 2, "but in the log"


async def test_a_key_that_is_revoked_ends_with_the_next_call(both):
    for one in both:
        key_id = one.keys[BOT].split("_")[2]
        await one.runtime.operator("tests").revoke_key(key_id, reason="lost")
    answers = [await ask(one, [TYPE, bearer(one)], ADD) for one in both]
    assert answers[0] == answers[1]
    assert answers[0][0] == 401


# --- what is taken at a glance --------------------------------------------------------------------


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
NAMES = st.sampled_from(["tool", "arguments", "run_id", "version", "x"])


@given(st.dictionaries(NAMES, JSON_VALUES | st.just("add") | st.just({"a": 1}), max_size=4))
@settings(max_examples=300, deadline=None)
def test_what_is_plain_is_what_the_shape_takes(given):
    read = object_in(json.dumps(given).encode())
    try:
        asked = Submission.model_validate(read, strict=True)
    except ValidationError:
        assert not _is_plain(read)
        with pytest.raises(ProblemError):
            _proposal(read, {})
        return
    made = _proposal(read, {})
    assert (made.tool, made.arguments) == (asked.tool, asked.arguments)
    assert (made.run_id, made.version) == (asked.run_id, asked.version)


SEEN = Observation(
    tool="add",
    version="1.0.0",
    call_id="call_1",
    code=Code.SUCCESS,
    response=RESPONSES[Code.SUCCESS],
    next_action="continue",
    timestamp=1_700_000_000.25,
    data={"total": 3, "deep": {"of": [1, None, "ä\n\u2028"]}},
    trace_id="0" * 32,
)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"data": None},
        {"data": {"much": float("inf")}},
        {"timestamp": 5},
        {"timestamp": 1_700_000_000.9999999},
        {"timestamp": 1_700_000_000.0000004},
        {"call_id": 'a"b\\', "trace_id": "ä"},
        {"trust": Trust.TRUSTED, "attempt": 3, "latency_ms": 12, "idempotency_hit": True},
        {"code": Code.PARTIAL_SUCCESS, "response": RESPONSES[Code.PARTIAL_SUCCESS]},
        {"code": Code.PARTIAL_SUCCESS, "warnings": ("one was left",)},
        {"warnings": ("slow",)},
        {"redactions": (Redaction("pii", "/total", 1),)},
        {"verification": VerificationHint(required=True, delay_seconds=3)},
        {"approval_id": "apr_1"},
        {"retry_after": 2.5, "code": Code.RATE_LIMITED, "response": RESPONSES[Code.RATE_LIMITED]},
        {"errors": (FieldError("/a", "no", "TYPE_MISMATCH", "integer", "text"),)},
    ],
)
def test_what_is_written_is_what_is_shown(changes):
    seen = SEEN._replace(**changes)
    told = shown(seen, PUBLIC)
    if changes.get("data") == {"much": float("inf")}:
        told["result_payload"]["data"] = {"much": None}
    assert json.loads(written(seen, PUBLIC)) == json.loads(json.dumps(told))


@given(st.floats(0, 4e9) | st.integers(0, 4_000_000_000).map(float))
@settings(max_examples=300, deadline=None)
def test_a_moment_is_written_as_it_is_shown(timestamp):
    seen = SEEN._replace(timestamp=timestamp)
    told = shown(seen, PUBLIC)
    assert json.loads(written(seen, PUBLIC)) == json.loads(json.dumps(told))
