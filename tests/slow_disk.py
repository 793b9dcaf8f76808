"""A disk that takes its time: connections of SQLite whose COMMIT of changes is held up.

    disk = SlowDisk(seconds=0.01)
    sqlite3.connect = disk.connect     # before the store is opened

The wait is inside the statement, as that for a real disk is: the calling thread stands still, and
other threads go on. `hold()` keeps commits until `let_go()`.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from functools import partial
from typing import Any, Self

_connect = sqlite3.connect
_FULL = 2


class SlowDisk:
    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.reached = threading.Event()
        """Set when a commit has begun."""
        self._go_on = threading.Event()
        self._go_on.set()
        disk = self

        class Cursor(sqlite3.Cursor):
            synced = 0
            """The number of changes that have reached the disk."""

            def execute(self, sql: str, *given: Any) -> Self:
                changes = self.connection.total_changes
                if sql == "COMMIT" and changes != self.synced:
                    (synchronous,) = super().execute("PRAGMA synchronous").fetchone()
                    if synchronous >= _FULL:  # otherwise SQLite does not wait for the disk
                        disk.wait()
                        self.synced = changes
                return super().execute(sql, *given)

        class Connection(sqlite3.Connection):
            def cursor(self, factory: Any = Cursor) -> Any:
                return super().cursor(factory)

        self.connect = partial(_connect, factory=Connection)

    def wait(self) -> None:
        self.reached.set()
        time.sleep(self.seconds)
        if not self._go_on.wait(60):
            raise sqlite3.OperationalError("the disk was never let go")

    def hold(self) -> None:
        self._go_on.clear()
        self.reached.clear()

    def let_go(self) -> None:
        self._go_on.set()
