"""Parked calls: which client may take them up again, and how long they stay."""

import asyncio

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from counterseal import Context, Principal, tool
from counterseal.ledger.entry import EntryStatus
from tests.gateway.served import ANN, BOT, MODERN, Text, facts, serving
from tests.waiting import until

NAME = {"type": "object", "properties": {"name": {"type": "string"}}}
WHO = {"message": "Who?", "requestedSchema": NAME}


class Desk:
    """A tool that writes, and asks before it does."""

    def __init__(self, **declared):
        self.asked, self.written, self.stopped = [], [], []
        about = {"effect": "draft", "version": "1.0.0", "owner": "desk", "budget": 50, **declared}

        @tool(**about)
        async def sign(text: Text, ctx: Context) -> dict[str, str]:
            """Have somebody sign a text."""
            self.asked.append(text)
            try:
                answer = await ctx.client.ask("elicitation/create", WHO, name="who")
            except asyncio.CancelledError:
                self.stopped.append(text)
                raise
            self.written.append(text)
            return {"signed": answer["content"]["name"]}

        self.tools = [sign]


async def nobody(context, params):
    raise AssertionError("the rounds are made by hand here")


async def call(client, text="a", state=None, name=None):
    given = None
    if name is not None:
        given = {"who": types.ElicitResult(action="accept", content={"name": name})}
    return await client.session.call_tool(
        "sign",
        {"text": text},
        input_responses=given,
        request_state=state,
        allow_input_required=True,
    )


def parked(served):
    return len(served.server.calls._parked)


async def entries(runtime):
    return [row.entry for row in runtime.store._backend.entries.values()]


async def test_a_parked_call_goes_on_where_it_stood_and_executes_once():
    desk = Desk()
    async with (
        serving(desk.tools) as served,
        served.client(MODERN, elicitation_callback=nobody) as client,
    ):
        first = await call(client)
        assert parked(served) == 1
        assert served.server.calls.running.count == 0, "no request waits for it here"
        last = await call(client, state=first.request_state, name="Ada")
        assert last.structured_content == {"signed": "Ada"}
        replay = await call(client)
        assert replay.structured_content == {"signed": "Ada"}
        assert facts(replay)["replayed"] is True
    assert (desk.asked, desk.written) == (["a"], ["a"])
    assert parked(served) == 0


async def test_a_call_whose_client_never_comes_back_ends_by_its_deadline_and_is_settled():
    desk = Desk(timeout_ms=1000)
    async with (
        serving(desk.tools) as served,
        served.client(MODERN, elicitation_callback=nobody) as client,
    ):
        first = await call(client)
        await until(lambda: not parked(served))
        await until(lambda: desk.stopped)
        (entry,) = await entries(served.runtime)
        assert entry.status is EntryStatus.PENDING, (
            "it may have written something: that is looked into"
        )
        late = await call(client, state=first.request_state, name="Ada")
        assert late.is_error
        assert facts(late)["code"] != "SUCCESS"
    assert desk.written == []
    assert desk.asked == ["a"], "what came too late is not executed anew"


async def test_a_parked_call_is_not_given_to_another_principal(caplog):
    caplog.set_level("CRITICAL", "mcp")
    desk = Desk()
    async with serving(desk.tools) as served:
        async with served.client(MODERN, elicitation_callback=nobody) as client:
            first = await call(client)
        async with served.client(MODERN, ANN, elicitation_callback=nobody) as other:
            with pytest.raises(MCPError, match="Invalid or expired requestState"):
                await call(other, state=first.request_state, name="Mallory")
        assert parked(served) == 1
        park = served.server.calls._parked
        (name,) = park._calls
        wider = Principal(tenant="acme", agent="bot", user="u_1", roles=["boss"])
        assert park.take(name, wider) is None
        park.park(park.take(name, BOT))
    assert desk.written == []


async def test_with_too_many_calls_parked_the_next_is_refused_and_those_are_not():
    desk = Desk()
    async with (
        serving(desk.tools) as served,
        served.client(MODERN, elicitation_callback=nobody) as client,
    ):
        served.server.calls._parked.limit = 2
        states = [(await call(client, text)).request_state for text in ("a", "b")]
        third = await call(client, "c")
        assert third.is_error
        assert facts(third)["code"] == "DEPENDENCY_UNAVAILABLE"
        for text, state in zip(("a", "b"), states, strict=True):
            last = await call(client, text, state=state, name="Ada")
            assert last.structured_content == {"signed": "Ada"}
        assert isinstance(await call(client, "d"), types.InputRequiredResult)
    assert desk.written == ["a", "b"]


async def test_when_the_server_stops_parked_calls_are_stopped_and_settled():
    desk = Desk()
    async with (
        serving(desk.tools) as served,
        served.client(MODERN, elicitation_callback=nobody) as client,
    ):
        await call(client)
        await served.server.calls.close()
        assert parked(served) == 0
        assert desk.stopped == ["a"]
        (entry,) = await entries(served.runtime)
        assert entry.status is EntryStatus.PENDING


async def test_a_client_that_calls_again_without_its_state_does_not_execute_a_second_time():
    desk = Desk()
    async with (
        serving(desk.tools, wait=0.05) as served,
        served.client(MODERN, elicitation_callback=nobody) as client,
    ):
        first = await call(client)
        again = await call(client)
        assert again.is_error
        assert facts(again)["code"] == "IDEMPOTENCY_CONFLICT"
        last = await call(client, state=first.request_state, name="Ada")
        assert last.structured_content == {"signed": "Ada"}
    assert desk.written == ["a"]


async def test_of_two_that_fetch_one_call_at_once_one_gets_it():
    desk = Desk()
    async with (
        serving(desk.tools) as served,
        served.client(MODERN, elicitation_callback=nobody) as client,
    ):
        first = await call(client)
        back = [call(client, state=first.request_state, name=name) for name in ("Ada", "Bob")]
        results = await asyncio.gather(*back)
        signed = {result.structured_content["signed"] for result in results}
        assert len(signed) == 1
    assert desk.written == ["a"]
