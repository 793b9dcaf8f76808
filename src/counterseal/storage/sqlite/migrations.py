"""Brings a file's schema up to date: numbered steps, each applied once, none ever changed."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from counterseal.errors import StoreError
from counterseal.storage.scripts import (
    Migration,
    migrations_in,
    missing_migrations,
    sql_folder,
)

_APPLICATION: Final = 0x43_53_45_41
"""Marks a file as this program's, in the place that SQLite has for it: `CSEA`."""


def known_migrations() -> tuple[Migration, ...]:
    """Return the migrations of this program, in their order."""
    return migrations_in(sql_folder("sqlite"))


def refuse_foreign(connection: sqlite3.Connection, path: Path) -> None:
    """Raise StoreError for a database that another program has made."""
    # Tables first: a process that makes ours meanwhile marks the file in the same transaction.
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    mark = connection.execute("PRAGMA application_id").fetchone()[0]
    if mark != _APPLICATION and tables:
        raise StoreError(f"{path} is another program's database; name another file")


def migrate(
    connection: sqlite3.Connection, path: Path, known: Sequence[Migration] | None = None
) -> None:
    """Apply what is missing, under the write lock: of two processes that start, one does it."""
    known = known_migrations() if known is None else known
    if not missing_migrations(_applied(connection), known, str(path), "file"):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        refuse_foreign(connection, path)
        for migration in missing_migrations(_applied(connection), known, str(path), "file"):
            for statement in _statements(migration.text):
                connection.execute(statement)
            connection.execute(
                "INSERT INTO migrations (number, name, checksum, applied_at) VALUES (?, ?, ?, ?)",
                (migration.number, migration.name, migration.checksum, time.time()),
            )
        connection.execute(f"PRAGMA application_id = {_APPLICATION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _statements(text: str) -> Iterator[str]:
    """Yield the statements of a script. Run as a whole, it would end the transaction."""
    statement = ""
    for line in text.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _applied(connection: sqlite3.Connection) -> dict[int, str]:
    """Return the checksums of the applied migrations by number."""
    there = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'migrations'"
    if not connection.execute(there).fetchone()[0]:
        return {}
    return dict(connection.execute("SELECT number, checksum FROM migrations"))
