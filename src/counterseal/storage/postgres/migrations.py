"""Brings a database's schema up to date: numbered steps, each applied once, none ever changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import asyncpg

from counterseal.errors import StoreError
from counterseal.storage.scripts import (
    Migration,
    migrations_in,
    missing_migrations,
    sql_folder,
)

LOCKS: Final = 0x43_53_45_41
"""The first half of every advisory lock of this program: `CSEA`. The second halves follow."""
_MIGRATION_LOCK: Final = 1
REGISTRY_LOCK: Final = 2
"""Shared by transactions that rest on the registry, exclusive for one that changes it."""
EXPIRY_LOCK: Final = 3


def known_migrations() -> tuple[Migration, ...]:
    """Return the migrations of this program, in their order."""
    return migrations_in(sql_folder("postgres"))


async def migrate(connection: Any, where: str, known: Sequence[Migration] | None = None) -> None:
    """Apply what is missing, under a lock: of many workers that start at once, one does it."""
    known = known_migrations() if known is None else known
    try:
        if missing_migrations(await _applied(connection), known, where, "database"):
            await _apply(connection, where, known)
    except (asyncpg.DuplicateTableError, asyncpg.UndefinedColumnError) as error:
        raise StoreError(
            f"{where} holds tables of another program; give Counterseal a database of its own"
        ) from error


async def _apply(connection: Any, where: str, known: Sequence[Migration]) -> None:
    # Locked before the transaction begins: a running transaction may not see new tables.
    await connection.execute("SELECT pg_advisory_lock($1, $2)", LOCKS, _MIGRATION_LOCK)
    try:
        async with connection.transaction():
            missing = missing_migrations(await _applied(connection), known, where, "database")
            for migration in missing:
                await connection.execute(migration.text)
                await connection.execute(
                    "INSERT INTO migrations (number, name, checksum) VALUES ($1, $2, $3)",
                    migration.number,
                    migration.name,
                    migration.checksum,
                )
    finally:
        if not connection.is_closed():
            await connection.execute("SELECT pg_advisory_unlock($1, $2)", LOCKS, _MIGRATION_LOCK)


async def _applied(connection: Any) -> dict[int, str]:
    """Return the checksums of the applied migrations by number."""
    if await connection.fetchval("SELECT to_regclass('migrations')") is None:
        return {}
    return dict(await connection.fetch("SELECT number, checksum FROM migrations"))
