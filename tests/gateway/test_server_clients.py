"""Other ways in: over standard input and output, and with FastMCP's client."""

import asyncio

import mcp_types as types
import pytest
from fastmcp import Client as FastClient
from fastmcp.client.elicitation import ElicitResult
from fastmcp.client.transports import StreamableHttpTransport
from fastmcp.exceptions import ToolError
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from counterseal.config import load_settings, open_runtime
from tests.gateway.served import (
    BOSS,
    BOT,
    LEGACY,
    MODERN,
    MODES,
    PATIENCE,
    Desk,
    facts,
    serving,
)
from tests.waiting import until
from tests.warm import warm

TOOLS = '''\
import asyncio
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from counterseal import Context, tool

Text = Annotated[str, Field(max_length=50, description="A text.")]
DESK = {"version": "1.0.0", "owner": "desk", "budget": 50}
WHO = {
    "message": "Who?",
    "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
}


@tool(effect="draft", **DESK)
async def note(text: Text, ctx: Context) -> dict[str, str]:
    """Write a note."""
    with Path("notes").open("a") as file:
        file.write(f"{text}\\n")
    return {"run": ctx.run_id}


@tool(effect="external_notification", consequence="A letter goes to {to}.", **DESK)
async def send(to: Text) -> dict[str, Any]:
    """Send a letter."""
    with Path("sent").open("a") as file:
        file.write(f"{to}\\n")
    return {"sent": to}


@tool(effect="read_only", **DESK)
async def greet(ctx: Context) -> dict[str, str]:
    """Greet somebody."""
    ctx.progress(1, 2)
    answer = await ctx.client.ask("elicitation/create", WHO)
    return {"greeting": f"Hello, {answer['content']['name']}"}


@tool(effect="draft", **DESK)
async def linger(text: Text) -> dict[str, str]:
    """Write a note, and stay."""
    with Path("notes").open("a") as file:
        file.write(f"{text}\\n")
    try:
        await asyncio.Event().wait()
    finally:
        Path("stopped").touch()
    return {}
'''
SETTINGS = """\
[tools]
paths = ["tools.py"]

[store]
url = "sqlite:///calls.db"

[agents.bot]
tenant = "acme"
user = "u_1"

[gateway]
public_url = "https://tools.test"

""" + "".join(
    f'[[grants]]\nagent = "bot"\ntool = "{name}"\n' for name in ("note", "send", "greet", "linger")
)


@pytest.fixture
def project(tmp_path):
    (tmp_path / "tools.py").write_text(TOOLS)
    (tmp_path / "counterseal.toml").write_text(SETTINGS)
    return tmp_path


def started(project, mode, **callbacks):
    """A process of its own, and the client that started it."""
    program, *words = warm("-m", "counterseal", "mcp", "--as", "bot")
    parameters = StdioServerParameters(command=program, args=words, cwd=project)
    return Client(stdio_client(parameters), mode=mode, **callbacks)


# --- standard input and output --------------------------------------------------------------------


@MODES
@pytest.mark.slow
async def test_over_stdio_a_process_is_one_run_and_asks_its_client(project, mode):
    heard = []

    async def answer(context, params):
        return types.ElicitResult(action="accept", content={"name": "Ada"})

    async def progress(*report):
        heard.append(report)

    async with started(project, mode, elicitation_callback=answer) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names == ["greet", "linger", "note", "send"]
        first = await client.call_tool("note", {"text": "a"})
        second = await client.call_tool("note", {"text": "a"})
        third = await client.call_tool("note", {"text": "b"})
        assert [facts(one)["replayed"] for one in (first, second, third)] == [False, True, False]
        runs = {one.structured_content["run"] for one in (first, second, third)}
        greeted = await client.call_tool("greet", {}, progress_callback=progress)
        assert greeted.structured_content == {"greeting": "Hello, Ada"}
        wrong = await client.call_tool("note", {"text": 7})
        assert facts(wrong)["code"] == "TYPE_MISMATCH"
    async with started(project, mode) as client:
        runs.add((await client.call_tool("note", {"text": "a"})).structured_content["run"])
    assert len(runs) == 2
    assert all(run.startswith("run_mcp_") for run in runs)
    assert heard == [(1, 2, None)]
    assert (project / "notes").read_text() == "a\nb\na\n"


@MODES
@pytest.mark.slow
async def test_over_stdio_a_person_at_another_process_approves_the_call(project, mode):
    settings = load_settings(project / "counterseal.toml")
    shown = []

    async with open_runtime(settings) as office:

        async def answer(context, params):
            shown.append(params.url)
            approval_id = params.url.removeprefix("https://tools.test/approvals/")
            await office.approvals.decide(approval_id, BOSS, "approve")
            return types.ElicitResult(action="accept")

        async with started(project, mode, elicitation_callback=answer) as client:
            result = await client.call_tool("send", {"to": "ann"})
            assert result.structured_content == {"sent": "ann"}
    assert len(shown) == 1
    assert (project / "sent").read_text() == "ann\n"


@MODES
@pytest.mark.slow
async def test_over_stdio_a_call_that_is_given_up_stops_and_the_process_goes_on(project, mode):
    async with started(project, mode) as client:
        calling = asyncio.ensure_future(client.call_tool("linger", {"text": "a"}))
        await until((project / "notes").exists)
        calling.cancel()
        await asyncio.wait({calling})
        await until((project / "stopped").exists)
        again = await client.call_tool("linger", {"text": "a"})
        assert facts(again)["code"] == "IDEMPOTENCY_CONFLICT"
        assert not (await client.call_tool("note", {"text": "b"})).is_error
    assert (project / "notes").read_text() == "a\nb\n"


@pytest.mark.slow
async def test_over_stdio_a_client_that_vanishes_ends_the_process_and_leaves_its_call_in_doubt(
    project,
):
    async with started(project, LEGACY) as client:
        calling = asyncio.ensure_future(client.call_tool("linger", {"text": "a"}))
        await until((project / "notes").exists)
    calling.cancel()
    await asyncio.wait({calling})
    async with open_runtime(load_settings(project / "counterseal.toml")) as office:
        events = [event for _, event in await office.store.events("acme")]
    failed = next(event for event in events if event.type.value == "tool.failed")
    assert failed.body["unknown"] == "escalate", "a person is to find out what it did"
    assert (project / "notes").read_text() == "a\n"


# --- FastMCP --------------------------------------------------------------------------------------


async def fast(served, mode, **handlers):
    transport = StreamableHttpTransport(served.url, auth=await served.key(BOT))
    return FastClient(transport, mode=mode, timeout=PATIENCE, **handlers)


@pytest.mark.parametrize("mode", [LEGACY, "auto", MODERN])
async def test_fastmcps_client_lists_calls_and_reads_refusals(mode):
    desk = Desk()
    async with serving(desk.tools) as served, await fast(served, mode) as client:
        names = [tool.name for tool in await client.list_tools()]
        assert names == ["add", "linger", "note", "send"]
        result = await client.call_tool("add", {"a": 1, "b": 2})
        assert result.structured_content == {"total": 3}
        assert result.data.total == 3
        with pytest.raises(ToolError, match="TYPE_MISMATCH"):
            await client.call_tool("add", {"a": "x", "b": 2})
        refused = await client.call_tool("nobody", {}, raise_on_error=False)
        assert refused.meta["counterseal/observation"]["code"] == "STRUCTURAL_VIOLATION"


@pytest.mark.parametrize("mode", [LEGACY, MODERN])
async def test_fastmcps_client_points_a_person_to_an_approval(mode):
    desk, shown = Desk(), []
    async with serving(desk.tools) as served:

        async def show(message, response_type, params, context):
            shown.append(params.url)
            await served.decide()
            return ElicitResult(action="accept")

        async with await fast(served, mode, elicitation_handler=show) as client:
            result = await client.call_tool("send", {"to": "ann"})
            assert result.structured_content == {"sent": "ann"}
    assert len(shown) == 1
    assert desk.sent == ["ann"]
