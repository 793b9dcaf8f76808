"""Other people's servers behind the gateway, as they come from npm and PyPI, and real clients.

One `counterseal serve` for all of it: five servers, of which three speak 2025-11-25 only, behind
clients of both revisions. The overlays are those that `counterseal import` proposes, looked through
by a person: `REVIEWED` is what they changed.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import fastmcp
import mcp_types as types
import pytest
from fastmcp.exceptions import ToolError
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from ruamel.yaml import YAML

from counterseal import Principal
from counterseal.config import open_runtime
from counterseal.contract.mcp import Lock
from counterseal.contract.mcp.writing import overlay_text
from counterseal.gateway.plans import register_pinned
from tests.gateway.projects import PATIENCE, Project, connected
from tests.gateway.served import BOSS, LEGACY, MODES, facts, said
from tests.node_tools import EVERYTHING, FILESYSTEM, MEMORY, node_program

pytestmark = pytest.mark.slow

DOCUMENT = "demo://resource/static/document/features.md"
REVIEWED = {
    "everything": {
        "get-env": {"hidden": True},
        "toggle-simulated-logging": {"effect": "read_only", "annotations_reviewed": True},
        "toggle-subscriber-updates": {"effect": "read_only", "annotations_reviewed": True},
        "trigger-elicitation-request": {"effect": "read_only", "annotations_reviewed": True},
        "trigger-sampling-request": {"effect": "read_only", "annotations_reviewed": True},
        "trigger-long-running-operation": {"effect": "read_only"},
    },
    "git": {
        "git_commit": {
            "effect": "internal_mutation",
            "consequence": "Commits to {repo_path}: {message}.",
            "approval": {},
        },
    },
    "files": {
        "write_file": {
            "effect": "internal_mutation",
            "consequence": "Overwrites {path}.",
            "approval": {},
        },
    },
    "memory": {"open_nodes": {"effect": "retrieve"}},
}
CODER = (
    *("echo", "get-structured-content", "get-tiny-image", "trigger-long-running-operation"),
    *("trigger-elicitation-request", "trigger-sampling-request", "toggle-simulated-logging"),
    *("toggle-subscriber-updates", "get-env", "everything.resources", "everything.prompts"),
    *("git_status", "git_log", "git_add", "git_commit", "read_text_file", "write_file"),
    *("read_graph", "create_entities", "get_current_time", "convert_time"),
)
READER = ("get_current_time", "read_graph")
NO_TOOLS = {"get-env", "everything.resources", "everything.prompts"}


class World:
    """The servers' own world, and the gateway before them."""

    def __init__(self, folder):
        self.folder = folder
        self.repository = folder / "repository"
        self.files = folder / "files"
        self.memory = folder / "memory.jsonl"
        self.project = Project(folder / "project")
        self.url = ""
        self.keys = {}

    def set_up(self):
        self.files.mkdir()
        (self.files / "hello.txt").write_text("Hello there.\n")
        self.git("init", "-q", str(self.repository))
        self.git("config", "user.name", "Tests")
        self.git("config", "user.email", "tests@example.org")
        (self.repository / "one.txt").write_text("1\n")
        beside = Path(sys.executable).parent
        relay = ["elicitation", "sampling", "roots"]
        passed = {"resources": True, "prompts": True}
        upstream = partial(self.project.upstream, unlisted="gated")  # so that all is shown
        upstream("everything", node_program(EVERYTHING), relay=relay, **passed)
        upstream("files", node_program(FILESYSTEM, str(self.files)))
        memory = {"MEMORY_FILE_PATH": str(self.memory)}
        upstream("memory", node_program(MEMORY), env=memory)
        git = [str(beside / "mcp-server-git"), "--repository", str(self.repository)]
        upstream("git", git)
        time = [str(beside / "mcp-server-time"), "--local-timezone", "UTC"]
        upstream("time", time)
        project = self.project
        project.grant("coder", *CODER)
        project.grant("reader", *READER)
        project.run_now("diff", "--accept", "--yes", "--by", "reviewer")
        for server, pins in Lock.load(project.lock).servers.items():
            overlay = YAML().load(overlay_text(server, [pin.definition for pin in pins.values()]))
            overlay["tools"].update(REVIEWED.get(server, {}))
            with (project.folder / "overlays" / f"{server}.yaml").open("w") as file:
                YAML().dump(overlay, file)
        coder = Principal(tenant="acme", agent="coder", user="u_1")
        reader = Principal(tenant="globex", agent="reader", user="u_2")
        self.keys = asyncio.run(project.keys(coder=coder, reader=reader))

    def git(self, *words):
        where = () if words[0] == "init" else ("-C", str(self.repository))
        done = subprocess.run(["git", *where, *words], capture_output=True, text=True, check=True)
        return done.stdout

    def commits(self):
        return int(self.git("rev-list", "--count", "--all"))

    def client(self, mode, who="coder", **options):
        return connected(self.url, self.keys[who], mode, **options)

    async def approve(self):
        """A person approves the one request that waits, in no time."""
        async with open_runtime(self.project.settings) as runtime:
            register_pinned(runtime, self.project.settings)
            (held,) = await runtime.approvals.list()
            await runtime.approvals.decide(held.approval_id, BOSS, "approve")

    async def events(self, tool):
        """What is on record of a tool's calls, in its order."""
        words = ("--tenant", "acme", "--tool", tool, "--json")
        listed = await self.project.run("audit", "list", *words)
        assert not any(key in listed for key in self.keys.values())
        return [json.loads(line) for line in reversed(listed.splitlines())]

    async def approve_by_command(self, approval_id):
        words = ("--as", "boss", "--tenant", "acme", "--yes")
        await self.project.run("approvals", "approve", approval_id, *words)


async def called(client, tool, arguments):
    """What came of a call that a person has to approve, however long that takes."""
    async with asyncio.timeout(PATIENCE):
        while True:
            result = await client.call_tool(tool, arguments)
            if facts(result)["code"] != "CONFIRMATION_MISSING":
                return result


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("real")
    (folder / "project").mkdir()
    made = World(folder)
    made.set_up()
    with made.project.serving() as serving:
        made.url = serving.url
        made.told = serving.told
        yield made
        serving.process.terminate()
        assert serving.process.wait(PATIENCE) == 0


# --- lists and reads ------------------------------------------------------------------------------


@MODES
async def test_everybody_sees_what_is_granted_to_them_of_all_servers(world, mode):
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
        world.client("2026-07-28") as client,
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
