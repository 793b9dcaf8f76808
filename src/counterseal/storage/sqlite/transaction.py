"""What is done in one transaction, and what it is done with."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from counterseal.audit import Columns, Event, Head, columns_of
from counterseal.storage.rows import Row
from counterseal.storage.sqlite.chain import Chain
from counterseal.storage.sqlite.queries import queries

__all__ = ["Awaited", "Counter", "Job", "Transaction"]

Counter = tuple[str, str, str]
"""Whose it is, of which run (of none: the tenant's own), and its name."""

_Q: Final = queries()
_RECORD: Final = _Q["record"]
_RESERVE: Final = _Q["reserve"]
_RESTS_ON: Final = _Q["rests_on"]
_SPENT: Final = _Q["spent"]
_SPEND: Final = _Q["spend"]
_ARRIVAL: Final = _Q["arrival"]
_ARRIVE: Final = _Q["arrive"]
_NO_RUN: Final[Row] = (None, None, None)


class Transaction:
    """What a job works with: statements, what is spent, and events to be put on record with it.

    Many jobs of one transaction spend from the same counters. Each is read once, and written once,
    with the events, when all jobs are done.
    """

    __slots__ = (
        "_arrivals",
        "_chain",
        "_changes",
        "_connection",
        "_heads",
        "_next",
        "_now",
        "_rests",
        "_spent",
        "_told",
        "many",
        "run",
    )

    def __init__(self, cursor: sqlite3.Cursor, chain: Chain, heads: dict[str, Head]) -> None:
        # One cursor for all, because making one costs as much as a small query. So what a query
        # finds is read to its end, or left, before the next one is asked.
        self.run = cursor.execute
        self.many = cursor.executemany
        self._next = cursor.fetchone
        self._connection = cursor.connection
        self._chain = chain
        self._heads = heads
        self._told: list[Columns] = []
        self._spent: dict[Counter, float] = {}
        self._arrivals: dict[tuple[str, str], float] = {}
        self._rests: dict[tuple[str, str], Row] = {}
        self._changes = 0
        self._now: float | None = None

    def begin(self) -> None:
        """Begin anew: for one that is used for one read after the other."""
        self._now = None

    def now(self) -> float:
        """When it happens: all of it at one moment."""
        if self._now is None:
            self._now = self._chain.clock()
        return self._now

    def one(self, query: str, values: Row) -> Row | None:
        """The first row that a query finds."""
        self.run(query, values)
        row: Row | None = self._next()
        return row

    def record(self, events: Sequence[Event]) -> None:
        """Put events on record, after all that this store has."""
        self._told += [columns_of(event) for event in events]

    def rests_on(self, tenant: str, run_id: str) -> Row:
        """What an admission rests on; see the query. Asked again after anything was changed."""
        changes, known = self._connection.total_changes, self._rests
        if changes != self._changes:
            known.clear()
            self._changes = changes
        row = known.get((tenant, run_id))
        if row is None:
            row = known[tenant, run_id] = self.one(_RESTS_ON, (tenant, run_id)) or _NO_RUN
        return row

    def reserve(self, values: Row) -> None:
        """Write a ledger's entry, on which no other admission rests."""
        known = self._connection.total_changes == self._changes
        self.run(_RESERVE, values)
        if known:
            self._changes = self._connection.total_changes

    def spent(self, counter: Counter) -> float:
        """What was spent on a counter, with what the jobs before this one have spent."""
        known = self._spent.get(counter)
        return _number(self.one(_SPENT, counter)) if known is None else known

    def arrival(self, rate: tuple[str, str]) -> float:
        """The same for a rate."""
        known = self._arrivals.get(rate)
        return _number(self.one(_ARRIVAL, rate)) if known is None else known

    def spend(
        self, counters: Mapping[Counter, float], arrivals: Mapping[tuple[str, str], float]
    ) -> None:
        """What is spent from now on."""
        self._spent.update(counters)
        self._arrivals.update(arrivals)

    def finish(self) -> None:
        """Write what all jobs have spent, and their events in their order."""
        if self._spent:
            self.many(_SPEND, [(*counter, spent) for counter, spent in self._spent.items()])
        if self._arrivals:
            self.many(_ARRIVE, [(*rate, arrival) for rate, arrival in self._arrivals.items()])
        if self._told:
            self.many(_RECORD, self._chain.linked(self._told, self._heads))


def _number(row: Row | None) -> float:
    return 0.0 if row is None else float(row[0])


class Job:
    """Something to be done in a transaction, and what came of it."""

    __slots__ = ("answer", "error", "work")

    def __init__(self, work: Callable[[Transaction], Any]) -> None:
        self.work = work
        self.answer: Any = None
        self.error: Exception | None = None


class Awaited(Job):
    """A job that somebody waits for."""

    __slots__ = ("durable", "future", "since", "vain")

    def __init__(self, work: Callable[[Transaction], Any], *, durable: bool, vain: bool) -> None:
        self.work = work
        self.answer = self.error = None
        self.durable = durable
        """Whether it must survive a loss of power from the moment that it is answered."""
        self.vain = vain
        """Whether it is in vain once nobody waits for it any more."""
        self.since = 0.0
        self.future: asyncio.Future[Any] | None = None
        """None while it is tried at once."""
