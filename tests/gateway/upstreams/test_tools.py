"""An upstream's tool, its resources and its prompts as tools of ours, run by the executor."""

import pytest

from counterseal.codes import Code
from counterseal.contract.bindings import McpBinding
from counterseal.contract.model import Contract
from counterseal.contract.outputs import BLOCKS
from counterseal.contract.sources.mcp.definition import Definition
from counterseal.execution.attempt import AttemptRequest
from counterseal.execution.executor import Executor
from counterseal.upstream import UpstreamSettings, mcp_tool

from .conftest import ClientInFront, call_context, connected, in_front
from .server import make_server

OPEN = {"type": "object"}


def contract(name, *, output=OPEN, kind="tool", takes=()):
    """Of what the server lists without saying more of it than its name."""
    definition = Definition.of({"name": name or "-", "inputSchema": {**OPEN, "properties": {}}})
    properties = {one: {} for one in takes}
    return Contract.model_validate(
        {
            "identity": {"name": "up.it", "version": "1.0.0", "owner": "us"},
            "affordance": {
                "model_description": "What it does.",
                "input_schema": {"type": "object", "properties": properties},
                "output_schema": output,
            },
            "effect": "retrieve",
            "usage": "Whenever.",
            "mcp": McpBinding(server="up", tool=name, kind=kind, definition=definition.hash),
        }
    )


async def run(upstream, made, **arguments):
    executor = Executor()
    try:
        runner = executor.runner(made, mcp_tool(made, upstream))
        return await runner.run(AttemptRequest(arguments, call_context, seconds=30))
    finally:
        await executor.aclose()


@pytest.fixture
async def upstream():
    settings = UpstreamSettings(name="up", python=make_server(), relay=frozenset({"elicitation"}))
    async with connected(settings) as found:
        yield found


async def test_an_output_schema_gets_the_structure_and_blocks_get_the_blocks(upstream):
    made = contract("add", takes=("a", "b"))
    assert (await run(upstream, made, a=2, b=3)).value == {"sum": 5}
    made = contract("add", takes=("a", "b"), output=BLOCKS)
    blocks = (await run(upstream, made, a=2, b=3)).value
    texts = [{"type": "text", "text": "sum"}]
    assert blocks == {"content": texts, "structuredContent": {"sum": 5}}
    nothing = (await run(upstream, contract("nothing", output=BLOCKS))).value
    assert list(nothing) == ["content"]


async def test_an_answer_without_the_structure_that_was_promised_can_not_be_observed(upstream):
    outcome = await run(upstream, contract("nothing"))
    assert outcome.code is Code.OBSERVATION_NORMALIZATION_FAIL
    assert outcome.began


async def test_a_tool_that_says_no_is_told_from_a_server_that_does(upstream):
    outcome = await run(upstream, contract("fail"))
    assert (outcome.code, outcome.words) == (Code.SEMANTIC_INVALIDITY, "it broke")
    assert outcome.began
    outcome = await run(upstream, contract("refuse"))
    assert outcome.code is Code.SEMANTIC_INVALIDITY
    assert outcome.words
    assert outcome.began


async def test_resources_and_prompts_are_tools_too(upstream):
    read = contract("", kind="resource", takes=("uri",))
    found = (await run(upstream, read, uri="test://one")).value
    assert found == {"contents": [{"uri": "test://one", "text": "1"}]}
    got = contract("", kind="prompt", takes=("name", "arguments"))
    name = {"action": "accept", "content": {"name": "Ada"}}
    with in_front(ClientInFront("elicitation", elicitation=name)):
        prompt = (await run(upstream, got, name="hello")).value
    assert prompt["description"] == "Greets."
    assert prompt["messages"][0]["content"]["text"] == "Hello Ada"


async def test_a_call_that_never_left_did_not_begin():
    async with connected(UpstreamSettings(name="up", command=("/no/such/program",))) as upstream:
        outcome = await run(upstream, contract("add"))
        assert outcome.code is Code.DEPENDENCY_UNAVAILABLE
        assert not outcome.began


def test_a_contract_without_a_binding_is_none_of_ours():
    made = contract("add").model_copy(update={"mcp": None})
    with pytest.raises(ValueError, match="no mcp section"):
        mcp_tool(made, None)
