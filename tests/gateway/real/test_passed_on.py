"""What real servers have beside tools, and what they do in the middle of a call, passed on."""

import asyncio
import contextlib

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError

from tests.gateway.projects import PATIENCE
from tests.gateway.served import LEGACY, MODERN, MODES, said

from .conftest import DOCUMENT

pytestmark = pytest.mark.slow


# --- resources and prompts ------------------------------------------------------------------------


@MODES
async def test_resources_prompts_and_completions_are_passed_on(world, mode):
    async with world.client(mode) as client:
        listed = [str(one.uri) for one in (await client.list_resources()).resources]
        assert DOCUMENT in listed
        templates = (await client.list_resource_templates()).resource_templates
        assert "demo://resource/dynamic/text/{resourceId}" in [
            one.uri_template for one in templates
        ]
        (document,) = (await client.read_resource(DOCUMENT)).contents
        assert "Features" in document.text
        dynamic = await client.read_resource("demo://resource/dynamic/text/7")
        assert "7" in dynamic.contents[0].text
        prompts = {one.name for one in (await client.list_prompts()).prompts}
        assert {"simple-prompt", "args-prompt", "completable-prompt"} <= prompts
        prompt = await client.get_prompt("args-prompt", {"city": "Paris"})
        assert "Paris" in prompt.messages[0].content.text
        reference = types.PromptReference(name="completable-prompt")
        argument = {"name": "department", "value": "S"}
        found = await client.complete(reference, argument)
        assert found.completion.values == ["Sales", "Support"]
        with pytest.raises(MCPError, match="STALE_STATE"):
            await client.read_resource("demo://resource/static/document/nowhere.md")


@MODES
async def test_resources_and_prompts_are_for_those_to_whom_they_are_granted(world, mode):
    async with world.client(mode, "reader") as client:
        assert (await client.list_resources()).resources == []
        assert (await client.list_prompts()).prompts == []
        with pytest.raises(MCPError):
            await client.read_resource(DOCUMENT)
        with pytest.raises(MCPError):
            await client.get_prompt("simple-prompt")


class Heard:
    """What a client was told without having asked."""

    def __init__(self):
        self._messages = asyncio.Queue()

    async def __call__(self, message):
        self._messages.put_nowait(message)

    async def wait_for(self, kind):
        async with asyncio.timeout(PATIENCE):
            while True:
                message = await self._messages.get()
                if isinstance(message, kind):
                    return message


async def toggled(client, tool):
    """Switch something of the server's on, and off again. What was on may have been."""
    for n in range(2):
        meta = {"counterseal/run_id": f"run_{tool}_{n}"}
        assert not (await client.call_tool(tool, {}, meta=meta)).is_error


async def test_client_of_2025_is_told_of_changes_of_a_resource_that_it_subscribed_to(world):
    heard = Heard()
    async with world.client(LEGACY, message_handler=heard) as client:
        with pytest.warns(MCPDeprecationWarning):
            await client.subscribe_resource(DOCUMENT)
        await toggled(client, "toggle-subscriber-updates")
        update = await heard.wait_for(types.ResourceUpdatedNotification)
        assert str(update.params.uri) == DOCUMENT


async def test_client_of_2026_hears_of_changes_of_a_resource_on_its_stream(world):
    async with (
        world.client(MODERN) as client,
        client.listen(resource_subscriptions=[DOCUMENT]) as events,
    ):
        await toggled(client, "toggle-subscriber-updates")
        async with asyncio.timeout(PATIENCE):
            async for event in events:
                assert event.uri == DOCUMENT
                break


# --- what a server does in the middle of a call ---------------------------------------------------


@MODES
async def test_progress_of_a_server_reaches_the_client(world, mode):
    told = []

    async def progress(done, total, message):
        told.append((done, total))

    arguments = {"duration": 0.3, "steps": 3}
    async with world.client(mode) as client:
        tool = "trigger-long-running-operation"
        done = await client.call_tool(tool, arguments, progress_callback=progress)
    assert "completed" in said(done)
    assert told == [(1, 3), (2, 3), (3, 3)]


@MODES
async def test_person_in_front_answers_what_the_server_asks(world, mode):
    asked = []

    async def answer(context, params):
        asked.append(params.message)
        return types.ElicitResult(action="accept", content={"name": "Ada", "check": True})

    async with world.client(mode, elicitation_callback=answer) as client:
        done = await client.call_tool("trigger-elicitation-request", {})
        assert not done.is_error, said(done)
    assert len(asked) == 1
    assert "Ada" in said(done)


@MODES
async def test_model_in_front_samples_for_the_server(world, mode):
    asked = []

    async def sample(context, params):
        asked.append(params.messages[0].content.text)
        text = types.TextContent(type="text", text="forty-two")
        return types.CreateMessageResult(role="assistant", content=text, model="a-model")

    async with world.client(mode, sampling_callback=sample) as client:
        done = await client.call_tool("trigger-sampling-request", {"prompt": "And?"})
        assert not done.is_error, said(done)
    assert "And?" in asked[0]
    assert "forty-two" in said(done)


@MODES
async def test_what_the_client_can_not_do_fails_the_call_and_nothing_else(world, mode):
    async with world.client(mode) as client:
        refused = await client.call_tool("trigger-sampling-request", {"prompt": "And?"})
        assert refused.is_error
        echo = await client.call_tool("echo", {"message": "still here"})
        assert "still here" in said(echo)


@MODES
async def test_what_a_server_logs_in_a_call_reaches_its_client(world, mode):
    logged = asyncio.Event()

    async def log(params):
        logged.set()

    meta = {"io.modelcontextprotocol/logLevel": "debug"} if mode != LEGACY else {}
    async with world.client(mode, logging_callback=log) as client:
        for n in range(2):  # on and off, or off and on
            run = {"counterseal/run_id": f"run_log_{mode}_{n}"}
            await client.call_tool("toggle-simulated-logging", {}, meta={**meta, **run})
        async with asyncio.timeout(PATIENCE):
            await logged.wait()


@MODES
async def test_cancelled_call_ends_and_its_server_serves_on(world, mode):
    begun = asyncio.Event()

    async def progress(done, total, message):
        begun.set()

    arguments = {"duration": 1000, "steps": 10000}
    tool = "trigger-long-running-operation"
    async with world.client(mode) as client:
        call = asyncio.ensure_future(client.call_tool(tool, arguments, progress_callback=progress))
        async with asyncio.timeout(PATIENCE):
            await begun.wait()
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
        echo = await client.call_tool("echo", {"message": "still here"})
        assert "still here" in said(echo)
