"""Calls of our own tools over MCP, beside a bare server of the MCP SDK.

Both speak streamable HTTP on loopback, each in a process of its own. Ours is `counterseal serve` on
SQLite: it takes each call through every gate and puts it on record; theirs answers. `echo` is a
read; `note` is a change with two durable commits. Clients are the MCP SDK's, that of the OpenAI
Agents SDK, and, for saturation of the stateless revision, wrk.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._house.house import House
from benchmarks._house.rows import Row
from benchmarks._load import AGENTS_CLIENT, LEGACY, MODERN, SDK_CLIENT, WRK, Load, compare
from benchmarks._served_parties import GATEWAY, gateway, script, started

BUSY = 32
SDK, SDK_JSON = "MCP SDK", "MCP SDK, JSON answers"
THEIRS = {SDK: "upstream", SDK_JSON: "json"}
LOADS = (
    Load(SDK_CLIENT, "echo", BUSY, MODERN),
    Load(SDK_CLIENT, "echo", BUSY, LEGACY),
    Load(SDK_CLIENT, "note", BUSY, MODERN),
    Load(SDK_CLIENT, "echo", 1, MODERN),
    Load(AGENTS_CLIENT, "echo", BUSY, LEGACY),
    Load(WRK, "echo", BUSY, MODERN),
    Load(WRK, "note", BUSY, MODERN),
)


async def bench(house: House) -> None:
    with tempfile.TemporaryDirectory(prefix="counterseal-bench-") as name:
        folder = Path(name)
        async with AsyncExitStack() as stack:
            starts = {GATEWAY: partial(gateway, folder / "home")}
            starts |= {
                party: partial(script, folder, which, peer="mcp") for party, which in THEIRS.items()
            }
            servers = await started(house, stack, starts)
            for load in LOADS:
                await compare(house, load, servers, rows(load), folder, rounds=house.pick(7, 3))


def rows(load: Load) -> list[Row]:
    reach, aim = (1.0, 2.0) if load == Load(WRK, "echo", BUSY, MODERN) else (None, None)
    return [
        Row(
            key=f"mcp_server/{which}-{load.tool}-{load.in_flight}-{load.revision}"
            f"-{load.client.split()[0]}",
            what=f"{party}; a {'read' if load.tool == 'echo' else 'change'}, {load}"
            f" ({load.revision})",
            ours=GATEWAY,
            theirs=party,
            reach=reach if party == SDK else None,
            aim=aim if party == SDK else None,
            chart=load.tool == "echo" and load.client == SDK_CLIENT and party == SDK,
        )
        for party, which in THEIRS.items()
    ]


if __name__ == "__main__":
    from benchmarks._house.command import alone

    alone("mcp_server", bench)
