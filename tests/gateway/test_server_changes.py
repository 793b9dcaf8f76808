"""Notifications of changed tools: for clients whose own list has changed, in any process."""

import asyncio
import contextlib

import mcp_types as types
import pytest
from mcp.shared.subscriptions import ToolsListChanged

from counterseal import Grant, Principal, Runtime
from counterseal.testing import fake_tool
from tests.gateway.served import BOT, LEGACY, MODERN, MODES, serving, soon
from tests.waiting import until

CLERK = Principal(tenant="acme", agent="clerk", user="u_3")


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    """The store is looked at more often than once a second."""
    monkeypatch.setattr("counterseal.gateway.server._REGISTRY_CHECK", 0.01)
    monkeypatch.setattr("counterseal.gateway.server._STORE_CHECK", 0.02)


def tools():
    return [fake_tool(name).tool for name in ("one", "two")]


def grants():
    return [Grant(agent=agent, tool="one") for agent in ("bot", "clerk")]


class Listening:
    """A client that hears of changes."""

    def __init__(self, client):
        self.client = client
        self.changed = asyncio.Event()
        self.times = 0

    def hear(self):
        self.times += 1
        self.changed.set()

    async def names(self):
        return [tool.name for tool in (await self.client.list_tools(cache_mode="refresh")).tools]

    async def told(self):
        await soon(self.changed)
        self.changed.clear()
        return await self.names()


@contextlib.asynccontextmanager
async def listening(served, mode, who=BOT):
    found = []

    async def handle(message):
        if isinstance(message, types.ToolListChangedNotification):
            found[0].hear()

    # The client also hands events of a stream to the handler: they would be heard twice.
    handler = {"message_handler": handle} if mode == LEGACY else {}
    async with served.client(mode, who, **handler) as client:
        one = Listening(client)
        found.append(one)
        if mode == LEGACY:
            await until(lambda: len(served.server.notifications._connections) > 0)
            yield one
            return
        async with client.listen(tools_list_changed=True) as events:

            async def follow():
                async for event in events:
                    assert isinstance(event, ToolsListChanged)
                    one.hear()

            following = asyncio.ensure_future(follow())
            yield one
            following.cancel()
            await asyncio.wait({following})


@contextlib.asynccontextmanager
async def two_workers(path):
    """A server, and an operator at another process's runtime, on the same store."""
    url = f"sqlite:///{path}/counterseal.db"
    elsewhere = Runtime.open(url)
    elsewhere.register(*tools(), grants=grants())
    async with (
        serving(tools(), store=url, grants=grants(), telling=True) as served,
        elsewhere,
    ):
        yield served, elsewhere.operator("u_1")


@MODES
async def test_a_grant_and_a_kill_elsewhere_are_told_to_those_whom_they_concern(mode, tmp_path):
    async with (
        two_workers(tmp_path) as (served, operator),
        listening(served, mode) as bot,
        listening(served, mode, CLERK) as clerk,
    ):
        assert await bot.names() == await clerk.names() == ["one"]
        grant = Grant(agent="bot", tool="two")
        await operator.grant(grant, reason="test")
        assert await bot.told() == ["one", "two"]
        kill = await operator.kill(tool="two", reason="test")
        assert await bot.told() == ["one"]
        await operator.restore(kill, reason="test")
        assert await bot.told() == ["one", "two"]
        await operator.revoke(grant, reason="test")
        assert await bot.told() == ["one"]
        assert clerk.times == 0, "nothing of its own has changed"
        await operator.kill(tool="one", reason="test")
        assert await clerk.told() == []
        assert await bot.told() == []
        assert (bot.times, clerk.times) == (5, 1)


@MODES
async def test_a_tool_that_is_registered_here_is_told(mode):
    async with (
        serving(tools(), grants=grants(), telling=True) as served,
        listening(served, mode) as bot,
    ):
        new = fake_tool("three").tool
        served.runtime.register(new, grants=[Grant(agent="bot", tool="three")])
        assert await bot.told() == ["one", "three"]


async def test_who_has_left_is_forgotten():
    async with serving(tools(), grants=grants(), telling=True) as served:
        telling = served.server.notifications
        async with listening(served, LEGACY), listening(served, MODERN):
            assert (len(telling._connections), len(telling._streams)) == (1, 1)
        await until(lambda: not telling._streams)
        await until(lambda: not telling._connections)
        await served.runtime.operator("u_1").kill(tool="one", reason="test")
        await telling.tools_changed()


async def test_a_stream_ends_in_good_order_when_the_server_stops():
    async with (
        serving(tools(), grants=grants(), telling=True) as served,
        served.client(MODERN) as client,
        client.listen(tools_list_changed=True) as events,
    ):
        served.server.notifications.close()
        async with asyncio.timeout(30):
            assert [event async for event in events] == []


async def test_a_client_that_does_not_listen_delays_no_other(monkeypatch):
    async def never(**_):
        await asyncio.Event().wait()

    async with serving(tools(), grants=grants()) as served:
        telling = served.server.notifications
        async with listening(served, LEGACY) as deaf, listening(served, LEGACY) as other:
            await until(lambda: len(telling._connections) == 2)
            first, _ = telling._connections.values()
            monkeypatch.setattr(first.session, "send_tool_list_changed", never)
            await served.runtime.operator("u_1").kill(tool="one", reason="test")
            sending = asyncio.ensure_future(telling.tools_changed())
            await soon(other.changed)
            sending.cancel()
            await asyncio.wait({sending})
            assert deaf.times == 0
