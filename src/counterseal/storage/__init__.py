"""Where runs, entries, held proposals, counters and events are kept, found by URL."""

from __future__ import annotations

from counterseal.errors import CountersealError
from counterseal.storage.base import Store
from counterseal.storage.memory import MemoryStore

__all__ = ["Store", "open_store"]


def open_store(url: str) -> Store:
    """The store that a URL names, opened and brought up to date."""
    scheme = url.partition(":")[0]
    if scheme == "memory":
        return MemoryStore()
    if scheme == "sqlite":
        from counterseal.storage.sqlite import open_sqlite  # noqa: PLC0415 - only who wants it

        return open_sqlite(url)
    if scheme in ("postgresql", "postgres"):
        from counterseal.storage.postgres import open_postgres  # noqa: PLC0415 - only who wants it

        return open_postgres(url)
    raise CountersealError(
        f"no store is called {scheme!r}; this version has memory:, sqlite: and postgresql:"
    )
