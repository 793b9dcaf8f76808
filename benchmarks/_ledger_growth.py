"""Does a call cost more when there have been a million? The same store, nearly empty and full.

What is there already was settled long ago: entries with their answers, and the events of each, as
one call leaves them, under keys and numbers in the order of time: ten calls of each run.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks._house.house import House
from benchmarks._house.rows import Row
from benchmarks._ledger_calls import Call, Slot, copies, ready, slots
from benchmarks._ledger_postgres import found as found_in_postgres
from benchmarks._ledger_sqlite import CROWD, on_store, opened
from benchmarks._ledger_sqlite import found as found_in_sqlite
from counterseal.storage import open_store

TARGET = 1.2
FEW = 1_000
CHUNK = 50_000
"""How many rows are loaded at once."""


class Past:
    """Statements that write the rows of calls from long ago, counted by `g`."""

    def __init__(self, rows: Mapping[str, Sequence[Mapping[str, Any]]], call: Call) -> None:
        key = call.settle.entry.key if call.settle.entry else ""
        self.entry = next(row for row in rows["ledger"] if row["key"] == key)
        mine = self.entry["call_id"]
        self.events = [row for row in rows["events"] if row["call_id"] == mine]

    def statements(self, key: str, call_id: str, run_id: str, numbers: str, mark: str) -> list[Any]:
        """(statement, values) of one table after the other; the first three are expressions."""
        own = {"key": key, "call_id": call_id, "segment": "'past'", "run_id": run_id}
        made = []
        for number, row in enumerate([self.entry, *self.events]):
            table = "events" if number else "ledger"
            mine = {**own, "number": f"g * 4 + {number}"}
            given = [value for name, value in row.items() if name not in mine]
            marks = iter(range(1, len(given) + 1))
            what = ", ".join(mine.get(name) or mark.format(next(marks)) for name in row)
            made.append(
                (f"INSERT INTO {table} ({', '.join(row)}) SELECT {what} FROM ({numbers})", given)  # noqa: S608 - names from the schema
            )
        return made


# --- SQLite ---------------------------------------------------------------------------------------


async def _fill_sqlite(path: Path, of: Call, where: Sequence[Slot], size: int) -> None:
    store = await opened(path, where, of)
    (call,) = copies(of, where, 1)
    await call.on(store)
    await store.close()
    past = Past(found_in_sqlite(path), call)
    numbers = (
        "WITH RECURSIVE each (g) AS (SELECT ? UNION ALL SELECT g + 1 FROM each WHERE g < ?)"
        " SELECT g FROM each"
    )
    key = "printf('run:%011x', g / 10) || lower(hex(randomblob(32)))"
    run_id = "printf('run_%024x', g / 10)"
    statements = past.statements(key, "printf('call_%024x', g)", run_id, numbers, "?")
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA synchronous = OFF")
        db.execute("PRAGMA cache_size = -262144")
        for begin in range(0, size, CHUNK):
            db.execute("BEGIN")
            for statement, given in statements:
                db.execute(statement, (*given, begin + 1, min(begin + CHUNK, size)))
            db.execute("COMMIT")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


async def sqlite(house: House, folder: Path, of: Call, many: int) -> None:
    paths = {size: folder / f"grown_{size}.db" for size in (FEW, many)}
    where = slots(CROWD)
    for size, path in paths.items():
        house.doing(f"writing {size:,} calls into SQLite")
        await _fill_sqlite(path, of, where, size)
    urls = {size: f"sqlite:///{path}" for size, path in paths.items()}
    await _compared(house, "SQLite", urls, of, {1: 300, CROWD: 16 * CROWD})
    for path in paths.values():
        path.unlink()


# --- Postgres -------------------------------------------------------------------------------------


async def _fill_postgres(url: str, of: Call, where: Sequence[Slot], size: int) -> None:
    store = open_store(url)
    await ready(store, where, of)
    (call,) = copies(of, where, 1)
    await call.on(store)
    await store.close()
    past = Past(await found_in_postgres(url), call)
    statements = past.statements(
        "'run:' || lpad(to_hex(g / 10), 11, '0') || md5(g::text) || md5((-g)::text)",
        "'call_' || lpad(to_hex(g), 24, '0')",
        "'run_' || lpad(to_hex(g / 10), 24, '0')",
        f"SELECT * FROM generate_series(1::bigint, {int(size)}) AS s (g)",  # noqa: S608 - a number
        "${}",
    )
    connection = await asyncpg.connect(url)
    try:
        for statement, given in statements:
            await connection.execute(f"{statement} AS numbers", *given, timeout=1800)
        await connection.execute("VACUUM ANALYZE", timeout=1800)
        await connection.execute("CHECKPOINT", timeout=1800)
    finally:
        await connection.close()


async def postgres(house: House, databases: Sequence[str], of: Call, many: int) -> None:
    urls = dict(zip((FEW, many), databases, strict=True))
    for size, url in urls.items():
        house.doing(f"writing {size:,} calls into Postgres")
        await _fill_postgres(url, of, slots(32), size)
    await _compared(house, "Postgres", urls, of, {1: 200, 32: 3072})


async def _compared(
    house: House, called: str, urls: Mapping[int, str], of: Call, calls: Mapping[int, int]
) -> None:
    few, many = urls
    stores = {size: open_store(url) for size, url in urls.items()}
    names = {size: f"{size:,} calls" for size in urls}
    for in_flight, number in calls.items():
        where = slots(in_flight)
        blocks = {names[size]: on_store(store, of, where, number) for size, store in stores.items()}
        who = "one caller" if in_flight == 1 else f"{in_flight} in flight"
        row = Row(
            key=f"growth/{called.lower()}-{in_flight}-{many}",
            what=f"{called}, {who}: after {many:,} calls beside after {few:,}",
            ours=names[many],
            theirs=names[few],
            better="lower",
            reach=TARGET,
            chart=in_flight > 1,
        )
        await house.compare(f"{called}, {many:,} calls", blocks, [row], rounds=house.pick(11, 5))
    for store in stores.values():
        await store.close()
