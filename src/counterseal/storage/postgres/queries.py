"""Reads. Those of calls, which come in crowds, are answered many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from counterseal.audit import Event, Link
from counterseal.audit.chain import COLUMNS, Checkpoint, micros, place_of
from counterseal.ledger.changes import IDLE_SECONDS
from counterseal.ledger.due_work import escalated_concern, failed_concern, sorted_concerns
from counterseal.ledger.holds import caller_key
from counterseal.ledger.records import (
    Asker,
    Concern,
    RunRecord,
)
from counterseal.ledger.requests import (
    CallFilter,
    EventFilter,
    LogRow,
    Memory,
    StoredEntry,
    TallyCount,
    stored_entry,
)
from counterseal.ledger.rows import CallerKey, TenantKey, current_entry
from counterseal.storage.encoding import (
    SqlReads,
    checkpoint_from,
    due_from,
    found_event,
    held_from,
    log_row,
    run_from,
)
from counterseal.storage.postgres.batches import Batcher, QueuedJob
from counterseal.storage.postgres.connections import Connection
from counterseal.storage.postgres.faults import UnfitError, explained, is_lost, is_mistake
from counterseal.storage.postgres.rows import arrays, ledger_row_from
from counterseal.storage.scripts import statements

T = TypeVar("T")
J = TypeVar("J", bound=QueuedJob)
_Q: Final = statements("postgres")
_NEVER: Final = 2**62
_EVENT_COLUMNS: Final = len(COLUMNS)
_CALL_FIELDS: Final = CallFilter._fields.index("since")
"""Fields of a search for calls that are columns."""


# --- what is read for calls, many at once ---------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Recall(QueuedJob):
    """Everything that bears on a call."""

    tenant: str
    run_id: str
    key: str | None
    caller: tuple[str | None, str | None]
    spent: bool


@dataclass(slots=True, eq=False)
class _FindRun(QueuedJob):
    """A run with its state."""

    where: TenantKey


@dataclass(slots=True, eq=False)
class _FindImplicit(QueuedJob):
    """The run of a caller that names none, and when it was last used."""

    caller: CallerKey
    now: float


@dataclass(slots=True, eq=False)
class _Ask(QueuedJob):
    """Any other read."""

    ask: Callable[[Any], Awaitable[Any]]


async def answer_batch(connection: Connection, jobs: Sequence[QueuedJob]) -> None:
    """Answer reads. Each job has its result afterwards, or its error."""
    recalls = [job for job in jobs if isinstance(job, _Recall)]
    if recalls:
        await _ask_together(connection, recalls, _recall)
    runs = [job for job in jobs if isinstance(job, _FindRun | _FindImplicit)]
    if runs:
        await _ask_together(connection, runs, _find)
    for job in jobs:
        if isinstance(job, _Ask):
            await _ask(connection, [job], partial(_read, job))


async def _ask_together(
    connection: Connection, jobs: Sequence[J], ask: Callable[..., Awaitable[None]]
) -> None:
    """Answer jobs with one statement, or each by itself if one of them has an error of its own."""
    await _ask(connection, jobs, partial(ask, jobs=jobs))
    if len(jobs) > 1 and any(_is_own(job.error) for job in jobs):
        for job in jobs:
            job.error = None
            await _ask(connection, [job], partial(ask, jobs=[job]))


def _is_own(error: BaseException | None) -> bool:
    return error is not None and (isinstance(error, UnfitError) or is_mistake(error))


async def _read(job: _Ask, database: Any) -> None:
    job.result = await job.ask(database)


async def _ask(
    connection: Connection, jobs: Sequence[QueuedJob], ask: Callable[[Any], Awaitable[None]]
) -> None:
    """Answer jobs, on a new connection if the old one is lost."""
    error: Exception | None = None
    for _ in range(2):
        try:
            await ask(await connection.get())
        except Exception as failed:  # noqa: BLE001 - every error goes to the waiting callers
            error = failed
            if not is_lost(error):
                break
            connection.lose()
        else:
            return
    for job in jobs:
        if error is not None:
            job.error = error if is_mistake(error) else explained(error, connection.where)


async def _recall(database: Any, jobs: Sequence[_Recall]) -> None:
    keys = {(job.tenant, job.key) for job in jobs if job.key is not None}
    runs = {(job.tenant, run_id) for job in jobs if job.spent for run_id in (job.run_id, "")}
    tenants = {job.tenant for job in jobs if job.spent}
    callers = {(job.tenant, job.key, *job.caller) for job in jobs if job.key is not None}
    found = await database.fetchrow(
        _Q["recall"], *arrays(keys, 2), *arrays(runs, 2), list(tenants), *arrays(callers, 4)
    )
    now = found[4]
    entries = {(row[0], row[1]): current_entry(ledger_row_from(row), now) for row in found[0] or ()}
    held = {(row[0], row[2], row[26], row[27]): held_from(row) for row in found[1] or ()}
    spent: dict[tuple[str, str], dict[str, int]] = {}
    for tenant, run_id, name, amount in found[2] or ():
        spent.setdefault((tenant, run_id), {})[name] = amount
    rates: dict[str, dict[str, float]] = {}
    for tenant, name, arrival in found[3] or ():
        rates.setdefault(tenant, {})[name] = arrival
    for job in jobs:
        tenant, key = job.tenant, job.key
        job.result = Memory(
            entry=None if key is None else entries.get((tenant, key)),
            held=None if key is None else held.get((tenant, key, *job.caller)),
            run_counters=spent.get((tenant, job.run_id), {}),
            tenant_counters=spent.get((tenant, ""), {}),
            rates=rates.get(tenant, {}),
        )


async def _find(database: Any, jobs: Sequence[_FindRun | _FindImplicit]) -> None:
    """Find runs, with one statement for each kind of job."""
    wanted = {job.where for job in jobs if isinstance(job, _FindRun)}
    callers = {job.caller for job in jobs if isinstance(job, _FindImplicit)}
    used: dict[CallerKey, tuple[str, float]] = {}
    if callers:
        for tenant, agent, user, run_id, used_at in await database.fetch(
            _Q["find_implicit"], *arrays(callers, 3)
        ):
            used[tenant, agent, user] = (run_id, used_at)
            wanted.add((tenant, run_id))
    runs: dict[TenantKey, RunRecord] = {}
    if wanted:
        for row in await database.fetch(_Q["find_runs"], *arrays(wanted, 2)):
            runs[row[0], row[1]] = run_from(row[0], row[1], tuple(row[2:13]), row[13])
    for job in jobs:
        if isinstance(job, _FindRun):
            job.result = runs.get(job.where)
            continue
        run_id, used_at = used.get(job.caller, ("", 0.0))
        run = runs.get((job.caller[0], run_id))
        is_over = run is None or job.now - used_at > IDLE_SECONDS
        job.result = None if is_over else (run, used_at)


# --- all reads ------------------------------------------------------------------------------------


class PostgresQueries(SqlReads):
    """Reads on connections of their own."""

    def __init__(self, reading: Batcher) -> None:
        self._reading = reading

    def read(self, ask: Callable[[Any], Awaitable[T]]) -> asyncio.Future[T]:
        """Return what is read with a connection."""
        return self._reading.run(_Ask(ask))

    async def recall(
        self, tenant: str, run_id: str, key: str | None, who: Asker | None, *, spent: bool
    ) -> Memory:
        caller = (None, None) if who is None else caller_key(*who)
        memory: Memory = await self._reading.run(_Recall(tenant, run_id, key, caller, spent))
        return memory

    async def find_run(self, tenant: str, run_id: str) -> RunRecord | None:
        run: RunRecord | None = await self._reading.run(_FindRun((tenant, run_id)))
        return run

    async def find_implicit_run(
        self, tenant: str, agent: str, user: str | None, now: float
    ) -> tuple[RunRecord, float] | None:
        caller = (tenant, *caller_key(agent, user))
        run: tuple[RunRecord, float] | None = await self._reading.run(_FindImplicit(caller, now))
        return run

    async def look_up(self, tenant: str, key: str) -> StoredEntry | None:
        row = await self._row("look_up", tenant, key)
        return None if row is None else _stored(row)

    async def look_up_call(self, tenant: str, call_id: str, limit: int) -> Sequence[StoredEntry]:
        rows = await self._rows("look_up_call", tenant, call_id, limit)
        return [_stored(row) for row in rows]

    async def concerns(self, tenant: str | None, limit: int) -> Sequence[Concern]:
        escalated = await self._rows("escalated", tenant, limit)
        failed = await self._rows("failed_due", tenant, limit)
        concerns = [escalated_concern(ledger_row_from(row).entry) for row in escalated]
        concerns += [failed_concern(due_from(row)) for row in failed]
        return sorted_concerns(concerns, limit)

    # --- the record -------------------------------------------------------------------------------

    async def fetch_all(self, tenant: str, pointers: Sequence[str]) -> Mapping[str, bytes]:
        rows = await self._rows("fetch_all", tenant, pointers)
        return dict(map(tuple, rows))

    async def search(self, tenant: str, search: EventFilter) -> Sequence[tuple[str, Event]]:
        place = (None, None) if search.after is None else place_of(search.after)
        query = _Q["search_back"] if search.newest_first else _Q["search"]
        rows = await self._planned(
            query,
            tenant,
            search.call_id,
            search.caller_call_id,
            search.run_id,
            search.tool,
            None if search.types is None else [str(one) for one in search.types],
            -_NEVER if search.since is None else micros(search.since),
            _NEVER if search.until is None else micros(search.until),
            *place,
            search.limit,
        )
        return [_found(row) for row in rows]

    async def calls(self, tenant: str, search: CallFilter) -> Sequence[tuple[str, Event]]:
        place = (None, None) if search.after is None else place_of(search.after)
        rows = await self._planned(
            _Q["calls"],
            tenant,
            *search[:_CALL_FIELDS],
            -_NEVER if search.since is None else micros(search.since),
            _NEVER if search.until is None else micros(search.until),
            *place,
            search.limit,
        )
        return [_found(row) for row in rows]

    async def _planned(self, query: str, *values: Any) -> Sequence[Any]:
        """Read with a plan for these values: the best index depends on what is rare."""

        async def ask(database: Any) -> Sequence[Any]:
            async with database.transaction(readonly=True):
                await database.execute("SET LOCAL plan_cache_mode = force_custom_plan")
                rows: Sequence[Any] = await database.fetch(query, *values)
                return rows

        return await self.read(ask)

    async def tallies(
        self, tenant: str, since: float, until: float, parts: int
    ) -> Sequence[TallyCount]:
        begin, end = micros(since), micros(until)
        edges = [begin + (end - begin) * part // parts for part in range(parts + 1)]
        rows = await self._rows("tallies", tenant, list(range(parts)), edges[:-1], edges[1:])
        return [TallyCount(*row) for row in rows]

    async def tenants(self) -> Sequence[str]:
        return sorted(tenant for (tenant,) in await self._rows("tenants"))

    async def recorded(self, tenant: str, after: tuple[int, str], limit: int) -> Sequence[LogRow]:
        rows = await self._rows("recorded", tenant, *after, limit)
        return [log_row(Link(*row[_EVENT_COLUMNS:]), tuple(row[:_EVENT_COLUMNS])) for row in rows]

    async def checkpoints(self, tenant: str) -> Sequence[Checkpoint]:
        rows = await self._rows("checkpoints", tenant)
        return [checkpoint_from(tuple(row)) for row in rows]

    async def _row(self, query: str, *values: Any) -> Any:
        return await self.read(lambda database: database.fetchrow(_Q[query], *values))

    async def _rows(self, query: str, *values: Any) -> Sequence[Any]:
        return await self.read(lambda database: database.fetch(_Q[query], *values))


def _stored(row: Sequence[Any]) -> StoredEntry:
    """Return an entry with its `resume`, as it is by the server's clock."""
    return stored_entry(ledger_row_from(row), row[20], row[21])


def _found(row: Sequence[Any]) -> tuple[str, Event]:
    *columns, number, segment = row
    return found_event(number, segment, tuple(columns))
