"""Calls over the HTTP API, beside a JSON endpoint of Starlette that does nothing with them.

The API is `counterseal serve` in a project on SQLite or Postgres: it checks one credential and its
rate, takes each call through every gate, runs the tool and puts the call on record. `echo` is a
read; `note` is a change with two durable commits. Clients are httpx and, for saturation, wrk.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import _bare_endpoint
from benchmarks._house.house import House
from benchmarks._house.rows import Row
from benchmarks._load import HTTPX, WRK, Load, compare
from benchmarks._served_parties import api, started
from benchmarks._servers import Served, free_port, server
from tests.postgres_server import fresh_database, shared

BUSY = 32
BARE = "a bare endpoint"
STORES = ("SQLite", "Postgres")
TARGETS = {("SQLite", WRK, "echo"): (0.3, 0.4), ("SQLite", WRK, "note"): (0.15, 0.25)}
LOADS = [
    Load(client, tool, in_flight)
    for tool in ("echo", "note")
    for client, in_flight in ((WRK, BUSY), (HTTPX, BUSY), (HTTPX, 1))
]


async def bench(house: House) -> None:
    house.doing("starting Postgres")
    urls = {"SQLite": "sqlite:///bench.db", "Postgres": fresh_database(shared())}
    with tempfile.TemporaryDirectory(prefix="counterseal-bench-") as name:
        folder = Path(name)
        async with AsyncExitStack() as stack:
            starts = {BARE: partial(bare, folder)}
            starts |= {
                store: partial(api, folder / store, store=url) for store, url in urls.items()
            }
            servers = await started(house, stack, starts)
            for load in LOADS:
                await compare(house, load, servers, rows(load), folder, rounds=house.pick(7, 3))


@contextmanager
def bare(folder: Path) -> Iterator[Served]:
    port = free_port()
    command = [sys.executable, _bare_endpoint.__file__, str(port)]
    with server(command, port, folder) as served:
        yield served._replace(url=f"http://127.0.0.1:{port}/v1/calls")


def rows(load: Load) -> list[Row]:
    made = []
    for store in STORES:
        reach, aim = TARGETS.get((store, load.client, load.tool), (None, None))
        made.append(
            Row(
                key=f"http_api/{store.lower()}-{load.tool}-{load.in_flight}-{load.client}",
                what=f"A bare Starlette endpoint; a {'read' if load.tool == 'echo' else 'change'}"
                f" on {store}, {load}",
                ours=store,
                theirs=BARE,
                reach=reach,
                aim=aim,
                chart=reach is not None,
            )
        )
    return made


if __name__ == "__main__":
    from benchmarks._house.command import alone

    alone("http_api", bench)
