"""Tools that ask their client in the middle of a call: a person, a model, or for its roots.

On 2025-11-25 the client is sent a request. On 2026-07-28 the call stands still, the client is told
what is asked, and calls again with answers.
"""

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from tests.gateway.asking_tools import TOOLS, naming
from tests.gateway.served import (
    MODERN,
    MODES,
    raw_call,
    serving,
)


@pytest.fixture(scope="module")
async def served():
    async with serving(TOOLS) as running:
        yield running


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
