"""Calls with one head, over one connection: each is asked for all that the first was asked for."""

import pytest

from tests.gateway.served import until
from tests.gateway.wires import Line, rest_in

from .again import ADD, NOTE, WHO, wired
from .served import ANN, BOT, OTHER


@pytest.fixture
async def wire():
    async with wired() as made:
        yield made


async def test_one_head_is_as_many_calls_as_it_comes(wire):
    await wire.known()
    found = []
    for a, b in ((1, 2), (1000, 2000), (10**9, 1)):
        found.append(await wire.repeat({"tool": "add", "arguments": {"a": a, "b": b}}))
    assert [one.data for one in found] == [{"total": 3}, {"total": 3000}, {"total": 10**9 + 1}]
    ids = {one.request_id for one in found} | {
        one.body["tool_identity"]["call_id"] for one in found
    }
    assert len(ids) == 6
    assert "" not in ids


async def test_one_body_twice_is_two_calls_on_record(wire):
    await wire.known()
    before = len((await wire.api.agent().get("/v1/calls")).json()["items"])
    for _ in range(3):
        assert (await wire.repeat(ADD)).status == 200
    assert len((await wire.api.agent().get("/v1/calls")).json()["items"]) == before + 3


# --- who ------------------------------------------------------------------------------------------


async def test_another_credential_on_the_connection_is_another_caller(wire):
    callers = [BOT, BOT, ANN, BOT, OTHER, OTHER, OTHER, ANN, ANN, BOT, BOT, ANN]
    await wire.known()
    for who in callers * 2:
        told = await wire.ask(WHO, who=who)
        assert told.data == {"agent": who.agent, "user": who.user}
    assert any(wire.again)


@pytest.mark.parametrize(
    "change", [lambda key: key[:-1] + "!", lambda key: key + "x", lambda _: ""]
)
async def test_a_credential_that_is_nearly_the_known_one_is_none(wire, change):
    await wire.known()
    assert (await wire.ask(NOTE, who=change(wire.api.keys[BOT]))).status == 401
    assert wire.api.bench.notes == []
    await wire.known()


async def test_another_host_is_not_ours_whoever_was_known_before(wire):
    await wire.known()
    for _ in range(2):
        assert (await wire.ask(NOTE, host="evil.example")).status == 421
    assert wire.api.bench.notes == []
    await wire.known()


async def test_two_credentials_are_none_whoever_was_known_before(wire):
    await wire.known()
    twice = f"Authorization: Bearer {wire.api.keys[ANN]}"
    assert (await wire.ask(NOTE, twice)).status == 401
    assert wire.api.bench.notes == []


# --- what -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"", b"[]", b'{"tool"', b"\xff", b'{"tool":"add","tool":"add"}'])
async def test_a_body_that_is_no_call_is_a_problem_and_the_connection_goes_on(wire, body):
    for _ in range(2):
        await wire.known()
        refused = await wire.repeat(body)
        assert (refused.status, refused.body["status"]) == (400, 400)
        assert "application/problem+json" in refused.head


async def test_a_call_that_waits_for_a_person_leaves_the_connection_as_it_was(wire):
    await wire.known()
    held = await wire.repeat({"tool": "send", "arguments": {"to": "Ann"}})
    assert (held.status, "location: /v1/approvals/" in held.head) == (202, True)
    await wire.known()
    assert wire.api.bench.sent == []


async def test_a_body_that_is_announced_too_large_is_refused(wire):
    await wire.known()
    wire.writer.write(wire.request(ADD).replace(b"Content-Length: ", b"Content-Length: 9999999"))
    told = await wire.answer()
    assert (told.status, told.body["code"]) == (413, "too-large")
    assert await rest_in(wire.reader) == b""


async def test_a_body_that_is_too_large_is_refused_even_if_it_is_there_in_one_piece(wire):
    line = Line(wire.app)
    for number in range(1, 5):
        await line.say(wire.request(ADD))
        await until(lambda: line.written.count(b"HTTP/1.1 200 ") == number)  # noqa: B023 - at once
    assert wire.again[-1]
    await line.say(wire.request(b" " * (1024 * 1024 + 1)))
    await line.hang_up()
    assert line.written.count(b"HTTP/1.1 413 ") == 1
    assert (wire.again[-1], line.sink.ended) == (True, True)


async def test_a_request_in_a_body_is_nobodys_call(wire):
    """A proxy may put one caller's body behind another's head; it is still a body."""
    await wire.known()
    inner = wire.request(NOTE, who=ANN)
    assert (await wire.repeat(inner)).status == 400
    await wire.known()
    whole = wire.request(inner)
    wire.writer.write(whole[: -len(inner)])
    await wire.writer.drain()
    await until(lambda: not wire.again[-1])
    wire.writer.write(inner)
    assert (await wire.answer()).status == 400
    await wire.known()
    assert wire.api.bench.notes == []


async def test_calls_that_are_sent_without_waiting_are_answered_in_their_order(wire):
    await wire.known()
    calls = [{"tool": "add", "arguments": {"a": a, "b": 0}} for a in range(6)]
    wire.writer.write(b"".join(map(wire.request, calls[:3])))
    for call in calls[3:]:
        wire.writer.write(wire.request(call))
    assert [(await wire.answer()).data["total"] for _ in calls] == list(range(6))
