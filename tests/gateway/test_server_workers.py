"""Two gateways on one Postgres: the one goes on with what the other began, and redoes nothing."""

import asyncio
import contextlib

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from tests.gateway.served import LEGACY, MODERN, MODES, Desk, facts, serving, soon
from tests.journeys.approvals_worker import key_ring
from tests.postgres_server import borrowed_database

LETTER = {"to": "ann"}
RUN = {"counterseal/run_id": "run_1"}
ACCEPT = {"approval": types.ElicitResult(action="accept")}


@pytest.fixture(scope="module")
def ring(tmp_path_factory):
    return key_ring(tmp_path_factory.mktemp("keys") / "keys")


@contextlib.asynccontextmanager
async def two(ring):
    """Two workers that share nothing but the database and the keys, and what they do."""
    desk = Desk()
    with borrowed_database() as url:
        async with (
            serving(desk.tools, store=url, keys=ring) as one,
            serving(desk.tools, store=url, keys=ring) as other,
        ):
            other._keys = one._keys
            yield desk, one, other


async def accept(context, params):
    return types.ElicitResult(action="accept")


async def send(client, **more):
    how = {"meta": RUN, "allow_input_required": True, **more}
    return await client.session.call_tool("send", LETTER, **how)


async def test_a_call_that_was_approved_at_one_is_finished_at_the_other(ring):
    async with two(ring) as (desk, one, other):
        async with one.client(MODERN, elicitation_callback=accept) as client:
            first = await send(client)
        await one.decide()
        async with other.client(MODERN, elicitation_callback=accept) as client:
            last = await send(client, input_responses=ACCEPT, request_state=first.request_state)
            assert last.structured_content == {"sent": "ann"}
        async with one.client(MODERN) as client:
            again = await client.call_tool("send", LETTER, meta=RUN)
            assert facts(again)["replayed"] is True
    assert desk.sent == ["ann"]


@MODES
async def test_a_decision_taken_at_one_wakes_the_call_that_waits_at_the_other(ring, mode):
    async with (
        two(ring) as (desk, one, other),
        one.client(mode, elicitation_callback=accept) as client,
    ):
        calling = asyncio.ensure_future(client.call_tool("send", LETTER, meta=RUN))
        await other.decide()
        result = await calling
        assert result.structured_content == {"sent": "ann"}
    assert desk.sent == ["ann"]


async def test_the_same_call_at_both_at_once_executes_once(ring):
    async with (
        two(ring) as (desk, one, other),
        one.client(MODERN) as here,
        other.client(LEGACY) as there,
    ):
        calls = [
            asyncio.ensure_future(client.call_tool("linger", {"text": "a"}, meta=RUN))
            for client in (here, there)
        ]
        await soon(desk.begun)
        desk.door.set()
        results = await asyncio.gather(*calls)
        assert [result.structured_content for result in results] == [{"noted": "a"}] * 2
        assert sorted(facts(result)["replayed"] for result in results) == [False, True]
    assert desk.notes == ["a"]


async def test_state_that_was_sealed_without_keys_is_good_at_its_own_worker_only(caplog):
    caplog.set_level("CRITICAL", "mcp")
    async with two(None) as (desk, one, other):
        async with one.client(MODERN, elicitation_callback=accept) as client:
            first = await send(client)
        await one.decide()
        async with other.client(MODERN, elicitation_callback=accept) as client:
            with pytest.raises(MCPError, match="Invalid or expired requestState"):
                await send(client, input_responses=ACCEPT, request_state=first.request_state)
            last = await send(client)  # as a client does that forgot about it
            assert last.structured_content == {"sent": "ann"}
    assert desk.sent == ["ann"]
