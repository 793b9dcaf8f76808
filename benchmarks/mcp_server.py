"""Calls of our own tools over MCP, beside the SDK's own bare server.

Both speak streamable HTTP on loopback, each in a process of its own with uvloop and httptools, and
take turns. Ours takes each call through every gate and puts it on record in SQLite; theirs answers.
`echo` changes nothing; `note` changes something, with two durable commits.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._gateway_load import Cell
from benchmarks._gateway_parties import GATEWAY, found, gateway, script
from benchmarks._gateway_wire import LEGACY, MODERN
from benchmarks._house.environments import Unavailable
from benchmarks._house.house import House
from benchmarks._house.rows import Row
from benchmarks._servers import Served

BUSY = 32
SDK, SDK_JSON = "MCP SDK", "MCP SDK, JSON answers"
THEIRS = {SDK: "upstream", SDK_JSON: "json"}


async def bench(house: House) -> None:
    with tempfile.TemporaryDirectory(prefix="counterseal-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        house.doing("starting servers")
        those: dict[str, Served] = {GATEWAY: stack.enter_context(gateway(folder / "home"))}
        for party, which in THEIRS.items():
            try:
                start = script(folder, which, peer="mcp")
                those[party] = await asyncio.to_thread(stack.enter_context, start)
            except (Unavailable, OSError) as error:
                house.missing(party, error)
            else:
                house.versions[party] = found(party)
        for tool, revision in (("echo", MODERN), ("echo", LEGACY), ("note", MODERN)):
            await _compared(house, those, tool, revision)


async def _compared(house: House, those: dict[str, Served], tool: str, revision: str) -> None:
    cell = Cell(tool, revision, BUSY, house.pick(0.8, 0.4))
    what = {"echo": "", "note": ", a change"}[tool]
    targets = (1.0, 5.0) if tool == "echo" else (None, None)
    rows = [
        Row(
            key=f"mcp_server/{THEIRS[name]}-{tool}-{revision}",
            what=f"{name}{what}, {BUSY} in flight, {revision}",
            ours=GATEWAY,
            theirs=name,
            reach=targets[0],
            aim=targets[1],
            chart=tool == "echo" and name == SDK,
        )
        for name in THEIRS
    ]
    blocks = cell.blocks(those, GATEWAY, *THEIRS)
    await house.compare(f"{tool}, {revision}", blocks, rows, rounds=house.pick(9, 3))
    if tool == "echo" and revision == MODERN:
        row = Row(
            key="mcp_server/work", what=f"Processor time of a call: {SDK}", ours=GATEWAY, theirs=SDK
        )
        house.keep([row], cell.work)


if __name__ == "__main__":
    from benchmarks._house.command import alone

    alone("mcp_server", bench)
