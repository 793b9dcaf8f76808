"""Calls through the gateway, beside other proxies of the same upstream, and beside no proxy.

All speak streamable HTTP on loopback, each in a process of its own: the gateway, which takes each
call through every gate and onto the record; FastMCP's proxy with its defaults, which connects anew
for every request, and over one connection; IBM ContextForge with its defaults, and with stateful
sessions; the upstream itself. They take turns. `echo` is a read; `slow` takes 20 ms; `note` is a
change, so that each of the gateway's calls has two durable commits. The client is the MCP SDK's.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._house.house import House
from benchmarks._house.rows import Row
from benchmarks._load import LEGACY, MODERN, SDK_CLIENT, Load, compare
from benchmarks._served_parties import (
    DIRECT,
    FASTMCP,
    FASTMCP_SHARED,
    FORGE,
    FORGE_STATEFUL,
    GATEWAY,
    parties,
)

BUSY = 32
PROXIES = {  # party: its name in a row's key, and the ratios to reach and to aim at
    FASTMCP: ("fastmcp", None, None),
    FASTMCP_SHARED: ("fastmcp-shared", 2.0, 5.0),
    FORGE: ("contextforge", None, None),
    FORGE_STATEFUL: ("contextforge-stateful", 10.0, 25.0),
}
LOADS = (
    Load(SDK_CLIENT, "echo", BUSY, LEGACY),
    Load(SDK_CLIENT, "echo", BUSY, MODERN),
    Load(SDK_CLIENT, "note", BUSY, LEGACY),
)
ADDED = (  # what the gateway adds to one caller's call
    ("slow", "An upstream of 20 ms without the gateway", 1.15, 1.05),
    ("echo", "An instant upstream without the gateway", 4.0, 2.0),
)


async def bench(house: House) -> None:
    with tempfile.TemporaryDirectory(prefix="counterseal-bench-") as name:
        folder = Path(name)
        async with AsyncExitStack() as stack:
            servers = await parties(house, stack, folder)
            for load in LOADS:
                # ContextForge does not speak the newer revision, and is slow: one load is enough.
                shown = {
                    party: servers[party]
                    for party in (GATEWAY, *PROXIES)
                    if party in servers and (load == LOADS[0] or "ContextForge" not in party)
                }
                rounds = house.pick(5, 2)
                await compare(house, load, shown, rows(load), folder, rounds=rounds)
            for tool, what, reach, aim in ADDED:
                load = Load(SDK_CLIENT, tool, 1)
                row = Row(
                    key=f"gateway/direct-{tool}",
                    what=f"{what}, {load}",
                    ours=GATEWAY,
                    theirs=DIRECT,
                    better="lower",
                    reach=reach,
                    aim=aim,
                    chart=True,
                )
                shown = {party: servers[party] for party in (GATEWAY, DIRECT) if party in servers}
                await compare(house, load, shown, [row], folder, rounds=house.pick(9, 4))


def rows(load: Load) -> list[Row]:
    read = load.tool == "echo"
    return [
        Row(
            key=f"gateway/{key}-{load.tool}-{load.revision}",
            what=f"{party}; a {'read' if read else 'change'}, {load} ({load.revision})",
            ours=GATEWAY,
            theirs=party,
            reach=reach if read else None,
            aim=aim if read else None,
            chart=read and load.revision == LEGACY,
        )
        for party, (key, reach, aim) in PROXIES.items()
    ]


if __name__ == "__main__":
    from benchmarks._house.command import alone

    alone("gateway", bench)
