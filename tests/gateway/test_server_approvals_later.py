"""Approvals for clients that can't be asked anything: they make the same call again, later."""

from counterseal import Reconciler
from tests.gateway.approved import (
    LETTER,
    needs_approval,
    rejected,
)
from tests.gateway.served import (
    MODES,
    STRANGER,
    Desk,
    facts,
    serving,
)


@MODES
async def test_a_client_that_can_not_be_asked_makes_the_same_call_later(mode):
    desk = Desk()
    async with serving(desk.tools) as served, served.client(mode) as client:
        first = needs_approval(await client.call_tool("send", LETTER), served)
        assert needs_approval(await client.call_tool("send", LETTER), served) == first
        await served.decide()
        third = await client.call_tool("send", LETTER)
        assert third.structured_content == {"sent": "ann"}
        fourth = await client.call_tool("send", LETTER)
        assert fourth.structured_content == {"sent": "ann"}
        assert [facts(one)["replayed"] for one in (third, fourth)] == [False, True]
    assert desk.sent == ["ann"]


@MODES
async def test_a_client_that_can_not_be_asked_is_told_of_a_rejection(mode):
    desk = Desk()
    async with serving(desk.tools) as served, served.client(mode) as client:
        needs_approval(await client.call_tool("send", LETTER), served)
        await served.decide("reject")
        later = await client.call_tool("send", LETTER)
        rejected(later)
    assert desk.sent == []


@MODES
async def test_an_approval_is_for_the_call_that_was_shown(mode):
    desk = Desk()
    async with serving(desk.tools) as served, served.client(mode) as client:
        needs_approval(await client.call_tool("send", LETTER), served)
        await served.decide()
        needs_approval(await client.call_tool("send", {"to": "mallory"}), served)
        async with served.client(mode, STRANGER) as stranger:
            needs_approval(await stranger.call_tool("send", LETTER), served)
    assert desk.sent == []


@MODES
async def test_what_the_reconciler_executed_is_what_the_same_call_finds(mode):
    desk = Desk()
    async with serving(desk.tools) as served, served.client(mode) as client:
        needs_approval(await client.call_tool("send", LETTER), served)
        await served.decide()
        await Reconciler(served.runtime).once()
        assert desk.sent == ["ann"]
        later = await client.call_tool("send", LETTER)
        assert later.structured_content == {"sent": "ann"}
        assert facts(later)["replayed"] is True
    assert desk.sent == ["ann"]
