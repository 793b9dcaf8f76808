"""A change of keys, grants, kills and limits holds from the next call on."""

from datetime import UTC, datetime, timedelta

import pytest

from counterseal import Grant, Runtime
from counterseal.web.middleware import Rate, RequestLimits

from .served import ANN, BOT, open_api

ADD = {"tool": "add", "arguments": {"a": 1, "b": 2}}
NOTE = {"tool": "note", "arguments": {"text": "x"}}


async def status(api, call, who=BOT, **headers):
    answer = await api.by_key(who).post("/v1/calls", json=call, headers=headers)
    return answer.status_code


async def test_a_revoked_key_is_refused_with_the_next_call(api):
    assert await status(api, ADD) == 200
    key_id = api.keys[BOT].split("_")[2]
    await api.runtime.operator("tests").revoke_key(key_id, reason="lost")
    assert [await status(api, NOTE) for _ in range(2)] == [401, 401]
    assert await status(api, ADD, ANN) == 200, "another caller's key is good"
    assert api.bench.notes == []


async def test_a_key_that_is_revoked_elsewhere_is_refused_within_a_second(tmp_path):
    store = f"sqlite:///{tmp_path}/calls.db"
    now = [0.0]
    async with open_api(store, steady=lambda: now[0]) as api, Runtime.open(store) as elsewhere:
        assert await status(api, ADD) == 200
        key_id = api.keys[BOT].split("_")[2]
        await elsewhere.operator("tests").revoke_key(key_id, reason="lost")
        now[0] += 1.0
        assert [await status(api, NOTE) for _ in range(2)] == [401, 401]
        assert api.bench.notes == []


async def test_an_expired_key_is_refused_with_the_next_call():
    now = [1_800_000_000.0]
    async with open_api(clock=lambda: now[0]) as api:
        end = datetime.fromtimestamp(now[0], UTC) + timedelta(hours=1)
        operator = api.runtime.operator("tests")
        api.keys["for an hour"], _ = await operator.issue_key(
            BOT, expires_at=end, reason="for a test"
        )
        now[0] += 3599.0
        assert await status(api, ADD, "for an hour") == 200
        now[0] += 1.0
        assert [await status(api, NOTE, "for an hour") for _ in range(2)] == [401, 401]
        assert api.bench.notes == []


async def test_a_kill_and_its_end_hold_from_the_next_call_on(api):
    assert await status(api, ADD) == 200
    operator = api.runtime.operator("tests")
    kill = await operator.kill(tool="note", reason="enough")
    refused = await api.agent().post("/v1/calls", json=NOTE)
    assert (refused.status_code, refused.json()["code"]) == (403, "PERMISSION_DENIED")
    assert api.bench.notes == []
    await operator.restore(kill, reason="over")
    assert await status(api, NOTE) == 200
    assert api.bench.notes == ["x"]


async def test_an_operator_of_one_tenant_stops_it_and_no_other(api):
    olga, gary = api.by_key(("olga", "acme")), api.by_key(("root", "globex"))
    refused = await olga.post("/v1/kills", json={"everywhere": True, "reason": "enough"})
    assert (refused.status_code, api.runtime.registry.kills) == (403, ())
    kill = (await olga.post("/v1/kills", json={"reason": "enough"})).json()
    assert kill["tenant"] == "acme"
    assert await status(api, NOTE) == 403
    assert (await gary.get("/v1/kills")).json()["items"] == []
    missing = await gary.delete(f"/v1/kills/{kill['id']}", params={"reason": "x"})
    assert missing.status_code == 404
    undone = await olga.delete(f"/v1/kills/{kill['id']}", params={"reason": "over"})
    assert undone.status_code == 200
    assert await status(api, NOTE) == 200


async def test_a_grant_that_is_taken_back_is_gone_with_the_next_call(api):
    assert await status(api, ADD) == 200
    operator = api.runtime.operator("tests")
    await operator.revoke(Grant(agent="bot", tool="note"), reason="not any more")
    assert [await status(api, NOTE) for _ in range(2)] == [403, 403]
    assert api.bench.notes == []
    await operator.grant(Grant(agent="bot", tool="note"), reason="again")
    assert await status(api, NOTE) == 200


async def test_every_call_counts_against_its_credentials_rate():
    limits = RequestLimits(credential=Rate(1.0, 4), steady=lambda: 7.0)
    async with open_api(limits=limits) as api:
        answers = [await api.agent().post("/v1/calls", json=ADD) for _ in range(6)]
        assert [answer.status_code for answer in answers] == [200] * 4 + [429] * 2
        assert "ratelimit" in answers[3].headers
        assert await status(api, ADD, ANN) == 200, "another credential has a rate of its own"


async def test_a_key_makes_repeated_calls_one(api):
    answers = [
        await api.agent().post("/v1/calls", json=NOTE, headers={"Idempotency-Key": "k-1"})
        for _ in range(3)
    ]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert [answer.headers.get("idempotent-replayed") for answer in answers] == [
        None,
        "true",
        "true",
    ]
    other = {"tool": "note", "arguments": {"text": "another"}}
    assert await status(api, other, **{"Idempotency-Key": "k-1"}) == 422
    assert await status(api, other, **{"Idempotency-Key": "k-2"}) == 200
    assert api.bench.notes == ["x", "another"]


@pytest.mark.parametrize("who", ["vera", "root"])
async def test_a_person_makes_no_calls(api, who):
    assert await status(api, ADD, who) == 403


async def test_a_fault_of_ours_is_told_without_its_details(api, caplog):
    async def broken(*_, **__):
        raise RuntimeError("the secret path /etc/x")

    api.runtime.submit = broken
    answer = await api.agent().post("/v1/calls", json=ADD)
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "/etc/x" not in answer.text
    assert "RuntimeError: the secret path" in caplog.text, "but in the log"
