"""Servers in front of tools: `counterseal serve`, FastMCP's proxies, IBM ContextForge."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

from benchmarks import _peer_servers as servers
from benchmarks._context_forge import context_forge
from benchmarks._house.environments import Unavailable, python_of, version_of
from benchmarks._house.house import House
from benchmarks._servers import Served, free_port, run, server

DIRECT, GATEWAY = "direct", "counterseal serve"
FASTMCP, FASTMCP_SHARED = "FastMCP proxy", "FastMCP proxy, shared connection"
FORGE, FORGE_STATEFUL = "ContextForge", "ContextForge, stateful sessions"
AGENT, PLENTY = "bench", 10**9
PROGRAM = [sys.executable, "-m", "counterseal"]
SETTINGS = """\
[store]
url = "{store}"

[tools]
paths = ["tools"]

[gateway]
port = {port}
requests_per_second = 1000000  # of one credential; the default, 500, is below what is measured here

[agents.{agent}]
tenant = "acme"
"""
UPSTREAM = """
[upstreams.bench]
url = "{url}"
overlay = "overlay.yaml"
"""
GRANT = """
[[grants]]
agent = "{agent}"
tool = "{tool}"
max_calls_per_run = {plenty}
"""
OVERLAY = """\
server: bench
defaults:
  owner: bench
  runtime: {rate_limits: {window_sec: 1, max_requests: 1000000}}
tools:
  echo: {effect: retrieve}
  slow: {effect: retrieve}
  note: {effect: draft}
"""
TOOLS = ("echo", "slow", "note")
OWN_TOOLS = '''\
import asyncio
from typing import Annotated
from pydantic import BaseModel, Field
from counterseal import tool

RATES = {"rate_limits": {"window_sec": 1, "max_requests": 1_000_000}}
Text = Annotated[str, Field(max_length=200, description="The text to return.")]


class Echo(BaseModel):
    text: str


@tool(effect="read_only", version="1.0.0", owner="bench", budget=10**9, runtime=RATES)
async def echo(text: Text) -> Echo:
    """Return the text."""
    await asyncio.sleep(0)
    return Echo(text=text)


@tool(effect="draft", version="1.0.0", owner="bench", budget=10**9, runtime=RATES)
async def note(text: Text) -> Echo:
    """Write the text down."""
    await asyncio.sleep(0)
    return Echo(text=text)
'''


def home(
    folder: Path,
    *,
    upstream: str = "",
    store: str = "sqlite:///bench.db",
    tools: str = OWN_TOOLS,
    names: Sequence[str] = ("echo", "note"),
    program: Sequence[str] = PROGRAM,
) -> tuple[list[str], int]:
    """Write a project that serves tools to one agent. Returns the command, and the port.

    The tools are those of an upstream, or the project's own.
    """
    port = free_port()
    (folder / "tools").mkdir(parents=True)
    settings = SETTINGS.format(store=store, port=port, agent=AGENT)
    if upstream:
        settings += UPSTREAM.format(url=upstream)
        (folder / "overlay.yaml").write_text(OVERLAY, encoding="utf-8")
    else:
        (folder / "tools" / "tools.py").write_text(tools, encoding="utf-8")
    for tool in TOOLS if upstream else names:
        settings += GRANT.format(agent=AGENT, tool=tool, plenty=PLENTY)
    (folder / "counterseal.toml").write_text(settings, encoding="utf-8")
    if upstream:
        run([*PROGRAM, "diff", "--accept", "--yes", "--by", AGENT], folder)
    return [*program, "serve", "--anonymous-as", AGENT], port


@contextmanager
def gateway(folder: Path, **options: str) -> Iterator[Served]:
    """Run `counterseal serve` in a new project; MCP clients on this machine need no key."""
    command, port = home(folder, **options)
    with server(command, port, folder) as served:
        yield served


@contextmanager
def api(folder: Path, **options: Any) -> Iterator[Served]:
    """Run `counterseal serve` in a new project, with one API key for all callers of `/v1`."""
    command, port = home(folder, **options)
    issue = [*PROGRAM, "keys", "issue", "--tenant", "acme", "--agent", AGENT, "--json"]
    key = json.loads(run([*issue, "--reason", "a benchmark", "--by", AGENT], folder))["key"]
    with server(command, port, folder) as served:
        url = f"http://127.0.0.1:{port}/v1/calls"
        yield served._replace(url=url, headers={"Authorization": f"Bearer {key}"})


@contextmanager
def script(folder: Path, which: str, *words: str, peer: str | None = None) -> Iterator[Served]:
    """Run one of the servers in `_peer_servers`."""
    python = str(python_of(peer) if peer else sys.executable)
    port = free_port()
    command = [python, "-P", servers.__file__, which, str(port), *words]
    with server(command, port, folder) as served:
        yield served


async def parties(house: House, stack: AsyncExitStack, folder: Path) -> dict[str, Served]:
    """Start the upstream as `direct`, and every proxy in front of it that can be started."""
    house.doing("starting the upstream")
    direct = stack.enter_context(script(folder, "upstream"))
    starts: dict[str, Callable[[], AbstractContextManager[Served]]] = {
        GATEWAY: lambda: gateway(folder / "gateway", upstream=direct.url),
        FASTMCP: lambda: script(folder, "fresh", direct.url, peer="fastmcp"),
        FASTMCP_SHARED: lambda: script(folder, "shared", direct.url, peer="fastmcp"),
        FORGE: lambda: context_forge(folder / "forge", direct.url, stateful=False),
        FORGE_STATEFUL: lambda: context_forge(folder / "forge2", direct.url, stateful=True),
    }
    return {DIRECT: direct, **await started(house, stack, starts)}


async def started(
    house: House,
    stack: AsyncExitStack,
    starts: Mapping[str, Callable[[], AbstractContextManager[Served]]],
) -> dict[str, Served]:
    """Start servers until the stack ends; those that fail are noted as missing."""
    running = {}
    for name, start in starts.items():
        house.doing(f"starting {name}")
        try:
            running[name] = await asyncio.to_thread(lambda: stack.enter_context(start()))  # noqa: B023 - used at once
        except (Unavailable, OSError, httpx.HTTPError) as error:
            house.missing(name, error)
        else:
            house.versions[name] = found(name)
    return running


def found(name: str) -> dict[str, str]:
    """Return the version of a party's package, by the beginning of the party's name."""
    for begin, peer, package in (
        ("FastMCP", "fastmcp", "fastmcp"),
        ("ContextForge", "contextforge", "mcp-contextforge-gateway"),
        ("MCP SDK", "mcp", "mcp"),
    ):
        if name.startswith(begin):
            return version_of(peer, package)
    return {}
