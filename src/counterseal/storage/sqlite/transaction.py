"""What is done in one transaction, and what it is done with."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from counterseal.audit import Event
from counterseal.storage.sqlite.queries import queries
from counterseal.storage.sqlite.rows import Row, event_row

__all__ = ["Awaited", "Job", "Transaction"]

_RECORD: Final = queries()["record"]
_LAST_EVENT: Final = queries()["last_event"]


class Transaction:
    """What a job works with: statements, and events to be put on record with it."""

    __slots__ = ("_next", "_numbers", "_told", "many", "run")

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        # One cursor for all, because making one costs as much as a small query. So what a query
        # finds is read to its end, or left, before the next one is asked.
        self.run = cursor.execute
        self.many = cursor.executemany
        self._next = cursor.fetchone
        self._numbers: dict[str, int] = {}
        self._told: list[Row] = []

    def one(self, query: str, values: Row) -> Row | None:
        """The first row that a query finds."""
        self.run(query, values)
        row: Row | None = self._next()
        return row

    def record(self, events: Sequence[Event]) -> None:
        """Put events on record, after all that their tenant has."""
        for event in events:
            tenant = event.caller.tenant
            number = self._numbers.get(tenant) or self._last_number(tenant)
            self._numbers[tenant] = number + 1
            self._told.append(event_row(event, number + 1))

    def _last_number(self, tenant: str) -> int:
        """The time in microseconds, or the last event's number if that is later."""
        row = self.one(_LAST_EVENT, (tenant,))
        last = row[0] if row else None
        return max(int(time.time() * 1e6), last or 0)

    def tell(self) -> None:
        """Write the events of all jobs, in their order."""
        if self._told:
            self.many(_RECORD, self._told)


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
