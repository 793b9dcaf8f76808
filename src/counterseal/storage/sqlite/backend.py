"""The back-end of the store on one SQLite file.

Rows that another process can change are used from memory only while SQLite says that no other
connection has committed since (`ReadCache`). Every other answer is read from the file.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from counterseal.audit import columns_of
from counterseal.audit.chain import Checkpoint, micros
from counterseal.audit.events import erasure_event
from counterseal.errors import StoreError
from counterseal.ledger.due_work import claimed_due, claimed_entry
from counterseal.ledger.records import Due
from counterseal.ledger.requests import Claim, ExpiryRequest, StoredEntry
from counterseal.ledger.rows import LONGEST_LEASE, RowKeys, Rows, TenantKey
from counterseal.storage.backend import Addition, Transaction, appending
from counterseal.storage.encoding import checkpoint_columns, due_from
from counterseal.storage.scripts import statements
from counterseal.storage.sqlite.database import Database, WriteJob
from counterseal.storage.sqlite.queries import SqliteQueries
from counterseal.storage.sqlite.rows import first, ledger_row_from, load
from counterseal.storage.sqlite.writer import Writer
from counterseal.storage.waiting import Waiters, wait_until

T = TypeVar("T")
_Q: Final = statements("sqlite")
_POLL_SECONDS: Final = 0.02
"""Seconds between two looks for changes of other processes, while a caller waits."""
_DAY: Final = 86_400
_DAYS_KEPT: Final = 2
"""Days whose counters are kept beside today's."""


class SqliteBackend:
    """The file is opened, and migrated, when this is made."""

    def __init__(self, path: Path, *, patience: float, clock: Callable[[], float]) -> None:
        self.database = Database(path, patience=patience, clock=clock)
        self._watch = _Watch(self.database)
        self.writer = Writer(self.database, patience=patience, released=self._watch.wake)
        self.queries = SqliteQueries(self.database, self.writer, patience=patience)

    async def open(self) -> None:
        """Nothing is left to do: see above."""

    async def close(self) -> None:
        try:
            await self.writer.close()
        finally:
            self._watch.wake_all()

    def transact(self, transaction: Transaction[T]) -> asyncio.Future[T]:
        return self.writer.write(WriteJob(transaction))

    def enqueue(self, make: Callable[[], Addition]) -> None:
        self.writer.enqueue(appending(make))

    async def flush(self) -> None:
        await self.writer.flush()

    async def wait(
        self, where: TenantKey, watch: Transaction[float | None], seconds: float
    ) -> bool:
        keys = RowKeys()
        watch.need(keys)

        def look(cursor: sqlite3.Cursor) -> float | None:
            # Only read: every release is announced here, so there is nothing to mark.
            return watch.decide(load(cursor, None, keys, self.database.clock()))

        return await self._watch.wait(where, lambda: self.queries.read(look), seconds)

    # --- what scans or deletes in bulk ------------------------------------------------------------

    def _scan(self, scan: Callable[[sqlite3.Cursor, Rows], T]) -> asyncio.Future[T]:
        return self.writer.write(WriteJob(scan=scan))

    async def claim_orphans(self, claim: Claim) -> Sequence[StoredEntry]:
        if not await self._any(_orphans, claim):
            return []
        return await self._scan(lambda cursor, rows: _claim_orphans(cursor, rows, claim))

    async def claim_due(self, claim: Claim) -> Sequence[Due]:
        if not await self._any(_due, claim):
            return []
        return await self._scan(lambda cursor, rows: _claim_due(cursor, rows.now, claim))

    async def _any(self, find: Callable[..., Sequence[Any]], claim: Claim) -> bool:
        """Return True when there is something to claim. Finding nothing waits for no lock."""
        one, now = claim._replace(limit=1), self.database.clock()
        return bool(await self.queries.read(lambda cursor: find(cursor, one, now)))

    async def end_sessions(self, user: str) -> int:
        return await self._scan(
            lambda cursor, _rows: cursor.execute(_Q["end_sessions"], (user,)).rowcount
        )

    async def seal(self, checkpoint: Checkpoint) -> bool:
        columns = checkpoint_columns(checkpoint)
        return await self._scan(
            lambda cursor, _rows: cursor.execute(_Q["seal"], columns).rowcount > 0
        )

    async def expire(self, request: ExpiryRequest) -> Mapping[str, int]:
        return await self._scan(lambda cursor, rows: _expire(cursor, rows, request))


def _claimable(claim: Claim, now: float) -> tuple[float, str | None, str | None, int]:
    """Return until when work must have been due, of which tools, and how much of it."""
    tools = None if claim.tools is None else f" {' '.join(claim.tools)} "
    return now - claim.lapsed_for, tools, tools, claim.limit


def _orphans(cursor: sqlite3.Cursor, claim: Claim, now: float) -> Sequence[Any]:
    until, *more = _claimable(claim, now)
    return cursor.execute(_Q["orphans"], (until, now + LONGEST_LEASE, *more)).fetchall()


def _due(cursor: sqlite3.Cursor, claim: Claim, now: float) -> Sequence[Any]:
    return cursor.execute(_Q["due"], _claimable(claim, now)).fetchall()


def _claim_orphans(cursor: sqlite3.Cursor, rows: Rows, claim: Claim) -> Sequence[StoredEntry]:
    claimed = []
    for columns in _orphans(cursor, claim, rows.now):
        row = ledger_row_from(columns)
        entry = claimed_entry(row.entry, columns[17], claim.worker, rows.now)
        claimed.append(StoredEntry(entry, columns[19]))
        rows.woken.append((entry.tenant, entry.key))
    until = rows.now + claim.lease
    cursor.executemany(
        _Q["claim_orphan"],
        [
            (one.fence, one.worker, one.unknown_since, one.looks, until, one.tenant, one.key)
            for one, *_ in claimed
        ],
    )
    return claimed


def _claim_due(cursor: sqlite3.Cursor, now: float, claim: Claim) -> Sequence[Due]:
    claimed = [claimed_due(due_from(row)) for row in _due(cursor, claim, now)]
    until = now + claim.lease
    cursor.executemany(
        _Q["claim_due"],
        [
            (work.fence, work.tries, until, work.tenant, str(work.kind), work.key)
            for work in claimed
        ],
    )
    return claimed


# --- expiry ---------------------------------------------------------------------------------------


def _expire(cursor: sqlite3.Cursor, rows: Rows, request: ExpiryRequest) -> Mapping[str, int]:
    now, limit = rows.now, request.limit
    vault = cursor.execute(_Q["expire_kept"], (now, limit)).rowcount
    requests = events = 0
    if request.vault_after is not None:
        before = now - request.vault_after
        vault += cursor.execute(_Q["empty_vault"], (before, limit)).rowcount
        requests = cursor.execute(_Q["forget_held"], (before, limit)).rowcount
    if request.events_after is not None:
        events = _erase(cursor, rows, micros(now - request.events_after), limit)
    last_day = int(now // _DAY) - _DAYS_KEPT - 1
    return {
        "keys": cursor.execute(_Q["expire_keys"], (now, limit)).rowcount,
        "vault": vault,
        "requests": requests,
        "events": events,
        "counters": cursor.execute(_Q["forget_days"], (last_day, limit)).rowcount,
        "sessions": cursor.execute(_Q["expire_sessions"], (now, limit)).rowcount,
    }


def _erase(cursor: sqlite3.Cursor, rows: Rows, before: int, limit: int) -> int:
    """Erase the text of events before a number, tenant by tenant. Returns how many."""
    left = limit
    for (tenant,) in cursor.execute(_Q["tenants"]).fetchall():
        done = first(cursor, _Q["erased_until"], (tenant,))
        since = 0 if done is None else done[0]
        gone = cursor.execute(_Q["erasable"], (tenant, since, before, left)).fetchall()
        if gone:
            until = gone[-1][1]
            cursor.executemany(_Q["erase"], gone)
            cursor.execute(_Q["erased"], (tenant, until))
            rows.events.append(columns_of(erasure_event(tenant, rows.now, len(gone), until)))
            left -= len(gone)
        if left <= 0:
            break
    return limit - left


# --- waiting --------------------------------------------------------------------------------------


class _Watch:
    """Wakes waiting callers, also for changes of other processes. For one event loop at a time.

    SQLite announces no changes. While a caller waits, and only then, it is asked every few
    milliseconds whether another connection has committed.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reset()

    def _reset(self) -> None:
        self._waiters = Waiters()
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._version: tuple[int, int] | None = None

    def wake(self, where: TenantKey) -> None:
        """Wake the callers that wait for a row that this process has changed."""
        if self._count:
            self._waiters.wake(where)

    def wake_all(self) -> None:
        self._waiters.wake_all()

    async def wait(self, where: TenantKey, look: Callable[[], Any], seconds: float) -> bool:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop = loop
            self._reset()
        self._count += 1
        if self._count == 1:
            self._poll()
        try:
            return await wait_until(self._waiters, where, look, seconds)
        finally:
            if loop is self._loop:
                self._count -= 1
                if self._timer is not None and not self._count:
                    self._timer.cancel()
                    self._timer = None

    def _poll(self) -> None:
        with suppress(StoreError):  # while the file can't be read, no change can be seen
            version = self._version if self._database.busy else self._database.version()
            if version != self._version:
                self._version = version
                self._waiters.wake_all()
        if self._loop is not None:
            self._timer = self._loop.call_later(_POLL_SECONDS, self._poll)
