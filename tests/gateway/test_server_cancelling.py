"""Clients that cancel their calls, and clients that disconnect. A call is never executed twice."""

import asyncio

import mcp_types as types
import pytest

from counterseal import Context, tool
from counterseal.ledger.entry import EntryStatus, Phase
from tests.gateway.served import LEGACY, MODERN, MODES, Desk, facts, raw_call, serving, soon
from tests.waiting import until


def in_doubt(served):
    """Return True if the outcome of the one call is recorded as unknown."""
    entries = [row.entry for row in served.runtime.store._backend.entries.values()]
    asked = (Phase.UNKNOWN, Phase.ESCALATED)
    return (
        len(entries) == 1 and entries[0].status is EntryStatus.PENDING and entries[0].phase in asked
    )


async def given_up(calling):
    calling.cancel()
    await asyncio.wait({calling})


@MODES
async def test_a_client_that_gives_up_stops_the_tool(mode):
    """On 2025-11-25 it says so, on 2026-07-28 it hangs up."""
    desk = Desk()
    async with serving(desk.tools) as served, served.client(mode) as client:
        calling = asyncio.ensure_future(client.call_tool("linger", {"text": "a"}))
        await soon(desk.begun)
        await given_up(calling)
        await soon(desk.stopped)
        await until(lambda: in_doubt(served))
        await until(lambda: not served.server.calls.running.count)
        again = await client.call_tool("linger", {"text": "a"})
        assert again.is_error
        assert facts(again)["code"] == "IDEMPOTENCY_CONFLICT"
        # The connection is as good as before.
        assert not (await client.call_tool("add", {"a": 1, "b": 2})).is_error
    assert desk.notes == ["a"], "what was under way is not executed twice"


@MODES
async def test_a_tool_that_does_not_mind_is_left_behind_and_not_repeated(mode):
    begun, go, notes = asyncio.Event(), asyncio.Event(), []

    @tool(effect="draft", version="1.0.0", owner="desk", budget=10)
    async def stubborn(ctx: Context) -> dict[str, int]:
        """Write, whatever anybody says."""
        begun.set()
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue
        notes.append(ctx.call_id)
        return {"notes": len(notes)}

    async with serving([stubborn], wait=0.05) as served, served.client(mode) as client:
        calling = asyncio.ensure_future(client.call_tool("stubborn", {}))
        await soon(begun)
        await given_up(calling)
        try:
            assert (await client.call_tool("stubborn", {})).is_error
        finally:
            go.set()
        await until(lambda: notes)
        later = await client.call_tool("stubborn", {})
        assert later.is_error or later.structured_content == {"notes": 1}
    assert len(notes) == 1


async def test_a_call_is_cancelled_by_its_own_session_only():
    desk = Desk()
    async with (
        serving(desk.tools) as served,
        served.client(LEGACY) as client,
        served.client(LEGACY) as other,
    ):
        calling = asyncio.ensure_future(client.call_tool("linger", {"text": "a"}))
        await soon(desk.begun)
        for number in range(10):
            params = types.CancelledNotificationParams(request_id=number, reason="because")
            await other.session.send_notification(types.CancelledNotification(params=params))
        await other.list_tools()
        desk.door.set()
        assert (await calling).structured_content == {"noted": "a"}
    assert not desk.stopped.is_set()


async def test_a_client_of_2025_that_vanishes_has_its_call_carried_out_and_finds_it():
    desk = Desk()
    meta = {"counterseal/run_id": "run_1"}
    async with serving(desk.tools) as served:
        async with served.http() as http:
            headers = await served.session(http)
            call = {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "tools/call",
                "params": {"name": "linger", "arguments": {"text": "a"}, "_meta": meta},
            }
            sending = asyncio.ensure_future(http.post(served.url, json=call, headers=headers))
            await soon(desk.begun)
            await given_up(sending)
        desk.door.set()
        await until(lambda: not served.server.calls.running.count)
        async with served.client(MODERN) as client:
            found = await client.call_tool("linger", {"text": "a"}, meta=meta)
            assert found.structured_content == {"noted": "a"}
            assert facts(found)["replayed"] is True
    assert desk.notes == ["a"]


async def test_a_client_of_2026_that_vanishes_ends_its_call():
    asked = asyncio.Event()
    stopped = asyncio.Event()

    @tool(effect="read_only", version="1.0.0", owner="desk")
    async def ponder(ctx: Context) -> dict[str, str]:
        """Think for a long time."""
        asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.set()
            raise
        return {}

    async with serving([ponder]) as served, served.client(MODERN) as client:
        calling = asyncio.ensure_future(client.call_tool("ponder", {}))
        await soon(asked)
        await given_up(calling)
        await soon(stopped)
        await until(lambda: not served.server.calls.running.count)


@MODES
async def test_a_call_that_waits_for_a_person_can_be_given_up_and_made_again(mode):
    desk = Desk()
    entered = asyncio.Event()

    async def answer(context, params):
        entered.set()
        await asyncio.Event().wait()

    async with (
        serving(desk.tools) as served,
        served.client(mode, elicitation_callback=answer) as client,
    ):
        calling = asyncio.ensure_future(client.call_tool("send", {"to": "ann"}))
        await soon(entered)
        await given_up(calling)
        await until(lambda: not served.server.calls.running.count)
        await served.decide()
        later = await raw_call(client, name="send", arguments={"to": "ann"})
        assert later["structuredContent"] == {"sent": "ann"}
    assert desk.sent == ["ann"]


@MODES
@pytest.mark.parametrize("name", ["note", "add"])
async def test_a_client_that_hangs_up_at_once_leaves_nothing_half_done(mode, name):
    desk = Desk()
    arguments = {"text": "a"} if name == "note" else {"a": 1, "b": 2}
    async with serving(desk.tools) as served, served.client(mode) as client:
        for _ in range(5):
            calling = asyncio.ensure_future(client.call_tool(name, arguments))
            await asyncio.sleep(0)
            await given_up(calling)
        await until(lambda: not served.server.calls.running.count)
        result = await client.call_tool(name, arguments)
        assert len(desk.notes) <= 1
        if not result.is_error and name == "note":
            assert result.structured_content == {"notes": 1}
