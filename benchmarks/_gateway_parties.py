"""Who stands before the upstream: the gateway, FastMCP's proxies, IBM ContextForge."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager
from pathlib import Path

import httpx

from benchmarks import _gateway_servers as servers
from benchmarks._context_forge import context_forge
from benchmarks._house.environments import Unavailable, python_of, version_of
from benchmarks._house.house import House
from benchmarks._servers import Served, free_port, run, server

DIRECT, GATEWAY = "direct", "counterseal serve"
FASTMCP, FASTMCP_SHARED = "FastMCP proxy", "FastMCP proxy, shared connection"
FORGE, FORGE_STATEFUL = "ContextForge", "ContextForge, stateful sessions"
AGENT, PLENTY = "bench", 10**9
SETTINGS = """\
[store]
url = "sqlite:///bench.db"

[tools]
paths = ["tools"]

[gateway]
port = {port}

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
from typing import Annotated
from pydantic import BaseModel, Field
from counterseal import tool

RATES = {"rate_limits": {"window_sec": 1, "max_requests": 1_000_000}}
Text = Annotated[str, Field(max_length=200, description="What is given back.")]


class Echo(BaseModel):
    text: str


@tool(effect="read_only", version="1.0.0", owner="bench", budget=10**9, runtime=RATES)
async def echo(text: Text) -> Echo:
    """Give it back."""
    return Echo(text=text)


@tool(effect="draft", version="1.0.0", owner="bench", budget=10**9, runtime=RATES)
async def note(text: Text) -> Echo:
    """Write it down."""
    return Echo(text=text)
'''


def home(folder: Path, upstream: str | None = None) -> tuple[list[str], int]:
    """The folder of somebody who serves tools to one agent; the command, and the port.

    The tools are an upstream's, or two of one's own.
    """
    port = free_port()
    (folder / "tools").mkdir(parents=True)
    grants = (GRANT.format(agent=AGENT, tool=tool, plenty=PLENTY) for tool in TOOLS)
    settings = SETTINGS.format(port=port, agent=AGENT)
    if upstream:
        settings += UPSTREAM.format(url=upstream)
        (folder / "overlay.yaml").write_text(OVERLAY, encoding="utf-8")
    else:
        (folder / "tools" / "tools.py").write_text(OWN_TOOLS, encoding="utf-8")
    settings += "".join(list(grants)[:: 1 if upstream else 2])
    (folder / "counterseal.toml").write_text(settings, encoding="utf-8")
    program = [sys.executable, "-m", "counterseal"]
    if upstream:
        run([*program, "diff", "--accept", "--yes", "--by", AGENT], folder)
    return [*program, "serve", "--anonymous-as", AGENT], port


@contextmanager
def gateway(folder: Path, upstream: str | None = None) -> Iterator[Served]:
    command, port = home(folder, upstream)
    with server(command, port, folder) as served:
        yield served


@contextmanager
def script(folder: Path, which: str, *words: str, peer: str | None = None) -> Iterator[Served]:
    """One of the servers in `_gateway_servers`."""
    python = str(python_of(peer) if peer else sys.executable)
    port = free_port()
    command = [python, "-P", servers.__file__, which, str(port), *words]
    with server(command, port, folder) as served:
        yield served


# --- all of them ----------------------------------------------------------------------------------


async def parties(house: House, stack: AsyncExitStack, folder: Path) -> dict[str, Served]:
    """The upstream as `direct`, and those before it that can be had."""
    house.doing("starting the upstream")
    direct = stack.enter_context(script(folder, "upstream"))
    starts: dict[str, Callable[[], AbstractContextManager[Served]]] = {
        GATEWAY: lambda: gateway(folder / "gateway", direct.url),
        FASTMCP: lambda: script(folder, "fresh", direct.url, peer="fastmcp"),
        FASTMCP_SHARED: lambda: script(folder, "shared", direct.url, peer="fastmcp"),
        FORGE: lambda: context_forge(folder / "forge", direct.url, stateful=False),
        FORGE_STATEFUL: lambda: context_forge(folder / "forge2", direct.url, stateful=True),
    }
    made = {DIRECT: direct}
    for name, start in starts.items():
        house.doing(f"starting {name}")
        try:
            made[name] = await asyncio.to_thread(lambda: stack.enter_context(start()))  # noqa: B023 - used at once
        except (Unavailable, OSError, httpx.HTTPError) as error:
            house.missing(name, error)
        else:
            house.versions[name] = found(name)
    return made


def found(name: str) -> dict[str, str]:
    for begin, peer, package in (
        ("FastMCP", "fastmcp", "fastmcp"),
        ("ContextForge", "contextforge", "mcp-contextforge-gateway"),
        ("MCP SDK", "mcp", "mcp"),
    ):
        if name.startswith(begin):
            return version_of(peer, package)
    return {}
