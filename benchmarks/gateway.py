"""Calls through the gateway, beside others before the same upstream, and beside no proxy at all.

Everybody speaks streamable HTTP on loopback and has a process of their own: the gateway, which
takes each call through every gate and onto record; FastMCP's proxy as it comes, which connects anew
for every request, and over one connection; IBM ContextForge as it comes, and with sessions that it
keeps; the upstream itself. They take turns. `echo` changes nothing; `slow` takes 20 ms; `note`
changes something, so that two durable commits are in each of the gateway's calls.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._gateway_load import Cell
from benchmarks._gateway_parties import (
    DIRECT,
    FASTMCP,
    FASTMCP_SHARED,
    FORGE,
    FORGE_STATEFUL,
    GATEWAY,
    parties,
)
from benchmarks._gateway_wire import LEGACY, MODERN
from benchmarks._house.house import House
from benchmarks._house.rows import Row
from benchmarks._servers import Served

BUSY = 32
AS_THEY_COME, FASTEST = 20.0, 3.0
"""How many times their calls a second are wanted."""
PROXIES = {
    "fastmcp": (FASTMCP, AS_THEY_COME),
    "fastmcp-shared": (FASTMCP_SHARED, FASTEST),
    "contextforge": (FORGE, AS_THEY_COME),
    "contextforge-stateful": (FORGE_STATEFUL, FASTEST),
}


async def bench(house: House) -> None:
    with tempfile.TemporaryDirectory(prefix="counterseal-bench-") as name:
        async with AsyncExitStack() as stack:
            those = await parties(house, stack, Path(name))
            await _rates(house, those)
            await _times(house, those)


async def _rates(house: House, those: dict[str, Served]) -> None:
    """Calls a second, with many in flight, over a client that holds nothing up."""
    seconds, rounds = house.pick(0.8, 0.4), house.pick(7, 2)
    for tool, revision in (("echo", LEGACY), ("echo", MODERN), ("note", LEGACY)):
        # ContextForge does not speak the newer revision, and is slow enough to be asked once.
        shown = {
            key: (name, goal)
            for key, (name, goal) in PROXIES.items()
            if (tool, revision) == ("echo", LEGACY) or not name.startswith("ContextForge")
        }
        rows = [_row(key, name, goal, tool, revision) for key, (name, goal) in shown.items()]
        cell = Cell(tool, revision, BUSY, seconds)
        blocks = cell.blocks(those, DIRECT, GATEWAY, *(name for name, _ in shown.values()))
        await house.compare(f"{tool}, {revision}", blocks, rows, rounds=rounds)
        if len(shown) == len(PROXIES):
            house.keep(
                [
                    Row(
                        key=f"gateway/work-{key}",
                        what=f"Processor time of a call: {name}",
                        ours=GATEWAY,
                        theirs=name,
                    )
                    for key, (name, _) in shown.items()
                ],
                cell.work,
            )


def _row(key: str, name: str, goal: float, tool: str, revision: str) -> Row:
    reads = tool == "echo"
    newest = LEGACY if name.startswith("ContextForge") else MODERN
    return Row(
        key=f"gateway/{key}-{tool}-{revision}",
        what=f"{name}{'' if reads else ', a change'}, {BUSY} in flight, {revision}",
        ours=GATEWAY,
        theirs=name,
        reach=goal if reads else None,
        chart=reads and revision == newest,
    )


async def _times(house: House, those: dict[str, Served]) -> None:
    """What the gateway adds to one caller's call."""
    for tool, what, reach, aim in (
        ("slow", "an upstream of 20 ms", 1.3, None),
        ("echo", "an instant upstream", None, 1.2),
    ):
        row = Row(
            key=f"gateway/direct-{tool}",
            what=f"{what[0].upper()}{what[1:]} without the gateway, one caller",
            ours=GATEWAY,
            theirs=DIRECT,
            better="lower",
            reach=reach,
            aim=aim,
            chart=True,
        )
        blocks = Cell(tool, MODERN, 1, house.pick(0.8, 0.4)).blocks(those, DIRECT, GATEWAY)
        await house.compare(f"{tool}, one caller", blocks, [row], rounds=house.pick(11, 5))


if __name__ == "__main__":
    from benchmarks._house.command import alone

    alone("gateway", bench)
