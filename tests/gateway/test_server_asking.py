"""Tools that ask their client in the middle of a call: a person, a model, or for its roots.

On 2025-11-25 the client is sent a request. On 2026-07-28 the call stands still, the client is told
what is asked, and calls again with answers.
"""

import asyncio

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from counterseal import Context, tool
from counterseal.contract.client import RefusedError, client
from tests.gateway.served import (
    MODERN,
    MODES,
    facts,
    form_only,  # noqa: F401 - a fixture
    raw_call,
    said,
    serving,
    until,
    url_only,  # noqa: F401 - a fixture
)

READS = {"effect": "read_only", "version": "1.0.0", "owner": "desk"}
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
WHO = {"message": "Who?", "requestedSchema": NAME}


@tool(**READS)
async def greet(ctx: Context) -> dict[str, str]:
    """Greet somebody."""
    answer = await ctx.client.ask("elicitation/create", WHO, name="who")
    if answer["action"] != "accept":
        return {"greeting": answer["action"]}
    return {"greeting": f"Hello, {answer['content']['name']}"}


@tool(**READS)
async def write(ctx: Context) -> dict[str, str]:
    """Have a model write something."""
    message = {"role": "user", "content": {"type": "text", "text": "A line, please."}}
    asked = {"messages": [message], "maxTokens": 10}
    answer = await ctx.client.ask("sampling/createMessage", asked)
    return {"written": answer["content"]["text"]}


@tool(**READS)
async def look(ctx: Context) -> dict[str, str]:
    """Look where the client is at home."""
    answer = await ctx.client.ask("roots/list", {})
    return {"root": answer["roots"][0]["uri"]}


@tool(**READS)
async def survey(ctx: Context) -> dict[str, list[str]]:
    """Ask two things at once, and a third after that."""
    ask = ctx.client.ask
    both = await asyncio.gather(
        ask("elicitation/create", {**WHO, "message": "One?"}, name="one"),
        ask("elicitation/create", {**WHO, "message": "Two?"}, name="two"),
    )
    last = await ask("elicitation/create", {**WHO, "message": "Three?"})
    return {"names": [answer["content"]["name"] for answer in (*both, last)]}


@tool(**READS)
async def polite(ctx: Context) -> dict[str, str]:
    """Ask, and do without where nobody answers."""
    try:
        await ctx.client.ask("elicitation/create", WHO)
    except RefusedError as refusal:
        return {"refused": str(refusal.missing)}
    return {"refused": ""}


TOOLS = [greet, write, look, survey, polite]


def naming(name="Ada", action="accept"):
    async def answer(context, params):
        content = {"name": name if isinstance(name, str) else name(params.message)}
        return types.ElicitResult(action=action, content=content if action == "accept" else None)

    return answer


@pytest.fixture(scope="module")
async def served():
    async with serving(TOOLS) as running:
        yield running


# --- answers --------------------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize(
    ("action", "greeting"),
    [("accept", "Hello, Ada"), ("decline", "decline"), ("cancel", "cancel")],
)
async def test_a_tool_gets_the_answer_of_the_clients_user(served, mode, action, greeting):
    async with served.client(mode, elicitation_callback=naming(action=action)) as client:
        result = await client.call_tool("greet", {})
        assert result.structured_content == {"greeting": greeting}


@MODES
async def test_a_tool_gets_what_the_clients_model_says_and_the_clients_roots(served, mode):
    async def sample(context, params):
        assert params.messages[0].content.text == "A line, please."
        return types.CreateMessageResult(
            role="assistant", content=types.TextContent(type="text", text="A line."), model="m"
        )

    async def roots(context):
        return types.ListRootsResult(roots=[types.Root(uri="file:///home")])

    callbacks = {"sampling_callback": sample, "list_roots_callback": roots}
    async with served.client(mode, **callbacks) as client:
        assert (await client.call_tool("write", {})).structured_content == {"written": "A line."}
        assert (await client.call_tool("look", {})).structured_content == {"root": "file:///home"}


@MODES
async def test_several_questions_at_once_and_one_after_another_find_their_answers(served, mode):
    numbers = {"One?": "1", "Two?": "2", "Three?": "3"}
    async with served.client(mode, elicitation_callback=naming(numbers.get)) as client:
        result = await client.call_tool("survey", {})
        assert result.structured_content == {"names": ["1", "2", "3"]}


async def rounds(client, name, **how):
    return await client.session.call_tool(name, {}, allow_input_required=True, **how)


def answers(**given):
    return {key: types.ElicitResult(action="accept", content=value) for key, value in given.items()}


async def test_questions_of_one_round_come_together_under_their_names(served):
    async with served.client(MODERN, elicitation_callback=naming()) as client:
        first = await rounds(client, "survey")
        asked = {key: one.params.message for key, one in first.input_requests.items()}
        assert asked == {"one": "One?", "two": "Two?"}
        # One answer is not enough: the other is asked for again.
        given = answers(one={"name": "1"})
        second = await rounds(
            client, "survey", input_responses=given, request_state=first.request_state
        )
        assert list(second.input_requests) == ["two"]
        third = await rounds(
            client,
            "survey",
            input_responses=answers(two={"name": "2"}, one={"name": "late"}, more={}),
            request_state=second.request_state,
        )
        (name,) = third.input_requests
        last = await rounds(
            client,
            "survey",
            input_responses=answers(**{name: {"name": "3"}}),
            request_state=third.request_state,
        )
        assert last.structured_content == {"names": ["1", "2", "3"]}


async def test_an_answer_to_another_kind_of_question_is_asked_for_again(served):
    async with served.client(MODERN, elicitation_callback=naming()) as client:
        first = await rounds(client, "greet")
        for wrong in (types.ListRootsResult(roots=[]), None):
            given = {} if wrong is None else {"who": wrong}
            again = await rounds(
                client, "greet", input_responses=given, request_state=first.request_state
            )
            assert list(again.input_requests) == ["who"]
            first = again
        last = await rounds(
            client,
            "greet",
            input_responses=answers(who={"name": "Ada"}),
            request_state=first.request_state,
        )
        assert last.structured_content == {"greeting": "Hello, Ada"}


async def test_answers_that_come_unasked_are_taken_where_they_fit(served):
    async with served.client(MODERN, elicitation_callback=naming()) as client:
        given = answers(who={"name": "Eve"}, nobody={"name": "x"})
        result = await rounds(client, "greet", input_responses=given)
        assert result.structured_content == {"greeting": "Hello, Eve"}
        wrong = await rounds(
            client, "greet", input_responses={"who": types.ListRootsResult(roots=[])}
        )
        assert list(wrong.input_requests) == ["who"]


async def test_an_answer_without_any_form_is_the_protocols_error(served):
    async with served.client(MODERN, elicitation_callback=naming()) as client:
        with pytest.raises(MCPError, match="Invalid"):
            await raw_call(client, name="greet", arguments={}, inputResponses={"who": 7})


# --- clients that can't ---------------------------------------------------------------------------


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
            assert facts(result)["code"] == "SEMANTIC_INVALIDITY"


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
        assert facts(result)["code"] == "SEMANTIC_INVALIDITY"
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
        await until(lambda: not served.front.calling.under_way)
