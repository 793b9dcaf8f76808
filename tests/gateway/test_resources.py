"""Resources and prompts: subscriptions, and upstreams that must not disturb each other."""

import contextlib
import warnings

import anyio
import mcp_types as types
import pytest
from mcp import Client
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPDeprecationWarning

from counterseal import Principal
from counterseal.gateway import resources as gateway_resources
from counterseal.gateway.running import gateway
from tests.gateway.projects import BOT, Project

STRANGER = Principal(tenant="other", agent="nobody", user="u_9")
URI = "test://one"


async def resources(ctx, params):
    hidden = "What it is.\u200b\U000e0041"
    one = types.Resource(uri=URI, name="one", description=hidden)
    return types.ListResourcesResult(resources=[one])


async def prompts(ctx, params):
    argument = types.PromptArgument(name="a", description="An\u202e argument.")
    return types.ListPromptsResult(prompts=[types.Prompt(name="p", arguments=[argument])])


async def never(ctx, params):
    await anyio.sleep_forever()


async def tools(ctx, params):
    schema = {"type": "object", "properties": {}}
    return types.ListToolsResult(
        tools=[types.Tool(name=name, input_schema=schema) for name in ("get_both", "get_data")]
    )


async def call(ctx, params):
    texts = [types.TextContent(text="Four.")] if params.name == "get_both" else []
    secret = {"count": 4, "mail": "token sk-ant-api03-" + "a" * 80}
    return types.CallToolResult(content=texts, structured_content=secret)


plain = Server("plain", on_list_tools=tools, on_call_tool=call)
good = Server("good", on_list_resources=resources, on_list_prompts=prompts)
slow = Server("slow", on_list_resources=never, on_list_prompts=never)


class Callers:
    """Who calls, as a test says."""

    def __init__(self, running):
        self.running = running
        self.who = BOT

    def client(self):
        return Client(self.running.server.sdk_server, mode="legacy")

    @property
    def followed(self):
        return sum(self.running.server.resources._subscriptions.values())


@contextlib.asynccontextmanager
async def passing(folder, *servers):
    project = Project(folder)
    for server in servers:
        project.upstream(server, [], python=f"{__name__}:{server}", resources=True, prompts=True)
        project._upstreams[server].pop("command")
        project.grant("bot", f"{server}.resources", f"{server}.prompts")
    callers = Callers(None)
    async with gateway(
        project.settings, caller=lambda: callers.who, console="https://console.test"
    ) as callers.running:
        yield callers


@pytest.fixture(autouse=True)
def of_2025():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MCPDeprecationWarning)
        yield


async def test_a_session_can_not_end_what_another_session_follows(tmp_path):
    async with passing(tmp_path, "good") as callers, callers.client() as one:
        await one.session.subscribe_resource(URI)
        async with callers.client() as other:
            callers.who = STRANGER
            await other.session.unsubscribe_resource(URI)
            callers.who = BOT
            await other.session.unsubscribe_resource(URI)
        assert callers.followed == 1
        await one.session.unsubscribe_resource(URI)
        assert callers.followed == 0


async def test_a_connection_follows_a_resource_once_however_often_it_asks(tmp_path):
    async with passing(tmp_path, "good") as callers, callers.client() as client:
        await client.session.subscribe_resource(URI)
        await client.session.subscribe_resource(URI)
        assert callers.followed == 1


async def test_what_a_client_follows_ends_with_its_connection(tmp_path):
    async with passing(tmp_path, "good") as callers:
        async with callers.client() as client:
            await client.session.subscribe_resource(URI)
            assert callers.followed == 1
        assert callers.followed == 0


async def test_an_upstream_that_is_slow_is_left_out_of_lists(tmp_path, monkeypatch):
    monkeypatch.setattr(gateway_resources, "_LIST_SECONDS", 0.2)
    async with passing(tmp_path, "slow", "good") as callers, callers.client() as client:
        assert [one.name for one in (await client.list_resources()).resources] == ["one"]
        assert [one.name for one in (await client.list_prompts()).prompts] == ["p"]


async def test_a_server_without_tools_is_listed_once_and_not_in_trouble(tmp_path, caplog):
    async with passing(tmp_path, "good") as callers:
        seen = callers.running.upstreams.states["good"]
        assert (seen.current, seen.definitions) == (True, ())
    assert "could not be listed" not in caplog.text


async def test_texts_of_lists_hold_no_invisible_characters(tmp_path):
    async with passing(tmp_path, "good") as callers, callers.client() as client:
        [one] = (await client.list_resources()).resources
        assert one.description == "What it is."
        [prompt] = (await client.list_prompts()).prompts
        assert prompt.arguments[0].description == "An argument."


async def test_structure_reaches_the_client_of_a_tool_without_an_output_schema(tmp_path):
    project = Project(tmp_path)
    names = ("get_both", "get_data")
    entries = {name: {"effect": "retrieve"} for name in names}
    project.upstream("plain", [], python=f"{__name__}:plain", tools=entries)
    project._upstreams["plain"].pop("command")
    project.grant("bot", *names)
    schema = {"type": "object", "properties": {}}
    project.pin("plain", *({"name": name, "inputSchema": schema} for name in names))
    running = gateway(project.settings, caller=lambda: BOT, console="https://console.test")
    async with running as made, Client(made.server.sdk_server, mode="legacy") as client:
        listed = (await client.list_tools()).tools
        both, data = [await client.call_tool(name, {}) for name in names]
    assert [each.output_schema for each in listed] == [None, None]
    assert both.structured_content["count"] == data.structured_content["count"] == 4
    assert "sk-ant" not in str(both.structured_content)
    assert "Four." in both.content[0].text
    assert '"count": 4' in data.content[0].text, "a model reads texts alone"
