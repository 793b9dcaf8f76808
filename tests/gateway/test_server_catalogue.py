"""`tools/list` is the caller's own: what it may use, in the version that it would get."""

from datetime import UTC, datetime

import pytest
from mcp.shared.exceptions import MCPError

from counterseal import Contract, Grant, Principal, Runtime
from counterseal.testing import FakeClock, fake_tool
from tests.gateway.served import ANN, BOT, LEGACY, MODERN, MODES, STRANGER, Desk, serving

OTHER_AGENT = Principal(tenant="acme", agent="clerk", user="u_1")
FORM = {
    "type": "object",
    "additionalProperties": False,
    "required": ["id"],
    "properties": {"id": {"type": "string", "maxLength": 9, "description": "Which."}},
}


def made(called, **declared):
    return fake_tool(called, **declared).tool


async def names(client, **how):
    return [tool.name for tool in (await client.list_tools(**how)).tools]


def granted(*tools, agent="bot", **more):
    return [Grant(agent=agent, tool=tool, **more) for tool in tools]


@MODES
async def test_each_caller_sees_what_it_was_granted_and_nothing_else(mode):
    tools = [made("a_one"), made("b_two"), made("c_three")]
    grants = [*granted("c_three", "a_one"), *granted("b_two", agent="clerk")]
    async with serving(tools, grants=grants) as served:
        async with served.client(mode) as client:
            assert await names(client) == ["a_one", "c_three"]
        async with served.client(mode, OTHER_AGENT) as client:
            assert await names(client) == ["b_two"]


@MODES
async def test_what_is_disabled_killed_or_another_tenants_is_not_listed(mode):
    ours = [made("open"), made("killed"), made("disabled")]
    async with serving(ours) as served:
        theirs = made("theirs")
        served.runtime.register(theirs, grants=granted("theirs"), allowed_tenants=["other"])
        operator = served.runtime.operator("tests")
        await operator.kill(tool="killed", reason="test")
        await operator.disable("disabled", reason="test")
        async with served.client(mode) as client:
            assert await names(client) == ["open"]
        async with served.client(mode, STRANGER) as client:
            assert await names(client) == ["open", "theirs"]


@MODES
async def test_a_tool_that_needs_a_scope_is_listed_for_those_who_hold_it(mode):
    async with serving([made("pay", scopes=["pay:send"])]) as served:
        async with served.client(mode) as client:
            assert await names(client) == []
        payer = Principal(tenant="acme", agent="bot", user="u_1", scopes=["pay:send"])
        async with served.client(mode, payer) as client:
            assert await names(client) == ["pay"]


@MODES
async def test_why_a_caller_sees_no_tools_is_logged_once(mode, caplog):
    async with serving([made("pay", scopes=["pay:send"])]) as served:
        async with served.client(mode) as client:
            assert await names(client) == []
            assert await names(client) == []
        async with served.client(mode, OTHER_AGENT) as client:
            assert await names(client) == []
    lines = [line for line in caplog.messages if "sees no tools" in line]
    assert lines == [
        "a client of the agent bot sees no tools: pay needs the scopes pay:send.",
        "a client of the agent clerk sees no tools: the agent has no grants in the tenant acme.",
    ]


async def versions_of(client, run):
    found = await client.list_tools(meta={"counterseal/run_id": run})
    return {tool.name: tool.meta["counterseal/version"] for tool in found.tools}


@MODES
async def test_the_version_is_the_one_that_the_run_gets_and_stays_with_it(mode):
    old, new = made("look", version="1.0.0"), made("look", version="2.0.0")
    async with serving([old]) as served, served.client(mode) as client:
        meta = {"counterseal/run_id": "run_1"}
        await client.call_tool("look", {}, meta=meta)
        served.runtime.register(new)
        assert await versions_of(client, "run_1") == {"look": "1.0.0"}
        assert await versions_of(client, "run_2") == {"look": "2.0.0"}
        operator = served.runtime.operator("tests")
        await operator.set_rollout("look", "2.0.0", 0, reason="test")
        assert await versions_of(client, "run_2") == {"look": "1.0.0"}


@MODES
async def test_without_a_run_id_the_list_has_the_versions_of_the_callers_own_run(mode):
    old, new = made("look", version="1.0.0"), made("look", version="2.0.0")
    async with serving([old]) as served, served.client(mode) as client:
        await client.call_tool("look", {})
        served.runtime.register(new)
        (tool,) = (await client.list_tools()).tools
        assert tool.meta["counterseal/version"] == "1.0.0"


@MODES
async def test_a_run_that_may_use_some_tools_only_is_shown_those(mode):
    async with serving([made("one"), made("two")]) as served, served.client(mode) as client:
        await served.runtime.run(BOT, "run_1", allowed_tools=["two"])
        assert await names(client, meta={"counterseal/run_id": "run_1"}) == ["two"]
        assert await names(client) == ["one", "two"]


@MODES
async def test_a_run_id_that_no_store_could_keep_does_no_harm(mode):
    async with serving([made("one")]) as served, served.client(mode) as client:
        assert await names(client, meta={"counterseal/run_id": "\0"}) == ["one"]
        with pytest.raises(MCPError, match="run_id"):
            await names(client, meta={"counterseal/run_id": 7})


@MODES
async def test_effects_become_annotations(mode):
    desk = Desk()
    irreversible = made("wipe", effect="irreversible", budget=1)
    async with serving([*desk.tools, irreversible]) as served, served.client(mode) as client:
        found = {tool.name: tool for tool in (await client.list_tools()).tools}
    hints = {name: tool.annotations for name, tool in found.items()}
    assert hints["add"].read_only_hint is True
    assert hints["note"].read_only_hint is False
    assert hints["note"].destructive_hint is False
    assert hints["send"].open_world_hint is True
    assert hints["wipe"].destructive_hint is True
    assert found["wipe"].meta["counterseal/effect"] == "irreversible"


@MODES
async def test_an_output_schema_is_published_where_it_says_something(mode):
    desk = Desk()
    async with serving([*desk.tools, made("loose")]) as served, served.client(mode) as client:
        found = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert found["add"].output_schema["properties"] == {"total": {"type": "integer"}}
    assert found["add"].input_schema["required"] == ["a", "b"]
    assert found["loose"].output_schema is None


@MODES
async def test_resources_and_prompts_under_contract_are_no_tools(mode):
    def passing(kind):
        return Contract.model_validate(
            {
                "identity": {"name": f"docs.{kind}s", "version": "1.0.0"},
                "effect": "retrieve",
                "usage": "In tests.",
                "affordance": {
                    "model_description": f"Get a {kind}.",
                    "input_schema": FORM,
                    "output_schema": {"type": "object"},
                },
                "mcp": {"server": "docs", "kind": kind},
            }
        )

    async with serving([made("one")]) as served, served.client(mode) as client:
        contracts = [passing("resource"), passing("prompt")]
        served.runtime.register(*contracts, grants=granted("docs.resources", "docs.prompts"))
        assert await names(client) == ["one"]


@pytest.mark.slow
async def test_many_tools_come_in_pages_each_of_them_once_and_in_order():
    tools = [made(f"tool_{number:04}") for number in range(1500)]
    async with serving(tools) as served:
        for mode in (LEGACY, MODERN):
            async with served.client(mode) as client:
                first = await client.list_tools()
                rest = await client.list_tools(cursor=first.next_cursor)
                assert rest.next_cursor is None
                assert len(first.tools) == 1000
                found = [tool.name for tool in (*first.tools, *rest.tools)]
                assert found == [tool.contract.name for tool in tools]
                for cursor in ("1500", "-1", "0", "x", "9" * 50):
                    with pytest.raises(MCPError, match="not a cursor of this list"):
                        await client.list_tools(cursor=cursor)


async def test_a_grant_that_ends_takes_its_tool_from_the_list():
    clock = FakeClock()
    runtime = Runtime.open("memory:", clock=clock)
    ends = datetime.fromtimestamp(clock.now + 60, UTC)
    grants = [*granted("two"), *granted("one", expires_at=ends)]
    runtime.register(made("one"), made("two"), grants=grants)
    async with runtime, serving([], runtime=runtime) as served, served.client(MODERN) as client:
        assert await names(client) == ["one", "two"]
        clock.advance(61)
        served.server.catalogue._lists.clear()  # else it is kept for a second
        assert await names(client) == ["two"]


@MODES
async def test_two_callers_do_not_share_what_is_kept_of_a_list(mode):
    tools = [made("one"), made("two")]
    grants = [*granted("one"), *granted("two", tenant="other")]
    async with serving(tools, grants=grants) as served:
        for who, seen in ((BOT, ["one"]), (STRANGER, ["one", "two"]), (ANN, ["one"])):
            async with served.client(mode, who) as client:
                assert await names(client) == seen
