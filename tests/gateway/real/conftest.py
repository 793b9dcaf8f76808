"""Other people's servers, as they come from npm and PyPI, behind one `counterseal serve`.

Five of them, of which three speak 2025-11-25 only. The overlays are those that `counterseal import`
proposes, looked through by a person: `REVIEWED` is what they changed. Two callers have API keys:
`coder` of the tenant acme, who may use nearly everything, and `reader` of globex.
"""

import asyncio
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from counterseal import Principal
from counterseal.config import open_runtime
from counterseal.config.upstream_contracts import register_without_connections
from counterseal.contract.sources.mcp.lock import Lock
from counterseal.contract.sources.mcp.overlay import overlay_text
from tests.gateway.projects import PATIENCE, Project, connected
from tests.gateway.served import BOSS
from tests.node_tools import EVERYTHING, FILESYSTEM, MEMORY, node_program

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
            register_without_connections(runtime, self.project.settings)
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


@pytest.fixture(scope="session")
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
