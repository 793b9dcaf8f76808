"""What real servers say of their tools makes contracts, gated and with a starting overlay."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from counterseal import Registry
from counterseal.contract.sources.mcp.definition import Definition
from counterseal.contract.sources.mcp.lock import Lock, PinState
from counterseal.contract.sources.mcp.overlay import contract_of, overlay_text
from tests.node_tools import EVERYTHING, FILESYSTEM, MEMORY, node_program

pytestmark = pytest.mark.slow

HERE = Path(sys.prefix) / "bin"
STARTS = {
    "time": lambda _: [str(HERE / "mcp-server-time"), "--local-timezone", "UTC"],
    "git": lambda folder: [str(HERE / "mcp-server-git"), "--repository", str(folder)],
    "everything": lambda _: node_program(EVERYTHING),
    "filesystem": lambda folder: node_program(FILESYSTEM, str(folder)),
    "memory": lambda _: node_program(MEMORY),
}
FEWEST = {"time": 2, "git": 10, "everything": 8, "filesystem": 10, "memory": 9}


def listed(command, folder):
    """The tools of a server, asked as any client would over its standard streams."""
    hello = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }
    environment = {"MEMORY_FILE_PATH": str(folder / "memory.json"), "PATH": "/usr/bin:/bin"}
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        text=True,
    ) as server:

        def ask(number, method, params):
            server.stdin.write(json.dumps(_request(number, method, params)) + "\n")
            server.stdin.flush()
            for line in server.stdout if number else ():
                answer = json.loads(line)
                if answer.get("id") == number:
                    return answer["result"]
            return None

        try:
            ask(1, "initialize", hello)
            ask(None, "notifications/initialized", {})
            return ask(2, "tools/list", {})["tools"]
        finally:
            server.kill()


def _request(number, method, params):
    message = {"jsonrpc": "2.0", "method": method, "params": params}
    return message if number is None else {**message, "id": number}


@pytest.mark.parametrize("server", STARTS)
def test_every_tool_of_a_real_server_makes_a_contract(server, tmp_path, overlay):
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    definitions = [Definition.of(tool) for tool in listed(STARTS[server](tmp_path), tmp_path)]
    assert len(definitions) >= FEWEST[server]
    read = overlay(overlay_text(server, definitions))
    assert not any(entry.hidden for entry in read.tools.values())
    gated, described, lock = Registry(), Registry(), Lock()
    for definition in definitions:
        gated.register(contract_of(definition, None, server=server, unlisted="gated"))
        described.register(contract_of(definition, read, server=server))
        lock = lock.accept(server, definition, by="ann", at="2026-01-02T03:04:05Z")
    assert len(gated.records) == len(described.records) == len(definitions)
    Lock.update(tmp_path / "counterseal.lock", lambda _: lock)
    found = Lock.load(tmp_path / "counterseal.lock").compare(server, definitions)
    assert {one.state for one in found} == {PinState.ACCEPTED}
