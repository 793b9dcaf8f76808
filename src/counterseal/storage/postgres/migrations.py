"""Brings a database's schema up to date: numbered steps, each applied once, none ever changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import asyncpg

from counterseal.errors import StoreError
from counterseal.storage.postgres.queries import sql_folder
from counterseal.storage.scripts import Migration, migrations_in

__all__ = ["CHANGING", "EXPIRING", "LOCKS", "Migration", "known_migrations", "migrate"]

LOCKS: Final = 0x43_53_45_41
"""The first half of every advisory lock of ours: `CSEA`. The second halves are below."""
MIGRATING: Final = 1
CHANGING: Final = 2
"""Shared by all who rest on the registry as it is; alone with it, who changes it."""
EXPIRING: Final = 3


def known_migrations() -> tuple[Migration, ...]:
    """The migrations that this program brings along, in their order."""
    return migrations_in(sql_folder())


async def migrate(connection: Any, where: str, known: Sequence[Migration] | None = None) -> None:
    """Apply what is missing, under a lock: of many that start at once, one does it."""
    known = known_migrations() if known is None else known
    try:
        if _missing(await _applied(connection), where, known):
            await _apply(connection, where, known)
    except (asyncpg.DuplicateTableError, asyncpg.UndefinedColumnError) as error:
        raise StoreError(
            f"{where} holds tables of another program; give Counterseal a database of its own"
        ) from error


async def _apply(connection: Any, where: str, known: Sequence[Migration]) -> None:
    # Locked before the transaction begins: one that is under way may not notice new tables.
    await connection.execute("SELECT pg_advisory_lock($1, $2)", LOCKS, MIGRATING)
    try:
        async with connection.transaction():
            for migration in _missing(await _applied(connection), where, known):
                await connection.execute(migration.text)
                await connection.execute(
                    "INSERT INTO migrations (number, name, checksum) VALUES ($1, $2, $3)",
                    migration.number,
                    migration.name,
                    migration.checksum,
                )
    finally:
        if not connection.is_closed():
            await connection.execute("SELECT pg_advisory_unlock($1, $2)", LOCKS, MIGRATING)


def _missing(
    applied: dict[int, str], where: str, known: Sequence[Migration]
) -> Sequence[Migration]:
    """What is still to be applied. StoreError when others made the database."""
    newest = max(applied, default=0)
    if newest > len(known):
        raise StoreError(
            f"{where} has schema {newest}, and this program knows schema {len(known)} at most;"
            " use a newer Counterseal, or another database"
        )
    for migration in known[:newest]:
        if applied.get(migration.number) != migration.checksum:
            raise StoreError(
                f"{where} was made with another migration {migration.number}"
                f" ({migration.name}) than this program's; use the Counterseal that made it"
            )
    return known[newest:]


async def _applied(connection: Any) -> dict[int, str]:
    if await connection.fetchval("SELECT to_regclass('migrations')") is None:
        return {}
    return dict(await connection.fetch("SELECT number, checksum FROM migrations"))
