"""Calls over HTTP: what they come to, and what a key is good for."""

import asyncio

import pytest

from counterseal.approvals.terms import Voter
from tests.waiting import until

from .served import ANN, BOT, PATIENCE, STRANGER

ADD = {"tool": "add", "arguments": {"a": 1, "b": 2}}
JSON = {"Content-Type": "application/json"}


async def test_a_call_is_carried_out_and_its_observation_is_the_answer(api):
    answer = await api.agent().post("/v1/calls", json=ADD)
    told = answer.json()
    assert answer.status_code == 200
    assert told["result_payload"]["data"] == {"total": 3}
    assert told["status"]["taxonomy_class"] == "SUCCESS"
    assert "<<<trusted-data" in told["text"]
    assert "idempotent-replayed" not in answer.headers
    assert "decisions" not in told


async def test_arguments_may_be_the_text_that_a_model_wrote(api):
    given = {"tool": "add", "arguments": '{"a": 1, "b": 5}'}
    answer = await api.agent().post("/v1/calls", json=given)
    assert answer.json()["result_payload"]["data"] == {"total": 6}


async def test_a_refusal_is_a_problem_that_carries_the_observation(api):
    given = {"tool": "add", "arguments": {"a": "one", "b": 2}}
    answer = await api.agent().post("/v1/calls", json=given)
    told = answer.json()
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert (told["code"], told["param"], told["where"]) == ("TYPE_MISMATCH", "/arguments/a", "body")
    assert (told["repairable"], told["retryable"]) == (True, False)
    assert told["next_action"] == "repair_arguments"
    assert told["request_id"] == answer.headers["x-request-id"]
    assert told["observation"]["status"]["taxonomy_class"] == "TYPE_MISMATCH"


async def test_who_may_not_use_a_tool_is_refused_before_a_key_is_asked_for(api):
    mine = [one for one in api.runtime.registry.grants if (one.agent, one.tool) == ("bot", "tick")]
    api.runtime.registry.revoke(*mine)
    given = {"tool": "tick", "arguments": {"text": "x"}}
    answer = await api.agent().post("/v1/calls", json=given)
    assert (answer.status_code, answer.json()["code"]) == (403, "PERMISSION_DENIED")


@pytest.mark.parametrize(
    "arguments",
    ['{"a": 1, "a": 1, "b": 2}', '{"a": NaN, "b": 2}', '{"a": 1e999, "b": 2}'],
)
async def test_what_readers_read_differently_is_refused_by_the_first_gate_and_on_record(
    api, arguments
):
    raw = f'{{ "tool":"add" , "arguments": {arguments},"run_id":"run_9" }}'
    answer = await api.agent().post("/v1/calls", content=raw, headers=JSON)
    assert answer.status_code == 400
    assert answer.json()["code"] == "SYNTACTIC_PARSE_FAIL"
    assert answer.json()["param"].startswith("/arguments")
    events = await api.by_key("vera").get("/v1/events", params={"run": "run_9"})
    assert "gate.parse.refused" in [one["type"] for one in events.json()["items"]]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{",
        b'{"tool":"add","tool":"add","arguments":{}}',
        b'{"tool":"add","arguments":{"a":1,"a":2},}',
        b'{"tool":"add","arguments":{"a":1,"a":2}} {}',
        b'{"tool":"add","arguments":{"a":1,"a":2},"arguments":{}}',
        b'{"tool":"add","arguments":' + b"[" * 50_000,
        b'\xff{"tool":"add"}',
        b'{"tool":"\\ud800","arguments":{}}',
    ],
)
async def test_a_body_that_is_no_sound_object_never_becomes_a_call(api, raw):
    answer = await api.agent().post("/v1/calls", content=raw, headers=JSON)
    assert answer.status_code == 400
    assert answer.json()["code"] == "malformed-json"
    assert (await api.agent().get("/v1/calls")).json()["items"] == []


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"arguments": {}}, "/tool"),
        ({"tool": "add"}, "/arguments"),
        ({"tool": "add", "arguments": 3}, "/arguments"),
        ({"tool": 3, "arguments": {}}, "/tool"),
        ({**ADD, "tenant": "globex"}, "/tenant"),
        ({**ADD, "approval": "x"}, "/approval"),
        ({**ADD, "run_id": ""}, "/run_id"),
        ({**ADD, "expected_version": 1.5}, "/expected_version"),
        ({**ADD, "tokens": -1}, "/tokens"),
    ],
)
async def test_what_a_submission_does_not_take_is_named(api, given, param):
    answer = await api.agent().post("/v1/calls", json=given)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid-request")
    assert (answer.json()["param"], answer.json()["where"]) == (param, "body")


async def test_tokens_of_a_call_are_counted_in_its_run(api):
    for _ in range(2):
        await api.agent().post("/v1/calls", json={**ADD, "run_id": "run_t", "tokens": 700})
    run = (await api.by_key("root").get("/v1/runs/run_t")).json()
    assert {row["name"]: row["spent"] for row in run["budgets"]}["tokens"] == 1400


async def test_people_make_no_calls_whatever_their_role(api):
    answer = await api.by_key("root").post("/v1/calls", json=ADD)
    assert (answer.status_code, answer.json()["code"]) == (403, "agents-only")


# --- keys -----------------------------------------------------------------------------------------


async def test_the_same_key_and_payload_is_done_once_and_says_so(api):
    given = {"tool": "note", "arguments": {"text": "hello"}}
    key = {"Idempotency-Key": '"k-1"'}
    first = await api.agent().post("/v1/calls", json=given, headers=key)
    again = await api.agent().post("/v1/calls", json=given, headers={"Idempotency-Key": "k-1"})
    assert first.json()["result_payload"] == again.json()["result_payload"]
    assert again.headers["idempotent-replayed"] == "true"
    assert again.json()["execution_metadata"]["idempotency_hit"] is True
    assert api.bench.notes == ["hello"]


async def test_the_same_key_with_another_payload_is_refused(api):
    key = {"Idempotency-Key": '"k-1"'}
    agent = api.agent()
    await agent.post("/v1/calls", json={"tool": "note", "arguments": {"text": "a"}}, headers=key)
    answer = await agent.post(
        "/v1/calls", json={"tool": "note", "arguments": {"text": "b"}}, headers=key
    )
    assert (answer.status_code, answer.json()["code"]) == (422, "SIGNATURE_MISMATCH")
    assert api.bench.notes == ["a"]


async def test_a_key_of_another_tenant_is_another_key(api):
    key = {"Idempotency-Key": '"k-1"'}
    given = {"tool": "note", "arguments": {"text": "a"}}
    await api.agent().post("/v1/calls", json=given, headers=key)
    answer = await api.agent(STRANGER).post("/v1/calls", json=given, headers=key)
    assert "idempotent-replayed" not in answer.headers
    assert api.bench.notes == ["a", "a"]


async def test_while_the_first_is_in_progress_the_second_is_told_to_come_back(api):
    given = {"tool": "linger", "arguments": {"text": "slow"}}
    key = {"Idempotency-Key": '"k-1"'}
    agent = api.agent()
    first = asyncio.ensure_future(agent.post("/v1/calls", json=given, headers=key))
    async with asyncio.timeout(PATIENCE):
        await api.bench.begun.wait()
    assert api.submissions.running.count == 1
    second = await agent.post("/v1/calls", json=given, headers=key)
    assert (second.status_code, second.json()["code"]) == (409, "IDEMPOTENCY_CONFLICT")
    assert int(second.headers["retry-after"]) >= 1
    assert second.json()["retryable"] is True
    waiting = asyncio.ensure_future(
        agent.post("/v1/calls", json=given, headers={**key, "Prefer": "wait=30"})
    )
    await asyncio.sleep(0)
    api.bench.door.set()
    assert (await first).status_code == 200
    assert (await waiting).headers["preference-applied"] == "wait=30"
    assert (await waiting).headers["idempotent-replayed"] == "true"
    assert api.bench.notes == ["slow"]
    async with asyncio.timeout(PATIENCE):
        await api.submissions.running.idle()


async def test_a_tool_that_may_be_meant_twice_takes_a_name_for_each_call(api):
    given = {"tool": "tick", "arguments": {"text": "x"}}
    bare = await api.agent().post("/v1/calls", json=given)
    assert (bare.status_code, bare.json()["code"]) == (400, "idempotency-key-required")
    assert api.bench.notes == []
    for headers, more in (
        ({"Idempotency-Key": "a"}, {}),
        ({"Idempotency-Key": "b"}, {}),
        ({}, {"operation_id": "c"}),
    ):
        answer = await api.agent().post("/v1/calls", json={**given, **more}, headers=headers)
        assert answer.status_code == 200
    assert api.bench.notes == ["x", "x", "x"]


@pytest.mark.parametrize(
    "key", ["", '""', '"  "', '"open', "two words", "a,b", '"a", "b"', "x" * 256, "\xe4", '"\\a"']
)
async def test_a_malformed_key_is_refused(api, key):
    headers = [(b"Idempotency-Key", key.encode("latin-1"))]
    answer = await api.agent().post("/v1/calls", json=ADD, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "idempotency-key-malformed")
    assert (answer.json()["param"], answer.json()["where"]) == ("/idempotency-key", "header")


async def test_two_keys_are_none(api):
    headers = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    answer = await api.agent().post("/v1/calls", json=ADD, headers=headers)
    assert answer.json()["code"] == "idempotency-key-malformed"


# --- people ---------------------------------------------------------------------------------------


async def test_a_call_that_waits_for_a_person_is_accepted_and_says_where(api):
    given = {"tool": "send", "arguments": {"to": "Ann"}}
    answer = await api.agent().post("/v1/calls", json=given)
    told = answer.json()
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/v1/approvals/{told['approval_id']}"
    assert told["approval_url"].endswith(f"/approvals/{told['approval_id']}")
    assert told["next_action"] == "await_approval"
    seen = await api.agent().get(answer.headers["location"])
    assert (seen.status_code, seen.json()["status"]) == (200, "waiting")


async def test_who_waits_gets_what_came_of_the_decision(api):
    given = {"tool": "send", "arguments": {"to": "Ann"}}
    agent = api.agent()
    waiting = asyncio.ensure_future(
        agent.post("/v1/calls", json=given, headers={"Prefer": "respond-async, wait=30"})
    )
    held = await until(lambda: api.runtime.approvals.list("acme"))
    voter = Voter(user="ada", tenant="acme")
    await api.runtime.approvals.decide(held[0].approval_id, voter, "approve")
    answer = await waiting
    assert answer.status_code == 200, answer.text
    assert api.bench.sent == ["Ann"]


async def test_a_rejected_call_is_a_problem_with_the_persons_words(api):
    held = await api.held()
    await api.by_key("ada").post(
        f"/v1/approvals/{held['approval_id']}/decision",
        json={"decision": "reject", "comment": "not to Ann"},
    )
    given = {"tool": "send", "arguments": {"to": "Ann"}}
    answer = await api.agent().post("/v1/calls", json=given)
    assert (answer.status_code, answer.json()["code"]) == (428, "CONFIRMATION_MISSING")
    assert "not to Ann" in answer.json()["observation"]["text"]
    assert api.bench.sent == []


async def test_a_caller_is_who_its_credential_says(api):
    await api.agent(ANN).post("/v1/calls", json=ADD)
    (row,) = (await api.by_key("vera").get("/v1/calls")).json()["items"]
    assert (row["agent"], row["user"]) == (ANN.agent, ANN.user)
    assert (await api.agent(BOT).get("/v1/calls")).json()["items"] == []
