"""The offices' case database: one SQLite file for any number of processes.

`Cases` creates the file with its first cases, and reads and writes it in transactions. `casework`
has the operations of one office.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from office import stock

__all__ = ["FILE", "Cases"]

FILE: Final = "cases.db"
_WAIT: Final = 5.0
"""Seconds to wait for another writer; longer than the deadline of reads."""


@dataclass(frozen=True, slots=True)
class Cases:
    """The database file. Each operation opens and closes its own connection."""

    path: Path

    @classmethod
    def open(cls, path: Path | str) -> Cases:
        """Open an existing file. FileNotFoundError if there is none."""
        if not Path(path).is_file():
            raise FileNotFoundError(f"there is no case database at {path}")
        return cls(Path(path))

    @classmethod
    def make(cls, path: Path | str) -> Cases:
        """Create the file with the first cases, unless it exists."""
        path = Path(path)
        if not path.exists():
            begun = path.with_name(f"{path.name}.{os.getpid()}.new")
            begun.unlink(missing_ok=True)
            cls(begun).fill()
            with suppress(FileExistsError):  # another process has created it
                os.link(begun, path)  # complete or not at all
            begun.unlink()
        return cls(path)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Open a read-only transaction with one consistent state."""
        with self._connected() as connection:
            connection.execute("PRAGMA query_only = ON")
            connection.execute("BEGIN")
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction; it is rolled back if anything is raised."""
        with self._connected() as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """Open a connection; closing it rolls back an open transaction."""
        connection = sqlite3.connect(self.path, timeout=_WAIT, isolation_level=None)
        try:
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA foreign_keys = ON")
            yield connection
        finally:
            connection.close()

    def fill(self) -> None:
        """Create the tables and their first rows."""
        schema = Path(__file__).with_name("schema.sql").read_text(encoding="utf-8")
        with self._connected() as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(schema)
        with self.writing() as connection:
            for table, rows in stock.tables().items():
                columns = ", ".join(rows[0])
                values = ", ".join(f":{name}" for name in rows[0])
                connection.executemany(
                    f"INSERT INTO {table} ({columns}) VALUES ({values})",  # noqa: S608 - names from the stock files
                    rows,
                )
            connection.execute("INSERT INTO evidence_words (evidence_words) VALUES ('rebuild')")
