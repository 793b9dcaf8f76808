"""Lists, pages, resources and prompts of an upstream, and reports of their changes."""

import pytest

from counterseal.errors import ResponseTooLargeError, ToolFailedError
from counterseal.upstream import UpstreamSettings, listings
from tests.waiting import until

from .conftest import call_context, connected, program
from .server import make_server

ERAS = [(), ("--legacy",)]


async def test_all_pages_of_a_thousand_tools_are_listed():
    async with connected(UpstreamSettings(name="up", python=make_server(1000))) as upstream:
        names = [tool["name"] for tool in await upstream.definitions()]
    assert len(names) > 1000
    assert len(set(names)) == len(names)
    assert names[-1] == "tool_999"


async def test_a_list_without_end_is_given_up():
    async def page(params):
        return {"tools": [{"name": f"t{params.get('cursor', 0)}"}], "nextCursor": "more"}

    with pytest.raises(ResponseTooLargeError, match="100 pages"):
        await listings.list_tools("up", page, "2025-11-25")

    async def long_page(params):
        return {"tools": [{"name": "t", "description": "x" * 1_000_000}] * 20, "nextCursor": "more"}

    with pytest.raises(ResponseTooLargeError, match="bytes"):
        await listings.list_tools("up", long_page, "2025-11-25")


async def test_arguments_that_a_tool_wants_in_headers_are_repeated_there():
    def tool(name, header):
        region = {"type": "string", "x-mcp-header": header}
        return {"name": name, "inputSchema": {"type": "object", "properties": {"region": region}}}

    async def page(params):
        return {"tools": [tool("good", "Region"), tool("bad", "not a token")]}

    listed = listings.ToolList("up")
    tools = await listed.refresh(page, "2026-07-28")
    assert [one["name"] for one in tools] == ["good"]
    assert listed.headers("good", {"region": "eu"}) == {"Mcp-Param-Region": "eu"}
    assert listed.headers("other", {"region": "eu"}) == {}


@pytest.mark.parametrize("options", ERAS)
async def test_a_change_of_the_tools_is_told(options):
    async with connected(program(*options)) as upstream:
        told = []
        upstream.on_change = told.append
        before = {tool["name"] for tool in await upstream.definitions()}
        del told[:]
        await until(lambda: _noticed(upstream, "change", "tools", told))
        after = {tool["name"] for tool in await upstream.definitions()}
        assert after - before == {"new"}


async def _noticed(upstream, tool, change, told):
    """Make a change; return True once one is reported. Notices may have to be requested first."""
    await upstream.call(tool, {}, context=call_context())
    return change in told


@pytest.mark.slow
@pytest.mark.parametrize("options", ERAS)
async def test_resources_are_read_and_their_changes_told_to_who_subscribed(website, options):
    site = website(*options)
    async with connected(site.settings()) as upstream:
        told = []
        upstream.on_change = told.append

        async def ask(method, **params):
            return await upstream.request(method, params, tenant="acme")

        listed = await ask("resources/list")
        assert [one["uri"] for one in listed["resources"]] == ["test://one"]
        read = await ask("resources/read", uri="test://one")
        assert read["contents"] == [{"uri": "test://one", "text": "1"}]
        with pytest.raises(ToolFailedError) as unknown:
            await ask("resources/read", uri="test://two")
        assert unknown.value.details == {"code": -32602, "message": "Resource not found"}

        await ask("resources/subscribe", uri="test://one")
        await until(lambda: _noticed(upstream, "touch", "resource:test://one", told))

        # A new connection subscribes again.
        site.kill()
        await until(lambda: not upstream.ready)
        site.start()
        await until(lambda: upstream.ready)
        del told[:]
        await until(lambda: _noticed(upstream, "touch", "resource:test://one", told))
