"""Questions that a client can't answer, or won't; and tools that ask from elsewhere."""

import asyncio

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from counterseal import Context, tool
from counterseal.contract.tool_context import RefusedError, client
from tests.gateway.asking_tools import READS, TOOLS, WHO, naming
from tests.gateway.served import (
    MODERN,
    MODES,
    facts,
    form_only,  # noqa: F401 - a fixture
    said,
    serving,
    url_only,  # noqa: F401 - a fixture
)
from tests.waiting import until


@pytest.fixture(scope="module")
async def served():
    async with serving(TOOLS) as running:
        yield running


async def test_a_client_of_2026_without_the_capability_is_told_which_one(served):
    async with served.client(MODERN) as client:
        for name, needed in (
            ("greet", {"elicitation": {"form": {}}}),
            ("write", {"sampling": {}}),
            ("look", {"roots": {}}),
        ):
            with pytest.raises(MCPError) as refused:
                await client.call_tool(name, {})
            assert refused.value.error.code == types.MISSING_REQUIRED_CLIENT_CAPABILITY == -32021
            assert refused.value.error.data == {"requiredCapabilities": needed}


async def test_a_client_of_2025_without_the_capability_gets_the_tools_error(served):
    async with served.client("legacy") as client:
        for name in ("greet", "write", "look"):
            result = await client.call_tool(name, {})
            assert result.is_error
            assert facts(result)["code"] == "DEPENDENCY_UNAVAILABLE"


@MODES
async def test_a_tool_that_can_do_without_an_answer_does(served, mode):
    async with served.client(mode) as client:
        result = await client.call_tool("polite", {})
        assert result.structured_content == {"refused": "elicitation.form"}


@MODES
@pytest.mark.usefixtures("url_only")
async def test_a_client_that_shows_no_forms_is_asked_for_none(served, mode):
    async with served.client(mode, elicitation_callback=naming()) as client:
        result = await client.call_tool("polite", {})
        assert result.structured_content == {"refused": "elicitation.form"}


@MODES
@pytest.mark.usefixtures("form_only")
async def test_a_client_that_shows_no_links_is_sent_none(mode):
    @tool(**READS)
    async def link(ctx: Context) -> dict[str, str]:
        """Show a link."""
        asked = {"mode": "url", "message": "See", "url": "https://a.test", "elicitationId": "e"}
        try:
            answer = await ctx.client.ask("elicitation/create", asked)
        except RefusedError as refusal:
            return {"refused": str(refusal.missing)}
        return {"answered": answer["action"]}

    async with (
        serving([link]) as served,
        served.client(mode, elicitation_callback=naming()) as client,
    ):
        result = await client.call_tool("link", {})
        assert result.structured_content == {"refused": "elicitation.url"}


async def test_a_client_that_answers_with_an_error_ends_the_call_as_its_tools_error(served):
    async def refuse(context, params):
        return types.ErrorData(code=-1, message="not now, says secret-user")

    async with served.client("legacy", elicitation_callback=refuse) as client:
        result = await client.call_tool("greet", {})
        assert facts(result)["code"] == "DEPENDENCY_UNAVAILABLE"
        assert "secret-user" not in said(result)


# --- where it is asked from -----------------------------------------------------------------------


@MODES
async def test_a_tool_that_takes_no_context_may_ask_on_2025_and_is_refused_on_2026(mode):
    @tool(**READS)
    async def quiet() -> dict[str, str]:
        """Ask without saying so beforehand."""
        try:
            answer = await client().ask("elicitation/create", WHO)
        except RefusedError:
            return {"greeting": "nobody"}
        return {"greeting": answer["content"]["name"]}

    async with (
        serving([quiet]) as served,
        served.client(mode, elicitation_callback=naming()) as asked,
    ):
        result = await asked.call_tool("quiet", {})
        expected = "nobody" if mode == MODERN else "Ada"
        assert result.structured_content == {"greeting": expected}


@MODES
async def test_a_tool_in_a_thread_of_its_own_can_ask_as_well(mode):
    @tool(**READS, isolation="thread")
    async def apart(ctx: Context) -> dict[str, str]:
        """Ask from another event loop."""
        await ctx.client.log("info", "asking")
        answer = await ctx.client.ask("elicitation/create", WHO)
        return {"greeting": answer["content"]["name"]}

    async with (
        serving([apart]) as served,
        served.client(mode, elicitation_callback=naming()) as asked,
    ):
        result = await asked.call_tool("apart", {})
        assert result.structured_content == {"greeting": "Ada"}


async def test_two_questions_under_one_name_are_both_asked():
    @tool(**READS)
    async def twice(ctx: Context) -> dict[str, list[str]]:
        """Ask the same twice."""
        ask = ctx.client.ask
        both = await asyncio.gather(
            ask("elicitation/create", WHO, name="who"), ask("elicitation/create", WHO, name="who")
        )
        return {"names": [answer["content"]["name"] for answer in both]}

    async with (
        serving([twice]) as served,
        served.client(MODERN, elicitation_callback=naming()) as client,
    ):
        result = await client.call_tool("twice", {})
        assert result.structured_content == {"names": ["Ada", "Ada"]}
        await until(lambda: not served.server.calls.running.count)
