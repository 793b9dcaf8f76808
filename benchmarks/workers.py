"""Several workers on one Postgres, beside one worker: what a change costs, and how many there are.

Every worker is a process with a runtime of its own; they share one database, as gateways do. Each
has 32 calls in flight, all of a tool that changes something: gates, two commits, its events. Beside
them stands pgbench, which sends the statements of such a call one by one. All take turns.

Where the server runs here, on Linux, the processor's time of a call is told as well, of the workers
and of the server together: that, unlike a rate, hardly depends on who else is at work here.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import asyncpg

from benchmarks import _ledger_postgres as by_hand
from benchmarks._house.house import Block, House, Party
from benchmarks._house.rows import Row, Turn
from benchmarks._house.workers import Worker, together
from benchmarks._ledger_calls import ready, sample, slots
from counterseal.storage import open_store
from tests.postgres_server import fresh_database, shared

IN_FLIGHT = 32
MANY = 4
FLAT = 1.2
ONE = Path(__file__).resolve().parent / "_workers_one.py"
PGBENCH = "pgbench, same statements"


def named(number: int) -> str:
    return "1 worker" if number == 1 else f"{number} workers"


async def bench(house: House) -> None:
    house.doing("starting Postgres")
    mine, others = (fresh_database(shared()) for _ in range(2))
    work: defaultdict[str, list[Turn]] = defaultdict(list)
    calls = house.pick(4096, 1024)
    async with AsyncExitStack() as stack:
        connection = await asyncpg.connect(mine)
        stack.push_async_callback(connection.close)
        parties = [
            Party(f"worker {n + 1}", ONE, [mine, str(n), str(IN_FLIGHT)]) for n in range(MANY)
        ]
        workers = list((await house.start(stack, *parties)).values())
        blocks: dict[str, Block] = {
            named(number): partial(_turn, workers[:number], connection, calls, work[named(number)])
            for number in (1, 2, MANY)
        }
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="counterseal-bench-")))
        blocks[PGBENCH] = await _pgbench(others, folder, calls)
        await house.compare("workers", blocks, _rows(), rounds=house.pick(9, 3))
        if all(turn.value for turn in work[named(MANY)]):
            house.keep(_work(), work)


def _rows() -> list[Row]:
    one, many = named(1), named(MANY)
    return [
        Row(
            key="workers/rate",
            what=f"{many} on one Postgres beside {one}: calls together",
            ours=many,
            theirs=one,
            better="lower",
            reach=FLAT,
        ),
        Row(
            key="workers/pgbench",
            what=f"{many}, {IN_FLIGHT} in flight each: {PGBENCH}, {IN_FLIGHT} in flight",
            ours=many,
            theirs=PGBENCH,
        ),
    ]


def _work() -> list[Row]:
    return [
        Row(
            key="workers/cost",
            what=f"{named(MANY)} on one Postgres beside {named(1)}: processor time of a call",
            ours=named(MANY),
            theirs=named(1),
            better="lower",
            reach=FLAT,
            chart=True,
        )
    ]


async def _turn(workers: Sequence[Worker], connection: Any, calls: int, work: list[Turn]) -> Turn:
    before = await _server(connection)
    turn = await together(workers, calls // len(workers))
    spent = await _server(connection) - before + sum(one.told["cpu"] for one in workers)
    work.append(Turn(spent / turn.calls, (), turn.calls))
    return turn


async def _server(connection: Any) -> float:
    """Seconds of a processor that the server's processes have taken so far."""
    backends = await connection.fetch("SELECT pid FROM pg_stat_activity")
    return sum(_processor(row[0]) for row in backends)


def _processor(pid: int) -> float:
    """Seconds that a process has used; 0 where that can't be seen from here."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / float(os.sysconf("SC_CLK_TCK"))


async def _pgbench(url: str, folder: Path, calls: int) -> Block:
    of = await sample()
    heard = await by_hand.overhear(url, of)
    store = open_store(url)
    await ready(store, slots(IN_FLIGHT, tenants=True), of)
    await store.close()
    script = folder / "statements.sql"
    script.write_text(by_hand.Script(heard, tenants=True).same_statements(), encoding="utf-8")
    return by_hand.by_pgbench(url, heard, script, IN_FLIGHT, calls)


if __name__ == "__main__":
    from benchmarks._house.command import alone

    alone("workers", bench)
