"""The embedded store: one SQLite file, for one machine and any number of its processes.

`backend` answers the store; `writer` gathers what waits into one commit; `database` opens the file
and commits; `rows` loads and writes rows, with the read cache; `queries` reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from counterseal.storage.sqlite.backend import SqliteBackend
from counterseal.storage.sqlite.file import path_of
from counterseal.storage.store import Store

__all__ = ["SqliteStore", "open_sqlite", "path_of"]


class SqliteStore(Store):
    """A store in one file, which is opened and migrated when this is made.

    `patience` is how many seconds to wait for another program that writes.
    """

    def __init__(
        self, path: Path, *, patience: float = 5.0, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(SqliteBackend(path, patience=patience, clock=clock))


def open_sqlite(url: str) -> SqliteStore:
    """Return the store in the file that a URL names; a new file is made where there is none."""
    return SqliteStore(path_of(url))
