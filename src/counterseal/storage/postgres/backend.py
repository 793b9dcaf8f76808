"""The back-end of the store on one Postgres database.

Nothing that another worker can change is kept in memory: every answer is read from the database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from counterseal.audit import EventType, columns_of
from counterseal.audit.chain import Checkpoint, micros
from counterseal.audit.events import erasure_event
from counterseal.errors import StoreError
from counterseal.ledger.records import Due
from counterseal.ledger.requests import Claim, ExpiryRequest, StoredEntry
from counterseal.ledger.rows import LONGEST_LEASE, Rows, TenantKey
from counterseal.storage.backend import Addition, Transaction, appending
from counterseal.storage.encoding import checkpoint_columns, due_from
from counterseal.storage.postgres.batches import Batcher, ScanJob, TransactionJob, commit_batch
from counterseal.storage.postgres.connections import (
    EXPIRY_LOCK,
    ChangeListener,
    Connection,
    DatabaseAddress,
    Schema,
    signal_of,
)
from counterseal.storage.postgres.queries import PostgresQueries, answer_batch
from counterseal.storage.postgres.rows import ledger_row_from
from counterseal.storage.scripts import statements
from counterseal.storage.waiting import wait_until

T = TypeVar("T")
_Q: Final = statements("postgres")
_RECONNECT_SECONDS: Final = 0.2
"""Seconds after which a waiting caller tries to reach the server again."""


class PostgresBackend:
    """Connects when it is first used."""

    def __init__(self, address: DatabaseAddress, *, writers: int, readers: int) -> None:
        schema = Schema(address.where)
        self._listener = ChangeListener(address)
        released = self._listener.released
        connections = [Connection(address, schema, released) for _ in range(writers + readers)]
        self.writing = Batcher(connections[:writers], commit_batch, address.where)
        self.reading = Batcher(connections[writers:], answer_batch, address.where)
        self.queries = PostgresQueries(self.reading)

    async def open(self) -> None:
        await self.queries.read(_nothing)

    async def close(self) -> None:
        await self._listener.close()
        try:
            await self.writing.close()
        finally:
            await self.reading.close()

    def transact(self, transaction: Transaction[T]) -> asyncio.Future[T]:
        return self.writing.run(TransactionJob(transaction))

    def enqueue(self, make: Callable[[], Addition]) -> None:
        self.writing.enqueue(TransactionJob(appending(make)))

    async def flush(self) -> None:
        await self.writing.flush()

    async def wait(
        self, where: TenantKey, watch: Transaction[float | None], seconds: float
    ) -> bool:
        """Wait for the server's announcement; no worker polls, and only marked rows are announced.

        StoreError when the server could not be reached until the time was over.
        """

        async def look() -> float | None:
            # Listening comes before the mark that causes announcements: none can be missed.
            await self._listener.listen()
            return await self.transact(watch)

        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        signal = ("", signal_of(where))
        while True:
            try:
                left = max(end - loop.time(), 0)
                return await wait_until(self._listener.waiters(), signal, look, left)
            except StoreError:
                if self.writing.closed or loop.time() + _RECONNECT_SECONDS > end:
                    raise
                await asyncio.sleep(_RECONNECT_SECONDS)

    # --- what scans or deletes in bulk ------------------------------------------------------------

    def _scan(
        self, run: Callable[[Any, Rows], Awaitable[T]], lock: int | None = None
    ) -> asyncio.Future[T]:
        return self.writing.run(ScanJob(run, lock))

    async def claim_orphans(self, claim: Claim) -> Sequence[StoredEntry]:
        async def run(database: Any, rows: Rows) -> Sequence[StoredEntry]:
            values = (*_claimable(claim), claim.worker, claim.lease, LONGEST_LEASE)
            found = await database.fetch(_Q["claim_orphans"], *values)
            found.sort(key=lambda row: (row[21], row[0], row[1]))
            rows.woken.extend((row[0], row[1]) for row in found if row[19])
            return [StoredEntry(ledger_row_from(row).entry, row[20]) for row in found]

        return await self._scan(run)

    async def claim_due(self, claim: Claim) -> Sequence[Due]:
        async def run(database: Any, _rows: Rows) -> Sequence[Due]:
            found = await database.fetch(_Q["claim_due"], *_claimable(claim), claim.lease)
            found.sort(key=lambda row: (row[13], row[0], row[1], row[2]))
            return [due_from(row) for row in found]

        return await self._scan(run)

    async def end_sessions(self, user: str) -> int:
        async def run(database: Any, _rows: Rows) -> int:
            return len(await database.fetch(_Q["end_sessions"], user))

        return await self._scan(run)

    async def seal(self, checkpoint: Checkpoint) -> bool:
        columns = checkpoint_columns(checkpoint)

        async def run(database: Any, _rows: Rows) -> bool:
            return await database.fetchval(_Q["seal"], *columns) is not None

        return await self._scan(run)

    async def expire(self, request: ExpiryRequest) -> Mapping[str, int]:
        return await self._scan(partial(_expire, request), EXPIRY_LOCK)


async def _nothing(_connection: Any) -> None:
    """Read nothing: being connected is enough."""


def _claimable(claim: Claim) -> tuple[float, list[str] | None, int]:
    """Return how long work must have waited, of which tools, and how much of it."""
    return claim.lapsed_for, None if claim.tools is None else list(claim.tools), claim.limit


# --- expiry ---------------------------------------------------------------------------------------


async def _expire(request: ExpiryRequest, database: Any, rows: Rows) -> Mapping[str, int]:
    limit = request.limit
    keys = await database.fetch(_Q["expire_keys"], limit)
    vault, requests = await database.fetch(_Q["expire_kept"], limit), []
    if request.vault_after is not None:
        vault += await database.fetch(_Q["expire_vault"], request.vault_after, limit)
        requests = await database.fetch(_Q["expire_held"], request.vault_after, limit)
    counters = await database.fetch(_Q["expire_counters"], limit)
    sessions = await database.fetch(_Q["expire_sessions"], limit)
    events = 0
    if request.events_after is not None:
        events = await _erase(database, rows, micros(rows.now - request.events_after), limit)
    return {
        "keys": len(keys),
        "vault": len(vault),
        "requests": len(requests),
        "events": events,
        "counters": len(counters),
        "sessions": len(sessions),
    }


async def _erase(database: Any, rows: Rows, until: int, limit: int) -> int:
    """Erase the text of events before a number, tenant by tenant. Returns how many."""
    left = limit
    for tenant, *place in await database.fetch(_Q["erasable"], until):
        if left <= 0:
            break
        left -= await _erase_of(database, rows, tenant, (place[0], place[1]), until, left)
    return limit - left


async def _erase_of(
    database: Any, rows: Rows, tenant: str, place: tuple[int, str], until: int, limit: int
) -> int:
    """Erase events of one tenant. Events that record an erasure are never erased."""
    count = last = 0
    while count < limit:
        wanted = limit - count
        found = await database.fetch(_Q["old_events"], tenant, until, *place, wanted)
        if not found:
            break
        place = (found[-1][0], found[-1][1])
        gone = [row for row in found if row[2] not in (None, EventType.ERASED.value)]
        if gone:
            numbers, segments, _ = zip(*gone, strict=True)
            await database.execute(_Q["erase"], tenant, numbers, segments)
            count, last = count + len(gone), numbers[-1]
    await database.execute(_Q["erased"], tenant, *place)
    if count:
        rows.events.append(columns_of(erasure_event(tenant, rows.now, count, last)))
    return count
