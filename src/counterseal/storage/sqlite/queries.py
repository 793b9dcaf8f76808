"""Reads: from the cache where possible, and in a thread where they may take long."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import uniform
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from counterseal.audit import Event, Head, Link
from counterseal.audit.chain import Checkpoint, micros
from counterseal.ledger.changes import IDLE_SECONDS
from counterseal.ledger.due_work import escalated_concern, failed_concern, sorted_concerns
from counterseal.ledger.holds import caller_key
from counterseal.ledger.records import (
    Asker,
    Concern,
    Due,
    DueKind,
    Held,
    HeldStatus,
    RunRecord,
    SessionRow,
)
from counterseal.ledger.requests import (
    CallFilter,
    EventFilter,
    LogRow,
    Memory,
    StoredEntry,
    TallyCount,
    searched_places,
)
from counterseal.ledger.rows import current_entry
from counterseal.storage.backend import Place
from counterseal.storage.encoding import (
    DbRow,
    checkpoint_from,
    due_from,
    entry_from,
    found_event,
    held_from,
    json_value,
    log_row,
    run_from,
    session_from,
)
from counterseal.storage.scripts import statements
from counterseal.storage.sqlite.database import Database
from counterseal.storage.sqlite.file import LockedError
from counterseal.storage.sqlite.rows import ReadCache, first, ledger_row_from
from counterseal.storage.sqlite.writer import Writer

T = TypeVar("T")
_Q: Final = statements("sqlite")
_KNOWN_KEY: Final = _Q["known_key"]
_NOTHING: Final = Memory(None, None, *(MappingProxyType[str, Any]({}) for _ in range(3)))
_OLDEST_FIRST: Final = (_Q["events_of_call"], _Q["events_of_run"], _Q["events"])
_NEWEST_FIRST: Final = (_Q["newest_of_call"], _Q["newest_of_run"], _Q["newest"])
_SMALL: Final = 4096
"""Characters up to which a run is kept in the cache."""
_USUAL: Final = "SUCCESS"
"""The code without an index of its own, because most calls are answered with it."""
_ENOUGH: Final = 1000
"""How far the calls of an index are counted, to find the index with the fewest."""


class _Index(NamedTuple):
    """An index of calls: by which field, and its statements."""

    field: str
    find: str
    weigh: str


_INDEXES: Final = (
    _Index("run_id", _Q["calls_of_run"], _Q["count_calls_of_run"]),
    _Index("user", _Q["calls_of_user"], _Q["count_calls_of_user"]),
    _Index("code", _Q["calls_of_code"], _Q["count_calls_of_code"]),
    _Index("agent", _Q["calls_of_agent"], _Q["count_calls_of_agent"]),
    _Index("tool", _Q["calls_of_tool"], _Q["count_calls_of_tool"]),
)


class SqliteQueries:
    """Reads of one file."""

    def __init__(self, database: Database, writer: Writer, *, patience: float) -> None:
        self._database = database
        self._cache = database.cache
        self._writer = writer
        self._patience = patience

    async def read(self, work: Callable[[sqlite3.Cursor], T]) -> T:
        """Read in one transaction. It waits only while another process opens or mends the file."""
        until = None
        while True:
            try:
                return self._database.read(work)
            except LockedError:
                now = time.monotonic()
                until = now + self._patience if until is None else until
                if now > until:
                    raise
            await asyncio.sleep(uniform(0.001, 0.01))  # noqa: S311 - so that they spread out

    async def _read_aside(self, work: Callable[[sqlite3.Cursor], T]) -> T:
        """Read in a thread, where no call has to wait for it."""
        return await asyncio.to_thread(self._database.read_aside, work)

    def _is_current(self) -> bool:
        """Return True when the cache can be used. A crowd of callers checks once in a turn.

        Nothing that came from outside in this turn of the loop can be younger than its begin.
        """
        if self._database.busy or self._database.closed:
            return False
        if self._cache.trusted:
            return True
        try:
            current = self._cache.is_current()
        except sqlite3.Error:  # the caller reads the file, and gets the error explained
            return False
        self._cache.trusted = self._writer.in_crowd()
        return current

    # --- calls and runs ---------------------------------------------------------------------------

    async def recall(
        self, tenant: str, run_id: str, key: str | None, who: Asker | None, *, spent: bool
    ) -> Memory:
        if key is not None and not spent and self._is_new(tenant, key):
            return _NOTHING
        now = self._database.clock()
        return await self.read(lambda db: _recall(db, tenant, run_id, key, who, now, spent=spent))

    def _is_new(self, tenant: str, key: str) -> bool:
        """Return True when a key was never used or asked about, as nearly every one."""
        try:
            (known,) = self._database.ask(_KNOWN_KEY, (tenant, key, tenant, key))
        except LockedError:  # the full read waits for its turn
            return False
        return not known

    async def find_run(self, tenant: str, run_id: str) -> RunRecord | None:
        known = self._cache.run_records.get((tenant, run_id))
        if known is not None and self._is_current():
            return known
        cache = self._usable_cache()
        return await self.read(lambda db: _find_run(db, cache, tenant, run_id))

    async def find_implicit_run(
        self, tenant: str, agent: str, user: str | None, now: float
    ) -> tuple[RunRecord, float] | None:
        caller = (tenant, *caller_key(agent, user))
        used = self._cache.implicit_runs.get(caller)
        if used is not None and now - used[1] <= IDLE_SECONDS:
            known = self._cache.run_records.get((tenant, used[0]))
            if known is not None and self._is_current():
                return known, used[1]
        cache = self._usable_cache()

        def read(db: sqlite3.Cursor) -> tuple[RunRecord, float] | None:
            row = first(db, _Q["find_implicit"], caller)
            if row is None or now - row[0] > IDLE_SECONDS:
                return None
            used_at, run_id = row[0], row[1]
            if cache is not None:
                cache.is_current()
                cache.keep(cache.implicit_runs, caller, (run_id, used_at))
            return _run_of(db, cache, tenant, row[1:]), used_at

        return await self.read(read)

    def _usable_cache(self) -> ReadCache | None:
        """Return the cache to fill, unless a second connection is read."""
        return None if self._database.busy else self._cache

    async def look_up(self, tenant: str, key: str) -> StoredEntry | None:
        row = await self._row(_Q["look_up"], tenant, key)
        return self._kept(row)

    async def look_up_call(self, tenant: str, call_id: str) -> StoredEntry | None:
        row = await self._row(_Q["look_up_call"], tenant, call_id)
        return self._kept(row)

    def _kept(self, row: DbRow | None) -> StoredEntry | None:
        if row is None:
            return None
        return StoredEntry(current_entry(ledger_row_from(row), self._database.clock()), row[17])

    # --- people and operators ---------------------------------------------------------------------

    async def find_held(self, tenant: str, approval_id: str) -> Held | None:
        row = await self._row(_Q["find_held"], tenant, approval_id)
        return None if row is None else held_from(row)

    async def list_held(
        self,
        tenant: str | None,
        status: HeldStatus,
        limit: int,
        between: tuple[Place, Place],
        *,
        newest_first: bool,
    ) -> Sequence[Held]:
        begin, end = between
        values = (status.value, *begin, *end, limit)
        if tenant is None:
            query = _Q["newest_of_all_held"] if newest_first else _Q["list_all_held"]
            rows = await self._rows(query, *values)
        else:
            query = _Q["newest_held"] if newest_first else _Q["list_held"]
            rows = await self._rows(query, tenant, *values)
        return [held_from(row) for row in rows]

    async def find_due(self, tenant: str, kind: DueKind, key: str) -> Due | None:
        row = await self._row(_Q["find_due"], tenant, str(kind), key)
        return None if row is None else due_from(row)

    async def concerns(self, tenant: str | None, limit: int) -> Sequence[Concern]:
        def read(db: sqlite3.Cursor) -> Sequence[Concern]:
            escalated = db.execute(_Q["escalated"], (tenant, tenant, limit)).fetchall()
            failed = db.execute(_Q["failed_due"], (tenant, tenant, limit)).fetchall()
            concerns = [escalated_concern(entry_from(row)) for row in escalated]
            return concerns + [failed_concern(due_from(row)) for row in failed]

        return sorted_concerns(await self.read(read), limit)

    async def changes(self, after: int) -> Sequence[tuple[int, Mapping[str, Any]]]:
        rows = await self._rows(_Q["changes"], after)
        return [(number, json_value(what)) for number, what in rows]

    async def find_session(self, session: str) -> SessionRow | None:
        row = await self._row(_Q["find_session"], session)
        return None if row is None else session_from(row)

    # --- the record -------------------------------------------------------------------------------

    async def fetch(self, tenant: str, pointer: str) -> bytes | None:
        row = await self._row(_Q["fetch"], tenant, pointer)
        return None if row is None else row[0]

    async def search(self, tenant: str, search: EventFilter) -> Sequence[tuple[str, Event]]:
        by_index = search.call_id is not None or search.run_id is not None
        narrow = search.tool is not None or search.types is not None
        # Without an index, all events have to be read.
        read = self._read_aside if narrow and not by_index else self.read
        return await read(lambda db: _search(db, tenant, search))

    async def calls(self, tenant: str, search: CallFilter) -> Sequence[tuple[str, Event]]:
        return await self._read_aside(lambda db: _calls(db, tenant, search))

    async def tallies(
        self, tenant: str, since: float, until: float, parts: int
    ) -> Sequence[TallyCount]:
        return await self._read_aside(lambda db: _tallies(db, tenant, since, until, parts))

    async def tenants(self) -> Sequence[str]:
        return [tenant for (tenant,) in await self._rows(_Q["tenants"])]

    async def recorded(self, tenant: str, after: tuple[int, str], limit: int) -> Sequence[LogRow]:
        rows = await self._rows(_Q["recorded"], tenant, *after, limit)
        return [log_row(Link(*row[:6]), row[6:]) for row in rows]

    async def heads(self, tenant: str, since: int) -> Mapping[str, Head]:
        rows = await self._rows(_Q["heads"], tenant, since)
        return {segment: Head(*head) for segment, *head in rows}

    async def checkpoints(self, tenant: str) -> Sequence[Checkpoint]:
        return [checkpoint_from(row) for row in await self._rows(_Q["checkpoints"], tenant)]

    async def _row(self, query: str, *values: Any) -> DbRow | None:
        return await self.read(lambda db: first(db, query, values))

    async def _rows(self, query: str, *values: Any) -> Sequence[DbRow]:
        return await self.read(lambda db: db.execute(query, values).fetchall())


# --- calls and runs -------------------------------------------------------------------------------


def _recall(
    db: sqlite3.Cursor,
    tenant: str,
    run_id: str,
    key: str | None,
    who: Asker | None,
    now: float,
    *,
    spent: bool,
) -> Memory:
    entry = held = None
    if key is not None:
        row = first(db, _Q["find_entry"], (tenant, key))
        entry = None if row is None else current_entry(ledger_row_from(row), now)
        if who is None:
            row = first(db, _Q["last_held"], (tenant, key))
        else:
            row = first(db, _Q["last_held_of"], (tenant, key, *caller_key(*who)))
        held = None if row is None else held_from(row)
    counters: tuple[dict[str, Any], ...] = ({}, {}, {})
    if spent:
        for kind, name, value in db.execute(
            _Q["recall_counters"], (tenant, run_id, tenant, tenant)
        ):
            counters[kind - 1][name] = value
    return Memory(entry, held, *counters)


def _find_run(
    db: sqlite3.Cursor, cache: ReadCache | None, tenant: str, run_id: str
) -> RunRecord | None:
    row = first(db, _Q["find_run"], (tenant, run_id))
    return None if row is None else _run_of(db, cache, tenant, row)


def _run_of(db: sqlite3.Cursor, cache: ReadCache | None, tenant: str, row: DbRow) -> RunRecord:
    """Return a run with its state. One without state is kept in the cache if it is small."""
    run_id, *columns, has_state = row
    if has_state:
        state = db.execute(_Q["find_state"], (tenant, run_id)).fetchall()
        return run_from(tenant, run_id, tuple(columns), state)
    run = run_from(tenant, run_id, tuple(columns), ())
    if cache is not None and sum(len(one) for one in columns if isinstance(one, str)) <= _SMALL:
        cache.is_current()
        cache.keep(cache.run_records, (tenant, run_id), run)
    return run


# --- events ---------------------------------------------------------------------------------------


def _search(db: sqlite3.Cursor, tenant: str, search: EventFilter) -> list[tuple[str, Event]]:
    begin, end = searched_places(search, newest_first=search.newest_first)
    of_call, of_run, of_all = _NEWEST_FIRST if search.newest_first else _OLDEST_FIRST
    run_id, tool, where = search.run_id, search.tool, (*begin, *end)
    types = None if search.types is None else f" {' '.join(map(str, search.types))} "
    limit = -1 if search.limit is None else search.limit
    narrow = (run_id, run_id, tool, tool, types, types, limit)
    if search.call_id is not None:
        rows = db.execute(of_call, (tenant, search.call_id, *where, *narrow))
    elif run_id is not None:
        rows = db.execute(of_run, (tenant, run_id, *where, *narrow))
    else:
        rows = db.execute(of_all, (tenant, *where, *narrow))
    return [found_event(row[0], row[1], row[2:]) for row in rows]


def _calls(db: sqlite3.Cursor, tenant: str, search: CallFilter) -> Sequence[tuple[str, Event]]:
    """Find calls by the index with the fewest of them."""
    begin, end = searched_places(search, newest_first=True)
    where = (*begin, *end)
    narrow: list[str | int | None] = []
    for value in (search.tool, search.agent, search.user, search.run_id, search.code):
        narrow += [value, value]
    indexes = list(_usable_indexes(search))
    if len(indexes) > 1:
        indexes.sort(
            key=lambda index: _count(db, index, (tenant, getattr(search, index.field), *where))
        )
    if indexes:
        values = (tenant, getattr(search, indexes[0].field), *where, *narrow, search.limit)
        rows = db.execute(indexes[0].find, values)
    else:
        rows = db.execute(_Q["calls"], (tenant, *where, *narrow, search.limit))
    return [found_event(row[0], row[1], row[2:]) for row in rows]


def _usable_indexes(search: CallFilter) -> Iterator[_Index]:
    for index in _INDEXES:
        value = getattr(search, index.field)
        if value is not None and not (index.field == "code" and value == _USUAL):
            yield index


def _count(db: sqlite3.Cursor, index: _Index, values: DbRow) -> int:
    row = first(db, index.weigh, (*values, _ENOUGH))
    return 0 if row is None else int(row[0])


def _tallies(
    db: sqlite3.Cursor, tenant: str, since: float, until: float, parts: int
) -> Sequence[TallyCount]:
    """Count events, with one look at the index for every tally and part."""
    begin, end = micros(since), micros(until)
    edges = [begin + (end - begin) * part // parts for part in range(parts + 1)]
    known = [tally for (tally,) in db.execute(_Q["tallies"], (tenant, tenant)).fetchall()]
    tallies = []
    for tally in known:
        if first(db, _Q["any_of_tally"], (tenant, tally, begin, end)) is None:
            continue
        for part in range(parts):
            values = (tenant, tally, edges[part], edges[part + 1])
            count, cost = first(db, _Q["count_tally"], values) or (0, 0.0)
            if count:
                tallies.append(TallyCount(part, tally, count, cost))
    return tallies
