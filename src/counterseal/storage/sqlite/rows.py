"""Loads and writes the rows of a batch, and caches rows that are read again and again.

A write transaction locks the whole file, so that no row needs a lock of its own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from counterseal.audit import Link
from counterseal.ledger.entry import EntryStatus
from counterseal.ledger.records import RunRecord
from counterseal.ledger.rows import (
    CallerKey,
    CounterKey,
    DueRow,
    EntryRow,
    HeldRow,
    RowKeys,
    Rows,
    RunProgress,
    StateValue,
    TenantKey,
    VaultRow,
    json_text,
)
from counterseal.storage.encoding import (
    DbRow,
    contract_columns,
    contract_from,
    due_columns,
    due_from,
    entry_from,
    held_columns,
    held_from,
    opened_run_columns,
    run_columns,
    run_row_from,
    session_columns,
    session_from,
)
from counterseal.storage.scripts import statements

K = TypeVar("K")
V = TypeVar("V")
_Q: Final = statements("sqlite")
_FIND_ENTRY: Final = _Q["find_entry"]
_MOST: Final = 4096
"""Rows of a table that the cache keeps."""
_PENDING: Final = EntryStatus.PENDING

# `sqlite3` looks for an adapter for every None and every bytes object that is bound, which takes
# longer than everything else; for floats and bytearrays it does not. So in rows that are written
# with every call, these stand for them.
NULL: Final = float("nan")
"""SQLite stores it as NULL."""


def blob(value: bytes | None) -> bytearray | float:
    """Return bytes, or NULL, as they are bound."""
    return NULL if value is None else bytearray(value)


def first(cursor: sqlite3.Cursor, query: str, values: DbRow) -> DbRow | None:
    """Return the first row of a query."""
    row: DbRow | None = cursor.execute(query, values).fetchone()
    return row


# --- the cache ------------------------------------------------------------------------------------


class ReadCache:
    """Rows as they are in the file: read or written by this process, and not changed since.

    SQLite says whether another connection has committed (`PRAGMA data_version`). If so, everything
    is dropped. A row that this process writes is replaced here. Everything is dropped when a
    transaction fails, and when rows are changed by a statement that is not `write`.
    """

    __slots__ = (
        "_cursor",
        "_version",
        "counters",
        "entries",
        "epoch",
        "implicit_runs",
        "rates",
        "run_records",
        "runs",
        "trusted",
    )

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor
        self._version = -1
        self.trusted = False
        """True when it was checked in this turn of the event loop, and many callers read."""
        self.epoch: int | None = None
        self.entries: dict[TenantKey, EntryRow] = {}
        """PENDING entries that this process has written: it settles them soon."""
        self.runs: dict[TenantKey, RunProgress | None] = {}
        """None for a run that is not there."""
        self.run_records: dict[TenantKey, RunRecord] = {}
        self.implicit_runs: dict[CallerKey, tuple[str, float]] = {}
        self.counters: dict[CounterKey, int] = {}
        self.rates: dict[TenantKey, float] = {}

    @property
    def version(self) -> int:
        """The `data_version` that the rows were read at."""
        return self._version

    def is_current(self) -> bool:
        """Return True when the rows still hold; otherwise drop them.

        Within a transaction they then hold until its end.
        """
        # Another number whenever another connection has committed, of whichever process.
        (version,) = self._cursor.execute("PRAGMA data_version").fetchone()
        if version == self._version:
            return True
        self._version = version
        self.clear()
        return False

    def clear(self) -> None:
        """Drop all rows."""
        self.epoch = None
        self.entries.clear()
        self.runs.clear()
        self.run_records.clear()
        self.implicit_runs.clear()
        self.counters.clear()
        self.rates.clear()

    @staticmethod
    def keep(table: dict[K, V], key: K, row: V) -> V:
        """Add a row. A full table begins anew."""
        if len(table) >= _MOST:
            table.clear()
        table[key] = row
        return row


# --- loading --------------------------------------------------------------------------------------


def ledger_row_from(columns: DbRow) -> EntryRow:
    """Return a row of the ledger, from `tenant` to `expires_at`."""
    created_at, completed_at, lease_until, expires_at = columns[15:19]
    beside = {"created_at": created_at, "completed_at": completed_at}
    return EntryRow(entry_from(columns), lease_until, expires_at, awaited=True, **beside)


def load(cursor: sqlite3.Cursor, cache: ReadCache | None, keys: RowKeys, now: float) -> Rows:
    """Load rows, from the cache where they are known. Without a cache all are read."""
    if cache is None:
        cache = ReadCache(cursor)
    rows = Rows()
    rows.now = now
    if keys.registry or keys.registry_change:
        if cache.epoch is None:
            cache.epoch = _number(first(cursor, _Q["epoch"], ()))
        rows.epoch = cache.epoch
    _load_implicit_runs(cursor, keys, rows)
    if keys.entries:
        _load_entries(cursor, cache, keys, rows)
    for where in keys.runs:
        run = cache.runs[where] if where in cache.runs else _load_run(cursor, cache, where)
        if run is not None:
            rows.runs.loaded[where] = run
    if keys.counters or keys.rates:
        _load_counters(cursor, cache, keys, rows)
    if keys.held or keys.last_held:
        _load_held(cursor, keys, rows)
    if keys.state or keys.refusals or keys.due or keys.sessions:
        _load_more(cursor, keys, rows)
    _load_contracts(cursor, keys, rows)
    return rows


def _load_contracts(cursor: sqlite3.Cursor, keys: RowKeys, rows: Rows) -> None:
    for key in keys.contracts:
        columns = first(cursor, _Q["find_contract"], key)
        if columns is not None:
            rows.contracts.loaded[key] = contract_from(columns)


def _load_entries(cursor: sqlite3.Cursor, cache: ReadCache, keys: RowKeys, rows: Rows) -> None:
    loaded, cached = rows.entries.loaded, cache.entries
    for where in keys.entries:
        row = cached.get(where)
        if row is None:
            columns = cursor.execute(_FIND_ENTRY, where).fetchone()
            if columns is None:
                continue
            row = ledger_row_from(columns)
        loaded[where] = row


def _load_counters(cursor: sqlite3.Cursor, cache: ReadCache, keys: RowKeys, rows: Rows) -> None:
    """Load counters and rates; one that is not there counts as zero."""
    for counter in keys.counters:
        spent = cache.counters.get(counter)
        if spent is None:
            spent = _number(first(cursor, _Q["spent"], counter))
            cache.keep(cache.counters, counter, spent)
        rows.counters.loaded[counter] = spent
    for rate in keys.rates:
        arrival = cache.rates.get(rate)
        if arrival is None:
            arrival = _number(first(cursor, _Q["arrival"], rate))
            cache.keep(cache.rates, rate, arrival)
        rows.rates.loaded[rate] = arrival


def _number(row: DbRow | None) -> Any:
    return 0 if row is None else row[0]


def _load_run(cursor: sqlite3.Cursor, cache: ReadCache, where: TenantKey) -> RunProgress | None:
    columns = first(cursor, _Q["load_run"], where)
    return cache.keep(cache.runs, where, None if columns is None else run_row_from(columns))


def _load_implicit_runs(cursor: sqlite3.Cursor, keys: RowKeys, rows: Rows) -> None:
    for caller in keys.implicit_runs:
        row = first(cursor, _Q["load_implicit"], caller)
        if row is not None:
            rows.implicit_runs.loaded[caller] = (row[0], row[1])
            keys.runs.add((caller[0], row[0]))


def _load_held(cursor: sqlite3.Cursor, keys: RowKeys, rows: Rows) -> None:
    for where in keys.held:
        columns = first(cursor, _Q["find_held"], where)
        if columns is not None:
            rows.held.loaded[where] = HeldRow(held_from(columns), latest=False, awaited=True)
    for caller in keys.last_held:
        columns = first(cursor, _Q["last_held_of"], caller)
        if columns is not None:
            held = held_from(columns)
            rows.last_held[caller] = held.approval_id
            where = (held.tenant, held.approval_id)
            rows.held.loaded[where] = HeldRow(held, latest=True, awaited=True)


def _load_more(cursor: sqlite3.Cursor, keys: RowKeys, rows: Rows) -> None:
    """Load the tables that few transactions need."""
    for tenant, run_id, key in keys.state:
        if key is None:
            found = cursor.execute(_Q["find_state"], (tenant, run_id))
        else:
            found = cursor.execute(_Q["find_key"], (tenant, run_id, key))
        for name, value, version, untrusted in found.fetchall():
            state = StateValue(value, version, bool(untrusted))
            rows.state.loaded[tenant, run_id, name] = state
    for refusal in keys.refusals:
        for fingerprint, times in cursor.execute(_Q["load_refusals"], refusal).fetchall():
            rows.refusals.loaded[(*refusal, fingerprint)] = times
    for due in keys.due:
        columns = first(cursor, _Q["find_due"], due)
        if columns is not None:
            work = due_from(columns)
            due_at = columns[12] if work.failed is None else None
            rows.due.loaded[due] = DueRow(work, due_at)
    for session in keys.sessions:
        columns = first(cursor, _Q["find_session"], (session,))
        if columns is not None:
            rows.sessions.loaded[session] = session_from(columns)


# --- writing --------------------------------------------------------------------------------------


def write(cursor: sqlite3.Cursor, cache: ReadCache, rows: Rows, links: Sequence[Link]) -> None:
    """Write every change, to the file and to the cache."""
    if rows.entries.changes:
        _write_entries(cursor, cache, rows)
    if rows.counters.changes or rows.rates.changes:
        _write_counters(cursor, cache, rows)
    if rows.runs.changes or rows.state.changes or rows.implicit_runs.changes:
        _write_runs(cursor, cache, rows)
    if rows.held.changes:
        _write_held(cursor, rows)
    if rows.refusals.changes or rows.due.changes or rows.sessions or rows.contracts:
        _write_more(cursor, rows)
    if rows.vault:
        _put(cursor, _Q["keep"], [_kept(row, rows.now) for row in rows.vault])
    if rows.forgotten:
        cursor.executemany(_Q["forget"], rows.forgotten)
    if rows.registry_changes:
        changes = [(number, json_text(what)) for number, what in rows.registry_changes]
        cursor.executemany(_Q["insert_change"], changes)
        cache.epoch = rows.epoch
    if rows.events:
        events = zip(rows.events, links, strict=True)
        _put(cursor, _Q["record"], [_event_columns(*event) for event in events])


def _write_counters(cursor: sqlite3.Cursor, cache: ReadCache, rows: Rows) -> None:
    counters = [(*key, spent) for key, spent in rows.counters.changes.items()]
    rates = [(*key, arrival) for key, arrival in rows.rates.changes.items()]
    _put(cursor, _Q["spend"], counters)
    _put(cursor, _Q["arrive"], rates)
    for counter, spent in rows.counters.changes.items():
        cache.counters[counter] = spent or 0
    for rate, arrival in rows.rates.changes.items():
        cache.rates[rate] = arrival or 0.0


def _event_columns(columns: Sequence[Any], link: Link) -> DbRow:
    number, segment, seq, salt, digest, own = link
    chained = (number, segment, seq, blob(salt), bytearray(digest), bytearray(own))
    return (*chained, *[NULL if value is None else value for value in columns])


def _write_entries(cursor: sqlite3.Cursor, cache: ReadCache, rows: Rows) -> None:
    loaded = rows.entries.loaded
    inserted: list[DbRow] = []
    replaced: list[DbRow] = []
    updated: list[DbRow] = []
    for where, row in rows.entries.changes.items():
        if row is None:
            continue
        if not row.reserved:
            updated.append((*_standing(row), *where))
        elif where in loaded:
            replaced.append((*where, *_reservation(row), *_standing(row)))
        else:
            inserted.append((*where, *_reservation(row), *_standing(row)))
        if row.entry.status is _PENDING:
            kept = row._replace(awaited=True, reserved=False, resume=None)
            cache.keep(cache.entries, where, kept)
        else:
            cache.entries.pop(where, None)
    _put(cursor, _Q["insert_entry"], inserted)
    _put(cursor, _Q["replace_entry"], replaced)
    _put(cursor, _Q["update_entry"], updated)


def _put(cursor: sqlite3.Cursor, statement: str, rows: Sequence[DbRow]) -> None:
    """Run a statement for every row."""
    if len(rows) == 1:
        cursor.execute(statement, rows[0])
    elif rows:
        cursor.executemany(statement, rows)


def _reservation(row: EntryRow) -> DbRow:
    """Return the columns that are written when an entry is reserved."""
    entry = row.entry
    call = (entry.call_id, entry.tool, entry.version, entry.run_id)
    return (blob(entry.request_hash), *call, blob(row.resume), _or_null(row.created_at))


def _standing(row: EntryRow) -> DbRow:
    """Return the columns of an entry that change later."""
    entry = row.entry
    phase, observation = entry.phase, entry.observation
    return (
        str(entry.status),
        NULL if phase is None else str(phase),
        entry.fence,
        entry.attempts,
        _or_null(entry.unknown_since),
        NULL if observation is None else json_text(observation),
        _or_null(entry.worker),
        entry.looks,
        _or_null(row.completed_at),
        _or_null(row.lease_until),
        _or_null(row.expires_at),
    )


def _or_null(value: Any) -> Any:
    return NULL if value is None else value


def _write_runs(cursor: sqlite3.Cursor, cache: ReadCache, rows: Rows) -> None:
    for where, run in rows.runs.changes.items():
        if run is None:
            continue
        if where in rows.runs.loaded or run.opened is None:
            cursor.execute(_Q["update_run"], (*run_columns(run), *where))
        else:
            opened = (*opened_run_columns(run.opened), *run_columns(run))
            cursor.execute(_Q["insert_run"], opened)
        cache.keep(cache.runs, where, run._replace(opened=None))
        cache.run_records.pop(where, None)
    for key, state in rows.state.changes.items():
        if state is not None:
            cursor.execute(_Q["write_state"], (*key, *state))
            cache.run_records.pop(key[:2], None)
    for caller, used in rows.implicit_runs.changes.items():
        if used is not None:
            cursor.execute(_Q["use_implicit"], (*caller, *used))
            cache.keep(cache.implicit_runs, caller, used)


def _write_held(cursor: sqlite3.Cursor, rows: Rows) -> None:
    loaded = rows.held.loaded
    for where, row in rows.held.changes.items():
        if row is None:
            continue
        held, before = row.held, loaded.get(where)
        if before is None:
            cursor.execute(_Q["hold"], held_columns(held))
        elif held is not before.held:
            votes = json_text(held.votes)
            cursor.execute(_Q["update_held"], (held.status.value, votes, held.token, *where))


def _write_more(cursor: sqlite3.Cursor, rows: Rows) -> None:
    """Write the tables that few transactions change."""
    for refusal, times in rows.refusals.changes.items():
        if times is None:
            cursor.execute(_Q["delete_refusal"], refusal)
        else:
            cursor.execute(_Q["write_refusal"], (*refusal, times))
    for key, due in rows.due.changes.items():
        if due is None:
            cursor.execute(_Q["delete_due"], key)
        elif key in rows.due.loaded:
            cursor.execute(_Q["update_due"], (*due_columns(due)[3:], *key))
        else:
            cursor.execute(_Q["insert_due"], due_columns(due))
    for session, row in rows.sessions.changes.items():
        if row is None:
            cursor.execute(_Q["end_session"], (session,))
        else:
            cursor.execute(_Q["save_session"], session_columns(row))
    contracts = [contract_columns(row) for _, row in rows.contracts.inserted]
    cursor.executemany(_Q["insert_contract"], contracts)


def _kept(row: VaultRow, now: float) -> DbRow:
    end = NULL if row.keep_for is None else now + row.keep_for
    return (row.tenant, row.pointer, blob(row.raw), now, end)
