"""What is done in one transaction, and what it is done with."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, Final

from counterseal.audit import Columns, Event, Head, columns_of
from counterseal.storage.rows import Row
from counterseal.storage.sqlite.chain import Chain
from counterseal.storage.sqlite.queries import queries

__all__ = ["Awaited", "Job", "Transaction"]

_RECORD: Final = queries()["record"]


class Transaction:
    """What a job works with: statements, and events to be put on record with it."""

    __slots__ = ("_chain", "_heads", "_next", "_now", "_told", "many", "run")

    def __init__(self, cursor: sqlite3.Cursor, chain: Chain, heads: dict[str, Head]) -> None:
        # One cursor for all, because making one costs as much as a small query. So what a query
        # finds is read to its end, or left, before the next one is asked.
        self.run = cursor.execute
        self.many = cursor.executemany
        self._next = cursor.fetchone
        self._chain = chain
        self._heads = heads
        self._told: list[Columns] = []
        self._now: float | None = None

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

    def tell(self) -> None:
        """Write the events of all jobs, in their order."""
        if self._told:
            self.many(_RECORD, self._chain.linked(self._told, self._heads))


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
