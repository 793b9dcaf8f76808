"""Load on servers that are measured: by a stock client in a process of its own, or by wrk.

A comparison starts one client for each server, all alike, and lets them take turns. Beside the time
of a call stands the processor time that the server spent on it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import _clients
from benchmarks._house.house import Block, House, Party
from benchmarks._house.rows import Row, Turn
from benchmarks._servers import Served
from benchmarks._wrk import TEXT, saturate

MODERN, LEGACY = "2026-07-28", "2025-11-25"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
HTTPX, SDK_CLIENT, AGENTS_CLIENT, WRK = "httpx", "the MCP SDK's client", "OpenAI Agents", "wrk"
ENVIRONMENTS = {HTTPX: ("httpx", None), SDK_CLIENT: ("mcp", "mcp")}
ENVIRONMENTS |= {AGENTS_CLIENT: ("openai-agents", "openai-agents")}
"""Clients: the name that `_clients.py` has for each, and the environment it runs in."""


class Load(NamedTuple):
    """One client, one tool, so many calls at once."""

    client: str
    tool: str
    in_flight: int
    revision: str = MODERN

    def __str__(self) -> str:
        callers = "one caller" if self.in_flight == 1 else f"{self.in_flight} in flight"
        return f"{callers}, {self.client}"


async def compare(
    house: House,
    load: Load,
    servers: Mapping[str, Served],
    rows: Sequence[Row],
    folder: Path,
    *,
    rounds: int,
) -> None:
    """Measure the servers in turns under a load, and keep the rows."""
    work: defaultdict[str, list[Turn]] = defaultdict(list)
    async with AsyncExitStack() as stack:
        blocks = await _blocks(house, stack, load, servers, folder)
        measured = {
            name: partial(_with_cpu, block, servers[name], work[name])
            for name, block in blocks.items()
        }
        await house.compare(f"{load.tool}, {load}", measured, rows, rounds=rounds)
    processor = [
        Row(
            key=f"{row.key}-cpu",
            what=f"Server's processor time: {row.what}",
            ours=row.ours,
            theirs=row.theirs,
            better=row.better,
        )
        for row in rows
        if row.chart or row.reach
    ]
    house.keep(processor, {name: turns for name, turns in work.items() if turns})


async def _with_cpu(block: Block, served: Served, work: list[Turn]) -> Turn:
    before = served.cpu()
    turn = await block()
    work.append(Turn(max(served.cpu() - before, 1e-9) / turn.calls))
    return turn


async def _blocks(
    house: House, stack: AsyncExitStack, load: Load, servers: Mapping[str, Served], folder: Path
) -> dict[str, Block]:
    if load.client == WRK:
        return {
            name: partial(
                saturate,
                served.url,
                *_request(served, load),
                in_flight=load.in_flight,
                folder=folder,
            )
            for name, served in servers.items()
        }
    client, environment = ENVIRONMENTS[load.client]
    parties = []
    for name, served in servers.items():
        words = [client, served.url, "--in-flight", str(load.in_flight)]
        words += ["--tool", served.tools + load.tool, "--revision", load.revision]
        key = served.headers.get("Authorization", "").removeprefix("Bearer ")
        words += ["--key", key] if key else []
        parties.append(Party(name, Path(_clients.__file__), words, environment))
    versions = dict(house.versions)
    workers = await house.start(stack, *parties)
    house.versions = versions  # of the servers, not of the client
    calls = house.pick(24, 8) if load.in_flight == 1 else load.in_flight * house.pick(8, 3)
    return {name: partial(worker.run, calls) for name, worker in workers.items()}


def _request(served: Served, load: Load) -> tuple[dict[str, str], Any]:
    """Return headers and body of one call: over MCP in one stateless request, or of `/v1`."""
    tool, arguments = served.tools + load.tool, {"text": TEXT}
    if served.url.endswith("/v1/calls"):
        return dict(served.headers), {"tool": tool, "arguments": arguments}
    headers = {
        **served.headers,
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": MODERN,
        "Mcp-Method": "tools/call",
        "Mcp-Name": tool,
    }
    params = {"name": tool, "arguments": arguments, "_meta": META}
    return headers, {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
