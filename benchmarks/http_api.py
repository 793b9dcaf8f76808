"""Calls over the HTTP API, beside a JSON endpoint of Starlette that does nothing with them.

All are served by uvicorn with uvloop, in processes of their own, over loopback, and take turns;
the API with the connections of `counterseal serve`. It checks a credential and a rate, takes each
call through every gate, runs the tool and puts it on record: in memory, or in SQLite. `echo`
changes nothing; `note` does, so that two commits are in each of its calls, durable ones in SQLite.
Each caller has a key and a connection of its own; beside it, as behind a proxy, all share them all.
With BENCH_PLAIN set, everybody has Python's own parser and event loop.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import _http_servers as servers
from benchmarks._house.house import Block, House
from benchmarks._house.rows import Row, Turn
from benchmarks._http_load import Writers, mixed_writers, spend, writers
from benchmarks._servers import free_port, server

BUSY = 32
ENOUGH = 0.5
"""How many times the requests per second of the bare endpoint are wanted, with BUSY in flight."""
BARE = "a bare endpoint"
OURS = {"memory": "the API, in memory", "sqlite": "the API, in SQLite"}
MIXED = "echo, mixed"
CELLS = (("echo", 1), ("echo", BUSY), (MIXED, BUSY), ("note", BUSY))


async def bench(house: House) -> None:
    with tempfile.TemporaryDirectory(prefix="counterseal-bench-") as name, ExitStack() as stack:
        folder, ports, keys = Path(name), {}, {BARE: ["none"]}
        for which, party in {"bare": BARE, **OURS}.items():
            house.doing(f"starting {party}")
            ports[party] = free_port()
            command = [sys.executable, servers.__file__, which, str(ports[party]), name]
            stack.enter_context(server(command, ports[party], folder))
            if which != "bare":
                keys[party] = (folder / which).read_text(encoding="ascii").split()
        for tool, in_flight in CELLS:
            blocks = {
                party: _block(port, keys[party], tool, in_flight, house.pick(0.8, 0.4))
                for party, port in ports.items()
            }
            what = f"{tool}, {in_flight} in flight"
            rounds = house.pick(9, 3)
            await house.compare(what, blocks, _rows(tool, in_flight), rounds=rounds)


def _rows(tool: str, in_flight: int) -> list[Row]:
    who = "one caller" if in_flight == 1 else f"{in_flight} in flight"
    does = {"echo": "a read", MIXED: "a read, by any caller", "note": "a change"}[tool]
    return [
        Row(
            key=f"http_api/{which}-{tool.replace(', ', '-')}-{in_flight}",
            what=f"A bare Starlette endpoint; {party}, {does}, {who}",
            ours=party,
            theirs=BARE,
            reach=ENOUGH if (tool, in_flight) == ("echo", BUSY) else None,
        )
        for which, party in OURS.items()
    ]


def _block(port: int, keys: Sequence[str], tool: str, in_flight: int, seconds: float) -> Block:
    make: Writers = mixed_writers if tool == MIXED else writers
    writes = make(port, keys, tool.partition(",")[0])

    async def block() -> Turn:
        calls, took = await spend(port, writes, in_flight, seconds)
        return Turn(took / calls, (), calls)

    return block


if __name__ == "__main__":
    from benchmarks._house.command import alone

    alone("http_api", bench)
