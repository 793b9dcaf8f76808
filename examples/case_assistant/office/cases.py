"""The offices' case database: one SQLite file, which any number of processes use at once.

`Cases` is the file: made once with the stock of cases, read and written in transactions. What one
office may see and do in it is `casework`.
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
"""Seconds to wait for another process that writes; longer than the reads' deadline."""


@dataclass(frozen=True, slots=True)
class Cases:
    """The file. A connection is opened for each piece of work, and closed after it."""

    path: Path

    @classmethod
    def open(cls, path: Path | str) -> Cases:
        """FileNotFoundError when there is none."""
        if not Path(path).is_file():
            raise FileNotFoundError(f"there is no case database at {path}")
        return cls(Path(path))

    @classmethod
    def make(cls, path: Path | str) -> Cases:
        """One with the stock of cases. One that is there already is left as it is."""
        path = Path(path)
        if not path.exists():
            begun = path.with_name(f"{path.name}.{os.getpid()}.new")
            begun.unlink(missing_ok=True)
            cls(begun).fill()
            with suppress(FileExistsError):  # another process was faster
                os.link(begun, path)  # whole or not at all
            begun.unlink()
        return cls(path)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection that sees one state of everything, and changes nothing."""
        with self._connected() as connection:
            connection.execute("PRAGMA query_only = ON")
            connection.execute("BEGIN")
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all of it, or, when anything is raised, nothing."""
        with self._connected() as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """What was begun and not committed is rolled back when it is closed."""
        connection = sqlite3.connect(self.path, timeout=_WAIT, isolation_level=None)
        try:
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA foreign_keys = ON")
            yield connection
        finally:
            connection.close()

    def fill(self) -> None:
        """Make the tables of an empty file, and what they begin with."""
        schema = Path(__file__).with_name("schema.sql").read_text(encoding="utf-8")
        with self._connected() as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(schema)
        with self.writing() as connection:
            for table, rows in stock.tables().items():
                columns = ", ".join(rows[0])
                values = ", ".join(f":{name}" for name in rows[0])
                connection.executemany(
                    f"INSERT INTO {table} ({columns}) VALUES ({values})",  # noqa: S608 - the stock's own names
                    rows,
                )
            connection.execute("INSERT INTO evidence_words (evidence_words) VALUES ('rebuild')")
