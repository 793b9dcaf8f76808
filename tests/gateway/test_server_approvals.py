"""Calls that a person has to approve, for clients that can point somebody to the request.

The client's own answer never approves anything: it only says that somebody was told. On 2026-07-28
the question comes as `input_required` with sealed state, on 2025-11-25 as a request of its own.
"""

import asyncio

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from counterseal import Reconciler
from tests.gateway.served import (
    ANN,
    LEGACY,
    MODERN,
    MODES,
    STRANGER,
    Desk,
    facts,
    form_only,  # noqa: F401 - a fixture
    said,
    serving,
    until,
)

LETTER = {"to": "ann"}
ACCEPT = types.ElicitResult(action="accept")


class Client:
    """What the client in front is asked, and how it answers."""

    def __init__(self, action="accept", then=None):
        self.action = action
        self.then = then
        self.asked = []

    async def __call__(self, context, params):
        self.asked.append(params)
        if self.then is not None:
            await self.then()
        return types.ElicitResult(action=self.action)


async def first_round(client, arguments=LETTER, **how):
    return await client.session.call_tool("send", arguments, allow_input_required=True, **how)


async def second_round(client, first, answer=ACCEPT, arguments=LETTER, **how):
    """With an answer, or without any."""
    given = {} if answer is None else {"approval": answer}
    how.setdefault("request_state", first.request_state)
    return await first_round(client, arguments, input_responses=given, **how)


def needs_approval(result, served):
    """A structured "approval required", with where to decide."""
    assert result.is_error
    told = facts(result)
    assert told["code"] == "CONFIRMATION_MISSING"
    assert told["response"]["requires_approval"] is True
    assert told["response"]["next_action"] == "await_approval"
    link = told["approval"]
    assert link["url"] == f"https://console.test/approvals/{link['id']}"
    assert link["url"] in said(result)
    assert result.structured_content["approval"] == link
    return link["id"]


def rejected(result):
    """Somebody said no: there is nothing to wait for."""
    assert result.is_error
    told = facts(result)
    assert told["code"] == "CONFIRMATION_MISSING"
    assert told["response"]["next_action"] == "replan"
    assert "A person has refused this call." in said(result)
    assert "make the same call again" not in said(result)
    assert "url" not in told["approval"]


# --- 2026-07-28 -----------------------------------------------------------------------------------


async def test_the_client_is_asked_to_show_where_to_decide():
    async with serving(Desk().tools) as served:
        async with served.client(MODERN, elicitation_callback=Client()) as client:
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
        answering = Client(then=served.decide)
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
        served.client(MODERN, elicitation_callback=Client()) as client,
    ):
        calling = asyncio.ensure_future(client.call_tool("send", LETTER))
        await until(lambda: served.front.calling.under_way)
        await served.decide()
        assert (await calling).structured_content == {"sent": "ann"}
    assert desk.sent == ["ann"]


@pytest.mark.parametrize("answer", ["decline", "cancel", None])
async def test_who_declines_cancels_or_says_nothing_is_told_what_is_missing(answer):
    desk = Desk()
    async with (
        serving(desk.tools) as served,
        served.client(MODERN, elicitation_callback=Client()) as client,
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
        served.client(MODERN, elicitation_callback=Client()) as client,
    ):
        needs_approval(await client.call_tool("send", LETTER), served)
    assert desk.sent == []


async def test_a_rejected_call_is_told_so_and_not_executed():
    desk = Desk()
    async with serving(desk.tools) as served:
        answering = Client(then=lambda: served.decide("reject"))
        async with served.client(MODERN, elicitation_callback=answering) as client:
            result = await client.call_tool("send", LETTER)
            rejected(result)
    assert desk.sent == []
    assert len(answering.asked) == 1, "nobody is asked about it a second time"


def cut(state):
    return state[:-5] + ("A" if state[-5] != "A" else "B") + state[-4:]


@pytest.mark.parametrize("change", [cut, lambda _: "v1.AAAA", lambda _: "x", lambda s: s + "="])
async def test_state_that_was_tampered_with_is_refused(change, caplog):
    caplog.set_level("CRITICAL", "mcp")
    desk = Desk()
    async with (
        serving(desk.tools) as served,
        served.client(MODERN, elicitation_callback=Client()) as client,
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
        async with served.client(MODERN, elicitation_callback=Client()) as client:
            first = await first_round(client)
        await served.decide()
        async with served.client(MODERN, other, elicitation_callback=Client()) as client:
            with pytest.raises(MCPError, match="Invalid or expired requestState"):
                await second_round(client, first)
    assert desk.sent == []


async def test_state_of_another_call_is_refused_though_that_was_approved(caplog):
    caplog.set_level("CRITICAL", "mcp")
    desk = Desk()
    async with (
        serving(desk.tools) as served,
        served.client(MODERN, elicitation_callback=Client()) as client,
    ):
        first = await first_round(client)
        await served.decide()
        with pytest.raises(MCPError, match="Invalid or expired requestState"):
            await second_round(client, first, arguments={"to": "mallory"})
    assert desk.sent == []


async def test_state_that_is_too_old_is_refused(monkeypatch, caplog):
    caplog.set_level("CRITICAL", "mcp")
    monkeypatch.setattr("counterseal.gateway.server._STATE_SECONDS", 0.01)
    async with (
        serving(Desk().tools) as served,
        served.client(MODERN, elicitation_callback=Client()) as client,
    ):
        first = await first_round(client)
        await asyncio.sleep(0.02)
        with pytest.raises(MCPError, match="Invalid or expired requestState"):
            await second_round(client, first)


# --- 2025-11-25 -----------------------------------------------------------------------------------


async def test_a_client_of_2025_is_sent_the_link_and_the_call_goes_on_when_it_is_approved():
    desk = Desk()
    async with serving(desk.tools) as served:
        answering = Client(then=served.decide)
        async with served.client(LEGACY, elicitation_callback=answering) as client:
            result = await client.call_tool("send", LETTER)
    (asked,) = answering.asked
    assert asked.mode == "url"
    assert asked.url.startswith("https://console.test/approvals/appr_")
    assert asked.elicitation_id == asked.url.rpartition("/")[2]
    assert result.structured_content == {"sent": "ann"}
    assert desk.sent == ["ann"]


@pytest.mark.usefixtures("form_only")
@MODES
async def test_a_client_without_links_is_shown_a_form_with_nothing_to_fill_in(mode):
    desk = Desk()
    async with serving(desk.tools) as served:
        answering = Client(then=served.decide)
        async with served.client(mode, elicitation_callback=answering) as client:
            result = await client.call_tool("send", LETTER)
    (asked,) = answering.asked
    assert asked.mode == "form"
    assert asked.requested_schema["properties"] == {}
    assert "A letter goes to ann." in asked.message
    assert "https://console.test/approvals/appr_" in asked.message
    assert result.structured_content == {"sent": "ann"}
    assert desk.sent == ["ann"]


async def test_a_decision_ends_the_wait_though_the_client_has_not_answered():
    desk = Desk()

    async def never():
        await asyncio.Event().wait()

    answering = Client(then=never)
    async with (
        serving(desk.tools) as served,
        served.client(LEGACY, elicitation_callback=answering) as client,
    ):
        calling = asyncio.ensure_future(client.call_tool("send", LETTER))
        await until(lambda: answering.asked)
        await served.decide()
        assert (await calling).structured_content == {"sent": "ann"}


@pytest.mark.parametrize("action", ["decline", "cancel", "accept"])
async def test_a_client_of_2025_whose_answer_is_no_decision_is_told_what_is_missing(action):
    desk = Desk()
    wait = 0.05 if action == "accept" else 30.0
    async with (
        serving(desk.tools, wait=wait) as served,
        served.client(LEGACY, elicitation_callback=Client(action)) as client,
    ):
        needs_approval(await client.call_tool("send", LETTER), served)
        assert desk.sent == []
        await served.decide()
        later = await client.call_tool("send", LETTER)
        assert later.structured_content == {"sent": "ann"}
    assert desk.sent == ["ann"]


async def test_a_client_that_never_answers_holds_its_call_for_a_bounded_time():
    desk = Desk()

    async def never():
        await asyncio.Event().wait()

    async with (
        serving(desk.tools, wait=0.05) as served,
        served.client(LEGACY, elicitation_callback=Client(then=never)) as client,
    ):
        needs_approval(await client.call_tool("send", LETTER), served)
    assert desk.sent == []


# --- clients that can do neither ------------------------------------------------------------------


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
