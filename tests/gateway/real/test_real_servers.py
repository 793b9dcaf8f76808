"""Real servers behind the gateway, real clients before it: what is seen, read, and changed."""

import asyncio

import fastmcp
import mcp_types as types
import pytest
from fastmcp.exceptions import ToolError

from tests.gateway.projects import PATIENCE
from tests.gateway.served import LEGACY, MODES, facts, said

from .conftest import CODER, DOCUMENT, NO_TOOLS, READER

pytestmark = pytest.mark.slow


async def called(client, tool, arguments):
    """What came of a call that a person has to approve, however long that takes."""
    async with asyncio.timeout(PATIENCE):
        while True:
            result = await client.call_tool(tool, arguments)
            if facts(result)["code"] != "CONFIRMATION_MISSING":
                return result


# --- lists and reads ------------------------------------------------------------------------------


@MODES
async def test_each_agent_sees_the_tools_of_all_servers_that_are_granted_to_it(world, mode):
    async with world.client(mode) as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert set(listed) == set(CODER) - NO_TOOLS
    assert listed["git_log"].annotations.read_only_hint is True
    assert listed["git_commit"].annotations.read_only_hint is False
    assert listed["get-structured-content"].output_schema is not None
    async with world.client(mode, "reader") as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == sorted(READER)
        refused = await client.call_tool("git_log", {"repo_path": str(world.repository)})
        assert refused.is_error
        assert facts(refused)["code"] == "PERMISSION_DENIED"


@MODES
async def test_reads_of_every_server_come_back_as_data(world, mode):
    async with world.client(mode) as client:
        now = await client.call_tool("get_current_time", {"timezone": "Asia/Tokyo"})
        assert "Asia/Tokyo" in said(now)
        status = await client.call_tool("git_status", {"repo_path": str(world.repository)})
        assert "one.txt" in said(status)
        hello = await client.call_tool("read_text_file", {"path": str(world.files / "hello.txt")})
        assert hello.structured_content == {"content": "Hello there.\n"}
        graph = await client.call_tool("read_graph", {})
        assert "entities" in graph.structured_content
        echo = await client.call_tool("echo", {"message": "to and fro"})
        assert "to and fro" in said(echo)
        weather = await client.call_tool("get-structured-content", {"location": "Chicago"})
        assert weather.structured_content["conditions"]
        image = await client.call_tool("get-tiny-image", {})
        assert [block.type for block in image.content] == ["text", "image"]
        for result in (now, status, hello, graph, echo, weather, image):
            assert not result.is_error, said(result)


async def test_a_tool_that_says_no_and_one_that_is_called_wrongly_are_told_apart(world):
    async with world.client(LEGACY) as client:
        outside = await client.call_tool("read_text_file", {"path": "/etc/hostname"})
        assert outside.is_error
        wrong = await client.call_tool("read_text_file", {"file": "hello.txt"})
        assert wrong.is_error
    assert "Access denied" in said(outside), "what the server says is for the model to read"
    assert "Access denied" not in said(wrong), "it was never asked"
    assert facts(wrong)["code"] == "STRUCTURAL_VIOLATION"
    assert "/path" in {error["field"] for error in facts(wrong)["errors"]}


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_fastmcp_client_lists_calls_and_reads(world, mode):
    client = fastmcp.Client(world.url, auth=world.keys["coder"], mode=mode)
    async with client:
        assert {tool.name for tool in await client.list_tools()} == set(CODER) - NO_TOOLS
        hello = await client.call_tool("read_text_file", {"path": str(world.files / "hello.txt")})
        assert hello.structured_content == {"content": "Hello there.\n"}
        (read,) = await client.read_resource(DOCUMENT)
        assert "Features" in read.text
        with pytest.raises(ToolError, match="PERMISSION_DENIED"):
            await client.call_tool("get_file_info", {"path": str(world.files)})


# --- what changes something -----------------------------------------------------------------------


@MODES
async def test_commit_is_made_once_and_only_after_a_person_has_approved_it(world, mode):
    message = f"By a client of {mode}"
    commit = {"repo_path": str(world.repository), "message": message}
    asked = []

    async def approve(context, params):
        asked.append(params)
        await world.approve()
        return types.ElicitResult(action="accept")

    (world.repository / f"{mode}.txt").write_text("new\n")
    before = world.commits()
    async with world.client(mode, elicitation_callback=approve) as client:
        files = {"repo_path": str(world.repository), "files": [f"{mode}.txt"]}
        assert not (await client.call_tool("git_add", files)).is_error
        done = await called(client, "git_commit", commit)
        assert not done.is_error, said(done)
        assert facts(done)["replayed"] is False
        (world.repository / "later.txt").write_text(mode)
        await client.call_tool("git_add", {**files, "files": ["later.txt"]})
        again = await client.call_tool("git_commit", commit)
        assert facts(again)["replayed"] is True
        assert said(done).splitlines()[1:2] == said(again).splitlines()[1:2]
    assert f'Commits to "{world.repository}": "{message}".' in asked[0].message
    assert len(asked) == 1, "the same call later asks nobody again"
    assert world.commits() == before + 1
    assert message in world.git("log", "-1", "--format=%s")


async def test_client_that_can_show_nothing_is_told_to_call_again_and_the_file_is_written_once(
    world,
):
    path = world.files / "letter.txt"
    letter = {"path": str(path), "content": "Dear all"}
    client = fastmcp.Client(world.url, auth=world.keys["coder"])
    async with client:
        held = await client.call_tool("write_file", letter, raise_on_error=False)
        assert held.is_error
        link = held.meta["counterseal/observation"]["approval"]
        assert link["url"].endswith(f"/approvals/{link['id']}")
        assert not path.exists()
        await world.approve_by_command(link["id"])
        done = await client.call_tool("write_file", letter)
        assert not done.is_error
        assert path.read_text() == "Dear all"
        path.write_text("changed by somebody else")
        again = await client.call_tool("write_file", letter)
        assert again.meta["counterseal/observation"]["replayed"] is True
    assert path.read_text() == "changed by somebody else"
    events = await world.events("write_file")
    assert {(one["tenant"], one["agent"], one["user"]) for one in events} == {
        ("acme", "coder", "u_1")
    }
    story = [one["type"] for one in events]
    assert story[:3] == ["approval.required", "approval.voted", "approval.granted"]
    assert story.count("tool.started") == story.count("tool.succeeded") == 1


async def test_two_calls_that_are_alike_at_once_reach_the_server_once(world):
    ada = [{"name": "Ada", "entityType": "person", "observations": ["counts"]}]
    async with world.client(LEGACY) as one, world.client(LEGACY) as two:
        meta = {"counterseal/run_id": "run_ada"}
        calls = [
            client.call_tool("create_entities", {"entities": ada}, meta=meta)
            for client in (one, two)
        ]
        results = await asyncio.gather(*calls)
    assert not any(result.is_error for result in results), [said(one) for one in results]
    assert sorted(facts(result)["replayed"] for result in results) == [False, True]
    # A second call would have found her there, and have answered with an empty list.
    assert results[0].structured_content == results[1].structured_content == {"entities": ada}
    assert world.memory.read_text().count("Ada") == 1
