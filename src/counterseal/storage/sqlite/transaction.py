"""What is done in one transaction, and what it is done with."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from counterseal.audit import Columns, Event, Head, columns_of
from counterseal.storage.base import RunRecord
from counterseal.storage.rows import Row, read
from counterseal.storage.sqlite.chain import Chain
from counterseal.storage.sqlite.known import Counter, Known, RestsOn
from counterseal.storage.sqlite.queries import queries
from counterseal.storage.waiting import Answer

__all__ = ["Awaited", "Job", "Transaction"]

_Q: Final = queries()
_RECORD: Final = _Q["record"]
_RESTS_ON: Final = _Q["rests_on"]
_SPENT: Final = _Q["spent"]
_SPEND: Final = _Q["spend"]
_ARRIVAL: Final = _Q["arrival"]
_ARRIVE: Final = _Q["arrive"]


class Transaction:
    """What a job works with: statements, what is spent, and events to be put on record with it.

    Many jobs of one transaction spend from the same counters. Each is read once, if it is not
    known, and written once, with the events, when all jobs are done.
    """

    __slots__ = (
        "_arrivals",
        "_chain",
        "_changes",
        "_connection",
        "_heads",
        "_known",
        "_looked",
        "_next",
        "_now",
        "_spent",
        "_told",
        "many",
        "run",
    )

    def __init__(self, cursor: sqlite3.Cursor, chain: Chain, known: Known) -> None:
        # One cursor for all, because making one costs as much as a small query. So what a query
        # finds is read to its end, or left, before the next one is asked.
        self.run = cursor.execute
        self.many = cursor.executemany
        self._next = cursor.fetchone
        self._connection = cursor.connection
        self._chain = chain
        self._known = known
        self.begin({})

    def begin(self, heads: dict[str, Head]) -> None:
        """Begin anew, with the ends of the chains that this transaction has moved."""
        self._heads = heads
        self._told: list[Columns] = []
        self._spent: dict[Counter, float] = {}
        self._arrivals: dict[tuple[str, str], float] = {}
        self._now: float | None = None
        self._looked = False
        self._changes = self._connection.total_changes
        """SQLite's count of changed rows, as it is while nothing is changed that is known."""

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

    # --- what is known ----------------------------------------------------------------------------

    def known(self) -> Known:
        """What is known, as it is at this point. Ask again after anything was changed."""
        if not self._looked:
            self._known.is_current()
            self._looked = True
        if self._connection.total_changes != self._changes:
            self._forget()
        return self._known

    def keep_run(self, run: RunRecord) -> None:
        """Remember a run that was read."""
        self._known.keep(self._known.runs, (run.tenant, run.run_id), run)

    def keep_implicit(self, who: tuple[str, str, str], run_id: str, used_at: float) -> None:
        """Remember which run somebody is in."""
        self._known.keep(self._known.implicit, who, (run_id, used_at))

    def apart(self, query: str, values: Row) -> int:
        """Change nothing of what is known. How many rows were changed.

        What is changed in any other way makes this store forget all that it knows.
        """
        changed = self.run(query, values).rowcount
        self._changes += changed
        return changed

    def in_run(self, tenant: str, run_id: str, query: str, rows: Iterable[Row]) -> int:
        """Change nothing of what is known but a run, or its state. How many rows were changed."""
        self._known.forget_run(tenant, run_id)
        changed = self.many(query, rows).rowcount
        self._changes += changed
        return changed

    def _forget(self) -> None:
        self._changes = self._connection.total_changes
        self._known.forget()

    # --- what an admission asks for when it is not known ------------------------------------------

    def rests_on(self, tenant: str, run_id: str) -> RestsOn:
        """What an admission rests on; see the query."""
        epoch, pins, changes = self.one(_RESTS_ON, (tenant, run_id)) or (None, None, None)
        found = RestsOn(epoch or 0, None if pins is None else read(pins), changes or 0)
        return self._known.keep(self._known.rests_on, (tenant, run_id), found)

    def spent(self, counter: Counter) -> float:
        """What was spent on a counter, with what the jobs before this one have spent."""
        spent = self._spent.get(counter)
        if spent is None:
            spent = _number(self.one(_SPENT, counter))
        return self._known.keep(self._known.spent, counter, spent)

    def arrival(self, rate: tuple[str, str]) -> float:
        """The same for a rate."""
        arrival = self._arrivals.get(rate)
        if arrival is None:
            arrival = _number(self.one(_ARRIVAL, rate))
        return self._known.keep(self._known.arrivals, rate, arrival)

    def spend(
        self, counters: Mapping[Counter, float], arrivals: Mapping[tuple[str, str], float]
    ) -> None:
        """What is spent from now on."""
        self._spent.update(counters)
        self._arrivals.update(arrivals)
        self._known.spent.update(counters)
        self._known.arrivals.update(arrivals)

    def finish(self) -> None:
        """Write what all jobs have spent, and their events in their order."""
        if self._connection.total_changes != self._changes:
            self._forget()
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

    __slots__ = ("answer", "error", "told", "work")

    def __init__(self, work: Callable[[Transaction], Any]) -> None:
        self.work = work
        self.answer: Any = None
        self.error: Exception | None = None
        self.told: Answer | None = None
        """Who is told. None where nobody waits, and while it is tried at once."""


class Awaited(Job):
    """A job that somebody waits for."""

    __slots__ = ("durable", "since", "vain")

    def __init__(self, work: Callable[[Transaction], Any], *, durable: bool, vain: bool) -> None:
        self.work = work
        self.answer = self.error = self.told = None
        self.durable = durable
        """Whether it must survive a loss of power from the moment that it is answered."""
        self.vain = vain
        """Whether it is in vain once nobody waits for it any more."""
        self.since = 0.0
