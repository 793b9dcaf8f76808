"""Brings a file's schema up to date: numbered steps, each applied once, none ever changed."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from counterseal.errors import StoreError
from counterseal.storage.scripts import Migration, migrations_in
from counterseal.storage.sqlite.queries import sql_folder

__all__ = [
    "APPLICATION",
    "Migration",
    "known_migrations",
    "migrate",
    "refuse_foreign",
]

APPLICATION: Final = 0x43_53_45_41
"""What marks a file as ours, in the place that SQLite has for it: `CSEA`."""


def known_migrations() -> tuple[Migration, ...]:
    """The migrations that this program brings along, in their order."""
    return migrations_in(sql_folder())


def _statements(text: str) -> Iterator[str]:
    """The statements of a script, one by one: run as a whole, it would end the transaction."""
    statement = ""
    for line in text.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def refuse_foreign(connection: sqlite3.Connection, path: Path) -> None:
    """StoreError for a database that somebody else has made."""
    # Tables first: whoever makes ours meanwhile marks the file in the same transaction.
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    mark = connection.execute("PRAGMA application_id").fetchone()[0]
    if mark != APPLICATION and tables:
        raise StoreError(f"{path} is another program's database; name another file")


def migrate(
    connection: sqlite3.Connection, path: Path, known: Sequence[Migration] | None = None
) -> None:
    """Apply what is missing, under the write lock: of two that start at once, one does it."""
    known = known_migrations() if known is None else known
    if not _missing(connection, path, known):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        refuse_foreign(connection, path)
        for migration in _missing(connection, path, known):
            for statement in _statements(migration.text):
                connection.execute(statement)
            connection.execute(
                "INSERT INTO migrations (number, name, checksum, applied_at) VALUES (?, ?, ?, ?)",
                (migration.number, migration.name, migration.checksum, time.time()),
            )
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _missing(
    connection: sqlite3.Connection, path: Path, known: Sequence[Migration]
) -> Sequence[Migration]:
    """What is still to be applied. StoreError when the file was made by other migrations."""
    applied = _applied(connection)
    newest = max(applied, default=0)
    if newest > len(known):
        raise StoreError(
            f"{path} has schema {newest}, and this program knows schema {len(known)} at most;"
            " use a newer Counterseal, or another file"
        )
    for migration in known[:newest]:
        if applied.get(migration.number) != migration.checksum:
            raise StoreError(
                f"{path} was made with another migration {migration.number}"
                f" ({migration.name}) than this program's; use the Counterseal that made it"
            )
    return known[newest:]


def _applied(connection: sqlite3.Connection) -> dict[int, str]:
    there = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'migrations'"
    if not connection.execute(there).fetchone()[0]:
        return {}
    return dict(connection.execute("SELECT number, checksum FROM migrations"))
