"""Approvals for clients of 2025-11-25, which are sent the question, and for those without links."""

import asyncio

import mcp_types as types
import pytest

from counterseal import Context, tool
from tests.gateway.approved import (
    LETTER,
    Asked,
    needs_approval,
)
from tests.gateway.served import (
    LEGACY,
    MODES,
    Desk,
    Text,
    form_only,  # noqa: F401 - a fixture
    serving,
)
from tests.waiting import until


async def test_a_client_of_2025_is_sent_the_link_and_the_call_goes_on_when_it_is_approved():
    desk = Desk()
    async with serving(desk.tools) as served:
        answering = Asked(then=served.decide)
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
        answering = Asked(then=served.decide)
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

    answering = Asked(then=never)
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
        served.client(LEGACY, elicitation_callback=Asked(action)) as client,
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
        served.client(LEGACY, elicitation_callback=Asked(then=never)) as client,
    ):
        needs_approval(await client.call_tool("send", LETTER), served)
    assert desk.sent == []


@MODES
async def test_a_call_may_need_an_approval_first_and_an_answer_then(mode):
    written = []

    @tool(effect="external_notification", version="1.0.0", owner="desk", budget=9)
    async def sign(text: Text, ctx: Context) -> dict[str, str]:
        """Have a text signed, and send it."""
        form = {"type": "object", "properties": {"name": {"type": "string"}}}
        asked = {"message": "Who signs?", "requestedSchema": form}
        answer = await ctx.client.ask("elicitation/create", asked)
        written.append(answer["content"]["name"])
        return {"signed": answer["content"]["name"]}

    async with serving([sign]) as served:

        async def answer(context, params):
            if params.mode == "url":
                await served.decide()
                return types.ElicitResult(action="accept")
            return types.ElicitResult(action="accept", content={"name": "Ada"})

        async with served.client(mode, elicitation_callback=answer) as client:
            result = await client.call_tool("sign", {"text": "a"})
            assert result.structured_content == {"signed": "Ada"}
    assert written == ["Ada"]
