"""The SQLite store beside loops that write the same rows by hand."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, closing
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks._house.house import Block, House
from benchmarks._house.rows import Turn
from benchmarks._ledger_calls import (
    KEYS,
    Call,
    Found,
    Slot,
    Write,
    copies,
    new_call_id,
    new_key,
    proposed,
    ready,
    runtime_on,
    slots,
    written,
)
from benchmarks._ledger_turns import crowd, faster, slower
from counterseal import Principal, Proposal
from counterseal.ledger.rows import new_pointer
from counterseal.storage import Store, open_store

ALONE = (1.5, 1.2)
"""How many times as long as by hand one call may take, and what is aimed at."""
CROWD = 512
QUIET = 0.15
"""Seconds after which the store has copied its log, so that nobody else has to wait for that."""
Peers = Callable[[int], AbstractAsyncContextManager[Mapping[str, Block]]]
"""Starts others for a comparison with so many calls in flight, and gives their turns."""
SETTINGS = ("synchronous = FULL", "cache_size = -16384", "temp_store = MEMORY")
"""As the store has them. The log is copied into the file when SQLite does so by itself."""
SELDOM = "wal_autocheckpoint = 8000"
"""Pages after which it is copied instead, so that it is as seldom as the store does it."""
HANDS = ("same", "least", "seldom")
"""The loops: all rows; the ledger's alone; all rows, with that setting."""

Rows = Sequence[tuple[str, list[tuple[Any, ...]]]]
"""Statements, each with all that it is run with."""


async def opened(path: Path, where: Sequence[Slot], of: Call) -> Store:
    store = open_store(f"sqlite:///{path}")
    await ready(store, where, of)
    return store


def found(path: Path) -> Found:
    with closing(sqlite3.connect(path)) as db, db:
        db.row_factory = sqlite3.Row
        return {name: [dict(row) for row in db.execute(f"SELECT * FROM {name}")] for name in KEYS}  # noqa: S608 - names from above


async def one_call(folder: Path, of: Call) -> tuple[list[Write], list[Write]]:
    """Which rows a call writes before and after its tool runs."""
    path, where = folder / "one.db", slots(1)
    store = await opened(path, where, of)
    (call,) = copies(of, where, 1)
    before = found(path)
    await store.admit(call.admit)
    between = found(path)
    await store.settle(call.settle)
    after = found(path)
    await store.close()
    return written(before, between), written(between, after)


class ByHand:
    """A loop over the same rows: two commits for a call, or two for many calls."""

    def __init__(
        self, path: Path, where: Sequence[Slot], writes: Sequence[list[Write]], *more: str
    ) -> None:
        self._slots = where
        self._writes = writes
        self._numbers = count(1)
        self._db = sqlite3.connect(path, isolation_level=None, cached_statements=256)
        for setting in (*SETTINGS, *more):
            self._db.execute(f"PRAGMA {setting}")

    def calls(self, number: int) -> Iterator[list[Rows]]:
        """The rows of so many calls, each before and after."""
        for n in range(number):
            own = {**self._slots[n % len(self._slots)]._asdict()}
            call_id = new_call_id()
            own.update(key=new_key(), call_id=call_id, segment="by hand")
            own["pointer"] = new_pointer(call_id, time.time())
            yield [self._rows(writes, own) for writes in self._writes]

    def _rows(self, writes: list[Write], own: dict[str, Any]) -> Rows:
        rows: dict[str, list[tuple[Any, ...]]] = {}
        for write in writes:
            # Others each time: SQLite does not write what is there already.
            number = next(self._numbers)
            mine = {**own, "number": number, "spent": float(number), "arrival": float(number)}
            values = [mine.get(name, value) for name, value in write.values.items()]
            place = [mine.get(name, value) for name, value in write.where.items()]
            rows.setdefault(_statement(write), []).append((*values, *place))
        return list(rows.items())

    def commit(self, rows: Rows) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        for statement, values in rows:
            if len(values) == 1:
                self._db.execute(statement, values[0])
            else:
                self._db.executemany(statement, values)
        self._db.execute("COMMIT")

    def close(self) -> None:
        self._db.close()


def _statement(write: Write) -> str:
    names = list(write.values)
    if not write.where:
        marks = ", ".join("?" * len(names))
        return f"INSERT INTO {write.table} ({', '.join(names)}) VALUES ({marks})"  # noqa: S608 - names from the schema
    change = ", ".join(f"{name} = ?" for name in names)
    place = " AND ".join(f"{name} = ?" for name in write.where)
    return f"UPDATE {write.table} SET {change} WHERE {place}"  # noqa: S608 - as above


def least(writes: list[Write]) -> list[Write]:
    """No more than the ledger's row."""
    return [write for write in writes if write.table == "ledger"]


def gathered(calls: Sequence[Rows]) -> Rows:
    """Many calls' rows as one: a row that several change is written once."""
    rows: dict[str, dict[Any, tuple[Any, ...]]] = {}
    for call in calls:
        for statement, values in call:
            marks = statement.partition("WHERE")[2].count("?")
            for value in values:
                kept = rows.setdefault(statement, {})
                kept[value[-marks:] if marks else len(kept)] = value
    return [(statement, list(values.values())) for statement, values in rows.items()]


# --- blocks ---------------------------------------------------------------------------------------


def on_store(store: Store, of: Call, where: Sequence[Slot], number: int) -> Block:
    """Calls that the store alone is asked for, by as many callers as there are slots."""

    async def block() -> Turn:
        calls = copies(of, where, number)
        turn = await crowd([calls[n :: len(where)] for n in range(len(where))], do)
        await asyncio.sleep(QUIET)
        return turn

    async def do(call: Call) -> None:
        await call.on(store)

    return block


def through_runtime(store: Store, where: Sequence[Slot], number: int) -> Block:
    """The same, through every gate."""
    runtime = runtime_on(store)

    async def do(asked: tuple[Proposal, Principal]) -> None:
        seen = await runtime.submit(*asked)
        if not seen.ok:
            sys.exit(f"a call was refused: {seen.for_model()}")

    async def block() -> Turn:
        each = [[proposed(slot) for _ in range(number // len(where))] for slot in where]
        turn = await crowd(each, do)
        await asyncio.sleep(QUIET)
        return turn

    return block


def by_hand(hand: ByHand, number: int) -> Block:
    """One call after the other."""

    async def do(call: Sequence[Rows]) -> None:
        for rows in call:
            hand.commit(rows)

    async def block() -> Turn:
        return await crowd([list(hand.calls(number))], do)

    return block


def by_hand_at_once(hand: ByHand, number: int, crowded: int) -> Block:
    """So many calls with every commit."""

    async def block() -> Turn:
        calls = list(hand.calls(number))
        some = [calls[n : n + crowded] for n in range(0, number, crowded)]
        # The way that rows take from callers into a batch is not part of it.
        commits = [gathered([call[n] for call in group]) for group in some for n in (0, 1)]
        began = time.perf_counter()
        for rows in commits:
            hand.commit(rows)
        return Turn((time.perf_counter() - began) / number, (), number)

    return block


def bare_disk(path: Path, number: int) -> Block:
    """Two small writes that wait for the disk, in a file that has its size already."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.pwrite(file, bytes(1 << 20), 0)
    os.fsync(file)
    sync = getattr(os, "fdatasync", os.fsync)

    async def block() -> Turn:
        began = time.perf_counter()
        for n in range(2 * number):
            os.pwrite(file, os.urandom(4096), n % 256 * 4096)
            sync(file)
        return Turn((time.perf_counter() - began) / number, (), number)

    return block


# --- readings -------------------------------------------------------------------------------------


async def bench(house: House, folder: Path, of: Call, peers: Peers) -> None:
    writes = await one_call(folder, of)
    for in_flight, compared in ((1, _alone), (CROWD, _crowded)):
        async with peers(in_flight) as theirs:
            await compared(house, folder, of, writes, theirs)


async def _sides(
    folder: Path, of: Call, where: Sequence[Slot], writes: Sequence[list[Write]]
) -> tuple[list[Store], list[ByHand]]:
    """Two stores and the loops, each with a file of its own that begins alike."""
    names = ("runtime", "store")
    stores = [await opened(folder / f"{name}_{len(where)}.db", where, of) for name in names]
    hands = []
    for name in HANDS:
        path = folder / f"{name}_{len(where)}.db"
        await (await opened(path, where, of)).close()
        which = [least(one) for one in writes] if name == "least" else writes
        hands.append(ByHand(path, where, which, *((SELDOM,) if name == "seldom" else ())))
    return stores, hands


async def _alone(
    house: House,
    folder: Path,
    of: Call,
    writes: Sequence[list[Write]],
    theirs: Mapping[str, Block],
) -> None:
    where, number = slots(1), house.pick(300, 100)  # the log is copied once in a turn
    stores, hands = await _sides(folder, of, where, writes)
    blocks = {
        "call": through_runtime(stores[0], where, number),
        "store": on_store(stores[1], of, where, number),
        "same rows by hand": by_hand(hands[0], number),
        "ledger's row by hand": by_hand(hands[1], number),
        "log copied as seldom": by_hand(hands[2], number),
        "two bare syncs": bare_disk(folder / "bare", number),
        **theirs,
    }
    rows = [
        slower(
            "one", "SQLite, one caller: the same two commits by hand", "same rows by hand", ALONE
        ),
        slower("one-store", "  of it the store alone", "same rows by hand", ALONE, ours="store"),
        slower("one-seldom", "  beside one that copies its log as seldom", "log copied as seldom"),
        slower(
            "one-least", "SQLite, one caller: only the ledger's row by hand", "ledger's row by hand"
        ),
        slower("one-disk", "SQLite, one caller: two bare syncs of the disk", "two bare syncs"),
        *(faster(f"one-{name}", f"SQLite, one caller: {name}", name) for name in theirs),
    ]
    await house.compare("SQLite, one caller", blocks, rows, rounds=house.pick(15, 5))
    await _close(stores, hands)


async def _crowded(
    house: House,
    folder: Path,
    of: Call,
    writes: Sequence[list[Write]],
    theirs: Mapping[str, Block],
) -> None:
    where, number = slots(CROWD), house.pick(16, 4) * CROWD  # as above
    stores, hands = await _sides(folder, of, where, writes)
    blocks = {
        "call": through_runtime(stores[0], where, number),
        "store": on_store(stores[1], of, where, number),
        "gathered by hand": by_hand_at_once(hands[0], number, CROWD),
        "log copied as seldom": by_hand_at_once(hands[2], number, CROWD),
        **theirs,
    }
    called, by = f"SQLite, {CROWD} in flight", "gathered by hand"
    rows = [
        faster("many", f"{called}: a group commit by hand", by, 0.5, 0.7),
        faster("many-store", "  of it the store alone", by, 0.5, 0.7, ours="store"),
        faster("many-seldom", "  beside one that copies its log as seldom", "log copied as seldom"),
        *(faster(f"many-{name}", f"{called}: {name}", name) for name in theirs),
    ]
    await house.compare(called, blocks, rows, rounds=house.pick(9, 3))
    await _close(stores, hands)


async def _close(stores: Sequence[Store], hands: Sequence[ByHand]) -> None:
    for store in stores:
        await store.close()
    for hand in hands:
        hand.close()
