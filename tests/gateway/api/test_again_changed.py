"""Calls with one head: what was changed in between holds from the next one on, and each counts."""

from datetime import UTC, datetime, timedelta

import pytest

from counterseal import Grant, Runtime
from counterseal.web.api.limits import Limits, Rate
from tests.gateway.wires import rest_in

from .again import ADD, NOTE, wired
from .served import ANN, BOT


@pytest.fixture
async def wire():
    async with wired() as made:
        yield made


async def test_a_key_that_is_revoked_is_refused_with_the_next_call(wire):
    await wire.known()
    key_id = wire.api.keys[BOT].split("_")[2]
    await wire.api.runtime.operator("tests").revoke_key(key_id, reason="lost")
    refused = await wire.repeat(NOTE)
    assert (refused.status, refused.body["code"]) == (401, "unauthenticated")
    for _ in range(2):
        assert (await wire.ask(NOTE)).status == 401
    assert wire.api.bench.notes == []
    assert (await wire.ask(ADD, who=ANN)).status == 200, "another's is good, here as elsewhere"
    assert (await wire.ask(NOTE)).status == 401


async def test_a_key_that_is_revoked_elsewhere_is_refused_within_a_second(tmp_path):
    store = f"sqlite:///{tmp_path}/calls.db"
    async with wired(store=store) as wire, Runtime.open(store) as elsewhere:
        await wire.known()
        key_id = wire.api.keys[BOT].split("_")[2]
        await elsewhere.operator("tests").revoke_key(key_id, reason="lost")
        wire.now += 1.0
        assert (await wire.repeat(NOTE)).status == 401
        assert (await wire.ask(NOTE)).status == 401
        assert wire.api.bench.notes == []


async def test_a_key_that_has_expired_is_refused_with_the_next_call():
    now = [1_800_000_000.0]
    async with wired(clock=lambda: now[0]) as wire:
        end = datetime.fromtimestamp(now[0], UTC) + timedelta(hours=1)
        operator = wire.api.runtime.operator("tests")
        wire.api.keys["for an hour"], _ = await operator.issue_key(
            BOT, expires_at=end, reason="for a test"
        )
        await wire.known(who="for an hour")
        now[0] += 3599.0
        assert (await wire.repeat(ADD, who="for an hour")).status == 200
        now[0] += 1.0
        assert (await wire.repeat(NOTE, who="for an hour")).status == 401
        assert (await wire.ask(NOTE, who="for an hour")).status == 401
        assert wire.api.bench.notes == []


async def test_whoever_is_not_sure_to_be_good_any_more_is_asked_about_and_goes_on(wire):
    await wire.known()
    for _ in range(3):
        wire.now += 2.0
        assert (await wire.ask(ADD)).status == 200
    await wire.known()


async def test_a_kill_and_its_end_hold_from_the_next_call_on(wire):
    await wire.known()
    operator = wire.api.runtime.operator("tests")
    kill = await operator.kill(tool="note", reason="enough")
    refused = await wire.repeat(NOTE)
    assert (refused.status, refused.body["code"]) == (403, "PERMISSION_DENIED")
    assert wire.api.bench.notes == []
    await wire.known()
    await operator.restore(kill, reason="over")
    assert (await wire.repeat(NOTE)).status == 200
    assert wire.api.bench.notes == ["x"]


async def test_a_grant_that_is_taken_back_is_gone_with_the_next_call(wire):
    await wire.known()
    operator = wire.api.runtime.operator("tests")
    await operator.revoke(Grant(agent="bot", tool="note"), reason="not any more")
    assert (await wire.repeat(NOTE)).status == 403
    assert (await wire.ask(NOTE)).status == 403
    assert wire.api.bench.notes == []
    await wire.known()
    await operator.grant(Grant(agent="bot", tool="note"), reason="again")
    assert (await wire.repeat(NOTE)).status == 200


async def test_once_closed_a_known_head_is_told_to_come_back(wire):
    await wire.known()
    wire.entrance.closed = True
    told = await wire.repeat(NOTE)
    assert (told.status, "retry-after: 5" in told.head) == (503, True)
    assert "connection: close" in told.head
    assert await rest_in(wire.reader) == b""
    assert wire.api.bench.notes == []


# --- how often ------------------------------------------------------------------------------------


async def test_each_counts_against_a_rate():
    limits = Limits(credential=Rate(1.0, 10), steady=lambda: 7.0)
    async with wired(limits=limits) as wire:
        found = [(await wire.ask(ADD)).status for _ in range(12)]
        assert found == [200] * 10 + [429] * 2
        assert any(wire.again)
        assert (await wire.ask(ADD, who=ANN)).status == 200, "another has a rate of its own"
        assert (await wire.ask(ADD)).status == 429


async def test_no_call_with_a_key_for_it_has_the_place_of_another(wire):
    await wire.known()
    del wire.again[:]
    told = [await wire.ask(NOTE, "Idempotency-Key: k-1") for _ in range(4)]
    assert [one.status for one in told] == [200] * 4
    assert ["idempotent-replayed: true" in one.head for one in told] == [False, True, True, True]
    assert (wire.api.bench.notes, wire.again) == (["x"], [False] * 4)
    other = {"tool": "note", "arguments": {"text": "another"}}
    assert (await wire.ask(other, "Idempotency-Key: k-1")).status == 422
    assert (await wire.ask(other, "Idempotency-Key: k-2")).status == 200
    assert wire.api.bench.notes == ["x", "another"]


@pytest.mark.parametrize(
    "line",
    [
        "X-Request-Id: mine.1",
        "Prefer: wait=0",
        "Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    ],
)
async def test_nor_has_one_that_says_something_of_the_call(wire, line):
    await wire.known()
    del wire.again[:]
    told = [await wire.ask(ADD, line) for _ in range(3)]
    assert [one.status for one in told] == [200] * 3
    assert wire.again == [False] * 3
    if line.startswith("X-Request-Id"):
        assert [one.request_id for one in told] == ["mine.1"] * 3
    await wire.known()
    assert (await wire.ask(ADD)).request_id != "mine.1", "nothing of it is left"
