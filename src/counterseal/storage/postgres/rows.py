"""Loads, locks and writes the rows of a batch, with one statement for each table.

Rows are locked in a fixed order: implicit runs, then everything that one statement loads, then due
work, refusals, sessions, and the state of runs, which the lock on its run guards. So transactions
never wait for each other in a circle. Changes to locked rows never wait. New rows come last,
sorted, and can collide with another worker's: then nothing is written, and the batch runs again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any, Final

from counterseal.audit import Link
from counterseal.ledger.holds import caller_key
from counterseal.ledger.rows import (
    CounterKey,
    DueRow,
    EntryRow,
    HeldRow,
    RowKeys,
    Rows,
    StateValue,
    TenantKey,
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
from counterseal.storage.postgres.connections import signal_of
from counterseal.storage.postgres.faults import ConflictError
from counterseal.storage.scripts import statements

_Q: Final = statements("postgres")
_LOAD: Final = _Q["load"]
_WRITE: Final = _Q["write"]
_OF_A_DAY: Final = re.compile(r"/([0-9]{1,9})$")
"""How the name of a counter ends that counts for a day."""


def arrays(rows: Collection[DbRow], count: int) -> tuple[Collection[Any], ...]:
    """Return rows as the arrays that a statement takes, one for each column."""
    return tuple(zip(*rows, strict=True)) if rows else ((),) * count


# --- loading --------------------------------------------------------------------------------------


async def load(connection: Any, keys: RowKeys) -> Rows:
    """Load and lock rows."""
    rows = Rows()
    await _load_unnamed(connection, keys, rows)
    entries, runs, held, counters, rates, rows.epoch, rows.now = await connection.fetchrow(
        _LOAD,
        *arrays(keys.entries, 2),
        *arrays(keys.runs, 2),
        *arrays(keys.held, 2),
        *arrays(keys.counters, 3),
        *arrays(keys.rates, 2),
    )
    for row in entries or ():
        rows.entries.loaded[row[0], row[1]] = ledger_row_from(row)
    for row in runs or ():
        rows.runs.loaded[row[0], row[1]] = run_row_from(row[2:])
    for row in held or ():
        _load_held(rows, row)
    for tenant, run_id, name, spent in counters or ():
        rows.counters.loaded[tenant, run_id, name] = spent
    for tenant, name, arrival in rates or ():
        rows.rates.loaded[tenant, name] = arrival
    await _load_more(connection, keys, rows)
    if keys.contracts:
        for row in await connection.fetch(_Q["load_contracts"], *arrays(keys.contracts, 3)):
            rows.contracts.loaded[row[0], row[1], row[2]] = contract_from(row)
    return rows


def ledger_row_from(columns: Sequence[Any]) -> EntryRow:
    """Return a row of the ledger, from `tenant` to `awaited`."""
    created_at, completed_at, *places = columns[15:20]
    beside = {"created_at": created_at, "completed_at": completed_at}
    return EntryRow(entry_from(columns), *places, **beside)


def _load_held(rows: Rows, columns: Sequence[Any]) -> None:
    held, latest, awaited = held_from(columns), columns[24], columns[25]
    rows.held.loaded[held.tenant, held.approval_id] = HeldRow(held, latest, awaited)
    if latest:
        caller = caller_key(held.agent, held.user)
        rows.last_held[held.tenant, held.key, *caller] = held.approval_id


async def _load_unnamed(connection: Any, keys: RowKeys, rows: Rows) -> None:
    """Find runs and requests whose ids are not known yet, and add their keys."""
    if keys.implicit_runs:
        found = await connection.fetch(_Q["load_implicit"], *arrays(keys.implicit_runs, 3))
        for tenant, agent, user, run_id, used_at in found:
            rows.implicit_runs.loaded[tenant, agent, user] = (run_id, used_at)
            keys.runs.add((tenant, run_id))
    if keys.last_held:
        found = await connection.fetch(_Q["load_last_held"], *arrays(keys.last_held, 4))
        keys.held.update((tenant, approval_id) for tenant, approval_id in found)


async def _load_more(connection: Any, keys: RowKeys, rows: Rows) -> None:
    """Load the tables that few transactions need."""
    if keys.due:
        for row in await connection.fetch(_Q["load_due"], *arrays(keys.due, 3)):
            rows.due.loaded[row[0], row[1], row[2]] = DueRow(due_from(row), row[12])
    if keys.refusals:
        for row in await connection.fetch(_Q["load_refusals"], *arrays(keys.refusals, 3)):
            tenant, run_id, tool, fingerprint, times = row
            rows.refusals.loaded[tenant, run_id, tool, fingerprint] = times
    if keys.sessions:
        for row in await connection.fetch(_Q["load_sessions"], list(keys.sessions)):
            rows.sessions.loaded[row[0]] = session_from(row)
    if keys.state:
        for row in await connection.fetch(_Q["load_state"], *arrays(keys.state, 3)):
            rows.state.loaded[row[0], row[1], row[2]] = StateValue(*row[3:])


# --- writing --------------------------------------------------------------------------------------


async def write(connection: Any, rows: Rows, links: Sequence[Link]) -> None:
    """Write every change. ConflictError when another worker inserted one of the new rows first."""
    await _update(connection, rows)
    await _write_calls(connection, rows, links)
    await _insert_all(connection, rows)
    if rows.forgotten:
        await _execute(connection, _Q["forget"], rows.forgotten)
    if rows.contracts:
        contracts = [contract_columns(row) for _, row in rows.contracts.inserted]
        await _insert(connection, _Q["insert_contracts"], contracts)
    if rows.registry_changes:
        changes = [(number, json_text(what)) for number, what in rows.registry_changes]
        await _insert(connection, _Q["insert_changes"], changes)
    if rows.woken:
        await connection.fetch(_Q["notify"], [signal_of(where) for where in rows.woken])


async def _write_calls(connection: Any, rows: Rows, links: Sequence[Link]) -> None:
    """Write what nearly every transaction changes, in one statement."""
    if not (rows.entries or rows.counters or rows.rates or rows.events or rows.vault):
        return
    new = [_ledger_columns(*row)[:-1] for row in rows.entries.inserted]
    events = [(*columns, *link) for columns, link in zip(rows.events, links, strict=True)]
    inserted = await connection.fetchval(
        _WRITE,
        *arrays([_ledger_columns(*row) for row in rows.entries.updated], 22),
        *arrays(new, 21),
        *arrays(_with_value(rows.counters.updated), 4),
        *arrays(_with_value(rows.rates.updated), 3),
        *arrays(events, 27),
        *arrays(rows.vault, 4),
        rows.now,
    )
    if inserted != len(new):
        raise ConflictError


def _ledger_columns(where: TenantKey, row: EntryRow) -> DbRow:
    """Return the columns of the ledger, and whether `resume` has to be written."""
    entry, phase, observation = row.entry, row.entry.phase, row.entry.observation
    return (
        *where,
        entry.request_hash,
        str(entry.status),
        None if phase is None else str(phase),
        entry.call_id,
        entry.run_id,
        entry.tool,
        entry.version,
        entry.fence,
        entry.attempts,
        entry.unknown_since,
        None if observation is None else json_text(observation),
        entry.worker,
        entry.looks,
        row.created_at,
        row.completed_at,
        row.lease_until,
        row.expires_at,
        row.awaited,
        row.resume,
        row.reserved,
    )


async def _update(connection: Any, rows: Rows) -> None:
    """Update and delete locked rows."""
    if rows.runs:
        runs = [(*key, *run_columns(run)) for key, run in rows.runs.updated]
        await _execute(connection, _Q["update_runs"], runs)
    if rows.implicit_runs:
        used = [(*key, *run) for key, run in rows.implicit_runs.updated]
        await _execute(connection, _Q["update_implicit"], used)
    if rows.held:
        held = [_held_changes(*row) for row in rows.held.updated]
        await _execute(connection, _Q["update_held"], held)
    if rows.due:
        due = [due_columns(row) for _, row in rows.due.updated]
        await _execute(connection, _Q["update_due"], due)
        await _execute(connection, _Q["delete_due"], rows.due.deleted)
    if rows.refusals:
        counts = _with_value(rows.refusals.updated)
        await _execute(connection, _Q["update_refusals"], counts)
        await _execute(connection, _Q["delete_refusals"], rows.refusals.deleted)
    if rows.sessions:
        sessions = [session_columns(row) for _, row in rows.sessions.updated]
        await _execute(connection, _Q["update_sessions"], sessions)
        ended = [(session,) for session in rows.sessions.deleted]
        await _execute(connection, _Q["delete_sessions"], ended)


def _held_changes(where: TenantKey, row: HeldRow) -> DbRow:
    held = row.held
    return (*where, held.status.value, json_text(held.votes), held.token, row.latest, row.awaited)


async def _insert_all(connection: Any, rows: Rows) -> None:
    """Insert new rows."""
    if rows.implicit_runs:
        used = [(*key, *run) for key, run in rows.implicit_runs.inserted]
        await _insert(connection, _Q["insert_implicit"], used)
    if rows.runs:
        opened = [
            (*opened_run_columns(run.opened), *run_columns(run))
            for _, run in rows.runs.inserted
            if run.opened is not None
        ]
        await _insert(connection, _Q["insert_runs"], opened)
    if rows.held:
        held = [(*held_columns(row.held), *row[1:]) for _, row in rows.held.inserted]
        await _insert(connection, _Q["insert_held"], held)
    if rows.due:
        due = [due_columns(row) for _, row in rows.due.inserted]
        await _insert(connection, _Q["insert_due"], due)
    if rows.counters:
        spent = [(*key, spent, _day_of(key)) for key, spent in rows.counters.inserted]
        await _insert(connection, _Q["insert_counters"], spent)
    if rows.rates:
        await _insert(connection, _Q["insert_rates"], _with_value(rows.rates.inserted))
    if rows.refusals:
        await _insert(connection, _Q["insert_refusals"], _with_value(rows.refusals.inserted))
    if rows.sessions:
        sessions = [session_columns(row) for _, row in rows.sessions.inserted]
        await _insert(connection, _Q["insert_sessions"], sessions)
    if rows.state:  # guarded by the run's lock, so that no other worker can be first
        state = [(*key, *row) for key, row in [*rows.state.updated, *rows.state.inserted]]
        await _execute(connection, _Q["write_state"], state)


def _day_of(counter: CounterKey) -> int | None:
    """Return the day that a tenant's counter counts for."""
    _, run_id, name = counter
    match = None if run_id else _OF_A_DAY.search(name)
    return None if match is None else int(match[1])


def _with_value(rows: Sequence[tuple[DbRow, Any]]) -> list[DbRow]:
    return [(*key, value) for key, value in rows]


async def _execute(connection: Any, statement: str, rows: Sequence[DbRow]) -> None:
    if rows:
        await connection.execute(statement, *arrays(rows, 0))


async def _insert(connection: Any, statement: str, rows: Sequence[DbRow]) -> None:
    if rows:
        done: str = await connection.execute(statement, *arrays(rows, 0))
        if int(done.rpartition(" ")[2]) != len(rows):
            raise ConflictError
