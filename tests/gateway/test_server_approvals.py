"""Calls that a person has to approve, on 2026-07-28: `input_required`, with sealed state.

The client's own answer never approves anything: it only says that somebody was told.
"""

import asyncio

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from tests.gateway.approved import (
    LETTER,
    Asked,
    first_round,
    needs_approval,
    rejected,
    second_round,
)
from tests.gateway.served import (
    ANN,
    MODERN,
    STRANGER,
    Desk,
    facts,
    serving,
)
from tests.waiting import until


async def test_the_client_is_asked_to_show_where_to_decide():
    async with serving(Desk().tools) as served:
        async with served.client(MODERN, elicitation_callback=Asked()) as client:
            first = await first_round(client)
        (held,) = await served.runtime.approvals.list()
    assert isinstance(first, types.InputRequiredResult)
    ((name, asked),) = first.input_requests.items()
    assert name == "approval"
    assert asked.params.mode == "url"
    assert asked.params.url == f"https://console.test/approvals/{held.approval_id}"
    assert "A letter goes to ann." in asked.params.message
    assert held.approval_id not in first.request_state, "the state is sealed"


async def test_a_call_that_was_approved_meanwhile_is_executed_once():
    desk = Desk()
    async with serving(desk.tools) as served:
        answering = Asked(then=served.decide)
        async with served.client(MODERN, elicitation_callback=answering) as client:
            result = await client.call_tool("send", LETTER)
            assert result.structured_content == {"sent": "ann"}
            assert facts(result)["replayed"] is False
            again = await client.call_tool("send", LETTER)
            assert facts(again)["replayed"] is True
            assert again.structured_content == {"sent": "ann"}
    assert desk.sent == ["ann"]
    assert len(answering.asked) == 1


async def test_a_client_that_comes_back_early_waits_and_is_woken_by_the_decision():
    desk = Desk()
    async with (
        serving(desk.tools) as served,
        served.client(MODERN, elicitation_callback=Asked()) as client,
    ):
        calling = asyncio.ensure_future(client.call_tool("send", LETTER))
        await until(lambda: served.server.calls.running.count)
        await served.decide()
        assert (await calling).structured_content == {"sent": "ann"}
    assert desk.sent == ["ann"]


@pytest.mark.parametrize("answer", ["decline", "cancel", None])
async def test_who_declines_cancels_or_says_nothing_is_told_what_is_missing(answer):
    desk = Desk()
    async with (
        serving(desk.tools) as served,
        served.client(MODERN, elicitation_callback=Asked()) as client,
    ):
        first = await first_round(client)
        given = None if answer is None else types.ElicitResult(action=answer)
        needs_approval(await second_round(client, first, given), served)
        # That its user did not look does not reject it: those who decide still can.
        await served.decide()
        later = await first_round(client)
        assert later.structured_content == {"sent": "ann"}
    assert desk.sent == ["ann"]


async def test_accepting_without_a_decision_executes_nothing():
    desk = Desk()
    async with (
        serving(desk.tools, wait=0.05) as served,
        served.client(MODERN, elicitation_callback=Asked()) as client,
    ):
        needs_approval(await client.call_tool("send", LETTER), served)
    assert desk.sent == []


async def test_a_rejected_call_is_told_so_and_not_executed():
    desk = Desk()
    async with serving(desk.tools) as served:
        answering = Asked(then=lambda: served.decide("reject"))
        async with served.client(MODERN, elicitation_callback=answering) as client:
            result = await client.call_tool("send", LETTER)
            rejected(result)
    assert desk.sent == []
    assert len(answering.asked) == 1, "no approver is asked a second time"


def cut(state):
    return state[:-5] + ("A" if state[-5] != "A" else "B") + state[-4:]


@pytest.mark.parametrize("change", [cut, lambda _: "v1.AAAA", lambda _: "x", lambda s: s + "="])
async def test_state_that_was_tampered_with_is_refused(change, caplog):
    caplog.set_level("CRITICAL", "mcp")
    desk = Desk()
    async with (
        serving(desk.tools) as served,
        served.client(MODERN, elicitation_callback=Asked()) as client,
    ):
        first = await first_round(client)
        await served.decide()
        with pytest.raises(MCPError, match="Invalid or expired requestState"):
            await second_round(client, first, request_state=change(first.request_state))
    assert desk.sent == []


@pytest.mark.parametrize("other", [ANN, STRANGER])
async def test_state_of_another_principal_is_refused(other, caplog):
    caplog.set_level("CRITICAL", "mcp")
    desk = Desk()
    async with serving(desk.tools) as served:
        async with served.client(MODERN, elicitation_callback=Asked()) as client:
            first = await first_round(client)
        await served.decide()
        async with served.client(MODERN, other, elicitation_callback=Asked()) as client:
            with pytest.raises(MCPError, match="Invalid or expired requestState"):
                await second_round(client, first)
    assert desk.sent == []


async def test_state_of_another_call_is_refused_though_that_was_approved(caplog):
    caplog.set_level("CRITICAL", "mcp")
    desk = Desk()
    async with (
        serving(desk.tools) as served,
        served.client(MODERN, elicitation_callback=Asked()) as client,
    ):
        first = await first_round(client)
        await served.decide()
        with pytest.raises(MCPError, match="Invalid or expired requestState"):
            await second_round(client, first, arguments={"to": "mallory"})
    assert desk.sent == []


async def test_state_that_is_too_old_is_refused(monkeypatch, caplog):
    caplog.set_level("CRITICAL", "mcp")
    monkeypatch.setattr("counterseal.gateway.server._STATE_SECONDS", 1e-6)
    async with (
        serving(Desk().tools) as served,
        served.client(MODERN, elicitation_callback=Asked()) as client,
    ):
        first = await first_round(client)
        with pytest.raises(MCPError, match="Invalid or expired requestState"):
            await second_round(client, first)
