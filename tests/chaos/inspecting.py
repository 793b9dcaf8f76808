"""What is on record of a round, read by somebody who took no part in it.

Rows are read as they lie there, with the driver alone; what is a question of meaning (the
operator's list, the chain) is asked of a store that has seen nothing else.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any, Final

from counterseal.operations.auditor import verify_store
from counterseal.storage import open_store

__all__ = ["inspect"]

_ROWS: Final = {
    "entries": ("ledger", "key", "status", "phase", "tool", "attempts", "looks", "fence", "worker"),
    "due": ("due", "kind", "key", "tries", "failed"),
    "held": ("held", "approval_id", "key", "status"),
    "counters": ("counters", "run_id", "name", "spent"),
    "events": ("events", "type", "call_id", "tool", "decision", "body"),
}


async def inspect(url: str, tenant: str) -> dict[str, Any]:
    """Everything that bears on the promises, as JSON."""
    store = open_store(url)
    try:
        await store.ready()
        concerns = [(one.kind, one.key) for one in await store.concerns(tenant, 1000)]
        report = await verify_store(store, tenant)
    finally:
        await store.close()
    read = _read_sqlite if url.startswith("sqlite") else _read_postgres
    return {
        **await read(url, tenant),
        "concerns": concerns,
        "chain": [one.message for one in report.findings],
        "recorded": report.events,
    }


def _query(table: str, columns: tuple[str, ...], mark: str) -> str:
    order = "number" if table == "events" else "1"
    return f"SELECT {', '.join(columns)} FROM {table} WHERE tenant = {mark} ORDER BY {order}"


async def _read_sqlite(url: str, tenant: str) -> dict[str, list[dict[str, Any]]]:
    path = url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as connection:
        connection.execute("BEGIN")  # one look, at one moment
        found = {
            name: [
                dict(zip(columns, row, strict=True))
                for row in connection.execute(_query(table, columns, "?"), (tenant,))
            ]
            for name, (table, *columns) in _ROWS.items()
        }
        connection.execute("COMMIT")
        sound = connection.execute("PRAGMA quick_check").fetchone()[0]
    return found if sound == "ok" else {**found, "damage": [{"found": sound}]}


async def _read_postgres(url: str, tenant: str) -> dict[str, list[dict[str, Any]]]:
    import asyncpg

    connection = await asyncpg.connect(url, timeout=30)
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            return {
                name: [
                    dict(zip(columns, row, strict=True))
                    for row in await connection.fetch(_query(table, columns, "$1"), tenant)
                ]
                for name, (table, *columns) in _ROWS.items()
            }
    finally:
        await connection.close()
