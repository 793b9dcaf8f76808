"""What a change costs that happens exactly once: beside the same rows written by hand.

A call that changes something is two commits, one before its tool runs and one after. Beside the
SQLite store stands a loop that writes the very same rows with two commits, for one call or for all
that are in flight; beside the Postgres store stands pgbench with the very same statements. DBOS
carries out the same function as a workflow of one step. What is compared takes turns, on one disk
and one server. A "call" goes through the runtime and all its gates.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import _ledger_postgres as postgres
from benchmarks import _ledger_sqlite as sqlite
from benchmarks._house.house import Block, House, Party
from benchmarks._ledger_calls import sample
from benchmarks._ledger_sqlite import Peers
from tests.postgres_server import bare_database, fresh_database, shared

DBOS = Path(__file__).resolve().parent / "_peers" / "dbos_steps.py"


async def bench(house: House) -> None:
    of = await sample()
    with tempfile.TemporaryDirectory(prefix="counterseal-bench-") as name:
        folder = Path(name)
        await sqlite.bench(house, folder, of, dbos(house, f"sqlite:///{folder}/dbos.db"))
        house.doing("starting Postgres")
        databases = [fresh_database(shared()) for _ in range(2)]
        theirs = dbos(house, bare_database(shared()))
        await postgres.bench(house, databases, folder, of, theirs)


def dbos(house: House, url: str) -> Peers:
    """Its turns, with so many of its workflows in flight."""

    @asynccontextmanager
    async def started(in_flight: int) -> AsyncIterator[dict[str, Block]]:
        # Its changes to SQLite wait for one another, however many there are.
        at_once = min(in_flight, 64) if url.startswith("sqlite") else in_flight
        party = Party("DBOS", DBOS, [url, str(at_once)], "dbos")
        calls = house.pick(25, 10) if in_flight == 1 else at_once
        async with AsyncExitStack() as stack:
            workers = await house.start(stack, party)
            yield {name: partial(worker.run, calls) for name, worker in workers.items()}

    return started


if __name__ == "__main__":
    from benchmarks._house.command import alone

    alone("ledger", bench)
