"""The embedded store: one SQLite file, for one machine and any number of its processes.

`admission`, `leases`, `runs`, `holds`, `work` and `record` are the store's transactions. `database`
carries them out, `chain` links what they record, `writer` gathers those that wait into one commit,
`watch` wakes who waits for somebody else, and `store` is the whole of it.
"""

from __future__ import annotations

from counterseal.storage.sqlite.address import path_of
from counterseal.storage.sqlite.store import SqliteStore

__all__ = ["SqliteStore", "open_sqlite"]


def open_sqlite(url: str) -> SqliteStore:
    """The store in the file that a URL names; a new file is made where there is none."""
    return SqliteStore(path_of(url))
