"""Reads: from the cache where possible, and in a thread where they may take long."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import uniform
from types import MappingProxyType
from typing import Any, Final, TypeVar

from counterseal.audit import Event, Link
from counterseal.audit.chain import Checkpoint, micros
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
    searched_columns,
    searched_places,
    stored_entry,
)
from counterseal.ledger.rows import current_entry, json_text
from counterseal.storage.encoding import (
    DbRow,
    SqlReads,
    checkpoint_from,
    due_from,
    entry_from,
    found_event,
    held_from,
    log_row,
    run_from,
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
_SMALL: Final = 4096
"""Characters up to which a run is kept in the cache."""
_USUAL: Final = "SUCCESS"
"""The code without an index of its own, because most calls are answered with it."""
_ENOUGH: Final = 1000
"""How far the calls of an index are counted, to find the index with the fewest."""


_EVENT_INDEXES: Final = {
    "call_id": "events_by_call",
    "caller_call_id": "events_by_caller_call",
    "run_id": "events_by_run",
}
"""Indexes of all events, by column, from the one with the fewest events for a value."""
_CALL_INDEXES: Final = {
    "caller_call_id": "events_by_caller_call",
    "run_id": "events_by_run",
    "external_ref": "events_by_external_ref",
    "workflow_id": "events_by_workflow",
    "conversation_id": "events_by_conversation",
    "session_id": "events_by_session",
    "user": "events_by_user",
    "code": "events_by_code",
    "agent": "events_by_agent",
    "tool": "events_by_tool",
    "version": "events_by_version",
}
"""Indexes of calls, by column."""


class SqliteQueries(SqlReads):
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
        row = await self._row("look_up", tenant, key)
        return None if row is None else self._stored(row)

    async def look_up_call(self, tenant: str, call_id: str, limit: int) -> Sequence[StoredEntry]:
        return [
            self._stored(row) for row in await self._rows("look_up_call", tenant, call_id, limit)
        ]

    def _stored(self, row: DbRow) -> StoredEntry:
        return stored_entry(ledger_row_from(row), row[19], self._database.clock())

    # --- people and operators ---------------------------------------------------------------------

    async def concerns(self, tenant: str | None, limit: int) -> Sequence[Concern]:
        def read(db: sqlite3.Cursor) -> Sequence[Concern]:
            escalated = db.execute(_Q["escalated"], (tenant, tenant, limit)).fetchall()
            failed = db.execute(_Q["failed_due"], (tenant, tenant, limit)).fetchall()
            concerns = [escalated_concern(entry_from(row)) for row in escalated]
            return concerns + [failed_concern(due_from(row)) for row in failed]

        return sorted_concerns(await self.read(read), limit)

    # --- the record -------------------------------------------------------------------------------

    async def fetch_all(self, tenant: str, pointers: Sequence[str]) -> Mapping[str, bytes]:
        query, given = _Q["fetch_all"], json_text(pointers)
        return dict(
            await self._read_aside(lambda db: db.execute(query, (tenant, given)).fetchall())
        )

    async def search(self, tenant: str, search: EventFilter) -> Sequence[tuple[str, Event]]:
        by_index = any(name in _EVENT_INDEXES for name in searched_columns(search))
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
        return [tenant for (tenant,) in await self._rows("tenants")]

    async def recorded(self, tenant: str, after: tuple[int, str], limit: int) -> Sequence[LogRow]:
        rows = await self._rows("recorded", tenant, *after, limit)
        return [log_row(Link(*row[:6]), row[6:]) for row in rows]

    async def checkpoints(self, tenant: str) -> Sequence[Checkpoint]:
        return [checkpoint_from(row) for row in await self._rows("checkpoints", tenant)]

    async def _row(self, query: str, *values: Any) -> DbRow | None:
        return await self.read(lambda db: first(db, _Q[query], values))

    async def _rows(self, query: str, *values: Any) -> Sequence[DbRow]:
        return await self.read(lambda db: db.execute(_Q[query], values).fetchall())


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


def _statement(name: str, columns: Iterable[str], index: str | None = None, **more: str) -> str:
    """Return a statement that narrows a search down by these columns, through an index."""
    narrow = "".join(f" AND {column} = ?" for column in columns)
    if index == "events_by_code":
        narrow += f" AND code <> '{_USUAL}'"  # the condition of the index
    by = "" if index is None else f"INDEXED BY {index}"
    return _Q[name].format(index=by, narrow=narrow + more.pop("types", ""), **more)


def _search(db: sqlite3.Cursor, tenant: str, search: EventFilter) -> list[tuple[str, Event]]:
    begin, end = searched_places(search, newest_first=search.newest_first)
    columns, types = searched_columns(search), tuple(map(str, search.types or ()))
    if search.types is not None and not types:
        return []  # SQLite finds no plan for an empty IN () with a named index
    statement = _statement(
        "events",
        columns,
        next((index for name, index in _EVENT_INDEXES.items() if name in columns), None),
        types="" if search.types is None else f" AND type IN ({', '.join('?' * len(types))})",
        order="DESC" if search.newest_first else "",
    )
    limit = -1 if search.limit is None else search.limit
    rows = db.execute(statement, (tenant, *begin, *end, *columns.values(), *types, limit))
    return [found_event(row[0], row[1], row[2:]) for row in rows]


def _calls(db: sqlite3.Cursor, tenant: str, search: CallFilter) -> Sequence[tuple[str, Event]]:
    """Find calls by the index with the fewest of them."""
    begin, end = searched_places(search, newest_first=True)
    where, columns = (tenant, *begin, *end), searched_columns(search)
    usable = [name for name in columns if (name, columns[name]) != ("code", _USUAL)]

    def count(name: str) -> int:
        statement = _statement("count_calls", [name], _CALL_INDEXES[name])
        return int((first(db, statement, (*where, columns[name], _ENOUGH)) or (0,))[0])

    fewest = min(usable, key=count) if len(usable) > 1 else next(iter(usable), "")
    statement = _statement("calls", columns, _CALL_INDEXES.get(fewest))
    rows = db.execute(statement, (*where, *columns.values(), search.limit))
    return [found_event(row[0], row[1], row[2:]) for row in rows]


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
